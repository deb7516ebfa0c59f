package panels

import (
	"errors"
	"fmt"

	"fusec/graph"
	"fusec/graph/trace"
	"fusec/passes/rewrite"
)

// storedKeys is the name of the rewrite of [attend].
const storedKeys = "stored-keys"

// attend has attentions read keys and values of 8 bits as they are stored, such as those of a cache:
//
//	k8, scale ─► dequantize ─┐                    k8, v8 ─► attention[has_scales] ─►
//	q ──────────────────────attention ─►    to    q, scales ──────┘
//	v8, scale ─► dequantize ─┘
//
// Scores are multiplied by the scale of their key, and weights by that of their value.
func attend(c *rewrite.Context) error {
	g := c.Graph
	b := graph.Extend(g)
	with := map[*graph.Node]*graph.Node{}
	for _, n := range append([]*graph.Node(nil), g.Nodes...) {
		op, ok := n.Op.(graph.Attention)
		if !ok || op.HasScales {
			continue
		}
		k, v := dequantizedUnder(n.Args[1]), dequantizedUnder(n.Args[2])
		if k == nil && v == nil {
			continue
		}
		first := len(g.Nodes)
		b.From(n)
		y, err := attendStored(c, b, n, op, k, v)
		if err != nil {
			if b.Err() != nil {
				return b.Err()
			}
			g.Nodes = g.Nodes[:first]
			c.Miss(storedKeys, n, "its keys and values are dequantized in each run: "+err.Error(), []*graph.Node{n})
			continue
		}
		y.Name = n.Name
		with[n] = y
		c.Became(n, y)
		c.Match(storedKeys, trace.Reassociated, "", y, k, v, n)
	}
	if err := b.Err(); err != nil || len(with) == 0 {
		return err
	}
	g.Replace(with)
	return g.Tidy()
}

// attendStored is the attention n on what k and v, a Dequantize each, read. The error carries the reason why there is none.
func attendStored(c *rewrite.Context, b *graph.Builder, n *graph.Node, op graph.Attention, k, v *graph.Node) (*graph.Node, error) {
	if k == nil || v == nil {
		return nil, errors.New("keys and values are not both stored in few bits")
	}
	keys, keyScales, err := storedRows(b, n.Args[1])
	if err != nil {
		return nil, err
	}
	values, valueScales, err := storedRows(b, n.Args[2])
	if err != nil {
		return nil, err
	}
	op.HasScales = true
	args := append([]*graph.Node{n.Args[0], keys, values}, n.Args[3:]...)
	args = append(args, keyScales, valueScales)
	if err := b.Err(); err != nil {
		return nil, err
	}
	if err := c.Accepts(op, args...); err != nil {
		return nil, err
	}
	return b.Add(op, args...), b.Err()
}

// dequantizedUnder is the Dequantize that n is a view of, or nil.
func dequantizedUnder(n *graph.Node) *graph.Node {
	n = rewrite.UnderViews(n)
	if _, ok := n.Op.(graph.Dequantize); ok {
		return n
	}
	return nil
}

// storedRows is what n, a view of a Dequantize, has integers of, and the scale of each of its rows.
func storedRows(b *graph.Builder, n *graph.Node) (q, scale *graph.Node, err error) {
	last := n.Type.Shape.Rank() - 1
	switch op := n.Op.(type) {
	case graph.Dequantize:
		q, scale := n.Args[0], n.Args[1]
		switch {
		case q.Type.DType != graph.I8:
			return nil, nil, fmt.Errorf("%s is stored as %v, and not as i8", n.Where(), q.Type.DType)
		case len(n.Args) > 2:
			return nil, nil, fmt.Errorf("%s has zero points", n.Where())
		case op.Axis != last || op.Block == 0 || scale.Type.Shape != n.Type.Shape.With(last, 1):
			return nil, nil, fmt.Errorf("%s has scales %v, and not one for each row of %v", n.Where(), scale.Type.Shape, n.Type.Shape)
		}
		return q, scale, nil
	case graph.Transpose:
		if op.Perm.At(last) != last {
			break
		}
		if q, scale, err = storedRows(b, n.Args[0]); err != nil {
			return nil, nil, err
		}
		return b.Add(op, q), b.Add(op, scale), nil
	case graph.Reshape:
		if !rewrite.KeepsRows(n) {
			break
		}
		if q, scale, err = storedRows(b, n.Args[0]); err != nil {
			return nil, nil, err
		}
		dims := n.Type.Shape.Slice()
		return b.Reshape(q, dims...), b.Reshape(scale, n.Type.Shape.With(last, 1).Slice()...), nil
	}
	return nil, nil, fmt.Errorf("%s moves elements between the rows that have a scale each", n.Where())
}
