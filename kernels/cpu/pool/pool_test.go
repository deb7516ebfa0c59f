package pool

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// tally counts how often each item was executed, and by whom.
type tally struct {
	items   []atomic.Int32
	workers []atomic.Int32
	busy    []atomic.Int32 // goroutines inside Do, per worker number
	overlap atomic.Bool    // two goroutines had the same worker number at once
}

func newTally(workers, n int) *tally {
	return &tally{
		items:   make([]atomic.Int32, n),
		workers: make([]atomic.Int32, workers),
		busy:    make([]atomic.Int32, workers),
	}
}

func (t *tally) Do(worker, item int) {
	if t.busy[worker].Add(1) != 1 {
		t.overlap.Store(true)
	}
	t.items[item].Add(1)
	t.workers[worker].Add(1)
	t.busy[worker].Add(-1)
}

func (t *tally) check(tb testing.TB, times int32) {
	tb.Helper()
	for i := range t.items {
		if got := t.items[i].Load(); got != times {
			tb.Fatalf("item %d executed %d times, want %d", i, got, times)
		}
	}
	if t.overlap.Load() {
		tb.Fatal("two goroutines shared a worker number")
	}
}

// taskFunc makes a Task of a function.
type taskFunc func(worker, item int)

func (f taskFunc) Do(worker, item int) { f(worker, item) }

func TestRunExecutesEveryItemOnce(t *testing.T) {
	for _, workers := range []int{-1, 1, 2, 3, 8, 20} {
		p := New(workers)
		if want := max(workers, 1); p.Workers() != want {
			t.Errorf("New(%d).Workers() = %d, want %d", workers, p.Workers(), want)
		}
		for _, n := range []int{0, 1, 2, 3, 100, 1000} {
			task := newTally(p.Workers(), n)
			p.Run(n, task)
			task.check(t, 1)
		}
		p.Close()
	}
}

func TestRunBackToBack(t *testing.T) {
	p := New(3)
	defer p.Close()
	task := newTally(3, 7)
	for range 5000 {
		p.Run(7, task)
	}
	task.check(t, 5000)
}

func TestRunAfterSleep(t *testing.T) {
	p := New(2)
	defer p.Close()
	task := newTally(2, 4)
	p.Run(4, task) // starts the helpers
	for range 20 {
		awaitParked(t, p)
		p.Run(4, task)
	}
	task.check(t, 21)
}

// awaitParked waits until all helpers sleep.
func awaitParked(t *testing.T, p *Pool) {
	t.Helper()
	for i := range p.helpers {
		for start := time.Now(); !p.helpers[i].parked.Load(); time.Sleep(50 * time.Microsecond) {
			if time.Since(start) > 10*time.Second {
				t.Fatal("an idle helper does not go to sleep")
			}
		}
	}
}

// Both workers must be inside at the same time for the run to end.
func TestRunIsParallel(t *testing.T) {
	p := New(2)
	defer p.Close()
	var meet sync.WaitGroup
	meet.Add(2)
	p.Run(2, taskFunc(func(_, _ int) {
		meet.Done()
		meet.Wait()
	}))
}

// A worker takes the items of its part from the first on, and those that the other one leaves from the last on.
func TestRunKeepsParts(t *testing.T) {
	p := New(2)
	defer p.Close()
	for range 50 {
		var taken [2][]int
		var meet sync.WaitGroup
		meet.Add(2)
		p.Run(9, taskFunc(func(worker, item int) {
			if taken[worker] = append(taken[worker], item); len(taken[worker]) == 1 {
				meet.Done()
				meet.Wait()
			}
		}))
		for worker, list := range taken {
			from, to := worker*4, 4+5*worker
			end := to - 1
			for i, item := range list {
				switch {
				case item == from+i && from+i < to:
				case item >= from && item < to || i == 0:
					t.Fatalf("worker %d took items %v", worker, list)
				default: // the other one's
					if end >= from && end < to {
						end = 8 - 5*worker
					}
					if item != end {
						t.Fatalf("worker %d took items %v", worker, list)
					}
					end--
				}
			}
		}
	}
}

// A worker alone takes the items in order.
func TestRunAlone(t *testing.T) {
	p, closed := New(1), New(3)
	closed.Run(9, newTally(3, 9))
	closed.Close()
	for _, p := range []*Pool{p, closed} {
		last := -1
		p.Run(100, taskFunc(func(_, item int) {
			if item != last+1 {
				t.Errorf("item %d after %d", item, last)
			}
			last = item
		}))
		if last != 99 {
			t.Errorf("the last item is %d", last)
		}
	}
}

// The caller sleeps when a helper takes much longer than it does.
func TestRunAwaitsSlowHelper(t *testing.T) {
	p := New(2)
	defer p.Close()
	var finished atomic.Int32
	var meet sync.WaitGroup
	meet.Add(2)
	p.Run(2, taskFunc(func(worker, _ int) {
		meet.Done()
		meet.Wait()
		if worker != 0 {
			time.Sleep(20 * time.Millisecond)
		}
		finished.Add(1)
	}))
	if finished.Load() != 2 {
		t.Fatal("Run returned before its helper had finished")
	}
}

