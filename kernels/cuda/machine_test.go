package cuda_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// machineChips are what kernels are compiled for: the oldest with all instructions of mma_sync, and Hopper.
var machineChips = []cuda.Chip{cuda.ChipOf(80), cuda.H200}

// A machineList collects fusions whose machine code is looked at. Their operands have types and no elements.
type machineList struct {
	t      *testing.T
	whole  bool // every form for every chip
	form   int
	checks [2][]cudatest.Check // by chip
}

// next begins a form of a template: a size, or a property. Forms are compiled for one chip, for the other and for none in turn, so
// that each template is compiled for both, in about a third of the time.
func (l *machineList) next() { l.form++ }

func (l *machineList) add(name string, p cuda.Precision, op graph.Op, types []graph.Type) {
	c := cudatest.Check{Name: name, Op: op, Config: cuda.Config{Precision: p}}
	for _, u := range types {
		c.Args = append(c.Args, &graph.Tensor{Type: u})
	}
	for i := range l.checks {
		if l.whole || l.form%(len(l.checks)+1) == i {
			l.checks[i] = append(l.checks[i], c)
		}
	}
}

// both is add for every chip.
func (l *machineList) both(name string, p cuda.Precision, op graph.Op, types []graph.Type) {
	whole := l.whole
	l.whole = true
	l.add(name, p, op, types)
	l.whole = whole
}

// products adds linear layers of a type, of sizes for which each tile is chosen, and all transposes, as forward and
// backward passes have them: with a bias and GELU, with a residual, with column sums.
func (l *machineList) products(d graph.DType, p cuda.Precision) {
	l.t.Helper()
	for i, s := range [][3]int{{8192, 4096, 1024}, {1024, 768, 768}, {512, 1024, 1024}, {256, 256, 512}, {16, 512, 4096},
		{1030, 771, 259}} {
		for trans := range 4 {
			if (i > 0 || d == graph.F16) && trans != i%4 {
				continue
			}
			l.next()
			f, types := fused(l.t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
				m, n, k := s[0], s[1], s[2]
				x, w := [2]int{m, k}, [2]int{k, n}
				if trans&1 != 0 {
					x = [2]int{k, m}
				}
				if trans&2 != 0 {
					w = [2]int{n, k}
				}
				y := b.MatMul(in(d, x[:]...), in(d, w[:]...), trans&1 != 0, trans&2 != 0)
				v := b.Binary(graph.Add, y, b.Broadcast(in(y.Type.DType, n), y.Type.Shape))
				if i%2 == 0 {
					v = b.Unary(graph.GeluTanh, v)
				} else {
					v = b.Binary(graph.Add, v, in(y.Type.DType, m, n))
				}
				b.Output("sums", b.Reduce(graph.Sum, v, false, 0))
				if d != v.Type.DType {
					v = b.CastTo(d, v)
				}
				b.Output("y", v)
			})
			l.add(fmt.Sprint("product ", d, p, s, trans), p, f, types)
		}
	}
}

// attentions adds attentions and their gradients of a type: one head size, or all head sizes and each of the other
// properties.
func (l *machineList) attentions(d graph.DType, p cuda.Precision, all bool) {
	type form struct {
		op                graph.Attention
		queries, kv, head int
	}
	var forms []form
	heads := []int{64}
	if all {
		heads = []int{32, 64, 96, 128, 192, 256}
	}
	for _, head := range heads {
		forms = append(forms, form{graph.Attention{Causal: head%64 == 0}, 1024, 8, head})
	}
	if all {
		forms = append(forms,
			form{graph.Attention{}, 1024, 8, 128},
			form{graph.Attention{Causal: true, Window: 256}, 1024, 8, 64},
			form{graph.Attention{HasMask: true}, 1024, 2, 64},
			form{graph.Attention{Dropout: 0.1, Causal: true}, 1024, 8, 64},
			form{graph.Attention{HasLengths: true, Tail: true, Causal: true}, 1, 2, 128})
	}
	for _, f := range forms {
		l.next()
		f.op.Scale = 0.125
		q, kv := graph.TypeOf(d, 2, 8, f.queries, f.head), graph.TypeOf(d, 2, f.kv, 1024, f.head)
		args := []graph.Type{q, kv, kv}
		if f.op.HasMask {
			args = append(args, graph.TypeOf(graph.Bool, 2, 1, f.queries, 1024))
		}
		if f.op.HasLengths {
			args = append(args, graph.TypeOf(graph.I32, 2))
		}
		if f.op.Dropout > 0 {
			args = append(args, graph.TypeOf(graph.I64))
		}
		name := fmt.Sprintf("attention %v %v %+v", d, f.head, f.op)
		l.attention(name, p, f.op, args)
		results, err := graph.InfoOf(f.op).Infer(f.op, args)
		if err != nil {
			l.t.Fatal(err)
		}
		back := append(append([]graph.Type(nil), args...), graph.Type{DType: d, Shape: results[0].Shape}, results[1],
			graph.Type{DType: d, Shape: results[0].Shape})
		l.attention("gradient of "+name, p, graph.AttentionGrad{Attention: f.op}, back)
	}
	l.next()
	pages := graph.TypeOf(d, 64, 2, 64, 128)
	l.attention(fmt.Sprintf("attention %v by pages", d), p, graph.Attention{Scale: 0.1, HasLengths: true, Page: 64},
		[]graph.Type{graph.TypeOf(d, 4, 8, 1, 128), pages, pages, graph.TypeOf(graph.I32, 4), graph.TypeOf(graph.I64, 4, 16)})
}

