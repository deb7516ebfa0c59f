package gemm

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
)

// A problem is a Config with data, and the way to check its result.
type problem[T Float] struct {
	cfg     Config[T]
	a, b, c []T
}

// untouched is the value of C outside of the matrices, and before a run.
const untouched = -12345

// newProblem fills the operands of cfg with random numbers.
func newProblem[T Float](tb testing.TB, rng *rand.Rand, cfg Config[T]) problem[T] {
	tb.Helper()
	length := func(l Layout, rows, cols int) []T {
		n, err := l.extent("operand", cfg.Batch, rows, cols)
		if err != nil {
			tb.Fatal(err)
		}
		s := make([]T, n)
		for i := range s {
			s[i] = T(rng.NormFloat64())
		}
		return s
	}
	p := problem[T]{cfg: cfg, a: length(cfg.A, cfg.M, cfg.K), b: length(cfg.B, cfg.K, cfg.N), c: length(cfg.C, cfg.M, cfg.N)}
	p.reset()
	return p
}

func (p problem[T]) reset() {
	for i := range p.c {
		p.c[i] = untouched
	}
}

// at returns an element of an operand.
func at[T Float](s []T, l Layout, batch, i, j int) T {
	return s[l.at(batch)+i*l.RowStride+j*l.ColStride]
}

// tolerance is the ε of |y − y64| ≤ ε·Σ|terms|.
func tolerance[T Float]() float64 {
	if unsafe.Sizeof(*new(T)) == 8 {
		return 1e-14
	}
	return 1e-5
}

// check compares C, transformed by finish, with the plain sum in float64, and
// that nothing around C was written.
func (p problem[T]) check(finish func(batch, i, j int, y float64) float64) error {
	cfg := &p.cfg
	written := make([]bool, len(p.c))
	// Of a large product a sample is computed again.
	step := 1 + cfg.Batch*cfg.M*cfg.N*cfg.K>>21
	for batch := range cfg.Batch {
		for i := range cfg.M {
			for j := range cfg.N {
				written[cfg.C.at(batch)+i*cfg.C.RowStride+j] = true
				if (i*cfg.N+j)%step != 0 {
					continue
				}
				var sum, terms float64
				for k := range cfg.K {
					t := float64(at(p.a, cfg.A, batch, i, k)) * float64(at(p.b, cfg.B, batch, k, j))
					sum += t
					terms += math.Abs(t)
				}
				want := finish(batch, i, j, sum)
				got := float64(at(p.c, cfg.C, batch, i, j))
				if !(math.Abs(got-want) <= tolerance[T]()*(terms+math.Abs(want-sum))) {
					return fmt.Errorf("matrix %d, element %d, %d: got %v, want %v", batch, i, j, got, want)
				}
			}
		}
	}
	for i, w := range written {
		if !w && p.c[i] != untouched {
			return fmt.Errorf("element %d of c, which is outside of C, was written", i)
		}
	}
	return nil
}

func same(_, _, _ int, y float64) float64 { return y }

// A marking epilogue adds a number that depends on the place, so that a tile
// finished twice, never or too early shows.
type marking[T Float] struct{ p problem[T] }

func mark(batch, i, j int) float64 { return float64(batch%3 + i%5 + j%7 + 1) }

func (m marking[T]) Tile(_, batch, row, col, rows, cols int) {
	l := m.p.cfg.C
	for i := row; i < row+rows; i++ {
		for j := col; j < col+cols; j++ {
			m.p.c[l.at(batch)+i*l.RowStride+j] += T(mark(batch, i, j))
		}
	}
}

func marked(batch, i, j int, y float64) float64 { return y + mark(batch, i, j) }

// describe names a problem in a failure.
func describe[T Float](p *Plan[T]) string {
	return fmt.Sprintf("%s %T method %d: %d×%d×%d batch %d, A %v B %v C %v, blocking %+v",
		p.kern.name, *new(T), p.method, p.cfg.M, p.cfg.N, p.cfg.K, p.cfg.Batch,
		strides(p.cfg.A), strides(p.cfg.B), strides(p.cfg.C), p.blocking)
}

