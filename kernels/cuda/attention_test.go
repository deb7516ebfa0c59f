package cuda_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
	"fusec/lowering/cuda/driver/nvrtc/nvrtctest"
)

// attending is a fusion of an Attention or AttentionGrad alone.
func attending(t *testing.T, op graph.Op, args []*graph.Tensor) graph.Fusion {
	t.Helper()
	b := graph.NewBuilder("")
	var in []*graph.Node
	types := make([]graph.Type, len(args))
	for i, a := range args {
		types[i] = a.Type
		in = append(in, b.Input(fmt.Sprint(i), a.Type))
	}
	results, err := graph.InfoOf(op).Infer(op, types)
	if err != nil {
		t.Fatal(err)
	}
	y := b.Add(op, in...)
	for i := range results {
		n := y
		if i > 0 {
			n = b.Add(graph.Result{Index: i}, y)
		}
		b.Output(fmt.Sprint(i), n)
	}
	body, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return graph.Fusion{Anchor: graph.AnchorAttention, Body: body}
}

func drawReals(r *rand.Rand, d graph.DType, lo, hi float64, dims ...int) *graph.Tensor {
	return cases.Arg{Type: graph.TypeOf(d, dims...), Lo: lo, Hi: hi}.Draw(r)
}

var attentionSizes = cases.AttentionSizes{Queries: 90, Keys: 170, Few: 400, Columns: []int{8, 16, 20, 33, 64}, Heads: 2}

// attentionGradient is the gradient of an attention, with the operands that it has beside the attention's own.
func attentionGradient(t *testing.T, r *rand.Rand, op graph.Attention, args []*graph.Tensor) (graph.Op,
	[]*graph.Tensor) {
	t.Helper()
	in := make([]ref.Value, len(args))
	for i, a := range args {
		in[i] = ref.FromTensor(a)
	}
	results, err := ref.Op(op, in)
	if err != nil {
		t.Fatal(err)
	}
	d := args[0].Type.DType
	out, lse := graph.NewTensor(graph.Type{DType: d, Shape: results[0].Type.Shape}), results[1].Rounded()
	for i, x := range results[0].F {
		out.SetFloat(i, x)
	}
	grad := graph.AttentionGrad{Attention: op, HasDlse: r.IntN(2) == 0}
	args = append(append([]*graph.Tensor(nil), args...), out, lse, drawReals(r, d, -1, 1, out.Type.Shape.Slice()...))
	if grad.HasDlse {
		args = append(args, drawReals(r, lse.Type.DType, -1, 1, lse.Type.Shape.Slice()...))
	}
	return grad, args
}

// attentionChecks are checks of an attention and its gradient, operands and results laid out at random every other
// time.
func attentionChecks(t *testing.T, r *rand.Rand, name string, op graph.Attention, args []*graph.Tensor,
	precision cuda.Precision) []cudatest.Check {
	t.Helper()
	check := func(name string, op graph.Op, args []*graph.Tensor) cudatest.Check {
		f := attending(t, op, args)
		c := cudatest.Check{Name: name, Op: f, Args: args}
		c.Config.Precision = precision
		c.Compare = attentionNear(args[0].Type.DType, precision)
		if r.IntN(2) == 0 {
			for _, a := range args {
				c.ArgLayouts = append(c.ArgLayouts, cudatest.Layout(r, a.Type.Shape, false))
			}
			for _, o := range f.Body.Outputs {
				c.ResultLayouts = append(c.ResultLayouts, cudatest.Layout(r, o.Node.Type.Shape, false))
			}
		}
		return c
	}
	checks := []cudatest.Check{check(name, op, args)}
	if op.Page == 0 && !op.HasScales { // else the gradient is that of gathered keys, or of what integers stand for
		grad, args := attentionGradient(t, r, op, args)
		checks = append(checks, check(name+" grad", grad, args))
	}
	return checks
}

// attentionNear compares with the reference as the element type and the precision allow: probabilities of 16 bits, or
// of tf32, meet the values.
func attentionNear(d graph.DType, p cuda.Precision) func(got *graph.Tensor, want ref.Value) error {
	more := 1.0
	switch {
	case d.Size() == 2:
		more = 2000 // 2e-2 of the terms
	case d == graph.F32 && p != cuda.F32:
		more = 200 // 2e-3
	}
	return func(got *graph.Tensor, want ref.Value) error {
		for i := range want.Mag {
			want.Mag[i] *= more
		}
		return ref.Check(got, want)
	}
}

