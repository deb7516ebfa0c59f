// Package ref runs programs on the reference, package kernels/ref: in float64, one launch after another, in the
// simplest way. It is a target for checking others, and slow.
package ref

import (
	"errors"
	"fmt"
	"time"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/graph/memlimit"
	"fusec/kernels/ref"
	"fusec/lowering"
)

// Device computes on the processor, in float64.
type Device struct{ lowering.Defaults }

// Name implements lowering.Device.
func (Device) Name() string { return "ref" }

// Accepts implements lowering.Device: the reference has every operation, in every type.
func (Device) Accepts(op graph.Op, _, _ []graph.Type) error {
	if graph.InfoOf(op) == nil {
		return fmt.Errorf("the reference does not know %s", op.OpName())
	}
	return nil
}

// Compile implements lowering.Device. A program that needs more memory than available (see package memlimit) is
// refused, and so is a fusion whose body breaks the contract, as on every target.
func (Device) Compile(p *lowering.Program) (lowering.Executable, error) {
	e := &executable{p: p, values: make([]ref.Value, len(p.Buffers)), bound: make([]*graph.Tensor, len(p.Buffers)),
		stale: make([]bool, len(p.Buffers)), dies: make([][]int, len(p.Launches)), times: make([]time.Duration, len(p.Launches)),
		from: p.PreparedFrom()}
	last := make([]int, len(p.Buffers))
	for i, l := range p.Launches {
		if f, ok := l.Op.(graph.Fusion); ok {
			args, results := l.Operands()
			if _, err := body.LowerSegments(f, args, results); err != nil {
				return nil, fmt.Errorf("launch %d, %s: %w", i+1, l.Node.Where(), err)
			}
		}
		for _, v := range append(l.Args[:len(l.Args):len(l.Args)], l.Results...) {
			last[v.Buffer] = i
		}
	}
	for i, b := range p.Buffers {
		switch b.Role {
		case lowering.Const:
			e.values[i] = ref.FromTensor(b.Value)
		case lowering.Temp:
			if len(p.Launches) > 0 {
				e.dies[last[i]] = append(e.dies[last[i]], i)
			}
		case lowering.Output:
			e.bound[i] = graph.NewTensor(b.Type)
		}
	}
	for _, u := range p.Updates {
		if e.changes == nil {
			e.changes = map[int]bool{}
		}
		e.changes[u.Target] = true
	}
	e.bytes = e.most()
	if err := memlimit.Check(e.bytes); err != nil {
		return nil, fmt.Errorf("values in float64: %w; a smaller batch needs less", err)
	}
	return e, nil
}

type executable struct {
	lowering.ExecutableDefaults
	p        *lowering.Program
	values   []ref.Value     // of each buffer
	bound    []*graph.Tensor // to each buffer; of an Output the returned tensor
	stale    []bool          // a tensor was bound and not read yet
	changes  map[int]bool    // buffers that updates write
	dies     [][]int         // by launch: temporary buffers that no later launch reads
	bytes    int64
	from     []bool // by buffer: the prepared part reads it
	prepared bool   // the prepared part has run with the present parameters
	watch    func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error
	profile  bool
	times    []time.Duration
	closed   bool
}

// Bind implements lowering.Executable.
func (e *executable) Bind(buffer int, t *graph.Tensor) error {
	if err := e.p.MayBind(buffer, t); err != nil {
		return err
	}
	if err := t.Check(); err != nil {
		return fmt.Errorf("%s %q: %w", e.p.Buffers[buffer].Role, e.p.Buffers[buffer].Name, err)
	}
	e.bound[buffer], e.stale[buffer] = t, true
	if e.from[buffer] {
		e.prepared = false
	}
	return nil
}

// Start implements lowering.Executable: it is all of Run.
func (e *executable) Start() error { return e.Run() }

// Run implements lowering.Executable. Updated values keep full precision until the next run, and are rounded in the
// bound tensor.
func (e *executable) Run() error {
	if e.closed {
		return errors.New("the program is closed")
	}
	before := map[int]ref.Value{}
	for i, b := range e.p.Buffers {
		if b.Role > lowering.State {
			continue
		}
		if e.bound[i] == nil {
			if b.Last >= 0 || e.changes[i] {
				return fmt.Errorf("%s %q has no value", b.Role, b.Name)
			}
			continue
		}
		if e.stale[i] || !e.changes[i] {
			e.values[i], e.stale[i] = ref.FromTensor(e.bound[i]), false
		}
		if e.changes[i] {
			before[i] = e.values[i]
		}
	}
	err := e.launch()
	if err != nil {
		for i, v := range before {
			e.values[i] = v
		}
		return err
	}
	for _, u := range e.p.Updates {
		v := e.values[u.Value]
		v.Type = e.p.Buffers[u.Target].Type
		e.values[u.Target] = v
		e.bound[u.Target].CopyFrom(v.Rounded())
	}
	for _, o := range e.p.Outputs {
		e.bound[o.Buffer].CopyFrom(e.values[o.Buffer].Rounded())
	}
	return nil
}

