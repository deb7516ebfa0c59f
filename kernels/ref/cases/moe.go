package cases

import "fusec/graph"

// routing has rows without ties, where which element comes first is decided.
func (m *maker) routing() {
	m.add("one", graph.TopK{K: 1}, m.real(5))
	m.add("rows", graph.TopK{K: 2}, m.real(2, 3, 5))
	m.add("all", graph.TopK{K: 4}, m.real(3, 4))
	m.add("none", graph.TopK{}, m.real(3, 4))
	m.add("no_rows", graph.TopK{K: 2}, m.real(0, 4))
	m.add("top_1", graph.Route{K: 1}, m.real(7, 3))
	m.add("top_2", graph.Route{K: 2}, m.real(3, 5, 4))
	m.add("one_row", graph.Route{K: 2}, m.real(5))
	m.add("capacity", graph.Route{K: 2, Capacity: 3}, m.real(9, 4))
	m.add("expert_choice", graph.Route{Capacity: 3, ExpertChoice: true}, m.real(9, 4))
	m.add("expert_choice_of_few", graph.Route{Capacity: 5, ExpertChoice: true}, m.real(2, 4))
	m.add("no_tokens", graph.Route{K: 1}, m.real(0, 3))
}

// moe has gates of which half are zero, unless all experts see all tokens.
func (m *maker) moe() {
	add := func(name string, op graph.MoE, lead []int, d, f, o int) {
		x := m.real(append(lead, d)...)
		gates := m.between(0.2, 1, append(lead, op.Experts)...)
		gates.Sparse = !op.Dense
		args := []Arg{x, gates}
		for _, w := range op.Weights() {
			n := 1
			if !op.Stacked {
				n = op.Experts
			}
			s := op.WeightShape(graph.MoEDims{Width: d, Hidden: f, Result: o}, w)
			for range n {
				args = append(args, m.between(-1, 1, s.Slice()...))
			}
		}
		y := m.real(append(lead, o)...)
		m.add(name, op, args...)
		m.add(name, graph.MoEGrad(op), append(args, y)...)
	}
	add("top_k", graph.MoE{Experts: 3, Activation: graph.Tanh, TopK: 2}, []int{5}, 3, 4, 2)
	add("dense", graph.MoE{Experts: 2, Activation: graph.GeluErf, Bias: true, Dense: true}, []int{3}, 3, 4, 3)
	add("bias", graph.MoE{Experts: 3, Activation: graph.Sigmoid, Bias: true}, []int{2, 3}, 3, 2, 3)
	add("gated", graph.MoE{Experts: 2, Activation: graph.Silu, Gated: true}, []int{4}, 2, 3, 2)
	add("gated_bias", graph.MoE{Experts: 2, Activation: graph.GeluTanh, Gated: true, Bias: true}, []int{4}, 2, 3, 2)
	add("stacked", graph.MoE{Experts: 3, Activation: graph.Elu, Alpha: 0.5, Stacked: true}, []int{5}, 2, 3, 2)
	everything := graph.MoE{Experts: 2, Activation: graph.Tanh, Gated: true, Bias: true, Stacked: true}
	add("stacked_everything", everything, []int{2, 2}, 3, 2, 1)
	add("stacked_dense", graph.MoE{Experts: 2, Activation: graph.Softplus, Stacked: true, Dense: true}, []int{3}, 2, 3, 2)
	add("one_expert", graph.MoE{Experts: 1, Activation: graph.Silu}, []int{3}, 2, 3, 2)
	add("one_token", graph.MoE{Experts: 2, Activation: graph.Tanh}, nil, 2, 3, 2)
	add("no_tokens", graph.MoE{Experts: 2, Activation: graph.Tanh}, []int{0}, 2, 3, 2)
	add("no_hidden", graph.MoE{Experts: 2, Activation: graph.Tanh, Bias: true}, []int{3}, 2, 0, 2)
}
