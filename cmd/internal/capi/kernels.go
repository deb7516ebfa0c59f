package capi

import (
	"container/list"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"fusec/graph"
)

// maxKernels is how many compiled kernels are kept.
const maxKernels = 128

// kernels are those that were compiled, by what they compute.
var kernels = struct {
	sync.Mutex
	byKey map[string]*list.Element // of a *kernel
	order list.List                // the last one used first
}{byKey: map[string]*list.Element{}}

// kernel is a compiled kernel.
type kernel struct {
	sync.Mutex
	key     string
	program *Program // nil if it has not been compiled
}

// Operand is an operand or result of a kernel, with its name in messages. Its tensor is nil if it is left out.
type Operand struct {
	Name   string
	Tensor *Tensor
}

// optional are the operands that may be left out.
var optional = map[string]bool{"bias": true, "residual": true, "mask": true, "w3": true, "gain": true}

// inputs are the nodes of a kernel's operands by name; those left out are missing.
type inputs map[string]*graph.Node

// forward writes a kernel's result into a graph.
type forward func(b *graph.Builder, in inputs) *graph.Node

// call runs a kernel that computes y of the operands: a forward pass.
func call(name, how string, operands []Operand, y *Tensor, f forward) error {
	return run(name, how, operands, []Operand{{"y", y}}, func(g *graph.Graph, b *graph.Builder, in inputs) error {
		b.Output("y", f(b, in))
		return nil
	})
}

// backward runs a kernel that computes the gradients of y for operands, given dy. Results are named like their operands.
func backward(name, how string, operands []Operand, dy *Tensor, results []Operand, f forward) error {
	wanted := results[:0:0]
	for _, r := range results {
		if r.Tensor != nil {
			wanted = append(wanted, r)
		}
	}
	if len(wanted) == 0 {
		return nil
	}
	operands = append(operands, Operand{"dy", dy})
	return run(name+" backward", how, operands, wanted, func(g *graph.Graph, b *graph.Builder, in inputs) error {
		y := f(b, in)
		for _, r := range wanted {
			if in[r.Name] == nil {
				return fmt.Errorf("the gradient for %s is wanted, which is not given", r.Name)
			}
			g.Gradients = append(g.Gradients, graph.GradMark{Cost: y, Of: in[r.Name], Seed: in["dy"], Output: r.Name, Wanted: true})
		}
		return nil
	})
}

// run computes results of operands by a program that build writes, compiled for their shapes, and for how it is set, when it is
// first needed.
func run(name, how string, operands, results []Operand, build func(*graph.Graph, *graph.Builder, inputs) error) error {
	fail := func(err error) error { return fmt.Errorf("%s: %w", name, err) }
	var key strings.Builder
	key.WriteString(name + " " + how)
	types := make([]graph.Type, len(operands))
	for i, o := range operands {
		if o.Tensor == nil {
			if !optional[o.Name] {
				return fail(fmt.Errorf("no %s was given", o.Name))
			}
			continue
		}
		dims, err := o.Tensor.shape()
		if err != nil {
			return fail(fmt.Errorf("%s: %w", o.Name, err))
		}
		if err := graph.ShapeOf(dims...).Check(); err != nil {
			return fail(fmt.Errorf("%s: %w", o.Name, err))
		}
		types[i] = graph.TypeOf(graph.F32, dims...)
		fmt.Fprintf(&key, " %s%v", o.Name, types[i].Shape)
	}
	for _, r := range results {
		key.WriteString(" " + r.Name)
	}
	k := find(key.String())
	defer k.Unlock()
	if k.program == nil {
		g := graph.New(name)
		b := graph.Extend(g)
		in := inputs{}
		for i, o := range operands {
			if o.Tensor != nil {
				in[o.Name] = b.Input(o.Name, types[i])
			}
		}
		err := build(g, b, in)
		if err == nil {
			_, err = b.Graph()
		}
		if err == nil {
			k.program, err = compile(g, &settings{}, nil)
		}
		if err != nil {
			forget(k)
			return fail(err)
		}
	}
	for _, o := range operands {
		if o.Tensor == nil {
			continue
		}
		if err := k.program.Set(o.Name, o.Tensor); err != nil {
			return fail(err)
		}
	}
	// The results' memory is checked before anything is computed.
	for _, r := range results {
		v, _, err := k.program.find(r.Name, KindOutput)
		if err != nil {
			return fail(err)
		}
		if _, _, err := r.Tensor.elements(v.Type); err != nil {
			return fail(fmt.Errorf("result %s: %w", r.Name, err))
		}
	}
	if err := k.program.Run(); err != nil {
		return fail(err)
	}
	for _, r := range results {
		value, err := k.program.program.Output(r.Name)
		if err != nil {
			return fail(err)
		}
		if err := r.Tensor.Write(value); err != nil {
			return fail(err)
		}
	}
	return nil
}

