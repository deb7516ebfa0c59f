package cases

import (
	"strings"

	"fusec/graph"
)

// attentionGrad has the gradient of every example of an attention, with that of the log-sum-exp every other time. The
// log-sum-exp is not the attention's, as the meaning of the operation allows; to a kernel that makes use of it the
// attention's own has to be given.
func (m *maker) attentionGrad() {
	for i, c := range m.cases {
		op, ok := c.Op.(graph.Attention)
		if !ok || op.Page != 0 || op.HasScales { // whose gradient is that of gathered keys, or of what integers stand for
			continue
		}
		types := make([]graph.Type, len(c.Args))
		for i, a := range c.Args {
			types[i] = a.Type
		}
		results, err := graph.InfoOf(op).Infer(op, types)
		if err != nil {
			panic(err) // an example that does not fit
		}
		out, lse := m.real(results[0].Shape.Slice()...), m.between(2, 4, results[1].Shape.Slice()...)
		args := append(append([]Arg(nil), c.Args...), out, lse, out)
		if i%2 == 0 {
			args = append(args, m.real(results[1].Shape.Slice()...))
		}
		name := strings.TrimPrefix(c.Name, op.OpName()+"/")
		m.add(name, graph.AttentionGrad{Attention: op, HasDlse: i%2 == 0}, args...)
	}
}
