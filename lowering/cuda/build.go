package cuda

import (
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"
	"unsafe"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cuda/driver"
)

// align is the alignment of buffers in the block, in bytes.
const align = 256

const statusBytes = int64(unsafe.Sizeof(kernels.Status{}))

// newExecutable compiles the kernels of a program that has been placed, and allocates its memory.
func (d *Device) newExecutable(p *lowering.Program) (lowering.Executable, error) {
	e := &executable{p: p, gpu: d.gpu, each: d.each, from: p.PreparedFrom(), originals: p.Originals(),
		changed: map[int]bool{}, ahead: map[int]bool{}, given: map[int]given{},
		buffers: make([]driver.Ptr, len(p.Buffers)), launches: make([]launch, len(p.Launches)),
		staged:  make([]unsafe.Pointer, len(p.Buffers)),
		tensors: make([]*graph.Tensor, len(p.Buffers)), stale: make([]bool, len(p.Buffers)),
		times: make([]time.Duration, len(p.Launches)), update: firstUpdate(p)}
	for _, u := range p.Updates {
		e.changed[u.Target] = true
	}
	if d.group != nil {
		e.exchanges = &exchanges{group: d.group, most: d.exchangeBlocks, bucket: d.bucket, comms: map[string]driver.Comm{}}
	}
	if err := e.build(d, d.compiler); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	if d.queued {
		return queued{e}, nil
	}
	return e, nil
}

func (e *executable) build(d *Device, compiler driver.Compiler) (err error) {
	if e.free, _, err = e.gpu.Memory(); err != nil {
		return err
	}
	if e.stream, err = e.gpu.NewStream(); err != nil {
		return err
	}
	list := d.Kernels(e.p)
	extra := d.ending(e.p)
	e.cutParts()
	e.mixtures = mixturesOf(e.p)
	e.schedule = newSchedule(e.p, e.parts, list, d.branching())
	if x := e.exchanges; x != nil {
		x.joins = joins(e.p)
		for i, k := range list {
			if k == nil || !k.Exchanges() { // of values without elements
				x.joins[i] = 0
			}
		}
		x.ahead = e.stepsAhead(list)
	}
	e.scratchAt, e.scratchN = e.shareScratch(list)
	modules, err := e.load(append(list, extra[:]...), compiler, d.cfg.Chip)
	if err != nil {
		return err
	}
	take := e.takeBlock
	if d.queued {
		if d.group != nil {
			return errors.New("a program in a group does not run in the caller's memory")
		}
		if err := e.newLent(); err != nil {
			return err
		}
	} else if d.apart {
		take = e.takeApart
	}
	if err := take(list); err != nil {
		return err
	}
	if err := e.fillMemory(); err != nil {
		return err
	}
	if err := e.takeHostMemory(); err != nil {
		return err
	}
	for i, k := range list {
		if k == nil {
			continue
		}
		if err = e.launches[i].resolve(k, modules[i]); err != nil {
			return e.inLaunch(i, err)
		}
		if i >= e.p.Prepared && e.lent == nil { // the others are placed when they run
			if err := e.place(i); err != nil {
				return err
			}
		}
	}
	e.reports = slices.ContainsFunc(append(list[:len(list):len(list)], extra[1:]...), asksStatus)
	for i, l := range []*launch{&e.collect, &e.restore, &e.commit} {
		if err := l.resolve(extra[i], modules[len(list)+i]); err != nil {
			return err
		}
	}
	if err := e.placeAt(&e.collect, nil, nil, e.status); err != nil {
		return err
	}
	var from, to []driver.Ptr
	for _, o := range overwriting(e.p) {
		l := &e.launches[o.launch]
		from, to = append(from, l.kept+driver.Ptr(o.kept), l.zeroed+driver.Ptr(o.zeroed)), append(to, e.buffers[o.buffer])
	}
	if err := e.placeAt(&e.restore, from, to, e.status); err != nil {
		return err
	}
	from, to = nil, nil
	for _, u := range e.p.Updates {
		if u.Target != u.Value {
			from, to = append(from, e.buffers[u.Value]), append(to, e.buffers[u.Target])
		}
	}
	if err := e.placeAt(&e.commit, from, to, e.status); err != nil {
		return err
	}
	if e.exchanges != nil {
		e.countLater()
		e.findRoom()
	} else if err := alone(e.p); err != nil {
		return err
	}
	if err := e.newEvents(); err != nil {
		return err
	}
	if e.schedule != nil {
		if err := e.schedule.open(e.gpu); err != nil {
			return err
		}
	}
	e.host, err = e.newHostLaunches(d)
	return err
}

