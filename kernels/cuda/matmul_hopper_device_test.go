package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cuda"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// drawLinear draws a product that Hopper's own instructions can take, with an epilogue and perhaps column sums.
func drawLinear(r *rand.Rand, d graph.DType) (graph.Fusion, []graph.Type) {
	b := graph.NewBuilder("linear")
	var types []graph.Type
	in := func(d graph.DType, dims ...int) *graph.Node {
		types = append(types, graph.TypeOf(d, dims...))
		return b.Input(fmt.Sprint("a", len(types)), types[len(types)-1])
	}
	m, n, k := 64+8*r.IntN(30), 64+8*r.IntN(40), 64+8*r.IntN(20)
	across := d == graph.F32 && r.IntN(3) == 0 // w must first be copied
	if across {
		m, n, k = 1030, 72, 66
	}
	var batch []int
	for range r.IntN(3) {
		batch = append(batch, 1+r.IntN(3))
	}
	operand := func(rows, cols int, trans bool) *graph.Node {
		if trans {
			rows, cols = cols, rows
		}
		return in(d, append(append([]int(nil), batch[r.IntN(len(batch)+1):]...), rows, cols)...)
	}
	transA, transB := r.IntN(2) == 0, r.IntN(2) == 0
	if d == graph.F32 {
		transA, transB = false, !across
	}
	y := b.MatMul(operand(m, k, transA), operand(k, n, transB), transA, transB)
	v := b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, n), y.Type.Shape))
	switch r.IntN(4) {
	case 0:
		v = b.Unary(graph.GeluTanh, v)
	case 1:
		v = b.Unary(graph.GeluErf, v)
	case 2:
		v = b.Binary(graph.Add, v, in(graph.F32, y.Type.Shape.Slice()...))
	}
	if r.IntN(2) == 0 && d != graph.F32 {
		b.Output("y", b.CastTo(d, v))
	} else {
		b.Output("y", v)
	}
	if r.IntN(3) == 0 {
		var axes []int
		for i := range y.Type.Shape.Rank() - 1 {
			axes = append(axes, i)
		}
		b.Output("sums", b.Reduce(graph.Sum, v, false, axes...))
	}
	g, err := b.Graph()
	if err != nil {
		panic(err)
	}
	return graph.Fusion{Anchor: graph.AnchorMatMul, Body: g}, types
}

// asyncPaths are the templates whose operands the copy engine brings to shared memory, and what they are for.
var asyncPaths = []struct {
	template string
	config   cuda.Config
	some     int      // how many random products are tried
	ptx      []string // instructions
}{
	{"gemm_hopper<", cuda.Config{Chip: cuda.H200}, 15, []string{"wgmma.mma_async", "cp.async.bulk.tensor.4d", "setmaxnreg.inc"}},
	{"gemm_blackwell<", cuda.Config{Chip: cuda.ChipOf(100), TensorMemory: true}, 6,
		[]string{"tcgen05.mma", "tcgen05.ld", "tcgen05.commit", "cp.async.bulk.tensor.4d"}},
}

// TestMatMulHopper computes random products with wgmma and with tcgen05, in the emulator.
func TestMatMulHopper(t *testing.T) {
	for _, path := range asyncPaths {
		t.Run(path.template, func(t *testing.T) { asyncProducts(t, path.template, path.config, path.some) })
	}
}

