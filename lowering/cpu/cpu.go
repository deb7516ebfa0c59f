// Package cpu runs programs on the processor's cores, with the kernels of package kernels/cpu.
package cpu

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"
	"unsafe"

	"fusec/graph"
	"fusec/graph/memlimit"
	kernels "fusec/kernels/cpu"
	"fusec/kernels/cpu/attention"
	"fusec/kernels/cpu/panel"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/group"
	"fusec/lowering"
	"fusec/lowering/estimate"
)

// Device is the CPU.
type Device struct {
	lowering.Defaults
	workers   int
	attention attention.Blocking
	tuning    *kernels.Tuning
	group     *group.Group
}

// Option configures a Device.
type Option func(*Device)

// Workers sets the number of cores to use; the default is GOMAXPROCS.
func Workers(n int) Option { return func(d *Device) { d.workers = n } }

// AttentionBlock makes attentions compute n queries in a work item and n keys in a step; 0, the default, chooses both
// by the shape. Gradients of attentions use the same sizes.
func AttentionBlock(n int) Option {
	return func(d *Device) { d.attention = attention.Blocking{Queries: n, Keys: n} }
}

// Tuned computes convolutions in the ways that were measured to be fastest. Without this option a target that is opened by its
// name takes what `fusec tune` has kept for the machine, see [Chip]; an empty Tuning has rules choose.
func Tuned(t *kernels.Tuning) Option { return func(d *Device) { d.tuning = t } }

// New makes a device. Options that are nil are ignored.
func New(opts ...Option) *Device {
	d := &Device{workers: runtime.GOMAXPROCS(0)}
	for _, o := range opts {
		if o != nil {
			o(d)
		}
	}
	return d
}

// Name implements lowering.Device.
func (d *Device) Name() string { return "cpu" }

// Workers is the number of cores that programs use.
func (d *Device) Workers() int { return d.workers }

// Accepts implements lowering.Device: the CPU has a kernel for every operation but those that consist of simpler ones. With
// 16-bit operands it has moves, conversions and computations in f32, attentions, and products with weights in panels, but no other
// contractions, and no fusions with one: the pass widen casts what they read.
func (d *Device) Accepts(op graph.Op, args, results []graph.Type) error {
	if graph.InfoOf(op) == nil {
		return fmt.Errorf("the CPU does not know %s", op.OpName())
	}
	if err := kernels.Refuses(op); err != nil {
		return err
	}
	switch op := op.(type) { // what is only stored has a kernel
	case graph.Quantize:
		if !op.To.IsStored() {
			return fmt.Errorf("quantize to %v is computed by simpler operations", op.To)
		}
	case graph.Dequantize:
		if !args[0].DType.IsStored() {
			return fmt.Errorf("dequantize of %v is computed by simpler operations", args[0].DType)
		}
	case graph.Conv2D:
		if args[0].DType == graph.U8 {
			return kernels.ConvolvesIntegers(op, args[1])
		}
	}
	half := graph.Invalid
	note := func(t graph.Type) {
		if half == graph.Invalid && t.DType.Is16() {
			half = t.DType
		}
	}
	switch f, fused := op.(graph.Fusion); {
	case fused && multipliesPanels(f): // its weights may have 16 bits
	case fused && attends(f): // its queries, keys and values may
	case fused && f.Anchor.Contracts():
		for _, n := range f.Body.Nodes {
			note(n.Type)
		}
	case isPanels(op), isAttention(op): // alone, too
	case isPool(op) && args[0].DType.Is16():
		return fmt.Errorf("the CPU has no pools of %v: it computes in f32 and f64", args[0].DType)
	case graph.Contracts(op, 0):
		for _, t := range args {
			note(t)
		}
		for _, t := range results {
			note(t)
		}
	}
	if half != graph.Invalid {
		return fmt.Errorf("the CPU has no contractions with %v: it computes in f32 and f64", half)
	}
	return nil
}

// Widens implements passes.Widener.
func (d *Device) Widens(of graph.DType) bool { return of.Is16() }

// multipliesPanels reports whether a fusion is anchored on a product with weights in panels.
func multipliesPanels(f graph.Fusion) bool {
	if f.Anchor != graph.AnchorMatMul || f.Body == nil || f.Anchored() == nil {
		return false
	}
	return isPanels(f.Anchored().Op)
}

