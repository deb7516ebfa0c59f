package panel

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// TestPanels packs weights of each type and multiplies rows by them, with every instruction set, and compares with sums in
// float64.
func TestPanels(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	p := pool.New(2)
	defer p.Close()
	for _, d := range []graph.DType{graph.I4, graph.I8, graph.BF16, graph.F16} {
		for _, s := range [][4]int{{1, 1, 1, 0}, {1, 32, 64, 16}, {3, 70, 19, 8}, {1, 33, 13, 0}, {7, 40, 100, 64}, {15, 64, 32, 32},
			{70, 97, 24, 0}, {2, 5, 0, 0}, {67, 33, 300, 32}, {33, 40, 600, 0}, {40, 35, 601, 512}, {65, 32, 8, 8}, {32, 3, 0, 0},
			{1, 3, 0, 8}, {9, 35, 0, 8}} {
			m, n, k, block := s[0], s[1], s[2], s[3]
			for _, trans := range []bool{false, true} {
				w := graph.NewTensor(graph.TypeOf(d, k, n))
				if trans {
					w = graph.NewTensor(graph.TypeOf(d, n, k))
				}
				for i := range k * n {
					if d == graph.I8 {
						w.SetInt(i, int64(r.IntN(256)-128))
					} else {
						w.SetFloat(i, float64(r.IntN(16)-8))
					}
				}
				panels := graph.NewTensor(graph.Type{DType: d, Shape: graph.PanelShape(d, k, n)})
				NewPacker(k, n, graph.PackWeights{Trans: trans}, d, d, p).Pack(w.Bytes(), panels.Bytes())
				x, c := make([]float32, m*k+1), make([]float32, m*n)
				for i := range x {
					x[i] = r.Float32() - 0.5
				}
				cfg := Config{M: m, N: n, K: k, Type: d, Block: block, Scaled: r.IntN(3) > 0, Offset: r.IntN(2) > 0, LDX: k, LDC: n}
				of := block
				if of == 0 {
					of = max(k, 1)
				}
				scale := make([]float32, (k+of-1)/of*n)
				offset := make([]float32, len(scale))
				for i := range scale {
					scale[i], offset[i] = r.Float32(), r.Float32()-0.5
				}
				for _, kern := range kernels {
					plan, err := newPlan(cfg, p, kern)
					if err != nil {
						t.Fatal(err)
					}
					clear(c)
					tiles := &cover{n: n, seen: make([]int, m*n)}
					plan.Offsets(offset)
					if err := plan.Run(x, panels.Bytes(), scale, c, tiles); err != nil {
						t.Fatal(err)
					}
					for i := range c {
						row, col, sum, size := i/n, i%n, 0.0, 0.0
						for j := range k {
							at := j*n + col
							if trans {
								at = col*k + j
							}
							v := w.Float(at)
							if cfg.Scaled {
								v *= float64(scale[j/of*n+col])
							}
							size += math.Abs(float64(x[row*k+j]) * v)
							if cfg.Offset {
								v += float64(offset[j/of*n+col])
								size += math.Abs(float64(x[row*k+j]))
							}
							sum += v * float64(x[row*k+j])
						}
						if off := math.Abs(float64(c[i]) - sum); off > 1e-6*size+1e-30 || tiles.seen[i] != 1 {
							t.Fatalf("%s, %v %v: element %d is %v, want %v; it is in %d tiles", kern.name, d, s, i, c[i], sum, tiles.seen[i])
						}
					}
				}
			}
		}
	}
}

// cover counts how often each element of C is in a tile.
type cover struct {
	n    int
	seen []int
}

func (c *cover) Tile(_, _, row, col, rows, cols int) {
	for i := row; i < row+rows; i++ {
		for j := col; j < col+cols; j++ {
			c.seen[i*c.n+j]++
		}
	}
}

