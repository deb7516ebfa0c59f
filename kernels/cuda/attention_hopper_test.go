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

// A hopperCase is an attention, and its gradient, in the shapes that Hopper's kernels serve.
type hopperCase struct {
	name          string
	d             graph.DType
	b, h, group   int
	queries, keys int
	depth, width  int
	op            graph.Attention
	joint         bool  // operands in one tensor [b, s, 3, h, d]
	half          bool  // the result has 16 bits, too
	repeated      bool  // dout is one row, repeated, which the copy engine cannot read
	mask          []int // the shape of the mask
	added         bool  // the mask has numbers
	alone         bool  // the log-sum-exp has no gradient
}

var hopperCases = []hopperCase{
	{name: "causal", d: graph.BF16, b: 1, h: 2, group: 1, queries: 200, keys: 200, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Causal: true}},
	{name: "joint", d: graph.F16, b: 2, h: 2, group: 1, queries: 70, keys: 70, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.1}, joint: true, half: true},
	{name: "groups", d: graph.BF16, b: 1, h: 4, group: 2, queries: 65, keys: 150, depth: 96, width: 80,
		op: graph.Attention{Scale: 0.1, Causal: true}},
	{name: "nothing to attend", d: graph.BF16, b: 1, h: 1, group: 1, queries: 210, keys: 66, depth: 64, width: 128,
		op: graph.Attention{Scale: 0.125, Causal: true}, repeated: true},
	{name: "window", d: graph.F16, b: 1, h: 1, group: 1, queries: 300, keys: 310, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Window: 40}},
	{name: "causal window", d: graph.BF16, b: 1, h: 1, group: 1, queries: 290, keys: 270, depth: 128, width: 64,
		op: graph.Attention{Scale: 0.1, Causal: true, Window: 30}},
	{name: "mask", d: graph.BF16, b: 2, h: 2, group: 1, queries: 190, keys: 150, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, HasMask: true}, mask: []int{190, 150}},
	{name: "mask of heads", d: graph.F16, b: 2, h: 4, group: 2, queries: 130, keys: 130, depth: 128, width: 64,
		op: graph.Attention{Scale: 0.1, HasMask: true, Causal: true}, mask: []int{2, 4, 130, 130}},
	{name: "mask of keys", d: graph.BF16, b: 2, h: 2, group: 1, queries: 66, keys: 97, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.1, HasMask: true}, mask: []int{2, 1, 1, 97}},
	{name: "numbers added", d: graph.BF16, b: 1, h: 2, group: 1, queries: 90, keys: 151, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, HasMask: true}, mask: []int{2, 90, 151}, added: true},
	{name: "lengths", d: graph.BF16, b: 3, h: 2, group: 2, queries: 100, keys: 200, depth: 64, width: 128,
		op: graph.Attention{Scale: 0.125, HasLengths: true}},
	{name: "lengths, window and tail", d: graph.F16, b: 3, h: 1, group: 1, queries: 100, keys: 200, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, HasLengths: true, Tail: true, Causal: true, Window: 50}},
	{name: "dropout", d: graph.BF16, b: 2, h: 2, group: 2, queries: 190, keys: 133, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Dropout: 0.3}},
	{name: "dropout, mask, lengths", d: graph.BF16, b: 2, h: 2, group: 1, queries: 80, keys: 160, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.1, Dropout: 0.5, Causal: true, HasMask: true, HasLengths: true}, mask: []int{2, 1, 80, 160}},
	{name: "dropout, lengths, 128", d: graph.BF16, b: 2, h: 2, group: 1, queries: 200, keys: 400, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.1, Dropout: 0.5, Causal: true, HasLengths: true}, half: true},
	{name: "dropout of 12 bits, mask", d: graph.F16, b: 1, h: 2, group: 2, queries: 130, keys: 264, depth: 128, width: 80,
		op: graph.Attention{Scale: 0.1, Dropout: 0.02, HasMask: true}, mask: []int{130, 264}, half: true},
	{name: "window of groups, 128", d: graph.BF16, b: 1, h: 4, group: 2, queries: 330, keys: 400, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.1, Window: 70}, half: true},
	{name: "lengths, tail and window, 128", d: graph.BF16, b: 3, h: 1, group: 1, queries: 150, keys: 300, depth: 120, width: 128,
		op: graph.Attention{Scale: 0.1, HasLengths: true, Tail: true, Causal: true, Window: 140}},
	{name: "mask of pieces of words", d: graph.BF16, b: 1, h: 2, group: 1, queries: 150, keys: 300, depth: 64, width: 128,
		op: graph.Attention{Scale: 0.125, HasMask: true}, mask: []int{2, 150, 300}},
	{name: "dropout of pieces of words", d: graph.F16, b: 1, h: 2, group: 1, queries: 150, keys: 297, depth: 64, width: 96,
		op: graph.Attention{Scale: 0.125, Dropout: 0.2}},
	{name: "dropout of one bit", d: graph.BF16, b: 1, h: 2, group: 1, queries: 70, keys: 256, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Dropout: 0.5}},
	{name: "dropout of one bit, parts of groups", d: graph.BF16, b: 1, h: 2, group: 1, queries: 70, keys: 143, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Dropout: 0.5}},
	{name: "dropout of two bits", d: graph.BF16, b: 1, h: 2, group: 1, queries: 70, keys: 136, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Dropout: 0.25}},
	{name: "dropout of few", d: graph.BF16, b: 1, h: 1, group: 1, queries: 140, keys: 128, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Dropout: 0.01}},
	{name: "dropout of whole blocks, groups", d: graph.BF16, b: 1, h: 4, group: 2, queries: 190, keys: 256, depth: 128, width: 96,
		op: graph.Attention{Scale: 0.1, Dropout: 0.1}, half: true},
	{name: "dropout of whole blocks, causal window", d: graph.F16, b: 2, h: 1, group: 1, queries: 400, keys: 384, depth: 80,
		width: 128, op: graph.Attention{Scale: 0.1, Dropout: 0.01, Causal: true, Window: 150}, half: true},
	{name: "many keys", d: graph.BF16, b: 1, h: 1, group: 1, queries: 70, keys: 1290, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Causal: true, HasMask: true}, mask: []int{70, 1290}},
	{name: "dropout, mask, lengths, 128", d: graph.BF16, b: 3, h: 2, group: 1, queries: 80, keys: 160, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.1, Dropout: 0.5, Causal: true, HasMask: true, HasLengths: true}, mask: []int{3, 1, 80, 160}},
}

