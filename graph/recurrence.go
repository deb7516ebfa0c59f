package graph

import (
	"fmt"
	"slices"
)

var recurrenceRow = OpInfo{
	Name: "recurrence", Doc: "all steps of a recurrent layer; results the states after each step, and an LSTM's memories",
	Operands: "x, r, h, more?", Proto: Recurrence{}, Class: ClassComposite, Kind: KindLinear, MinArgs: 3, MaxArgs: 4,
	Infer: inferRecurrence, FLOPs: flopsRecurrence, Decompose: decomposeRecurrence, Lower: decomposeRecurrence, Grad: gradRecurrence,
}

var recurrenceGradRow = OpInfo{
	Name: "recurrence_grad", Doc: "gradient of recurrence; results those of its operands",
	Operands: "x, r, h, more?, y, memories?, dy, dmemories?", Proto: RecurrenceGrad{}, Class: ClassComposite, Kind: KindLinear,
	MinArgs: 5, MaxArgs: 8, Infer: inferRecurrenceGrad, FLOPs: flopsRecurrenceGrad, Decompose: decomposeRecurrenceGrad,
	Lower: decomposeRecurrenceGrad,
}

// Cell is the kind of a [Recurrence].
type Cell uint8

// The cells. A step computes the state h' from the state h [N, H] and its part of x [N, G·H], which are G blocks of
// columns, one for each gate, and so are the columns of r. σ is the sigmoid.
const (
	// TanhCell is h' = tanh(x + h·r).
	TanhCell Cell = iota
	// ReluCell is h' = relu(x + h·r).
	ReluCell
	// LSTM has the gates i, o, f and u: c' = σ(f)⊙c + σ(i)⊙tanh(u), h' = σ(o)⊙tanh(c'), of [i,o,f,u] = x + h·r
	// (Hochreiter and Schmidhuber 1997; Gers et al. 2000).
	LSTM
	// GRU has the gates z, s and u: h' = (1−z)⊙tanh(x_u + (s⊙h)·r_u) + z⊙h, with z and s = σ(x + h·r) (Cho et al.,
	// arXiv 1406.1078).
	GRU
	// GRUAfter is a GRU that resets after the product: h' = (1−z)⊙tanh(x_u + s⊙(h·r_u + bias)) + z⊙h, as cuDNN and
	// PyTorch have it.
	GRUAfter
)

var cells = [...]string{"tanh", "relu", "lstm", "gru", "gru_after"}

// String gives the cell's name in the text form.
func (c Cell) String() string { return cells[c] }

// UnmarshalText implements encoding.TextUnmarshaler.
func (c *Cell) UnmarshalText(b []byte) (err error) {
	*c, err = parseEnum(string(b), Cell.String, len(cells))
	return
}

// Gates is the number G of a cell's gates.
func (c Cell) Gates() int { return [...]int{1, 1, 4, 3, 3}[c] }

// Recurrence is all steps of a recurrent layer, after the product of the input with its weights: x [T, N, G·H] is that
// product with the gates' biases, for T steps of N sequences. r [H, G·H] are the weights of the state, and h [N, H] is the
// first state. An LSTM has a fourth operand, the first memory [N, H]; a GRUAfter has the bias [H] of the product with r_u. T
// and H are at least 1.
//
// Result 0 is the states after each step, [T, N, H]. Result 1 of an LSTM is the memories after each step, [T, N, H]. With
// Reverse the steps go from the last of x to the first; results stand where their part of x does.
type Recurrence struct {
	Cell    Cell
	Reverse bool
}

// OpName implements Op.
func (Recurrence) OpName() string { return "recurrence" }

// RecurrenceGrad is the gradient of the [Recurrence] of the same attributes. Its operands are those of the Recurrence,
// its results, and the gradients of these; its results the gradients of the Recurrence's operands.
type RecurrenceGrad struct {
	Cell    Cell
	Reverse bool
}

// OpName implements Op.
func (RecurrenceGrad) OpName() string { return "recurrence_grad" }

// Operands is how many operands a Recurrence of the cell has, Results how many results.
func (c Cell) Operands() int {
	if c == LSTM || c == GRUAfter {
		return 4
	}
	return 3
}

// Results is how many results a Recurrence of the cell has.
func (c Cell) Results() int {
	if c == LSTM {
		return 2
	}
	return 1
}