// storedKeys adds attentions from queries of a type to keys and values of 8 bits: those of a step, of a prompt, and in pages.
func (l *machineList) storedKeys(d graph.DType, p cuda.Precision) {
	forms := []struct{ queries, heads, head, page int }{
		{1, 8, 128, 0}, {1, 32, 64, 64}, {1024, 16, 128, 16}, {1024, 8, 64, 0}, {1, 16, 256, 0}, {64, 8, 256, 0}, {4, 8, 96, 0},
	}
	if !l.whole {
		forms = forms[:3]
	}
	for _, f := range forms {
		l.next()
		op := graph.Attention{Scale: 0.1, Causal: true, HasLengths: true, Tail: true, HasScales: true, Page: f.page}
		rows := []int{2, 2, 1024}
		if f.page > 0 {
			rows = []int{64, 2, f.page}
		}
		kv := graph.TypeOf(graph.I8, append(rows[:3:3], f.head)...)
		scale := graph.TypeOf(graph.F32, append(rows[:3:3], 1)...)
		args := []graph.Type{graph.TypeOf(d, 2, f.heads, f.queries, f.head), kv, kv, graph.TypeOf(graph.I32, 2)}
		if f.page > 0 {
			args = append(args, graph.TypeOf(graph.I64, 2, 1024/f.page))
		}
		l.attention(fmt.Sprintf("attention %v to 8 bits %+v", d, f), p, op, append(args, scale, scale))
	}
}

func (l *machineList) attention(name string, p cuda.Precision, op graph.Op, types []graph.Type) {
	var args []*graph.Tensor
	for _, u := range types {
		args = append(args, &graph.Tensor{Type: u})
	}
	l.add(name, p, attending(l.t, op, args), types)
}

// convolutions adds layers of ResNet and MobileNet in NHWC, with a bias and a rectifier, and gradients of them.
func (l *machineList) convolutions(d graph.DType, p cuda.Precision) {
	l.t.Helper()
	for _, s := range []struct{ size, channels, columns, kernel, stride, groups int }{
		{224, 3, 64, 7, 2, 1}, {56, 64, 128, 3, 2, 1}, {7, 512, 512, 3, 1, 1}, {14, 256, 512, 1, 2, 1}, {112, 32, 32, 3, 1, 32},
	} {
		pad := s.kernel / 2
		x := graph.TypeOf(d, 64, s.size, s.size, s.channels)
		w := graph.TypeOf(d, s.kernel, s.kernel, s.channels/s.groups, s.columns)
		c := graph.Conv2D{Stride: graph.IntsOf(s.stride, s.stride), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(pad, pad, pad, pad),
			Groups: s.groups, Layout: graph.NHWC}
		var y graph.Type
		f, types := fused(l.t, graph.AnchorConv, func(b *graph.Builder, in inputs) {
			v := b.Add(c, in(d, x.Shape.Slice()...), in(d, w.Shape.Slice()...))
			y = v.Type
			v = b.Binary(graph.Add, v, b.Broadcast(in(y.DType, s.columns), y.Shape))
			v = b.Unary(graph.Relu, v)
			if d != y.DType {
				v = b.CastTo(d, v)
			}
			b.Output("y", v)
		})
		name := fmt.Sprintf("%v %v %+v", d, p, s)
		l.next()
		l.add("convolution "+name, p, f, types)
		y.DType = d
		l.add("its transpose "+name, p, graph.Conv2DTranspose{Stride: c.Stride, Dilation: c.Dilation, Pad: c.Pad, Groups: s.groups,
			H: s.size, W: s.size, Layout: graph.NHWC}, []graph.Type{y, w})
		l.add("its filters' gradient "+name, p, graph.Conv2DFilterGrad{Stride: c.Stride, Dilation: c.Dilation, Pad: c.Pad,
			Groups: s.groups, KH: s.kernel, KW: s.kernel, Layout: graph.NHWC}, []graph.Type{x, y})
	}
}

