package cuda

import (
	"fmt"
	"math"

	"fusec/graph"
)

// An AttentionRung is one way to compute attention.
type AttentionRung struct {
	Name string
	Doc  string // what it does that the rung below does not
	// Args are the types of its operands, row-major: q, k and v; with pages further the lengths, all of which are the
	// number of keys, and the table, in which page n of sequence s is number s·(keys÷page) + n.
	Args   []graph.Type
	Kernel *Kernel
}

// ladderPage is how many keys a page of the ladder has at most.
const ladderPage = 16

// LadderAttention climbs from the definition of attention to the kernels that programs use, so that each step's worth
// can be measured. Queries are f32 [heads, queries, depth], keys and values [heads, keys, depth], the result is as
// the queries. Scale is 1/√depth. If causal, query i attends keys up to i + keys − queries.
func LadderAttention(heads, queries, keys, depth int, causal bool, cfg Config) ([]AttentionRung, error) {
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: causal}
	args := []graph.Type{graph.TypeOf(graph.F32, heads, queries, depth), graph.TypeOf(graph.F32, heads, keys, depth),
		graph.TypeOf(graph.F32, heads, keys, depth)}
	page := max(min(ladderPage, keys), 1)
	for keys%page != 0 {
		page--
	}
	paged := op
	paged.Page, paged.HasLengths = page, true
	pool := graph.TypeOf(graph.F32, heads*keys/page, 1, page, depth)
	pages := []graph.Type{graph.TypeOf(graph.F32, heads, 1, queries, depth), pool, pool, graph.TypeOf(graph.I32, heads),
		graph.TypeOf(graph.I64, heads, keys/page)}

	plain := func(a *attentionProblem) (*Kernel, error) {
		k, _ := a.forwardSIMT() // which serves all
		return k, nil
	}
	rungs := []AttentionRung{
		{Name: "naive", Args: args,
			Doc: "The definition: all scores stand in memory, then their softmax, then its product with the values."},
		{Name: "blocked", Args: args,
			Doc: "Blocks of keys with the online softmax, so that no score is stored; ordinary multiplications."},
		{Name: "flash", Args: args, Doc: "The same on tensor cores, copies hidden behind products: what programs use."},
		{Name: "paged", Args: pages, Doc: "The same, with keys and values in pages of up to 16 that a table lists."},
	}
	for i, compile := range []func(*attentionProblem) (*Kernel, error){
		naiveAttention, plain, (*attentionProblem).compile, (*attentionProblem).compile,
	} {
		r := &rungs[i]
		of := op
		if r.Name == "paged" {
			of = paged
		}
		a, err := ladderProblem(of, r.Args, cfg)
		if err != nil {
			return nil, err
		}
		if r.Kernel, err = compile(a); err != nil {
			return nil, err
		}
	}
	return rungs, nil
}

// ladderProblem is an attention alone, with row-major operands.
func ladderProblem(op graph.Attention, types []graph.Type, cfg Config) (*attentionProblem, error) {
	b := graph.NewBuilder("ladder")
	var in []*graph.Node
	var args []Operand
	for i, t := range types {
		in = append(in, b.Input(fmt.Sprint("operand ", i), t))
		args = append(args, Operand{DType: t.DType, Layout: graph.Contiguous(t.Shape)})
	}
	b.Output("out", b.Add(op, in...))
	body, err := b.Graph()
	if err != nil {
		return nil, err
	}
	out := Operand{DType: types[0].DType, Layout: graph.Contiguous(body.Outputs[0].Node.Type.Shape)}
	return newAttentionProblem(graph.Fusion{Anchor: graph.AnchorAttention, Body: body}, args, []Operand{out}, cfg)
}

// naiveAttention keeps all scores in memory.
func naiveAttention(a *attentionProblem) (*Kernel, error) {
	const threads = 256
	d := a.dims
	u := newUnit(a.args, a.results)
	a.problem(u)
	rows := a.heads() * d.Queries
	k := &Kernel{Scratch: 4 * int64(rows) * int64(d.Keys)}
	for _, s := range []struct {
		entry  string
		blocks int
	}{
		{"scores", ceilDiv(rows*d.Keys, threads)},
		{"softmax", ceilDiv(rows, threads/32)},
		{"values", ceilDiv(rows*d.Width, threads)},
	} {
		if s.blocks == 0 {
			continue
		}
		u.printf("KERNEL(%s, %d, 1) { naive_%[1]s<Problem>(p); }\n", s.entry, threads)
		k.Steps = append(k.Steps, Step{Entry: s.entry, Grid: [3]int{s.blocks, 1, 1}, Block: threads})
	}
	for i := range k.Steps {
		k.Steps[i].Params = u.fields
	}
	k.Source = u.source("attention", "ladder_attention")
	return k, nil
}