// fusions are the case's forward and backward fusions.
func (c hopperCase) fusions(t *testing.T) (forward, backward hopperFusion) {
	t.Helper()
	operands := func(b *graph.Builder, in hopperInput) (q, k, v *graph.Node) {
		if c.joint {
			x := in(c.d, c.b, c.queries, 3, c.h, c.depth)
			var part [3]*graph.Node
			for i := range part {
				part[i] = b.Transpose(b.Reshape(b.Slice(x, 2, i, 1, 1), c.b, c.queries, c.h, c.depth), 0, 2, 1, 3)
			}
			return part[0], part[1], part[2]
		}
		kv := c.h / c.group
		q, k = in(c.d, c.b, c.h, c.queries, c.depth), in(c.d, c.b, kv, c.keys, c.depth)
		return q, k, in(c.d, c.b, kv, c.keys, c.width)
	}
	masks := func(in hopperInput, operands ...*graph.Node) []*graph.Node {
		if c.op.HasMask {
			operands = append(operands, in(map[bool]graph.DType{false: graph.Bool, true: graph.F32}[c.added], c.mask...))
		}
		if c.op.HasLengths {
			operands = append(operands, in(graph.I64, c.b))
		}
		if c.op.Dropout > 0 {
			operands = append(operands, in(graph.I64))
		}
		return operands
	}
	forward = fuseHopper(t, func(b *graph.Builder, in hopperInput) {
		q, k, v := operands(b, in)
		y := b.Add(c.op, masks(in, q, k, v)...)
		out := b.Transpose(y, 0, 2, 1, 3)
		if c.half {
			out = b.Add(graph.Cast{To: c.d}, out)
		}
		b.Output("y", out)
		b.Output("lse", b.Add(graph.Result{Index: 1}, y))
	})
	backward = fuseHopper(t, func(b *graph.Builder, in hopperInput) {
		q, k, v := operands(b, in)
		all := masks(in, q, k, v)
		out := b.Transpose(in(c.d, c.b, c.queries, c.h, c.width), 0, 2, 1, 3)
		lse := in(graph.F32, c.b, c.h, c.queries)
		dout := in(c.d, c.b, c.h, c.queries, c.width)
		if c.repeated {
			dout = b.Broadcast(in(c.d, c.b, c.h, 1, c.width), dout.Type.Shape)
		}
		all = append(all, out, lse, dout)
		if !c.alone {
			all = append(all, in(graph.F32, c.b, c.h, c.queries))
		}
		dq := b.Add(graph.AttentionGrad{Attention: c.op, HasDlse: !c.alone}, all...)
		b.Output("dq", b.Transpose(dq, 0, 2, 1, 3))
		b.Output("dk", b.Add(graph.Result{Index: 1}, dq))
		b.Output("dv", b.Add(graph.Result{Index: 2}, dq))
	})
	return forward, backward
}

// A hopperFusion is a fusion and the types of its operands; a hopperInput declares one of them.
type hopperFusion struct {
	graph.Fusion
	types []graph.Type
}

type hopperInput = func(d graph.DType, dims ...int) *graph.Node