// launch runs all launches, and leaves out the prepared part if it can.
func (e *executable) launch() error {
	from := 0
	if e.prepared && e.watch == nil {
		from = e.p.Prepared
	}
	clear(e.times[:e.p.Prepared])
	e.prepared = from > 0
	for i := from; i < len(e.p.Launches); i++ {
		e.prepared = e.prepared || i == e.p.Prepared
		l := &e.p.Launches[i]
		start := time.Now()
		err := e.one(l)
		if err != nil {
			return &lowering.LaunchError{Launch: i, Node: l.Node, Err: err}
		}
		if e.profile {
			e.times[i] = time.Since(start)
		}
		if e.watch != nil {
			if err := e.watch(l, func(v lowering.View) (*graph.Tensor, error) { return e.view(v).Rounded(), nil }); err != nil {
				return err
			}
		}
		for _, b := range e.dies[i] {
			e.values[b] = ref.Value{}
		}
	}
	return nil
}

// one runs a launch. A panic in it, for example of a user-defined operation, becomes an error.
func (e *executable) one(l *lowering.Launch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the reference failed: %v", r)
		}
	}()
	args := make([]ref.Value, len(l.Args))
	for i, v := range l.Args {
		args[i] = e.view(v)
	}
	results, err := ref.Op(l.Op, args)
	if err != nil {
		return err
	}
	for i, v := range l.Results {
		results[i].Type = e.p.Buffers[v.Buffer].Type
		e.values[v.Buffer] = results[i]
	}
	return nil
}

// view is the value of a view, in row-major order.
func (e *executable) view(v lowering.View) ref.Value {
	from, l := e.values[v.Buffer], v.Layout
	to := ref.Value{Type: graph.Type{DType: v.DType, Shape: l.Shape}}
	n := l.Shape.Elems()
	if l.IsContiguous() && l.Offset == 0 && n == from.Len() {
		to.F, to.I = from.F, from.I
		return to
	}
	index := make([]int, l.Shape.Rank())
	next := func() (at int) {
		at = l.Offset
		for k, i := range index {
			at += i * l.Stride[k]
		}
		for k := len(index) - 1; k >= 0; k-- {
			if index[k]++; index[k] < l.Shape.At(k) {
				break
			}
			index[k] = 0
		}
		return at
	}
	if from.F != nil {
		to.F = make([]float64, n)
		for i := range to.F {
			to.F[i] = from.F[next()]
		}
		return to
	}
	to.I = make([]int64, n)
	for i := range to.I {
		to.I[i] = from.I[next()]
	}
	return to
}

// Sync implements lowering.Executable: runs write into the tensors themselves.
func (e *executable) Sync(...int) error { return nil }

// Watch implements lowering.Executable.
func (e *executable) Watch(check func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error) {
	e.watch = check
}

// Output implements lowering.Executable.
func (e *executable) Output(buffer int) *graph.Tensor { return e.bound[buffer] }

// Profile implements lowering.Executable.
func (e *executable) Profile(on bool) { e.profile = on }

// Times implements lowering.Executable.
func (e *executable) Times() []time.Duration { return e.times }

// most is the largest number of bytes of values, 8 for each element, that a run holds at the same time.
func (e *executable) most() int64 {
	var held, most int64
	made := make([]bool, len(e.p.Buffers))
	take := func(b int) {
		if !made[b] {
			made[b] = true
			held += 8 * int64(e.p.Buffers[b].Type.Shape.Elems())
			most = max(most, held)
		}
	}
	for i, b := range e.p.Buffers {
		if b.Role <= lowering.Const {
			take(i)
		}
	}
	for i, l := range e.p.Launches {
		for _, v := range l.Results {
			take(v.Buffer)
		}
		for _, b := range e.dies[i] {
			held -= 8 * int64(e.p.Buffers[b].Type.Shape.Elems())
		}
	}
	return most
}

// Memory implements lowering.Executable.
func (e *executable) Memory() lowering.Memory {
	m := lowering.Memory{Arena: e.bytes} // with the prepared values
	for _, o := range e.p.Outputs {
		m.Outputs += e.p.Buffers[o.Buffer].Type.Bytes()
	}
	return m
}

// Close implements lowering.Executable.
func (e *executable) Close() error {
	e.closed, e.values = true, nil
	return nil
}