// find is the kernel of a key, locked. It may not have been compiled.
func find(key string) *kernel {
	kernels.Lock()
	e := kernels.byKey[key]
	var old *kernel
	if e == nil {
		e = kernels.order.PushFront(&kernel{key: key})
		kernels.byKey[key] = e
		if kernels.order.Len() > maxKernels {
			old = kernels.order.Remove(kernels.order.Back()).(*kernel)
			delete(kernels.byKey, old.key)
		}
	} else {
		kernels.order.MoveToFront(e)
	}
	kernels.Unlock()
	old.close()
	k := e.Value.(*kernel)
	k.Lock()
	return k
}

// forget drops a kernel that did not compile.
func forget(k *kernel) {
	kernels.Lock()
	defer kernels.Unlock()
	if e := kernels.byKey[k.key]; e != nil && e.Value == k {
		kernels.order.Remove(e)
		delete(kernels.byKey, k.key)
	}
}

// close lets go of a kernel's program once nobody uses it. A thread that found it before compiles it again.
func (k *kernel) close() error {
	if k == nil {
		return nil
	}
	k.Lock()
	defer k.Unlock()
	if k.program == nil {
		return nil
	}
	err := k.program.Close()
	k.program = nil
	return err
}

// FreeKernels lets go of all kernels that were compiled.
func FreeKernels() error {
	kernels.Lock()
	var all []*kernel
	for e := kernels.order.Front(); e != nil; e = e.Next() {
		all = append(all, e.Value.(*kernel))
	}
	kernels.order.Init()
	clear(kernels.byKey)
	kernels.Unlock()
	var errs []error
	for _, k := range all {
		errs = append(errs, k.close())
	}
	return errors.Join(errs...)
}

// activation is the function of a name, or nil for an empty name. Gelu is that of PyTorch: by the error function.
func activation(name string) (*graph.Unary, error) {
	switch name {
	case "":
		return nil, nil
	case "gelu":
		name = graph.GeluErf.String()
	}
	var f graph.UnaryFn
	if err := f.UnmarshalText([]byte(name)); err != nil {
		return nil, err
	}
	if f.HasAlpha() {
		return nil, fmt.Errorf("activation %q has a parameter", name)
	}
	return &graph.Unary{Fn: f}, nil
}

// Linear computes y = activation(x·w + bias) + residual.
func Linear(x, w, bias, residual *Tensor, act string, y *Tensor) error {
	f, err := linear(act)
	if err != nil {
		return err
	}
	return call("linear", act, []Operand{{"x", x}, {"w", w}, {"bias", bias}, {"residual", residual}}, y, f)
}

// LinearBackward computes the gradients of Linear's operands; those that are nil are left out.
func LinearBackward(x, w, bias *Tensor, act string, dy, dx, dw, dbias, dresidual *Tensor) error {
	f, err := linear(act)
	if err != nil {
		return err
	}
	if dresidual != nil { // y depends on the residual by a plain sum
		if err := call("linear", "residual", []Operand{{"dy", dy}}, dresidual, func(b *graph.Builder, in inputs) *graph.Node {
			return b.Add(graph.Copy{}, in["dy"])
		}); err != nil {
			return err
		}
	}
	return backward("linear", act, []Operand{{"x", x}, {"w", w}, {"bias", bias}}, dy,
		[]Operand{{"x", dx}, {"w", dw}, {"bias", dbias}}, f)
}

func linear(act string) (forward, error) {
	f, err := activation(act)
	return func(b *graph.Builder, in inputs) *graph.Node {
		y := b.MatMul(in["x"], in["w"], false, false)
		if bias := in["bias"]; bias != nil {
			y = b.Binary(graph.Add, y, b.Broadcast(bias, y.Type.Shape))
		}
		if f != nil {
			y = b.Add(*f, y)
		}
		if r := in["residual"]; r != nil {
			y = b.Binary(graph.Add, y, r)
		}
		return y
	}, err
}

// AttentionOptions are those of Attention. A Scale of zero is 1/√d; a Window of zero is none.
type AttentionOptions struct {
	Scale  float64
	Causal bool
	Window int
}

// Attention computes softmax(scale·q·kᵀ + mask)·v for each head.
func Attention(q, k, v, mask *Tensor, o AttentionOptions, y *Tensor) error {
	return call("attention", fmt.Sprint(o), []Operand{{"q", q}, {"k", k}, {"v", v}, {"mask", mask}}, y, attention(o))
}

// AttentionBackward computes the gradients of q, k and v; those that are nil are left out.
func AttentionBackward(q, k, v, mask *Tensor, o AttentionOptions, dy, dq, dk, dv *Tensor) error {
	return backward("attention", fmt.Sprint(o), []Operand{{"q", q}, {"k", k}, {"v", v}, {"mask", mask}}, dy,
		[]Operand{{"q", dq}, {"k", dk}, {"v", dv}}, attention(o))
}

