package attention

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
	"fusec/kernels/ref"
)

// normal draws n numbers.
func normal(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// reference computes contiguous heads by the reference.
func reference(t *testing.T, op graph.Attention, heads, queries, keys, depth int, q, k, v []float32) []float32 {
	t.Helper()
	value := func(rows int, x []float32) ref.Value {
		return ref.FromTensor(&graph.Tensor{Type: graph.TypeOf(graph.F32, heads, rows, depth), Data: x})
	}
	y, err := ref.Op(op, []ref.Value{value(queries, q), value(keys, k), value(keys, v)})
	if err != nil {
		t.Fatal(err)
	}
	want := make([]float32, len(q))
	for i, f := range y[0].F {
		want[i] = float32(f)
	}
	return want
}

// TestInstructionSets computes by the routines of each instruction set that the processor has, on rows side by side,
// which some read in place, and on spread ones, and in pages.
func TestInstructionSets(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	for _, s := range [][4]int{{2, 33, 48, 8}, {1, 70, 400, 64}, {3, 200, 206, 24}, {1, 97, 211, 96}, {2, 40, 60, 9},
		{2, 1, 700, 16}, {1, 3, 1500, 9}} {
		heads, queries, keys, depth := s[0], s[1], s[2], s[3]
		for _, causal := range []bool{false, true} {
			q, k, v := normal(r, heads*queries*depth), normal(r, heads*keys*depth), normal(r, heads*keys*depth)
			op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: causal}
			want := reference(t, op, heads, queries, keys, depth, q, k, v)
			check := func(name string, micro gemm.Micro[float32], cfg Config, args Args[float32]) {
				t.Helper()
				plan, err := newPlan(cfg, pool.New(1), micro)
				if err != nil {
					t.Fatal(err)
				}
				args.Q, args.Out = q, make([]float32, len(want))
				plan.Run(args, Scratch(plan, 1))
				for i, w := range want {
					if d := math.Abs(float64(args.Out[i] - w)); !(d < 1e-5) {
						t.Fatalf("%d×%d panels, %s, %v, causal %v: element %d is %v, want %v", micro.MR, micro.NR, name, s, causal, i, args.Out[i], w)
					}
				}
			}
			const gap = 3
			spread := Rows(op, heads, queries, keys, depth)
			for _, l := range []*gemm.Layout{&spread.K, &spread.V} {
				l.RowStride = gap * depth
				for h := range l.Offsets {
					l.Offsets[h] *= gap
				}
			}
			for _, micro := range gemm.Micros[float32]() {
				check("side by side", micro, Rows(op, heads, queries, keys, depth), Args[float32]{K: k, V: v})
				check("spread", micro, spread, Args[float32]{K: spreadRows(k, depth, gap), V: spreadRows(v, depth, gap)})
				for _, page := range []int{1, 2, keys} {
					if keys%page != 0 {
						continue
					}
					op := op
					op.Page, op.HasLengths = page, true
					cfg, args := Pages(Rows(op, heads, queries, keys, depth))
					args.K, args.V = k, v
					check(fmt.Sprintf("pages of %d", page), micro, cfg, args)
				}
			}
		}
	}
}

