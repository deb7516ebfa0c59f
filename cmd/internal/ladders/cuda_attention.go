package ladders

import (
	"errors"
	"fmt"
	"math"

	"fusec/graph"
	"fusec/kernels/cuda"
)

// CUDAAttention lists variants from the definition of attention to the kernels that programs use, of f32. All but the
// last take the operands of [AttentionTypes], row-major, the last those of [PagedTypes].
var CUDAAttention = []CUDAVariant{
	{"naive", "The definition: all scores stand in memory, then their softmax, then its product with the values.",
		naiveCUDAAttention},
	{"blocked", "Blocks of keys with the online softmax, so that no score is stored; ordinary multiplications.",
		withoutTensorCores},
	{"flash", "The same on tensor cores, copies hidden behind products: what programs use.", cuda.Compile},
	{"paged", "The same, with keys and values in pages of up to 16 that a table lists.", cuda.Compile},
}

// AttentionTypes are attention and the types of its operands: queries [heads, queries, depth], keys and values [heads,
// keys, depth]. Scale is 1/√depth. If causal, query i attends keys up to i + keys − queries.
func AttentionTypes(heads, queries, keys, depth int, causal bool) (graph.Attention, []graph.Type) {
	kv := graph.TypeOf(graph.F32, heads, keys, depth)
	return graph.Attention{Scale: 1 / math.Sqrt(float64(depth)), Causal: causal},
		[]graph.Type{graph.TypeOf(graph.F32, heads, queries, depth), kv, kv}
}

// PagedTypes are the same attention with keys and values in pages; each head is a sequence. Further operands are the
// lengths, all of which are the number of keys, and the table, in which page n of sequence s is s·(keys÷page) + n.
func PagedTypes(heads, queries, keys, depth int, causal bool) (graph.Attention, []graph.Type) {
	op, _ := AttentionTypes(heads, queries, keys, depth, causal)
	op.Page, op.HasLengths = pageOf(keys), true
	pool := graph.TypeOf(graph.F32, heads*keys/op.Page, 1, op.Page, depth)
	return op, []graph.Type{graph.TypeOf(graph.F32, heads, 1, queries, depth), pool, pool, graph.TypeOf(graph.I32, heads),
		graph.TypeOf(graph.I64, heads, keys/op.Page)}
}

// naiveCUDAAttention stores all scores.
func naiveCUDAAttention(op graph.Op, args, results []cuda.Operand, _ cuda.Config) (*cuda.Kernel, error) {
	k, err := newCUDAKernel(args, results)
	if err == nil {
		err = k.naiveAttention(op)
	}
	if err != nil {
		return nil, fmt.Errorf("the variant naive is for an attention alone: %w", err)
	}
	return k.kernel(), nil
}

func (k *cudaKernel) naiveAttention(op graph.Op) error {
	if f, ok := op.(graph.Fusion); ok && f.Anchor == graph.AnchorAttention {
		op = f.Body.Outputs[0].Node.Op
	}
	a, ok := op.(graph.Attention)
	if !ok || a != (graph.Attention{Scale: a.Scale, Causal: a.Causal}) || len(k.args) != 3 || len(k.results) != 1 {
		return errors.New("not for " + op.OpName() + " with other operands or results")
	}
	var types []graph.Type
	for _, o := range append(k.args, k.results...) {
		if o.Layout != graph.Contiguous(o.Layout.Shape) {
			return errors.New("its operands are not row-major")
		}
		types = append(types, graph.TypeOf(o.DType, o.Layout.Shape.Slice()...))
	}
	d := a.DimsOf(types[:3])
	if d.Group != 1 {
		return errors.New("several heads of queries have the same keys")
	}
	heads := d.Batch.Elems() * d.Heads
	flat := func(rows, cols int) graph.Layout { return graph.Contiguous(graph.ShapeOf(heads, rows, cols)) }
	k.scratch = 4 * int64(heads) * int64(d.Queries) * int64(d.Keys)
	scores := flat(d.Queries, d.Keys)
	keys := flat(d.Keys, d.Depth)
	k.product("scores", heads, d.Queries, d.Keys, d.Depth, k.arg(0, flat(d.Queries, d.Depth)), k.arg(1, keys)+".transposed()",
		matrix("float", "p.scratch", scores))
	k.step("softmax", ceilDiv(heads*d.Queries, 8), 256, 0, fmt.Sprintf("  naive_softmax<%d, %d, %d, %t>(p.scratch, float(%g));\n",
		heads, d.Queries, d.Keys, a.Causal, a.Scale))
	k.product("values", heads, d.Queries, d.Width, d.Keys, matrix("float", "p.scratch", scores), k.arg(2, flat(d.Keys, d.Width)),
		k.result(0, flat(d.Queries, d.Width)))
	return nil
}