// cutParts finds the sequences of launches that are replayed as one graph.
func (e *executable) cutParts() {
	once := e.p.Prepared
	for i := once; i < len(e.p.Launches); i++ {
		if e.p.Launches[i].Device != "" {
			e.parts = append(e.parts, part{from: i, to: i + 1, host: true})
			continue
		}
		if n := len(e.parts); n == 0 || e.parts[n-1].host {
			e.parts = append(e.parts, part{from: i, to: i})
		}
		e.parts[len(e.parts)-1].to = i + 1
	}
	if n := len(e.parts); n == 0 || e.parts[n-1].host {
		e.parts = append(e.parts, part{from: len(e.p.Launches), to: len(e.p.Launches)}) // for the work at the end
	}
	if e.parts[0].host {
		e.parts = append([]part{{from: once, to: once}}, e.parts...) // and at the beginning
	}
}

// asksStatus reports whether a kernel has a report as a parameter.
func asksStatus(k *kernels.Kernel) bool {
	status := func(p kernels.Param) bool { return p.Kind == kernels.StatusPtr }
	return k != nil && slices.ContainsFunc(k.Steps, func(s kernels.Step) bool { return slices.ContainsFunc(s.Params, status) })
}

// newEvents makes the events between which launches are measured.
func (e *executable) newEvents() error {
	n := 2 * len(e.p.Launches)
	if e.exchanges != nil {
		for _, k := range e.exchanges.ahead {
			if k > 0 {
				e.launches[k-1].marks = n
				n += 2
			}
		}
	}
	for range n {
		v, err := e.gpu.NewEvent()
		if err != nil {
			return err
		}
		e.events = append(e.events, v)
	}
	for _, v := range e.marks.all() {
		var err error
		if *v, err = e.gpu.NewEvent(); err != nil {
			return err
		}
	}
	return nil
}

// load compiles the kernels' sources, each text once, several in parallel, and loads the images.
func (e *executable) load(list []*kernels.Kernel, compiler driver.Compiler, chip kernels.Chip) ([]driver.Module, error) {
	of := make([]driver.Module, len(list))
	users := map[string][]int{}
	var order []string
	for i, k := range list {
		if k == nil || len(k.Steps) == 0 || k.Source == "" {
			continue
		}
		if users[k.Source] == nil {
			order = append(order, k.Source)
		}
		users[k.Source] = append(users[k.Source], i)
	}
	images, errs := compileAll(order, compiler, chip, nil)
	for j, source := range order {
		first := users[source][0]
		name := func(err error) error {
			if first < len(e.p.Launches) {
				return e.inLaunch(first, err)
			}
			return err
		}
		if errs[j] != nil {
			return nil, name(errs[j])
		}
		m, err := e.gpu.Load(images[j])
		if err != nil {
			return nil, name(err)
		}
		e.modules = append(e.modules, m)
		for _, i := range users[source] {
			of[i] = m
		}
	}
	return of, nil
}

// compileAll compiles sources, several in parallel. Progress, if not nil, is called with the number of finished ones.
func compileAll(sources []string, compiler driver.Compiler, chip kernels.Chip, progress func(done, all int)) ([][]byte, []error) {
	images, errs := make([][]byte, len(sources)), make([]error, len(sources))
	var mu sync.Mutex
	var wait sync.WaitGroup
	done := 0
	slots := make(chan struct{}, driver.BatchOf(compiler))
	for i, source := range sources {
		wait.Add(1)
		slots <- struct{}{}
		go func() {
			defer wait.Done()
			images[i], _, errs[i] = compiler.Compile(source, chip)
			if progress != nil {
				mu.Lock()
				done++
				progress(done, len(sources))
				mu.Unlock()
			}
			<-slots
		}()
	}
	wait.Wait()
	return images, errs
}

