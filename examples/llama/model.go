package llama

import (
	"errors"
	"fmt"

	"fusec"
	"fusec/graph"
)

// Options of a [Model].
type Options struct {
	Capacity int // tokens that a sequence may have, its prompt included; 0 for the context that the model is made for
	Block    int // tokens of a prompt that one run takes; 0 for 64
	// Cache is the type of the keys and values that are kept: F32, the default, or BF16, F16 or I8. Those of 16 bits take half the
	// memory, and attention over a long context half the time. What CUDA rounds besides, the CPU computes in f32. I8 has a scale for
	// each key and value of a head, the largest divided by 127, and takes little more than a quarter of the memory.
	Cache graph.DType
	// Activations is the type of what is multiplied by weights in blocks of few bits: F32, the default, or I8, which rounds each
	// block of 32 numbers to multiples of the largest divided by 127, as llama.cpp does; sums are then of integers.
	Activations graph.DType
	// Sampling, if not nil, has runs pick tokens by themselves; see [Model.Step].
	Sampling *Sampling
	Compile  []fusec.CompileOption
}

// Model runs a language model on one sequence of tokens. One goroutine uses it at a time. A run takes a block of a prompt, or
// one token; its caches of keys and values are updated in place.
type Model struct {
	Config   *Config
	c        *Checkpoint
	capacity int // of the caches: whole blocks
	cache    graph.DType
	rounding graph.DType // of activations
	limit    int         // tokens of a sequence
	block    int
	opts     []fusec.CompileOption

	step, prompt *run // prompt is nil until there is one to take
	last         *run // that ran last
	done         int  // tokens of the sequence

	// Of a model that picks tokens by itself:
	options         []option
	at              int           // the position as the programs have it
	picked          bool          // the programs have a token that follows the sequence
	position, token *graph.Tensor // to set theirs
}

// New compiles the decoding step of a checkpoint. The checkpoint stays open as long as the model is used.
func New(c *Checkpoint, o Options) (*Model, error) {
	m := &Model{Config: c.Config, c: c, limit: o.Capacity, block: o.Block, cache: o.Cache, opts: o.Compile}
	if m.cache == graph.Invalid {
		m.cache = graph.F32
	}
	var err error
	if m.rounding, err = checkActivations(o.Activations); err != nil {
		return nil, err
	}
	if m.limit == 0 {
		m.limit = c.Config.Context
	}
	if m.block == 0 {
		m.block = 64
	}
	if m.limit < 1 || m.block < 1 {
		return nil, fmt.Errorf("a sequence of %d tokens in blocks of %d", m.limit, m.block)
	}
	if c.Config.RopeBase == 0 && m.limit > c.Config.Context {
		return nil, fmt.Errorf("a sequence of %d tokens: the model has positions for %d", m.limit, c.Config.Context)
	}
	m.capacity = (m.limit + m.block - 1) / m.block * m.block
	if err := c.Config.checkCache(m.capacity, m.cache); err != nil {
		return nil, err
	}
	if o.Sampling != nil {
		if m.options, err = o.Sampling.options(); err != nil {
			return nil, err
		}
		m.position, m.token = graph.Scalar(graph.I64, 0), graph.NewTensor(graph.TypeOf(graph.I64, 1))
	}
	if m.step, err = m.compile(1); err != nil {
		return nil, err
	}
	m.last = m.step
	return m, nil
}

// A run is a compiled program with its inputs.
type run struct {
	p                     *fusec.Program
	tokens                []int64
	position, length, row []int64
	places                []int64 // or nil
	logits                []float32
	picked                []int64 // if it samples
}

