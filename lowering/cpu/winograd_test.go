package cpu

import (
	"slices"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
	kernels "fusec/kernels/cpu"
	"fusec/lowering"
)

// wide is a convolution of 3×3 for which Winograd's algorithm is made: many channels and many pixels.
var wide = kernels.Convolution{DType: graph.F32, Images: 2, Channels: 128, Height: 29, Width: 31, Filters: 96, KH: 3, KW: 3,
	Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1}

func tileOf(t *testing.T, d *Device, c kernels.Convolution, l graph.ImageLayout) int {
	t.Helper()
	op, x, w := c.Op(l)
	results, err := graph.InfoOf(op).Infer(op, []graph.Type{x, w})
	if err != nil {
		t.Fatal(err)
	}
	return d.WinogradTile(op, []graph.Type{x, w}, results[0], true, false)
}

// TestWinogradTile checks that the algorithm is chosen where it saves time and is defined, and nowhere else.
func TestWinogradTile(t *testing.T) {
	d := New()
	defer d.Close()
	if tile := tileOf(t, d, wide, graph.NHWC); tile != 2 && tile != 4 {
		t.Errorf("a wide convolution has tile %d", tile)
	}
	for name, change := range map[string]func(*kernels.Convolution){
		"stride":            func(c *kernels.Convolution) { c.Stride = graph.IntsOf(2, 1) },
		"dilation":          func(c *kernels.Convolution) { c.Dilation = graph.IntsOf(1, 2) },
		"groups":            func(c *kernels.Convolution) { c.Groups = 2 },
		"5×3":               func(c *kernels.Convolution) { c.KH = 5 },
		"f64":               func(c *kernels.Convolution) { c.DType = graph.F64 },
		"no image":          func(c *kernels.Convolution) { c.Images = 0 },
		"no channel":        func(c *kernels.Convolution) { c.Channels = 0 },
		"transforms cost":   func(c *kernels.Convolution) { c.Channels, c.Filters = 2, 3 },
		"one pixel":         func(c *kernels.Convolution) { c.Images, c.Height, c.Width = 1, 1, 1 },
		"filters are large": func(c *kernels.Convolution) { c.Channels, c.Filters, c.Height, c.Width = 2048, 2048, 4, 4 },
	} {
		c := wide
		change(&c)
		if tile := tileOf(t, d, c, graph.NHWC); tile != 0 {
			t.Errorf("%s: tile %d", name, tile)
		}
	}
	if tile := tileOf(t, d, wide, graph.NCHW); tile != 0 {
		t.Errorf("NCHW: tile %d", tile)
	}
}

// TestWinogradTuned checks that what was measured is chosen, whatever the estimate says.
func TestWinogradTuned(t *testing.T) {
	direct, two := kernels.Way{Algorithm: kernels.Direct}, kernels.Way{Algorithm: kernels.Winograd, Tile: 2}
	for name, c := range map[string]struct {
		direct, two time.Duration
		tile        int
	}{
		"faster":            {100, 90, 2},
		"hardly faster":     {100, 96, 0},
		"slower":            {90, 100, 0},
		"only one measured": {0, 90, -1},
	} {
		times := map[kernels.Way]time.Duration{two: c.two}
		if c.direct > 0 {
			times[direct] = c.direct
		}
		d := New(Tuned(&kernels.Tuning{Times: map[kernels.Convolution]map[kernels.Way]time.Duration{wide: times}}))
		want := c.tile
		if want < 0 { // a time that cannot be compared decides nothing
			want = tileOf(t, New(), wide, graph.NHWC)
		}
		if tile := tileOf(t, d, wide, graph.NHWC); tile != want {
			t.Errorf("%s: tile %d, want %d", name, tile, want)
		}
	}
}

// TestWays checks that a tuning measures every way, and none that is forbidden or takes too much memory.
func TestWays(t *testing.T) {
	tiles := func(c kernels.Convolution, winograd bool) (list []int) {
		for _, w := range Ways(c, winograd) {
			if !slices.Contains(list, w.Tile) {
				list = append(list, w.Tile)
			}
		}
		return list
	}
	if got := tiles(wide, true); !slices.Equal(got, []int{0, 2, 4}) {
		t.Errorf("tiles %v", got)
	}
	if got := tiles(wide, false); !slices.Equal(got, []int{0}) {
		t.Errorf("forbidden: tiles %v", got)
	}
	large := wide
	large.Channels, large.Filters = 512, 512 // 16 and 36 MiB of transformed filters
	if got := tiles(large, true); !slices.Equal(got, []int{0, 2}) {
		t.Errorf("large filters: tiles %v", got)
	}
}

// TestConvolutions lists each convolution of a program once, whether it stands alone or in a fusion, and names the ways that
// were measured.
func TestConvolutions(t *testing.T) {
	b := graph.NewBuilder("two")
	op, images, filters := wide.Op(graph.NHWC)
	x, w := b.Input("x", images), b.Param("w", filters)
	b.Output("alone", b.Add(op, x, w))
	b.Output("again", b.Add(op, x, b.Param("v", filters)))
	op.Stride = graph.IntsOf(2, 2)
	fused := graph.NewBuilder("body")
	fused.Output("y", fused.Unary(graph.Relu, fused.Add(op, fused.Input("x", images), fused.Input("w", filters))))
	body := graphtest.Graph(t, fused)
	b.Output("fused", b.Add(graph.Fusion{Kind: graph.KindConv, Anchor: graph.AnchorConv, Body: body}, x, w))
	b.Output("tanh", b.Unary(graph.Tanh, x))
	g := graphtest.Graph(t, b)
	way := kernels.Way{Algorithm: kernels.Direct}
	d := New(Tuned(&kernels.Tuning{Times: map[kernels.Convolution]map[kernels.Way]time.Duration{wide: {way: time.Millisecond}}}))
	defer d.Close()
	p, err := lowering.Lower(g, d.Name(), d.Lowering()...)
	if err != nil {
		t.Fatal(err)
	}
	d.Place(p)
	list, ways := Convolutions(p)
	if len(list) != 2 || len(ways) != 2 || list[0] != wide || list[1].Stride != graph.IntsOf(2, 2) {
		t.Errorf("convolutions %+v", list)
	}
	tuned := 0
	for _, l := range p.Launches {
		if l.Way == way.Text()+", tuned" {
			tuned++
		}
	}
	if tuned != 2 {
		t.Errorf("%d of the two convolutions that were measured are named so:\n%v", tuned, p)
	}
}