func fuseHopper(t *testing.T, build func(*graph.Builder, hopperInput)) hopperFusion {
	t.Helper()
	b := graph.NewBuilder("attention")
	var types []graph.Type
	build(b, func(d graph.DType, dims ...int) *graph.Node {
		types = append(types, graph.TypeOf(d, dims...))
		return b.Input(fmt.Sprint("x", len(types)), types[len(types)-1])
	})
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	return hopperFusion{graph.Fusion{Anchor: graph.AnchorAttention, Kind: graph.KindAttention, Body: g}, types}
}

// compile makes the fusion's kernel for a chip, with operands and results in row-major order.
func (f hopperFusion) compile(t *testing.T, cfg cuda.Config) *cuda.Kernel {
	t.Helper()
	return kernelOf(t, f.Fusion, f.types, cfg)
}

// byHopper reports whether a kernel is one of Hopper's own, or one in tensor memory.
func byHopper(k *cuda.Kernel) bool {
	return strings.Contains(k.Source, "attention_hopper<") || strings.Contains(k.Source, "attention_grad_rows<") ||
		strings.Contains(k.Source, "attention_blackwell<")
}

// nearHalf compares sums of terms that were rounded to 16 bits, several times each, and added up in f32.
func nearHalf(d graph.DType) func(*graph.Tensor, ref.Value) error {
	of := map[graph.DType]float64{graph.BF16: 8e-3, graph.F16: 1.2e-3}[d] // of the terms
	return func(got *graph.Tensor, want ref.Value) error {
		bound := map[graph.DType]float64{graph.F32: 1e-5, graph.BF16: 0x1p-8, graph.F16: 0x1p-11}[got.Type.DType]
		scaled := want
		scaled.Mag = make([]float64, len(want.F))
		for i, w := range want.F {
			m := math.Abs(w)
			if want.Mag != nil {
				m = want.Mag[i]
			}
			scaled.Mag[i] = m * (1 + of/bound)
		}
		return ref.Check(got, scaled)
	}
}

// TestAttentionHopper computes attentions and their gradients by Hopper's instructions, on the emulator, of ordinary
// numbers and of special ones: on an H200, on which few queries let warpgroups divide the keys, and on a chip that they fill.
func TestAttentionHopper(t *testing.T) {
	r := rand.New(rand.NewPCG(90, 1))
	var checks []cudatest.Check
	for _, c := range hopperCases {
		forward, backward := c.fusions(t)
		for _, f := range []hopperFusion{forward, backward} {
			if by := byHopper(f.compile(t, cuda.Config{Chip: cuda.H200})); by == (c.added && f.Body == backward.Body) {
				t.Errorf("%s: by Hopper's kernels: %t", c.name, by)
			}
		}
		for _, name := range []string{c.name, c.name + ", special"} {
			args := drawAll(r, forward.types)
			setNumbers(c, args)
			compare := nearWeighted(t, c, forward, args)
			if name != c.name {
				compare = nearHalf(c.d)
				hostile(r, args)
			}
			checks = append(checks, cudatest.Check{Name: name, Op: forward.Fusion, Args: args, Compare: compare})
			checks = append(checks, cudatest.Check{Name: name + ", gradient", Op: backward.Fusion,
				Args: backwardArgs(t, r, forward, backward, args), Compare: nearHalf(c.d)})
		}
	}
	for _, multiprocessors := range []int{cuda.H200.SMs, 2} {
		chip := cuda.H200
		chip.SMs = multiprocessors
		cudatest.Run(t, cudatest.OpenFor(t, chip), checks...)
	}
}

// tensorCases are more sizes for halves of 128 queries: one key, one query in the second half or in the second tile, several tiles
// of keys with steep scores, tiles and a batch of which no key counts.
var tensorCases = []hopperCase{
	{name: "one key", d: graph.BF16, b: 1, h: 2, group: 2, queries: 130, keys: 1, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.1}},
	{name: "a query in the second half", d: graph.F16, b: 2, h: 3, group: 3, queries: 129, keys: 129, depth: 16, width: 24,
		op: graph.Attention{Scale: 0.25, Causal: true}, half: true},
	{name: "a query in the second tile", d: graph.BF16, b: 1, h: 2, group: 1, queries: 257, keys: 600, depth: 72, width: 104,
		op: graph.Attention{Scale: 2, Causal: true}, half: true},
	{name: "steep scores", d: graph.F16, b: 1, h: 2, group: 1, queries: 400, keys: 900, depth: 64, width: 128,
		op: graph.Attention{Scale: 3}},
	{name: "tiles of queries without keys", d: graph.BF16, b: 1, h: 1, group: 1, queries: 700, keys: 130, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Causal: true}, half: true},
	{name: "mask, lengths", d: graph.BF16, b: 2, h: 2, group: 1, queries: 300, keys: 260, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, HasMask: true, HasLengths: true}, mask: []int{300, 260}},
}

