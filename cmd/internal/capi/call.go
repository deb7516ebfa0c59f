package capi

import (
	"errors"
	"fmt"
	"unsafe"

	"fusec/graph"
)

// calls is what a program keeps between [Program.Call]s.
type calls struct {
	inputs, outputs []lent
	borrows         map[string]bool // inputs whose elements were there for a call only
	written         int             // outputs that the program writes into memory that was there for a call only
}

// lent is memory of the caller's, and the tensor on it.
type lent struct {
	at     unsafe.Pointer
	tensor *graph.Tensor
	bound  bool // of an output: the program writes into it
}

// on is the tensor of a type on the elements at p.
func (l *lent) on(p unsafe.Pointer, t graph.Type) *graph.Tensor {
	if l.tensor == nil || l.at != p {
		l.at, l.tensor = p, graph.TensorAt(unsafe.Slice((*byte)(p), t.Bytes()), t)
	}
	return l.tensor
}

// runOwn runs the program on values that were set, and writes results into memory of its own.
func (c *Program) runOwn(run func() error) error {
	for name := range c.calls.borrows {
		return notSet(name)
	}
	if c.calls.written > 0 {
		for i := range c.calls.outputs {
			if err := c.takeBack(i); err != nil {
				return err
			}
		}
	}
	err := run()
	c.ran = err == nil
	return err
}

func notSet(name string) error {
	return fmt.Errorf("input %q has no value: its elements were there for one call", name)
}

// takeBack has the program write output i into memory of its own.
func (c *Program) takeBack(i int) error {
	out, v := &c.calls.outputs[i], c.values[KindOutput][i]
	if !out.bound {
		return nil
	}
	out.bound = false
	c.calls.written--
	_, err := c.program.SetOutput(v.Name, graph.NewTensor(v.Type))
	return err
}

// isLent reports whether an output's value was written into memory that was there for a call only.
func (c *Program) isLent(output string) bool {
	for i, v := range c.values[KindOutput] {
		if v.Name == output && c.calls.written > 0 {
			return c.calls.outputs[i].bound
		}
	}
	return false
}

// Call runs the program once on elements that lie contiguously, in row-major order, aligned to their size: values has a pointer
// for each input, and results one for each output, in the order of [Program.Values]. An input whose pointer is nil keeps the value
// that it was set; an output whose pointer is nil is left to [Program.Get]. The memory is not used after the call.
func (c *Program) Call(values, results []unsafe.Pointer) error {
	return c.use(func() error {
		inputs, outputs := c.values[KindInput], c.values[KindOutput]
		if err := errors.Join(aligned(values, inputs, "inputs"), aligned(results, outputs, "outputs")); err != nil {
			return err
		}
		if c.calls.borrows == nil {
			c.calls = calls{inputs: make([]lent, len(inputs)), outputs: make([]lent, len(outputs)), borrows: map[string]bool{}}
		}
		for i, v := range inputs {
			if values[i] == nil && v.Type.Shape.Elems() > 0 {
				if c.calls.borrows[v.Name] {
					return notSet(v.Name)
				}
				continue
			}
			c.calls.borrows[v.Name] = true
			if err := c.program.Set(v.Name, c.calls.inputs[i].on(values[i], v.Type)); err != nil {
				return err
			}
		}
		for i, v := range outputs {
			if results[i] == nil {
				if err := c.takeBack(i); err != nil {
					return err
				}
				continue
			}
			out := &c.calls.outputs[i]
			bound, err := c.program.SetOutput(v.Name, out.on(results[i], v.Type))
			if err != nil {
				return err
			}
			if bound && !out.bound {
				c.calls.written++
			}
			out.bound = bound
		}
		err := c.program.Exec()
		if c.ran = err == nil; err != nil {
			return err
		}
		for i, v := range outputs {
			if results[i] == nil || c.calls.outputs[i].bound {
				continue
			}
			value, err := c.program.Output(v.Name)
			if err != nil {
				return err
			}
			c.calls.outputs[i].tensor.CopyFrom(value)
		}
		return nil
	})
}

// aligned checks a list of pointers to the elements of values.
func aligned(list []unsafe.Pointer, of []Value, what string) error {
	if len(list) != len(of) {
		return fmt.Errorf("the program has %d %s; the call has %d", len(of), what, len(list))
	}
	for i, v := range of {
		if uintptr(list[i])%uintptr(v.Type.DType.Size()) != 0 {
			return fmt.Errorf("the elements of %q, of type %v, are not aligned to their size", v.Name, v.Type)
		}
	}
	return nil
}

// Pointers is a C list of as many pointers as the program has values of a kind.
func (c *Program) Pointers(list unsafe.Pointer, k Kind) ([]unsafe.Pointer, error) {
	n := len(c.values[k])
	if list == nil && n > 0 {
		return nil, fmt.Errorf("the list of pointers, one for each %s, is NULL", kindNames[k])
	}
	return unsafe.Slice((*unsafe.Pointer)(list), n), nil
}

// Queue queues a run of a program with the option memory=caller in a stream of the caller's on the program's device: values has
// the address of each input there, results that of each output, as [Program.Call] has pointers of the host, and scratch is where
// [Program.QueueBytes] bytes begin.
func (c *Program) Queue(values, results []unsafe.Pointer, scratch, stream uintptr) error {
	if _, err := c.QueueBytes(); err != nil {
		return err
	}
	return c.use(func() error {
		inputs, outputs := c.values[KindInput], c.values[KindOutput]
		if len(values) != len(inputs) || len(results) != len(outputs) {
			return fmt.Errorf("the program has %d inputs and %d outputs; the call has %d and %d", len(inputs), len(outputs),
				len(values), len(results))
		}
		run := &c.queued
		if run.Inputs == nil {
			run.Inputs, run.Outputs = map[string]uintptr{}, map[string]uintptr{}
		}
		run.Stream, run.Scratch = stream, scratch
		for i, v := range inputs {
			run.Inputs[v.Name] = uintptr(values[i])
		}
		for i, v := range outputs {
			run.Outputs[v.Name] = uintptr(results[i])
		}
		return c.program.Queue(run)
	})
}

// QueueBytes is the size of the memory that a run of [Program.Queue] needs for temporary values, in bytes.
func (c *Program) QueueBytes() (n int64, err error) {
	err = c.use(func() (err error) {
		if n, err = c.program.QueueBytes(); err != nil {
			return errors.New("runs are queued of programs that were opened with the option memory=caller")
		}
		return nil
	})
	return n, err
}