func asyncProducts(t *testing.T, template string, config cuda.Config, some int) {
	config.Precision = cuda.TF32
	r := rand.New(rand.NewPCG(1, 90))
	var checks []cudatest.Check
	hopper := 0
	for i := range some {
		op, types := drawLinear(r, []graph.DType{graph.BF16, graph.F16, graph.F32}[i%3])
		c := cudatest.Check{Name: fmt.Sprint(i), Op: op, Config: config}
		for _, u := range types {
			c.Args = append(c.Args, graphtest.Tensor(r, u))
		}
		c.Compare = within(cuda.TF32)
		if strings.Contains(kernelOf(t, op, types, c.Config).Generated(), template) {
			hopper++
		}
		checks = append(checks, c)
	}
	if hopper < some*4/5 {
		t.Errorf("only %d of %d products take the path", hopper, len(checks))
	}
	// Odd numbers of columns, whose results a thread stores one by one; then rows that the copy engine cannot read, too.
	for _, sums := range []bool{false, true} {
		op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			var y *graph.Node
			if sums {
				y = b.MatMul(in(graph.BF16, 197, 65), in(graph.BF16, 65, 193), false, false)
			} else {
				y = b.MatMul(in(graph.BF16, 197, 64), in(graph.BF16, 193, 64), false, true)
			}
			y = b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, 193), y.Type.Shape))
			b.Output("y", b.Add(graph.Cast{To: graph.BF16}, y))
			if sums {
				b.Output("sums", b.Reduce(graph.Sum, y, false, 0))
			}
		})
		c := cudatest.Check{Name: fmt.Sprint("odd columns, sums ", sums), Op: op, Config: config, Compare: within(cuda.TF32)}
		for _, u := range types {
			c.Args = append(c.Args, graphtest.Tensor(r, u))
		}
		if !strings.Contains(kernelOf(t, op, types, c.Config).Generated(), template) {
			t.Errorf("%s does not take the path", c.Name)
		}
		checks = append(checks, c)
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
}

// TestMatMulHopperAhead computes products times matrices of 16 bits, which the epilogue reads before it needs them: of whole tiles,
// of odd sizes, and of a batch that has one matrix.
func TestMatMulHopperAhead(t *testing.T) {
	for _, path := range asyncPaths {
		config := path.config
		config.Precision = cuda.BF16
		r := rand.New(rand.NewPCG(11, 90))
		var checks []cudatest.Check
		for i, s := range [][4]int{{1, 256, 512, 64}, {2, 200, 264, 72}, {1, 197, 193, 64}} {
			d := []graph.DType{graph.BF16, graph.F16}[i%2]
			op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
				y := b.MatMul(in(d, s[0], s[1], s[3]), in(d, s[0], s[2], s[3]), false, true)
				y = b.Binary(graph.Mul, y, b.CastTo(graph.F32, b.Broadcast(in(d, s[1], s[2]), y.Type.Shape)))
				y = b.Binary(graph.Add, y, b.CastTo(graph.F32, in(d, s[0], s[1], s[2])))
				b.Output("y", b.CastTo(d, y))
				b.Output("sums", b.Reduce(graph.Sum, y, false, 0, 1))
			})
			c := cudatest.Check{Name: fmt.Sprint(s), Op: op, Config: config, Compare: within(cuda.BF16)}
			for _, u := range types {
				c.Args = append(c.Args, graphtest.Tensor(r, u))
			}
			text := kernelOf(t, op, types, config).Generated()
			if !strings.Contains(text, path.template) || strings.Count(text, "= op::cast<float>(read.") != 2 {
				t.Errorf("%s: %s reads nothing ahead:\n%s", path.template, c.Name, text)
			}
			checks = append(checks, c)
		}
		cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
	}
}

