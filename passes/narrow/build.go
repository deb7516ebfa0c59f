package narrow

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// A converted fusion has operands and results of 16 bits where it had f32.
type converted struct {
	op      graph.Fusion
	inputs  []int // the operands that it still reads
	results []int // of each result of the old fusion: which of the new, or -1 if it is an operand, perhaps through views
}

// launches reports whether there is anything left to compute.
func (k converted) launches() bool { return len(k.op.Body.Outputs) > 0 }

// args are those of the old fusion's operands that the new one reads.
func (k converted) args(old []*graph.Node) []*graph.Node {
	var args []*graph.Node
	for _, i := range k.inputs {
		args = append(args, old[i])
	}
	return args
}

// convert makes the fusion that reads the given operands, and hands out the given results, in 16 bits. f can convert
// the operands.
func (w *narrower) convert(f graph.Fusion, operands, results map[int]bool) converted {
	k := converted{op: f, results: make([]int, len(f.Body.Outputs))}
	k.op.Body = graph.New(f.Body.Name)
	b := graph.Extend(k.op.Body)

	raw := map[*graph.Node]bool{}  // operands of 16 bits, views of them, and casts that come to nothing
	half := map[*graph.Node]bool{} // what is one of these if it is stored in 16 bits
	operand := map[*graph.Node]int{}
	for _, n := range f.Body.Nodes {
		switch op := n.Op.(type) {
		case graph.Input:
			operand[n] = len(operand)
			raw[n] = operands[operand[n]]
			half[n] = raw[n] || n.Type.DType == w.to
		case graph.Cast:
			raw[n] = op.To == w.to && raw[n.Args[0]]
			half[n] = (op.To == w.to || op.To == graph.F32) && half[n.Args[0]]
		default:
			raw[n] = graph.IsView(n.Op) && raw[n.Args[0]]
			half[n] = graph.IsView(n.Op) && half[n.Args[0]]
		}
	}
	live := map[*graph.Node]bool{}
	for i, o := range f.Body.Outputs {
		if raw[o.Node] || results[i] && half[o.Node] {
			k.results[i] = -1
		} else {
			live[o.Node] = true
		}
	}
	for i := len(f.Body.Nodes) - 1; i >= 0; i-- {
		if n := f.Body.Nodes[i]; live[n] {
			for _, a := range n.Args {
				live[a] = true
			}
		}
	}

	with, cast := map[*graph.Node]*graph.Node{}, map[*graph.Node]*graph.Node{}
	convert := func(n *graph.Node, d graph.DType) *graph.Node {
		if n.Type.DType == d {
			return n
		}
		if _, ok := n.Op.(graph.Cast); ok && d == w.to && n.Args[0].Type.DType == d {
			return n.Args[0]
		}
		if cast[n] == nil {
			cast[n] = b.From(n).Add(graph.Cast{To: d}, n)
		}
		return cast[n]
	}
	for _, n := range f.Body.Nodes {
		if !live[n] {
			continue
		}
		var m *graph.Node
		switch n.Op.(type) {
		case graph.Input:
			t := n.Type
			if raw[n] {
				t.DType = w.to
			}
			m = b.Add(graph.Input{Type: t})
			k.inputs = append(k.inputs, operand[n])
		case graph.Cast:
			if raw[n] {
				with[n] = with[n.Args[0]]
				continue
			}
		}
		if m == nil {
			args := make([]*graph.Node, len(n.Args))
			for i, a := range n.Args {
				args[i] = with[a]
				if raw[a] && !raw[n] && a.Type.DType == graph.F32 {
					args[i] = convert(with[a], graph.F32)
				}
			}
			m = b.Add(n.Op, args...)
		}
		m.Like(n)
		if _, ok := n.Op.(graph.Cast); ok && n.Type.DType == w.to && cast[m.Args[0]] == nil {
			cast[m.Args[0]] = m
		}
		with[n] = m
	}
	number, views := map[*graph.Node]int{}, viewsIn(k.op.Body)
	for i, o := range f.Body.Outputs {
		if k.results[i] < 0 {
			continue
		}
		y := with[o.Node]
		if results[i] {
			y = stored(b, o.Node, views, func(n *graph.Node) *graph.Node { return convert(with[n], w.to) })
		}
		at, ok := number[y]
		if !ok {
			at = len(number)
			number[y] = at
			b.Output(fmt.Sprint(at), y)
		}
		k.results[i] = at
	}
	if err := b.Err(); err != nil {
		panic(err) // operands and results that f does not convert
	}
	if err := k.op.Body.Tidy(); err != nil {
		panic(err)
	}
	return k
}

// A view of a value in a body.
type view struct {
	op graph.Op
	of *graph.Node
}

// viewsIn lists the views of a body. Of several that are alike it has the first.
func viewsIn(body *graph.Graph) map[view]*graph.Node {
	views := map[view]*graph.Node{}
	for _, n := range body.Nodes {
		if graph.IsView(n.Op) && views[view{n.Op, n.Args[0]}] == nil {
			views[view{n.Op, n.Args[0]}] = n
		}
	}
	return views
}