// drawnAttentions are checks of n attentions drawn at random, of element types in turn.
func drawnAttentions(t *testing.T, seed uint64, n int, precision cuda.Precision,
	types ...graph.DType) (checks []cudatest.Check) {
	t.Helper()
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range n {
		d := types[i%len(types)]
		op, args := cases.RandomAttention(r, d, attentionSizes)
		checks = append(checks, attentionChecks(t, r, fmt.Sprintf("%v %d", d, i), op, args, precision)...)
	}
	return checks
}

// TestAttentionPlain is attention as chips without tensor cores compute it.
func TestAttentionPlain(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	checks := drawnAttentions(t, 2, 8, cuda.F32, graph.F32, graph.F64, graph.BF16, graph.F16)
	for _, c := range cases.All(graph.F32) {
		if op, ok := c.Op.(graph.Attention); ok {
			args := make([]*graph.Tensor, len(c.Args))
			for i, a := range c.Args {
				args[i] = a.Draw(r)
			}
			checks = append(checks, attentionChecks(t, r, c.Name, op, args, cuda.F32)...)
		}
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.ChipOf(70)), checks...)
}

// TestAttentionMMA is attention on the tensor cores of sm_80: 16-bit types, and f32 as accurate as f32 and as tf32. A
// chip of one multiprocessor gets the largest tiles, one of many the smallest, and keys cut into chunks.
func TestAttentionMMA(t *testing.T) {
	for _, multiprocessors := range []int{1, 108} {
		chip := cuda.ChipOf(80)
		chip.SMs = multiprocessors
		seed := uint64(multiprocessors)
		checks := drawnAttentions(t, seed, 6, cuda.F32, graph.F32, graph.BF16, graph.F16)
		checks = append(checks, drawnAttentions(t, seed+1, 2, cuda.TF32, graph.F32)...)
		cudatest.Run(t, cudatest.OpenFor(t, chip), checks...)
	}
}