func inferRecurrence(op Op, args []Type) ([]Type, error) {
	cell := op.(Recurrence).Cell
	if int(cell) >= len(cells) {
		return nil, fmt.Errorf("the cell %d is unknown", cell)
	}
	if len(args) != cell.Operands() {
		return nil, fmt.Errorf("a cell %v takes %d operands, not %d", cell, cell.Operands(), len(args))
	}
	x, r := args[0], args[1]
	if err := wantFloat(x); err != nil {
		return nil, err
	}
	if x.Shape.Rank() != 3 || r.Shape.Rank() != 2 {
		return nil, fmt.Errorf("x %v and r %v do not have three and two axes", x, r)
	}
	h := r.Shape.At(0)
	if x.Shape.At(0) == 0 || h == 0 {
		return nil, fmt.Errorf("x %v and r %v have no steps or no state", x, r)
	}
	state := TypeOf(x.DType, x.Shape.At(1), h)
	want := []Type{TypeOf(x.DType, x.Shape.At(0), x.Shape.At(1), cell.Gates()*h), TypeOf(x.DType, h, cell.Gates()*h), state, state}
	if cell == GRUAfter {
		want[3] = TypeOf(x.DType, h)
	}
	for i, t := range args {
		if t != want[i] {
			return nil, fmt.Errorf("operand %d of a cell %v is %v; with r %v it has to be %v", i, cell, t, r, want[i])
		}
	}
	y := TypeOf(x.DType, x.Shape.At(0), x.Shape.At(1), h)
	return []Type{y, y}[:cell.Results()], nil
}

func inferRecurrenceGrad(op Op, args []Type) ([]Type, error) {
	g := op.(RecurrenceGrad)
	if int(g.Cell) >= len(cells) {
		return nil, fmt.Errorf("the cell %d is unknown", g.Cell)
	}
	n, results := g.Cell.Operands(), g.Cell.Results()
	if len(args) != n+2*results {
		return nil, fmt.Errorf("the gradient of a cell %v takes %d operands, not %d", g.Cell, n+2*results, len(args))
	}
	out, err := inferRecurrence(Recurrence(g), args[:n])
	if err != nil {
		return nil, err
	}
	for i, t := range args[n:] {
		if want := out[i%results]; t != want {
			return nil, fmt.Errorf("operand %d is %v, not %v", n+i, t, want)
		}
	}
	return slices.Clone(args[:n]), nil
}

// flopsRecurrence counts the products with the state, and for each element of a gate a sigmoid or tanh and what follows.
func flopsRecurrence(_ Op, args, _ []Type) int64 {
	const gate = 12
	return product(elems(args[0]), 2*int64(args[1].Shape.At(0))+gate)
}

// flopsRecurrenceGrad counts the gates again, and two products for each of the Recurrence's.
func flopsRecurrenceGrad(op Op, args, out []Type) int64 {
	return product(3, flopsRecurrence(op, args, out))
}

// decomposeRecurrence writes the steps out.
func decomposeRecurrence(b *Builder, o Op, args []*Node) []*Node {
	op, x := o.(Recurrence), args[0]
	steps, n, columns := x.Type.Shape.At(0), x.Type.Shape.At(1), x.Type.Shape.At(2)
	h := columns / op.Cell.Gates()
	state := slices.Clone(args[2 : 2+op.Cell.Results()])
	all := make([][]*Node, len(state))
	for i := range all {
		all[i] = make([]*Node, steps)
	}
	for i := range steps {
		t := i
		if op.Reverse {
			t = steps - 1 - i
		}
		state = op.step(b, b.Reshape(b.Slice(x, 0, t, 1, 1), n, columns), args, state)
		for j, s := range state {
			all[j][t] = b.Reshape(s, 1, n, h)
		}
	}
	out := make([]*Node, len(all))
	for i, parts := range all {
		if out[i] = parts[0]; steps > 1 {
			out[i] = b.Add(Concat{Axis: 0}, parts...)
		}
	}
	return out
}

