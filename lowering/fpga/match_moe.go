package fpga

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/graph/body"
)

// experts is a mixture of experts with its router.
type experts struct {
	op     graph.MoE
	dims   graph.MoEDims
	topK   int
	renorm bool   // gates are shared out among the chosen alone
	logits matrix // the router's input
	// The weights of each expert, nil where there are none.
	weights [6][]source
	slots   *value   // the experts' results, for each token and rank
	chosen  [][]bool // whether each token goes to each expert, once the logits are known

	pre, acted, up, hidden calibre // of w1's product, after the activation, of w3's product, and of w2's operand
	act                    activation

	codes moeCodes
}

// moeCodes are the quantised values of a mixture, in addition to its task's.
type moeCodes struct {
	of                      [6][]codes // weights and records, by weight and expert
	table, product, combine *blob
	preZero, hiddenZero     int8
}

// matchMoE makes a task of a mixture of experts and of the launches that make its gates.
func (m *partition) matchMoE(i int, f graph.Fusion) ([]*task, error) {
	l, p, err := m.lowered(i, f)
	if err != nil {
		return nil, err
	}
	n := p.Anchor
	op := n.Op.(graph.MoE)
	switch {
	case !m.cfg.Router():
		return nil, fmt.Errorf("the overlay %s has no router", m.cfg.Name)
	case op.Experts > m.cfg.Experts:
		return nil, fmt.Errorf("%d experts: the overlay %s takes %d", op.Experts, m.cfg.Name, m.cfg.Experts)
	case len(l.Results) > 1:
		return nil, errors.New("a mixture that hands out the experts' loads")
	case n != f.Body.Outputs[0].Node:
		return nil, errors.New("a mixture whose result is seen through a view")
	}
	types, err := floats("a mixture", n.Args)
	if err != nil {
		return nil, err
	}
	e := &experts{op: op, dims: op.Dims(types)}
	d := e.dims
	if d.Tokens == 0 || d.Width == 0 || d.Hidden == 0 || d.Result == 0 {
		return nil, errors.New("a mixture without elements")
	}
	x, err := matrixOf(m.value(l.Args[p.Operands[0].Arg].Buffer), p.Operands[0].Layout, d.Tokens, d.Width)
	if err != nil {
		return nil, err
	}
	if _, _, err = x.place(m.cfg.WordBytes); err != nil {
		return nil, err
	}
	for _, w := range op.Weights() {
		for k := range op.Experts {
			o := p.Operands[op.Weight(w, k)]
			buffer := l.Args[o.Arg].Buffer
			if !m.constant(buffer) {
				return nil, fmt.Errorf("%v of expert %d is computed: the overlay takes weights that the host knows",
					w, k)
			}
			of, _, _ := body.Expert(op, o.Layout, k)
			e.weights[w] = append(e.weights[w], source{buffer: buffer, layout: of})
		}
	}
	routers, err := m.router(i, l.Args[p.Operands[1].Arg].Buffer, p.Operands[1].Layout, e)
	if err != nil {
		return nil, err
	}
	if err := m.fitsMoE(e); err != nil {
		return nil, err
	}
	name, relu, fn := unary(op.Act())
	e.act = activation{name, fn, relu}
	if e.act.table() && m.cfg.Tables == 0 {
		return nil, fmt.Errorf("%s: the overlay has no tables for activations", name)
	}
	out := m.value(l.Results[0].Buffer)
	e.slots = &value{name: "slots of " + l.Node.String(), buffer: -1, rows: d.Tokens * e.topK, cols: d.Result,
		plain: true, narrow: true,
		made: true, symmetric: true, first: i, last: i}
	if _, err := matrixOf(out, graph.Contiguous(graph.ShapeOf(d.Tokens, d.Result)), d.Tokens, d.Result); err != nil {
		return nil, err
	}
	e.logits.v.logits = true
	for _, r := range routers {
		m.launches[r] = placed{routes: i + 1}
	}
	return []*task{{launch: i, kind: taskMoE, node: n, x: x, experts: e, out: whole(out), share: 1}}, nil
}
