//go:build linux || darwin

package mpi

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"fusec/kernels/group"
)

// names are where MPI libraries are looked for.
var names = []string{"libmpi.so.40", "libmpi.so.12", "libmpich.so.12", "libmpi.so", "libmpi.dylib"}

// library is the functions of an MPI library. Handles are pointers in Open MPI and integers in MPICH.
type library struct {
	world, bytes uintptr
	initThread   func(argc, argv uintptr, required int32, provided *int32) int32
	finalize     func() int32
	abort        func(comm uintptr, code int32) int32
	rank, size   func(comm uintptr, n *int32) int32
	isend, irecv func(buf unsafe.Pointer, count int32, datatype uintptr, peer, tag int32, comm uintptr, request *uintptr) int32
	test         func(request *uintptr, flag *int32, status unsafe.Pointer) int32
	errhandler   func(comm, handler uintptr) int32
	text         func(code int32, text *byte, length *int32) int32
	returns      uintptr // MPI_ERRORS_RETURN
}

// load opens the library that an environment variable names, or the first that is there.
func load() (*library, error) {
	candidates := names
	if name := os.Getenv(Library); name != "" {
		candidates = []string{name}
	}
	var errs []error
	for _, name := range candidates {
		handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		return functions(handle, name)
	}
	return nil, fmt.Errorf("no MPI library (on Debian: apt install openmpi-bin; %s names one): %w", Library, errors.Join(errs...))
}

func functions(handle uintptr, name string) (*library, error) {
	l := &library{}
	for symbol, to := range map[string]any{"MPI_Init_thread": &l.initThread, "MPI_Finalize": &l.finalize, "MPI_Abort": &l.abort,
		"MPI_Comm_rank": &l.rank, "MPI_Comm_size": &l.size, "MPI_Isend": &l.isend, "MPI_Irecv": &l.irecv, "MPI_Test": &l.test,
		"MPI_Comm_set_errhandler": &l.errhandler, "MPI_Error_string": &l.text} {
		at, err := purego.Dlsym(handle, symbol)
		if err != nil {
			return nil, fmt.Errorf("%s is no MPI library: %w", name, err)
		}
		purego.RegisterFunc(to, at)
	}
	if world, err := purego.Dlsym(handle, "ompi_mpi_comm_world"); err == nil {
		l.world = world
		if l.bytes, err = purego.Dlsym(handle, "ompi_mpi_byte"); err == nil {
			l.returns, err = purego.Dlsym(handle, "ompi_mpi_errors_return")
		}
		return l, err
	}
	l.world, l.bytes, l.returns = 0x44000000, 0x4c00010d, 0x54000001 // of MPICH's binary interface
	return l, nil
}

// transport is this process among those that were started together. All calls of the library come from one thread. A call may never
// return if another process dies meanwhile: in MPI_Init and MPI_Finalize, which wait for all, or where a process has died that
// held a lock in memory of both. Then the thread is given up. The thread lives as long as the process: MPI_Finalize unloads
// components of the library that have data for each thread, and the end of a thread calls what frees such data.
type transport struct {
	l          *library
	rank, size int
	patience   time.Duration
	calls      chan func()
	seen       atomic.Int64 // how often the thread has been seen outside of the library
	awaits     atomic.Int64 // a participant for which an exchange waits
	stuck      error        // why the thread was given up
	lost       error
	once       sync.Once
	pins       runtime.Pinner
}

var joined sync.Mutex // for ever by the first that joins

func open(patience time.Duration) (*transport, error) {
	if !joined.TryLock() {
		return nil, errors.New("this process has joined the group already: MPI can be begun once")
	}
	l, err := load()
	if err != nil {
		joined.Unlock()
		return nil, err
	}
	return start(l, patience, max(patience, group.Patience))
}

// start begins the use of a library, on a thread of its own. MPI_Init returns when all processes have begun, which takes a
// launcher as long as the machines are busy: so it has a patience of its own.
func start(l *library, patience, beginning time.Duration) (*transport, error) {
	t := &transport{l: l, patience: patience, calls: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for call := range t.calls {
			call()
		}
	}()
	var err error
	if stuck := t.do("MPI_Init", beginning, func() { err = t.begin() }); stuck != nil {
		return nil, stuck
	}
	return t, err
}

// do runs a function on the thread of the library. The error tells of a call that has not returned in time.
func (t *transport) do(call string, patience time.Duration, f func()) error {
	if t.stuck != nil {
		return t.stuck
	}
	done := make(chan struct{})
	t.calls <- func() {
		defer close(done)
		f()
	}
	tick := time.NewTicker(patience/16 + time.Millisecond)
	defer tick.Stop()
	// Ticks are counted, not time, which goes on where this process is stopped.
	for last, away := int64(0), 0; ; away++ {
		select {
		case <-done:
			return nil
		case <-tick.C:
		}
		if seen := t.seen.Load(); seen != last {
			last, away = seen, 0
		}
		if away > 20 {
			t.stuck = fmt.Errorf("%s has not returned for %v: a participant has died, or has not come to it", call, patience*5/4)
			return t.stuck
		}
	}
}