// TestMatMulHopperWide computes products by wide tiles, one of which has an odd number of pieces of 32 columns, with weights in
// both orders: by the engine's stores and by threads, with what is read of each row, sums of columns and shares of k.
func TestMatMulHopperWide(t *testing.T) {
	config := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	r := rand.New(rand.NewPCG(14, 90))
	var checks []cudatest.Check
	for i, s := range [][4]int{{1, 128, 448, 256}, {1, 197, 712, 584}, {2, 130, 264, 72}} {
		e, batch, m, n, k := []graph.DType{graph.BF16, graph.F16}[i%2], s[0], s[1], s[2], s[3]
		for _, with := range []string{"", "turned", "rows", "f32", "sums"} {
			result := e
			if with == "f32" {
				result = graph.F32
			}
			results := []graph.Type{graph.TypeOf(result, batch, m, n)}
			op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
				x := in(e, batch, m, k)
				var y *graph.Node
				if with == "turned" {
					y = b.MatMul(x, in(e, batch, n, k), false, true)
				} else {
					y = b.MatMul(x, in(e, batch, k, n), false, false)
				}
				if with == "rows" {
					y = b.Binary(graph.Mul, y, b.CastTo(graph.F32, in(e, batch, m, n)))
				}
				b.Output("y", b.CastTo(result, y))
				if with == "sums" {
					b.Output("sums", b.Reduce(graph.Sum, y, false, 0, 1))
				}
			})
			if with == "sums" {
				results = append(results, graph.TypeOf(graph.F32, n))
			}
			product, ways := cuda.MatMulWays(op, rowMajor(types), rowMajor(results), config)
			for _, way := range ways {
				wide := strings.Contains(way, "128x224 ")
				if !wide && !strings.Contains(way, " 64x192 ") {
					continue
				}
				c := cudatest.Check{Name: fmt.Sprint(s, with, way), Op: op, Config: config, Compare: within(cuda.BF16)}
				for _, u := range types {
					c.Args = append(c.Args, graphtest.Tensor(r, u))
				}
				c.Config.Tuning = &cuda.Tuning{Chip: cuda.H200.Name, Ways: map[cuda.Product]string{product: way}}
				if strings.Contains(kernelOf(t, op, types, c.Config).Generated(), "BN = 224") != wide {
					t.Errorf("%s does not take the path", c.Name)
				}
				checks = append(checks, c)
			}
		}
	}
	if len(checks) < 15 {
		t.Errorf("only %d products", len(checks))
	}
	op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		b.Output("y", b.CastTo(graph.BF16, b.MatMul(in(graph.BF16, 256, 4096), in(graph.BF16, 4096, 14336), false, false)))
	})
	for _, name := range []string{cuda.H200.Name, "NVIDIA H100 80GB HBM3"} {
		on := config
		on.Chip.Name = name
		wide := strings.Contains(kernelOf(t, op, types, on).Generated(), "BN = 224")
		if wide != (name == cuda.H200.Name) {
			t.Errorf("%s takes wide tiles: %v", name, wide)
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
}

// inWays are checks of a product in each way whose text has a part, and all ways that there are on the chip.
func inWays(t *testing.T, r *rand.Rand, config cuda.Config, op graph.Fusion, types []graph.Type, part string) (
	checks []cudatest.Check, ways []string) {
	t.Helper()
	results, err := graph.InfoOf(op).Infer(op, types)
	if err != nil {
		t.Fatal(err)
	}
	product, ways := cuda.MatMulWays(op, rowMajor(types), rowMajor(results), config)
	for _, way := range ways {
		if !strings.Contains(way, part) {
			continue
		}
		c := cudatest.Check{Name: fmt.Sprint(types, way), Op: op, Config: config, Compare: within(cuda.BF16)}
		for _, u := range types {
			c.Args = append(c.Args, graphtest.Tensor(r, u))
		}
		c.Config.Tuning = &cuda.Tuning{Chip: config.Chip.Name, Ways: map[cuda.Product]string{product: way}}
		checks = append(checks, c)
	}
	return checks, ways
}

// withBody is y with a bias and GELU, or times what has its shape, or as it is.
func withBody(b *graph.Builder, in inputs, y *graph.Node, with string, e graph.DType) *graph.Node {
	s := y.Type.Shape
	switch with {
	case "bias":
		return b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, s.At(s.Rank()-1)), s)))
	case "rows":
		return b.Binary(graph.Mul, y, b.CastTo(graph.F32, in(e, s.Slice()...)))
	}
	return y
}