// attends reports whether a fusion is anchored on an attention whose operands are read, and results handed out, as they are.
func attends(f graph.Fusion) bool {
	if f.Anchor != graph.AnchorAttention || f.Body == nil || f.Anchored() == nil || !isAttention(f.Anchored().Op) {
		return false
	}
	return !slices.ContainsFunc(f.Body.Nodes, func(n *graph.Node) bool { _, ok := n.Op.(graph.Cast); return ok })
}

func isAttention(op graph.Op) bool {
	_, ok := op.(graph.Attention)
	return ok
}

func isPanels(op graph.Op) bool {
	_, ok := op.(graph.PanelMatMul)
	return ok
}

func isPool(op graph.Op) bool {
	switch op.(type) {
	case graph.Pool, graph.PoolGrad:
		return true
	}
	return false
}

// PacksWeights implements panels.Packer: products with weights of a type are read in panels of elements of type d.
func (d *Device) PacksWeights(weights graph.Type, as graph.DType) error {
	switch as {
	case graph.I4, graph.I8, graph.BF16, graph.F16:
		return nil
	}
	return fmt.Errorf("the CPU has no products with weights of %v", as)
}

// AddsOffsets implements panels.Offsetter.
func (d *Device) AddsOffsets() bool { return true }

// leastPairs is the number of rows from which on a product takes longer than reading its weights.
const leastPairs = 8

// MultipliesPairs implements panels.Pairer.
func (d *Device) MultipliesPairs(rows int, of graph.DType) error {
	switch {
	case of != graph.BF16:
		return fmt.Errorf("there are no products of %v and %[1]v on processors", of)
	case rows < leastPairs:
		return fmt.Errorf("products of less than %d rows take the time of reading the weights", leastPairs)
	}
	return panel.Pairs()
}

// leastPacked is the number of rows from which on a product in pairs, and packing its weights, takes less than a product of f32.
const leastPacked = 32

// MultipliesChanging implements panels.Pairer.
func (d *Device) MultipliesChanging(rows int, of graph.DType) error {
	if err := d.MultipliesPairs(rows, of); err != nil || rows >= leastPacked {
		return err
	}
	return fmt.Errorf("products of less than %d rows take the time of packing the weights", leastPacked)
}

// MultipliesIntegers implements panels.Integers.
func (d *Device) MultipliesIntegers() error { return panel.Integers() }

// MultipliesBytes implements panels.Integers.
func (d *Device) MultipliesBytes() error { return panel.Bytes() }

// ConvolvesIntegers implements panels.Convolver.
func (d *Device) ConvolvesIntegers(op graph.Conv2D, filters graph.Type) error {
	if err := kernels.ConvolvesIntegers(op, filters); err != nil {
		return err
	}
	return slowerIntegers(op, filters, kernels.DotsIntegers())
}

// Lowering implements lowering.Device: values that are joined are written side by side.
func (d *Device) Lowering() []lowering.Option {
	return []lowering.Option{lowering.Strides(kernels.Strided)}
}

// links are those of processes of one host, roughly.
var links = estimate.Links{Rate: 10e9, Latency: 10 * time.Microsecond}

// Place implements lowering.Device: it names the ways of convolutions that were measured.
func (d *Device) Place(p *lowering.Program) {
	estimate.Exchanges(p, links)
	for i := range p.Launches {
		l := &p.Launches[i]
		if op, x, w, ok := convolutionOf(l); ok {
			if way, ok := d.tuning.Tuned(op, x, w); ok {
				l.Way = way.Text() + ", tuned"
			}
		}
	}
}

// Convolutions lists the convolutions of a program, without those of its prepared part, each once, with the way in which the
// kernels compute it.
func Convolutions(p *lowering.Program) (list []kernels.Convolution, ways map[kernels.Convolution]kernels.Way) {
	ways = map[kernels.Convolution]kernels.Way{}
	for i := range p.Launches[p.Prepared:] {
		l := &p.Launches[p.Prepared+i]
		if op, x, w, ok := convolutionOf(l); ok && l.Device == "" {
			c := kernels.ConvolutionOf(op, x, w)
			if _, ok := ways[c]; !ok {
				list, ways[c] = append(list, c), kernels.WayOf(op, x, w)
			}
		}
	}
	return list, ways
}