// TestHalf has keys and values of 16 bits: rows side by side, spread ones, columns side by side, and pages.
func TestHalf(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, s := range [][4]int{{2, 33, 48, 8}, {1, 70, 400, 64}, {2, 40, 60, 9}, {2, 1, 700, 16}, {1, 3, 1500, 9}, {2, 1, 5, 1}} {
		heads, queries, keys, depth := s[0], s[1], s[2], s[3]
		for _, d := range []graph.DType{graph.BF16, graph.F16} {
			q, k, v := normal(r, heads*queries*depth), normal(r, heads*keys*depth), normal(r, heads*keys*depth)
			vec.RoundHalf(k, k, d)
			vec.RoundHalf(v, v, d)
			op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth))}
			want := reference(t, op, heads, queries, keys, depth, q, k, v)
			check := func(name string, cfg Config, args Args[float32], k, v []float32) {
				t.Helper()
				cfg.Half = d
				plan, err := New[float32](cfg, pool.New(1))
				if err != nil {
					t.Fatal(err)
				}
				args.Q, args.Out = q, make([]float32, len(want))
				args.K16, args.V16 = make([]uint16, len(k)), make([]uint16, len(v))
				vec.ToHalf(args.K16, k, d)
				vec.ToHalf(args.V16, v, d)
				plan.Run(args, Scratch(plan, 1))
				for i, w := range want {
					if off := math.Abs(float64(args.Out[i] - w)); !(off < 1e-5) {
						t.Fatalf("%v, %s, %v: element %d is %v, want %v", d, name, s, i, args.Out[i], w)
					}
				}
			}
			const gap = 3
			spread, columns := Rows(op, heads, queries, keys, depth), Rows(op, heads, queries, keys, depth)
			for i, l := range []*gemm.Layout{&spread.K, &spread.V, &columns.K, &columns.V} {
				if l.RowStride = gap * depth; i >= 2 {
					l.RowStride, l.ColStride = 1, keys
					continue
				}
				for h := range l.Offsets {
					l.Offsets[h] *= gap
				}
			}
			turned := func(x []float32) []float32 {
				y := make([]float32, len(x))
				for i := range x {
					y[i/(keys*depth)*keys*depth+i%depth*keys+i/depth%keys] = x[i]
				}
				return y
			}
			check("side by side", Rows(op, heads, queries, keys, depth), Args[float32]{}, k, v)
			check("spread", spread, Args[float32]{}, spreadRows(k, depth, gap), spreadRows(v, depth, gap))
			check("columns", columns, Args[float32]{}, turned(k), turned(v))
			paged := op
			paged.Page, paged.HasLengths = 1, true
			cfg, args := Pages(Rows(paged, heads, queries, keys, depth))
			check("pages", cfg, args, k, v)
		}
	}
}

// quantised stores rows of width elements in 8 bits, and rounds x to what they stand for.
func quantised(x []float32, width int) (q []int8, scales []float32) {
	q = make([]int8, len(x))
	for i := 0; i < len(x); i += width {
		most := float32(0)
		for _, v := range x[i:][:width] {
			most = max(most, float32(math.Abs(float64(v))))
		}
		scale := most / 127
		for j := range width {
			q[i+j] = int8(graph.I8.Quantised(float64(x[i+j]/scale), 0))
			x[i+j] = float32(q[i+j]) * scale
		}
		scales = append(scales, scale)
	}
	return q, scales
}

// TestBytes has keys and values of 8 bits with a scale for each, by the routines of each instruction set: rows side by side,
// columns side by side, which are converted, and pages.
func TestBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 8))
	for _, s := range [][4]int{{2, 33, 48, 8}, {1, 70, 400, 64}, {2, 40, 60, 9}, {2, 1, 700, 16}, {4, 1, 900, 64}, {1, 3, 1500, 9},
		{2, 1, 5, 1}} {
		heads, queries, keys, depth := s[0], s[1], s[2], s[3]
		q, k, v := normal(r, heads*queries*depth), normal(r, heads*keys*depth), normal(r, heads*keys*depth)
		k8, keyScales := quantised(k, depth)
		v8, valueScales := quantised(v, depth)
		op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: true, Window: keys - keys/3}
		want := reference(t, op, heads, queries, keys, depth, q, k, v)
		op.HasScales = true
		for _, micro := range gemm.Micros[float32]() {
			check := func(name string, cfg Config, args Args[float32], k8, v8 []int8) {
				t.Helper()
				plan, err := newPlan(cfg, pool.New(1), micro)
				if err != nil {
					t.Fatal(err)
				}
				args.Q, args.K8, args.V8, args.KeyScale, args.ValueScale = q, k8, v8, keyScales, valueScales
				args.Out = make([]float32, len(want))
				plan.Run(args, Scratch(plan, 1))
				for i, w := range want {
					if off := math.Abs(float64(args.Out[i] - w)); !(off < 1e-5) {
						t.Fatalf("%d×%d panels, %s, %v: element %d is %v, want %v", micro.MR, micro.NR, name, s, i, args.Out[i], w)
					}
				}
			}
			cfg := ScaledRows(op, heads, queries, keys, depth)
			check("side by side", cfg, Args[float32]{}, k8, v8)
			columns := cfg
			for _, l := range []*gemm.Layout{&columns.K, &columns.V} {
				l.RowStride, l.ColStride = 1, keys
			}
			turned := func(x []int8) []int8 {
				y := make([]int8, len(x))
				for i := range x {
					y[i/(keys*depth)*keys*depth+i%depth*keys+i/depth%keys] = x[i]
				}
				return y
			}
			check("columns", columns, Args[float32]{}, turned(k8), turned(v8))
			paged := op
			paged.Page, paged.HasLengths = 1, true
			cfg, args := Pages(ScaledRows(paged, heads, queries, keys, depth))
			check("pages", cfg, args, k8, v8)
		}
	}
}

