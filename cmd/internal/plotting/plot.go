// Package plotting draws curves and bars into SVG and PNG files.
package plotting

import (
	"bytes"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"fusec/cmd/internal/cli"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	_ "gonum.org/v1/plot/vg/vgimg" // PNG
	_ "gonum.org/v1/plot/vg/vgsvg" // SVG
)

// Chart is curves over one axis, drawn to a file.
type Chart struct {
	Title, X, Y string
	LogX        bool // x is positive, and each that occurs gets its mark
	ZeroY       bool // the y axis starts at 0
	LogY        bool // y is positive
	Curves      []Curve
}

// Curve is points joined by lines; a dashed one has no marks at the points.
type Curve struct {
	Name   string
	X, Y   []float64
	Dashed bool
}

// Formats are the endings of the files that a chart is drawn to.
var Formats = []string{".svg", ".png"}

// CheckPlot refuses a file of another ending.
func CheckPlot(path string) error { return CheckName(path, Formats) }

// CheckName refuses a file that ends in none of the formats.
func CheckName(path string, formats []string) error {
	if !slices.Contains(formats, strings.ToLower(filepath.Ext(path))) {
		return fmt.Errorf("want a name that ends in %s", strings.Join(formats, " or "))
	}
	return nil
}

// Save draws the chart to a file, in the format that the file's ending names.
func (c *Chart) Save(path string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Title.Padding, p.Legend.Top, p.Legend.Left = vg.Points(8), true, true
	p.Add(plotter.NewGrid())
	var ticks plot.ConstantTicks
	for i, k := range c.Curves {
		points := make(plotter.XYs, len(k.X))
		for j := range points {
			points[j] = plotter.XY{X: k.X[j], Y: k.Y[j]}
			if tick := (plot.Tick{Value: k.X[j], Label: fmt.Sprint(k.X[j])}); !slices.Contains(ticks, tick) {
				ticks = append(ticks, tick)
			}
		}
		line, marks, err := plotter.NewLinePoints(points)
		if err != nil {
			return fmt.Errorf("drawing %s: %w", k.Name, err)
		}
		line.Color, marks.Color = plotutil.Color(i), plotutil.Color(i)
		marks.Shape = plotutil.Shape(i)
		if k.Dashed {
			line.Dashes = plotutil.Dashes(1)
			p.Add(line)
			p.Legend.Add(k.Name, line)
			continue
		}
		p.Add(line, marks)
		p.Legend.Add(k.Name, line, marks)
	}
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, ticks
		if p.X.Min == p.X.Max { // one x is drawn in the middle
			p.X.Min, p.X.Max = p.X.Min/2, p.X.Max*2
		}
	}
	p.Y.Tick.Marker = plot.TickerFunc(shortTicks)
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{}
		p.Y.Max *= 10 // space for the legend
	}
	if c.ZeroY {
		p.Y.Min, p.Y.Max = 0, 1.25*p.Y.Max // space for the legend
	}
	return save(p, 4*vg.Inch, path)
}

// save draws a plot of the given height to a file.
func save(p *plot.Plot, height vg.Length, path string) error {
	c, err := draw.NewFormattedCanvas(6*vg.Inch, height, strings.TrimPrefix(strings.ToLower(filepath.Ext(path)), "."))
	if err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	const edge = 8
	p.Draw(draw.Crop(draw.New(c), edge, -edge, edge, -edge))
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	return cli.WriteFile(path, b.Bytes())
}

// Bars is numbers side by side, the first at the top, drawn to a file.
type Bars struct {
	Title, X string
	Bars     []Bar
}

// Bar is one number, with the text at its end.
type Bar struct {
	Name, Label string
	Value       float64 // not negative
}

// Save draws the bars to a file, in the format that the file's ending names.
func (c *Bars) Save(path string) error {
	p := plot.New()
	p.Title.Text, p.X.Label.Text = c.Title, c.X
	p.Title.Padding = vg.Points(8)
	n := len(c.Bars)
	values, names := make(plotter.Values, n), make([]string, n)
	labels := plotter.XYLabels{XYs: make(plotter.XYs, n), Labels: make([]string, n)}
	for i, b := range c.Bars {
		at := n - 1 - i
		values[at], names[at] = b.Value, b.Name
		labels.XYs[at], labels.Labels[at] = plotter.XY{X: b.Value, Y: float64(at)}, b.Label
	}
	bars, err := plotter.NewBarChart(values, vg.Points(18))
	if err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	bars.Horizontal, bars.Color, bars.LineStyle.Width = true, plotutil.Color(2), 0
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	text.Offset = vg.Point{X: vg.Points(4)}
	for i := range text.TextStyle {
		text.TextStyle[i].YAlign = draw.YCenter
	}
	p.Add(bars, text)
	p.NominalY(names...)
	p.X.Tick.Marker = plot.TickerFunc(shortTicks)
	p.X.Min, p.X.Max = 0, 1.8*p.X.Max // space for the labels
	return save(p, vg.Inch+vg.Points(30)*vg.Length(n), path)
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