// convolutionOf is the convolution of floating-point numbers that a launch computes, if it does, with the types of its images and
// filters.
func convolutionOf(l *lowering.Launch) (op graph.Conv2D, images, filters graph.Type, ok bool) {
	defer func() { ok = ok && images.DType.IsFloat() }()
	if f, fused := l.Op.(graph.Fusion); fused {
		if f.Anchor != graph.AnchorConv {
			return op, images, filters, false
		}
		n := f.Anchored()
		if op, ok = n.Op.(graph.Conv2D); ok {
			images, filters = n.Args[0].Type, n.Args[1].Type
		}
		return op, images, filters, ok
	}
	if op, ok = l.Op.(graph.Conv2D); ok {
		typed := func(v lowering.View) graph.Type { return graph.Type{DType: v.DType, Shape: v.Layout.Shape} }
		images, filters = typed(l.Args[0]), typed(l.Args[1])
	}
	return op, images, filters, ok
}

// Compile implements lowering.Device. A program that needs more memory than available (see package memlimit) is refused
// before it is allocated.
func (d *Device) Compile(p *lowering.Program) (lowering.Executable, error) {
	var sum memlimit.Sum
	values := valuesBytes(p)
	if err := sum.Check(values); err != nil {
		return nil, fmt.Errorf("intermediate values and outputs: %w; %s%s", err, largest(p), memoryAdvice)
	}
	e := newExecutable(p, kernels.NewEnv(pool.New(d.workers)))
	e.env.Mesh, e.env.Group = p.Mesh, d.group
	e.env.Attention, e.env.Tuning, e.packed = d.attention, d.tuning, map[int][]kernels.Kernel{}
	e.env.Fits = func(bytes int64) error {
		if err := sum.Check(values + bytes); err != nil {
			return fmt.Errorf("with %d MiB of kernels' memory: %w; %s", bytes>>20, err, memoryAdvice)
		}
		return nil
	}
	for i := range p.Launches {
		l, err := e.compile(i)
		if err != nil {
			e.env.Pool.Close()
			return nil, fmt.Errorf("launch %d, %s: %w", i+1, p.Launches[i].Node.Where(), err)
		}
		e.launches = append(e.launches, l)
	}
	e.env.Fits = nil
	e.arena = make([]uint64, p.ArenaBytes/8+cacheLine/8)
	e.place()
	return e, nil
}

// memoryAdvice says what to do about a lack of memory.
const memoryAdvice = "a smaller batch needs less, and the option WithMemoryBudget (--memory-budget) has intermediate values " +
	"computed again"

// valuesBytes is the memory of the values that the program owns.
func valuesBytes(p *lowering.Program) int64 {
	n := p.ArenaBytes + p.PreparedBytes
	for _, b := range p.Buffers {
		if b.Role == lowering.Output {
			n += b.Type.Bytes()
		}
	}
	return n
}

// largest names the launch that reads and writes the most bytes of such values.
func largest(p *lowering.Program) string {
	name, most := "", int64(0)
	for i, l := range p.Launches {
		n, seen := int64(0), map[int]bool{}
		for _, v := range slices.Concat(l.Args, l.Results) {
			switch b := p.Buffers[v.Buffer]; b.Role {
			case lowering.Temp, lowering.Output, lowering.Prepared:
				if !seen[v.Buffer] {
					n += b.Type.Bytes()
					seen[v.Buffer] = true
				}
			}
		}
		if n > most {
			name, most = fmt.Sprintf("launch %d, %s, takes the most, %d MiB; ", i+1, l.Node.Where(), n>>20), n
		}
	}
	return name
}

type launch struct {
	kernel        kernels.Kernel
	args, results []int // buffers
	argMem        []kernels.Memory
	resultMem     []kernels.Memory
}

type executable struct {
	lowering.ExecutableDefaults
	p        *lowering.Program
	env      *kernels.Env
	launches []launch
	packed   map[int][]kernels.Kernel // kernels that keep a parameter or a prepared value in another form, by its buffer
	memory   []kernels.Memory         // of each buffer
	tensors  []*graph.Tensor          // of each buffer that is not in the arena
	arena    []uint64
	store    []uint64 // the prepared values; nil before there are any, and while they are another executable's
	placed   bool     // they have their memory in the store
	lent     bool     // others read what is in the store
	let      bool     // parameters that only the prepared part reads were let go of
	prepared bool     // the prepared part has run with the present parameters
	from     []bool   // by buffer: the prepared part reads it
	outputs  int64
	profile  bool
	times    []time.Duration
	joins    []int // see findJoins; nil for a program that runs alone
	commit   int   // the launch before which participants agree that none has failed; see findCommit
	stale    bool  // memory has changed after the launches' lists were filled
	failed   bool  // a run has failed
	closed   bool
	kept     lowering.Memory // the memory when it was closed
	dropped  runtime.Cleanup // closes the pool when the executable is unreachable
	watch    func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error
}

