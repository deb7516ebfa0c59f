// Package host runs on the processor the launches of a program for which another device has no kernel, on copies of the
// device's buffers.
package host

import (
	"errors"
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/kernels/cpu"
	"fusec/kernels/cpu/pool"
	"fusec/lowering"
)

// Launches are the launches of a program that run on the processor.
type Launches struct {
	// Copies has the buffers that those launches read and write. The device copies their operands to it and their
	// results from it. A tensor may be replaced by another of the same type.
	Copies map[int]*graph.Tensor

	p       *lowering.Program
	pool    *pool.Pool
	env     *cpu.Env
	kernels map[int]cpu.Kernel
}

// New compiles the launches for which on is true, for the given number of cores. An error comes with the number of its
// launch, and nothing has to be closed then.
func New(p *lowering.Program, workers int, on func(l *lowering.Launch) bool) (_ *Launches, launch int, err error) {
	h := &Launches{p: p, pool: pool.New(workers), kernels: map[int]cpu.Kernel{}, Copies: map[int]*graph.Tensor{}}
	h.env = cpu.NewEnv(h.pool)
	for i := range p.Launches {
		l := &p.Launches[i]
		if !on(l) {
			continue
		}
		for _, v := range slices.Concat(l.Args, l.Results) {
			if h.Copies[v.Buffer] == nil {
				h.Copies[v.Buffer] = graph.NewTensor(p.Buffers[v.Buffer].Type)
			}
		}
		args, results := l.Operands()
		k, err := cpu.Compile(l.Op, args, results, h.env)
		if err != nil {
			h.Close()
			return nil, i, err
		}
		h.kernels[i] = k
	}
	return h, 0, nil
}

func (h *Launches) memory(views []lowering.View) (m []cpu.Memory) {
	for _, v := range views {
		m = append(m, cpu.MemoryOf(h.Copies[v.Buffer]))
	}
	return m
}

// Run runs launch i on the copies. A panic in it becomes an error.
func (h *Launches) Run(i int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kernel failed: %v", r)
		}
	}()
	l, k := &h.p.Launches[i], h.kernels[i]
	if k == nil {
		return errors.New("the launch was not compiled for the processor")
	}
	return k.Run(h.memory(l.Args), h.memory(l.Results))
}

// Compute computes an operation of one result of type t on operands of the program, such as a part of a launch's body on
// those of the launch.
func (h *Launches) Compute(op graph.Op, args []lowering.View, t graph.Type) (*graph.Tensor, error) {
	operands, _ := (&lowering.Launch{Args: args}).Operands()
	k, err := cpu.Compile(op, operands, []cpu.Operand{cpu.Contiguous(t)}, h.env)
	if err != nil {
		return nil, err
	}
	y := graph.NewTensor(t)
	return y, k.Run(h.memory(args), []cpu.Memory{cpu.MemoryOf(y)})
}

// Value is the value of a view of a buffer, made contiguous.
func (h *Launches) Value(whole *graph.Tensor, v lowering.View) (*graph.Tensor, error) {
	return cpu.TensorOf(cpu.MemoryOf(whole), cpu.Operand{DType: v.DType, Layout: v.Layout}, h.env)
}

// Close ends the goroutines.
func (h *Launches) Close() { h.pool.Close() }
