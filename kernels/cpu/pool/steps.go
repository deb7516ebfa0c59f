package pool

import (
	"sync/atomic"
	"time"
)

// A StepTask is work in steps, each cut into the same number of items.
type StepTask interface {
	// Step executes one item of one step; see [Task] for worker, and for what it must not do.
	Step(worker, step, item int)
}

// Steps runs a StepTask: all items of a step have ended before the next step begins. The workers stay together from the first
// step to the last, so that a step costs the exchange of two cache lines. A worker takes the same items in each step, as long as
// no other one is faster, and finds the data of its items in its own cache.
//
// Make it with NewSteps. Run must not be called while it runs.
type Steps struct {
	pool  *Pool
	task  StepTask
	items []stepItem
	steps int
	_     [cacheLine]byte
	done  atomic.Int64 // items of all steps that have ended
	_     [cacheLine]byte
}

// A stepItem is the number of the next step of which a worker may take the item.
type stepItem struct {
	step atomic.Int64
	_    [cacheLine - 8]byte
}

// NewSteps makes what runs a task of n items a step on the workers of p.
func NewSteps(p *Pool, n int, t StepTask) *Steps {
	return &Steps{pool: p, task: t, items: make([]stepItem, max(n, 0))}
}

// Run executes all items of so many steps. It allocates nothing, and panics as [Pool.Run] does.
func (s *Steps) Run(steps int) {
	if len(s.items) == 0 {
		return
	}
	s.steps = steps
	s.done.Store(0)
	for i := range s.items {
		s.items[i].step.Store(0)
	}
	s.pool.Run(min(s.pool.Workers(), len(s.items)), s)
}

// Do takes part in the steps until all have ended, or an item has failed; see [Task]. A worker that comes late begins with the step
// that the others are at.
func (s *Steps) Do(worker, _ int) {
	n := len(s.items)
	first := worker * n / s.pool.Workers()
	for step := int(s.done.Load()) / n; step < s.steps; step++ {
		for i := range n {
			item := (first + i) % n
			if s.items[item].step.CompareAndSwap(int64(step), int64(step+1)) {
				s.task.Step(worker, step, item)
				s.done.Add(1)
			}
		}
		if !s.await(int64(step+1) * int64(n)) {
			return
		}
	}
}

// await waits until so many items have ended, and reports whether they have. It polls, as the others are about to end, and not
// with runtime.Gosched; see [Pool.settle]. If another worker has lost its core, it sleeps.
func (s *Steps) await(done int64) bool {
	for polls := 0; s.done.Load() < done; polls++ {
		if s.pool.failed.Load() != nil {
			return false
		}
		if polls >= settleLimit {
			time.Sleep(20 * time.Microsecond)
		}
	}
	return true
}