// TestMatMulHopperTurned computes products whose operands change places: odd sizes, batches, B in both orders, and a body that
// reads something for each column. Where k is not the inner axis of A, or threads store the result, there are no such tiles.
func TestMatMulHopperTurned(t *testing.T) {
	config := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	config.Chip.SMs = 4 // which have several tiles one after another
	r := rand.New(rand.NewPCG(17, 90))
	var checks []cudatest.Check
	for i, s := range [][4]int{{1, 480, 512, 128}, {1, 333, 328, 200}, {3, 70, 136, 72}} {
		e, batch, m, n, k := []graph.DType{graph.BF16, graph.F16}[i%2], s[0], s[1], s[2], s[3]
		for _, with := range []string{"", "B turned", "A turned", "bias", "rows"} {
			op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
				sides := func(rows, columns int, turned bool) *graph.Node {
					if turned {
						rows, columns = columns, rows
					}
					return in(e, batch, rows, columns)
				}
				y := b.MatMul(sides(m, k, with == "A turned"), sides(k, n, with == "B turned"), with == "A turned", with == "B turned")
				b.Output("y", b.CastTo(e, withBody(b, in, y, with, e)))
			})
			found, ways := inWays(t, r, config, op, types, " turned")
			if none := with == "A turned" || with == "rows"; len(found) > 0 == none {
				t.Errorf("%v %s: %q", s, with, ways)
			}
			checks = append(checks, found...)
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
}

// TestMatMulHopperShares computes products whose blocks share k: odd sizes, operands in both orders, steps of k that two divides or
// not, and bodies. Where threads store the result, k is shorter, or tiles or matrices are more, there is no such tile.
func TestMatMulHopperShares(t *testing.T) {
	config := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	r := rand.New(rand.NewPCG(22, 90))
	var checks []cudatest.Check
	for i, s := range [][4]int{{1, 256, 256, 1024}, {1, 201, 328, 1096}, {1, 130, 80, 1024}, {2, 130, 80, 1024}, {1, 130, 80, 960},
		{1, 1280, 320, 1024}} {
		e, batch, m, n, k := []graph.DType{graph.BF16, graph.F16}[i%2], s[0], s[1], s[2], s[3]
		for _, with := range []string{"", "both turned", "bias", "rows", "sums"} {
			op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
				var y *graph.Node
				if with == "both turned" {
					y = b.MatMul(in(e, batch, k, (m+7)/8*8), in(e, batch, n, k), true, true)
				} else {
					y = b.MatMul(in(e, batch, m, k), in(e, batch, k, n), false, false)
				}
				if with == "sums" {
					b.Output("sums", b.Reduce(graph.Sum, y, false, 0, 1))
				}
				b.Output("y", b.CastTo(e, withBody(b, in, y, with, e)))
			})
			found, ways := inWays(t, r, config, op, types, " shares ")
			if none := with == "rows" || with == "sums" || i > 2; len(found) > 0 == none {
				t.Errorf("%v %s: %q", s, with, ways)
			}
			checks = append(checks, found...)
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
}

// TestMatMulHopperResident computes products whose blocks keep B of their columns: slices that k fills or not, columns of tiles
// that divide the blocks or not, operands in both orders, and a body. With fewer or more slices, or batches, there is no such tile.
func TestMatMulHopperResident(t *testing.T) {
	config := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	config.Chip.SMs = 5
	r := rand.New(rand.NewPCG(18, 90))
	var checks []cudatest.Check
	for i, s := range [][4]int{{1, 4096, 256, 256}, {1, 4099, 648, 136}, {1, 4200, 264, 200}, {1, 4096, 256, 128},
		{1, 4096, 256, 264}, {2, 4096, 256, 256}, {1, 200, 256, 256}} {
		e, batch, m, n, k := []graph.DType{graph.BF16, graph.F16}[i%2], s[0], s[1], s[2], s[3]
		for _, with := range []string{"", "both turned", "bias", "rows"} {
			op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
				var y *graph.Node
				if with == "both turned" {
					y = b.MatMul(in(e, batch, k, m), in(e, batch, n, k), true, true)
				} else {
					y = b.MatMul(in(e, batch, m, k), in(e, batch, k, n), false, false)
				}
				b.Output("y", b.CastTo(e, withBody(b, in, y, with, e)))
			})
			found, ways := inWays(t, r, config, op, types, " resident")
			if none := i > 2 || with == "rows"; len(found) > 0 == none && len(ways) > 0 {
				t.Errorf("%v %s: %q", s, with, ways)
			}
			checks = append(checks, found...)
		}
	}
	if len(checks) < 8 {
		t.Errorf("only %d products", len(checks))
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
}