func strides(l Layout) [2]int { return [2]int{l.RowStride, l.ColStride} }

// solve runs a problem without and with an epilogue and checks both results.
func (p problem[T]) solve(t *testing.T, pl *pool.Pool, ws *Workspace, kern *kernel[T]) *Plan[T] {
	t.Helper()
	plan, err := newPlan(p.cfg, pl, ws, kern)
	if err != nil {
		t.Fatal(err)
	}
	for _, run := range []struct {
		epilogue Epilogue
		finish   func(batch, i, j int, y float64) float64
	}{{nil, same}, {marking[T]{p}, marked}} {
		p.reset()
		if err := plan.Run(p.a, p.b, p.c, run.epilogue); err != nil {
			t.Fatal(err)
		}
		if err := p.check(run.finish); err != nil {
			t.Fatalf("%s: %v", describe(plan), err)
		}
	}
	return plan
}

// randomLayout lays a batch of rows×cols matrices out: row or column major or
// with gaps everywhere, at distances or broadcast.
func randomLayout(rng *rand.Rand, batch, rows, cols int) Layout {
	gap := rng.IntN(3)
	var l Layout
	switch rng.IntN(4) {
	case 0:
		l = RowMajor(cols + gap)
	case 1:
		l = RowMajor(rows + gap).Transposed()
	case 2:
		l = Layout{RowStride: (cols + gap) * 3, ColStride: 3}
	default:
		l = Layout{RowStride: 2, ColStride: (rows + gap) * 2}
	}
	if rng.IntN(12) == 0 {
		l.RowStride = 0 // every row is the same
	}
	switch size := rows*l.RowStride + cols*l.ColStride + 1; rng.IntN(3) {
	case 0: // broadcast
	case 1:
		for b := range batch {
			l.Offsets = append(l.Offsets, b*size)
		}
	default: // in pairs
		for b := range batch {
			l.Offsets = append(l.Offsets, b/2*size)
		}
	}
	if batch == 0 {
		l.Offsets = nil
	}
	return l
}

func layoutC(rng *rand.Rand, batch, rows, cols int) Layout {
	l := RowMajor(cols + rng.IntN(4))
	for _, b := range rng.Perm(batch) {
		l.Offsets = append(l.Offsets, 3+b*(rows*l.RowStride+2))
	}
	return l
}

// randomSize prefers sizes around the boundaries of the blocking.
func randomSize(rng *rand.Rand, limit int) int {
	sizes := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 15, 16, 17, 31, 32, 33, 48, 64, 65, 100, 144, 145, 255, 256, 257, 300, 513, 600}
	n := sizes[rng.IntN(len(sizes))]
	if rng.IntN(3) == 0 {
		n = rng.IntN(limit + 1)
	}
	return min(n, limit)
}

func testRandom[T Float](t *testing.T, cases int) {
	rng := rand.New(rand.NewPCG(1, 2))
	ws := NewWorkspace()
	seen := map[method]bool{}
	for _, workers := range []int{1, 2, 3} {
		p := pool.New(workers)
		defer p.Close()
		for _, kern := range kernels[T]() {
			for range cases {
				cfg := Config[T]{Batch: 1}
				limit := 600
				if rng.IntN(2) == 0 {
					cfg.Batch = rng.IntN(12)
					limit = 80
				}
				cfg.M, cfg.N, cfg.K = randomSize(rng, limit), randomSize(rng, limit), randomSize(rng, limit)
				for cfg.Batch*cfg.M*cfg.N*cfg.K > 3<<19 {
					cfg.M /= 2
				}
				cfg.A = randomLayout(rng, cfg.Batch, cfg.M, cfg.K)
				cfg.B = randomLayout(rng, cfg.Batch, cfg.K, cfg.N)
				cfg.C = layoutC(rng, cfg.Batch, cfg.M, cfg.N)
				plan := newProblem(t, rng, cfg).solve(t, p, ws, kern)
				seen[plan.method] = true
			}
		}
	}
	for m := nothing; m <= inPlaced; m++ {
		if !seen[m] && cases > 20 {
			t.Errorf("no case used method %d", m)
		}
	}
}

