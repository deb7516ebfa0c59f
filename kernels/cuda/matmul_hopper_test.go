package cuda

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
)

// A linearCase is gelu(x·w + bias), rounded to out, for operands of type d, each stored transposed or not.
type linearCase struct {
	d, out         graph.DType
	batch          []int
	m, k, n        int
	transA, transB bool
}

// fusion gives the case as a fusion with row-major operands.
func (c linearCase) fusion(t *testing.T) (f graph.Fusion, args, results []Operand) {
	t.Helper()
	b := graph.NewBuilder("linear")
	matrix := func(rows, cols int, trans bool) graph.Type {
		if trans {
			rows, cols = cols, rows
		}
		return graph.TypeOf(c.d, append(append([]int(nil), c.batch...), rows, cols)...)
	}
	x, w := b.Input("x", matrix(c.m, c.k, c.transA)), b.Input("w", matrix(c.k, c.n, c.transB))
	y := b.MatMul(x, w, c.transA, c.transB)
	bias := b.Input("bias", graph.TypeOf(y.Type.DType, c.n))
	y = b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, b.Broadcast(bias, y.Type.Shape)))
	if c.out != y.Type.DType {
		y = b.CastTo(c.out, y)
	}
	b.Output("y", y)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []*graph.Node{x, w, bias} {
		args = append(args, Operand{DType: n.Type.DType, Layout: graph.Contiguous(n.Type.Shape)})
	}
	results = []Operand{{DType: c.out, Layout: graph.Contiguous(y.Type.Shape)}}
	return graph.Fusion{Body: g, Anchor: graph.AnchorMatMul}, args, results
}

// planned gives the plan of a fusion, or why there is none.
func planned(t *testing.T, f graph.Fusion, args, results []Operand, cfg Config) (*matmul, *hopperPlan, string) {
	t.Helper()
	m, err := newMatMul(f, args, results, cfg)
	if err != nil {
		t.Fatal(err)
	}
	h, reason := m.hopperPlan()
	return m, h, reason
}