// TestBytesErrors has scales for other heads than there are.
func TestBytesErrors(t *testing.T) {
	cfg := Rows(graph.Attention{Scale: 1, HasScales: true}, 2, 1, 3, 4)
	if _, err := New[float32](cfg, pool.New(1)); err == nil || !strings.Contains(err.Error(), "scale has 0 offsets for 2 heads") {
		t.Errorf("error %v", err)
	}
}

// spreadRows puts rows of width elements gap rows apart.
func spreadRows(x []float32, width, gap int) []float32 {
	y := make([]float32, len(x)*gap)
	for i := 0; i < len(x); i += width {
		copy(y[i*gap:], x[i:i+width])
	}
	return y
}

func TestErrors(t *testing.T) {
	p := pool.New(1)
	good := Rows(graph.Attention{}, 2, 3, 4, 5)
	short, negative, blocks, pages := good, good, good, good
	pages.Op.Page = 3
	short.K.Offsets = short.K.Offsets[:1]
	negative.Out.RowStride = -1
	blocks.Blocking.Keys = -1
	for want, cfg := range map[string]Config{"k has 1 offsets for 2 heads": short, "out has": negative,
		"blocks of 0 queries and -1 keys": blocks, "4 keys in pages of 3": pages} {
		if _, err := New[float32](cfg, p); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if _, err := New[float64](good, p); err != nil {
		t.Error(err)
	}
}

// TestBlocking computes the same with blocks of many sizes.
func TestBlocking(t *testing.T) {
	const heads, queries, keys, depth = 2, 75, 130, 9
	r := rand.New(rand.NewPCG(3, 4))
	q, k, v := normal(r, heads*queries*depth), normal(r, heads*keys*depth), normal(r, heads*keys*depth)
	for _, causal := range []bool{false, true} {
		want := reference(t, graph.Attention{Scale: 1.0 / 3, Causal: causal}, heads, queries, keys, depth, q, k, v)
		for _, cut := range []Blocking{{1, 1}, {16, 5}, {32, 64}, {40, 1000}, {1000, 24}} {
			cfg := Rows(graph.Attention{Scale: 1.0 / 3, Causal: causal}, heads, queries, keys, depth)
			cfg.Blocking = cut
			plan, err := New[float32](cfg, pool.New(1))
			if err != nil {
				t.Fatal(err)
			}
			nr := plan.micro.NR
			if b := plan.Blocks(); b.Queries != tiling.RoundUp(min(cut.Queries, queries), nr) || b.Keys != min(cut.Keys, keys) {
				t.Errorf("%+v is cut into %+v", cut, b)
			}
			got := make([]float32, len(want))
			plan.Run(Args[float32]{Q: q, K: k, V: v, Out: got}, Scratch(plan, 1))
			for i, w := range want {
				if d := math.Abs(float64(got[i] - w)); !(d < 1e-5) {
					t.Fatalf("%+v, causal %v: element %d is %v, want %v", cut, causal, i, got[i], w)
				}
			}
		}
	}
}

// TestMasks masks keys of many and of few queries, by numbers and by Bools, for each query or the same for all, in masks whose
// elements follow one another and in spread ones.
func TestMasks(t *testing.T) {
	const heads, depth, gap = 2, 20, 2
	r := rand.New(rand.NewPCG(7, 8))
	for _, s := range [][2]int{{1, 600}, {3, 1100}, {70, 90}} {
		queries, keys := s[0], s[1]
		q, k, v := normal(r, heads*queries*depth), normal(r, heads*keys*depth), normal(r, heads*keys*depth)
		for _, same := range []bool{false, true} {
			keep, low := make([]bool, queries*keys*gap), float32(math.Inf(-1))
			mask := make([]float32, len(keep))
			whole := make([]float32, heads*queries*keys)
			for i := range queries {
				for j := range keys {
					at := (i*keys + j) * gap
					if keep[at] = j == 0 || j%300 > 200 && r.IntN(3) > 0; !keep[at] {
						mask[at] = low
					}
					if same && i > 0 {
						keep[at], mask[at] = keep[j*gap], mask[j*gap]
					}
					for h := range heads {
						whole[(h*queries+i)*keys+j] = mask[at]
					}
				}
			}
			op := graph.Attention{Scale: 0.2, HasMask: true}
			of := func(rows, cols int, x []float32) ref.Value {
				return ref.FromTensor(&graph.Tensor{Type: graph.TypeOf(graph.F32, heads, rows, cols), Data: x})
			}
			want, err := ref.Op(op, []ref.Value{of(queries, depth, q), of(keys, depth, k), of(keys, depth, v), of(queries, keys, whole)})
			if err != nil {
				t.Fatal(err)
			}
			for _, step := range []int{1, gap} {
				args := Args[float32]{Q: q, K: k, V: v, Keep: keep, Mask: mask}
				if step == 1 {
					args.Keep, args.Mask = everyOf(keep, gap), everyOf(mask, gap)
				}
				for _, bools := range []bool{false, true} {
					cfg := Rows(op, heads, queries, keys, depth)
					cfg.Bool = bools
					cfg.Mask = gemm.Layout{Offsets: make([]int, heads), RowStride: keys * step, ColStride: step}
					if same {
						cfg.Mask.RowStride = 0
					}
					plan, err := New[float32](cfg, pool.New(1))
					if err != nil {
						t.Fatal(err)
					}
					args.Out = make([]float32, len(q))
					plan.Run(args, Scratch(plan, 1))
					for i, w := range want[0].F {
						if d := math.Abs(float64(args.Out[i]) - w); !(d < 1e-5) {
							t.Fatalf("%v, same %v, bools %v, step %d: element %d is %v, want %v", s, same, bools, step, i, args.Out[i], w)
						}
					}
				}
			}
		}
	}
}

// everyOf is every n-th element.
func everyOf[T any](x []T, n int) []T {
	y := make([]T, len(x)/n)
	for i := range y {
		y[i] = x[i*n]
	}
	return y
}

// bench measures a plan on the workers of a pool.
func bench(b *testing.B, op graph.Attention, heads, queries, keys, depth, workers int, cut Blocking) {
	p := pool.New(workers)
	defer p.Close()
	op.Scale = 1 / math.Sqrt(float64(depth))
	cfg := Rows(op, heads, queries, keys, depth)
	cfg.Blocking = cut
	plan, err := New[float32](cfg, p)
	if err != nil {
		b.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	args := Args[float32]{Q: normal(r, heads*queries*depth), K: normal(r, heads*keys*depth), V: normal(r, heads*keys*depth),
		Out: make([]float32, heads*queries*depth)}
	scratch := Scratch(plan, workers)
	in := make([]graph.Type, 3)
	for i, n := range []int{queries, keys, keys} {
		in[i] = graph.TypeOf(graph.F32, heads, n, depth)
	}
	b.ReportAllocs()
	for b.Loop() {
		plan.Run(args, scratch)
	}
	products := float64(graph.InfoOf(op).FLOPs(op, in, nil)) * 4 * float64(depth) / (4*float64(depth) + 16)
	b.ReportMetric(products*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// BenchmarkAttention measures 8 heads of depth 64; GFLOP/s counts the products alone.
func BenchmarkAttention(b *testing.B) {
	for _, s := range []int{512, 1024, 2048, 4096} {
		for _, causal := range []bool{false, true} {
			for workers := 1; workers <= 2; workers++ {
				b.Run(fmt.Sprintf("%d/causal=%v/workers=%d", s, causal, workers), func(b *testing.B) {
					bench(b, graph.Attention{Causal: causal}, 8, s, s, 64, workers, Blocking{})
				})
			}
		}
	}
}

// BenchmarkDecode measures one query against many keys; what counts is the speed of reading them.
func BenchmarkDecode(b *testing.B) {
	for _, s := range []int{1024, 16384} {
		for workers := 1; workers <= 2; workers++ {
			b.Run(fmt.Sprintf("%d/workers=%d", s, workers), func(b *testing.B) {
				bench(b, graph.Attention{}, 8, 1, s, 64, workers, Blocking{})
				b.ReportMetric(float64(2*8*s*64*4)*float64(b.N)/b.Elapsed().Seconds()/1e9, "GB/s")
			})
		}
	}
}

// BenchmarkCaches measures the queries of some heads against many keys that they share, in f32, in 16 bits and in 8, all in turn.
// Its metrics are the median of f32 in milliseconds, and how many times as fast the others are.
func BenchmarkCaches(b *testing.B) {
	types := []graph.DType{graph.F32, graph.BF16, graph.F16, graph.I8}
	p := pool.New(2)
	defer p.Close()
	for _, s := range []int{1024, 16384} {
		for _, group := range []int{1, 4} {
			b.Run(fmt.Sprintf("%d/group=%d", s, group), func(b *testing.B) {
				const shared, depth = 8, 128
				heads := shared * group
				cfg := ScaledRows(graph.Attention{Scale: 0.1}, heads, 1, s, depth)
				cfg.Dims.Group = group
				for h := range cfg.K.Offsets {
					cfg.K.Offsets[h], cfg.KeyScale.Offsets[h] = h/group*s*depth, h/group*s
				}
				cfg.V, cfg.ValueScale = cfg.K, cfg.KeyScale
				r := rand.New(rand.NewPCG(1, 2))
				args := Args[float32]{Q: normal(r, heads*depth), Out: make([]float32, heads*depth)}
				k, v := normal(r, shared*s*depth), normal(r, shared*s*depth)
				runs, times := map[graph.DType]func(){}, map[graph.DType][]time.Duration{}
				for _, d := range types {
					args, cfg := args, cfg
					switch {
					case d == graph.F32:
						args.K, args.V = k, v
					case d == graph.I8:
						cfg.Op.HasScales = true
						args.K8, args.KeyScale = quantised(slices.Clone(k), depth)
						args.V8, args.ValueScale = quantised(slices.Clone(v), depth)
					default:
						cfg.Half = d
						args.K16, args.V16 = make([]uint16, len(k)), make([]uint16, len(v))
						vec.ToHalf(args.K16, k, d)
						vec.ToHalf(args.V16, v, d)
					}
					plan, err := New[float32](cfg, p)
					if err != nil {
						b.Fatal(err)
					}
					scratch := Scratch(plan, 2)
					runs[d] = func() { plan.Run(args, scratch) }
				}
				for b.Loop() {
					for _, d := range types {
						start := time.Now()
						runs[d]()
						times[d] = append(times[d], time.Since(start))
					}
				}
				median := func(d graph.DType) float64 {
					slices.Sort(times[d])
					return times[d][len(times[d])/2].Seconds() * 1e3
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(median(graph.F32), "f32-ms")
				for _, d := range types[1:] {
					b.ReportMetric(median(graph.F32)/median(d), d.String()+"-times")
				}
			})
		}
	}
}

// BenchmarkBlocking measures block sizes.
func BenchmarkBlocking(b *testing.B) {
	for _, queries := range []int{64, 128, 256, 512} {
		for _, keys := range []int{96, 144, 192, 240, 288, 384} {
			b.Run(fmt.Sprintf("%dx%d", queries, keys), func(b *testing.B) {
				bench(b, graph.Attention{}, 8, 1024, 1024, 64, 1, Blocking{Queries: queries, Keys: keys})
			})
		}
	}
}