// inTensorMemory is the configuration of attention in tensor memory, on a chip of so many multiprocessors.
func inTensorMemory(multiprocessors int) cuda.Config {
	cfg := cuda.Config{Chip: cuda.ChipOf(100), TensorMemory: true}
	cfg.Chip.SMs = multiprocessors
	return cfg
}

// TestAttentionBlackwell computes attentions and their gradients in tensor memory, on the emulator, of ordinary numbers and of
// special ones: where each block has one tile, and where blocks of forward attention have several. Every second case of Hopper's is
// one of them, with $FUSEC_LONG each.
func TestAttentionBlackwell(t *testing.T) {
	r := rand.New(rand.NewPCG(100, 1))
	var checks, gradients []cudatest.Check
	cases := slices.Clone(tensorCases)
	for i, c := range hopperCases {
		if long || i%2 == 0 {
			cases = append(cases, c)
		}
	}
	for _, c := range cases {
		forward, backward := c.fusions(t)
		for _, f := range []hopperFusion{forward, backward} {
			if by := byHopper(f.compile(t, inTensorMemory(2))); by == (c.added && f.Body == backward.Body) {
				t.Errorf("%s: in tensor memory: %t", c.name, by)
			}
		}
		for _, name := range []string{c.name, c.name + ", special"} {
			args := drawAll(r, forward.types)
			setNumbers(c, args)
			if c.op.HasMask && !c.added { // a row without keys
				for i := range c.keys {
					args[c.op.MaskArg()].SetInt(i, 0)
				}
			}
			compare := nearWeighted(t, c, forward, args)
			if name != c.name {
				compare = nearHalf(c.d)
				hostile(r, args)
			} else if c.op.HasLengths {
				spoilPadding(c, args)
			}
			checks = append(checks, cudatest.Check{Name: name, Op: forward.Fusion, Args: args, Compare: compare})
			back := cudatest.Check{Name: name + ", gradient", Op: backward.Fusion, Compare: nearHalf(c.d)}
			if name != c.name {
				back.Args = backwardArgs(t, r, forward, backward, args)
			} else {
				args = mapped(args, raised)
				back.Args = backwardArgs(t, r, forward, backward, args)
				lse := len(args) + 1
				copy(back.Args[lse+1:], mapped(back.Args[lse+1:], raised))
				last := back.Args[lse+2:] // the gradient of the log-sum-exp
				copy(last, mapped(last, func(x float64) float64 { return -20 * x }))
				back.Compare = nearMost
			}
			gradients = append(gradients, back)
		}
	}
	for _, multiprocessors := range []int{148, 2} {
		cfg := inTensorMemory(multiprocessors)
		if multiprocessors == 2 {
			checks = append(checks, gradients...)
		}
		for i := range checks {
			checks[i].Config = cfg
		}
		cudatest.Run(t, cudatest.OpenFor(t, cfg.Chip), checks...)
	}
}

// nearWeighted compares the results of an attention of these operands, with values up to 1.5: weights, whose sum is 1, and results
// are rounded once, and scores are not.
func nearWeighted(t *testing.T, c hopperCase, forward hopperFusion, args []*graph.Tensor) func(*graph.Tensor, ref.Value) error {
	t.Helper()
	in := make([]ref.Value, len(args))
	for i, a := range args {
		in[i] = ref.FromTensor(a)
	}
	results, err := ref.Op(forward.Fusion, in)
	if err != nil {
		t.Fatal(err)
	}
	most := map[graph.DType]float64{graph.BF16: 0x1p-8, graph.F16: 0x1p-11}[c.d] * 1.5 / (1 - c.op.Dropout)
	return func(got *graph.Tensor, of ref.Value) error {
		for _, want := range results {
			for i := 0; want.Type == of.Type && i < len(want.F); i++ {
				w, g := want.F[i], got.Float(i)
				if bound := most + 2*of.Type.DType.Tolerance()*math.Abs(w); w != g && !(math.Abs(g-w) <= bound) {
					return fmt.Errorf("element %d is %v, want %v ± %v", i, g, w, bound)
				}
			}
		}
		return nil
	}
}

// spoilPadding makes the keys and values NaN that do not count: they are not multiplied, not even by 0.
func spoilPadding(c hopperCase, args []*graph.Tensor) {
	lengths := args[c.op.LengthsArg()]
	for _, x := range args[1:3] {
		shape := x.Type.Shape
		for i, n := 0, shape.Elems(); i < n; i++ {
			if i/shape.At(shape.Rank()-1)%c.keys >= int(lengths.Int(i/(n/c.b))) {
				x.SetFloat(i, math.NaN())
			}
		}
	}
}

// raised makes numbers from −1.5 to 1.5 positive. Sums of a gradient of such numbers, with a gradient of the log-sum-exp that is
// far below 0, have terms of about one size and sign: what is missing in them, or is too much, shows.
func raised(x float64) float64 { return 1 + x/3 }

