package fpga

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/maphash"
	"reflect"
	"slices"
	"strings"
	"time"

	"fusec/fpga"
	"fusec/fpga/isa"
	"fusec/graph"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/host"
)

// executable is a program on an overlay.
type executable struct {
	lowering.ExecutableDefaults
	d *Device
	l *laid
	p *lowering.Program

	machine *fpga.Machine // nil before the first run and after the link has failed
	need    int64         // bytes of external memory
	host    *host.Launches
	tensors []*graph.Tensor // of every buffer that the host has: bound, constant or of its own
	weights map[int]uint64  // of each buffer that codes were made of, its contents' hash
	made    bool            // codes, and the machine has them
	bound   map[int]bool    // buffers that were bound or prepared since
	from    []bool          // by buffer: the prepared part reads it

	prepared bool // the prepared part has run with the present parameters

	parts    []loaded // programs, by part
	single   []loaded // and by launch, for runs that go launch by launch
	seed     maphash.Seed
	counts   []count
	measured bool // departures are known
	remade   int  // how often codes were made
	watch    func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error
	profile  bool
	times    []time.Duration
	image    []byte
	closed   bool
}

// The names of what an overlay counts; see [lowering.Executable.Counts]. Cycles is also what it estimates of launches.
const (
	Cycles      = "cycles"                // of a launch; overlap with the launch before is not counted twice
	Multiplying = "multiplying"           // cycles in which the multipliers were busy
	MaxError    = "error at most"         // after a profiled run: of the results against the float program, in percent of their range
	RMSError    = "error rms"             // the root of the mean square of that error
	Quantised   = "weights made integers" // times: once, and again for each run with changed weights
)

// count is what was counted of a launch.
type count struct {
	cycles, multiply int64
	departure
}

// loaded is a part's descriptors, and their state on the machine.
type loaded struct {
	steps   []Step
	at      int64
	program *fpga.Program
}

func (d *Device) newExecutable(p *lowering.Program) (lowering.Executable, error) {
	l := layOut(d.cfg, p)
	n := len(p.Launches)
	e := &executable{d: d, l: l, p: p, tensors: make([]*graph.Tensor, len(p.Buffers)), weights: map[int]uint64{},
		bound: map[int]bool{}, seed: maphash.MakeSeed(), counts: make([]count, n), times: make([]time.Duration, n),
		single: make([]loaded, n), from: p.PreparedFrom()}
	h, i, err := host.New(p, d.host.Workers(), func(l *lowering.Launch) bool { return l.Device != "" })
	if err != nil {
		return nil, inLaunch(p, i, fmt.Errorf("%w, and nothing for it on the overlay: %s", err, p.Launches[i].Reason))
	}
	e.host = h
	for i, b := range p.Buffers {
		switch b.Role {
		case lowering.Const:
			e.tensors[i] = b.Value
		case lowering.Temp, lowering.Output, lowering.Prepared:
			if t := h.Copies[i]; t != nil {
				e.tensors[i] = t
			} else if v := l.partition.values[i]; b.Role == lowering.Output || v != nil && v.hosted {
				e.tensors[i] = graph.NewTensor(b.Type)
			}
		case lowering.State:
			// Nothing writes it: it is an input that is bound by the program.
		}
	}
	at := l.code
	for _, part := range l.parts {
		x := loaded{at: at}
		if !part.host {
			if x.steps, err = l.assemble(part.from, part.to); err != nil {
				h.Close()
				return nil, err
			}
			at += int64(len(x.steps) * isa.DescBytes)
		}
		e.parts = append(e.parts, x)
	}
	e.need = at
	for i := range p.Launches { // they are loaded one at a time, behind the others
		if len(l.launches[i].tasks) > 0 {
			steps, err := l.assemble(i, i+1)
			if err != nil {
				h.Close()
				return nil, err
			}
			e.single[i] = loaded{steps: steps, at: at}
			e.need = max(e.need, at+int64(len(steps)*isa.DescBytes))
		}
	}
	if limit := int64(1) << d.cfg.AddrBits; e.need > limit {
		h.Close()
		return nil, fmt.Errorf("program %q takes %d bytes of the overlay's memory: addresses of %d bits reach %d",
			p.Name, e.need, d.cfg.AddrBits, limit)
	}
	if err := e.connect(); err != nil {
		h.Close()
		return nil, err
	}
	return e, nil
}