// step is one step: x is its part of the input, state h and an LSTM's c.
func (op Recurrence) step(b *Builder, x *Node, args, state []*Node) []*Node {
	r, h := args[1], state[0]
	size := h.Type.Shape.At(1)
	block := func(v *Node, i, n int) *Node { return b.Slice(v, 1, i*size, n*size, 1) }
	product := func(h, r *Node) *Node { return b.MatMul(h, r, false, false) }
	mul := func(u, v *Node) *Node { return b.Binary(Mul, u, v) }
	add := func(u, v *Node) *Node { return b.Binary(Add, u, v) }
	switch op.Cell {
	case TanhCell:
		return []*Node{b.Unary(Tanh, add(x, product(h, r)))}
	case ReluCell:
		return []*Node{b.Unary(Relu, add(x, product(h, r)))}
	case LSTM:
		a := add(x, product(h, r))
		gates := b.Unary(Sigmoid, block(a, 0, 3))
		c := add(mul(block(gates, 2, 1), state[1]), mul(block(gates, 0, 1), b.Unary(Tanh, block(a, 3, 1))))
		return []*Node{mul(block(gates, 1, 1), b.Unary(Tanh, c)), c}
	}
	gates := b.Unary(Sigmoid, add(block(x, 0, 2), product(h, block(r, 0, 2))))
	z, s := block(gates, 0, 1), block(gates, 1, 1)
	var u *Node
	if op.Cell == GRU {
		u = product(mul(s, h), block(r, 2, 1))
	} else {
		u = mul(s, add(product(h, block(r, 2, 1)), b.Broadcast(args[3], h.Type.Shape)))
	}
	u = b.Unary(Tanh, add(block(x, 2, 1), u))
	return []*Node{add(mul(b.BinaryScalar(Add, b.Unary(Neg, z), 1), u), mul(z, h))}
}

// gradRecurrence hands the kernel of the gradient the states, so that it need not compute the steps again.
func gradRecurrence(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	cell := n.Op.(Recurrence).Cell
	args := append(slices.Clone(n.Args), n)
	if cell == LSTM {
		args = append(args, b.Add(Result{1}, n))
	}
	for _, dy := range dys[:cell.Results()] {
		if dy == nil {
			dy = b.Broadcast(b.Scalar(n.Type.DType, 0), n.Type.Shape)
		}
		args = append(args, dy)
	}
	dx := b.Add(RecurrenceGrad(n.Op.(Recurrence)), args...)
	grads := []*Node{dx}
	for i := 1; i < len(n.Args); i++ {
		grads = append(grads, b.Add(Result{i}, dx))
	}
	return grads, nil
}

// decomposeRecurrenceGrad differentiates each step, from the last to the first, at the states that are given.
func decomposeRecurrenceGrad(b *Builder, o Op, args []*Node) []*Node {
	op := Recurrence(o.(RecurrenceGrad))
	operands, results := op.Cell.Operands(), op.Cell.Results()
	g := New("") // a separate graph, in which an operand that is given twice counts as two
	body := Extend(g, b.origin...)
	in := make([]*Node, len(args))
	for i, a := range args {
		in[i] = body.Input(fmt.Sprint("x", i), a.Type)
	}
	x, ys, dys := in[0], in[operands:operands+results], in[operands+results:]
	steps, n, columns := x.Type.Shape.At(0), x.Type.Shape.At(1), x.Type.Shape.At(2)
	h := columns / op.Cell.Gates()
	part := func(v *Node, t int) *Node { return body.Reshape(body.Slice(v, 0, t, 1, 1), n, v.Type.Shape.At(2)) }
	plus := func(u, v *Node) *Node {
		if u == nil {
			return v
		}
		return body.Binary(Add, u, v)
	}
	dx := make([]*Node, steps)
	weights := append([]*Node{in[1]}, in[2+results:operands]...)
	dw, carried := make([]*Node, len(weights)), make([]*Node, results)
	for i := range steps {
		t, before := steps-1-i, steps-2-i
		if op.Reverse {
			t, before = i, i+1
		}
		xt, dy, state := part(x, t), make([]*Node, results), make([]*Node, results)
		for j := range results {
			dy[j] = plus(carried[j], part(dys[j], t))
			if i == steps-1 {
				state[j] = body.Reshape(in[2+j], n, h)
			} else {
				state[j] = part(ys[j], before)
			}
		}
		if body.Err() != nil {
			break
		}
		d, err := VJP(g, op.step(body, xt, in, state), dy, slices.Concat([]*Node{xt}, state, weights))
		if err != nil {
			b.Fail(err)
			return nil
		}
		dx[t] = body.Reshape(d[0], 1, n, columns)
		copy(carried, d[1:])
		for j := range weights {
			dw[j] = plus(dw[j], d[1+results+j])
		}
	}
	all := dx[0]
	if steps > 1 {
		all = body.Add(Concat{Axis: 0}, dx...)
	}
	for i, d := range slices.Concat([]*Node{all, dw[0]}, carried, dw[1:]) {
		body.Output(fmt.Sprint("d", i), d)
	}
	if err := body.Err(); err != nil {
		b.Fail(err)
		return nil
	}
	return b.Inline(g, args)
}