// TestAttentionDecode has few queries to many keys: tiles of every size, sequences of different lengths, whole heads and parts of
// them in a block, and pages. A chip of few multiprocessors gives a block several heads, one of many a head several blocks, and on
// Hopper a head of few keys a cluster.
func TestAttentionDecode(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 1))
	integers := func(d graph.DType, dims []int, values ...int) *graph.Tensor {
		x := graph.NewTensor(graph.TypeOf(d, dims...))
		for i := range x.Type.Shape.Elems() {
			x.SetFloat(i, float64(values[i%len(values)]))
		}
		return x
	}
	tail := graph.Attention{HasLengths: true, Tail: true, Causal: true}
	window := tail
	window.Window = 300
	masked := graph.Attention{HasLengths: true, HasMask: true}
	cs := []struct {
		op                                  graph.Attention
		batch, heads, group, sq, keys, d, w int
		lengths                             []int
	}{
		{graph.Attention{}, 1, 1, 1, 1, 700, 64, 64, nil},
		{graph.Attention{Causal: true}, 2, 1, 4, 3, 515, 40, 72, nil},
		{window, 3, 2, 5, 4, 600, 24, 8, []int{600, 257, 0}},
		{graph.Attention{Dropout: 0.3}, 1, 2, 2, 9, 512, 16, 16, nil},
		{tail, 5, 2, 4, 1, 333, 128, 128, []int{1, 0, 333, 64, 65}},
		{tail, 35, 1, 8, 1, 130, 16, 20, []int{1, 130, 0, 63, 127, 128, 129}},
		{tail, 2, 1, 3, 16, 400, 32, 33, []int{399, 17}},
		{tail, 2, 2, 8, 8, 260, 64, 64, []int{260, 200}},
		{masked, 2, 1, 4, 2, 300, 8, 1, []int{300, 1}},
		{graph.Attention{Causal: true}, 1, 1, 4, 15, 290, 200, 256, nil},
		{tail, 1, 2, 4, 1, 1024, 128, 128, []int{1024}},
		{tail, 1, 1, 8, 1, 1000, 64, 36, []int{677}},
		{tail, 1, 8, 1, 1, 700, 256, 5, []int{1}},
		{tail, 1, 20, 2, 2, 300, 32, 64, []int{0}},
		{graph.Attention{}, 2, 3, 8, 7, 520, 64, 72, nil},
		{masked, 1, 33, 1, 1, 129, 16, 16, []int{128}},
		{graph.Attention{Dropout: 0.3, Window: 140}, 2, 1, 3, 1, 260, 24, 128, nil},
	}
	old := cuda.ChipOf(80)
	old.SMs = 1
	for j, chip := range []cuda.Chip{old, cuda.ChipOf(80), cuda.H200} {
		var checks []cudatest.Check
		for i, c := range cs {
			c.op.Scale = 0.2
			for k, d := range []graph.DType{graph.F32, graph.BF16, graph.F16} {
				if (i+j)%3 != k {
					continue
				}
				const page = 7
				paged := c.op.Tail && i%2 == 0
				pages := (c.keys + page - 1) / page
				cache := []int{c.batch, c.heads, c.keys}
				if paged {
					c.op.Page = page
					cache = []int{pages + 3, c.heads, page}
				}
				args := []*graph.Tensor{drawReals(r, d, -2, 2, c.batch, c.heads*c.group, c.sq, c.d),
					drawReals(r, d, -2, 2, append(cache, c.d)...), drawReals(r, d, -2, 2, append(cache, c.w)...)}
				if c.op.HasMask {
					args = append(args, drawReals(r, graph.F32, -2, 2, c.batch, 1, c.sq, c.keys))
				}
				if c.op.HasLengths {
					args = append(args, integers([]graph.DType{graph.I32, graph.I64}[i%2], []int{c.batch}, c.lengths...))
				}
				if paged {
					args = append(args, integers(graph.I64, []int{c.batch, pages}, r.Perm(pages+3)...))
				}
				if c.op.Dropout > 0 {
					args = append(args, drawReals(r, graph.I64, -9, 9))
				}
				checks = append(checks, attentionChecks(t, r, fmt.Sprint(d, " ", i), c.op, args, cuda.F32)[0])
				if (i/3+j)%2 == 0 {
					op, args := inBytes(r, c.op, args)
					checks = append(checks, attentionChecks(t, r, fmt.Sprint(d, " ", i, ", 8 bits"), op, args, cuda.F32)[0])
				}
			}
		}
		cudatest.Run(t, cudatest.OpenFor(t, chip), checks...)
	}
}