// Bind implements lowering.Executable.
func (e *executable) Bind(buffer int, t *graph.Tensor) error {
	if err := e.p.MayBind(buffer, t); err != nil {
		return err
	}
	e.tensors[buffer] = t
	if e.host.Copies[buffer] != nil {
		e.host.Copies[buffer] = t
	}
	e.bound[buffer] = true
	if e.from[buffer] {
		e.prepared = false
	}
	return nil
}

// Run implements lowering.Executable.
func (e *executable) Run() error {
	if e.closed {
		return errors.New("the program is closed")
	}
	for i, b := range e.p.Buffers {
		if b.Role <= lowering.State && e.tensors[i] == nil && b.Last >= 0 {
			return fmt.Errorf("%s %q has no value", b.Role, b.Name)
		}
	}
	if err := e.connect(); err != nil {
		return err
	}
	err := e.prepare()
	if err == nil {
		err = e.codes()
	}
	if err == nil {
		if e.watch != nil {
			err = e.runEach(e.check)
		} else {
			err = e.runParts()
		}
	}
	if err == nil && e.profile && !e.measured {
		err = e.depart()
	}
	var stopped *fpga.DescriptorError
	if err != nil && e.machine != nil && !errors.As(err, &stopped) {
		// The link may be gone: the next run opens another. What the machine still holds is not worth anything.
		err = errors.Join(err, e.disconnect())
	}
	return err
}

// connect opens the link, if it is not and there is something for the overlay to do.
func (e *executable) connect() error {
	if e.machine != nil || !slices.ContainsFunc(e.l.parts, func(p part) bool { return !p.host }) {
		return nil
	}
	const page = 1 << 16
	memory := min(up64(e.need, page), 1<<e.d.cfg.AddrBits)
	l, err := e.d.open(context.Background(), e.d.cfg, memory)
	if err != nil {
		return err
	}
	m, err := fpga.Open(l)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	got, want := m.Config(), e.d.cfg
	got.Name, want.Name = "", ""
	switch {
	case got != want:
		err = fmt.Errorf("%s leads to an overlay of another configuration than %s: %s", l.Name(), e.d.cfg.Name,
			differences(got, want))
	case m.MemoryBytes() < e.need:
		err = fmt.Errorf("program %q takes %d bytes of the overlay's memory; %s has %d", e.p.Name, e.need, l.Name(),
			m.MemoryBytes())
	}
	if err != nil {
		return errors.Join(err, l.Close())
	}
	e.machine, e.made = m, false
	return nil
}

// differences lists the values in which two configurations differ.
func differences(got, want isa.Config) string {
	var list []string
	g, w := reflect.ValueOf(got), reflect.ValueOf(want)
	for i := range g.NumField() {
		if x, y := g.Field(i).Interface(), w.Field(i).Interface(); x != y {
			list = append(list, fmt.Sprintf("%s is %v, not %v", g.Type().Field(i).Name, x, y))
		}
	}
	return strings.Join(list, ", ")
}

// disconnect closes the link and invalidates the state of the machine behind it.
func (e *executable) disconnect() error {
	m := e.machine
	e.machine = nil
	for _, list := range [][]loaded{e.parts, e.single} {
		for i := range list {
			list[i].program = nil
		}
	}
	if m == nil {
		return nil
	}
	return m.Close()
}

// prepare runs the prepared part, if a parameter that it reads has been bound since the last time.
func (e *executable) prepare() error {
	clear(e.times[:e.p.Prepared])
	if e.prepared {
		return nil
	}
	for i := range e.p.Prepared {
		if err := e.onHost(i); err != nil {
			return inLaunch(e.p, i, err)
		}
		for _, v := range e.p.Launches[i].Results {
			e.bound[v.Buffer] = true
		}
	}
	e.prepared = true
	return nil
}

// codes computes everything that depends on weights and ranges, unless it is up to date.
func (e *executable) codes() error {
	fresh := !e.made
	for _, i := range e.constants() {
		if !fresh && e.p.Frozen && !e.bound[i] {
			continue
		}
		h := hash(e.seed, e.tensors[i])
		if old, ok := e.weights[i]; !ok || old != h {
			fresh = true
		}
		e.weights[i] = h
	}
	clear(e.bound)
	if !fresh {
		return nil
	}
	e.made = false
	if err := e.make(); err != nil {
		return err
	}
	e.made = true
	e.remade++
	return nil
}