func TestRandom(t *testing.T) {
	cases := 70
	if testing.Short() {
		cases = 5
	}
	t.Run("float32", func(t *testing.T) { testRandom[float32](t, cases) })
	t.Run("float64", func(t *testing.T) { testRandom[float64](t, cases) })
}

// Every width of the last panels, for each way of packing.
func TestEdges(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	rng := rand.New(rand.NewPCG(3, 4))
	for _, kern := range kernels32 {
		for extra := range kern.nr + 1 {
			m, n, k := 3*kern.mr+extra%kern.mr, kern.nr+extra, 20+extra
			for _, a := range []Layout{RowMajor(k), RowMajor(m).Transposed(), {2, 2 * m, nil}} {
				for _, b := range []Layout{RowMajor(n), RowMajor(k).Transposed(), {2, 2 * k, nil}} {
					cfg := plain[float32](m, n, k)
					cfg.A, cfg.B = a, b
					newProblem(t, rng, cfg).solve(t, p, nil, kern)
				}
			}
		}
	}
}

// Shapes that take several blocks of everything.
func TestLargeShapes(t *testing.T) {
	if testing.Short() {
		t.Skip("the float64 oracle takes seconds")
	}
	p := pool.New(2)
	defer p.Close()
	rng := rand.New(rand.NewPCG(5, 6))
	for _, s := range [][3]int{{300, 700, 520}, {33, 9000, 260}, {9000, 20, 300}, {9000, 530, 17}, {7, 4200, 300}, {700, 5, 1100}} {
		newProblem(t, rng, plain[float32](s[0], s[1], s[2])).solve(t, p, nil, kernels32[0])
	}
	cfg := plain[float32](1500, 600, 270) // packed whole, with several matrices
	cfg.Batch, cfg.A = 2, RowMajor(1500).Transposed()
	cfg.A.Offsets, cfg.C.Offsets = []int{0, 1500 * 270}, []int{1500 * 600, 0}
	if plan := newProblem(t, rng, cfg).solve(t, p, nil, kernels32[0]); !plan.whole {
		t.Errorf("%s is not packed whole", describe(plan))
	}
	cfg.B.Offsets = []int{5, 9}
	if plan := newProblem(t, rng, cfg).solve(t, p, nil, kernels32[0]); plan.whole {
		t.Errorf("%s, of several B, is packed whole", describe(plan))
	}
	cfg = plain[float32](3500, 600, 600) // several chunks of A in one matrix
	cfg.Batch = 2
	cfg.A.Offsets, cfg.C.Offsets = []int{0, 3500 * 600}, []int{3500 * 600, 0}
	if plan := newProblem(t, rng, cfg).solve(t, p, nil, kernels32[0]); plan.whole || plan.chunk >= 2*plan.rowBlocks {
		t.Errorf("%s is not packed in chunks", describe(plan))
	}
}

