package conv

import (
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// specs are convolutions with something uncommon each.
var specs = []spec{
	square(1, 3, 64, 30, 7, 2, 3, 1),
	square(1, 64, 64, 14, 3, 1, 1, 1),
	square(2, 40, 33, 7, 3, 1, 1, 1),
	square(3, 17, 5, 1, 1, 1, 0, 1),
	square(1, 600, 19, 3, 1, 1, 0, 1),
	square(1, 512, 20, 7, 3, 1, 1, 1), // pixels at a distance of which multiples conflict
	square(2, 12, 12, 9, 3, 1, 1, 4),
	square(2, 6, 6, 5, 3, 2, 1, 6),
	square(0, 3, 4, 5, 3, 1, 1, 1), // no images
	square(2, 3, 0, 5, 3, 1, 1, 1), // no filters
	square(2, 0, 4, 5, 3, 1, 1, 1), // no channels
	square(1, 2, 3, 0, 3, 1, 2, 1), // an image of nothing, and a border
	square(1, 2, 3, 2, 5, 1, 2, 1), // filters larger than the image
	square(1, 5, 7, 9, 2, 5, 0, 1), // strides larger than the filters
	square(1, 5, 7, 9, 2, 5, 2, 1),
	square(11, 5, 7, 3, 3, 1, 1, 1),    // bands of several images
	square(1, 160, 170, 7, 3, 1, 1, 1), // few pixels, in two bands
	// causal, longer than a band
	{1, 1, 300, 4, 9, 1, 5, graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 4, 0, 0),
		Groups: 1}},
	{1, 9, 1, 4, 9, 3, 1, graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(3, 1), Pad: graph.IntsOf(3, 0, 3, 0),
		Groups: 1}},
	{1, 20, 21, 4, 9, 3, 3, graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(6, 6), Pad: graph.IntsOf(6, 6, 6, 6),
		Groups: 1}},
	{1, 3, 3, 4, 9, 3, 3, graph.Conv2D{Stride: graph.IntsOf(2, 3), Dilation: graph.IntsOf(1000, 1000),
		Pad: graph.IntsOf(1000, 999, 1000, 1000), Groups: 1}},
}

// randomSpec is a convolution of small sizes.
func randomSpec(rng *rand.Rand) spec {
	groups := 1
	if rng.IntN(3) == 0 {
		groups = 1 + rng.IntN(3)
	}
	s := spec{n: 1 + rng.IntN(3), h: 1 + rng.IntN(12), w: 1 + rng.IntN(12), c: groups * (1 + rng.IntN(20)),
		o: groups * (1 + rng.IntN(40)), kh: 1 + rng.IntN(4), kw: 1 + rng.IntN(4)}
	p := func() int { return max(rng.IntN(6)-2, 0) }
	s.op = graph.Conv2D{Stride: graph.IntsOf(1+rng.IntN(3), 1+rng.IntN(3)), Dilation: graph.IntsOf(1+p(), 1+p()), Groups: groups}
	pad := []int{p(), p(), p(), p()}
	for i, d := range []struct{ in, k, dilation int }{{s.h, s.kh, s.op.Dilation.At(0)}, {s.w, s.kw, s.op.Dilation.At(1)}} {
		if short := (d.k-1)*d.dilation + 1 - d.in - pad[i] - pad[2+i]; short > 0 {
			pad[2+i] += short
		}
	}
	s.op.Pad = graph.IntsOf(pad...)
	return s
}

func testPlan[T gemm.Float](t *testing.T) {
	rng := rand.New(rand.NewPCG(31, 32))
	for _, micro := range gemm.Micros[T]() {
		for _, s := range specs {
			check(t, rng, configOf[T](s), micro)
		}
		for range 60 {
			cfg := configOf[T](randomSpec(rng))
			check(t, rng, cfg, micro)
			check(t, rng, strided(rng, cfg), micro)
		}
	}
}

// strided lets the operands be parts of larger ones, with axes in another order.
func strided[T gemm.Float](rng *rand.Rand, cfg Config[T]) Config[T] {
	part := func(s graph.Shape) graph.Layout {
		perm := graph.IntsOf(rng.Perm(4)...)
		if rng.IntN(2) == 0 {
			perm = graph.IntsOf(0, 1, 2, 3)
		}
		inverse, wider := [4]int{}, graph.ShapeOf(1, 1, 1, 1)
		for i := range 4 {
			inverse[perm.At(i)] = i
			wider = wider.With(i, s.At(perm.At(i))+rng.IntN(3))
		}
		l := graph.Contiguous(wider)
		for i := range 4 {
			size := s.At(perm.At(i))
			l = l.Slice(i, rng.IntN(wider.At(i)-size+1), size, 1)
		}
		return l.Transpose(graph.IntsOf(inverse[:]...))
	}
	cfg.X, cfg.W = part(cfg.X.Shape), part(cfg.W.Shape)
	cfg.RowStride += rng.IntN(7)
	return cfg
}

func TestPlan(t *testing.T) {
	t.Run("float32", testPlan[float32])
	t.Run("float64", testPlan[float64])
}

