package graph

import (
	"fmt"
	"math"
)

// Paged attention (Kwon et al., arXiv 2309.06180): keys and values are stored in pages of a common pool, and a table
// lists the pages of each sequence. So sequences allocate, share and free memory by pages.

// TableArg is the index of the operand table, -1 if there is none.
func (a Attention) TableArg() int {
	if a.Page == 0 {
		return -1
	}
	return attentionOptional + count(a.HasMask, a.HasLengths)
}

// Entries is how many of the n entries of a sequence's table are used if the first valid keys count.
func (a Attention) Entries(n, valid int) int {
	return (min(max(valid, 0), n*a.Page) + a.Page - 1) / a.Page
}

// pagedDims is [Attention.DimsOf] with pages: k and v are pools, the table says how many keys there are.
func (a Attention) pagedDims(q, k, v, table Shape) AttentionDims {
	r := q.Rank()
	return AttentionDims{
		Batch: ShapeOf(q.Slice()[:r-3]...), Heads: q.At(r - 3), Group: max(q.At(r-3), 1) / max(k.At(1), 1),
		Queries: q.At(r - 2), Keys: table.At(table.Rank()-1) * a.Page, Depth: q.At(r - 1), Width: v.At(3),
	}
}

func (a Attention) checkPages(q, k, v Shape, table Type) error {
	r := q.Rank()
	switch {
	case a.Page < 0:
		return fmt.Errorf("pages of %d keys", a.Page)
	case !a.HasLengths:
		return fmt.Errorf("paged keys need lengths")
	case r < 3 || r >= MaxRank:
		return fmt.Errorf("paged attention needs queries of 3 to %d axes, not %v", MaxRank-1, q)
	case k.Rank() != 4 || v.Rank() != 4 || k.With(3, 0) != v.With(3, 0) || k.At(2) != a.Page:
		return fmt.Errorf("needs pools [pages, heads, %d, depth] of keys and values, not %v and %v", a.Page, k, v)
	case k.At(0) == 0:
		return fmt.Errorf("a pool of no pages")
	case q.At(r-1) != k.At(3):
		return fmt.Errorf("queries %v and keys %v differ in the last axis", q, k)
	}
	if h, hk := q.At(r-3), k.At(1); hk == 0 && h > 0 || hk > 0 && h%hk != 0 {
		return fmt.Errorf("%d heads of queries are not a multiple of %d of keys and values", h, hk)
	}
	batch := ShapeOf(q.Slice()[:r-3]...)
	t := table.Shape
	if table.DType != I64 || t.Rank() != batch.Rank()+1 || t.Drop(IntsOf(t.Rank()-1)) != batch {
		return fmt.Errorf("the table is %v, not i64 of %v and an axis of pages", table, batch)
	}
	if n := t.At(t.Rank() - 1); n > math.MaxInt32/a.Page {
		return fmt.Errorf("%d pages of %d keys are too many", n, a.Page)
	}
	return nil
}

// gathered returns the operands of the same attention without pages: the pages that each sequence's table lists,
// concatenated. Table entries beyond the valid keys may be arbitrary; they are replaced by 0.
func (a Attention) gathered(b *Builder, args []*Node) (Attention, []*Node) {
	at := a.TableArg()
	table, lengths := args[at], args[a.LengthsArg()]
	s := table.Type.Shape
	batch, n := s.Slice()[:s.Rank()-1], s.At(s.Rank()-1)
	starts := b.BinaryScalar(Mul, b.Const(indices(I64, n, n)), float64(a.Page))
	if lengths.Type.DType != I64 {
		lengths = b.Add(Cast{I64}, lengths)
	}
	lengths = b.Broadcast(b.Reshape(lengths, append(batch, 1)...), s)
	counts := b.Binary(Lt, b.Broadcast(starts, s), lengths)
	table = b.Add(Select{}, counts, table, b.Scalar(I64, 0))

	flat := append([]*Node(nil), args[:at]...)
	for _, i := range []int{attentionK, attentionV} {
		x := b.Add(Gather{Axis: 0}, args[i], table) // [batch..., n, heads, Page, depth]
		perm := make([]int, x.Type.Shape.Rank())
		for j := range perm {
			perm[j] = j
		}
		r := len(perm)
		perm[r-4], perm[r-3] = r-3, r-4
		pool := args[i].Type.Shape
		flat[i] = b.Reshape(b.Transpose(x, perm...), append(batch[:r-4:r-4], pool.At(1), n*a.Page, pool.At(3))...)
	}
	a.Page = 0
	return a, append(flat, args[at+1:]...)
}

// gradStored is the gradient of n, an attention with pages or with scales, through the pages that it reads and the numbers that
// integers and scales stand for. Integers have none.
func gradStored(b *Builder, n *Node, dys []*Node) ([]*Node, error) {
	first := len(b.g.Nodes)
	op, args := n.Op.(Attention), n.Args
	if op.HasScales {
		op, args = op.dequantized(b, args)
	}
	if op.Page != 0 {
		op, args = op.gathered(b, args)
	}
	y := b.Add(op, args...)
	lse := b.Add(Result{Index: 1}, y)
	if b.Err() != nil {
		return nil, b.Err()
	}
	return throughNodes(b, n, first, []*Node{y, lse}, dys, func(a *Node) bool { return a.Type.DType.IsReal() })
}