// stored is the value n of a body, rounded before the views that it is stored through. Another result may be stored
// through the same views.
func stored(b *graph.Builder, n *graph.Node, views map[view]*graph.Node, round func(*graph.Node) *graph.Node) *graph.Node {
	var chain []*graph.Node
	for ; graph.IsView(n.Op); n = n.Args[0] {
		chain = append(chain, n)
	}
	x := round(n)
	for _, v := range slices.Backward(chain) {
		k := view{v.Op, x}
		if views[k] == nil {
			views[k] = b.From(v).Add(v.Op, x)
		}
		x = views[k]
	}
	return x
}

// rebuild replaces the launches of the chosen values, and those that read them.
func (w *narrower) rebuild() error {
	g := w.c.Graph
	b := graph.Extend(g)
	with := map[*graph.Node]*graph.Node{}
	results := map[*graph.Node][]*graph.Node{} // of fusions that were replaced
	for _, n := range slices.Clone(g.Nodes) {
		args := slices.Clone(n.Args)
		operands := map[int]bool{}
		for i, a := range n.Args {
			if k := with[a]; k != nil {
				args[i] = k
				if k.Type != a.Type {
					operands[i] = true
				}
			}
		}
		switch op := n.Op.(type) {
		case graph.Fusion:
			narrow := w.resultsOf(n)
			if len(operands)+len(narrow) > 0 {
				results[n] = w.make(b.From(n), n, w.convert(op, operands, narrow), args)
				with[n] = results[n][0]
				w.c.Became(n, with[n])
				continue
			}
		case graph.Result:
			if made := results[n.Args[0]]; made != nil {
				with[n] = made[op.Index]
				if with[n].Name == "" {
					with[n].Name = n.Name
				}
				continue
			}
		}
		if moves(n.Op) && operands[0] {
			with[n] = b.From(n).Add(n.Op, args...)
			with[n].Name = n.Name
			continue
		}
		n.Args = args
	}
	if err := b.Err(); err != nil {
		return err
	}
	g.Replace(with)
	if err := g.Tidy(); err != nil {
		return err
	}
	for _, n := range g.Nodes {
		if w.narrow[n] {
			return fmt.Errorf("%s was to be kept in %v", n.Where(), w.to)
		}
	}
	return nil
}

// resultsOf are the chosen ones of a fusion's results.
func (w *narrower) resultsOf(n *graph.Node) map[int]bool {
	chosen := map[int]bool{}
	if w.narrow[n] {
		chosen[0] = true
	}
	for _, u := range w.uses.Readers(n) {
		if r, ok := u.Op.(graph.Result); ok && w.narrow[u] {
			chosen[r.Index] = true
		}
	}
	return chosen
}

// make adds a converted fusion to the graph in place of n, and returns the new value of each of n's results.
func (w *narrower) make(b *graph.Builder, n *graph.Node, k converted, args []*graph.Node) []*graph.Node {
	results := make([]*graph.Node, len(k.results))
	var made []*graph.Node // the new results
	if k.launches() {
		m := b.Add(k.op, k.args(args)...)
		m.Name = n.Name
		made = append(made, m)
		for i := 1; i < len(k.op.Body.Outputs); i++ {
			made = append(made, b.Add(graph.Result{Index: i}, m))
		}
	}
	body := n.Op.(graph.Fusion).Body
	values := map[*graph.Node]*graph.Node{} // of the body, outside it
	for _, x := range body.Nodes {
		if _, ok := x.Op.(graph.Input); ok {
			values[x] = args[len(values)]
		}
	}
	for i, at := range k.results {
		if at >= 0 {
			results[i] = made[at]
		} else {
			results[i] = shown(b, body.Outputs[i].Node, values)
		}
		if old := w.result(n, i); at >= 0 && w.narrow[old] {
			w.c.Match("narrow", trace.Approximate(w.to.Epsilon()), w.to.String(), results[i], old)
		}
	}
	return results
}

// result is the node of result i of n, if it is in the graph.
func (w *narrower) result(n *graph.Node, i int) *graph.Node {
	if i == 0 {
		return n
	}
	for _, u := range w.uses.Readers(n) {
		if u.Op == graph.Op(graph.Result{Index: i}) {
			return u
		}
	}
	return nil
}

// shown is value n of a body as views of an operand. Casts on the way change nothing. made has the operands of the
// body's inputs, and collects the values on the way.
func shown(b *graph.Builder, n *graph.Node, made map[*graph.Node]*graph.Node) *graph.Node {
	for todo := []*graph.Node{n}; len(todo) > 0; {
		m := todo[len(todo)-1]
		args := make([]*graph.Node, len(m.Args))
		at := len(todo)
		for i, a := range slices.Backward(m.Args) {
			if args[i] = made[a]; args[i] == nil {
				todo = append(todo, a)
			}
		}
		if len(todo) > at {
			continue
		}
		todo = todo[:at-1]
		if _, cast := m.Op.(graph.Cast); cast {
			made[m] = args[0]
		} else if made[m] == nil {
			made[m] = b.Add(m.Op, args...)
		}
	}
	return made[n]
}