// constants lists the buffers from which codes are computed: weights, scales and biases.
func (e *executable) constants() (list []int) {
	add := func(s source) {
		if s.buffer < 0 {
			return
		}
		if r := e.p.Buffers[s.buffer].Role; (r <= lowering.State || r == lowering.Prepared) && !slices.Contains(list, s.buffer) {
			list = append(list, s.buffer)
		}
	}
	for i := range e.l.launches {
		for _, t := range e.l.launches[i].tasks {
			for _, m := range t.terms {
				add(m.v)
			}
			if t.weight != nil {
				add(t.weight.from)
			}
			if t.experts != nil {
				for _, w := range t.experts.weights {
					for _, s := range w {
						add(s)
					}
				}
			}
		}
	}
	return list
}

// hash is that of a tensor's elements.
func hash(seed maphash.Seed, t *graph.Tensor) uint64 { return maphash.Bytes(seed, t.Bytes()) }

// make finds ranges, quantises, and loads constants and programs.
func (e *executable) make() (err error) {
	if e.d.ranges != nil {
		err = e.l.recall(e.d.ranges)
	} else {
		err = e.l.calibrate(e.d.host.Workers(), e.tensors, e.d.samples)
	}
	if err != nil {
		return err
	}
	if err := e.l.quantise(e.tensors); err != nil {
		return err
	}
	for _, b := range e.l.blobs {
		if err := e.machine.Write(uint32(b.addr), b.data); err != nil {
			return err
		}
	}
	for i, p := range e.l.parts {
		if p.host {
			continue
		}
		if e.parts[i].steps, err = e.l.assemble(p.from, p.to); err != nil {
			return err
		}
		if err := e.loadProgram(&e.parts[i]); err != nil {
			return err
		}
	}
	for i := range e.single {
		e.single[i].program = nil
	}
	e.measured = false
	return nil
}

// loadProgram brings descriptors to the machine.
func (e *executable) loadProgram(x *loaded) (err error) {
	x.program, err = e.machine.Load(uint32(x.at), commands(x.steps))
	return err
}

// sources copies the bound buffers and constants that the overlay reads.
func (e *executable) sources() error {
	for _, v := range e.l.values {
		if v.buffer < 0 || v.made {
			continue
		}
		switch e.p.Buffers[v.buffer].Role {
		case lowering.Temp, lowering.Output:
			continue
		}
		if err := e.upload(v); err != nil {
			return err
		}
	}
	return nil
}

// runParts runs the program part by part.
func (e *executable) runParts() error {
	if err := e.sources(); err != nil {
		return err
	}
	for i, p := range e.l.parts {
		if p.to <= e.p.Prepared {
			continue
		}
		if p.host {
			if err := e.runHost(p.from); err != nil {
				return inLaunch(e.p, p.from, err)
			}
			continue
		}
		if err := e.runProgram(&e.parts[i]); err != nil {
			return err
		}
		var last uint64
		for k := p.from; k < p.to; k++ {
			cycles, multiply, err := e.machine.Stamp(uint32(e.l.stamps[k]))
			if err != nil {
				return err
			}
			e.counts[k].cycles, last = int64(cycles-last), cycles
			e.counts[k].multiply = int64(multiply)
			e.times[k] = time.Duration(float64(e.counts[k].cycles) / e.d.clock * 1e9)
		}
		for k := p.to - 1; k > p.from; k-- {
			e.counts[k].multiply -= e.counts[k-1].multiply
		}
		if err := e.downloads(p.from, p.to); err != nil {
			return err
		}
	}
	return nil
}

// runProgram runs one stretch of descriptors. An error names the launch whose descriptor it is about.
func (e *executable) runProgram(x *loaded) error {
	if x.program == nil {
		if err := e.loadProgram(x); err != nil {
			return err
		}
	}
	err := e.machine.Run(context.Background(), x.program)
	var stopped *fpga.DescriptorError
	if errors.As(err, &stopped) && stopped.Number < len(x.steps) {
		return inLaunch(e.p, x.steps[stopped.Number].Launch, err)
	}
	return err
}

// downloads copies the results of some launches that the host needs.
func (e *executable) downloads(from, to int) error {
	for _, v := range e.l.values {
		if v.buffer < 0 || !v.made || !v.hosted || v.first < from || v.first >= to {
			continue
		}
		if err := e.download(v, e.tensors[v.buffer]); err != nil {
			return err
		}
	}
	return nil
}

