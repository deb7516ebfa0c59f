package gemm

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/kernels/cpu/pool"
)

// TestInPlace multiplies matrices whose rows lie anywhere by prepacked ones, with all that may follow the sums. An element has the
// same bits in a product that packs its rows.
func TestInPlace(t *testing.T) {
	t.Run("float32", testInPlace[float32])
	t.Run("float64", testInPlace[float64])
}

func testInPlace[T Float](t *testing.T) {
	p := pool.New(2)
	defer p.Close()
	rng := rand.New(rand.NewPCG(31, 32))
	products := 16
	if testing.Short() { // as the race detector and emulators run it
		products = 5
	}
	packed := false
	for _, kern := range kernels[T]() {
		for range products {
			m, n, k, batches := 1+randomSize(rng, 200), 1+randomSize(rng, 100), 1+randomSize(rng, 520), 1+rng.IntN(3)
			cfg := Config[T]{M: m, N: n, K: k, Batch: batches, A: randomLayout(rng, batches, m, k), B: randomLayout(rng, batches, k, n),
				C: layoutC(rng, batches, m, n)}
			cfg.A.ColStride = 1
			problem := newProblem(t, rng, cfg)
			pre, err := prepack(k, n, cfg.B, problem.b, p, kern)
			if err != nil {
				t.Fatal(err)
			}
			with := cfg
			with.Prepacked = pre
			plan, err := newPlan(with, p, nil, kern)
			if err != nil {
				t.Fatal(err)
			}
			if !plan.InPlace() {
				t.Fatalf("%s: not in place", describe(plan))
			}
			run := func(plan *Plan[T], finish *MatrixFinish[T], epilogue Epilogue, want func(batch, i, j int, y float64) float64) {
				t.Helper()
				problem.reset()
				if err := plan.RunFinished(problem.a, problem.b, problem.c, finish, epilogue); err != nil {
					t.Fatal(err)
				}
				if err := problem.check(want); err != nil {
					t.Fatalf("%s: %v", describe(plan), err)
				}
			}
			run(plan, nil, nil, same)
			first := slices.Clone(problem.c)
			packing, err := newPlan(cfg, p, nil, kern)
			if err != nil {
				t.Fatal(err)
			}
			run(packing, nil, nil, same)
			if packing.method != streamed && !slices.Equal(first, problem.c) {
				t.Fatalf("%s and %s differ", describe(plan), describe(packing))
			}
			packs := cfg.readsInPlace(kern) && cfg.packsInPlace(kern)
			if packing.InPlace() != packs {
				t.Fatalf("%s: in place %v", describe(packing), !packs)
			}
			packed = packed || packs
			f := MatrixFinish[T]{Shift: random[T](rng, n), RowStride: n + 1, Low: -3, High: T(math.Inf(1))}
			f.Residual = random[T](rng, batches*m*f.RowStride)
			for i := range f.Residual { // the error is bounded by what is added
				f.Residual[i] = T(math.Abs(float64(f.Residual[i])))
			}
			for i := range f.Shift {
				f.Shift[i] = T(math.Abs(float64(f.Shift[i])))
			}
			finished := func(batch, i, j int, y float64) float64 {
				return max(y+float64(f.Shift[j])+float64(f.Residual[(batch*m+i)*f.RowStride+j]), -3)
			}
			run(plan, &f, nil, finished)
			if packs {
				run(packing, &f, nil, finished)
			}
			run(plan, &f, marking[T]{problem}, func(batch, i, j int, y float64) float64 {
				return marked(batch, i, j, finished(batch, i, j, y))
			})
		}
	}
	if !packed {
		t.Error("no product packs B and reads A in place")
	}
}

// TestInPlaceErrors has what no plan can finish in registers, and products that pack their rows though B is packed.
func TestInPlaceErrors(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	rng := rand.New(rand.NewPCG(33, 34))
	const k, n = 1100, 1000
	for _, c := range []struct {
		m       int
		columns bool
		reads   bool
	}{{3, false, false}, {64, false, false}, {65, false, true}, {65, true, false}} {
		cfg := plain[float32](c.m, n, k)
		if c.columns {
			cfg.A = RowMajor(c.m).Transposed()
		}
		problem := newProblem(t, rng, cfg)
		pre, err := Prepack(k, n, cfg.B, problem.b, p)
		if err != nil {
			t.Fatal(err)
		}
		cfg.Prepacked = pre
		plan, err := New(cfg, p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if plan.InPlace() != c.reads || cfg.ReadsInPlace(true) != c.reads || cfg.ReadsInPlace(false) {
			t.Errorf("%s: in place %v", describe(plan), plan.InPlace())
		}
		problem.reset()
		if err := plan.Run(problem.a, nil, problem.c, nil); err != nil {
			t.Fatal(err)
		}
		if err := problem.check(same); err != nil {
			t.Errorf("%s: %v", describe(plan), err)
		}
		want := "finishes nothing in registers"
		if c.reads {
			want = "slices too short"
		}
		err = plan.RunFinished(problem.a, nil, problem.c, &MatrixFinish[float32]{Shift: make([]float32, n-1)}, nil)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("a short shift: %v", err)
		}
	}
	for _, c := range []struct {
		m, n  int
		reads bool
	}{{64, 500, false}, {65, 500, true}, {65, 1000, false}, {65, 2, false}} {
		if cfg := plain[float32](c.m, c.n, 1100); cfg.ReadsInPlace(false) != c.reads {
			t.Errorf("%d×%d reads in place: %v", c.m, c.n, !c.reads)
		}
	}
	if (&Config[float32]{}).ReadsInPlace(true) {
		t.Error("a product of nothing reads")
	}
}
