package loader

import (
	"fmt"
	"runtime/debug"
	"sync"

	"fusec/graph"
)

// Batch is one mini-batch.
type Batch struct {
	Step  int64 // the number of batches before it, over all epochs
	Epoch int64 // counted from 0
	Rows  int   // Options.Batch, or fewer in the last batch of an epoch
	// Index is the row of the sources for each row of the batch.
	Index []int64
	// Tensors are the operands by name; the first axis is the batch.
	Tensors map[string]*graph.Tensor
	// Located are the operands of sources with Locate: the parts of files that are their rows, one after another.
	Located map[string][]graph.FilePart
}

// slot is the buffer of a batch.
type slot struct {
	batch Batch
	index []int64 // for Options.Batch rows
	data  [][]any // of each column, of each of its operands: the elements of Options.Batch rows
	// The operands in a batch of Options.Batch rows, and in the smaller one that ends an epoch.
	full, tail map[string]*graph.Tensor
	located    map[string][]graph.FilePart

	bytes int64 // read from files
	err   error
	done  chan struct{} // holds an element when the batch is ready, or err is set
}

// newSlot makes all the buffers of a batch.
func (l *Loader) newSlot() *slot {
	s := &slot{index: make([]int64, l.opts.Batch), full: map[string]*graph.Tensor{}, tail: map[string]*graph.Tensor{},
		located: map[string][]graph.FilePart{}}
	for _, c := range l.columns {
		var data []any
		for _, name := range c.src.names() {
			if c.src.Locate {
				s.located[name] = nil
				continue
			}
			t := graph.NewTensor(c.batchType(l.opts.Batch))
			data = append(data, t.Data)
			s.full[name] = t
			s.tail[name] = graph.TensorAt(t.Bytes(), c.batchType(l.tail()))
		}
		s.data = append(s.data, data)
	}
	return s
}

// pipeline is the goroutines that fill buffers ahead of the consumer. A buffer is free, then queued in the order of the
// steps and filled by a worker, then used by the consumer, then free again.
type pipeline struct {
	free, work, order chan *slot
	stop              chan struct{}
	wg                sync.WaitGroup
	first             *slot // taken from order, and not yet given to the consumer
}

// newPipeline starts goroutines that make the batches from step on.
func (l *Loader) newPipeline(step int64) *pipeline {
	n := len(l.slots) // no channel ever holds more, so that sending never blocks
	p := &pipeline{free: make(chan *slot, n), work: make(chan *slot, n), order: make(chan *slot, n), stop: make(chan struct{})}
	for _, s := range l.slots {
		s.done = make(chan struct{}, 1)
		p.free <- s
	}
	p.wg.Go(func() { p.dispatch(step, l.end) })
	for _, buf := range l.scratch {
		p.wg.Go(func() { l.worker(p, buf) })
	}
	return p
}

// dispatch gives each free buffer the next step.
func (p *pipeline) dispatch(step, end int64) {
	defer close(p.work)
	for ; step < end; step++ {
		select {
		case s := <-p.free:
			s.batch.Step = step
			p.order <- s
			p.work <- s
		case <-p.stop:
			return
		}
	}
}

// worker fills buffers.
func (l *Loader) worker(p *pipeline, buf *scratch) {
	debug.SetPanicOnFault(true) // of this goroutine only: see fill
	for {
		select {
		case s, ok := <-p.work:
			if !ok {
				return
			}
			s.err = l.fill(s, buf)
			s.done <- struct{}{}
		case <-p.stop:
			return
		}
	}
}

// ready reports whether the next batch is there, or its error.
func (p *pipeline) ready() bool {
	if p.first == nil {
		select {
		case p.first = <-p.order:
		default:
			return false
		}
	}
	return len(p.first.done) > 0
}

// wait gives the next batch in the order of the steps.
func (p *pipeline) wait() (*slot, error) {
	s := p.first
	if p.first = nil; s == nil {
		select {
		case s = <-p.order:
		case <-p.stop:
			return nil, errClosed
		}
	}
	select {
	case <-s.done:
		return s, s.err
	case <-p.stop:
		return nil, errClosed
	}
}

// end stops the goroutines and waits for them.
func (p *pipeline) end() {
	close(p.stop)
	p.wg.Wait()
}

// fill makes the batch of the slot's step. Reading a mapped file that was truncated meanwhile faults; that becomes an
// error of the file and does not end the process.
func (l *Loader) fill(s *slot, buf *scratch) (err error) {
	defer func() {
		if r := recover(); r != nil {
			if err = l.fault(r); err == nil {
				panic(r)
			}
		}
	}()
	b := &s.batch
	b.Epoch = b.Step / l.steps
	first := b.Step % l.steps * int64(l.opts.Batch)
	b.Rows, b.Tensors, b.Located = l.opts.Batch, s.full, s.located
	if left := l.rows - first; left < int64(b.Rows) {
		b.Rows, b.Tensors = int(left), s.tail
	}
	b.Index = s.index[:b.Rows]
	order := newPermutation(l.rows, l.opts.Seed, uint64(b.Epoch))
	for i := range b.Index {
		b.Index[i] = first + int64(i)
		if l.opts.Shuffle {
			b.Index[i] = order.at(b.Index[i])
		}
	}
	s.bytes = 0
	for i, c := range l.columns {
		if c.src.Locate {
			for shift, name := range c.src.names() {
				s.located[name] = c.locate(s.located[name][:0], b.Index, shift)
			}
			continue
		}
		n, err := c.fill(s.data[i], b.Index, buf)
		if err != nil {
			return fmt.Errorf("loader: %s: %w", c.file.path, err)
		}
		s.bytes += n
	}
	return nil
}

// fault is the error of a fault in a mapped file, or nil if r is none.
func (l *Loader) fault(r any) error {
	at, ok := r.(interface{ Addr() uintptr })
	if !ok {
		return nil
	}
	for _, f := range l.files {
		if off, ok := f.offset(at.Addr()); ok {
			return fmt.Errorf("loader: %s: the file cannot be read at byte %d: was it truncated while it was in use?", f.path, off)
		}
	}
	return nil
}