// copiedFirst goes over the buffers in the order in which they lie on the GPU and on the host: first what each run copies to the
// GPU, so that it is one copy.
func (e *executable) copiedFirst() iter.Seq2[int, *lowering.Buffer] {
	return func(yield func(int, *lowering.Buffer) bool) {
		for _, copied := range []bool{true, false} {
			for i := range e.p.Buffers {
				if e.eachRun(i) == copied && !yield(i, &e.p.Buffers[i]) {
					return
				}
			}
		}
	}
}

// takeBlock allocates one block on the GPU, and gives each buffer its address.
func (e *executable) takeBlock(list []*kernels.Kernel) error {
	at := roundUp(e.p.RunningBytes)
	if e.lent != nil {
		at = 0
	}
	offsets := make([]int64, len(e.p.Buffers))
	for i, b := range e.copiedFirst() {
		switch {
		case e.passing(i), e.isLent(i):
		case b.Role == lowering.Temp:
			offsets[i] = b.Offset
		default:
			offsets[i] = at
			at += roundUp(b.Type.Bytes())
		}
	}
	e.oneBlock = true
	status := at
	if e.lent == nil {
		status += e.scratchN
	}
	e.takeZeroed(list)
	end := status + roundUp(e.zeroed)
	for i, k := range list {
		switch m := e.mixtures[i]; {
		case k == nil:
		case m >= 0:
			e.launches[i].kept = e.launches[m].kept
		default:
			e.launches[i].kept = driver.Ptr(end)
			end += roundUp(k.Kept)
		}
	}
	block, err := e.take(end)
	if err != nil {
		return err
	}
	for i := range offsets {
		if e.passing(i) || e.isLent(i) {
			continue
		}
		e.buffers[i] = block + driver.Ptr(offsets[i])
	}
	for i := range list {
		e.launches[i].scratch = block + driver.Ptr(at+e.scratchAt[i])
		e.launches[i].kept += block
	}
	e.placeZeroed(block + driver.Ptr(status))
	return nil
}

// shareScratch says where in the scratch memory each launch has its part, and how large it is together: the launches of a branch,
// which follow one another, have the same, and so have those that exchange something. A launch with steps in several branches, or
// with steps ahead of other launches, has a part of its own.
func (e *executable) shareScratch(list []*kernels.Kernel) (at []int64, bytes int64) {
	at = make([]int64, len(list))
	shares := make([][]int, 2) // of exchanges, of the main branch and each other one, and of launches by themselves
	if e.schedule != nil {
		shares = make([][]int, 2+e.schedule.branches)
	}
	for i, k := range list {
		share := 1
		switch s := e.schedule; {
		case k == nil || k.Scratch == 0:
			continue
		case k.Exchanges():
			share = 0
		case s != nil && s.apart[i], e.exchanges != nil && slices.Contains(e.exchanges.ahead, i+1):
			shares = append(shares, nil)
			share = len(shares) - 1
		case s != nil:
			share += s.branch[i]
		}
		shares[share] = append(shares[share], i)
	}
	for _, share := range shares {
		most := int64(0)
		for _, i := range share {
			at[i], most = bytes, max(most, roundUp(list[i].Scratch))
		}
		bytes += most
	}
	return at, bytes
}

// takeZeroed says how much memory is filled with zeros, and where in it each launch has its part: behind the reports. Before each
// run it is filled up to the parts of launches that leave zeros.
func (e *executable) takeZeroed(list []*kernels.Kernel) {
	e.zeroed = e.statusesBytes()
	for _, resets := range []bool{false, true} {
		if resets {
			e.filled = e.zeroed
		}
		for i, k := range list {
			if k != nil && k.Resets == resets {
				e.zeroed = (e.zeroed + 15) / 16 * 16
				e.launches[i].zeroed = driver.Ptr(e.zeroed)
				e.zeroed += k.Zeroed
			}
		}
	}
}

// placeZeroed gives that memory its address.
func (e *executable) placeZeroed(at driver.Ptr) {
	e.status = at
	for i := range e.launches {
		e.launches[i].zeroed += at
	}
}