// TestMatMulHopperOnce computes products of 128 rows whose other operand is larger than what the L2 cache keeps, in every way.
func TestMatMulHopperOnce(t *testing.T) {
	config := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	config.Chip.L2 = 1 << 16
	r := rand.New(rand.NewPCG(19, 90))
	var checks []cudatest.Check
	once := 0
	for i, s := range [][4]int{{1, 128, 512, 256}, {1, 128, 328, 200}, {2, 128, 512, 256}, {1, 300, 512, 256}, {1, 77, 512, 256},
		{1, 128, 128, 128}} {
		e, batch, m, n, k := []graph.DType{graph.BF16, graph.F16}[i%2], s[0], s[1], s[2], s[3]
		op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			b.Output("y", b.CastTo(e, b.MatMul(in(e, batch, m, k), in(e, batch, k, n), false, false)))
		})
		found, _ := inWays(t, r, config, op, types, "")
		for _, c := range found {
			if strings.Contains(kernelOf(t, op, types, c.Config).Generated(), "B_ONCE = true") {
				once++
				if i > 1 {
					t.Errorf("%v: %s reads B once", s, c.Name)
				}
			}
		}
		checks = append(checks, found...)
	}
	if once == 0 {
		t.Error("no product reads B once")
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
}

// TestMatMulHopperBoxes computes products whose results of 16 bits the copy engine stores: by every tile, of odd numbers of rows,
// columns that fill a part of a box, batches, and a result that is a slice. Threads store what reads rows, two results, and rows
// that begin at any place.
func TestMatMulHopperBoxes(t *testing.T) {
	config := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	r := rand.New(rand.NewPCG(12, 90))
	var checks []cudatest.Check
	for i, s := range [][4]int{{1, 256, 512, 64}, {2, 197, 264, 72}, {3, 130, 136, 64}} {
		e := []graph.DType{graph.BF16, graph.F16}[i%2]
		for _, with := range []string{"", "bias and GELU", "rows", "sums", "two", "odd"} {
			n := s[2]
			if with == "odd" {
				n -= 4
			}
			op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
				y := b.MatMul(in(e, s[0], s[1], s[3]), in(e, s[0], n, s[3]), false, true)
				switch with {
				case "bias and GELU":
					y = b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, n), y.Type.Shape)))
				case "rows":
					y = b.Binary(graph.Mul, y, b.Broadcast(in(graph.F32, s[1], 1), y.Type.Shape))
				case "sums":
					b.Output("sums", b.Reduce(graph.Sum, y, false, 0, 1))
				case "two":
					b.Output("y2", b.CastTo(e, b.Unary(graph.Neg, y)))
				}
				b.Output("y", b.CastTo(e, y))
			})
			base := cudatest.Check{Name: fmt.Sprint(s, with), Op: op, Config: config, Compare: within(cuda.BF16)}
			for _, u := range types {
				base.Args = append(base.Args, graphtest.Tensor(r, u))
			}
			boxes := with == "" || with == "bias and GELU"
			if text := kernelOf(t, op, types, config).Generated(); strings.Contains(text, "STORES = true") != boxes {
				t.Errorf("%s is stored by the copy engine: %t", base.Name, !boxes)
			}
			checks = append(checks, base)
			if with != "" {
				continue
			}
			product, ways := cuda.MatMulWays(op, rowMajor(types), rowMajor([]graph.Type{graph.TypeOf(e, s[0], s[1], n)}), config)
			for _, way := range ways {
				c := base
				c.Name += " " + way
				c.Config.Tuning = &cuda.Tuning{Chip: cuda.H200.Name, Ways: map[cuda.Product]string{product: way}}
				l := graph.Contiguous(graph.ShapeOf(s[0], s[1], n+8))
				l.Shape, l.Offset = graph.ShapeOf(s[0], s[1], n), 8
				c.ResultLayouts = []graph.Layout{l}
				checks = append(checks, c)
			}
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
}

