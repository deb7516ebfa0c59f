package onnx

import (
	"slices"
	"strings"

	"fusec/graph"
)

// recurrentAttrs are the attributes of all recurrences.
var recurrentAttrs = []attr{{name: "activation_alpha", def: []float64(nil)}, {name: "activation_beta", def: []float64(nil)},
	{name: "activations", def: []string(nil)}, floatAttr("clip", 0), {name: "direction", def: "forward"}, intAttr("hidden_size", 0),
	{name: "layout", def: int64(0), from: 14}, {name: "output_sequence", def: int64(0), until: 6}}

func init() {
	with := func(a attr) []attr { return append([]attr{a}, recurrentAttrs...) }
	declare(
		operator{name: "RNN", min: 3, max: 6, attrs: recurrentAttrs, build: func(c *call) []*value {
			return c.recurrence(cell{gates: 1, states: 1, activations: []string{"Tanh"}, step: stepRNN,
				whole: map[string]graph.Cell{"tanh": graph.TanhCell, "relu": graph.ReluCell}})
		}},
		operator{name: "GRU", min: 3, max: 6, attrs: with(intAttr("linear_before_reset", 0)), build: func(c *call) []*value {
			k := cell{gates: 3, states: 1, activations: []string{"Sigmoid", "Tanh"}, step: stepGRU,
				whole: map[string]graph.Cell{"sigmoid tanh": graph.GRU}}
			if c.flag("linear_before_reset") {
				k.apart, k.whole = true, map[string]graph.Cell{"sigmoid tanh": graph.GRUAfter}
			}
			return c.recurrence(k)
		}},
		operator{name: "LSTM", min: 3, max: 8, attrs: with(intAttr("input_forget", 0)), build: func(c *call) []*value {
			return c.recurrence(cell{gates: 4, states: 2, activations: []string{"Sigmoid", "Tanh", "Tanh"}, step: stepLSTM,
				whole: map[string]graph.Cell{"sigmoid tanh tanh": graph.LSTM}})
		}},
	)
}

// A cell is the kind of a recurrence.
type cell struct {
	gates, states int
	activations   []string              // the defaults
	apart         bool                  // the last gate's recurrent bias stays with the recurrent product
	whole         map[string]graph.Cell // by the activations: that of an operation that has all steps
	// step computes the states after a step from the input's product with its bias, [N, gates·H], and the states before.
	step func(r *direction, x *graph.Node, state []*graph.Node) []*graph.Node
}

// A direction is the weights of one direction of a recurrence.
type direction struct {
	c         *call
	cell      cell
	hidden    int
	r         *graph.Node   // [gates·H, H]
	rBias     *graph.Node   // [H], of the last gate, if that is apart
	peepholes []*graph.Node // of the gates i, o and f, [H] each, or none
	f         []func(*graph.Node) *graph.Node
	clip      float64
}

