package cpu

import (
	"fmt"

	"fusec/graph"
)

// A host runs an operation by the user's code. It is the one kernel that allocates.
type host struct {
	op      graph.Host
	args    []Operand
	results []Operand
}

var _ = answers.Add(own(newHost))

func newHost(op graph.Host, args, results []Operand, _ *Env) (Kernel, error) {
	if op.Impl == nil {
		return nil, fmt.Errorf("host operation %s has no implementation: the graph was read from a file", op.Name)
	}
	return &host{op, args, results}, nil
}

// Run implements [Kernel].
func (k *host) Run(args, results []Memory) error {
	in := make([]*graph.Tensor, len(args))
	for i := range args {
		in[i] = tensorIn(args[i], k.args[i])
	}
	y, err := k.do(in)
	if err != nil {
		return fmt.Errorf("host operation %s: %w", k.op.Name, err)
	}
	if y == nil {
		return fmt.Errorf("host operation %s gave no value", k.op.Name)
	}
	if y.Type != k.op.Type {
		return fmt.Errorf("host operation %s gave a value of type %v, not %v", k.op.Name, y.Type, k.op.Type)
	}
	if err := y.Check(); err != nil {
		return fmt.Errorf("host operation %s: %w", k.op.Name, err)
	}
	tensorIn(results[0], k.results[0]).CopyFrom(y)
	return nil
}

// do calls the user's code and turns a panic into an error.
func (k *host) do(args []*graph.Tensor) (y *graph.Tensor, err error) {
	defer func() {
		if v := recover(); v != nil {
			y, err = nil, fmt.Errorf("panic: %v", v)
		}
	}()
	return k.op.Impl.Do(args)
}

// tensorIn is the tensor that stands in a buffer as a contiguous operand.
func tensorIn(m Memory, o Operand) *graph.Tensor {
	return graph.TensorAt(m[o.Layout.Offset*o.DType.Size():], o.Type())
}

// TensorOf is the value that stands in a buffer as operand o: shared if its elements stand side by side, else a copy.
func TensorOf(m Memory, o Operand, env *Env) (*graph.Tensor, error) {
	if o.Layout.IsContiguous() {
		return tensorIn(m, o), nil
	}
	t := graph.NewTensor(o.Type())
	k, err := Compile(graph.Copy{}, []Operand{o}, []Operand{Contiguous(t.Type)}, env)
	if err != nil {
		return nil, err
	}
	return t, k.Run([]Memory{m}, []Memory{MemoryOf(t)})
}