// mixtures adds a mixture of experts of a type and its gradient.
func (l *machineList) mixtures(d graph.DType, p cuda.Precision) {
	op := graph.MoE{Experts: 8, Activation: graph.Silu, Gated: true, Stacked: true, TopK: 2}
	dims := graph.MoEDims{Width: 512, Hidden: 1024, Result: 512}
	acc := d.Accumulator()
	for _, grad := range []bool{false, true} {
		f, types := fused(l.t, graph.AnchorMoE, func(b *graph.Builder, in inputs) {
			args := []*graph.Node{in(d, 2048, dims.Width), in(acc, 2048, op.Experts)}
			for _, w := range op.Weights() {
				args = append(args, in(d, op.WeightShape(dims, w).Slice()...))
			}
			if !grad {
				b.Output("y", b.Add(op, args...))
				return
			}
			dx := b.Add(graph.MoEGrad(op), append(args, in(d, 2048, dims.Result))...)
			b.Output("dx", dx)
			for j := 1; j < len(args); j++ {
				b.Output(fmt.Sprint("d", j), b.Add(graph.Result{Index: j}, dx))
			}
		})
		l.both(fmt.Sprintf("mixture %v %v, gradient: %t", d, p, grad), p, f, types)
	}
}

// forms adds each form of the templates of contractions and rows, in every precision.
func (l *machineList) forms() {
	l.t.Helper()
	for _, c := range []struct {
		d     graph.DType
		p     cuda.Precision
		first int // whose turn is first: types that share templates begin with other chips
	}{{graph.F32, cuda.F32, 0}, {graph.F32, cuda.TF32, 1}, {graph.BF16, cuda.BF16, 1}, {graph.F16, cuda.F16, 0}} {
		l.form = c.first
		l.products(c.d, c.p)
		l.form = c.first
		l.convolutions(c.d, c.p)
		l.form = c.first
		l.attentions(c.d, c.p, l.whole || c.p == cuda.F32 || c.p == cuda.BF16)
		if l.whole || c.p == cuda.F32 || c.p == cuda.BF16 {
			l.form = c.first
			l.storedKeys(c.d, c.p)
		}
		if l.whole || c.d != graph.F16 {
			l.mixtures(c.d, c.p)
		}
	}
	for _, s := range [][]int{{4096, 256}, {4096, 4096}, {64, 50257}, {8, 1 << 20}} {
		x := graph.TypeOf(graph.F32, s...)
		w := graph.TypeOf(graph.F32, s[1])
		l.both(fmt.Sprint("softmax ", s), cuda.F32, graph.Softmax{Axis: 1}, []graph.Type{x})
		l.both(fmt.Sprint("layer norm ", s), cuda.F32, graph.LayerNorm{Eps: 1e-5}, []graph.Type{x, w, w})
		l.both(fmt.Sprint("rms norm ", s), cuda.F32, graph.RMSNorm{Eps: 1e-5}, []graph.Type{x, w})
	}
	op, types := cached(l.t, graph.F32, graph.BF16, 1, 1, 32, 8, 128, 1024, graph.RoPE{Base: 5e5}, false)
	l.both("moves", cuda.BF16, op, types)
}

// others adds the kernels of all operations that stand alone and of bodies of every form, as small as the other tests have
// them, so that no template is left out.
func (l *machineList) others() {
	for _, list := range [][]cases.Case{cases.All(graph.F32), cases.All(graph.F64), cases.Half(graph.BF16), cases.Half(graph.F16),
		cases.Integers(graph.I8), cases.Integers(graph.U64)} {
		for _, c := range list {
			if !standsAlone(c.Op) {
				continue
			}
			var types []graph.Type
			for _, a := range c.Args {
				types = append(types, a.Type)
			}
			l.add(c.Name, cuda.F32, c.Op, types)
		}
	}
	for _, f := range cases.Fusions() {
		op, types, err := f.Op()
		if err != nil {
			l.t.Fatal(err)
		}
		l.add(f.Name, cuda.F32, op, types)
	}
}

// longChips are those of $FUSEC_MACHINE_CODE, for the whole matrix.
func longChips(t *testing.T) (chips []cuda.Chip) {
	for _, name := range strings.Fields(os.Getenv(cudatest.Variable)) {
		c, err := cuda.ChipNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		chips = append(chips, c)
	}
	if chips == nil {
		t.Fatalf("%s names no chips", cudatest.Variable)
	}
	return chips
}