// recurrence makes the product of the input with its weights, which is one for all steps, and of the steps one operation. It
// writes out those of a cell that the operation does not have, and of sequences that end at different steps.
func (c *call) recurrence(k cell) []*value {
	x, w, r := c.node(0), c.node(1), c.node(2)
	batchFirst := c.entry("layout") != nil && c.flag("layout")
	if x.Type.Shape.Rank() != 3 || w.Type.Shape.Rank() != 3 || r.Type.Shape.Rank() != 3 {
		c.refuse("it takes three axes of x, W and R, not %v, %v and %v", x.Type, w.Type, r.Type)
	}
	if batchFirst {
		x = c.transpose(x, 1, 0, 2)
	}
	steps, n, size := x.Type.Shape.At(0), x.Type.Shape.At(1), x.Type.Shape.At(2)
	dirs, h := w.Type.Shape.At(0), r.Type.Shape.At(2)
	want := map[string]int{"forward": 1, "reverse": 1, "bidirectional": 2}[strings.ToLower(c.string("direction"))]
	if dirs != want || w.Type.Shape != graph.ShapeOf(dirs, k.gates*h, size) || r.Type.Shape != graph.ShapeOf(dirs, k.gates*h, h) {
		c.refuse("weights %v and %v for x %v in direction %q", w.Type, r.Type, x.Type, c.string("direction"))
	}
	if steps > maxSteps || steps == 0 {
		c.refuse("%d steps", steps)
	}
	lengths := (*graph.Node)(nil)
	if c.there(4) {
		if lengths = c.cast(c.node(4), graph.I64); lengths.Type.Shape != graph.ShapeOf(n) {
			c.refuse("lengths %v of %d sequences", lengths.Type, n)
		}
	}
	activations, names := c.activations(k, dirs)
	var ys []*graph.Node
	last := make([][]*graph.Node, k.states)
	for d := range dirs {
		dir := &direction{c: c, cell: k, hidden: h, r: c.part(r, 0, d), f: activations[d], clip: c.float("clip")}
		bias := c.filled(graph.TypeOf(x.Type.DType, k.gates*h), 0)
		if c.there(3) {
			if c.node(3).Type.Shape != graph.ShapeOf(dirs, 2*k.gates*h) {
				c.refuse("a bias %v", c.node(3).Type)
			}
			b := c.part(c.node(3), 0, d)
			rBias := c.slice(b, 0, k.gates*h, k.gates*h, 1)
			if k.apart {
				dir.rBias = c.slice(rBias, 0, (k.gates-1)*h, h, 1)
				rBias = c.pad(c.slice(rBias, 0, 0, (k.gates-1)*h, 1), []int{0}, []int{h}, 0)
			}
			bias = c.plus(c.slice(b, 0, 0, k.gates*h, 1), rBias)
		}
		if k.states == 2 && c.there(7) {
			if c.node(7).Type.Shape != graph.ShapeOf(dirs, 3*h) {
				c.refuse("peepholes %v", c.node(7).Type)
			}
			for i := range 3 {
				dir.peepholes = append(dir.peepholes, c.slice(c.part(c.node(7), 0, d), 0, i*h, h, 1))
			}
		}
		reverse := d == 1 || strings.EqualFold(c.string("direction"), "reverse")
		turn := func(t *graph.Node) *graph.Node {
			switch {
			case !reverse:
				return t
			case lengths != nil:
				return c.reversed(t, lengths, 0)
			}
			return c.flip(t, 0)
		}
		whole, ok := k.whole[names[d]]
		ok = ok && lengths == nil && dir.clip == 0 && dir.peepholes == nil && (k.states == 1 || !c.flag("input_forget")) &&
			!x.Type.DType.Is16()
		input := x
		if !ok {
			input = turn(x)
		}
		all := c.plus(c.matmul(c.reshape(input, steps*n, size), c.part(w, 0, d), false, true), bias)
		all = c.reshape(all, steps, n, k.gates*h)
		state := make([]*graph.Node, k.states)
		for i := range state {
			state[i] = c.filled(graph.TypeOf(x.Type.DType, n, h), 0)
			if c.there(5 + i) {
				first := c.node(5 + i)
				if batchFirst && first.Type.Shape.Rank() == 3 {
					first = c.transpose(first, 1, 0, 2)
				}
				if first.Type.Shape != graph.ShapeOf(dirs, n, h) {
					c.refuse("a first state %v", first.Type)
				}
				state[i] = c.part(first, 0, d)
			}
		}
		if ok {
			y, end := dir.whole(graph.Recurrence{Cell: whole, Reverse: reverse}, all, state)
			ys = append(ys, y)
			for i := range end {
				last[i] = append(last[i], end[i])
			}
			continue
		}
		var y []*graph.Node
		for t := range steps {
			next := k.step(dir, c.part(all, 0, t), state)
			out := next[0]
			if lengths != nil {
				on := c.reshape(c.with(graph.Gt, lengths, float64(t)), n, 1)
				for i := range next {
					next[i] = c.choose(on, next[i], state[i])
				}
				out = c.choose(on, out, c.scalar(x.Type.DType, 0))
			}
			state = next
			y = append(y, c.reshape(out, 1, n, h))
		}
		ys = append(ys, c.reshape(turn(c.concat(0, y...)), steps, 1, n, h))
		for i := range state {
			last[i] = append(last[i], c.reshape(state[i], 1, n, h))
		}
	}
	y := c.concat(1, ys...)
	results := []*graph.Node{y}
	for _, l := range last {
		results = append(results, c.concat(0, l...))
	}
	if batchFirst {
		results[0] = c.transpose(y, 2, 0, 1, 3)
		for i := range last {
			results[i+1] = c.transpose(results[i+1], 1, 0, 2)
		}
	}
	return several(results...)
}