// TestDecodeBoxes has keys and values that Hopper's copy engine copies: rows of 16 and of 8 bits, of one and of several lines,
// tiles of every size, pages smaller and larger than tiles, shares and clusters, numbers of keys that fill no tile, NaN behind
// those that count, and pages that are not there.
func TestDecodeBoxes(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	tail := graph.Attention{Scale: 0.2, HasLengths: true, Tail: true, Causal: true}
	cs := []struct {
		op                                  graph.Attention
		batch, heads, group, sq, keys, d, w int
		lengths                             []int
		page                                int
		bytes                               bool
	}{
		{tail, 1, 8, 4, 1, 1024, 128, 128, []int{1000}, 0, false},
		{tail, 1, 3, 8, 1, 333, 64, 256, []int{333}, 0, false},
		{tail, 1, 20, 1, 3, 200, 64, 64, []int{1}, 0, false},
		{tail, 3, 2, 4, 1, 515, 128, 64, []int{515, 0, 65}, 0, false},
		{tail, 2, 3, 5, 4, 400, 64, 128, []int{399, 130}, 0, false},
		{tail, 4, 12, 8, 1, 700, 128, 128, []int{700, 1, 640, 64}, 0, false},
		{graph.Attention{Scale: 0.2, Causal: true, Window: 150}, 2, 40, 1, 7, 257, 64, 64, nil, 0, false},
		{graph.Attention{Scale: 0.2, Dropout: 0.3}, 1, 2, 16, 2, 640, 192, 128, nil, 0, false},
		{graph.Attention{Scale: 0.2, HasMask: true}, 1, 4, 8, 8, 320, 64, 64, nil, 0, false},
		{tail, 1, 2, 4, 1, 333, 128, 128, []int{333}, 16, false},
		{tail, 3, 2, 4, 1, 515, 128, 64, []int{515, 0, 65}, 64, false},
		{tail, 1, 3, 1, 3, 200, 64, 64, []int{1}, 192, false},
		{tail, 2, 1, 5, 4, 400, 64, 128, []int{399, 130}, 8, false},
		{tail, 3, 3, 8, 1, 300, 128, 128, []int{300, 256, 64}, 32, false},
		{tail, 1, 2, 4, 1, 500, 128, 128, []int{480}, 0, true},
		{tail, 3, 2, 4, 1, 300, 256, 128, []int{300, 0, 65}, 0, true},
		{tail, 2, 1, 5, 4, 400, 128, 128, []int{399, 130}, 16, true},
		{tail, 2, 3, 8, 1, 260, 128, 128, []int{260, 1}, 64, true},
		{graph.Attention{Scale: 0.2, Causal: true, Window: 150}, 2, 10, 1, 7, 257, 128, 128, nil, 0, true},
	}
	chip := cuda.H200
	for j, sms := range []int{132, 5} {
		var checks []cudatest.Check
		for i, c := range cs {
			d := []graph.DType{graph.BF16, graph.F16}[(i+j)%2]
			if c.bytes && max(c.d, c.w) == 128 && (i+j)%2 == 0 {
				d = graph.F32
			}
			cache, pages := []int{c.batch, c.heads, c.keys}, 0
			if c.page > 0 {
				pages = (c.keys + c.page - 1) / c.page
				cache, c.op.Page = []int{c.batch*pages + 3, c.heads, c.page}, c.page
			}
			args := []*graph.Tensor{drawReals(r, d, -2, 2, c.batch, c.heads*c.group, c.sq, c.d),
				drawReals(r, d, -2, 2, append(cache, c.d)...), drawReals(r, d, -2, 2, append(cache, c.w)...)}
			if c.op.HasMask {
				args = append(args, drawReals(r, graph.F32, -2, 2, c.batch, 1, c.sq, c.keys))
			}
			var table *graph.Tensor
			if c.page > 0 {
				table = graph.NewTensor(graph.TypeOf(graph.I64, c.batch, pages))
				for e, page := range r.Perm(c.batch*pages + 3)[:c.batch*pages] {
					table.SetFloat(e, float64(page))
				}
			}
			if c.op.HasLengths {
				lengths := graph.NewTensor(graph.TypeOf(graph.I64, c.batch))
				for b, n := range c.lengths {
					lengths.SetFloat(b, float64(n))
					for row := n; row < c.keys; row++ {
						head, at := b*c.heads, row
						if c.page > 0 {
							entry := b*pages + row/c.page
							if row%c.page == 0 {
								table.SetInt(entry, 1<<33)
							}
							page := int(table.Int(entry))
							if page >= cache[0] {
								continue
							}
							head, at = page*c.heads, row%c.page
						}
						for _, x := range args[1:3] {
							s := x.Type.Shape
							for h := range c.heads {
								for e := range s.At(3) {
									x.SetFloat(((head+h)*s.At(2)+at)*s.At(3)+e, math.NaN())
								}
							}
						}
					}
				}
				args = append(args, lengths)
			}
			if table != nil {
				args = append(args, table)
			}
			if c.op.Dropout > 0 {
				args = append(args, drawReals(r, graph.I64, -9, 9))
			}
			if c.bytes {
				c.op, args = inBytes(r, c.op, args)
			}
			check := cudatest.Check{Name: fmt.Sprint(d, " ", i), Op: attending(t, c.op, args), Args: args,
				Compare: attentionNear(d, cuda.F32)}
			chip.SMs = sms
			k, err := cuda.Compile(check.Op, operandsOf(args), rowMajor(resultsOf(t, check)), cuda.Config{Chip: chip})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(k.Generated(), "BoxTiles<") {
				t.Errorf("%s: keys are not copied by the copy engine", check.Name)
			}
			for _, x := range k.Steps[0].Params {
				if x.Map != nil && !x.Map.Lines {
					t.Errorf("%s: the L2 cache fetches pairs of lines", check.Name)
				}
			}
			pooled := c.page > 0 || c.bytes // of which only one layout is run, for time
			if !pooled || i%2 == j {
				checks = append(checks, check)
			}
			if pooled && i%2 == j {
				continue
			}
			// In memory the heads of a key are side by side.
			check.Name += ", heads inside"
			for _, x := range args[:3] {
				s := x.Type.Shape
				l := graph.Contiguous(graph.ShapeOf(s.At(0), s.At(2), s.At(1), s.At(3)))
				check.ArgLayouts = append(check.ArgLayouts, l.Transpose(graph.IntsOf(0, 2, 1, 3)))
			}
			checks = append(checks, check)
		}
		cudatest.Run(t, cudatest.OpenFor(t, chip), checks...)
	}
}

