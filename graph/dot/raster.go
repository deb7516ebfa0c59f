package dot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"image"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/fogleman/gg"
	"github.com/golang/freetype/truetype"
	"golang.org/x/image/font"
	"golang.org/x/image/font/gofont/gobold"
	"golang.org/x/image/font/gofont/goregular"
)

// The rasteriser draws the SVG that Graphviz writes: rectangles as polygons, rounded ones and edges as paths of
// cubic curves, ellipses, polylines, and text with a size and a weight, all in absolute coordinates below one
// translation. It is not a general SVG renderer.

const (
	pngScale  = 2.0     // pixels per point, for sharp text
	maxPixels = 1 << 24 // of a PNG; larger pictures are scaled down
	// fontShrink compensates for the Go fonts, which are wider than Helvetica, whose metrics the layout uses.
	fontShrink = 0.97
)

// raster is a picture being drawn.
type raster struct {
	*gg.Context
	dx, dy, scale float64
	regular, bold *truetype.Font
	faces         map[string]font.Face
}

// rasterise turns an SVG of Graphviz into a PNG.
func rasterise(svg []byte) ([]byte, error) {
	r := &raster{faces: make(map[string]font.Face)}
	var err error
	if r.regular, err = truetype.Parse(goregular.TTF); err == nil {
		r.bold, err = truetype.Parse(gobold.TTF)
	}
	if err != nil {
		return nil, fmt.Errorf("reading the built-in fonts: %w", err)
	}
	d := xml.NewDecoder(bytes.NewReader(svg))
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("reading SVG: %w", err)
		}
		if e, ok := tok.(xml.StartElement); ok {
			if err := r.element(d, e); err != nil {
				return nil, fmt.Errorf("drawing SVG: %w", err)
			}
		}
	}
	if r.Context == nil {
		return nil, fmt.Errorf("drawing SVG: no picture")
	}
	return encodePNG(r.Image().(*image.RGBA))
}

// attrs are the attributes of an element.
type attrs map[string]string

func (a attrs) number(key string, otherwise float64) float64 {
	if v, err := strconv.ParseFloat(a[key], 64); err == nil {
		return v
	}
	return otherwise
}

// element draws one element.
func (r *raster) element(d *xml.Decoder, e xml.StartElement) error {
	a := make(attrs, len(e.Attr))
	for _, x := range e.Attr {
		a[x.Name.Local] = x.Value
	}
	if e.Name.Local == "svg" {
		return r.begin(a)
	}
	if r.Context == nil {
		return fmt.Errorf("%s outside svg", e.Name.Local)
	}
	switch e.Name.Local {
	case "g":
		if t := a["transform"]; t != "" {
			if i := strings.Index(t, "translate("); i >= 0 {
				p := numbers(t[i+len("translate("):])
				if len(p) >= 2 {
					r.dx, r.dy = p[0], p[1]
				}
			}
		}
	case "polygon", "polyline":
		p := numbers(a["points"])
		for i := 0; i+1 < len(p); i += 2 {
			r.LineTo(r.x(p[i]), r.y(p[i+1]))
		}
		if e.Name.Local == "polygon" {
			r.ClosePath()
		}
		r.paint(a)
	case "path":
		r.path(a["d"])
		r.paint(a)
	case "ellipse":
		r.DrawEllipse(r.x(a.number("cx", 0)), r.y(a.number("cy", 0)), a.number("rx", 0)*r.scale, a.number("ry", 0)*r.scale)
		r.paint(a)
	case "text":
		var s string
		if err := d.DecodeElement(&s, &e); err != nil {
			return err
		}
		r.text(s, a)
	}
	return nil
}

func (r *raster) begin(a attrs) error {
	w, h := a.number2("width"), a.number2("height")
	if w <= 0 || h <= 0 {
		return fmt.Errorf("picture of size %q by %q", a["width"], a["height"])
	}
	r.scale = min(pngScale, math.Sqrt(maxPixels/(w*h)))
	r.Context = gg.NewContext(max(1, int(math.Ceil(w*r.scale))), max(1, int(math.Ceil(h*r.scale))))
	r.SetRGB(1, 1, 1)
	r.Clear()
	return nil
}

// number2 reads a length in points.
func (a attrs) number2(key string) float64 {
	v, _ := strconv.ParseFloat(strings.TrimSuffix(a[key], "pt"), 64)
	return v
}

func (r *raster) x(v float64) float64 { return (v + r.dx) * r.scale }
func (r *raster) y(v float64) float64 { return (v + r.dy) * r.scale }

// path draws the commands M and C with absolute coordinates, the only ones that Graphviz writes.
func (r *raster) path(d string) {
	for _, part := range strings.SplitAfterN(d, "C", 2) {
		p := numbers(part)
		if strings.HasPrefix(part, "M") && len(p) >= 2 {
			r.MoveTo(r.x(p[0]), r.y(p[1]))
			continue
		}
		for i := 0; i+5 < len(p); i += 6 {
			r.CubicTo(r.x(p[i]), r.y(p[i+1]), r.x(p[i+2]), r.y(p[i+3]), r.x(p[i+4]), r.y(p[i+5]))
		}
	}
}

// numbers reads the numbers in s with any separators.
func numbers(s string) []float64 {
	var list []float64
	for _, f := range strings.FieldsFunc(s, func(c rune) bool { return !strings.ContainsRune("0123456789.-e", c) }) {
		if v, err := strconv.ParseFloat(f, 64); err == nil {
			list = append(list, v)
		}
	}
	return list
}

// paint fills and strokes the current path.
func (r *raster) paint(a attrs) {
	if red, green, blue, ok := rgb(a["fill"]); ok {
		r.SetRGB255(red, green, blue)
		r.FillPreserve()
	}
	if red, green, blue, ok := rgb(a["stroke"]); ok {
		r.SetRGB255(red, green, blue)
		r.SetLineWidth(a.number("stroke-width", 1) * r.scale)
		dash := numbers(a["stroke-dasharray"])
		for i := range dash {
			dash[i] *= r.scale
		}
		r.SetDash(dash...)
		r.StrokePreserve()
	}
	r.ClearPath()
}

// rgb reads a colour; "none" is not one.
func rgb(s string) (red, green, blue int, ok bool) {
	switch s {
	case "black", "":
		return 0, 0, 0, s != ""
	case "white":
		return 255, 255, 255, true
	}
	_, err := fmt.Sscanf(s, "#%02x%02x%02x", &red, &green, &blue)
	return red, green, blue, err == nil
}

// text draws one run of text.
func (r *raster) text(s string, a attrs) {
	size := a.number("font-size", 14) * fontShrink * r.scale
	f := r.regular
	if a["font-weight"] == "bold" {
		f = r.bold
	}
	key := fmt.Sprint(a["font-weight"], size)
	if r.faces[key] == nil {
		r.faces[key] = truetype.NewFace(f, &truetype.Options{Size: size, Hinting: font.HintingNone})
	}
	r.SetFontFace(r.faces[key])
	red, green, blue, ok := rgb(a["fill"])
	if !ok {
		red, green, blue = 0, 0, 0
	}
	r.SetRGB255(red, green, blue)
	anchor := map[string]float64{"middle": 0.5, "end": 1}[a["text-anchor"]]
	r.DrawStringAnchored(s, r.x(a.number("x", 0)), r.y(a.number("y", 0)), anchor, 0)
}