// takeApart makes a separate allocation of the exact size for each buffer and for the scratch of each launch.
func (e *executable) takeApart(list []*kernels.Kernel) (err error) {
	e.scratchN = 0
	for i, b := range e.p.Buffers {
		if e.passing(i) {
			continue
		}
		if e.buffers[i], err = e.take(b.Type.Bytes()); err != nil {
			return err
		}
	}
	for i, k := range list {
		if k == nil {
			continue
		}
		if e.launches[i].scratch, err = e.take(k.Scratch); err != nil {
			return err
		}
		if m := e.mixtures[i]; m >= 0 {
			e.launches[i].kept = e.launches[m].kept
		} else if e.launches[i].kept, err = e.take(k.Kept); err != nil {
			return err
		}
		e.scratchN += k.Scratch
	}
	e.takeZeroed(list)
	at, err := e.take(e.zeroed)
	e.placeZeroed(at)
	return err
}

// statusesBytes is the size of the reports: one of all launches, and of each.
func (e *executable) statusesBytes() int64 { return int64(len(e.p.Launches)+1) * statusBytes }

// take allocates memory on the GPU; for 0 bytes it returns the address 0.
func (e *executable) take(bytes int64) (driver.Ptr, error) {
	if bytes == 0 {
		return 0, nil
	}
	p, err := e.gpu.Alloc(bytes)
	if err != nil {
		return 0, fmt.Errorf("taking %d bytes for program %q (%d of intermediate values, %d of scratch): %w", bytes, e.p.Name,
			e.p.RunningBytes, e.scratchN, err)
	}
	e.taken = append(e.taken, p)
	e.bytes += bytes
	return p, nil
}

// fillMemory copies the constants, and clears the reports.
func (e *executable) fillMemory() error {
	for i, b := range e.p.Buffers {
		if b.Role != lowering.Const || b.Type.Shape.Elems() == 0 {
			continue
		}
		from, n, err := bytesOf(b.Value)
		if err != nil {
			return fmt.Errorf("constant %q: %w", b.Name, err)
		}
		e.tensors[i] = b.Value
		if err := e.stream.CopyIn(e.buffers[i], from, n); err != nil {
			return err
		}
	}
	if err := e.stream.Fill(e.status, 0, e.zeroed); err != nil {
		return err
	}
	return e.stream.Sync()
}

// takeHostMemory allocates the pinned memory from and to which each run copies.
func (e *executable) takeHostMemory() error {
	if e.lent != nil {
		return e.takeReportMemory()
	}
	var places []int64
	var buffers []int
	n := roundUp(statusBytes)
	handed := make([]bool, len(e.p.Buffers)) // not so the values of updates, which are outputs of launches too
	for _, o := range e.p.Outputs {
		handed[o.Buffer] = true
	}
	for i, b := range e.copiedFirst() {
		if !handed[i] && !e.eachRun(i) {
			continue
		}
		if b.Type.Shape.Elems() == 0 {
			if b.Role == lowering.Output {
				e.tensors[i] = graph.NewTensor(b.Type)
			}
			continue
		}
		buffers, places = append(buffers, i), append(places, n)
		n += roundUp(b.Type.Bytes())
	}
	p, err := e.gpu.AllocHost(n)
	if err != nil {
		return fmt.Errorf("taking %d bytes of host memory for copies: %w", n, err)
	}
	e.report, e.pinned = (*kernels.Status)(p), n
	for j, i := range buffers {
		b := e.p.Buffers[i]
		e.staged[i] = unsafe.Add(p, places[j])
		if b.Role == lowering.Output {
			e.tensors[i] = graph.TensorAt(unsafe.Slice((*byte)(e.staged[i]), b.Type.Bytes()), b.Type)
		}
	}
	return nil
}