// TestPacked packs numbers of 16 bits, and of f32 that become those, with every way to transpose them.
func TestPacked(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	p := pool.New(2)
	defer p.Close()
	for _, s := range [][2]int{{1, 1}, {3, 2}, {8, 32}, {13, 40}, {33, 1}, {1, 70}, {130, 100}, {260, 300}, {0, 3}, {3, 0}} {
		k, n := s[0], s[1]
		for _, to := range []graph.DType{graph.BF16, graph.F16} {
			for _, from := range []graph.DType{graph.F32, to} {
				for _, trans := range []bool{false, true} {
					shape, pitch := graph.ShapeOf(k, n), n
					if trans {
						shape, pitch = graph.ShapeOf(n, k), k
					}
					w := graph.NewTensor(graph.Type{DType: from, Shape: shape})
					for i := range k * n {
						w.SetFloat(i, r.NormFloat64())
					}
					panels := graph.NewTensor(graph.Type{DType: to, Shape: graph.PanelShape(to, k, n)})
					for _, kern := range kernels {
						for i := range panels.Type.Shape.Elems() {
							panels.SetFloat(i, math.NaN())
						}
						q := NewPacker(k, n, graph.PackWeights{Trans: trans}, from, to, p)
						q.transpose = kern.transpose
						q.Pack(w.Bytes(), panels.Bytes())
						rows := (k + steps - 1) / steps * steps
						for at := range panels.Type.Shape.Elems() {
							i, j, want := at/columns%max(rows, 1), at/columns/max(rows, 1)*columns+at%columns, 0.0
							if i < k && j < n && trans {
								want = to.Round(w.Float(j*pitch + i))
							} else if i < k && j < n {
								want = to.Round(w.Float(i*pitch + j))
							}
							if got := panels.Float(at); got != want {
								t.Fatalf("%s, %v to %v, %v, trans %v: row %d of column %d is %v, want %v", kern.name, from, to, s, trans,
									i, j, got, want)
							}
						}
					}
				}
			}
		}
	}
}

// TestPairs multiplies rows of bf16, which lie either way round, by weights of bf16, with every instruction set, and compares with
// sums in float64.
func TestPairs(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p := pool.New(2)
	defer p.Close()
	for _, s := range [][3]int{{1, 1, 1}, {1, 32, 64}, {3, 70, 19}, {1, 33, 13}, {7, 40, 100}, {15, 64, 32}, {70, 97, 24}, {2, 5, 0},
		{0, 5, 3}, {130, 300, 129}} {
		for _, trans := range []bool{false, true} {
			checkPairs(t, r, p, s[0], s[1], s[2], trans)
		}
	}
	plan, err := New(Config{M: 1, N: 1, K: 2, Type: graph.BF16, BF16: true, LDX: 2, LDC: 1}, p)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan.RunBF16(make([]uint16, 1), make([]byte, 8*2*columns), make([]float32, 1), nil); err == nil {
		t.Error("a row that is too short is accepted")
	}
	if err := plan.Run(make([]float32, 2), make([]byte, 8*2*columns), nil, make([]float32, 1), nil); err == nil {
		t.Error("a row of f32 is accepted")
	}
	has := kernels[0].pairs != nil
	if err := Pairs(); (err == nil) != has {
		t.Errorf("kernels for pairs: %v, error %v", has, err)
	}
}

func checkPairs(t *testing.T, r *rand.Rand, p *pool.Pool, m, n, k int, trans bool) {
	t.Helper()
	lines, ldx := m, k+r.IntN(3)
	if trans {
		lines, ldx = k, m+r.IntN(3)
	}
	w, x := graph.NewTensor(graph.TypeOf(graph.BF16, k, n)), graph.NewTensor(graph.TypeOf(graph.BF16, lines, ldx))
	for _, v := range []*graph.Tensor{w, x} {
		for i := range v.Type.Shape.Elems() {
			v.SetFloat(i, r.NormFloat64())
		}
	}
	panels := graph.NewTensor(graph.Type{DType: graph.BF16, Shape: graph.PanelShape(graph.BF16, k, n)})
	NewPacker(k, n, graph.PackWeights{}, graph.BF16, graph.BF16, p).Pack(w.Bytes(), panels.Bytes())
	for i, kern := range kernels {
		cfg := Config{M: m, N: n, K: k, Type: graph.BF16, BF16: true, LDX: ldx, LDC: n, Trans: trans}
		if (i+m)%2 == 0 {
			cfg.Workspace = gemm.NewWorkspace()
		}
		plan, err := newPlan(cfg, p, kern)
		if err != nil {
			t.Fatal(err)
		}
		c, tiles := make([]float32, m*n), &cover{n: n, seen: make([]int, m*n)}
		run := func() error { return plan.RunBF16(units[uint16](x.Bytes()), panels.Bytes(), c, tiles) }
		if err := run(); err != nil {
			t.Fatal(err)
		}
		for i := range c {
			row, col, sum, size := i/n, i%n, 0.0, 0.0
			for j := range k {
				at := row*ldx + j
				if trans {
					at = j*ldx + row
				}
				v := x.Float(at) * w.Float(j*n+col)
				sum, size = sum+v, size+math.Abs(v)
			}
			if off := math.Abs(float64(c[i]) - sum); off > 1e-6*size+1e-30 || tiles.seen[i] != 1 {
				t.Fatalf("%s, %d×%d×%d, trans %v: element %d is %v, want %v; it is in %d tiles", kern.name, m, n, k, trans, i, c[i], sum,
					tiles.seen[i])
			}
		}
		if allocs := testing.AllocsPerRun(10, func() { _ = run() }); allocs > 0 {
			t.Errorf("%s, %d×%d×%d: a run allocates %v times", kern.name, m, n, k, allocs)
		}
	}
}

