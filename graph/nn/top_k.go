package nn

import (
	"fmt"

	"fusec/graph"

	"gorgonia.org/gorgonia"
)

// TopK selects the k largest elements of each row of x [..., n], in descending order: their values [..., k] and, as
// ints, their indices in the row [..., k]. Equal elements keep their order, and NaN comes last. The values pass their
// gradients to the elements from which they were taken.
func TopK(x *gorgonia.Node, k int) (values, indices *gorgonia.Node, err error) {
	if values, err = apply(topK{k: k}, operand{"x", x}); err != nil {
		return nil, nil, err
	}
	if indices, err = apply(topK{k, true}, operand{"x", x}); err != nil {
		return nil, nil, err
	}
	return values, indices, nil
}

type topK struct {
	k       int
	indices bool
}

func (d topK) name() string {
	if d.indices {
		return fmt.Sprintf("TopK(%d) indices", d.k)
	}
	return fmt.Sprintf("TopK(%d)", d.k)
}

func (d topK) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	values := b.Add(graph.TopK{K: d.k}, args...)
	if d.indices {
		return b.Add(graph.Result{Index: 1}, values)
	}
	return values
}