// onHost runs a launch on the processor.
func (e *executable) onHost(i int) error {
	for _, v := range e.p.Launches[i].Args {
		e.host.Copies[v.Buffer] = e.tensors[v.Buffer]
	}
	start := time.Now()
	err := e.host.Run(i)
	e.times[i] = time.Since(start)
	return err
}

// runHost runs a launch on the processor, and copies the results that the overlay reads.
func (e *executable) runHost(i int) error {
	if err := e.onHost(i); err != nil {
		return err
	}
	for _, r := range e.p.Launches[i].Results {
		if v := e.l.partition.values[r.Buffer]; v != nil && (v.plain || v.turned) {
			if err := e.upload(v); err != nil {
				return err
			}
		}
	}
	return nil
}

// runEach runs launch by launch and calls after each.
func (e *executable) runEach(after func(i int) error) error {
	if err := e.sources(); err != nil {
		return err
	}
	for i := range e.p.Launches {
		switch {
		case e.l.launches[i].refusal != nil:
			if err := e.runHost(i); err != nil {
				return inLaunch(e.p, i, err)
			}
		case len(e.l.launches[i].tasks) == 0:
			continue // the router does it
		default:
			// Its codes may have changed since it was assembled.
			x := &e.single[i]
			var err error
			if x.steps, err = e.l.assemble(i, i+1); err != nil {
				return err
			}
			x.program = nil
			if err := e.runProgram(x); err != nil {
				return err
			}
			if err := e.downloads(i, i+1); err != nil {
				return err
			}
		}
		if err := after(i); err != nil {
			return err
		}
	}
	return nil
}

// check shows a launch to the watcher.
func (e *executable) check(i int) error {
	l := &e.p.Launches[i]
	for _, v := range slices.Concat(l.Args, l.Results) {
		if !e.has(v.Buffer) {
			return nil
		}
	}
	return e.watch(l, e.value)
}

// has reports whether the host or the overlay's memory has the value of a buffer. Neither has gates that the router keeps to
// itself, and results that nothing reads.
func (e *executable) has(buffer int) bool {
	return e.tensors[buffer] != nil || e.l.partition.values[buffer] != nil
}

// whole is the value of a buffer, from the host or from the overlay.
func (e *executable) whole(buffer int) (*graph.Tensor, error) {
	if t := e.tensors[buffer]; t != nil {
		return t, nil
	}
	v := e.l.partition.values[buffer]
	if v == nil {
		return nil, fmt.Errorf("the overlay keeps %q to itself", e.p.Buffers[buffer].Name)
	}
	t := graph.NewTensor(e.p.Buffers[buffer].Type)
	return t, e.download(v, t)
}

func (e *executable) value(v lowering.View) (*graph.Tensor, error) {
	t, err := e.whole(v.Buffer)
	if err != nil {
		return nil, err
	}
	return e.host.Value(t, v)
}

// depart runs the program and the float program launch by launch, and records the error of each result.
func (e *executable) depart() error {
	c, err := newCalibrator(e.l, e.d.host.Workers())
	if err != nil {
		return err
	}
	defer c.close()
	if err := c.bind(e.tensors); err != nil {
		return err
	}
	next := 0
	err = e.runEach(func(i int) error {
		for ; next <= i; next++ {
			if err := c.host.Run(next); err != nil {
				return inLaunch(e.p, next, err)
			}
		}
		for _, r := range e.p.Launches[i].Results {
			if !e.has(r.Buffer) {
				continue
			}
			got, err := e.whole(r.Buffer)
			if err != nil {
				return err
			}
			if want := c.host.Copies[r.Buffer]; want.Type.DType.IsFloat() {
				e.counts[i].departure = compare(got, want)
			}
		}
		return nil
	})
	e.measured = err == nil
	return err
}

// upload quantises a value and brings its images to the overlay.
func (e *executable) upload(v *value) error {
	t := e.tensors[v.buffer]
	for kind, on := range []bool{v.plain, v.turned} {
		if !on {
			continue
		}
		image := e.buffer(v.size(kind, e.l.cfg.WordBytes))
		clear(image)
		v.encode(image, kind, e.l.cfg.WordBytes, t)
		if err := e.machine.Write(uint32(v.addr[kind]), image); err != nil {
			return err
		}
	}
	return nil
}