// TestMatMulHopperOdd computes products of few rows whose other operand the threads of the producer read as it lies: rows of an odd
// number of elements, or a slice that begins at an odd place; also column sums, shares of k, and only one row.
func TestMatMulHopperOdd(t *testing.T) {
	config := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	r := rand.New(rand.NewPCG(7, 90))
	var checks []cudatest.Check
	for i, s := range [][3]int{{1, 521, 513}, {127, 1029, 515}, {65, 515, 2049}, {128, 512, 640}} {
		m, n, k := s[0], s[1], s[2]
		d := []graph.DType{graph.BF16, graph.F16}[i%2]
		op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			y := b.MatMul(in(d, m, k), in(d, k, n), false, false)
			v := b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, n), y.Type.Shape))
			b.Output("y", b.CastTo(d, v))
			if i == 1 {
				b.Output("sums", b.Reduce(graph.Sum, v, false, 0))
			}
		})
		c := cudatest.Check{Name: fmt.Sprint(s), Op: op, Config: config, Compare: within(cuda.BF16)}
		for _, u := range types {
			c.Args = append(c.Args, graphtest.Tensor(r, u))
			c.ArgLayouts = append(c.ArgLayouts, graph.Contiguous(u.Shape))
		}
		if i == 3 {
			c.ArgLayouts[1].Stride[0], c.ArgLayouts[1].Offset = n+3, 5
		}
		checks = append(checks, c)
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
	for _, c := range checks[:3] {
		var types []graph.Type
		for _, a := range c.Args {
			types = append(types, a.Type)
		}
		text := kernelOf(t, c.Op.(graph.Fusion), types, config).Generated()
		if !strings.Contains(text, "ODD = ") || strings.Contains(text, "ODD = 0;") {
			t.Errorf("%s does not take the path:\n%s", c.Name, text)
		}
	}
}

// TestMatMulHopperCrossing computes products with operands whose rows begin at multiples of 16 bytes, but not of 128, in every way:
// one of them or both, along either axis, with batches, and column sums. If it is so of both and the copy engine stores the
// result, there is a tile of 64×128, and where A has k as its inner axis and the columns nearly fill clusters a turned one of
// 128×72.
func TestMatMulHopperCrossing(t *testing.T) {
	config := cuda.Config{Chip: cuda.H200, Precision: cuda.BF16}
	r := rand.New(rand.NewPCG(16, 90))
	var checks []cudatest.Check
	for i, s := range []struct {
		batch, m, n, k int
		transA, transB bool
		with           string
		crossing       bool
		turned         bool
	}{
		{1, 200, 264, 136, false, false, "", true, false},
		{1, 72, 328, 584, true, true, "", true, false},
		{3, 136, 88, 192, false, false, "", false, false},
		{2, 130, 192, 152, false, true, "", true, false},
		{1, 200, 264, 136, false, false, "sums", false, false},
		{1, 256, 320, 128, false, false, "", false, false},
		{1, 200, 392, 136, false, false, "", true, true},
		{1, 147, 504, 712, false, true, "bias", true, true},
		{1, 73, 1000, 72, false, false, "bias", true, true},
		{1, 200, 392, 136, true, false, "", true, false},
		{2, 130, 392, 136, false, false, "", true, false},
	} {
		d := []graph.DType{graph.BF16, graph.F16}[i%2]
		side := func(rows, columns int, transposed bool) []int {
			if transposed {
				rows, columns = columns, rows
			}
			if s.batch > 1 {
				return []int{s.batch, rows, columns}
			}
			return []int{rows, columns}
		}
		op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			y := b.MatMul(in(d, side(s.m, s.k, s.transA)...), in(d, side(s.k, s.n, s.transB)...), s.transA, s.transB)
			if s.with == "bias" {
				y = withBody(b, in, y, s.with, d)
			}
			b.Output("y", b.CastTo(d, y))
			if s.with == "sums" {
				b.Output("sums", b.Reduce(graph.Sum, y, false, 0, 1))
			}
		})
		base := cudatest.Check{Name: fmt.Sprint(s), Op: op, Config: config, Compare: within(cuda.BF16)}
		for _, u := range types {
			base.Args = append(base.Args, graphtest.Tensor(r, u))
		}
		made, err := graph.InfoOf(op).Infer(op, types)
		if err != nil {
			t.Fatal(err)
		}
		args, results := rowMajor(types), rowMajor(made)
		product, ways := cuda.MatMulWays(op, args, results, config)
		for _, way := range ways {
			c := base
			c.Name += " " + way
			c.Config.Tuning = &cuda.Tuning{Chip: cuda.H200.Name, Ways: map[cuda.Product]string{product: way}}
			checks = append(checks, c)
		}
		for tile, want := range map[string]bool{" 64x128 ": s.crossing, " 128x72 ": s.turned} {
			if slices.ContainsFunc(ways, func(way string) bool { return strings.Contains(way, tile) }) != want {
				t.Errorf("%s: %q", base.Name, ways)
			}
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, config.Chip), checks...)
}