// TestHopperPlan tells which products take Hopper's own instructions, and how their operands get there.
func TestHopperPlan(t *testing.T) {
	hopper := Config{Chip: H200}
	tf32 := Config{Chip: H200, Precision: TF32}
	for _, c := range []struct {
		name           string
		cfg            Config
		linear         linearCase
		reason         string
		pitchA, pitchB int
		kInA, kInB     bool
	}{
		{name: "bf16", cfg: hopper, linear: linearCase{d: graph.BF16, out: graph.BF16, m: 512, k: 256, n: 1024}, kInA: true},
		{name: "both transposed", cfg: hopper,
			linear: linearCase{d: graph.F16, out: graph.F32, m: 512, k: 256, n: 1024, transA: true, transB: true}, kInB: true},
		{name: "batches", cfg: hopper,
			linear: linearCase{d: graph.F16, out: graph.F32, batch: []int{2, 3, 4}, m: 512, k: 256, n: 1024}, kInA: true},
		{name: "f32", cfg: hopper, linear: linearCase{d: graph.F32, out: graph.F32, m: 512, k: 256, n: 1024},
			reason: "no product of f32"},
		{name: "f64", cfg: tf32, linear: linearCase{d: graph.F64, out: graph.F64, m: 512, k: 256, n: 1024},
			reason: "no product of f64"},
		{name: "tf32", cfg: tf32, linear: linearCase{d: graph.F32, out: graph.F32, m: 512, k: 256, n: 1024, transB: true},
			kInA: true, kInB: true},
		{name: "tf32, w across", cfg: tf32, linear: linearCase{d: graph.F32, out: graph.F32, m: 2048, k: 250, n: 1024},
			kInA: true, kInB: true, pitchA: 256, pitchB: 256},
		{name: "tf32, w across and few rows", cfg: tf32, linear: linearCase{d: graph.F32, out: graph.F32, m: 128, k: 256, n: 1024},
			reason: "cannot read B"},
		{name: "odd rows", cfg: hopper, linear: linearCase{d: graph.BF16, out: graph.F32, m: 256, k: 250, n: 256, transB: true},
			reason: "cannot read A"},
		{name: "odd rows, many", cfg: hopper,
			linear: linearCase{d: graph.BF16, out: graph.F32, m: 2048, k: 250, n: 2048, transB: true},
			kInA:   true, kInB: true, pitchA: 256, pitchB: 256},
		{name: "few columns", cfg: hopper, linear: linearCase{d: graph.BF16, out: graph.F32, m: 512, k: 256, n: 32},
			reason: "too small"},
		{name: "empty", cfg: hopper, linear: linearCase{d: graph.BF16, out: graph.F32, m: 512, k: 0, n: 256}, reason: "empty"},
		{name: "Ampere", cfg: Config{Chip: ChipOf(80)}, linear: linearCase{d: graph.BF16, out: graph.F32, m: 512, k: 256, n: 512},
			reason: "no wgmma"},
		{name: "Blackwell", cfg: Config{Chip: ChipOf(100)}, linear: linearCase{d: graph.BF16, out: graph.F32, m: 512, k: 256, n: 512},
			reason: "products in tensor memory are off"},
		{name: "tensor memory", cfg: Config{Chip: ChipOf(100), TensorMemory: true}, kInA: true,
			linear: linearCase{d: graph.BF16, out: graph.F32, m: 512, k: 256, n: 512}},
		{name: "portable", cfg: Config{Chip: H200, Portable: true},
			linear: linearCase{d: graph.BF16, out: graph.F32, m: 512, k: 256, n: 512}, reason: "no wgmma"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, args, results := c.linear.fusion(t)
			_, h, reason := planned(t, f, args, results, c.cfg)
			if (c.reason == "") != (reason == "") || !strings.Contains(reason, c.reason) {
				t.Fatalf("refused because %q, want %q", reason, c.reason)
			}
			if h == nil {
				return
			}
			if h.a.pitch != c.pitchA || h.b.pitch != c.pitchB {
				t.Errorf("copied to pitches of %d and %d, want %d and %d", h.a.pitch, h.b.pitch, c.pitchA, c.pitchB)
			}
			if h.a.kInner != c.kInA || h.b.kInner != c.kInB {
				t.Errorf("k is the inner axis of A: %v, of B: %v", h.a.kInner, h.b.kInner)
			}
			if s := h.tile.shared(); s > c.cfg.Chip.Shared {
				t.Errorf("%+v needs %d bytes of shared memory", h.tile, s)
			}
		})
	}
}

// TestHopperTiles tells which tile is chosen for which size.
func TestHopperTiles(t *testing.T) {
	for _, c := range []struct {
		m, k, n, bm, bn, splits int
		why                     string
	}{
		{8192, 4096, 16384, 128, 256, 1, "the least is read for each product"},
		{16384, 1024, 4096, 128, 160, 1, "turned, 25 tiles for each multiprocessor, of which the last is nearly full"},
		{512, 4096, 4096, 128, 128, 1, "128 tiles for 132 multiprocessors"},
		{8192, 768, 3072, 128, 128, 1, "with few steps finishing is hidden behind the other warpgroup's products"},
		{1024, 1024, 1024, 128, 64, 1, "128 tiles again"},
		{65536, 256, 1024, 64, 256, 1, "what is read for each product is the least where B stays"},
		{65536, 128, 1024, 128, 128, 1, "there is more to store than to multiply"},
		{65536, 64, 193, 128, 256, 1, "threads store single elements, so the fewest tiles"},
		{256, 4096, 6144, 64, 192, 1, "128 tiles once more"},
		{768, 4096, 2048, 64, 192, 1, "132 tiles"},
		{768, 8192, 768, 128, 128, 3, "36 tiles, in three shares of k"},
		{1000, 1000, 1000, 128, 72, 1, "rows cross lines: eight blocks load a slice once"},
		{520, 1000, 1000, 128, 72, 1, "the same"},
		{904, 504, 904, 128, 72, 1, "the same"},
		{1000, 1000, 504, 128, 72, 1, "the same"},
		{136, 1000, 1000, 128, 72, 1, "the same"},
		{1000, 1000, 520, 128, 64, 1, "half of the columns of such clusters would be empty"},
		{1016, 1000, 904, 64, 128, 1, "not all clusters would fit at once"},
		{1000, 2000, 504, 128, 64, 1, "in two shares of k by the blocks of a cluster"},
	} {
		f, args, results := linearCase{d: graph.BF16, out: graph.BF16, m: c.m, k: c.k, n: c.n}.fusion(t)
		_, h, reason := planned(t, f, args, results, Config{Chip: H200})
		if h == nil {
			t.Fatal(reason)
		}
		if got := h.tile; got.bm != c.bm || got.bn != c.bn || got.splits != c.splits {
			t.Errorf("%d×%d×%d takes %+v, want %d×%d in %d shares: %s", c.m, c.k, c.n, got, c.bm, c.bn, c.splits, c.why)
		}
	}
}

