package fusec

import (
	"errors"
	"fmt"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec/graph"
	fgorgonia "fusec/graph/gorgonia"
	"fusec/lowering"
)

// A run in two halves. A GPU computes by itself once it has been started, and meanwhile the next mini-batch can be read
// and copied to it. On the CPU, where there is nothing to gain, the first half does all the work.

// Start is the first half of [Program.Exec]: it returns when all that was set has been read, so that it may be changed,
// and the run is on its way. [Program.Wait] is the second half; until then outputs hold nothing, and what else asks for
// values waits.
func (p *Program) Start() error {
	if p.stepper != nil {
		if err := p.stepper.setRate(); err != nil {
			return err
		}
	}
	return p.explain(p.exe.Start())
}

// Wait waits for the run that was started, and gives its error. Without one it does nothing.
func (p *Program) Wait() error {
	if err := p.exe.Wait(); err != nil {
		return err
	}
	if p.stepper != nil {
		return p.exe.Sync(p.stepper.counters...)
	}
	return nil
}

// Prefetch is [Program.Set] for an input of the next run that copies: t may be changed as soon as it returns. Between
// [Program.Start] and [Program.Wait] a GPU computes while the copy is on its way. It takes as much memory again as the
// input, here and on the GPU.
func (p *Program) Prefetch(name string, t *graph.Tensor) error {
	i, ok := p.named[name]
	if !ok {
		return p.Set(name, t) // which says what is wrong, if anything is
	}
	if copied, err := p.exe.Prefetch(i, t); copied || err != nil {
		return err
	}
	b := p.program.Buffers[i]
	_, changes := p.own[i]
	switch {
	case changes || b.Role == lowering.Param && p.cfg.frozen:
		return fmt.Errorf("%s %q is not copied ahead: that is for what each run reads again", b.Role, name)
	case t == nil:
		return fmt.Errorf("no value was given for %q", name)
	}
	if err := t.Check(); err != nil {
		return fmt.Errorf("value of %q: %w", name, err)
	}
	own := p.ahead[i]
	if own == nil || own.Type != t.Type {
		own = graph.NewTensor(t.Type)
	}
	own.CopyFrom(t)
	if err := p.exe.Bind(i, own); err != nil {
		return err
	}
	if p.ahead == nil {
		p.ahead = map[int]*graph.Tensor{}
	}
	p.ahead[i] = own
	return nil
}

// Start is the first half of [Machine.RunAll]: it returns when the values of all nodes have been read, so that those of
// inputs may be changed for the next run, and the run is on its way. [Machine.Wait] is the second half.
//
//	for range steps {
//		vm.Start()
//		next(x.Value()) // reads the next batch while the GPU computes
//		vm.Prefetch(x)  // and copies it there
//		vm.Wait()
//		vm.Reset()
//	}
func (m *Machine) Start() error {
	switch {
	case m.err != nil:
		return m.err
	case m.closed:
		return errClosed
	case m.started:
		return errors.New("a run has been started already: Wait for it first")
	case m.ran:
		return nil
	}
	if err := m.bind(); err != nil {
		return err
	}
	if err := m.last.begin(m.program); err != nil {
		return err
	}
	if err := m.program.Start(); err != nil {
		return errors.Join(err, m.last.end(false))
	}
	for i := range m.inputs {
		m.inputs[i].ahead = nil // this run has taken it
	}
	m.started = true
	return nil
}

// Wait waits for the run that was started, gives its error, and hands out its values as RunAll does. Without one it does
// nothing.
func (m *Machine) Wait() error {
	if !m.started {
		return nil
	}
	m.started = false
	if err := m.program.Wait(); err != nil {
		return errors.Join(err, m.last.end(false))
	}
	return m.finish()
}

// Prefetch copies the value that an input's node has now for the next run, on a GPU while the run that was started still
// computes. The value may then be changed for the run after; giving the node another value takes the copy back.
func (m *Machine) Prefetch(n *gorgonia.Node) error {
	switch {
	case m.err != nil:
		return m.err
	case m.closed:
		return errClosed
	}
	if err := m.has(n); err != nil {
		return err
	}
	if n.Op() != nil {
		return fmt.Errorf("node %v is computed: only inputs are copied ahead", n)
	}
	v, ok := n.Value().(*tensor.Dense)
	if !ok {
		return fmt.Errorf("node %v has a value of Go type %T: want a tensor to copy ahead", n, n.Value())
	}
	for i := range m.inputs {
		in := &m.inputs[i]
		if in.node != n {
			continue
		}
		t, ok := fgorgonia.Alias(v)
		if !ok {
			var err error
			if t, err = fgorgonia.ToTensor(v); err != nil {
				return fmt.Errorf("node %v: %w", n, err)
			}
		}
		if err := m.program.Prefetch(in.name, t); err != nil {
			return err
		}
		in.ahead = v
	}
	return nil
}
