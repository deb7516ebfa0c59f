package bench

import (
	"fmt"

	"fusec/cmd/peers/workload"
	"fusec/graph"
)

// convolutions is a network of convolutions, a node or two for each layer. Norms are in training where the workload is.
func convolutions(b *graph.Builder, w workload.Workload, t map[string]*graph.Node) (*graph.Node, error) {
	values := []*graph.Node{t["x"]}
	for _, l := range w.Net {
		var args []*graph.Node
		for _, a := range l.Args {
			args = append(args, values[a])
		}
		for _, name := range l.Tensors {
			args = append(args, t[name])
		}
		y, err := layer(b, l, args, w.Base != "")
		if err != nil {
			return nil, fmt.Errorf("the workload %q: %w", w.Name, err)
		}
		values = append(values, y)
	}
	return values[len(w.Net)], b.Err()
}

// layer is one layer's value.
func layer(b *graph.Builder, l workload.Layer, args []*graph.Node, train bool) (*graph.Node, error) {
	x, s := args[0], l.Shape
	both := func(n int) graph.Ints { return graph.IntsOf(n, n) }
	pad := graph.IntsOf(l.Pad, l.Pad, l.Pad, l.Pad)
	switch l.Kind {
	case workload.LayerConv:
		y := b.Add(graph.Conv2D{Stride: both(l.Stride), Dilation: both(1), Pad: pad, Groups: l.Groups}, x, args[1])
		if len(args) > 2 {
			y = b.Binary(graph.Add, y, b.Broadcast(b.Reshape(args[2], s[1], 1, 1), graph.ShapeOf(s[:]...)))
		}
		return y, nil
	case workload.LayerNorm:
		return b.Add(graph.BatchNorm{Eps: workload.Eps, Train: train}, args...), nil
	case workload.LayerRelu:
		return b.Unary(graph.Relu, x), nil
	case workload.LayerRelu6:
		return b.BinaryScalar(graph.Min, b.Unary(graph.Relu, x), 6), nil
	case workload.LayerSilu:
		return b.Unary(graph.Silu, x), nil
	case workload.LayerSigmoid:
		return b.Unary(graph.Sigmoid, x), nil
	case workload.LayerAdd:
		return b.Binary(graph.Add, x, args[1]), nil
	case workload.LayerConcat:
		return b.Add(graph.Concat{Axis: l.Axis}, args...), nil
	case workload.LayerMaxPool:
		return b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: both(l.Kernel), Stride: both(l.Stride), Pad: pad}, x), nil
	case workload.LayerUpsample:
		h, w := s[2]/2, s[3]/2
		y := b.Broadcast(b.Reshape(x, s[0], s[1], h, 1, w, 1), graph.ShapeOf(s[0], s[1], h, 2, w, 2))
		return b.Reshape(y, s[:]...), nil
	case workload.LayerMean:
		return b.Reduce(graph.Mean, x, true, 2, 3), nil
	case workload.LayerLinear:
		y := Linear(b, b.Reshape(x, s[0], x.Type.Shape.At(1)), args[1], args[2])
		return b.Reshape(y, s[:]...), nil
	case workload.LayerFlat:
		return b.Reshape(x, s[:]...), nil
	}
	return nil, fmt.Errorf("a layer of the unknown kind %q", l.Kind)
}
