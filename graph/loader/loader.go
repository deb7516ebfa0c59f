// Package loader reads mini-batches from files ahead of the training step: from .npy, from tensors of safetensors
// files, and from files of bare values such as tokens.
//
// A [Source] makes one operand of every batch from the rows of a file; all sources have the same number of rows. While
// the consumer works on one batch, goroutines read and convert the next ones into buffers that are reused, so that
// after the first batches nothing is allocated. Files are mapped into memory, read with O_DIRECT without the page
// cache, or read with ordinary system calls; see [Access]. Parts of files larger than memory are released after they
// have been read.
//
// The order of the rows is a function of the seed, the epoch and the position in it. So no memory in proportion to the
// data is needed, and any step is reached in constant time: store [Loader.Position] in a checkpoint, and
// [Loader.SetPosition] gives the same batches, bit for bit. They do not depend on the number of workers.
package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"math"
	"runtime"
	"sync"
	"time"

	"fusec/graph"
)

// Options say how batches are made. Batch is required; the zero values of the others are good defaults.
type Options struct {
	Batch    int    // rows in a batch, at most as many as the sources have
	Shuffle  bool   // each epoch in another random order
	Seed     uint64 // of the orders
	Epochs   int64  // how often all rows are read; 0 for no end
	DropLast bool   // leave out the last batch of an epoch if it is smaller than the others
	Prefetch int    // batches that are read ahead; 0 means 4
	Access   Access // how files are read
	// Workers is the number of goroutines that read, at most Prefetch. 0 means 4; fewer if there are fewer processors,
	// unless Access is Direct.
	Workers int
}

// Defaults of Options.
const (
	defaultPrefetch = 4
	mostWorkers     = 4
)

// check reports invalid options and fills in the defaults.
func (o *Options) check() error {
	switch {
	case o.Batch < 1:
		return fmt.Errorf("a batch of %d rows: want at least 1", o.Batch)
	case o.Epochs < 0 || o.Prefetch < 0 || o.Workers < 0:
		return fmt.Errorf("epochs (%d), prefetched batches (%d) and workers (%d) must not be negative",
			o.Epochs, o.Prefetch, o.Workers)
	case int(o.Access) >= len(accesses):
		return fmt.Errorf("there is no access %d", o.Access)
	}
	if o.Prefetch == 0 {
		o.Prefetch = defaultPrefetch
	}
	if o.Workers == 0 {
		o.Workers = mostWorkers
		if o.Access != Direct { // whose workers wait for the disk most of the time
			o.Workers = min(o.Workers, runtime.GOMAXPROCS(0))
		}
	}
	o.Workers = min(o.Workers, o.Prefetch)
	return nil
}

// Loader makes batches. One goroutine at a time may use it, except for [Loader.Close] and [Loader.Stats].
type Loader struct {
	opts    Options
	columns []*column
	files   []*file
	rows    int64 // of every source
	steps   int64 // in an epoch
	end     int64 // steps in all
	slots   []*slot
	scratch []*scratch // of each worker
	held    *slot      // in use by the consumer

	mu     sync.Mutex
	next   int64 // the step of the next batch
	run    *pipeline
	closed bool
	stats  Stats
}

// Open opens the sources' files and checks that they hold what their headers say. Errors name the file. Reading starts
// with the first call of Next. The loader must be closed.
func Open(opts Options, sources ...Source) (*Loader, error) {
	return open(opts, physicalMemory()/2, sources)
}

// open is Open with the size above which a file is large: it will not stay in the page cache anyway.
func open(opts Options, large int64, sources []Source) (*Loader, error) {
	l := &Loader{opts: opts}
	if err := l.opts.check(); err != nil {
		return nil, fmt.Errorf("loader: %w", err)
	}
	err := l.openSources(sources, large)
	if err == nil {
		err = l.plan()
	}
	if err != nil {
		return nil, errors.Join(err, l.closeFiles())
	}
	for range l.opts.Prefetch + 1 {
		l.slots = append(l.slots, l.newSlot())
	}
	for range l.opts.Workers {
		l.scratch = append(l.scratch, &scratch{})
	}
	return l, nil
}

// openSources opens the files, each once, and determines the columns.
func (l *Loader) openSources(sources []Source, large int64) error {
	if len(sources) == 0 {
		return errors.New("loader: there is no source")
	}
	files := map[string]*file{}
	names := map[string]bool{}
	for _, src := range sources {
		for _, name := range src.names() {
			if name == "" || names[name] {
				return fmt.Errorf("loader: %s: the name %q is empty or given twice", src.Path, name)
			}
			names[name] = true
		}
		f := files[src.Path]
		if f == nil {
			var err error
			if f, err = openFile(src.Path, l.opts.Access, l.opts.Shuffle, large); err != nil {
				return fmt.Errorf("loader: %w", err)
			}
			files[src.Path] = f
			l.files = append(l.files, f)
		}
		c, err := newColumn(src, f)
		if err != nil {
			return fmt.Errorf("loader: %s: %w", src.Path, err)
		}
		l.columns = append(l.columns, c)
	}
	return nil
}