func attention(o AttentionOptions) forward {
	return func(b *graph.Builder, in inputs) *graph.Node {
		op := graph.Attention{Scale: o.Scale, Causal: o.Causal, Window: o.Window}
		q := in["q"]
		if rank := q.Type.Shape.Rank(); op.Scale == 0 && rank > 0 {
			op.Scale = 1 / math.Sqrt(float64(q.Type.Shape.At(rank-1)))
		}
		args := []*graph.Node{q, in["k"], in["v"]}
		if in["mask"] != nil {
			op.HasMask = true
			args = append(args, in["mask"])
		}
		return b.Add(op, args...)
	}
}

// MoE computes a mixture of experts.
func MoE(x, gates, w1, w3, w2 *Tensor, act string, y *Tensor) error {
	f, err := moe(act)
	if err != nil {
		return err
	}
	return call("moe", act, moeOperands(x, gates, w1, w3, w2), y, f)
}

// MoEBackward computes the gradients of MoE's operands; those that are nil are left out.
func MoEBackward(x, gates, w1, w3, w2 *Tensor, act string, dy, dx, dgates, dw1, dw3, dw2 *Tensor) error {
	f, err := moe(act)
	if err != nil {
		return err
	}
	return backward("moe", act, moeOperands(x, gates, w1, w3, w2), dy, moeOperands(dx, dgates, dw1, dw3, dw2), f)
}

func moeOperands(x, gates, w1, w3, w2 *Tensor) []Operand {
	return []Operand{{"x", x}, {"gates", gates}, {"w1", w1}, {"w3", w3}, {"w2", w2}}
}

func moe(act string) (forward, error) {
	f, err := activation(act)
	if err == nil && f == nil {
		err = errors.New("moe: an activation is required")
	}
	return func(b *graph.Builder, in inputs) *graph.Node {
		op := graph.MoE{Activation: f.Fn, AtZero: f.AtZero, Gated: in["w3"] != nil, Stacked: true}
		if s := in["gates"].Type.Shape; s.Rank() > 0 {
			op.Experts = s.At(s.Rank() - 1)
		}
		args := []*graph.Node{in["x"], in["gates"], in["w1"]}
		if op.Gated {
			args = append(args, in["w3"])
		}
		return b.Add(op, append(args, in["w2"])...)
	}, err
}

// LayerNorm normalises each row of x to mean 0 and variance 1, times gain, plus bias.
func LayerNorm(x, gain, bias *Tensor, eps float64, y *Tensor) error {
	return call("layer norm", fmt.Sprint(eps), []Operand{{"x", x}, {"gain", gain}, {"bias", bias}}, y, layerNorm(eps))
}

// LayerNormBackward computes the gradients of LayerNorm's operands; those that are nil are left out. A bias has no influence on
// the others' gradients: dbias may be wanted without it.
func LayerNormBackward(x, gain *Tensor, eps float64, dy, dx, dgain, dbias *Tensor) error {
	if dbias != nil {
		if err := call("layer norm", "bias", []Operand{{"dy", dy}}, dbias, func(b *graph.Builder, in inputs) *graph.Node {
			axes := make([]int, max(0, in["dy"].Type.Shape.Rank()-1))
			for i := range axes {
				axes[i] = i
			}
			return b.Reduce(graph.Sum, in["dy"], false, axes...)
		}); err != nil {
			return err
		}
	}
	return backward("layer norm", fmt.Sprint(eps), []Operand{{"x", x}, {"gain", gain}}, dy,
		[]Operand{{"x", dx}, {"gain", dgain}}, layerNorm(eps))
}

func layerNorm(eps float64) forward {
	return func(b *graph.Builder, in inputs) *graph.Node {
		return b.Add(graph.LayerNorm{Eps: eps}, in["x"], vector(b, in, "gain", 1), vector(b, in, "bias", 0))
	}
}

// RMSNorm divides each row of x by the root of the mean of its squares plus eps, times gain.
func RMSNorm(x, gain *Tensor, eps float64, y *Tensor) error {
	return call("rms norm", fmt.Sprint(eps), []Operand{{"x", x}, {"gain", gain}}, y, rmsNorm(eps))
}

// RMSNormBackward computes the gradients of RMSNorm's operands; those that are nil are left out.
func RMSNormBackward(x, gain *Tensor, eps float64, dy, dx, dgain *Tensor) error {
	return backward("rms norm", fmt.Sprint(eps), []Operand{{"x", x}, {"gain", gain}}, dy,
		[]Operand{{"x", dx}, {"gain", dgain}}, rmsNorm(eps))
}

func rmsNorm(eps float64) forward {
	return func(b *graph.Builder, in inputs) *graph.Node {
		return b.Add(graph.RMSNorm{Eps: eps}, in["x"], vector(b, in, "gain", 1))
	}
}

// vector is the operand of a name, one number for each column of x, or v for all if it is left out.
func vector(b *graph.Builder, in inputs, name string, v float64) *graph.Node {
	if n := in[name]; n != nil {
		return n
	}
	s := in["x"].Type.Shape
	if s.Rank() == 0 {
		return b.Fail(errors.New("x has no axis to normalise"))
	}
	return b.Const(graph.Filled(graph.TypeOf(graph.F32, s.At(s.Rank()-1)), v))
}
