package cases

import "fusec/graph"

// attention has rows with something to attend only: the log-sum-exp of others is −Inf, which has no differences.
func (m *maker) attention() {
	op := graph.Attention{Scale: 0.5}
	seed := integer(graph.I64, -1000, 1000)
	m.add("2d", op, m.real(3, 4), m.real(5, 4), m.real(5, 2))
	m.add("3d", op, m.real(2, 3, 4), m.real(2, 5, 4), m.real(2, 5, 3))
	m.add("one_key", op, m.real(2, 3, 4), m.real(2, 1, 4), m.real(2, 1, 3))
	m.add("no_queries", op, m.real(2, 0, 4), m.real(2, 3, 4), m.real(2, 3, 3))
	m.add("no_depth", op, m.real(1, 2, 0), m.real(1, 3, 0), m.real(1, 3, 2))
	m.add("no_width", op, m.real(1, 2, 3), m.real(1, 3, 3), m.real(1, 3, 0))

	qkv := func(h, hk, sq, sk int) []Arg {
		return []Arg{m.real(2, h, sq, 3), m.real(2, hk, sk, 3), m.real(2, hk, sk, 2)}
	}
	add := func(name string, op graph.Attention, args []Arg, more ...Arg) {
		op.Scale = 0.7
		m.add(name, op, append(args, more...)...)
	}
	add("grouped", graph.Attention{}, qkv(4, 2, 3, 4))
	add("multi_query", graph.Attention{Causal: true}, qkv(3, 1, 3, 4))
	for _, c := range []struct {
		name   string
		sq, sk int
	}{{"", 4, 4}, {"_longer", 3, 5}} {
		add("causal"+c.name, graph.Attention{Causal: true}, qkv(2, 2, c.sq, c.sk))
		add("window"+c.name, graph.Attention{Window: 2}, qkv(2, 2, c.sq, c.sk))
		add("causal_window"+c.name, graph.Attention{Causal: true, Window: 2}, qkv(2, 2, c.sq, c.sk))
	}
	add("mask", graph.Attention{HasMask: true}, qkv(2, 2, 3, 4), m.real(2, 2, 3, 4))
	add("mask_rows", graph.Attention{HasMask: true}, qkv(2, 1, 3, 4), m.real(3, 4))
	add("mask_keys", graph.Attention{HasMask: true, Causal: true}, qkv(2, 1, 3, 4), m.real(2, 1, 1, 4))
	add("mask_bool", graph.Attention{HasMask: true}, qkv(2, 2, 3, 12), boolean(2, 1, 3, 12))
	add("lengths", graph.Attention{HasLengths: true}, qkv(2, 2, 3, 4), integer(graph.I32, 1, 6, 2))
	add("lengths_causal", graph.Attention{HasLengths: true, Causal: true, Window: 3}, qkv(2, 2, 3, 4), integer(graph.I64, 2, 5, 2))
	add("tail", graph.Attention{HasLengths: true, Tail: true, Causal: true}, qkv(2, 1, 2, 5), integer(graph.I32, 2, 6, 2))
	add("tail_window", graph.Attention{HasLengths: true, Tail: true, Window: 2}, qkv(2, 1, 2, 5), integer(graph.I32, 1, 6, 2))
	add("dropout", graph.Attention{Dropout: 0.5}, qkv(2, 1, 3, 4), seed)
	add("everything", graph.Attention{Causal: true, Window: 3, HasMask: true, HasLengths: true, Dropout: 0.25}, qkv(4, 2, 3, 4),
		m.real(1, 4, 1, 4), integer(graph.I32, 2, 5, 2), seed)
	m.paged(add)
	m.storedKeys(add)
}

// storedKeys has keys and values of 8 bits with a scale for each.
func (m *maker) storedKeys(add func(name string, op graph.Attention, args []Arg, more ...Arg)) {
	qkv := func(h, sq int, lead ...int) []Arg {
		return []Arg{m.real(2, h, sq, 3), integer(graph.I8, -128, 128, append(lead[:3:3], 3)...),
			integer(graph.I8, -128, 128, append(lead[:3:3], 2)...)}
	}
	scale := func(dims ...int) Arg { return m.between(0.002, 0.02, append(dims, 1)...) }
	op := graph.Attention{HasScales: true}
	add("scales", op, qkv(4, 3, 2, 2, 5), scale(2, 2, 5), scale(2, 2, 5))
	op.HasMask, op.HasLengths, op.Causal, op.Tail, op.Dropout = true, true, true, true, 0.25
	add("scales_everything", op, qkv(2, 2, 2, 1, 5), m.real(2, 1, 1, 5), integer(graph.I64, 2, 6, 2), integer(graph.I64, -9, 9),
		scale(2, 1, 5), scale(2, 1, 5))
	op = graph.Attention{HasScales: true, HasLengths: true, Causal: true, Tail: true, Page: 2}
	add("scales_paged", op, qkv(4, 2, 4, 2, 2), integer(graph.I64, 2, 7, 2), integer(graph.I64, 0, 4, 2, 3), scale(4, 2, 2),
		scale(4, 2, 2))
}

// paged has pools of 4 pages for 2 sequences of up to 3 pages.
func (m *maker) paged(add func(name string, op graph.Attention, args []Arg, more ...Arg)) {
	table := integer(graph.I64, 0, 4, 2, 3)
	qkv := func(h, hk, sq, page int) []Arg {
		return []Arg{m.real(2, h, sq, 3), m.real(4, hk, page, 3), m.real(4, hk, page, 2)}
	}
	op := graph.Attention{HasLengths: true, Page: 2}
	add("paged", op, qkv(2, 2, 3, 2), integer(graph.I32, 1, 7, 2), table)
	op.Causal, op.Tail = true, true
	add("paged_tail", op, qkv(4, 2, 2, 2), integer(graph.I64, 2, 7, 2), table)
	op.Page, op.Window, op.HasMask, op.Dropout = 1, 2, true, 0.25
	add("paged_everything", op, qkv(2, 1, 2, 1), m.real(2, 1, 1, 3), integer(graph.I64, 2, 4, 2), table, integer(graph.I64, -9, 9))
	one := []Arg{m.real(2, 1, 3), m.real(3, 1, 5, 3), m.real(3, 1, 5, 2)}
	add("paged_one", graph.Attention{HasLengths: true, Page: 5}, one, integer(graph.I64, 3, 12), integer(graph.I64, 0, 3, 2))
}
