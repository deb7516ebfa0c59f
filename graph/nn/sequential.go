package nn

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// Layer is part of a network: a function of one value, with weights.
type Layer interface {
	Forward(x *gorgonia.Node) (*gorgonia.Node, error)
	// Params lists the weights, for solvers and gorgonia.Grad.
	Params() gorgonia.Nodes
}

// Func is a function without weights as a layer, such as Func(ReLU) or Func(GlobalAvgPool2d).
type Func func(*gorgonia.Node) (*gorgonia.Node, error)

// Forward calls the function.
func (f Func) Forward(x *gorgonia.Node) (*gorgonia.Node, error) { return f(x) }

// Params lists nothing.
func (Func) Params() gorgonia.Nodes { return nil }

// Sequential is layers that are applied one after the other.
type Sequential []Layer

// Forward applies the layers.
func (s Sequential) Forward(x *gorgonia.Node) (*gorgonia.Node, error) {
	for i, l := range s {
		if l == nil {
			return nil, fmt.Errorf("layer %d is nil", i)
		}
		var err error
		if x, err = l.Forward(x); err != nil {
			return nil, err
		}
	}
	return x, nil
}

// Params lists the weights of all layers.
func (s Sequential) Params() gorgonia.Nodes {
	var p gorgonia.Nodes
	for _, l := range s {
		if l != nil {
			p = append(p, l.Params()...)
		}
	}
	return p
}

// Residual is a layer with a residual connection: After(Main(x) + Skip(x)) (He et al., arXiv 1512.03385).
type Residual struct {
	Main  Layer
	Skip  Layer // nil for x itself
	After Layer // nil for the sum itself
}

// Params lists the weights of all three.
func (r *Residual) Params() gorgonia.Nodes { return Sequential{r.Main, r.Skip, r.After}.Params() }

// Forward adds both ways.
func (r *Residual) Forward(x *gorgonia.Node) (*gorgonia.Node, error) {
	if r.Main == nil {
		return nil, errors.New("Residual: Main is nil")
	}
	y, err := r.Main.Forward(x)
	if err == nil && r.Skip != nil {
		x, err = r.Skip.Forward(x)
	}
	if err != nil {
		return nil, err
	}
	if y, err = gorgonia.Add(y, x); err != nil || r.After == nil {
		return y, err
	}
	return r.After.Forward(y)
}

// NewBasicBlock makes a residual block of two convolutions of 3×3, as in ResNet-18 and 34: from in to out channels; the
// first convolution moves by stride. Each convolution is normalised. Where the shapes differ, a convolution of 1×1 is the
// skip. Names of weights begin with name.
func NewBasicBlock(g *gorgonia.ExprGraph, of tensor.Dtype, name string, in, out, stride int) (*Residual, error) {
	return newBlock(g, of, name, in, stride, []plainConv{{out, 3, stride}, {out, 3, 1}})
}

// NewBottleneck makes a residual block of three convolutions, as in ResNet-50: 1×1 to mid channels, 3×3, which moves by
// stride, and 1×1 to out channels. The rest is as in [NewBasicBlock].
func NewBottleneck(g *gorgonia.ExprGraph, of tensor.Dtype, name string, in, mid, out, stride int) (*Residual, error) {
	return newBlock(g, of, name, in, stride, []plainConv{{mid, 1, 1}, {mid, 3, stride}, {out, 1, 1}})
}

// A plainConv is a convolution of a residual block, whose padding keeps the size of an image.
type plainConv struct{ out, kernel, stride int }

func newBlock(g *gorgonia.ExprGraph, of tensor.Dtype, name string, in, stride int, convs []plainConv) (*Residual, error) {
	main := Sequential{}
	channels := in
	for i, c := range convs {
		if i > 0 {
			main = append(main, Func(ReLU))
		}
		layers, err := normedConv(g, of, fmt.Sprintf("%s.conv%d", name, i+1), channels, c)
		if err != nil {
			return nil, err
		}
		main = append(main, layers...)
		channels = c.out
	}
	r := &Residual{Main: main, After: Func(ReLU)}
	if stride != 1 || in != channels {
		skip, err := normedConv(g, of, name+".skip", in, plainConv{channels, 1, stride})
		if err != nil {
			return nil, err
		}
		r.Skip = skip
	}
	return r, nil
}

// normedConv is a convolution without a bias, and a batch norm.
func normedConv(g *gorgonia.ExprGraph, of tensor.Dtype, name string, in int, c plainConv) (Sequential, error) {
	if c.stride < 1 {
		return nil, fmt.Errorf("block %s: a stride of %d", name, c.stride)
	}
	o := Conv2dOptions{Stride: c.stride, Pad: c.kernel / 2, NoBias: true}
	conv, err := NewConv2d(g, of, name, in, c.out, c.kernel, o)
	if err != nil {
		return nil, err
	}
	norm, err := NewBatchNorm(g, of, name+".norm", c.out)
	return Sequential{conv, norm}, err
}

// Norms lists the batch norms of a layer made of Sequential and Residual, in their order, to share their statistics.
func Norms(l Layer) []*BatchNorm {
	var list []*BatchNorm
	switch l := l.(type) {
	case *BatchNorm:
		list = append(list, l)
	case Sequential:
		for _, k := range l {
			list = append(list, Norms(k)...)
		}
	case *Residual:
		list = append(append(Norms(l.Main), Norms(l.Skip)...), Norms(l.After)...)
	}
	return list
}

// Dense is a linear layer; see [Linear].
type Dense struct {
	W    *gorgonia.Node // [in, out]
	Bias *gorgonia.Node // [out], or nil
}

// NewDense makes the layer's weights as [NewMultiHeadAttention] does.
func NewDense(g *gorgonia.ExprGraph, of tensor.Dtype, name string, in, out int) (*Dense, error) {
	return newDense(g, of, "Dense", name, in, out)
}

// newDense makes the weights of a layer of the given kind.
func newDense(g *gorgonia.ExprGraph, of tensor.Dtype, kind, name string, in, out int) (*Dense, error) {
	err := wantWeights(g, of)
	if err == nil && (in < 1 || out < 1) {
		err = fmt.Errorf("%d features to %d", in, out)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind, name, err)
	}
	w, bias := weights(g, of, name, in, out)
	return &Dense{w, bias}, nil
}

// Params lists the weights.
func (d *Dense) Params() gorgonia.Nodes { return present(d.W, d.Bias) }

// Forward is x·W + Bias for x [..., in].
func (d *Dense) Forward(x *gorgonia.Node) (*gorgonia.Node, error) { return Linear(x, d.W, d.Bias) }
