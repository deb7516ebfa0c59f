// Package pool runs numbered work items on a fixed set of goroutines.
//
// It is the only source of parallelism in the CPU kernels. A kernel cuts its
// work into items (output tiles, row blocks, packing jobs) and passes them to a Pool. Each worker has a span of consecutive items,
// the same part of them in every run, so that it finds in its cache what it has made of the data of those items before. It takes
// them one by one, and then those of other spans from their ends, so a core that another process slows down does fewer of them.
//
// Helpers join a run when they notice it. The caller works, too, and waits only for helpers that have joined. So a
// helper that sleeps or has lost its core never delays a finished run. After a run a helper polls for the next one for
// some hundreds of microseconds before it sleeps, so consecutive runs cost about a microsecond each and an idle pool
// costs nothing.
package pool

import (
	"math"
	"runtime"
	"sync"
	"sync/atomic"
)

// A Task is work cut into numbered items.
type Task interface {
	// Do executes one item. The worker number, below Workers, is the same for
	// every item that one goroutine executes during a run and differs between
	// goroutines that run at the same time, so it can index private scratch.
	//
	// Do must not call Run on the pool that executes it.
	Do(worker, item int)
}

// The word that describes the current run, so that one compare-and-swap joins
// it: how many helpers are inside, whether more may join, whether the caller
// sleeps until the last one leaves, and the number of the run.
const (
	activeMask = 1<<16 - 1
	openBit    = 1 << 16
	waitBit    = 1 << 17
	epochShift = 32

	maxWorkers = activeMask
)

const (
	// spinLimit bounds how often a helper polls before it sleeps: some hundreds of microseconds, longer than the serial code
	// between two runs, which may be a small kernel that one worker runs alone. To wake a goroutine takes some tens.
	spinLimit = 1 << 17
	// settleLimit bounds how often a caller polls for its last helper before it sleeps: longer than most items take. It does
	// not call runtime.Gosched meanwhile: a caller that C has called is bound to its thread, and Gosched would give its
	// processor to another thread and wait until that one gives it back, which takes longer than the item.
	settleLimit = 1 << 16
	// spinYield is the number of polls between two calls of runtime.Gosched, which give the core to other goroutines.
	spinYield = 1 << 9

	// spansMax bounds the number of spans, which a caller sets in each run.
	spansMax = 8

	cacheLine = 64
)

// A Pool is a fixed set of workers. The goroutine that calls Run is worker 0;
// the others wait in between. Use New to make one. Several goroutines may call
// Run on the same Pool; the runs follow one another.
type Pool struct {
	mu      sync.Mutex // held during a run
	helpers []helper   // workers 1, 2, …
	started bool       // the helpers' goroutines are running
	exited  sync.WaitGroup
	closed  atomic.Bool

	// The current run. Written by the caller before it opens the run and after the last helper has left it; read by
	// those who joined.
	task   Task
	failed atomic.Pointer[Panic]
	idle   chan struct{} // the last helper's signal to a caller that sleeps

	_     [cacheLine]byte
	state atomic.Uint64
	_     [cacheLine]byte
	spans []span // worker i's is that with number i, modulo their number
}

// A span is consecutive items that no worker has taken: the first one in the upper half of the word, the end in the lower half.
type span struct {
	word atomic.Uint64
	_    [cacheLine - 8]byte
}

// set makes the span items lo to hi.
func (s *span) set(lo, hi int) { s.word.Store(uint64(lo)<<32 | uint64(hi)) }

// take takes an item, the first one or the last one.
func (s *span) take(last bool) (item int, ok bool) {
	for {
		w := s.word.Load()
		lo, hi := w>>32, w&math.MaxUint32
		if lo >= hi {
			return 0, false
		}
		if last {
			if s.word.CompareAndSwap(w, w-1) {
				return int(hi) - 1, true
			}
		} else if s.word.CompareAndSwap(w, w+1<<32) {
			return int(lo), true
		}
	}
}

// A helper is the part of a worker that others use to wake it.
type helper struct {
	parked atomic.Bool
	wake   chan struct{} // holds one token for each parked→awake transition made by others
	_      [cacheLine]byte
}

// New makes a pool of the given number of workers, the caller of Run included.
// Numbers below 1 count as 1. The first Run of several items starts its
// goroutines, and Close stops them.
func New(workers int) *Pool {
	workers = min(max(workers, 1), maxWorkers)
	p := &Pool{
		helpers: make([]helper, workers-1),
		idle:    make(chan struct{}, 1),
		spans:   make([]span, min(workers, spansMax)),
	}
	return p
}

// start starts the helpers' goroutines.
func (p *Pool) start() {
	p.started = true
	p.exited.Add(len(p.helpers))
	for i := range p.helpers {
		p.helpers[i].wake = make(chan struct{}, 1)
		go p.help(i)
	}
}

// Workers returns the number of workers, the caller of Run included.
func (p *Pool) Workers() int { return len(p.helpers) + 1 }