// TestScratch has filters so large that a band is few pixels.
func TestScratch(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	for _, c := range []struct {
		s      spec
		pixels int // of a band, at most
		bytes  int
	}{
		{square(1, 2048, 8, 40, 5, 1, 2, 1), 12, 1 << 20},
		{square(1, 100, 1, 1, 500, 1, 500, 1), 1, 128 << 20},
		{square(20, 512, 8, 7, 3, 1, 1, 1), 256, 1 << 20},
	} {
		k, err := New(c.s.config(), p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n := k.batch * k.h.band * k.w.band; n > c.pixels || k.room*k.size > c.bytes {
			t.Errorf("%v: bands of %d pixels, %d bytes of scratch", c.s, n, k.room*k.size)
		}
	}
}

// TestBands checks that the blocks of an epilogue cover the result, and that the bands are numbered.
func TestBands(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, s := range specs {
		k, err := New(s.config(), p, nil)
		if err != nil {
			t.Fatal(err)
		}
		rows := map[int]int{} // of a row: its band and one more
		m := &covered{rows: rows, count: make([]int, k.Rows()*s.o), out: s.o}
		one := pool.New(1)
		defer one.Close()
		k.pool = one
		if err := k.Run(make([]float32, k.need), make([]float32, Extent(k.cfg.W)), make([]float32, k.Rows()*s.o), nil, m); err != nil {
			t.Fatal(err)
		}
		for at, n := range m.count {
			if n != 1 {
				t.Fatalf("%v: element %d is in %d blocks", s, at, n)
			}
		}
		for row, band := range rows {
			if band < 1 || band > k.Bands() {
				t.Fatalf("%v: row %d is in band %d of %d", s, row, band-1, k.Bands())
			}
		}
		if m.mixed {
			t.Fatalf("%v: a row is in two bands", s)
		}
	}
}

type covered struct {
	rows  map[int]int
	count []int
	out   int
	mixed bool
}

func (c *covered) Tile(_, band, row, col, rows, cols int) {
	for i := row; i < row+rows; i++ {
		if have := c.rows[i]; have != 0 && have != band+1 {
			c.mixed = true
		}
		c.rows[i] = band + 1
		for j := col; j < col+cols; j++ {
			c.count[i*c.out+j]++
		}
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, s := range []spec{square(2, 16, 40, 14, 3, 1, 1, 1), square(1, 64, 40, 14, 1, 1, 0, 1)} {
		k, err := New(s.config(), p, nil)
		if err != nil {
			t.Fatal(err)
		}
		x, w, y := make([]float32, k.need), make([]float32, Extent(k.cfg.W)), make([]float32, k.Rows()*s.o)
		finish := &Finish[float32]{Shift: make([]float32, s.o), Residual: y, RowStride: s.o, High: 1}
		if n := testing.AllocsPerRun(20, func() {
			if err := k.Run(x, w, y, finish, nil); err != nil {
				t.Fatal(err)
			}
		}); n != 0 {
			t.Errorf("%v: %v allocations", s, n)
		}
		if k.Bytes() == 0 {
			t.Errorf("%v: the plan keeps no table", s)
		}
	}
}

// TestErrors has configurations and slices that are refused.
func TestErrors(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	good := square(1, 4, 6, 5, 3, 1, 1, 2).config()
	for name, change := range map[string]func(c *Config[float32]){
		"groups":        func(c *Config[float32]) { c.Op.Groups = 4 },
		"no groups":     func(c *Config[float32]) { c.Op.Groups = 0 },
		"channels":      func(c *Config[float32]) { c.X = graph.Contiguous(graph.ShapeOf(1, 5, 5, 5)) },
		"rank":          func(c *Config[float32]) { c.W = graph.Contiguous(graph.ShapeOf(3, 3, 6)) },
		"stride":        func(c *Config[float32]) { c.Op.Stride = graph.IntsOf(0, 1) },
		"small image":   func(c *Config[float32]) { c.Op.Pad = graph.IntsOf(0, 0, 0, 0); c.Op.Dilation = graph.IntsOf(9, 1) },
		"close rows":    func(c *Config[float32]) { c.RowStride = 5 },
		"negative band": func(c *Config[float32]) { c.Band = -1 },
		"negative step": func(c *Config[float32]) { c.X.Stride[1] = -1 },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg, p, nil); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := New(good, nil, nil); err == nil {
		t.Error("no pool: no error")
	}
	if _, err := NewFilters[float32](4, good.W, p); err == nil {
		t.Error("filters in groups that do not divide them: no error")
	}
	if _, err := NewFilters[float32](2, good.W, nil); err == nil {
		t.Error("filters without a pool: no error")
	}
	other := square(1, 8, 6, 5, 3, 1, 1, 2).config()
	var err error
	if good.Filters, err = NewFilters[float32](2, other.W, p); err != nil || good.Filters.Bytes() == 0 {
		t.Fatal(err)
	}
	if err := good.Filters.Update(nil); err == nil {
		t.Error("short filters: no error")
	}
	if _, err := New(good, p, nil); err == nil {
		t.Error("filters of another shape: no error")
	}
	good.Filters = nil
	k, err := New(good, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	x, w, y := make([]float32, 100), make([]float32, 108), make([]float32, 150)
	for i := range 3 {
		slices := [3][]float32{x, w, y}
		slices[i] = slices[i][1:]
		if err := k.Run(slices[0], slices[1], slices[2], nil, nil); err == nil {
			t.Errorf("slice %d is short: no error", i)
		}
	}
	for _, f := range []*Finish[float32]{{Shift: x[:5]}, {Residual: y[:149], RowStride: 6}, {Residual: y, RowStride: -1}} {
		if err := k.Run(x, w, y, f, nil); err == nil {
			t.Errorf("%d elements of shift, %d of residual, %d apart: no error", len(f.Shift), len(f.Residual), f.RowStride)
		}
	}
}