// TestDecodeRoom: on Hopper a block of few keys leaves room for one of the next launch, and many keys have two blocks on a
// multiprocessor. The few of one sequence have a cluster for each head. It is so for pages, and for keys of 8 bits, too.
func TestDecodeRoom(t *testing.T) {
	of := graph.TypeOf
	for _, c := range []struct {
		batch, keys, page int
		bytes             bool
		blocks            int
	}{
		{1, 1024, 0, false, 64}, {1, 4096, 0, false, 132}, {1, 16384, 0, false, 132}, {32, 1024, 0, false, 264},
		{32, 16384, 0, false, 264}, {32, 16384, 16, false, 264}, {1, 16384, 256, false, 132}, {1, 16384, 0, true, 132},
		{32, 1024, 0, true, 264}, {32, 1024, 32, true, 264},
	} {
		op := graph.Attention{Scale: 0.1, HasLengths: true, Tail: true, Causal: true, Page: c.page, HasScales: c.bytes}
		d, cache := graph.BF16, graph.ShapeOf(c.batch, 8, c.keys, 128)
		if c.bytes {
			d = graph.I8
		}
		if c.page > 0 {
			cache = graph.ShapeOf(c.batch*c.keys/c.page, 8, c.page, 128)
		}
		args := []*graph.Tensor{{Type: of(graph.BF16, c.batch, 32, 1, 128)}, {Type: graph.Type{DType: d, Shape: cache}},
			{Type: graph.Type{DType: d, Shape: cache}}, {Type: of(graph.I64, c.batch)}}
		if c.page > 0 {
			args = append(args, &graph.Tensor{Type: of(graph.I64, c.batch, c.keys/c.page)})
		}
		if c.bytes {
			scales := graph.Type{DType: graph.F32, Shape: cache.With(3, 1)}
			args = append(args, &graph.Tensor{Type: scales}, &graph.Tensor{Type: scales})
		}
		check := cudatest.Check{Op: attending(t, op, args), Args: args}
		k, err := cuda.Compile(check.Op, operandsOf(args), rowMajor(resultsOf(t, check)), cuda.Config{Chip: cuda.H200})
		if err != nil {
			t.Fatal(err)
		}
		if s := k.Steps[0]; s.Grid[0] != c.blocks || s.Shared > cuda.H200.Shared/2-1024 {
			t.Errorf("%+v: %d blocks, each with %d bytes", c, s.Grid[0], s.Shared)
		}
		wellCompiled(t, nvrtctest.Open(t), fmt.Sprint(c), cuda.H200, k)
	}
}

// inBytes is an attention with keys and values of 8 bits in place of its own, and a scale for each.
func inBytes(r *rand.Rand, op graph.Attention, args []*graph.Tensor) (graph.Attention, []*graph.Tensor) {
	op.HasScales = true
	args = slices.Clone(args)
	for i := 1; i < 3; i++ {
		s := args[i].Type.Shape
		args[i] = drawReals(r, graph.I8, -128, 128, s.Slice()...)
		args = append(args, drawReals(r, args[0].Type.DType.Accumulator(), 0.001, 0.02, s.With(s.Rank()-1, 1).Slice()...))
	}
	return op, args
}