func newExecutable(p *lowering.Program, env *kernels.Env) *executable {
	e := &executable{p: p, env: env, memory: make([]kernels.Memory, len(p.Buffers)),
		tensors: make([]*graph.Tensor, len(p.Buffers)), times: make([]time.Duration, len(p.Launches)), from: p.PreparedFrom()}
	// An executable that is dropped without Close ends its goroutines: they refer to the pool, but not to the
	// executable.
	e.dropped = runtime.AddCleanup(e, (*pool.Pool).Close, env.Pool)
	return e
}

// compile makes the kernel of launch i. One of the prepared part keeps nothing of its operands: it runs once.
func (e *executable) compile(i int) (launch, error) {
	l, once := &e.p.Launches[i], i < e.p.Prepared
	args, results := l.Operands()
	buffers := func(views []lowering.View) (list []int) {
		for _, v := range views {
			list = append(list, v.Buffer)
		}
		return
	}
	argBuffers, resultBuffers := buffers(l.Args), buffers(l.Results)
	var packed []int
	for i, at := range argBuffers {
		switch r := e.p.Buffers[at].Role; {
		case once:
		case r == lowering.Const:
			args[i].Frozen = true
		case r == lowering.Prepared, r == lowering.Param && e.p.Frozen && !e.updated(at):
			args[i].Frozen, packed = true, append(packed, at)
		}
	}
	k, err := kernels.Compile(l.Op, args, results, e.env)
	for _, at := range packed {
		e.packed[at] = append(e.packed[at], k)
	}
	return launch{k, argBuffers, resultBuffers, make([]kernels.Memory, len(args)), make([]kernels.Memory, len(results))}, err
}

func (e *executable) updated(buffer int) bool {
	for _, u := range e.p.Updates {
		if u.Target == buffer {
			return true
		}
	}
	return false
}

const cacheLine = 64

// aligned is so many bytes of words, from the first cache line on.
func aligned(words []uint64, bytes int64) []byte {
	base := unsafe.Pointer(unsafe.SliceData(words))
	return unsafe.Slice((*byte)(unsafe.Add(base, int(-uintptr(base)%cacheLine))), bytes)
}

// keep gives memory to the prepared values, other than what others read.
func (e *executable) keep() {
	if e.p.PreparedBytes == 0 || e.placed && !e.lent {
		return
	}
	if e.store == nil || e.lent {
		e.store = make([]uint64, e.p.PreparedBytes/8+cacheLine/8)
		adviseLarge(aligned(e.store, e.p.PreparedBytes))
	}
	bytes := aligned(e.store, e.p.PreparedBytes)
	for i, b := range e.p.Buffers {
		if b.Role == lowering.Prepared {
			e.memory[i] = bytes[b.Offset:][:b.Type.Bytes()]
		}
	}
	e.placed, e.lent, e.stale = true, false, true
}

// place gives memory to the buffers that the program owns, but for prepared values.
func (e *executable) place() {
	bytes := aligned(e.arena, e.p.ArenaBytes)
	for i, b := range e.p.Buffers {
		switch b.Role {
		case lowering.Temp:
			e.memory[i] = bytes[b.Offset:][:b.Type.Bytes()]
		case lowering.Const:
			e.set(i, b.Value)
		case lowering.Output:
			e.set(i, graph.NewTensor(b.Type))
			e.outputs += b.Type.Bytes()
		}
	}
	e.stale = true
}

func (e *executable) set(buffer int, t *graph.Tensor) {
	e.tensors[buffer] = t
	e.memory[buffer] = kernels.MemoryOf(t)
	e.stale = true
}

// Bind implements lowering.Executable.
func (e *executable) Bind(buffer int, t *graph.Tensor) error {
	if err := e.p.MayBind(buffer, t); err != nil {
		return err
	}
	if e.tensors[buffer] != t {
		e.set(buffer, t)
		if e.p.Buffers[buffer].Role == lowering.State { // such as a cache of keys
			adviseLarge(e.memory[buffer])
		}
	}
	e.thaw(buffer)
	if e.from[buffer] {
		e.prepared = false
	}
	return nil
}

