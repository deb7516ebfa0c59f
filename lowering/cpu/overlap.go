package cpu

import (
	"fmt"
	"slices"
	"unsafe"

	"fusec/graph"
	kernels "fusec/kernels/cpu"
	"fusec/lowering"
)

// A run makes collective operations beside the launches that follow them, up to the first one that has to wait: because it
// reads the result, or because it writes where the operation reads or writes. They are made in their order, on one goroutine,
// since all participants have to come to them in the same order.

// findJoins finds for each launch that may run beside others the launch that waits for it; 0 for all others. The number of launches
// is that of the end of the run.
func (e *executable) findJoins() {
	if e.env.Group == nil || e.env.Group.Size() == 1 {
		return
	}
	e.joins = make([]int, len(e.launches))
	for i := range e.launches {
		if _, local := e.p.Launches[i].Op.(graph.Part); local {
			continue
		}
		if _, ok := e.p.Launches[i].Op.(graph.Collective); ok {
			e.joins[i] = e.join(i)
		}
	}
}

func (e *executable) join(i int) int {
	l := &e.launches[i]
	for j := i + 1; j < len(e.launches); j++ {
		m := &e.launches[j]
		if anyOverlap(m.argMem, l.resultMem) || anyOverlap(m.resultMem, l.resultMem) || anyOverlap(m.resultMem, l.argMem) {
			return j
		}
	}
	return len(e.launches)
}

// anyOverlap reports whether memory of one list is also memory of the other.
func anyOverlap(a, b []kernels.Memory) bool {
	for _, x := range a {
		for _, y := range b {
			if len(x) == 0 || len(y) == 0 {
				continue
			}
			p, q := uintptr(unsafe.Pointer(unsafe.SliceData(x))), uintptr(unsafe.Pointer(unsafe.SliceData(y)))
			if p < q+uintptr(len(y)) && q < p+uintptr(len(x)) {
				return true
			}
		}
	}
	return false
}

// runBeside executes the launches from one to another, and collective operations beside those that follow them.
func (e *executable) runBeside(from, to int) error {
	var others beside
	for i := from; i < to; i++ {
		if at, err := others.wait(i); err != nil {
			others.end()
			return e.undo(from, i, at, err)
		}
		if e.joins[i] > i+1 || e.joins[i] > 0 && len(others.until) > 0 {
			e.startBeside(&others, i)
			continue
		}
		if err := e.run(i); err != nil {
			others.end()
			return e.undo(from, i, i, err)
		}
	}
	if at, err := others.end(); err != nil {
		return e.undo(from, to, at, err)
	}
	return nil
}

// findCommit finds the first of the launches that write updates in place, which come last and cannot fail; the number of launches
// if there are none.
func (e *executable) findCommit() {
	value := make([]bool, len(e.p.Buffers))
	for _, u := range e.p.Updates {
		value[u.Value] = true
	}
	e.commit = len(e.launches)
	for i := len(e.launches) - 1; i >= e.p.Prepared; i-- {
		l := &e.p.Launches[i]
		f, fused := l.Op.(graph.Fusion)
		if !fused || f.Anchor != graph.AnchorNone || f.Fails() ||
			slices.ContainsFunc(l.Results, func(v lowering.View) bool { return !value[v.Buffer] }) {
			return
		}
		e.commit = i
	}
}

// agree waits until all participants have come as far, before anything is changed that is not undone. One that has failed does not
// come.
func (e *executable) agree(from int) error {
	g := e.env.Group
	if e.joins == nil || len(e.p.Updates) == 0 {
		return nil
	}
	if err := g.All().Gather([]byte{0}, make([]byte, g.Size())); err != nil {
		e.takeBack(from, e.commit)
		return fmt.Errorf("before parameters and state are changed: %w", err)
	}
	return nil
}

// beside is the collective operations under way in a run.
type beside struct {
	todo  chan int
	done  chan outcome
	until []int // the launches that wait for those that are not done, in the order of these
}

type outcome struct {
	launch int
	err    error
}

// startBeside makes a collective operation beside what follows.
func (e *executable) startBeside(b *beside, i int) {
	if b.todo == nil {
		b.todo, b.done = make(chan int, len(e.launches)), make(chan outcome, len(e.launches))
		go func() {
			for i := range b.todo {
				b.done <- outcome{i, e.run(i)}
			}
		}()
	}
	b.todo <- i
	b.until = append(b.until, e.joins[i])
}

// wait waits for the operations that launch j needs done, and all before them.
func (b *beside) wait(j int) (launch int, err error) {
	last := -1
	for k, at := range b.until {
		if at <= j {
			last = k
		}
	}
	for k := 0; k <= last; k++ {
		if o := <-b.done; o.err != nil && err == nil {
			launch, err = o.launch, o.err
		}
	}
	b.until = b.until[last+1:]
	return launch, err
}

// end waits for all, and lets the goroutine go.
func (b *beside) end() (launch int, err error) {
	if b.todo == nil {
		return 0, nil
	}
	close(b.todo)
	for range b.until {
		if o := <-b.done; o.err != nil && err == nil {
			launch, err = o.launch, o.err
		}
	}
	b.until = nil
	return launch, err
}