// whole makes all steps one operation. It returns the states after each step, [T, 1, N, H], and those after the last, [1, N, H].
func (d *direction) whole(op graph.Recurrence, x *graph.Node, state []*graph.Node) (y *graph.Node, end []*graph.Node) {
	c, steps, n := d.c, x.Type.Shape.At(0), x.Type.Shape.At(1)
	args := append([]*graph.Node{x, c.transpose(d.r, 1, 0)}, state...)
	if op.Cell == graph.GRUAfter {
		bias := d.rBias
		if bias == nil {
			bias = c.filled(graph.TypeOf(x.Type.DType, d.hidden), 0)
		}
		args = append(args, bias)
	}
	y = c.add(op, args...)
	results := []*graph.Node{y}
	if len(state) > 1 {
		results = append(results, c.add(graph.Result{Index: 1}, y))
	}
	at := steps - 1
	if op.Reverse {
		at = 0
	}
	for _, r := range results {
		end = append(end, c.slice(r, 0, at, 1, 1))
	}
	return c.reshape(y, steps, 1, n, d.hidden), end
}

// activations are the functions of each direction, and their names in small letters.
func (c *call) activations(k cell, dirs int) ([][]func(*graph.Node) *graph.Node, []string) {
	names := c.strings("activations")
	if len(names) == 0 {
		names = slices.Repeat(k.activations, dirs)
	}
	if len(names) != dirs*len(k.activations) {
		c.refuse("%d activations for %d directions", len(names), dirs)
	}
	alphas, betas := c.floats("activation_alpha"), c.floats("activation_beta")
	next := func(list *[]float64, def float64) float64 {
		if len(*list) == 0 {
			return def
		}
		v := (*list)[0]
		*list = (*list)[1:]
		return v
	}
	r := make([][]func(*graph.Node) *graph.Node, dirs)
	all := make([]string, dirs)
	for i, name := range names {
		all[i/len(k.activations)] = strings.TrimSpace(all[i/len(k.activations)] + " " + strings.ToLower(name))
		var f func(x *graph.Node) *graph.Node
		plain := func(fn graph.UnaryFn) { f = func(x *graph.Node) *graph.Node { return c.unary(fn, x) } }
		switch strings.ToLower(name) {
		case "tanh":
			plain(graph.Tanh)
		case "sigmoid":
			plain(graph.Sigmoid)
		case "relu":
			plain(graph.Relu)
		case "softplus":
			plain(graph.Softplus)
		case "softsign":
			f = func(x *graph.Node) *graph.Node { return c.over(x, c.with(graph.Add, c.unary(graph.Abs, x), 1)) }
		case "affine":
			a, b := next(&alphas, 1), next(&betas, 0)
			f = func(x *graph.Node) *graph.Node { return c.with(graph.Add, c.scaled(x, a), b) }
		case "scaledtanh":
			a, b := next(&alphas, 1), next(&betas, 1)
			f = func(x *graph.Node) *graph.Node { return c.scaled(c.unary(graph.Tanh, c.scaled(x, b)), a) }
		case "hardsigmoid":
			a, b := next(&alphas, 0.2), next(&betas, 0.5)
			f = func(x *graph.Node) *graph.Node { return c.hardSigmoid(x, a, b) }
		case "leakyrelu":
			a := next(&alphas, 0.01)
			f = func(x *graph.Node) *graph.Node { return c.add(graph.Unary{Fn: graph.LeakyRelu, Alpha: a}, x) }
		case "elu":
			a := next(&alphas, 1)
			f = func(x *graph.Node) *graph.Node { return c.add(graph.Unary{Fn: graph.Elu, Alpha: a}, x) }
		case "thresholdedrelu":
			a := next(&alphas, 1)
			f = func(x *graph.Node) *graph.Node { return c.choose(c.with(graph.Ge, x, a), x, c.scalar(x.Type.DType, 0)) }
		default:
			c.refuse("the activation %q", name)
		}
		d := i / len(k.activations)
		r[d] = append(r[d], f)
	}
	return r, all
}