// BindOutput implements lowering.Executable.
func (e *executable) BindOutput(buffer int, t *graph.Tensor) (bool, error) {
	switch b := &e.p.Buffers[buffer]; {
	case b.Role != lowering.Output:
		return false, nil
	case t == nil:
		return false, fmt.Errorf("output %q was given no memory", b.Name)
	case t.Type != b.Type:
		return false, fmt.Errorf("output %q is %v; it was given memory of type %v", b.Name, b.Type, t.Type)
	}
	if e.tensors[buffer] != t {
		e.set(buffer, t)
	}
	return true, nil
}

// thaw tells kernels that the value of a buffer has changed.
func (e *executable) thaw(buffer int) {
	for _, k := range e.packed[buffer] {
		kernels.Thaw(k)
	}
}

// Run implements lowering.Executable.
func (e *executable) Run() error {
	if e.closed {
		return errors.New("the program is closed")
	}
	once := e.p.Prepared
	clear(e.times[:once])
	if err := e.ready(!e.prepared || e.watch != nil && !e.let, true); err != nil {
		return err
	}
	if err := e.runAll(once, e.commit); err != nil {
		return err
	}
	if err := e.agree(once); err != nil {
		return err
	}
	if err := e.runAll(e.commit, len(e.launches)); err != nil {
		return err
	}
	for _, u := range e.p.Updates {
		if u.Target != u.Value {
			e.tensors[u.Target].CopyFrom(e.tensors[u.Value])
		}
	}
	runtime.KeepAlive(e) // the pool is closed when e is unreachable
	return nil
}

// ready brings the launches' memory up to date, and runs the prepared part on request. What only others read may have no value
// yet, unless all is set.
func (e *executable) ready(prepare, all bool) error {
	if prepare {
		e.prepared = false
		e.keep()
	}
	if e.stale {
		if err := e.refresh(all); err != nil {
			return err
		}
	}
	if !prepare {
		return nil
	}
	if err := e.runAll(0, e.p.Prepared); err != nil {
		return err
	}
	e.thawPrepared()
	e.prepared = true
	return nil
}

func (e *executable) thawPrepared() {
	for i, b := range e.p.Buffers {
		if b.Role == lowering.Prepared {
			e.thaw(i)
		}
	}
}

// Prepare implements lowering.Executable.
func (e *executable) Prepare() error {
	if e.closed {
		return errors.New("the program is closed")
	}
	if err := e.ready(!e.prepared, false); err != nil {
		return err
	}
	e.letGo()
	return nil
}

// letGo forgets the parameters that only the prepared part reads.
func (e *executable) letGo() {
	for i, only := range e.p.Originals() {
		if only {
			e.tensors[i], e.memory[i] = nil, nil
		}
	}
	e.let, e.stale = true, true
}

// TakePrepared implements lowering.Executable.
func (e *executable) TakePrepared(from lowering.Executable) bool {
	f, ok := lowering.Unowned(from).(*executable)
	if !ok || f == e || e.p.PreparedBytes == 0 || e.closed || f.closed || !f.prepared {
		return false
	}
	same := e.p.SamePrepared(f.p)
	for i, b := range e.p.Buffers {
		if b.Role == lowering.Prepared && same[i] < 0 {
			return false
		}
	}
	for i, b := range e.p.Buffers {
		if b.Role == lowering.Prepared {
			e.memory[i] = f.memory[same[i]]
		}
	}
	e.store, e.placed, e.lent = nil, false, false
	f.lent = true
	e.letGo()
	e.thawPrepared()
	e.prepared = true
	return true
}

// Start implements lowering.Executable: it is all of Run.
func (e *executable) Start() error { return e.Run() }

// runAll executes the launches from one to another. What they have written in place is undone if one fails.
func (e *executable) runAll(from, to int) error {
	if e.joins != nil && e.watch == nil && !e.profile {
		return e.runBeside(from, to)
	}
	for i := from; i < to; i++ {
		if err := e.run(i); err != nil {
			return e.undo(from, i, i, err)
		}
		if e.watch != nil {
			if err := e.watch(&e.p.Launches[i], e.value); err != nil {
				return err
			}
		}
	}
	return nil
}

// undo takes back what the launches from one to another have written in place, the last first, after the error of a launch.
func (e *executable) undo(from, to, failed int, err error) error {
	e.takeBack(from, to)
	return &lowering.LaunchError{Launch: failed, Node: e.p.Launches[failed].Node, Err: err}
}

func (e *executable) takeBack(from, to int) {
	e.failed = true
	for j := to - 1; j >= from; j-- {
		kernels.Undo(e.launches[j].kernel)
	}
}