func TestConcurrentRunsAreSerialised(t *testing.T) {
	p := New(3)
	defer p.Close()
	task := newTally(3, 50)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 100 {
				p.Run(50, task)
				p.Run(1, taskFunc(func(worker, _ int) { task.busy[worker].Add(1); task.busy[worker].Add(-1) }))
			}
		})
	}
	wg.Wait()
	task.check(t, 400)
}

func TestSeparatePools(t *testing.T) {
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			p := New(2)
			defer p.Close()
			task := newTally(2, 20)
			for range 200 {
				p.Run(20, task)
			}
			task.check(t, 200)
		})
	}
	wg.Wait()
}

func TestPanicReachesCaller(t *testing.T) {
	cause := errors.New("bad tile")
	for _, workers := range []int{1, 2, 4} {
		p := New(workers)
		for range 50 {
			var after atomic.Int32
			failure := caught(func() {
				p.Run(10000, taskFunc(func(_, item int) {
					if item == 5 {
						panic(cause)
					}
					after.Add(1)
				}))
			})
			if failure == nil || failure.Item != 5 || !errors.Is(failure, cause) {
				t.Fatalf("%d workers: recovered %v", workers, failure)
			}
			if !strings.Contains(failure.Error(), "item 5") || !strings.Contains(string(failure.Stack), "TestPanicReachesCaller") {
				t.Fatalf("report is not helpful: %v\n%s", failure, failure.Stack)
			}
		}
		task := newTally(workers, 100)
		p.Run(100, task)
		task.check(t, 1)
		p.Close()
	}
}

func TestPanicWithoutError(t *testing.T) {
	p := New(1)
	defer p.Close()
	failure := caught(func() { p.Run(1, taskFunc(func(_, _ int) { panic("text") })) })
	if failure == nil || failure.Value != "text" || failure.Unwrap() != nil {
		t.Fatalf("recovered %v", failure)
	}
}

// caught runs f and returns the *Panic that it panics with.
func caught(f func()) (failure *Panic) {
	defer func() { failure, _ = recover().(*Panic) }()
	f()
	return nil
}

// An item that ends its goroutine is reported, and the pool continues to work.
func TestGoexit(t *testing.T) {
	p := New(2)
	var meet sync.WaitGroup
	meet.Add(2)
	failure := caught(func() {
		p.Run(2, taskFunc(func(worker, _ int) {
			meet.Done()
			meet.Wait()
			if worker == 1 {
				runtime.Goexit()
			}
		}))
	})
	if !errors.Is(failure, ErrGoexit) {
		t.Fatalf("recovered %v", failure)
	}
	done := make(chan struct{})
	go func() { // the caller's own goroutine ends
		defer close(done)
		p.Run(1, taskFunc(func(_, _ int) { runtime.Goexit() }))
	}()
	<-done
	task := newTally(2, 100)
	p.Run(100, task)
	task.check(t, 1)
	p.Close()
}

func TestCloseLeavesNoGoroutines(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		p := New(4)
		p.Run(8, newTally(4, 8))
		p.Close()
		p.Close()
	}
	for start := time.Now(); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Since(start) > 10*time.Second {
			t.Fatalf("%d goroutines before, %d after", before, runtime.NumGoroutine())
		}
	}
}

func TestRunAfterClose(t *testing.T) {
	p := New(3)
	p.Close()
	task := newTally(3, 10)
	p.Run(10, task)
	task.check(t, 1)
	if task.workers[0].Load() != 10 {
		t.Error("a closed pool has helpers")
	}
}

// A pool that was reopened has helpers again, from its first run of several items on.
func TestReopen(t *testing.T) {
	p := New(2)
	var meet sync.WaitGroup
	for range 5 {
		before := runtime.NumGoroutine()
		p.Run(1, newTally(2, 1))
		if n := runtime.NumGoroutine(); n > before {
			t.Errorf("a run of one item started %d goroutines", n-before)
		}
		meet.Add(2)
		p.Run(2, taskFunc(func(_, _ int) { // ends only if both workers are inside at once
			meet.Done()
			meet.Wait()
		}))
		p.Close()
		p.Reopen()
	}
}

func TestRunAllocatesNothing(t *testing.T) {
	for _, workers := range []int{1, 2, 4} {
		p := New(workers)
		task := newTally(workers, 16)
		for _, n := range []int{1, 16} {
			if a := testing.AllocsPerRun(200, func() { p.Run(n, task) }); a != 0 {
				t.Errorf("%d workers, %d items: %v allocations", workers, n, a)
			}
		}
		p.Close()
	}
}

// BenchmarkRun measures the cost of a run without its items.
func BenchmarkRun(b *testing.B) {
	for _, workers := range []int{1, 2} {
		b.Run(map[int]string{1: "workers=1", 2: "workers=2"}[workers], func(b *testing.B) {
			p := New(workers)
			defer p.Close()
			task := newTally(workers, 2)
			b.ReportAllocs()
			for b.Loop() {
				p.Run(2, task)
			}
		})
	}
}

// BenchmarkRunFromC has a caller that is bound to its thread, as one that C has called, and items of some 20 µs, the last of
// which ends after the caller's own.
func BenchmarkRunFromC(b *testing.B) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	p := New(2)
	defer p.Close()
	spin := taskFunc(func(_, item int) {
		for end := time.Now().Add(time.Duration(20+5*item) * time.Microsecond); time.Now().Before(end); {
		}
	})
	for b.Loop() {
		p.Run(2, spin)
	}
}