func (t *transport) begin() error {
	const funneled = 1
	var provided, rank, size int32
	if code := t.l.initThread(0, 0, funneled, &provided); code != 0 {
		return fmt.Errorf("MPI_Init_thread: error %d", code)
	}
	t.l.errhandler(t.l.world, t.l.returns)
	if err := t.check("MPI_Comm_rank", t.l.rank(t.l.world, &rank)); err != nil {
		return err
	}
	err := t.check("MPI_Comm_size", t.l.size(t.l.world, &size))
	t.rank, t.size = int(rank), int(size)
	return err
}

// check is the library's message for an error.
func (t *transport) check(call string, code int32) error {
	if code == 0 {
		return nil
	}
	text, n := make([]byte, 1024), int32(0)
	t.l.text(code, &text[0], &n)
	return fmt.Errorf("%s: %s", call, text[:min(max(int(n), 0), len(text))])
}

// Rank implements [group.Transport].
func (t *transport) Rank() int { return t.rank }

// Size implements [group.Transport].
func (t *transport) Size() int { return t.size }

// maxMessage is how many bytes are sent at once: MPI counts in 32 bits.
const maxMessage = 1 << 30

// pending is a message under way.
type pending struct {
	request uintptr
	peer    int
	receive bool
}

// Exchange implements [group.Transport].
func (t *transport) Exchange(send, receive []group.Message) (err error) {
	if stuck := t.do("a message", t.patience, func() { err = t.exchange(send, receive) }); stuck != nil {
		return &group.LostError{Rank: int(t.awaits.Load()), Err: stuck}
	}
	return err
}

func (t *transport) exchange(send, receive []group.Message) error {
	if t.lost != nil {
		return t.lost
	}
	defer t.pins.Unpin()
	var list []*pending
	begin := func(m group.Message, receives bool) error {
		f, call := t.l.isend, "MPI_Isend"
		if receives {
			f, call = t.l.irecv, "MPI_Irecv"
		}
		for b := m.Bytes; len(b) > 0; {
			n := min(len(b), maxMessage)
			p := &pending{peer: m.Peer, receive: receives}
			t.awaits.Store(int64(m.Peer))
			t.pins.Pin(&b[0])
			t.pins.Pin(p)
			if err := t.check(call, f(unsafe.Pointer(&b[0]), int32(n), t.l.bytes, int32(m.Peer), 0, t.l.world, &p.request)); err != nil {
				return t.fail(m.Peer, err)
			}
			list, b = append(list, p), b[n:]
		}
		return nil
	}
	for _, m := range receive {
		if err := begin(m, true); err != nil {
			return err
		}
	}
	for _, m := range send {
		if err := begin(m, false); err != nil {
			return err
		}
	}
	var status [64]uint64 // larger than any library's MPI_Status
	last, waited := time.Now(), time.Duration(0)
	for spins := 0; len(list) > 0; spins++ {
		kept := list[:0]
		t.seen.Add(1)
		for _, p := range list {
			t.awaits.Store(int64(p.peer))
			var done int32
			if err := t.check("MPI_Test", t.l.test(&p.request, &done, unsafe.Pointer(&status))); err != nil {
				return t.fail(p.peer, err)
			}
			if done == 0 {
				kept = append(kept, p)
			}
		}
		if len(kept) < len(list) {
			waited, spins = 0, 0
		}
		list = kept
		switch {
		case spins < 2000:
			runtime.Gosched()
		case len(list) > 0 && waited > t.patience:
			return t.fail(list[0].peer, fmt.Errorf("it has not come to a collective operation within %v", t.patience))
		default: // long messages, or a participant that is late: let others have the processor
			time.Sleep(50 * time.Microsecond)
			now := time.Now()
			waited += min(now.Sub(last), t.patience/16) // in which this process may have been stopped
			last = now
		}
	}
	return nil
}

// fail remembers that the group cannot be used any more.
func (t *transport) fail(peer int, err error) error {
	t.lost = &group.LostError{Rank: peer, Err: err}
	return t.lost
}

// aborting is how long the launcher may take to end this process.
const aborting = 5 * time.Second

// Abort implements [group.Transport]: the launcher ends all processes, this one, too. Where the library does not answer any more
// this process ends by itself, which the launcher sees.
func (t *transport) Abort(err error) {
	fmt.Fprintf(os.Stderr, "participant %d has failed: %v\n", t.rank, err)
	time.AfterFunc(aborting, func() { os.Exit(1) })
	if t.do("MPI_Abort", t.patience, func() { t.l.abort(t.l.world, 1) }) != nil {
		os.Exit(1)
	}
}

// Close implements [group.Transport]. MPI_Finalize waits for all others, and does not say for whom: so all meet before it. After a
// failure MPI is not ended in order.
func (t *transport) Close() (err error) {
	t.once.Do(func() {
		if t.lost == nil {
			err = t.meet()
		}
		if err == nil && t.lost == nil {
			stuck := t.do("MPI_Finalize", t.patience, func() { err = t.check("MPI_Finalize", t.l.finalize()) })
			err = errors.Join(stuck, err)
			t.lost = errors.New("the group is closed")
		}
	})
	return err
}

// meet waits for all others.
func (t *transport) meet() error {
	var send, receive []group.Message
	for r := range t.size {
		if r != t.rank {
			send, receive = append(send, group.Message{Peer: r, Bytes: []byte{1}}), append(receive, group.Message{Peer: r, Bytes: []byte{0}})
		}
	}
	return t.Exchange(send, receive)
}