// mapped are copies of tensors of f of their numbers, and the others.
func mapped(list []*graph.Tensor, f func(float64) float64) []*graph.Tensor {
	list = slices.Clone(list)
	for i, x := range list {
		if !x.Type.DType.IsReal() {
			continue
		}
		list[i] = x.Clone()
		for j := range x.Type.Shape.Elems() {
			list[i].SetFloat(j, f(x.Float(j)))
		}
	}
	return list
}

// nearMost compares sums of terms that were rounded to 16 bits with elements of their size, and of that of the others.
func nearMost(got *graph.Tensor, want ref.Value) error {
	square := 0.0
	for _, w := range want.F {
		square += w * w
	}
	size := math.Sqrt(square / float64(len(want.F)))
	for i, w := range want.F {
		if g := got.Float(i); !(math.Abs(g-w) <= 0.03*(math.Abs(w)+size)) || w == 0 && g != 0 {
			return fmt.Errorf("element %d is %v, want %v", i, g, w)
		}
	}
	return nil
}

// backwardArgs are the operands of a gradient for those of its attention: they have the log-sum-exp of these very ones.
func backwardArgs(t *testing.T, r *rand.Rand, forward, backward hopperFusion, args []*graph.Tensor) []*graph.Tensor {
	t.Helper()
	back := drawAll(r, backward.types)
	copy(back, args)
	in := make([]ref.Value, len(args))
	for i, a := range args {
		in[i] = ref.FromTensor(a)
	}
	results, err := ref.OpBound(forward.Fusion, in)
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range results[1].F {
		back[len(args)+1].SetFloat(i, x)
	}
	return back
}

// setNumbers sets lengths, or a seed.
func setNumbers(c hopperCase, args []*graph.Tensor) {
	for _, a := range args {
		for i := range a.Type.Shape.Elems() {
			if a.Type.DType == graph.I64 {
				a.SetInt(i, []int64{int64(c.keys)*2/3 + 1, 0, int64(c.keys)}[i])
			}
		}
	}
}

func drawAll(r *rand.Rand, types []graph.Type) (list []*graph.Tensor) {
	for _, u := range types {
		list = append(list, cases.Arg{Type: u, Lo: -1.5, Hi: 1.5}.Draw(r))
	}
	return list
}

// compiledCases have the sizes of models.
var compiledCases = []hopperCase{
	{name: "causal d128", d: graph.BF16, b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.088, Causal: true}, half: true},
	{name: "full d128", d: graph.BF16, b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.088}},
	{name: "causal d64", d: graph.F16, b: 2, h: 16, group: 1, queries: 8192, keys: 8192, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Causal: true}},
	{name: "mask d128", d: graph.BF16, b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.088, HasMask: true, HasLengths: true}, mask: []int{4096, 4096}},
	{name: "dropout d64", d: graph.BF16, b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Causal: true, Dropout: 0.1}},
	{name: "mask and dropout d64", d: graph.BF16, b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, HasMask: true, Dropout: 0.1}, mask: []int{4, 1, 4096, 4096}},
	{name: "mask and dropout d128", d: graph.BF16, b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 128,
		op:   graph.Attention{Scale: 0.088, Causal: true, HasMask: true, HasLengths: true, Dropout: 0.1},
		mask: []int{4, 1, 4096, 4096}},
	{name: "dropout d128", d: graph.BF16, b: 4, h: 16, group: 1, queries: 4096, keys: 4096, depth: 128, width: 128,
		op: graph.Attention{Scale: 0.088, Dropout: 0.1}},
	{name: "divided d64", d: graph.BF16, b: 1, h: 8, group: 1, queries: 1024, keys: 1024, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Causal: true}, half: true},
	{name: "mask, many keys d64", d: graph.BF16, b: 1, h: 1, group: 1, queries: 4096, keys: 4096, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Causal: true, HasMask: true}, mask: []int{4096, 4096}},
	{name: "dropout, many keys d64", d: graph.F16, b: 1, h: 1, group: 1, queries: 4096, keys: 4096, depth: 64, width: 64,
		op: graph.Attention{Scale: 0.125, Dropout: 0.1}},
	{name: "mask and dropout, divided d128", d: graph.F16, b: 1, h: 8, group: 1, queries: 1024, keys: 1024,
		depth: 128, width: 128,
		op: graph.Attention{Scale: 0.088, HasMask: true, Dropout: 0.1}, mask: []int{1024, 1024}},
}

// TestAttentionHopperCompiled looks at what NVRTC makes of the kernels: products of warpgroups, none of which waits for
// another without need, and nothing spilled.
func TestAttentionHopperCompiled(t *testing.T) {
	compiler := nvrtctest.Open(t)
	for _, c := range compiledCases {
		forward, backward := c.fusions(t)
		for i, f := range []hopperFusion{forward, backward} {
			name := c.name + []string{"", ", gradient"}[i]
			k := f.compile(t, cuda.Config{Chip: cuda.H200})
			wellCompiled(t, compiler, name, cuda.H200, k, "wgmma.mma_async", "cp.async.bulk.tensor.4d", "setmaxnreg.inc")
		}
	}
}

