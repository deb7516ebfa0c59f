package nn

import (
	"errors"
	"fmt"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// BatchNorm is a layer that normalises each channel (Ioffe and Szegedy, arXiv 1502.03167). In training it uses the mean
// and the biased variance of the batch, and moves its running statistics towards the batch's mean and unbiased variance.
// In evaluation (gorgonia.EvalMode) it uses the running statistics. They are state: fusec's machines change them at the
// end of a successful run, Gorgonia's when they execute the node, a layer that is used twice in a run twice. Its fields may
// be changed before it is used.
type BatchNorm struct {
	Gamma, Beta *gorgonia.Node // [channels]: what the normalised values are multiplied by and what is added
	Eps         float64        // added to the variance
	Momentum    float64        // the weight of the past in the running statistics, in [0, 1]

	name           string
	mean, variance *graph.Tensor
}

// NewBatchNorm makes a layer for the given number of channels, with weights that are nodes of g whose names begin with
// name. Gamma starts as 1, beta as 0, the running mean as 0 and the running variance as 1; Eps is 1e-5 and Momentum 0.9.
func NewBatchNorm(g *gorgonia.ExprGraph, of tensor.Dtype, name string, channels int) (*BatchNorm, error) {
	err := wantWeights(g, of)
	if err == nil && channels < 1 {
		err = fmt.Errorf("%d channels", channels)
	}
	if err != nil {
		return nil, fmt.Errorf("BatchNorm %s: %w", name, err)
	}
	t := graph.TypeOf(graph.F32, channels)
	if of == tensor.Float64 {
		t.DType = graph.F64
	}
	vector := func(name string, init gorgonia.InitWFn) *gorgonia.Node {
		return gorgonia.NewVector(g, of, gorgonia.WithShape(channels), gorgonia.WithName(name), gorgonia.WithInit(init))
	}
	return &BatchNorm{
		Gamma: vector(name+".gamma", gorgonia.Ones()), Beta: vector(name+".beta", gorgonia.Zeroes()),
		Eps: 1e-5, Momentum: 0.9, name: name, mean: graph.NewTensor(t), variance: graph.Filled(t, 1),
	}, nil
}

// Params lists the weights.
func (n *BatchNorm) Params() gorgonia.Nodes { return present(n.Gamma, n.Beta) }

// Mean and Variance are the running statistics [channels]. They may be changed between runs.
func (n *BatchNorm) Mean() *graph.Tensor { return n.mean }

// Variance is described at Mean.
func (n *BatchNorm) Variance() *graph.Tensor { return n.variance }

// Share makes the layer use the running statistics of another one, of another graph as a rule: runs of either change
// both. It is called before a machine is made. Gamma and Beta are not shared.
func (n *BatchNorm) Share(from *BatchNorm) error {
	if from == nil {
		return fmt.Errorf("BatchNorm %s: there is no layer to share with", n.name)
	}
	if n.mean.Type != from.mean.Type {
		return fmt.Errorf("BatchNorm %s has statistics of type %v; it was to share %v of %s", n.name, n.mean.Type, from.mean.Type,
			from.name)
	}
	n.mean.Data, n.variance.Data = from.mean.Data, from.variance.Data
	return nil
}

// Forward normalises x [n, channels, ...].
func (n *BatchNorm) Forward(x *gorgonia.Node) (*gorgonia.Node, error) {
	if !(n.Momentum >= 0 && n.Momentum <= 1) {
		return nil, fmt.Errorf("BatchNorm %s: a momentum of %v, which is not in [0, 1]", n.name, n.Momentum)
	}
	if n.mean == nil {
		return nil, errors.New("BatchNorm: the layer has no statistics: make it by NewBatchNorm")
	}
	d := batchNorm{graph.BatchNorm{Eps: n.Eps, Momentum: n.Momentum, Train: true}}
	held := []fgorgonia.Held{{Name: "mean", Value: n.mean}, {Name: "variance", Value: n.variance}}
	y, err := applyHeld(d, held, operand{"x", x}, operand{"gamma", n.Gamma}, operand{"beta", n.Beta})
	if err != nil {
		return nil, err
	}
	gorgonia.WithName(n.name)(y)
	return y, nil
}

type batchNorm struct{ op graph.BatchNorm }

func (d batchNorm) name() string { return single{d.op, "BatchNorm"}.name() }

func (d batchNorm) build(b *graph.Builder, args []*graph.Node) *graph.Node {
	return b.Add(d.op, args...)
}

// still implements modal.
func (d batchNorm) still() definition {
	d.op.Train = false
	return d
}

// next implements keeper.
func (d batchNorm) next(b *graph.Builder, y *graph.Node) []*graph.Node {
	if !d.op.Train {
		return nil
	}
	return []*graph.Node{b.Add(graph.Result{Index: 1}, y), b.Add(graph.Result{Index: 2}, y)}
}