func TestRefused(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	for _, cfg := range []Config{{M: -1, Type: graph.I8}, {M: 1, N: 1, K: 1, Type: graph.F32},
		{M: 1, N: 1, K: 1, Type: graph.F16, BF16: true}, {M: 1, N: 1, K: 1, Type: graph.I8, Block: 3},
		{M: 2, N: 2, K: 2, Type: graph.I8, LDX: 1, LDC: 2}, {M: 2, N: 2, K: 2, Type: graph.I8, LDX: 2, LDC: 2, Trans: true},
		{M: 3, N: 2, K: 2, Type: graph.BF16, BF16: true, LDX: 2, LDC: 2, Trans: true},
		{M: 1, N: 1, K: 1, Type: graph.I8, Bytes: true, Offset: true}} {
		if _, err := New(cfg, p); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	if _, err := New(Config{Type: graph.I8}, nil); err == nil {
		t.Error("no pool is accepted")
	}
	if Kernel() != kernels[0].name {
		t.Errorf("the kernel is %s", Kernel())
	}
	plan, err := New(Config{M: 1, N: 1, K: 9, Type: graph.I8, LDX: 9, LDC: 1}, p)
	if err != nil {
		t.Fatal(err)
	}
	if plan.Run(make([]float32, 9), make([]byte, 16), nil, make([]float32, 1), nil) == nil {
		t.Error("short panels are accepted")
	}
	if plan, err = New(Config{M: 1, N: 2, K: 8, Type: graph.I8, Offset: true, LDX: 8, LDC: 2}, p); err != nil {
		t.Fatal(err)
	}
	if plan.Offsets(make([]float32, 1)); plan.Run(make([]float32, 8), make([]byte, 8*columns), nil, make([]float32, 2), nil) == nil {
		t.Error("too few offsets are accepted")
	}
}

// lines reads a word of each cache line of a large memory, on all workers.
type lines struct {
	words []uint64
	sum   [64]uint64 // of each worker, on lines of their own
}

const each = 1 << 16 // words of an item

func (l *lines) Do(worker, item int) {
	sum := uint64(0)
	for part := l.words[item*each:][:each]; len(part) >= 32; part = part[32:] {
		sum ^= part[0] ^ part[8] ^ part[16] ^ part[24]
	}
	l.sum[worker*8] ^= sum
}

// weightsOf are matrices of panels, together larger than a cache.
func weightsOf(d graph.DType, size int) (list [4][]byte) {
	r := rand.New(rand.NewPCG(1, uint64(d)))
	for i := range list {
		w := graph.NewTensor(graph.Type{DType: d, Shape: graph.PanelShape(d, size, size)})
		list[i] = w.Bytes()
		for j := range list[i] {
			list[i][j] = byte(r.Uint32()) & 0x3f // numbers of all types
		}
	}
	return list
}

// BenchmarkPanels multiplies one row, and some, by 4096×4096 weights on two cores, in f32 and in fewer bits, all in turn, and
// reads as much memory as the weights in f32 have. Its metrics are the medians, in milliseconds, of f32 the share of the rate at
// which memory is read, and of the others how many times as fast as f32 they are.
func BenchmarkPanels(b *testing.B) {
	const size = 4096
	p := pool.New(2)
	defer p.Close()
	words := &lines{words: make([]uint64, size*size/2)}
	w := make([]float32, size*size)
	for i := range words.words {
		words.words[i] = uint64(i)
		w[2*i], w[2*i+1] = float32(i), 1
	}
	types := []graph.DType{graph.BF16, graph.F16, graph.I8, graph.I4}
	weights := map[graph.DType][4][]byte{}
	for _, d := range types {
		weights[d] = weightsOf(d, size)
	}
	scale := make([]float32, size*size/64)
	for _, rows := range []int{1, 8, 64, 512} {
		x, c := make([]float32, rows*size), make([]float32, rows*size)
		for i := range x {
			x[i] = 1
		}
		at := gemm.Layout{RowStride: size, ColStride: 1}
		cfg := gemm.Config[float32]{M: rows, N: size, K: size, Batch: 1, A: at, B: at, C: at}
		if rows > 1 {
			packed, err := gemm.Prepack(size, size, at, w, p)
			if err != nil {
				b.Fatal(err)
			}
			cfg.Prepacked = packed
		}
		plan, err := gemm.New(cfg, p, nil)
		if err != nil {
			b.Fatal(err)
		}
		runs := map[string]func(i int){
			"read": func(int) { p.Run(len(words.words)/each, words) },
			"f32": func(int) {
				if err := plan.Run(x, w, c, nil); err != nil {
					b.Fatal(err)
				}
			},
		}
		names := []string{"read", "f32"}
		for _, d := range types {
			cfg := Config{M: rows, N: size, K: size, Type: d, Scaled: true, LDX: size, LDC: size}
			if d == graph.I4 {
				cfg.Block = 64
			}
			plan, err := New(cfg, p)
			if err != nil {
				b.Fatal(err)
			}
			names = append(names, d.String())
			runs[d.String()] = func(i int) {
				if err := plan.Run(x, weights[d][i%4], scale, c, nil); err != nil {
					b.Fatal(err)
				}
			}
		}
		cfg16 := Config{M: rows, N: size, K: size, Type: graph.BF16, BF16: true, LDX: size, LDC: size}
		pairs, err := New(cfg16, p)
		if err != nil {
			b.Fatal(err)
		}
		x16 := make([]uint16, rows*size)
		names = append(names, "pairs")
		runs["pairs"] = func(i int) {
			if err := pairs.RunBF16(x16, weights[graph.BF16][i%4], c, nil); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(fmt.Sprintf("rows=%d", rows), func(b *testing.B) {
			times := map[string][]time.Duration{}
			for i := 0; b.Loop(); i++ {
				for _, name := range names {
					start := time.Now()
					runs[name](i)
					times[name] = append(times[name], time.Since(start))
				}
			}
			median := func(name string) float64 {
				slices.Sort(times[name])
				return float64(times[name][len(times[name])/2]) / float64(time.Millisecond)
			}
			f32 := median("f32")
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(f32, "f32-ms")
			b.ReportMetric(median("read")/f32, "f32-of-read")
			for _, name := range names[2:] {
				b.ReportMetric(f32/median(name), name+"-times")
			}
		})
	}
}

// BenchmarkBytes multiplies rows of U8 by weights of I8, and what it replaces: the rows in f32 by the same weights, unpacked in
// registers, and by weights in f32, all in turn, with every instruction set. Its metrics say how many times as fast bytes are.
func BenchmarkBytes(b *testing.B) {
	const n, k = 768, 768
	p := pool.New(2)
	defer p.Close()
	for _, kern := range kernels[:max(len(kernels)-1, 1)] {
		for _, rows := range []int{1, 16, 128, 512} {
			b.Run(fmt.Sprintf("%s/rows=%d", kern.name, rows), func(b *testing.B) {
				q, u8 := make([]byte, n*k), make([]byte, rows*k)
				w, x, c := make([]float32, n*k), make([]float32, rows*k), make([]float32, rows*n)
				scale := make([]float32, n)
				bytes, err := newPlan(Config{M: rows, N: n, K: k, Type: graph.I8, Bytes: true, LDX: k, LDC: n}, p, kern)
				panels, err2 := newPlan(Config{M: rows, N: n, K: k, Type: graph.I8, Scaled: true, LDX: k, LDC: n}, p, kern)
				at := gemm.Layout{RowStride: k, ColStride: 1}
				packed, err3 := gemm.Prepack(k, n, at, w, p)
				f32, err4 := gemm.New(gemm.Config[float32]{M: rows, N: n, K: k, Batch: 1, A: at, B: at, C: at, Prepacked: packed}, p, nil)
				if err := errors.Join(err, err2, err3, err4); err != nil {
					b.Fatal(err)
				}
				best := [3]time.Duration{time.Hour, time.Hour, time.Hour}
				for b.Loop() {
					for i, run := range []func() error{
						func() error { return bytes.RunBytes(u8, q, c, nil) },
						func() error { return panels.Run(x, q, scale, c, nil) },
						func() error { return f32.Run(x, w, c, nil) },
					} {
						start := time.Now()
						if err := run(); err != nil {
							b.Fatal(err)
						}
						best[i] = min(best[i], time.Since(start))
					}
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(best[1].Seconds()/best[0].Seconds(), "times-panels")
				b.ReportMetric(best[2].Seconds()/best[0].Seconds(), "times-f32")
				b.ReportMetric(2*float64(rows)*n*k/best[0].Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

// BenchmarkMany compares products of many rows, whose weights are unpacked to memory, with those that unpack them in registers for
// each block of rows, and with f32, on one core, in turn. Its metrics say how many times as fast they are.
func BenchmarkMany(b *testing.B) {
	for _, kern := range kernels {
		if kern.unpack != nil {
			b.Run(kern.name, func(b *testing.B) { benchmarkMany(b, kern) })
		}
	}
}

func benchmarkMany(b *testing.B, kern *kernel) {
	p := pool.New(1)
	defer p.Close()
	for _, d := range []graph.DType{graph.I4, graph.I8, graph.BF16} {
		if kern.unpack[d] == nil {
			continue
		}
		for _, s := range [][3]int{{32, 688, 256}, {64, 688, 256}, {128, 256, 688}, {512, 4096, 1024}} {
			b.Run(fmt.Sprint(d, s), func(b *testing.B) {
				m, n, k := s[0], s[1], s[2]
				cfg := Config{M: m, N: n, K: k, Type: d, LDX: k, LDC: n, Offset: kern.offsetsOnly}
				if d == graph.I4 {
					cfg.Block, cfg.Scaled = 32, true
				}
				registers := *kern
				registers.unpack = nil
				q, w := make([]byte, d.Span(int64(k+8)*int64(n+32))), make([]float32, k*n)
				x, c, scale := make([]float32, m*k), make([]float32, m*n), make([]float32, (k/32+1)*n)
				at := gemm.Layout{RowStride: k, ColStride: 1}
				to := gemm.Layout{RowStride: n, ColStride: 1}
				many, err := newPlan(cfg, p, kern)
				few, err2 := newPlan(cfg, p, &registers)
				packed, err3 := gemm.Prepack(k, n, to, w, p)
				f32, err4 := gemm.New(gemm.Config[float32]{M: m, N: n, K: k, Batch: 1, A: at, B: to, C: to, Prepacked: packed}, p, nil)
				if err := errors.Join(err, err2, err3, err4); err != nil {
					b.Fatal(err)
				}
				best := [3]time.Duration{time.Hour, time.Hour, time.Hour}
				for b.Loop() {
					for i, run := range []func() error{
						func() error { many.Offsets(scale); return many.Run(x, q, scale, c, nil) },
						func() error { few.Offsets(scale); return few.Run(x, q, scale, c, nil) },
						func() error { return f32.Run(x, w, c, nil) },
					} {
						start := time.Now()
						if err := run(); err != nil {
							b.Fatal(err)
						}
						best[i] = min(best[i], time.Since(start))
					}
				}
				b.ReportMetric(0, "ns/op")
				b.ReportMetric(best[1].Seconds()/best[0].Seconds(), "times-registers")
				b.ReportMetric(best[2].Seconds()/best[0].Seconds(), "times-f32")
				b.ReportMetric(2*float64(m)*float64(n)*float64(k)/best[0].Seconds()/1e9, "GFLOP/s")
			})
		}
	}
}

// TestDeep packs weights of 8 and 16 bits so that eight rows of a column stand side by side.
func TestDeep(t *testing.T) {
	const k, n = 11, 35
	p := pool.New(2)
	defer p.Close()
	for _, to := range []graph.DType{graph.I4, graph.I8, graph.F8E4M3, graph.BF16} {
		from := to
		if to.Is16() {
			from = graph.F32
		}
		w := graph.NewTensor(graph.TypeOf(from, n, k))
		for i := range n * k {
			w.SetFloat(i, float64(i%15-7))
		}
		panels := graph.NewTensor(graph.Type{DType: to, Shape: graph.DeepShape(to, k, n)})
		NewPacker(k, n, graph.PackWeights{Trans: true, Deep: true}, from, to, p).Pack(w.Bytes(), panels.Bytes())
		for i := range panels.Type.Shape.Elems() {
			c := 16 / int(to.Span(8)) // columns of 16 bytes
			row, col, want := i/(8*c)%4*8+i%8, i/1024*32+i%1024/(32*c)*c+i/8%c, 0.0
			if row < k && col < n {
				want = w.Float(col*k + row)
			}
			if got := panels.Float(i); got != want {
				t.Fatalf("%v: element %d is %v, want %v", to, i, got, want)
			}
		}
	}
}