// TestAttentionBlackwellCompiled does so for attention in tensor memory, whose weights are an operand there, as the gradients of
// scores are.
func TestAttentionBlackwellCompiled(t *testing.T) {
	compiler := nvrtctest.Open(t)
	for n, c := range append(tensorCases, compiledCases...) {
		forward, backward := c.fusions(t)
		for i, f := range []hopperFusion{forward, backward} {
			k := f.compile(t, inTensorMemory(148))
			for j, arch := range []int{100, 103} {
				if !long && (n+i)%2 != j {
					continue // a kernel is compiled for one of them
				}
				chip := cuda.ChipOf(arch)
				name := fmt.Sprintf("%s%s for %s", c.name, []string{"", ", gradient"}[i], chip.Target())
				wellCompiled(t, compiler, name, chip, k, "tcgen05.mma", "tcgen05.ld", "tcgen05.st", "cp.async.bulk.tensor.4d",
					"setmaxnreg.inc")
			}
		}
	}
}

// TestAttentionHopperGroups looks at how many warpgroups of queries there are: two where the tiles of three compute much that does
// not count.
func TestAttentionHopperGroups(t *testing.T) {
	for _, c := range []struct {
		queries int
		causal  bool
		groups  int
	}{{1024, true, 2}, {1024, false, 3}, {4096, true, 3}, {200, true, 2}, {190, false, 3}} {
		forward, backward := hopperCase{d: graph.BF16, b: 1, h: 64, group: 1, queries: c.queries, keys: c.queries,
			depth: 64, width: 64, op: graph.Attention{Scale: 0.125, Causal: c.causal}}.fusions(t)
		for i, f := range []hopperFusion{forward, backward} {
			want := fmt.Sprintf("WARPGROUPS = %d,", c.groups)
			if text := f.compile(t, cuda.Config{Chip: cuda.H200}).Generated(); !strings.Contains(text, want) {
				t.Errorf("%+v: %d: no %s in\n%s", c, i, want, text)
			}
		}
	}
}

// TestAttentionHopperDivided looks at where warpgroups divide the keys: where tiles of 64 queries do not fill the chip.
func TestAttentionHopperDivided(t *testing.T) {
	for _, c := range []struct {
		heads, keys, depth int
		op                 graph.Attention
		ways               int
	}{
		{8, 1024, 64, graph.Attention{Causal: true}, 2},
		{8, 1024, 128, graph.Attention{}, 2},
		{8, 1025, 64, graph.Attention{}, 3},
		{8, 1025, 64, graph.Attention{HasMask: true, Dropout: 0.1}, 2},
		{8, 4096, 128, graph.Attention{}, 2},
		{9, 1024, 64, graph.Attention{}, 0},
		{8, 1024, 64, graph.Attention{HasLengths: true}, 0},
	} {
		c.op.Scale = 0.125
		forward, _ := hopperCase{d: graph.BF16, b: 1, h: c.heads, group: 1, queries: 1024, keys: c.keys,
			depth: c.depth, width: c.depth, op: c.op, mask: []int{1024, c.keys}}.fusions(t)
		k := forward.compile(t, cuda.Config{Chip: cuda.H200})
		if divided := strings.Contains(k.Generated(), "DIVIDED = true"); divided != (c.ways > 0) {
			t.Errorf("%+v: divided: %t", c, divided)
		}
		if s := k.Steps[len(k.Steps)-1]; c.ways > 0 && (s.Grid[0] != 16*c.heads || s.Block != 128*(c.ways+1)) {
			t.Errorf("%+v: %d blocks of %d threads", c, s.Grid[0], s.Block)
		}
	}
}

// TestAttentionHopperRefuses checks that what Hopper's kernels, and those in tensor memory, do not serve is left to others.
func TestAttentionHopperRefuses(t *testing.T) {
	base := hopperCases[0]
	h200 := cuda.Config{Chip: cuda.H200}
	for _, c := range []struct {
		name   string
		cfg    cuda.Config
		change func(*hopperCase)
	}{
		{"few keys of f32", h200, func(c *hopperCase) { c.d, c.queries, c.keys = graph.F32, 64, 16 }},
		{"another chip", cuda.Config{Chip: cuda.ChipOf(80)}, func(*hopperCase) {}},
		{"portable", cuda.Config{Chip: cuda.H200, Portable: true}, func(*hopperCase) {}},
		{"tensor memory is off", cuda.Config{Chip: cuda.ChipOf(100)}, func(*hopperCase) {}},
		{"f32 in tensor memory", inTensorMemory(148), func(c *hopperCase) { c.d, c.queries, c.keys = graph.F32, 4096, 4096 }},
		{"one query in tensor memory", inTensorMemory(148), func(c *hopperCase) { c.queries = 1 }},
		{"few queries", h200, func(c *hopperCase) { c.queries = 8 }},
		{"wide heads", h200, func(c *hopperCase) { c.depth = 256 }},
		{"rows not of 16 bytes", h200, func(c *hopperCase) { c.depth = 60 }},
		{"a scale below 0", h200, func(c *hopperCase) { c.op.Scale = -1 }},
	} {
		changed := base
		c.change(&changed)
		forward, backward := changed.fusions(t)
		for _, f := range []hopperFusion{forward, backward} {
			if byHopper(f.compile(t, c.cfg)) {
				t.Errorf("%s: taken by such kernels", c.name)
			}
		}
	}
}