// TestMatMulHopperCompiled looks at what NVRTC makes of the kernels of every tile: products of warpgroups or in tensor
// memory, none of which waits for another without need, and nothing spilled.
func TestMatMulHopperCompiled(t *testing.T) {
	compiler := nvrtctest.Open(t)
	for _, c := range []struct {
		d       graph.DType
		m, n, k int
	}{{graph.BF16, 8192, 16384, 4096}, {graph.BF16, 16384, 4096, 1024}, {graph.BF16, 65536, 1024, 256},
		{graph.BF16, 8192, 3072, 768}, {graph.F16, 512, 4096, 4096}, {graph.F16, 999, 1000, 1000}, {graph.BF16, 8192, 768, 3072},
		{graph.BF16, 1000, 1000, 1000}, {graph.BF16, 512, 256, 1024}, {graph.BF16, 2047, 513, 1023},
		{graph.BF16, 127, 8191, 8191}, {graph.F32, 2048, 2048, 2048}} {
		op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
			y := b.MatMul(in(c.d, c.m, c.k), in(c.d, c.k, c.n), false, false)
			y = b.Unary(graph.GeluTanh, b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, c.n), y.Type.Shape)))
			if c.d == graph.BF16 { // the copy engine stores these results
				y = b.CastTo(c.d, y)
			}
			b.Output("y", y)
		})
		for _, path := range asyncPaths {
			path.config.Precision = cuda.TF32
			k := kernelOf(t, op, types, path.config)
			if c.m < 128 && path.config.TensorMemory {
				continue // threads that copy operands are Hopper's
			}
			wellCompiled(t, compiler, fmt.Sprint(path.template, c), path.config.Chip, k, path.ptx...)
		}
	}
}

// TestGeluWithSlopeCompiled looks at what NVRTC makes of a layer that hands out GELU and its slope, rounded to bf16: one
// exponential for the two, and no conversion of single numbers.
func TestGeluWithSlopeCompiled(t *testing.T) {
	compiler := nvrtctest.Open(t)
	op, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
		y := b.MatMul(in(graph.BF16, 8192, 768), in(graph.BF16, 768, 3072), false, false)
		y = b.Binary(graph.Add, y, b.Broadcast(in(graph.F32, 3072), y.Type.Shape))
		slope := b.CastTo(graph.BF16, b.Unary(graph.GeluTanhSlope, y))
		b.Output("gelu", b.CastTo(graph.BF16, b.Unary(graph.GeluTanh, y)))
		b.Output("slope", slope)
		b.Output("same", b.CastTo(graph.F32, slope))
	})
	k := kernelOf(t, op, types, cuda.Config{Chip: cuda.H200, Precision: cuda.BF16})
	image, _, err := compiler.Compile(k.Source, cuda.H200)
	if err != nil {
		t.Fatal(err)
	}
	code, err := compiler.Disassemble(image)
	if err != nil {
		t.Fatal(err)
	}
	const elements = 128 // of a thread in a tile
	text := code["matmul"]
	exps, converted := strings.Count(text, "MUFU.EX2")+strings.Count(text, "MUFU.TANH"), strings.Count(text, "F2F.")
	if exps != elements || converted > 0 {
		t.Errorf("%d exponentials and %d conversions of single numbers for %d elements", exps, converted, elements)
	}
}
