package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	_ "gonum.org/v1/plot/vg/vgimg" // PNG
	_ "gonum.org/v1/plot/vg/vgsvg" // SVG
)

// chart is curves over one axis, drawn to a file.
type chart struct {
	title, x, y string
	logX        bool // x is positive, and each that occurs gets its mark
	zeroY       bool // the y axis starts at 0
	logY        bool // y is positive
	curves      []curve
}

// curve is points joined by lines; a dashed one has no marks at the points.
type curve struct {
	name   string
	x, y   []float64
	dashed bool
}

// plotFormats are the endings of the files that a chart is drawn to.
var plotFormats = []string{".svg", ".png"}

// checkPlot refuses a file of another ending.
func checkPlot(path string) error {
	if !slices.Contains(plotFormats, strings.ToLower(filepath.Ext(path))) {
		return fmt.Errorf("want a name that ends in %s", strings.Join(plotFormats, " or "))
	}
	return nil
}

// save draws the chart to a file, in the format that the file's ending names.
func (c *chart) save(path string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.title, c.x, c.y
	p.Title.Padding, p.Legend.Top, p.Legend.Left = vg.Points(8), true, true
	p.Add(plotter.NewGrid())
	var ticks plot.ConstantTicks
	for i, k := range c.curves {
		points := make(plotter.XYs, len(k.x))
		for j := range points {
			points[j] = plotter.XY{X: k.x[j], Y: k.y[j]}
			if tick := (plot.Tick{Value: k.x[j], Label: fmt.Sprint(k.x[j])}); !slices.Contains(ticks, tick) {
				ticks = append(ticks, tick)
			}
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", k.name, err)
		}
		line.Color, marks.Color = plotutil.Color(i), plotutil.Color(i)
		marks.Shape = plotutil.Shape(i)
		if k.dashed {
			line.Dashes = plotutil.Dashes(1)
			p.Add(line)
			p.Legend.Add(k.name, line)
			continue
		}
		p.Add(line, marks)
		p.Legend.Add(k.name, line, marks)
	}
	if c.logX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
		if p.X.Min == p.X.Max { // one x stands in the middle
			p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
		}
	}
	p.Y.Tick.Marker = plot.TickerFunc(shortTicks)
	if c.logY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{}
		p.Y.Max *= 10 // room for the legend
	}
	if c.zeroY {
		p.Y.Min, p.Y.Max = 0, 1.25*p.Y.Max // room for the legend
	}
	w, err := p.WriterTo(6*vg.Inch, 4*vg.Inch, strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), "."))
	if err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	var b bytes.Buffer
	if _, err := w.WriteTo(&b); err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	return writeFile(path, b.Bytes())
}

// shortTicks are the usual ticks without decimals that say nothing.
func shortTicks(from, to float64) []plot.Tick {
	ticks := plot.DefaultTicks{}.Ticks(from, to)
	for i, t := range ticks {
		if v, err := strconv.ParseFloat(t.Label, 64); err == nil {
			ticks[i].Label = strconv.FormatFloat(v, 'g', -1, 64)
		}
	}
	return ticks
}