// TestAttentionHopperText shows what is generated beside the templates.
func TestAttentionHopperText(t *testing.T) {
	forward, backward := hopperCases[2].fusions(t)
	for _, c := range []struct {
		f    hopperFusion
		want string
	}{
		{forward, `struct Params {
  TensorMap q;
  TensorMap k;
  TensorMap v;
  int *counter;
  float *r0;
  float *r1;
};

struct Problem {
  typedef bf16 T;
  typedef float Out;
  static constexpr int BATCH = 1, HEADS = 4, GROUP = 2;
  static constexpr int QUERIES = 65, KEYS = 150, DEPTH = 96, WIDTH = 80;
  static constexpr bool CAUSAL = true, TAIL = false;
  static constexpr float SCALE = 0.100000001f;
  static constexpr int WINDOW = 0, WARPGROUPS = 2, KEY_TILE = 128, STAGES = 2, TOGETHER = 4, PARTS = 0;
  static constexpr bool DIVIDED = true;
  static constexpr i64 OUT_BATCH = 0, OUT_HEAD = 80, OUT_ROW = 320;
  static constexpr i64 LSE_BATCH = 0, LSE_HEAD = 65, LSE_ROW = 1;
  static constexpr bool MASKED = false, ADDED = false, DROPPED = false, LENGTHS = false;
  static constexpr float KEEP = 1.0f;
  static constexpr int KEY_WORDS = 12, QUERY_WORDS = 4;
  typedef float Mask;
};

KERNEL(attention, 384, 1) {
  attention_hopper<Problem>(&p.q, &p.k, &p.v, p.counter, p.r0, p.r1,
    AttentionMasks<Problem::Mask>{});
}
attention 8 384 203896 0
0 0 bf16 [96 65 4 1] [192 12480 192] [64 64 1 1]
1 0 bf16 [96 150 2 1] [192 28800 192] [64 128 1 1]
2 0 bf16 [80 150 2 1] [160 24000 160] [64 128 1 1]
`},
		{backward, `struct Params {
  float *base;
  float *delta;
  const bf16 *a3;
  const float *a4;
  const bf16 *a5;
  const float *a6;
  float *r0;
  float *r1;
  float *r2;
  float4 *sums;
  int *flags;
  TensorMap q;
  TensorMap k;
  TensorMap v;
  TensorMap dout;
  int *counter;
};

struct Problem {
  typedef bf16 T;
  typedef bf16 Out;
  static constexpr int BATCH = 1, HEADS = 4, GROUP = 2;
  static constexpr int QUERIES = 65, KEYS = 150, DEPTH = 96, WIDTH = 80;
  static constexpr bool CAUSAL = true, TAIL = false;
  static constexpr float SCALE = 0.100000001f;
  static constexpr int WINDOW = 0, WARPGROUPS = 2, KEY_TILE = 96, STAGES = 2, TOGETHER = 4, PARTS = 0;
  static constexpr bool DIVIDED = false;
  static constexpr int QUERY_TILE = 64, QUERY_STAGES = 3, PADDED = 128;
  static constexpr i64 OUT_BATCH = 0, OUT_HEAD = 80, OUT_ROW = 320;
  static constexpr i64 LSE_BATCH = 0, LSE_HEAD = 65, LSE_ROW = 1;
  static constexpr i64 DOUT_BATCH = 0, DOUT_HEAD = 5200, DOUT_ROW = 80;
  static constexpr i64 DLSE_BATCH = 0, DLSE_HEAD = 65, DLSE_ROW = 1;
  static constexpr i64 DQ_BATCH = 0, DQ_HEAD = 96, DQ_ROW = 384;
  static constexpr i64 DK_BATCH = 0, DK_HEAD = 14400, DK_ROW = 96;
  static constexpr i64 DV_BATCH = 0, DV_HEAD = 12000, DV_ROW = 80;
  static constexpr bool MASKED = false, ADDED = false, DROPPED = false, LENGTHS = false;
  static constexpr float KEEP = 1.0f;
  static constexpr int KEY_WORDS = 12, QUERY_WORDS = 4;
  typedef float Mask;
};

KERNEL(rows, 256, 1) {
  attention_grad_rows<Problem>(p.a3, p.a4, p.a5, p.a6, (bf16 *)nullptr, p.base, p.delta);
}
KERNEL(joint, 512, 1) {
  attention_grad_joint<Problem>(&p.q, &p.k, &p.v, &p.dout, p.base, p.delta, p.counter,
    JointSums{p.sums, p.flags}, p.r1, p.r2, AttentionMasks<Problem::Mask>{});
}
KERNEL(rounded, 128, 1) {
  attention_grad_round<Problem>(JointSums{p.sums, p.flags}, p.r0);
}
rows 32 256 0 0
 0 0 0 48
joint 4 512 231128 0
rounded 8 128 0 0
0 0 bf16 [96 65 4 1] [192 12480 192] [64 64 1 1]
1 0 bf16 [96 150 2 1] [192 28800 192] [64 128 1 1]
2 0 bf16 [80 150 2 1] [160 24000 160] [64 128 1 1]
5 0 bf16 [80 65 4 1] [160 10400 160] [64 64 1 1]
`},
	} {
		k := c.f.compile(t, cuda.Config{Chip: cuda.H200})
		got := k.Source[strings.LastIndex(k.Source, "struct Params {"):]
		for _, s := range k.Steps {
			got += fmt.Sprintln(s.Entry, s.Grid[0], s.Block, s.Shared, s.Bytes)
		}
		for _, p := range k.Steps[len(k.Steps)-1].Params {
			if m := p.Map; m != nil {
				got += fmt.Sprintln(m.Base.Index, m.Base.Byte, m.DType, m.Dims, m.Strides, m.Box)
			}
		}
		if got != c.want {
			t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
		}
	}
}