// TestMachineCode compiles kernels of the sizes that models have, which no emulator could run: two forms of three for a chip. With
// $FUSEC_LONG it compiles every form and every operation, in every precision, for each of the chips in $FUSEC_MACHINE_CODE,
// as make machine-code-long does.
func TestMachineCode(t *testing.T) {
	if testing.Short() {
		t.Skip("under -short: compiling all forms takes minutes, and make test does it")
	}
	l := &machineList{t: t, whole: long}
	l.forms()
	if l.whole {
		l.others()
		// With products in tensor memory, too: where a kernel is the same it is compiled once.
		list := slices.Clone(l.checks[0])
		for _, c := range l.checks[0] {
			c.Config.TensorMemory = true
			list = append(list, c)
		}
		for _, chip := range longChips(t) {
			t.Run(chip.Target(), func(t *testing.T) {
				for some := range slices.Chunk(list, 50) { // so that -v shows how far it is
					t.Run(some[0].Name, func(t *testing.T) {
						cudatest.MachineCode(t, []cuda.Chip{chip}, []cuda.Chip{chip}, some...)
					})
				}
			})
		}
		return
	}
	for i, made := range machineChips {
		cudatest.MachineCode(t, []cuda.Chip{made}, machineChips, l.checks[i]...)
	}
}

// TestMachinePanels is [TestMachineCode] of products of few rows by weights in deep panels, with the sizes of a decoder layer: of
// whole slices, with clusters, and of parts of slices.
func TestMachinePanels(t *testing.T) {
	l := &machineList{t: t, whole: true}
	for _, d := range []graph.DType{graph.BF16, graph.I8, graph.I4, graph.F8E4M3} {
		for _, s := range [][3]int{{1, 14336, 4096}, {4, 4096, 14336}, {2, 1021, 4100}} {
			f, types := fused(t, graph.AnchorMatMul, func(b *graph.Builder, in inputs) {
				op, args := graph.PanelMatMul{Columns: s[1], Deep: true}, []*graph.Node{in(graph.BF16, s[0], s[2])}
				args = append(args, in(d, graph.DeepShape(d, s[2], s[1]).Slice()...))
				if d == graph.I4 {
					op.Block = 128
					args = append(args, in(graph.F32, op.Blocks(s[2]), s[1]))
				}
				y := b.Add(op, args...)
				b.Output("y", b.CastTo(graph.BF16, b.Unary(graph.Silu, y)))
			})
			l.add(fmt.Sprint("packed ", d, s), cuda.BF16, f, types)
		}
	}
	cudatest.MachineCode(t, machineChips, machineChips, l.checks[0]...)
}

// TestMachineBlackwell is [TestMachineCode] of attention whose tile has fewer keys on sm_120, for that chip.
func TestMachineBlackwell(t *testing.T) {
	l := &machineList{t: t, whole: true}
	x := graph.TypeOf(graph.BF16, 2, 8, 1024, 128)
	for _, causal := range []bool{false, true} {
		l.attention(fmt.Sprint("attention, causal: ", causal), cuda.BF16, graph.Attention{Scale: 0.125, Causal: causal},
			[]graph.Type{x, x, x})
	}
	chips := []cuda.Chip{cuda.ChipOf(120)}
	cudatest.MachineCode(t, chips, chips, l.checks[0]...)
}

// TestSharedMemory: no form needs more shared memory than the chip that it is made for has.
func TestSharedMemory(t *testing.T) {
	l := &machineList{t: t, whole: true}
	l.forms()
	for _, arch := range []int{70, 75, 80, 90, 100} { // the others have as much as one of these, or more
		chip := cuda.ChipOf(arch)
		for _, c := range l.checks[0] {
			var args, results []cuda.Operand
			var types []graph.Type
			for _, a := range c.Args {
				args, types = append(args, cuda.Operand{DType: a.Type.DType, Layout: graph.Contiguous(a.Type.Shape)}), append(types, a.Type)
			}
			out, err := graph.InfoOf(c.Op).Infer(c.Op, types)
			if err != nil {
				t.Fatal(err)
			}
			for _, u := range out {
				results = append(results, cuda.Operand{DType: u.DType, Layout: graph.Contiguous(u.Shape)})
			}
			cfg := c.Config
			cfg.Chip, cfg.TensorMemory = chip, true
			k, err := cuda.Compile(c.Op, args, results, cfg)
			if err != nil {
				t.Errorf("%s for %s: %v", c.Name, chip.Target(), err)
				continue
			}
			for _, s := range k.Steps {
				if s.Shared > chip.Shared {
					t.Errorf("%s for %s: entry %s needs %d bytes of shared memory, of %d", c.Name, chip.Target(), s.Entry, s.Shared, chip.Shared)
				}
			}
		}
	}
}