// apply is an activation, of what is clipped first if the node asks for that.
func (d *direction) apply(i int, x *graph.Node) *graph.Node {
	if d.clip > 0 {
		x = d.c.with(graph.Max, d.c.with(graph.Min, x, d.clip), -d.clip)
	}
	return d.f[i](x)
}

// gate is gate i of [N, gates·H].
func (d *direction) gate(x *graph.Node, i int) *graph.Node {
	return d.c.slice(x, 1, i*d.hidden, d.hidden, 1)
}

func stepRNN(d *direction, x *graph.Node, state []*graph.Node) []*graph.Node {
	return []*graph.Node{d.apply(0, d.c.plus(x, d.c.matmul(state[0], d.r, false, true)))}
}

// stepGRU has the gates z, r and h.
func stepGRU(d *direction, x *graph.Node, state []*graph.Node) []*graph.Node {
	c, h := d.c, d.hidden
	before := state[0]
	zr := c.plus(c.slice(x, 1, 0, 2*h, 1), c.matmul(before, c.slice(d.r, 0, 0, 2*h, 1), false, true))
	zr = d.apply(0, zr)
	z, r := c.slice(zr, 1, 0, h, 1), c.slice(zr, 1, h, h, 1)
	rh := c.slice(d.r, 0, 2*h, h, 1)
	var candidate *graph.Node
	if d.cell.apart {
		candidate = c.matmul(before, rh, false, true)
		if d.rBias != nil {
			candidate = c.plus(candidate, d.rBias)
		}
		candidate = c.mul(r, candidate)
	} else {
		candidate = c.matmul(c.mul(r, before), rh, false, true)
	}
	candidate = d.apply(1, c.plus(d.gate(x, 2), candidate))
	rest := c.with(graph.Add, c.unary(graph.Neg, z), 1)
	return []*graph.Node{c.plus(c.mul(rest, candidate), c.mul(z, before))}
}

// stepLSTM has the gates i, o, f and c.
func stepLSTM(d *direction, x *graph.Node, state []*graph.Node) []*graph.Node {
	c := d.c
	before, memory := state[0], state[1]
	all := c.plus(x, c.matmul(before, d.r, false, true))
	peep := func(g *graph.Node, i int, m *graph.Node) *graph.Node {
		if d.peepholes == nil {
			return g
		}
		return c.plus(g, c.mul(d.peepholes[i], m))
	}
	in := d.apply(0, peep(d.gate(all, 0), 0, memory))
	forget := c.with(graph.Add, c.unary(graph.Neg, in), 1)
	if !c.flag("input_forget") {
		forget = d.apply(0, peep(d.gate(all, 2), 2, memory))
	}
	memory = c.plus(c.mul(forget, memory), c.mul(in, d.apply(1, d.gate(all, 3))))
	out := d.apply(0, peep(d.gate(all, 1), 1, memory))
	return []*graph.Node{c.mul(out, d.apply(2, memory)), memory}
}
