package cuda_test

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/cuda"
)

// mixtureStep is a mixture of experts, of which a token may go to some, and gradients for x, the gates and all weights.
func mixtureStep(t testing.TB, op graph.MoE, elem graph.DType, tokens int, d graph.MoEDims) *graph.Graph {
	t.Helper()
	b := graph.NewBuilder("mixture")
	acc := elem.Accumulator()
	x := b.Param("x", graph.TypeOf(elem, tokens, d.Width))
	gates := b.Unary(graph.Relu, b.Param("gates", graph.TypeOf(acc, tokens, op.Experts)))
	args, wanted := []*graph.Node{x, gates}, []*graph.Node{x, gates}
	for _, w := range op.Weights() {
		of := elem
		if w.Bias() {
			of = acc
		}
		p := b.Param(w.String(), graph.Type{DType: of, Shape: op.WeightShape(d, w)})
		args, wanted = append(args, p), append(wanted, p)
	}
	y := b.Add(op, args...)
	b.Output("y", y)
	loss := b.Reduce(graph.Sum, b.Unary(graph.Square, y), false, 0, 1)
	b.Output("loss", loss)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	ds, err := graph.Gradients(g, loss, wanted)
	if err != nil {
		t.Fatal(err)
	}
	b = graph.Extend(g)
	for i, dx := range ds {
		b.Output(fmt.Sprint("d", i), dx)
	}
	if g, err = b.Graph(); err != nil {
		t.Fatal(err)
	}
	return g
}

// TestHidden computes mixtures and their gradients with hidden values that are kept, and without: the same bits, without the
// products that make them again.
func TestHidden(t *testing.T) {
	for _, c := range []struct {
		op     graph.MoE
		elem   graph.DType
		tokens int
		dims   graph.MoEDims
	}{
		{graph.MoE{Experts: 3, Activation: graph.GeluTanh, Stacked: true}, graph.F32, 37,
			graph.MoEDims{Width: 12, Hidden: 20, Result: 8}},
		{graph.MoE{Experts: 2, Activation: graph.Silu, Gated: true, Bias: true, Stacked: true}, graph.F64, 9,
			graph.MoEDims{Width: 5, Hidden: 7, Result: 11}},
		{graph.MoE{Experts: 2, Activation: graph.GeluErf, Bias: true, Stacked: true}, graph.BF16, 230,
			graph.MoEDims{Width: 72, Hidden: 136, Result: 64}},
		{graph.MoE{Experts: 2, Activation: graph.Silu, Gated: true, Stacked: true}, graph.BF16, 230,
			graph.MoEDims{Width: 64, Hidden: 128, Result: 72}},
	} {
		g := mixtureStep(t, c.op, c.elem, c.tokens, c.dims)
		in := values(g)
		outputs := func(opts ...cuda.Option) (list []*graph.Tensor, entries []string) {
			e, p := compiled(t, g, in, opts...)
			run(t, e)
			if err := e.Sync(); err != nil {
				t.Fatal(err)
			}
			for _, o := range p.Outputs {
				list = append(list, e.Output(o.Buffer).Clone())
			}
			return list, entriesOf(p, opts...)
		}
		again, steps := outputs(cuda.Hidden(0))
		if gathers := count(steps, "gather"); gathers > 0 != c.elem.Is16() {
			t.Errorf("%v %+v: the copy engine takes the rows of %d launches", c.elem, c.op, gathers)
		}
		if count(steps, "list") != 2 {
			t.Errorf("%v %+v: without hidden values that are kept, the steps are %v", c.elem, c.op, steps)
		}
		for _, opt := range []cuda.Option{nil, cuda.Apart(), cuda.Branches(0)} {
			kept, steps := outputs(opt)
			if count(steps, "list") != 1 {
				t.Errorf("%v %+v: the steps are %v", c.elem, c.op, steps)
			}
			for i := range again {
				if !again[i].Equal(kept[i]) {
					t.Errorf("%v %+v: output %d differs", c.elem, c.op, i)
				}
			}
		}
		p := check(t, g, in)
		told(t, p, "keeps its hidden values for its gradient: ")
		told(t, p, "of the 9 that cuda.Hidden allows in all, 9 are left", cuda.Hidden(9))
		p.Frugal = true
		told(t, p, "computes hidden values again: the program has a budget of memory")
		if steps := entriesOf(p); count(steps, "list") != 2 {
			t.Errorf("%v %+v: within a budget, the steps are %v", c.elem, c.op, steps)
		}
	}
}

// told fails the test unless the trace of a program has a note about hidden values.
func told(t *testing.T, p *lowering.Program, text string, opts ...cuda.Option) {
	t.Helper()
	tr := &trace.Trace{Stages: make([]trace.Stage, 1)}
	cuda.New(opts...).Describe(tr, p)
	if notes := tr.Stages[0].Notes; len(notes) != 1 || !strings.Contains(notes[0].Text, text) {
		t.Errorf("the notes are %+v, want one with %q", notes, text)
	}
}

// entriesOf lists the steps of a program.
func entriesOf(p *lowering.Program, opts ...cuda.Option) (entries []string) {
	for _, k := range cuda.New(opts...).Kernels(p) {
		for _, s := range k.Steps {
			entries = append(entries, s.Entry)
		}
	}
	return entries
}

// count is how often a text is in a list.
func count(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}