// TestAttentionBytes has keys and values of 8 bits in the kernels for many queries, of each type and precision, and in pages.
func TestAttentionBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 1))
	lengths := graph.NewTensor(graph.TypeOf(graph.I32, 2))
	lengths.SetFloat(0, 150)
	lengths.SetFloat(1, 77)
	table := graph.NewTensor(graph.TypeOf(graph.I64, 2, 15))
	for i, page := range append(r.Perm(17), r.Perm(17)...)[:30] {
		table.SetFloat(i, float64(page))
	}
	for _, of := range []struct {
		chip  cuda.Chip
		types []graph.DType
	}{
		{cuda.ChipOf(70), []graph.DType{graph.F32, graph.F64}},
		{cuda.ChipOf(80), []graph.DType{graph.F32, graph.BF16, graph.F16, graph.F32}},
	} {
		var checks []cudatest.Check
		for i, d := range of.types {
			precision := cuda.F32
			if i == 3 {
				precision = cuda.TF32
			}
			op := graph.Attention{Scale: 0.2, Causal: true, Window: 120, Dropout: 0.2, HasMask: i%2 == 0}
			args := []*graph.Tensor{drawReals(r, d, -2, 2, 2, 4, 70, 40), drawReals(r, d, -2, 2, 2, 2, 150, 40),
				drawReals(r, d, -2, 2, 2, 2, 150, 72)}
			if op.HasMask {
				args = append(args, drawReals(r, d.Accumulator(), -2, 2, 2, 1, 70, 150))
			}
			op, args = inBytes(r, op, append(args, drawReals(r, graph.I64, -9, 9)))
			checks = append(checks, attentionChecks(t, r, fmt.Sprint(d, precision), op, args, precision)...)
			op = graph.Attention{Scale: 0.3, HasLengths: true, Tail: true, Causal: true, Page: 10}
			op, args = inBytes(r, op, []*graph.Tensor{drawReals(r, d, -2, 2, 2, 4, 67, 64), drawReals(r, d, -2, 2, 17, 2, 10, 64),
				drawReals(r, d, -2, 2, 17, 2, 10, 32), lengths, table})
			checks = append(checks, attentionChecks(t, r, fmt.Sprint(d, precision, " by pages"), op, args, precision)...)
		}
		cudatest.Run(t, cudatest.OpenFor(t, of.chip), checks...)
	}
}

// TestAttentionTable reports entries of a table that are no pages, unless their keys do not count.
func TestAttentionTable(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	op := graph.Attention{Scale: 1, HasLengths: true, Page: 4}
	table := graph.NewTensor(graph.TypeOf(graph.I64, 2, 3))
	lengths := graph.NewTensor(graph.TypeOf(graph.I32, 2))
	lengths.SetFloat(0, 9)
	lengths.SetFloat(1, 4)
	args := []*graph.Tensor{drawReals(r, graph.F32, -1, 1, 2, 1, 2, 8), drawReals(r, graph.F32, -1, 1, 5, 1, 4, 8),
		drawReals(r, graph.F32, -1, 1, 5, 1, 4, 8), lengths, table}
	var checks []cudatest.Check
	for _, c := range []struct {
		name   string
		entry  int
		page   float64
		status cuda.StatusCode
	}{
		{"too large", 2, 5, cuda.StatusIndex}, {"negative", 0, -1, cuda.StatusIndex},
		{"not counted", 4, 99, cuda.StatusOK},
	} {
		of := append([]*graph.Tensor(nil), args...)
		of[4] = graph.NewTensor(table.Type)
		of[4].SetFloat(c.entry, c.page)
		checks = append(checks, cudatest.Check{Name: c.name, Op: attending(t, op, of), Args: of, Status: c.status})
	}
	cudatest.Run(t, cudatest.OpenFor(t, cuda.ChipOf(70)), checks...)
}

// TestAttentionRefused names what an attention cannot be made of.
func TestAttentionRefused(t *testing.T) {
	x := graph.TypeOf(graph.F32, 2, 4)
	b := graph.NewBuilder("")
	q := b.Input("q", x)
	b.Output("y", b.Add(graph.Attention{Scale: 1}, b.Unary(graph.Relu, q), q, q))
	body, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	o := cuda.Operand{DType: graph.F32, Layout: graph.Contiguous(x.Shape)}
	f := graph.Fusion{Anchor: graph.AnchorAttention, Body: body}
	_, err = cuda.Compile(f, []cuda.Operand{o}, []cuda.Operand{o}, cuda.Config{Chip: cuda.H200})
	if err == nil || !strings.Contains(err.Error(), "has no place in a body beside attention %2") {
		t.Error(err)
	}
}