// resolve finds a kernel's entries. Their parameters are filled by place.
func (l *launch) resolve(k *kernels.Kernel, m driver.Module) error {
	l.kernel = k
	for i := range k.Steps {
		s := step{Step: &k.Steps[i]}
		if s.Entry != "" {
			var err error
			if s.function, err = m.Function(s.Entry); err != nil {
				return err
			}
			if f, ok := s.function.(driver.EarlyFunction); ok && s.Early {
				f.StartEarly()
			}
			if f, ok := s.function.(driver.TogetherFunction); ok && s.Together {
				f.StartTogether()
			}
			if f, ok := s.function.(driver.RoundsFunction); ok && s.Rounds {
				f.StartRounds()
			}
		}
		l.steps = append(l.steps, s)
	}
	return nil
}

// place fills the parameters of launch i with the addresses of its buffers.
func (e *executable) place(i int) error {
	l := &e.p.Launches[i]
	var args, results []driver.Ptr
	for _, l := range e.p.Launches[i : i+together(e.launches[i].kernel)] {
		args, results = e.addresses(args, l.Args), e.addresses(results, l.Results)
	}
	status := e.status + driver.Ptr(int64(1+i)*statusBytes)
	if updates(e.p, l) {
		status = e.status
	}
	if err := e.placeAt(&e.launches[i], args, results, status); err != nil {
		return e.inLaunch(i, err)
	}
	return nil
}

// addresses appends the addresses of the buffers of views.
func (e *executable) addresses(list []driver.Ptr, views []lowering.View) []driver.Ptr {
	for _, v := range views {
		list = append(list, e.buffers[v.Buffer])
	}
	return list
}

// placeAt fills the parameters of a launch.
func (e *executable) placeAt(l *launch, args, results []driver.Ptr, status driver.Ptr) (err error) {
	at := driver.Addresses{Args: args, Results: results, Scratch: l.scratch, Zeroed: l.zeroed, Kept: l.kept, Status: status}
	for i := range l.steps {
		s := &l.steps[i]
		switch {
		case s.Exchange != nil:
			s.send = driver.Exchange{Exchange: s.Exchange, X: at.Of(s.Params[0]), Y: at.Of(s.Params[1])}
		case s.Entry == "":
			s.fill = at.Of(s.Params[0])
		default:
			if s.params, err = at.Params(e.gpu, s.Step); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close implements lowering.Executable. What updates have written comes back first.
func (e *executable) Close() error {
	if e.closed {
		return nil
	}
	var errs []error
	if e.lost == nil {
		errs = append(errs, e.Wait(), e.Sync())
	}
	if e.stream != nil { // after a failed run work may be queued, and the memory will be reused
		errs = append(errs, e.stream.Sync())
	}
	e.closed = true
	for _, t := range e.parts {
		if t.graph != nil {
			errs = append(errs, t.graph.Close())
		}
	}
	if e.exchanges != nil {
		errs = append(errs, e.exchanges.close())
	}
	for _, v := range e.events {
		errs = append(errs, v.Close())
	}
	if e.schedule != nil {
		errs = append(errs, e.schedule.close())
	}
	for _, v := range e.marks.all() {
		if *v != nil {
			errs = append(errs, (*v).Close())
		}
	}
	for _, m := range e.modules {
		errs = append(errs, m.Unload())
	}
	if e.next != nil {
		errs = append(errs, e.next.close(e.gpu))
	}
	for _, f := range e.files {
		errs = append(errs, f.Close())
	}
	if e.stream != nil {
		errs = append(errs, e.stream.Close())
	}
	for _, p := range e.taken {
		errs = append(errs, e.gpu.Free(p))
	}
	if e.report != nil {
		for i := range e.p.Buffers { // outputs stay readable
			if e.staged[i] != nil && e.p.Buffers[i].Role == lowering.Output {
				e.tensors[i].Data = e.tensors[i].Clone().Data
			}
		}
		errs = append(errs, e.gpu.FreeHost(unsafe.Pointer(e.report)))
	}
	if e.host != nil {
		e.host.Close()
	}
	errs = append(errs, e.gpu.Close())
	if e.lost != nil {
		return nil // it was freed with the context
	}
	return errors.Join(errs...)
}

// bytesOf is the address and the size in bytes of a tensor's elements.
func bytesOf(t *graph.Tensor) (unsafe.Pointer, int64, error) {
	b := t.Bytes()
	return unsafe.Pointer(unsafe.SliceData(b)), int64(len(b)), t.Check()
}