// TestAttentionPagesShared compiles attention of two sequences over one page.
func TestAttentionPagesShared(t *testing.T) {
	for _, d := range []graph.DType{graph.F64, graph.F32, graph.BF16} {
		sum := graph.F32
		if d == graph.F64 {
			sum = d
		}
		args := rowMajor([]graph.Type{graph.TypeOf(d, 2, 2, 1, 2), graph.TypeOf(d, 1, 2, 7, 2), graph.TypeOf(d, 1, 2, 7, 1),
			graph.TypeOf(graph.I64, 2), graph.TypeOf(graph.I64, 2, 2)})
		op := graph.Attention{Scale: 0.5, Causal: true, HasLengths: true, Page: 7, Tail: true}
		results := rowMajor([]graph.Type{graph.TypeOf(sum, 2, 2, 1, 1), graph.TypeOf(sum, 2, 2, 1)})
		k, err := cuda.Compile(op, args, results, cuda.Config{Chip: cuda.H200})
		if err != nil || len(k.Steps) == 0 {
			t.Errorf("%v: %v", d, err)
		}
	}
}

// TestAttentionSomeGradients computes gradients for queries, and for keys or values or neither, as programs with frozen weights
// need them.
func TestAttentionSomeGradients(t *testing.T) {
	r := rand.New(rand.NewPCG(101, 1))
	op := graph.Attention{Scale: 0.1, Causal: true}
	for _, cfg := range []cuda.Config{{Chip: cuda.H200}, inTensorMemory(2)} {
		var checks []cudatest.Check
		for _, depth := range []int{64, 128} {
			for _, name := range []string{"q", "q and k", "q and v"} {
				backward := fuseHopper(t, func(b *graph.Builder, in hopperInput) {
					d := graph.BF16
					args := []*graph.Node{in(d, 1, 2, 130, depth), in(d, 1, 1, 200, depth), in(d, 1, 1, 200, 64),
						in(d, 1, 2, 130, 64), in(graph.F32, 1, 2, 130), in(d, 1, 2, 130, 64)}
					dq := b.Add(graph.AttentionGrad{Attention: op}, args...)
					b.Output("dq", dq)
					switch name {
					case "q and k":
						b.Output("dk", b.Add(graph.Result{Index: 1}, dq))
					case "q and v":
						b.Output("dv", b.Add(graph.Result{Index: 2}, dq))
					}
				})
				if !byHopper(backward.compile(t, cfg)) {
					t.Errorf("%s of %d is computed by other kernels", name, depth)
				}
				args := drawAll(r, backward.types)
				for i := range args[4].Type.Shape.Elems() {
					args[4].SetFloat(i, 4) // a log-sum-exp
				}
				checks = append(checks, cudatest.Check{Name: fmt.Sprintf("%s of %d for %s", name, depth, cfg.Chip.Name),
					Op: backward.Fusion, Args: args, Compare: nearHalf(graph.BF16), Config: cfg})
			}
		}
		cudatest.Run(t, cudatest.OpenFor(t, cfg.Chip), checks...)
	}
}