// compile makes the program for runs of n tokens.
func (m *Model) compile(n int) (*run, error) {
	g, err := m.c.decoding(n, m.capacity, m.cache, m.rounding, m.options != nil)
	if err != nil {
		return nil, err
	}
	p, err := fusec.Compile(g, m.opts...)
	if err != nil {
		return nil, err
	}
	r := &run{p: p, tokens: make([]int64, n), position: make([]int64, 1), length: make([]int64, 1), row: make([]int64, 1)}
	var other *fusec.Program
	if m.step != nil {
		other = m.step.p
	}
	err = m.c.give(p, other, g)
	set := func(name string, to []int64, dims ...int) {
		if n := g.Lookup(name); n == nil || m.options != nil && name == positionName {
			return
		}
		t, failed := graph.TensorOf(to, dims...)
		if failed == nil {
			failed = p.Set(name, t)
		}
		err = errors.Join(err, failed)
	}
	set("tokens", r.tokens, n)
	set("position", r.position)
	set("length", r.length)
	set("row", r.row)
	if g.Lookup("places") != nil {
		r.places = make([]int64, n)
		set("places", r.places, n)
	}
	for _, o := range m.options {
		err = errors.Join(err, p.Set(o.name, o.value))
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return r, nil
}

// Program is the compiled decoding step, for drawings and reports.
func (m *Model) Program() *fusec.Program { return m.step.p }

// PromptProgram is the program that takes blocks of a prompt; nil before there was one.
func (m *Model) PromptProgram() *fusec.Program {
	if m.prompt == nil {
		return nil
	}
	return m.prompt.p
}

// Prepare compiles what a prompt of so many tokens needs, and prepares the weights, so that Append does not wait for it.
func (m *Model) Prepare(tokens int) error {
	if m.done > 0 {
		return errors.New("the sequence has begun")
	}
	warm := []int{0}
	if tokens > few {
		warm = make([]int, min(m.block, m.limit))
	}
	for _, n := range []int{len(warm), 1} {
		if _, err := m.Append(warm[:n]); err != nil {
			return err
		}
		m.done = 0
	}
	return nil
}

// Block is the number of tokens of a prompt that one run takes.
func (m *Model) Block() int { return m.block }

// Len is the number of tokens of the sequence.
func (m *Model) Len() int { return m.done }

// Truncate takes tokens off the end of the sequence, so that n are left; 0 begins another.
func (m *Model) Truncate(n int) error {
	if n < 0 || n > m.done {
		return fmt.Errorf("the sequence has %d tokens: %d cannot be left", m.done, n)
	}
	m.done, m.picked = n, false
	return nil
}

// few is how many tokens of a prompt are better taken one by one than as a block.
const few = 4

// Append adds tokens to the sequence, and returns the logits of the token after them, which are valid until the next call. With
// [Options.Sampling] there are no logits, but [Model.Token] is the token after them. A call that fails leaves the sequence as
// long as it was.
func (m *Model) Append(tokens []int) (logits []float32, err error) {
	if len(tokens) == 0 {
		return nil, errors.New("there are no tokens: the model needs at least one")
	}
	if len(tokens) > m.limit-m.done {
		return nil, fmt.Errorf("the sequence has room for %d tokens, %d of them are taken, and %d more do not fit",
			m.limit, m.done, len(tokens))
	}
	was := m.done
	for len(tokens) > 0 && err == nil {
		n := 1
		if len(tokens) > few && m.block > few {
			n = min(len(tokens), m.block)
		}
		if n > 1 && m.prompt == nil {
			if m.prompt, err = m.compile(m.block); err != nil {
				break
			}
		}
		r := m.step
		if n > 1 {
			r = m.prompt
		}
		logits, err = m.run(r, tokens[:n])
		tokens = tokens[n:]
	}
	if err != nil {
		m.done = was
		return nil, err
	}
	return logits, nil
}

// run takes some tokens. A block is filled up with tokens that come after them: no query of theirs sees those, and the next
// run writes its keys and values over theirs.
func (m *Model) run(r *run, tokens []int) ([]float32, error) {
	if r != m.last {
		if err := r.p.ShareState(m.last.p); err != nil {
			return nil, err
		}
		m.last = r
	}
	if len(tokens) > 0 {
		for i := range r.tokens {
			r.tokens[i] = int64(tokens[min(i, len(tokens)-1)])
		}
	}
	for i := range r.places {
		r.places[i] = int64(min(m.done+i, m.Config.Context-1))
	}
	r.position[0], r.length[0], r.row[0] = int64(m.done), int64(m.done+len(r.tokens)), int64(len(tokens)-1)
	if m.options != nil {
		return nil, m.runSampling(r, tokens)
	}
	if err := r.p.Exec(); err != nil {
		return nil, err
	}
	if err := find(r.p, "logits", &r.logits); err != nil {
		return nil, err
	}
	m.done += len(tokens)
	return r.logits, nil
}

// find sets at, where it is nil, to the memory in which runs of a program leave an output.
func find[T any](p *fusec.Program, name string, at *[]T) error {
	if *at != nil {
		return nil
	}
	y, err := p.Output(name)
	if err != nil {
		return err
	}
	*at = y.Data.([]T)
	return nil
}

// Close releases the programs. The checkpoint stays open.
func (m *Model) Close() error {
	err := m.step.p.Close()
	if m.prompt != nil {
		err = errors.Join(err, m.prompt.p.Close())
	}
	return err
}