// Who packs which operand of a product that is packed whole depends on the shape and on how many workers there are. The result does
// not: it is the same bits.
func TestWhole(t *testing.T) {
	for _, c := range []struct {
		m, n, k, batch, workers int
		own                     own
		once, alone             bool
	}{
		{512, 256, 300, 1, 2, ownA, false, true},
		{512, 256, 300, 1, 5, ownA, false, false},
		{256, 600, 300, 1, 2, ownB, false, true},
		{256, 600, 300, 1, 5, ownB, false, false},
		{30, 600, 300, 1, 2, ownB, true, true},
		{600, 60, 300, 1, 2, ownA, true, true},
		{108, 96, 4200, 1, 2, ownNone, false, false},
		{300, 200, 130, 3, 2, ownA, false, true},
	} {
		cfg := plain[float32](c.m, c.n, c.k)
		cfg.Batch, cfg.A = c.batch, RowMajor(c.m).Transposed()
		cfg.A.Offsets, cfg.B.Offsets, cfg.C.Offsets = make([]int, c.batch), make([]int, c.batch), make([]int, c.batch)
		for i := range c.batch {
			cfg.A.Offsets[i], cfg.C.Offsets[i] = i*c.m*c.k, i*c.m*c.n
		}
		problem := newProblem(t, rand.New(rand.NewPCG(15, 16)), cfg)
		run := func(workers int) (*Plan[float32], []float32) {
			p := pool.New(workers)
			defer p.Close()
			plan, err := New(cfg, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			out := make([]float32, plan.lenC)
			for range 2 { // the second time with other operands in the memory of workers
				if err := plan.Run(problem.a, problem.b, out, nil); err != nil {
					t.Fatal(err)
				}
			}
			return plan, out
		}
		plan, got := run(c.workers)
		if Kernel[float32]() == "avx512" &&
			(!plan.whole || plan.own != c.own || plan.ownOnce != c.once && c.own != ownNone || plan.alone != c.alone) {
			t.Errorf("%s: whole %v, own %v, once %v, alone %v", describe(plan), plan.whole, plan.own, plan.ownOnce, plan.alone)
		}
		if _, want := run(1); !slices.Equal(got, want) {
			t.Errorf("%s: other bits for %d workers than for one", describe(plan), c.workers)
		}
		p := pool.New(c.workers)
		problem.solve(t, p, nil, kernels32[0])
		p.Close()
	}
}

// A thin product streams whichever operand is large.
func TestThin(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	rng := rand.New(rand.NewPCG(7, 8))
	for _, kern := range kernels32 {
		for few := 1; few <= thinMax; few++ {
			for _, many := range []int{5, 130, 2100} {
				for _, k := range []int{1, 6, 77} {
					wide, tall := plain[float32](few, many, k), plain[float32](many, few, k)
					for range 2 {
						for _, cfg := range []Config[float32]{wide, tall} {
							if plan := newProblem(t, rng, cfg).solve(t, p, nil, kern); plan.method != streamed {
								t.Errorf("%s is not streamed", describe(plan))
							}
						}
						wide.A, wide.B = RowMajor(few).Transposed(), RowMajor(k).Transposed()
						tall.A, tall.B = RowMajor(many).Transposed(), RowMajor(k).Transposed()
					}
				}
			}
		}
	}
}

// counting records how often each element was passed to the epilogue.
type counting struct {
	mu    sync.Mutex
	seen  map[[3]int]int
	tiles int
	size  int // the largest tile
}

func (c *counting) Tile(_, batch, row, col, rows, cols int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tiles++
	c.size = max(c.size, rows*cols)
	for i := row; i < row+rows; i++ {
		for j := col; j < col+cols; j++ {
			c.seen[[3]int{batch, i, j}]++
		}
	}
}

func TestEpilogueOncePerElement(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	for _, s := range [][4]int{ // batch, m, n, k
		{1, 300, 600, 520}, {9, 50, 60, 70}, {3, 100, 90, 0}, {2, 1, 3000, 5}, {2, 3000, 2, 5}, {5, 200, 30, 300}, {0, 4, 4, 4},
		{1, 0, 4, 4},
	} {
		cfg := plain[float32](s[1], s[2], s[3])
		cfg.Batch, cfg.C = s[0], matrices(s[0], s[1], s[2])
		plan, err := New(cfg, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		count := counting{seen: map[[3]int]int{}}
		if err := plan.Run(make([]float32, plan.lenA), make([]float32, plan.lenB), make([]float32, plan.lenC), &count); err != nil {
			t.Fatal(err)
		}
		for place, times := range count.seen {
			if times != 1 {
				t.Errorf("%v: element %v was finished %d times", s, place, times)
			}
		}
		if len(count.seen) != s[0]*s[1]*s[2] {
			t.Errorf("%v: %d elements were finished", s, len(count.seen))
		}
		if count.size > 2*144*(tileColsMax+32) {
			t.Errorf("%v: a tile of %d elements", s, count.size)
		}
	}
}

// Results are the same bits for any number of workers.
func TestDeterminism(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, s := range [][4]int{{1, 256, 256, 600}, {1, 600, 70, 300}, {10, 60, 60, 60}, {1, 1, 3000, 700}, {1, 3000, 1, 700},
		{3, 150, 150, 150}} {
		cfg := plain[float32](s[1], s[2], s[3])
		cfg.Batch = s[0]
		cfg.A, cfg.B, cfg.C = matrices(s[0], s[1], s[3]), matrices(s[0], s[3], s[2]), matrices(s[0], s[1], s[2])
		for _, kern := range kernels32 {
			problem := newProblem(t, rng, cfg)
			var first []float32
			for _, workers := range []int{1, 2, 3} {
				p := pool.New(workers)
				plan, err := newPlan(cfg, p, nil, kern)
				if err != nil {
					t.Fatal(err)
				}
				for range 3 {
					if err := plan.Run(problem.a, problem.b, problem.c, nil); err != nil {
						t.Fatal(err)
					}
					if first == nil {
						first = append(first, problem.c...)
					}
					for i, v := range problem.c {
						if v != first[i] {
							t.Fatalf("%s: %d workers: element %d is %v, was %v", describe(plan), workers, i, v, first[i])
						}
					}
				}
				p.Close()
			}
		}
	}
}

// packedSource is a Packer over a matrix, by PutRow or by Pack.
type packedSource[T Float] struct {
	src     []T
	layout  Layout
	rows    bool // the matrix is A: N counts its rows
	useRows bool // use PutRow
}

func (s packedSource[T]) Pack(_ int, dst []T, at Block) {
	l := s.layout
	kStride, nStride := l.RowStride, l.ColStride
	if s.rows {
		kStride, nStride = nStride, kStride
	}
	src := s.src[l.at(at.Batch)+at.K0*kStride+at.N0*nStride:]
	if !s.useRows {
		kernels[T]()[0].pack(dst, at.Width, at.K, at.N, src, kStride, nStride)
		return
	}
	row := make([]T, at.N)
	for k := range at.K {
		for n := range row {
			row[n] = src[k*kStride+n*nStride]
		}
		PutRow(dst, at.Width, at.K, k, row)
	}
}

func TestPackers(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	rng := rand.New(rand.NewPCG(11, 12))
	for _, s := range [][4]int{{1, 200, 200, 300}, {9, 30, 40, 20}, {2, 1, 100, 50}, {3, 170, 600, 40}} {
		cfg := plain[float32](s[1], s[2], s[3])
		cfg.Batch = s[0]
		cfg.A, cfg.B, cfg.C = matrices(s[0], s[1], s[3]), matrices(s[0], s[3], s[2]), matrices(s[0], s[1], s[2])
		for _, kern := range kernels32 {
			problem := newProblem(t, rng, cfg)
			with := cfg
			with.PackA = packedSource[float32]{problem.a, cfg.A, true, true}
			with.PackB = packedSource[float32]{problem.b, cfg.B, false, false}
			plan, err := newPlan(with, p, nil, kern)
			if err != nil {
				t.Fatal(err)
			}
			if err := plan.Run(nil, nil, problem.c, marking[float32]{problem}); err != nil {
				t.Fatal(err)
			}
			if err := problem.check(marked); err != nil {
				t.Fatalf("%s: %v", describe(plan), err)
			}
		}
	}
}

func TestPrepacked(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	rng := rand.New(rand.NewPCG(13, 14))
	for _, kern := range kernels32 {
		for _, batches := range []int{1, 3, 20} {
			for _, shared := range []bool{false, true} {
				const n, k = 67, 300
				var pre *Prepacked[float32]
				for _, m := range []int{1, 5, 40} {
					cfg := plain[float32](m, n, k)
					cfg.Batch = batches
					cfg.A, cfg.C = matrices(batches, m, k), matrices(batches, m, n)
					if !shared {
						cfg.B = matrices(batches, k, n)
					}
					problem := newProblem(t, rng, cfg)
					var err error
					if pre == nil {
						pre, err = prepack(k, n, cfg.B, problem.b, p, kern)
					} else {
						err = pre.Update(problem.b)
					}
					if err != nil {
						t.Fatal(err)
					}
					with := cfg
					with.Prepacked = pre
					plan, err := newPlan(with, p, nil, kern)
					if err != nil {
						t.Fatal(err)
					}
					if err := plan.Run(problem.a, nil, problem.c, nil); err != nil {
						t.Fatal(err)
					}
					if err := problem.check(same); err != nil {
						t.Fatalf("%s: %v", describe(plan), err)
					}
				}
				if want := pre.matrices * tiling.RoundUp(n, kern.nr) * k * 4; pre.Bytes() != tiling.RoundUp(want, lineBytes) {
					t.Errorf("%d bytes for panels of %d", pre.Bytes(), want)
				}
			}
		}
	}
}

func TestPrepackErrors(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	pre, err := Prepack(4, 6, RowMajor(6), make([]float32, 24), p)
	if err != nil {
		t.Fatal(err)
	}
	if err := pre.Update(make([]float32, 23)); err == nil {
		t.Error("Update accepts a short slice")
	}
	three, err := Prepack(4, 6, matrices(3, 4, 6), make([]float32, 72), p)
	if err != nil {
		t.Fatal(err)
	}
	portablePre, err := prepack(4, 6, RowMajor(6), make([]float32, 24), p, portable[float32]())
	if err != nil {
		t.Fatal(err)
	}
	with := func(n, batch int, pre *Prepacked[float32]) error {
		cfg := plain[float32](3, n, 4)
		cfg.Batch, cfg.C, cfg.Prepacked = batch, matrices(batch, 3, n), pre
		_, err := New(cfg, p, nil)
		return err
	}
	if with(6, 3, pre) != nil || with(6, 3, three) != nil {
		t.Error("a fitting operand is refused")
	}
	if with(5, 3, pre) == nil || with(6, 2, three) == nil {
		t.Error("an operand that does not fit is accepted")
	}
	if kernels32[0].nr != portableNR && with(6, 1, portablePre) == nil {
		t.Error("an operand with other panels is accepted")
	}
	for _, err := range []error{
		second(Prepack[float32](-1, 6, RowMajor(6), nil, p)),
		second(Prepack[float32](4, 6, RowMajor(6), nil, nil)),
		second(Prepack(4, 6, RowMajor(-6), make([]float32, 24), p)),
		second(Prepack(4, 6, RowMajor(6), make([]float32, 3), p)),
	} {
		if err == nil {
			t.Error("a bad call is accepted")
		}
	}
}

func second[P any](_ P, err error) error { return err }

func TestNewErrors(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	good := plain[float32](3, 4, 5)
	good.Batch, good.C = 2, matrices(2, 3, 4)
	if _, err := New(good, p, nil); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(cfg *Config[float32]){
		"negative size":      func(cfg *Config[float32]) { cfg.M = -1 },
		"A has 1 offsets":    func(cfg *Config[float32]) { cfg.A.Offsets = []int{0} },
		"B has strides":      func(cfg *Config[float32]) { cfg.B.RowStride = -4 },
		"offset -1":          func(cfg *Config[float32]) { cfg.B.Offsets = []int{0, -1} },
		"too large":          func(cfg *Config[float32]) { cfg.A.RowStride = math.MaxInt },
		"column stride 2":    func(cfg *Config[float32]) { cfg.C.ColStride = 2 },
		"row stride 3":       func(cfg *Config[float32]) { cfg.C.RowStride = 3 },
		"C has no offsets":   func(cfg *Config[float32]) { cfg.C.Offsets = nil },
		"C has 1 offsets":    func(cfg *Config[float32]) { cfg.C.Offsets = []int{0} },
		"B is given twice":   func(cfg *Config[float32]) { cfg.PackB = packedSource[float32]{}; cfg.Prepacked = &Prepacked[float32]{} },
		"prepacked B is 0×0": func(cfg *Config[float32]) { cfg.Prepacked = &Prepacked[float32]{} },
	} {
		cfg := good
		change(&cfg)
		if _, err := New(cfg, p, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want an error with %q, got %v", want, err)
		}
	}
	if _, err := New(good, nil, nil); err == nil {
		t.Error("New works without a pool")
	}
}

func TestRunChecksLengths(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	plan, err := New(plain[float64](3, 4, 5), p, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range [][3]int{{14, 20, 12}, {15, 19, 12}, {15, 20, 11}} {
		c := make([]float64, n[2])
		if err := plan.Run(make([]float64, n[0]), make([]float64, n[1]), c, nil); err == nil {
			t.Errorf("lengths %v are accepted", n)
		}
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	ws := NewWorkspace()
	for _, s := range [][4]int{{1, 200, 200, 300}, {9, 30, 40, 20}, {1, 1, 500, 300}, {2, 20, 20, 0}} {
		cfg := plain[float32](s[1], s[2], s[3])
		cfg.Batch, cfg.C = s[0], matrices(s[0], s[1], s[2])
		plan, err := New(cfg, p, ws)
		if err != nil {
			t.Fatal(err)
		}
		a, b, c := make([]float32, plan.lenA), make([]float32, plan.lenB), make([]float32, plan.lenC)
		epilogue := Epilogue(marking[float32]{problem[float32]{cfg: cfg, c: c}})
		if allocs := testing.AllocsPerRun(20, func() {
			if err := plan.Run(a, b, c, epilogue); err != nil {
				t.Error(err)
			}
		}); allocs != 0 {
			t.Errorf("%s: %v allocations", describe(plan), allocs)
		}
	}
	pre, err := Prepack(20, 30, RowMajor(30), make([]float32, 600), p)
	if err != nil {
		t.Fatal(err)
	}
	src := make([]float32, 600)
	if allocs := testing.AllocsPerRun(20, func() {
		if err := pre.Update(src); err != nil {
			t.Error(err)
		}
	}); allocs != 0 {
		t.Errorf("Update: %v allocations", allocs)
	}
}

// Plans with one workspace may run at the same time, on separate pools.
func TestSharedWorkspace(t *testing.T) {
	ws := NewWorkspace()
	rng := rand.New(rand.NewPCG(15, 16))
	var wg sync.WaitGroup
	for i := range 4 {
		problem := newProblem(t, rng, plain[float32](60+40*i, 80, 90))
		wg.Go(func() {
			p := pool.New(2)
			defer p.Close()
			plan, err := New(problem.cfg, p, ws)
			if err != nil {
				t.Error(err)
				return
			}
			for range 20 {
				if err := plan.Run(problem.a, problem.b, problem.c, nil); err != nil {
					t.Error(err)
				}
			}
			if err := problem.check(same); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if ws.Bytes() == 0 || ws.Bytes()%lineBytes != 0 {
		t.Errorf("the workspace has %d bytes", ws.Bytes())
	}
}

type failing struct{}

var errEpilogue = errors.New("epilogue failed")

func (failing) Tile(_, _, _, _, _, _ int) { panic(errEpilogue) }

func TestPanicInEpilogue(t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	rng := rand.New(rand.NewPCG(17, 18))
	problem := newProblem(t, rng, plain[float32](200, 200, 50))
	plan, err := New(problem.cfg, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	func() {
		defer func() {
			if err, ok := recover().(*pool.Panic); !ok || !errors.Is(err, errEpilogue) {
				t.Errorf("recovered %v", err)
			}
		}()
		_ = plan.Run(problem.a, problem.b, problem.c, failing{})
	}()
	if err := plan.Run(problem.a, problem.b, problem.c, nil); err != nil {
		t.Fatal(err)
	}
	if err := problem.check(same); err != nil {
		t.Error(err)
	}
}