// run executes one launch. A panic in it becomes an error.
func (e *executable) run(i int) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("kernel failed: %v", r)
		}
	}()
	l := &e.launches[i]
	if !e.profile {
		return l.kernel.Run(l.argMem, l.resultMem)
	}
	start := time.Now()
	err = l.kernel.Run(l.argMem, l.resultMem)
	e.times[i] = time.Since(start)
	return err
}

// refresh fills the launches' lists of memory: all are complete, or those of the prepared part.
func (e *executable) refresh(all bool) error {
	bound := func(buffer int) error {
		if b := e.p.Buffers[buffer]; b.Role != lowering.Temp && b.Role != lowering.Prepared && e.tensors[buffer] == nil {
			return fmt.Errorf("%s %q has no value", b.Role, b.Name)
		}
		return nil
	}
	for _, u := range e.p.Updates {
		if err := bound(u.Target); all && err != nil {
			return err
		}
	}
	for at, l := range e.launches {
		for i, b := range l.args {
			if once := at < e.p.Prepared; all && !once || once && !e.prepared {
				if err := bound(b); err != nil {
					return err
				}
			}
			l.argMem[i] = e.memory[b]
		}
		for i, b := range l.results {
			l.resultMem[i] = e.memory[b]
		}
	}
	if e.stale = !all; all {
		e.findJoins()
		e.findCommit()
	}
	return nil
}

// Sync implements lowering.Executable: updates write into the tensors themselves.
func (e *executable) Sync(...int) error { return nil }

// Watch implements lowering.Executable.
func (e *executable) Watch(check func(*lowering.Launch, func(lowering.View) (*graph.Tensor, error)) error) {
	e.watch = check
}

// value is the value of a view, in row-major order.
func (e *executable) value(v lowering.View) (*graph.Tensor, error) {
	return kernels.TensorOf(e.memory[v.Buffer], kernels.Operand{DType: v.DType, Layout: v.Layout}, e.env)
}

// Output implements lowering.Executable.
func (e *executable) Output(buffer int) *graph.Tensor { return e.tensors[buffer] }

// Profile implements lowering.Executable.
func (e *executable) Profile(on bool) { e.profile = on }

// Times implements lowering.Executable.
func (e *executable) Times() []time.Duration { return e.times }

// Memory implements lowering.Executable.
func (e *executable) Memory() lowering.Memory {
	if e.closed {
		return e.kept
	}
	m := lowering.Memory{Arena: e.p.ArenaBytes, Outputs: e.outputs, Scratch: e.env.WorkspaceBytes(), Prepared: e.p.PreparedBytes}
	if e.prepared && !e.placed {
		m.Prepared = 0 // they are another executable's
	}
	for _, l := range e.launches {
		m.Kernels += kernels.Bytes(l.kernel)
	}
	return m
}

// Close implements lowering.Executable.
func (e *executable) Close() error {
	if !e.closed {
		e.kept = e.Memory()
		e.closed = true
		e.dropped.Stop()
		e.env.Pool.Close()
	}
	return nil
}

// Spare implements lowering.Executable. After a failed run it is nil: a kernel that was interrupted may be in any
// state.
func (e *executable) Spare() lowering.Spare {
	if e.failed || e.env == nil {
		return nil
	}
	s := &spare{env: e.env, launches: e.launches, packed: e.packed, arena: e.arena, store: e.store, memory: e.kept}
	if e.lent {
		s.store = nil
	}
	for _, l := range s.launches { // bound tensors belong to their owner
		clear(l.argMem)
		clear(l.resultMem)
	}
	e.launches, e.packed, e.env, e.arena, e.store = nil, nil, nil, nil, nil
	return s
}

// A spare is the kernels and the memory of a closed executable.
type spare struct {
	env      *kernels.Env
	launches []launch
	packed   map[int][]kernels.Kernel
	arena    []uint64
	store    []uint64
	memory   lowering.Memory
}

// Bytes implements lowering.Spare.
func (s *spare) Bytes() int64 { return s.memory.Bytes() - s.memory.Outputs }

// Executable implements lowering.Spare.
func (s *spare) Executable(p *lowering.Program) lowering.Executable {
	s.env.Pool.Reopen()
	e := newExecutable(p, s.env)
	e.launches, e.packed, e.arena, e.store = s.launches, s.packed, s.arena, s.store
	e.place()
	return e
}