// Run executes items 0 to n-1 of t, fewer than 2³², and returns when all are done. A worker takes consecutive items as long as its
// part lasts. A single item, or any number on a pool of one worker or one that has been closed, is executed by the caller
// alone, in order. Run allocates nothing.
//
// If an item panics, no further items are started, Run waits for those in progress, and panics with a *Panic that holds
// the first value recovered. The pool remains usable.
func (p *Pool) Run(n int, t Task) {
	if n <= 0 {
		return
	}
	if failure := p.run(n, t); failure != nil {
		panic(failure)
	}
}

func (p *Pool) run(n int, t Task) (failure *Panic) {
	p.mu.Lock()
	p.task = t
	// Deferred, so that a caller whose item ends the goroutine leaves no run open.
	defer func() {
		p.settle()
		failure = p.failed.Swap(nil)
		p.task = nil
		p.mu.Unlock()
	}()
	if n > 1 && len(p.helpers) > 0 && !p.closed.Load() {
		if !p.started {
			p.start()
		}
		for i := range p.spans {
			p.spans[i].set(n*i/len(p.spans), n*(i+1)/len(p.spans))
		}
		p.open(n - 1)
	} else {
		p.spans[0].set(0, n) // the others are empty since the last run
	}
	p.drain(0)
	return nil
}

// Close stops the goroutines and returns when they have ended. It waits for a
// run in progress. Closing twice is harmless.
func (p *Pool) Close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed.Store(true)
	p.rouse(len(p.helpers))
	p.exited.Wait()
	p.started = false
}

// Reopen undoes Close.
func (p *Pool) Reopen() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed.Store(false)
}

// open lets helpers join the run that has been prepared and wakes as many of
// them as there is work for.
func (p *Pool) open(want int) {
	epoch := p.state.Load()>>epochShift + 1
	p.state.Store(epoch<<epochShift | openBit)
	p.rouse(want)
}

// rouse wakes up to want sleeping helpers.
func (p *Pool) rouse(want int) {
	for i := range p.helpers {
		if i >= want {
			return
		}
		if h := &p.helpers[i]; h.parked.CompareAndSwap(true, false) {
			h.wake <- struct{}{}
		}
	}
}

// settle closes the run to helpers and waits until none is inside.
func (p *Pool) settle() {
	if p.state.And(^uint64(openBit))&openBit == 0 {
		return // it was never opened
	}
	for range settleLimit {
		if p.state.Load()&activeMask == 0 {
			return
		}
	}
	for {
		s := p.state.Load()
		if s&activeMask == 0 {
			return
		}
		if p.state.CompareAndSwap(s, s|waitBit) {
			<-p.idle
			p.state.And(^uint64(waitBit))
			return
		}
	}
}

// help is the main loop of worker i+1.
func (p *Pool) help(i int) {
	defer p.exited.Done()
	var seen uint64 // the last run this worker has joined
	for spins := 0; ; spins++ {
		switch epoch, ok := p.join(seen); {
		case ok:
			seen = epoch
			p.assist(i + 1)
			spins = 0
		case p.closed.Load():
			return
		case spins < spinLimit:
			yield(spins)
		default:
			p.park(&p.helpers[i], seen)
			spins = 0
		}
	}
}

// join enters the current run if it is open and is not the one numbered seen.
func (p *Pool) join(seen uint64) (epoch uint64, ok bool) {
	for {
		s := p.state.Load()
		epoch = s >> epochShift
		if s&openBit == 0 || epoch == seen {
			return 0, false
		}
		if p.state.CompareAndSwap(s, s+1) {
			return epoch, true
		}
	}
}

// assist works on the run that has been joined and leaves it. The leaving is
// deferred for the case that an item ends the goroutine: the pool then has one worker fewer.
func (p *Pool) assist(worker int) {
	defer func() {
		if s := p.state.Add(^uint64(0)); s&(waitBit|activeMask) == waitBit {
			p.idle <- struct{}{}
		}
	}()
	p.drain(worker)
}

// park puts a helper to sleep until rouse finds it. The helper announces itself first and polls again afterwards. open
// publishes the run first and looks for sleepers afterwards. So one of the two sees the other.
func (p *Pool) park(h *helper, seen uint64) {
	h.parked.Store(true)
	s := p.state.Load()
	if offered := s&openBit != 0 && s>>epochShift != seen; offered || p.closed.Load() {
		if h.parked.CompareAndSwap(true, false) {
			return
		}
	}
	<-h.wake
}

// drain executes items until none is left.
func (p *Pool) drain(worker int) {
	item, finished := 0, false
	defer func() {
		if !finished {
			p.fail(item, recover())
		}
	}()
	home := worker % len(p.spans)
	for i := range p.spans {
		s := &p.spans[(home+i)%len(p.spans)]
		for ok := true; ; {
			if item, ok = s.take(i > 0); !ok {
				break
			}
			p.task.Do(worker, item)
		}
	}
	finished = true
}

// fail records why an item did not return, and stops further items.
func (p *Pool) fail(item int, value any) {
	p.failed.CompareAndSwap(nil, newPanic(item, value))
	for i := range p.spans {
		p.spans[i].set(0, 0)
	}
}

// yield is the body of a waiting loop.
func yield(spins int) {
	if spins%spinYield == spinYield-1 {
		runtime.Gosched()
	}
}
