package examples

import (
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/examples/train"
	"fusec/graph/nn"
)

// A network builds a graph and collects its learnables. The first error is kept; after it, methods do nothing.
type network struct {
	g          *gorgonia.ExprGraph
	of         tensor.Dtype
	learnables gorgonia.Nodes
	gates      []train.Gate
	layers     nn.Sequential   // appended and not yet applied
	norms      []*nn.BatchNorm // of the layers applied
	err        error
}

func newNetwork(of tensor.Dtype) *network { return &network{g: gorgonia.NewGraph(), of: of} }

// keep returns the node, or records the error.
func (n *network) keep(y *gorgonia.Node, err error) *gorgonia.Node {
	if n.err == nil {
		n.err = err
	}
	return y
}

// matrix declares a weight matrix; seed sets its values.
func (n *network) matrix(name string, rows, columns int) *gorgonia.Node {
	return n.learnable(gorgonia.NewMatrix(n.g, n.of, gorgonia.WithShape(rows, columns), gorgonia.WithName(name),
		gorgonia.WithInit(gorgonia.Zeroes())))
}

// vector declares a bias or gain that starts as all zeros or all ones.
func (n *network) vector(name string, size int, first gorgonia.InitWFn) *gorgonia.Node {
	return n.learnable(gorgonia.NewVector(n.g, n.of, gorgonia.WithShape(size), gorgonia.WithName(name),
		gorgonia.WithInit(first)))
}

func (n *network) learnable(w *gorgonia.Node) *gorgonia.Node {
	n.learnables = append(n.learnables, w)
	return w
}

// input declares floats that each batch fills.
func (n *network) input(name string, shape ...int) *gorgonia.Node {
	return gorgonia.NewTensor(n.g, n.of, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name))
}

// integers declares integers that each batch fills: tokens, labels, vertices.
func (n *network) integers(name string, shape ...int) *gorgonia.Node {
	return gorgonia.NewTensor(n.g, tensor.Int, len(shape), gorgonia.WithShape(shape...), gorgonia.WithName(name))
}

// add appends a layer, for through to apply, or records the error.
func (n *network) add(l nn.Layer, err error) {
	if n.err == nil {
		n.layers, n.err = append(n.layers, l), err
	}
}

// linear is x·w + b for x [..., in].
func (n *network) linear(name string, x *gorgonia.Node, in, out int) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	w, b := n.matrix(name+".weight", in, out), n.vector(name+".bias", out, gorgonia.Zeroes())
	return n.keep(nn.Linear(x, w, b))
}

// project is x·w for x [..., in].
func (n *network) project(name string, x *gorgonia.Node, in, out int) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	return n.keep(nn.Linear(x, n.matrix(name+".weight", in, out), nil))
}

// normEps is added to variances and mean squares.
const normEps = 1e-5

// rmsNorm normalises x [..., dim] with a learnt gain.
func (n *network) rmsNorm(name string, x *gorgonia.Node, dim int) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	return n.keep(nn.RMSNorm(x, n.vector(name+".gain", dim, gorgonia.Ones()), normEps))
}

// layerNorm normalises x [..., dim] with a learnt gain and bias.
func (n *network) layerNorm(name string, x *gorgonia.Node, dim int) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	gain, bias := n.vector(name+".gain", dim, gorgonia.Ones()), n.vector(name+".bias", dim, gorgonia.Zeroes())
	return n.keep(nn.LayerNorm(x, gain, bias, normEps))
}

// unary applies an operation of one operand, such as nn.GELU.
func (n *network) unary(f func(*gorgonia.Node) (*gorgonia.Node, error), x *gorgonia.Node) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	return n.keep(f(x))
}

// binary applies an operation of two operands, such as gorgonia.Add.
func (n *network) binary(f func(x, y *gorgonia.Node) (*gorgonia.Node, error), x, y *gorgonia.Node) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	return n.keep(f(x, y))
}

// reshape gives x another shape.
func (n *network) reshape(x *gorgonia.Node, shape ...int) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	return n.keep(gorgonia.Reshape(x, shape))
}

// broadcast applies an operation such as gorgonia.BroadcastAdd to x and y, y repeated along the given axis, along which
// it has one element.
func (n *network) broadcast(f func(x, y *gorgonia.Node, left, right []byte) (*gorgonia.Node, error),
	x, y *gorgonia.Node, axis byte) *gorgonia.Node {
	if n.err != nil {
		return nil
	}
	return n.keep(f(x, y, nil, []byte{axis}))
}

// model is the network with its inputs and its prediction.
func (n *network) model(output *gorgonia.Node, inputs ...*gorgonia.Node) (*train.Model, error) {
	if n.err != nil {
		return nil, n.err
	}
	return &train.Model{Graph: n.g, Inputs: inputs, Output: output, Learnables: n.learnables, Gates: n.gates,
		Norms: n.norms}, nil
}

// Classify gives a model a cost: the mean cross-entropy of its output, logits [..., classes], with labels [...], which
// become its last input. Negative labels do not count.
func Classify(m *train.Model) error {
	s := m.Output.Shape()
	labels := gorgonia.NewTensor(m.Graph, tensor.Int, len(s)-1, gorgonia.WithShape(s[:len(s)-1]...),
		gorgonia.WithName("labels"))
	cost, err := nn.CrossEntropy(m.Output, labels)
	if err != nil {
		return err
	}
	m.Inputs, m.Cost = append(m.Inputs, labels), cost
	return nil
}

// A builder makes a model that predicts for batches of the given size.
type builder = func(batch int) (*train.Model, error)

// classifier builds a model with a cost and draws its first weights.
func classifier(s train.Settings, build builder) (*train.Model, error) {
	m, err := build(s.Batch)
	if err == nil {
		err = Classify(m)
	}
	if err == nil {
		err = seed(m, s.Seed)
	}
	return m, err
}

// seed sets the values of all learnables with more than one axis at random, as [train.Draw] says, because Gorgonia's initialisers
// are seeded by the clock.
func seed(m *train.Model, seed uint64) error {
	for _, n := range m.Learnables {
		s := n.Shape()
		if len(s) < 2 {
			continue
		}
		next := train.Draw(n.Name(), s, seed)
		switch data := n.Value().Data().(type) {
		case []float32:
			for i := range data {
				data[i] = float32(next())
			}
		case []float64:
			for i := range data {
				data[i] = next()
			}
		default:
			return fmt.Errorf("%q holds %T, not floats", n.Name(), data)
		}
	}
	return nil
}
