package training

import (
	"errors"
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"fusec/examples/train"
	"fusec/graph/dot"
)

// Colours of a curve: of each step, and of what matters.
var (
	curveFaint  = color.RGBA{0xc3, 0xcf, 0xe2, 0xff}
	curveStrong = color.RGBA{0x24, 0x4c, 0x8c, 0xff}
)

// drawCurve draws the loss of each step and its running mean, and below, one after the other, the scores.
func drawCurve(w io.Writer, format dot.Format, title string, records []train.Record) error {
	panels, err := curvePanels(title, records)
	if err != nil {
		return err
	}
	const width, height = 18 * vg.Centimeter, 8 * vg.Centimeter
	size := func() (vg.Length, vg.Length) { return width, height * vg.Length(len(panels)) }
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case dot.FormatSVG:
		canvas = vgsvg.New(size())
	case dot.FormatPNG:
		canvas = vgimg.PngCanvas{Canvas: vgimg.New(size())}
	default:
		return fmt.Errorf("a curve is drawn as svg or png, not %s", format)
	}
	const gap = vg.Centimeter / 2
	tiles := draw.Tiles{Rows: len(panels), Cols: 1, PadY: gap, PadTop: gap, PadBottom: gap, PadLeft: gap, PadRight: gap}
	all := make([][]*plot.Plot, len(panels))
	for i, p := range panels {
		all[i] = []*plot.Plot{p}
	}
	for i, row := range plot.Align(all, tiles, draw.New(canvas)) {
		panels[i].Draw(row[0])
	}
	_, err = canvas.WriteTo(w)
	return err
}

// curvePanels makes the plots.
func curvePanels(title string, records []train.Record) ([]*plot.Plot, error) {
	var loss plotter.XYs
	var names []string
	scores := map[string]plotter.XYs{}
	for _, r := range records {
		if !math.IsNaN(r.Loss) && !math.IsInf(r.Loss, 0) {
			loss = append(loss, plotter.XY{X: float64(r.Step), Y: r.Loss})
		}
		for _, s := range r.Scores {
			if scores[s.Name] == nil {
				names = append(names, s.Name)
			}
			scores[s.Name] = append(scores[s.Name], plotter.XY{X: float64(r.Step), Y: s.Value})
		}
	}
	if len(loss) == 0 {
		return nil, errors.New("there is no loss to draw a curve of: no step was done, or none had a finite loss")
	}
	first := plot.New()
	first.Title.Text, first.Y.Label.Text = title, "loss"
	err := errors.Join(addLine(first, loss, curveFaint, false), addLine(first, smoothed(loss), curveStrong, false))
	panels := []*plot.Plot{first}
	for _, name := range names {
		p := plot.New()
		p.Y.Label.Text = name
		err = errors.Join(err, addLine(p, scores[name], curveStrong, true))
		panels = append(panels, p)
	}
	panels[len(panels)-1].X.Label.Text = "step"
	last := float64(records[len(records)-1].Step)
	for _, p := range panels {
		p.X.Min, p.X.Max = 0, last
		p.Add(plotter.NewGrid())
	}
	return panels, err
}

// addLine adds a line, with points where they are few.
func addLine(p *plot.Plot, xy plotter.XYs, c color.Color, points bool) error {
	l, s, err := plotter.NewLinePoints(xy)
	if err != nil {
		return err
	}
	l.Color, s.Color, s.Shape = c, c, draw.CircleGlyph{}
	p.Add(l)
	if points {
		p.Add(s)
	}
	return nil
}

// smoothed is the running mean, over a twentieth of the points.
func smoothed(xy plotter.XYs) plotter.XYs {
	n := max(len(xy)/20, 1)
	mean := make(plotter.XYs, len(xy))
	sum := 0.0
	for i := range xy {
		sum += xy[i].Y
		if i >= n {
			sum -= xy[i-n].Y
		}
		mean[i] = plotter.XY{X: xy[i].X, Y: sum / float64(min(i+1, n))}
	}
	return mean
}
