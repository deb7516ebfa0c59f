package bench

import (
	"fmt"
	"math"
	"strings"

	"fusec"
	"fusec/cmd/peers/workload"
	"fusec/graph"
)

// workloadOutput is the name of a workload's result, or of the first part of it.
const workloadOutput = "y"

// workloadGraph builds a workload as a user would write it. Its first tensor is an input and the others are weights,
// except that all operands of a bare product or attention are inputs, and all tensors where they change from step to step. Its
// outputs, those that the options ask for included, are one after another the workload's result. Values are of type d.
func workloadGraph(w workload.Workload, d graph.DType) (g *graph.Graph, gradients []fusec.CompileOption, outputs []string,
	err error) {
	b := graph.NewBuilder(w.Name)
	attends := strings.HasPrefix(w.Name, "attention-")
	bare := attends || strings.HasPrefix(w.Name, "gemm-")
	t := map[string]*graph.Node{}
	for i, x := range w.Tensors {
		declare := b.Param
		if i == 0 || bare || w.Base != "" {
			declare = b.Input
		}
		t[x.Name] = declare(x.Name, graph.TypeOf(d, x.Shape...))
	}
	name := strings.TrimSuffix(w.Name, "-bf16")
	if w.Base != "" {
		name = w.Base
	}
	outputs = []string{workloadOutput}
	var y *graph.Node
	if w.Net != nil {
		y, err = convolutions(b, w, t)
	} else {
		y, err = forward(b, name, t)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if w.Base != "" {
		axes := make([]int, y.Type.Shape.Rank())
		for i := range axes {
			axes[i] = i
		}
		y = b.Reduce(graph.Mean, b.Unary(graph.Square, b.Binary(graph.Sub, y, t["target"])), false, axes...)
		for _, x := range w.Weights() {
			outputs = append(outputs, "gradient of "+x.Name)
			gradients = append(gradients, fusec.WithGradient(outputs[len(outputs)-1], y, t[x.Name]))
		}
	}
	b.Output(workloadOutput, y)
	g, err = b.Graph()
	return g, gradients, outputs, err
}

// forward is a workload's value.
func forward(b *graph.Builder, name string, t map[string]*graph.Node) (y *graph.Node, err error) {
	switch {
	case strings.HasPrefix(name, "attention-"):
		y = attend(b, t, strings.HasSuffix(name, "-causal"))
	case strings.HasPrefix(name, "gemm-"):
		y = b.MatMul(t["a"], t["b"], false, false)
	case name == "linear-plain":
		y = b.MatMul(t["x"], t["w"], false, false)
	case name == "linear-gelu":
		y = b.Unary(graph.GeluTanh, Linear(b, t["x"], t["w"], t["b"]))
	case name == "mlp":
		h := b.Unary(graph.Relu, Linear(b, t["x"], t["w1"], t["b1"]))
		h = b.Unary(graph.Relu, Linear(b, h, t["w2"], t["b2"]))
		y = Linear(b, h, t["w3"], t["b3"])
	case name == "block":
		y = block(b, t)
	default:
		err = fmt.Errorf("the workload %q has no graph here", name)
	}
	return y, err
}

// attend is attention over tokens whose heads stand side by side.
func attend(b *graph.Builder, t map[string]*graph.Node, causal bool) *graph.Node {
	seq := t["q"].Type.Shape.At(0)
	heads := func(x *graph.Node) *graph.Node {
		return b.Transpose(b.Reshape(x, seq, workload.AttentionHeads, workload.AttentionDim), 1, 0, 2)
	}
	op := graph.Attention{Scale: workload.AttentionScale, Causal: causal}
	y := b.Add(op, heads(t["q"]), heads(t["k"]), heads(t["v"]))
	return b.Reshape(b.Transpose(y, 1, 0, 2), seq, workload.AttentionHeads*workload.AttentionDim)
}

// Linear is x·w + bias.
func Linear(b *graph.Builder, x, w, bias *graph.Node) *graph.Node {
	y := b.MatMul(x, w, false, false)
	return b.Binary(graph.Add, y, b.Broadcast(bias, y.Type.Shape))
}

// block is the transformer block: attention over the heads and a feed-forward layer, each added to its input and
// normalised.
func block(b *graph.Builder, t map[string]*graph.Node) *graph.Node {
	const batch, seq, dim, heads = workload.Batch, workload.Seq, workload.Dim, workload.Heads
	const width = dim / heads
	norm := graph.LayerNorm{Eps: workload.Eps}
	qkv := b.Reshape(Linear(b, t["x"], t["wqkv"], t["bqkv"]), batch, seq, 3, heads, width)
	qkv = b.Transpose(qkv, 2, 0, 3, 1, 4)
	part := func(i int) *graph.Node { return b.Reshape(b.Slice(qkv, 0, i, 1, 1), batch, heads, seq, width) }
	scores := b.BinaryScalar(graph.Mul, b.MatMul(part(0), part(1), false, true), 1/math.Sqrt(width))
	o := b.MatMul(b.Add(graph.Softmax{Axis: 3}, scores), part(2), false, false)
	o = b.Reshape(b.Transpose(o, 0, 2, 1, 3), batch*seq, dim)
	x := b.Add(norm, b.Binary(graph.Add, t["x"], Linear(b, o, t["wo"], t["bo"])), t["gamma1"], t["beta1"])
	h := b.Unary(graph.GeluTanh, Linear(b, x, t["w1"], t["b1"]))
	return b.Add(norm, b.Binary(graph.Add, x, Linear(b, h, t["w2"], t["b2"])), t["gamma2"], t["beta2"])
}
