// Package cases holds examples of every operation of the table: every attribute, odd sizes, axes of size 1, scalar
// operands. Tests of the reference, of gradients and of the targets run over them, so that none forgets an operation.
package cases

import (
	"fmt"
	"math/rand/v2"

	"fusec/graph"
)

// Case is one operation with operands that fit it.
type Case struct {
	Name string
	Op   graph.Op
	Args []Arg
	// Results are the types that the type rule has to give, where the example states them.
	Results []graph.Type
	// Refusal is what the type rule has to say of the operands, if it refuses them.
	Refusal string
}

// Arg is an operand: a type, and the range [Lo,Hi) that its values are drawn from. Integers are drawn from it too;
// Bools are true half of the time. Half of the elements of a Sparse operand are zero instead.
type Arg struct {
	Type   graph.Type
	Lo, Hi float64
	Sparse bool
	Wide   bool // integers of the whole range of the type
}

// Graph makes a graph of the one operation: operands x0, x1, … and an output y0, y1, … for each result.
func (c Case) Graph() (*graph.Graph, error) {
	b := graph.NewBuilder(c.Name)
	args := make([]*graph.Node, len(c.Args))
	for i, a := range c.Args {
		args[i] = b.Input(c.Names()[i], a.Type)
	}
	y := b.Add(c.Op, args...)
	if graph.IsSource(c.Op) {
		b.Named(y, "source")
	}
	b.Output("y0", y)
	for i := 1; i < y.Results(); i++ {
		b.Output(fmt.Sprintf("y%d", i), b.Add(graph.Result{Index: i}, y))
	}
	return b.Graph()
}

// Names are those of the operands in the graph.
func (c Case) Names() []string {
	names := make([]string, len(c.Args))
	for i := range names {
		names[i] = fmt.Sprintf("x%d", i)
	}
	return names
}

// Inputs draws values for the graph's sources.
func (c Case) Inputs(r *rand.Rand) map[string]*graph.Tensor {
	in := make(map[string]*graph.Tensor, len(c.Args))
	for i, a := range c.Args {
		in[c.Names()[i]] = a.Draw(r)
	}
	if graph.IsSource(c.Op) {
		info := graph.InfoOf(c.Op)
		if t, err := info.Infer(c.Op, nil); err == nil {
			in["source"] = Arg{Type: t[0], Lo: -2, Hi: 2}.Draw(r)
		}
	}
	return in
}

// Draw makes a tensor of the operand's type and range.
func (a Arg) Draw(r *rand.Rand) *graph.Tensor {
	t := graph.NewTensor(a.Type)
	for i := range a.Type.Shape.Elems() {
		switch {
		case a.Sparse && r.IntN(2) == 0:
		case a.Type.DType == graph.Bool:
			t.SetFloat(i, float64(r.IntN(2)))
		case a.Wide:
			t.SetInt(i, int64(r.Uint64()))
		case a.Type.DType.IsInt():
			t.SetFloat(i, a.Lo+float64(r.IntN(int(a.Hi-a.Lo))))
		default:
			t.SetFloat(i, a.Lo+(a.Hi-a.Lo)*r.Float64())
		}
	}
	return t
}

// All lists the examples, with floats of type d.
func All(d graph.DType) []Case { return made(d).cases }

// Refused lists the examples that a type rule refuses.
func Refused() []Case { return made(graph.F32).refused }

func made(d graph.DType) *maker {
	m := &maker{d: d}
	m.sources()
	m.elementwise()
	m.contraction()
	m.reduction()
	m.movement()
	m.indexing()
	m.random()
	m.composites()
	m.attention()
	m.rope()
	m.attentionGrad()
	m.squaredNorm()
	m.recurrences()
	m.routing()
	m.moe()
	m.quantised()
	m.structure()
	return m
}

// maker collects cases.
type maker struct {
	d              graph.DType
	cases, refused []Case
}

func (m *maker) add(name string, op graph.Op, args ...Arg) *Case {
	m.cases = append(m.cases, Case{Name: op.OpName() + "/" + name, Op: op, Args: args})
	return &m.cases[len(m.cases)-1]
}

// gives states the types of the results.
func (c *Case) gives(results ...Arg) {
	for _, r := range results {
		c.Results = append(c.Results, r.Type)
	}
}

// refuse adds an example that the type rule refuses with some words.
func (m *maker) refuse(words string, op graph.Op, args ...Arg) {
	m.refused = append(m.refused, Case{Name: op.OpName() + "/" + words, Op: op, Args: args, Refusal: words})
}

// real is a float operand in [−2,2).
func (m *maker) real(dims ...int) Arg { return m.between(-2, 2, dims...) }

// between is a float operand in [lo,hi).
func (m *maker) between(lo, hi float64, dims ...int) Arg {
	return Arg{Type: graph.TypeOf(m.d, dims...), Lo: lo, Hi: hi}
}

// within is a float operand in the range that a function's row names.
func (m *maker) within(lo, hi float64, dims ...int) Arg {
	if lo == 0 && hi == 0 {
		return m.real(dims...)
	}
	return m.between(lo, hi, dims...)
}

// integer is an operand in [lo,hi).
func integer(d graph.DType, lo, hi int, dims ...int) Arg {
	return Arg{Type: graph.TypeOf(d, dims...), Lo: float64(lo), Hi: float64(hi)}
}

// boolean is a Bool operand.
func boolean(dims ...int) Arg { return Arg{Type: graph.TypeOf(graph.Bool, dims...)} }