// plan counts rows and steps and checks that batches are possible.
func (l *Loader) plan() error {
	first := l.columns[0]
	l.rows = first.rows
	for _, c := range l.columns {
		if c.rows != l.rows {
			return fmt.Errorf("loader: %s has %d rows for %q, but %s has %d for %q",
				first.file.path, first.rows, first.src.Name, c.file.path, c.rows, c.src.Name)
		}
		if err := c.batchType(l.opts.Batch).Shape.Check(); err != nil {
			return fmt.Errorf("loader: %s: a batch of %q: %w", c.file.path, c.src.Name, err)
		}
	}
	batch := int64(l.opts.Batch)
	if batch > l.rows {
		return fmt.Errorf("loader: %s: a batch of %d rows is larger than the %d rows of the file",
			first.file.path, batch, l.rows)
	}
	l.steps = l.rows / batch
	if l.tail() > 0 {
		l.steps++
	}
	l.end = math.MaxInt64
	if l.opts.Epochs > 0 && l.opts.Epochs <= math.MaxInt64/l.steps {
		l.end = l.opts.Epochs * l.steps
	}
	return nil
}

// tail is the number of rows in the last batch of an epoch if it is smaller than the others, or 0.
func (l *Loader) tail() int {
	if l.opts.DropLast {
		return 0
	}
	return int(l.rows % int64(l.opts.Batch))
}

// Rows is the number of rows of every source.
func (l *Loader) Rows() int64 { return l.rows }

// Steps is the number of batches in an epoch.
func (l *Loader) Steps() int64 { return l.steps }

// Types gives the type of each operand of a batch of Options.Batch rows, by name.
func (l *Loader) Types() map[string]graph.Type {
	types := map[string]graph.Type{}
	for _, c := range l.columns {
		for _, name := range c.src.names() {
			types[name] = c.batchType(l.opts.Batch)
		}
	}
	return types
}

// Next returns the next batch, which is valid until the next call of Next. After the last epoch it returns [io.EOF]. An
// error of reading ahead is returned in place of its batch. The position does not advance then, and another call tries
// again. If Close is called meanwhile, Next returns [fs.ErrClosed].
func (l *Loader) Next() (*Batch, error) {
	p, err := l.start()
	if err != nil {
		return nil, err
	}
	if l.held != nil {
		p.free <- l.held
		l.held = nil
	}
	begin := time.Now()
	s, err := p.wait()
	if err != nil {
		l.halt()
		return nil, err
	}
	waited := time.Since(begin)
	l.held = s
	l.mu.Lock()
	defer l.mu.Unlock()
	l.next++
	l.stats.Batches++
	l.stats.Rows += int64(s.batch.Rows)
	l.stats.Bytes += s.bytes
	l.stats.Waited += waited
	return &s.batch, nil
}

// Ready reports whether Next returns without waiting for data. If reading has not begun, it begins.
func (l *Loader) Ready() bool {
	p, err := l.start()
	return err != nil || p.ready()
}

// start returns the running pipeline, or starts one at the next step.
func (l *Loader) start() (*pipeline, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return nil, errClosed
	case l.next == l.end:
		return nil, io.EOF
	}
	if l.run == nil {
		l.held = nil // all buffers are free again
		l.run = l.newPipeline(l.next)
	}
	return l.run, nil
}

var errClosed = fmt.Errorf("loader: %w", fs.ErrClosed)

// Batches iterates over the batches. Each is valid until the next iteration. It ends after the last epoch or with the
// first error, which is the context's if that was cancelled. After the loop no goroutine is left, and another loop
// continues at [Loader.Position].
func (l *Loader) Batches(ctx context.Context) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		cancelled := make(chan struct{})
		stop := context.AfterFunc(ctx, func() { l.halt(); close(cancelled) })
		defer func() {
			if !stop() {
				<-cancelled // it must not halt what is started later
			}
			l.halt()
		}()
		for {
			b, err := (*Batch)(nil), ctx.Err()
			if err == nil {
				b, err = l.Next()
			}
			switch {
			case err == io.EOF:
				return
			case err != nil && ctx.Err() != nil:
				err = context.Cause(ctx)
			}
			if !yield(b, err) || err != nil {
				return
			}
		}
	}
}

// Position is the step of the next batch: the number of batches before it, over all epochs. A checkpoint that is saved
// after training on a batch stores it, to continue there.
func (l *Loader) Position() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.next
}

// SetPosition makes the batch of the given step the next one. With the same files, Batch, DropLast, Shuffle and Seed it
// is the same batch, bit for bit.
func (l *Loader) SetPosition(step int64) error {
	l.halt()
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return errClosed
	case step < 0 || step > l.end:
		return fmt.Errorf("loader: there is no step %d in %d epochs of %d steps", step, l.opts.Epochs, l.steps)
	}
	l.next = step
	return nil
}

// halt ends the goroutines. It may be called from anywhere.
func (l *Loader) halt() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.haltLocked()
}

func (l *Loader) haltLocked() {
	if l.run != nil {
		l.run.end()
		l.run = nil
	}
}

// Close ends the goroutines and closes the files. The last batch that was returned stays valid. Closing again does
// nothing.
func (l *Loader) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	l.haltLocked()
	return l.closeFiles()
}

func (l *Loader) closeFiles() error {
	var errs []error
	for _, s := range l.scratch {
		if s.ring != nil {
			errs = append(errs, s.ring.close())
			s.ring = nil
		}
	}
	for _, f := range l.files {
		errs = append(errs, f.close())
	}
	return errors.Join(errs...)
}