// TestHopperMaps follows random elements through tensor maps: the coordinates that the template gives lead to where the
// element lies.
func TestHopperMaps(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 1))
	seen := 0
	for range 400 {
		c := linearCase{d: graph.BF16, out: graph.F32, m: 64 + 4*r.IntN(20), k: 64 + 4*r.IntN(20), n: 64 + 4*r.IntN(20),
			transA: r.IntN(2) == 0, transB: r.IntN(2) == 0}
		for range r.IntN(4) {
			c.batch = append(c.batch, 1+r.IntN(4))
		}
		f, args, results := c.fusion(t)
		for i := range 2 { // wider rows, batches in any order, some repeated
			l := &args[i].Layout
			rank := l.Shape.Rank()
			l.Offset = 8 * r.IntN(3)
			l.Stride[rank-2] = l.Shape.At(rank-1) + 4*r.IntN(3)
			step := l.Stride[rank-2] * l.Shape.At(rank-2)
			for _, axis := range r.Perm(rank - 2) {
				if l.Stride[axis] = step; r.IntN(4) == 0 {
					l.Stride[axis] = 0
					continue
				}
				step *= l.Shape.At(axis)
			}
		}
		m, h, _ := planned(t, f, args, results, Config{Chip: H200})
		if h == nil {
			continue
		}
		seen++
		for _, x := range []*hopperFactor{&h.a, &h.b} {
			tm := x.tensorMap(m.k, 64, h.batches, 0)
			for range 10 {
				row, k, batch := r.IntN(x.rows), r.IntN(m.k), r.IntN(m.batch)
				want := x.offset + row*x.outer + k*x.factor.k
				rest := batch
				for i := len(m.batchAxes) - 1; i >= 0; i-- {
					axis := m.batchAxes[i]
					want += rest % m.space.At(axis) * x.batch[axis]
					rest /= m.space.At(axis)
				}
				at := [4]int{row, k}
				if x.kInner {
					at = [4]int{k, row}
				}
				if x.axes()&1 != 0 {
					at[2] = batch % h.batches[0]
				}
				if x.axes()&2 != 0 {
					at[3] = batch / h.batches[0]
				}
				got := int(tm.Base.Byte) + at[0]*2
				for i, s := range tm.Strides {
					if at[i+1] >= int(tm.Dims[i+1]) || s%16 != 0 {
						t.Fatalf("coordinates %v of %+v", at, tm)
					}
					got += at[i+1] * int(s)
				}
				if got != 2*want {
					t.Fatalf("row %d, k %d, matrix %d of %+v is read from byte %d, and lies at %d", row, k, batch, c, got, 2*want)
				}
			}
		}
	}
	if seen < 40 {
		t.Errorf("only %d of the products take this path", seen)
	}
}