// download fetches a value and gives its integers their meaning.
func (e *executable) download(v *value, t *graph.Tensor) error {
	kind := plain
	if !v.plain {
		kind = turned
	}
	image := e.buffer(v.size(kind, e.l.cfg.WordBytes))
	if err := e.machine.Read(uint32(v.addr[kind]), image); err != nil {
		return err
	}
	v.decode(image, kind, e.l.cfg.WordBytes, t)
	return nil
}

// buffer is memory for an image.
func (e *executable) buffer(n int64) []byte {
	if int64(cap(e.image)) < n {
		e.image = make([]byte, n)
	}
	return e.image[:n]
}

// each calls f with the place in an image, in bytes, of every element.
func (v *value) each(kind, wordBytes int, f func(i, at int)) {
	stride, b := v.stride(kind, wordBytes), v.bytes()
	for r := range v.rows {
		for c := range v.cols {
			if kind == plain {
				f(v.index(r, c), r*stride+c*b)
			} else {
				f(v.index(r, c), c*stride+r*b)
			}
		}
	}
}

func (v *value) encode(image []byte, kind, wordBytes int, t *graph.Tensor) {
	v.each(kind, wordBytes, func(i, at int) {
		if v.wide {
			binary.LittleEndian.PutUint16(image[at:], uint16(v.quant.of(t.Float(i), 16)))
		} else {
			image[at] = byte(v.quant.of(t.Float(i), 8))
		}
	})
}

func (v *value) decode(image []byte, kind, wordBytes int, t *graph.Tensor) {
	v.each(kind, wordBytes, func(i, at int) {
		if v.wide {
			t.SetFloat(i, v.quant.real(int(int16(binary.LittleEndian.Uint16(image[at:])))))
		} else {
			t.SetFloat(i, v.quant.real(int(int8(image[at]))))
		}
	})
}

// Start implements lowering.Executable: it is all of Run.
func (e *executable) Start() error { return e.Run() }

// Sync implements lowering.Executable: nothing is written but outputs.
func (e *executable) Sync(...int) error { return nil }

// Watch implements lowering.Executable.
func (e *executable) Watch(check func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error) {
	e.watch = check
}

// Rounded implements lowering.Executable.
func (e *executable) Rounded(buffer int) (step, lo, hi float64) {
	v := e.l.partition.values[buffer]
	if v == nil {
		return 0, 0, 0
	}
	limit := 1 << (8*v.bytes() - 1)
	return v.quant.step, v.quant.real(-limit), v.quant.real(limit - 1)
}

// Output implements lowering.Executable.
func (e *executable) Output(buffer int) *graph.Tensor { return e.tensors[buffer] }

// Profile implements lowering.Executable. The first run after it also measures by how much each launch departs from the
// float program, which takes a second run, launch by launch.
func (e *executable) Profile(on bool) { e.profile = on }

// Times implements lowering.Executable: cycles at the clock that the device was made with.
func (e *executable) Times() []time.Duration { return e.times }

// Counts implements lowering.Executable.
func (e *executable) Counts() lowering.Counts {
	c := lowering.Counts{Program: trace.Measures{{Name: Quantised, Unit: "times", Value: float64(e.remade)}},
		Launches: make([]trace.Measures, len(e.counts))}
	for i, n := range e.counts {
		var list trace.Measures
		state := func(name, unit string, value float64) {
			list = append(list, trace.Measure{Name: name, Unit: unit, Value: value})
		}
		overlay := e.p.Launches[i].Device == ""
		if overlay {
			state(Cycles, Cycles, float64(n.cycles))
		}
		if e.measured {
			state(MaxError, "%", 100*n.max)
			state(RMSError, "%", 100*n.rms)
		}
		if overlay {
			state(Multiplying, Cycles, float64(n.multiply))
		}
		c.Launches[i] = list
	}
	return c
}

// Memory implements lowering.Executable.
func (e *executable) Memory() lowering.Memory {
	m := lowering.Memory{Arena: e.l.arena, Kernels: e.need - e.l.arena, Prepared: e.p.PreparedBytes}
	for _, b := range e.p.Buffers {
		if b.Role == lowering.Output {
			m.Outputs += b.Type.Bytes()
		}
	}
	return m
}

// Close implements lowering.Executable.
func (e *executable) Close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	e.host.Close()
	return e.disconnect()
}
