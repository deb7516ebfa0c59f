package graph

import "fmt"

// MatMul multiplies matrices: a [..., m, k] by b [..., k, n]. TransA and TransB swap the last two axes of an operand
// first. Leading axes are batches and broadcast as in NumPy. Products of operands of a 16-bit type are summed in F32,
// which is the type of the result, as for every contraction.
type MatMul struct{ TransA, TransB bool }

// OpName implements Op.
func (MatMul) OpName() string { return "matmul" }

var matMulRow = OpInfo{
	Name: "matmul", Doc: "matrix product over the last two axes, batched over the others", Operands: "a, b",
	Proto: MatMul{}, Class: ClassContraction, Fuses: true, Anchor: AnchorMatMul, Kind: KindMatMul, MinArgs: 2,
	MaxArgs: 2, Infer: inferMatMul, FLOPs: flopsMatMul, Grad: gradMatMul, Contracts: factors,
}

// gradMatMul gives, for y = a·b, da = dy·bᵀ and db = aᵀ·dy, each transposed if the operand was, and summed over the
// batches to which an operand was broadcast.
func gradMatMul(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	op, x, y := n.Op.(MatMul), n.Args[0], n.Args[1]
	dy := b.CastTo(x.Type.DType, dys[0])
	if s := x.Type.Shape; y.Type.Shape.Rank() == 2 && s.Rank() > 2 && !op.TransA {
		return gradLinear(b, op, x, y, dy), nil
	}
	var dx, dz *Node
	if op.TransA {
		dx = b.MatMul(y, dy, op.TransB, true)
	} else {
		dx = b.MatMul(dy, y, false, !op.TransB)
	}
	if op.TransB {
		dz = b.MatMul(dy, x, true, op.TransA)
	} else {
		dz = b.MatMul(x, dy, !op.TransA, false)
	}
	return []*Node{b.SumTo(dx, x.Type.Shape), b.SumTo(dz, y.Type.Shape)}, nil
}

// gradLinear is the gradient of x [..., m, k] times one matrix. The batches are treated as rows, so that the matrix's
// gradient is one product instead of a sum over batches.
func gradLinear(b *Builder, op MatMul, x, w, dy *Node) []*Node {
	flat := func(n *Node) *Node {
		s := n.Type.Shape
		last := s.At(s.Rank() - 1)
		rows := 1
		for i := range s.Rank() - 1 {
			rows *= s.At(i)
		}
		return b.Reshape(n, rows, last)
	}
	dx := b.MatMul(dy, w, false, !op.TransB)
	if op.TransB {
		return []*Node{dx, b.MatMul(flat(dy), flat(x), true, false)}
	}
	return []*Node{dx, b.MatMul(flat(x), flat(dy), true, false)}
}

// Dims returns the sizes of the product of shapes a and b: the broadcast batch axes, rows, the contracted size and
// columns. It is meaningful only for shapes that the type rule accepts.
func (m MatMul) Dims(a, b Shape) (batch []int, rows, inner, cols int) {
	ra, rb := a.Rank(), b.Rank()
	rows, inner, cols = a.At(ra-2), a.At(ra-1), b.At(rb-1)
	if m.TransA {
		rows, inner = inner, rows
	}
	if m.TransB {
		cols = b.At(rb - 2)
	}
	n := max(ra, rb) - 2
	batch = make([]int, n)
	for i := range batch {
		x, y := 1, 1
		if j := i - (n - (ra - 2)); j >= 0 {
			x = a.At(j)
		}
		if j := i - (n - (rb - 2)); j >= 0 {
			y = b.At(j)
		}
		batch[i] = x
		if x == 1 {
			batch[i] = y
		}
	}
	return
}

func inferMatMul(op Op, args []Type) ([]Type, error) {
	m, a, b := op.(MatMul), args[0].Shape, args[1].Shape
	if a.Rank() < 2 || b.Rank() < 2 {
		return nil, fmt.Errorf("needs operands of rank 2 or more, not %v and %v", a, b)
	}
	if args[0].DType != args[1].DType {
		return nil, fmt.Errorf("element types %v and %v differ", args[0].DType, args[1].DType)
	}
	if err := wantContracted(args[0]); err != nil {
		return nil, err
	}
	batch, rows, inner, cols := m.Dims(a, b)
	innerB := b.At(b.Rank() - 2)
	if m.TransB {
		innerB = b.At(b.Rank() - 1)
	}
	if inner != innerB {
		return nil, fmt.Errorf("contracts %d with %d elements (shapes %v and %v, transA %v, transB %v)", inner, innerB, a, b, m.TransA,
			m.TransB)
	}
	for _, s := range []Shape{a, b} {
		for i := range s.Rank() - 2 {
			want := batch[len(batch)-(s.Rank()-2)+i]
			if d := s.At(i); d != 1 && d != want {
				return nil, fmt.Errorf("batch axes of %v and %v do not broadcast", a, b)
			}
		}
	}
	return one(args, Type{args[0].DType.Accumulator(), ShapeOf(append(batch, rows, cols)...)})
}

func flopsMatMul(op Op, args, out []Type) int64 {
	_, _, k, _ := op.(MatMul).Dims(args[0].Shape, args[1].Shape)
	return 2 * int64(k) * elems(out[0])
}
