package llama

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"fusec"
	"fusec/graph"
)

// pageTokens is how many tokens a page of the caches holds.
const pageTokens = 16

// BatchOptions are the options of a [Batch].
type BatchOptions struct {
	Slots  int         // sequences that run at the same time
	Tokens int         // that a sequence may have; 0 for the context that the model is made for
	Pages  int         // of 16 tokens, for all sequences; 0 for as many as all slots may fill
	Cache  graph.DType // as in [Options]
	// Activations is as in [Options].
	Activations graph.DType
	// Samples has runs pick tokens by themselves: sequences join by [Batch.JoinSampling], and have no logits but a
	// [Sequence.Token].
	Samples bool
	Compile []fusec.CompileOption
}

// Batch runs a language model on several sequences of different lengths, which join and leave while others go on. A step takes
// one token of each sequence: every weight is read once for all. Keys and values are in pages of a common pool, which a
// sequence takes as it grows and gives back when it leaves (Kwon et al., arXiv 2309.06180). One goroutine uses it at a time.
type Batch struct {
	c            *Checkpoint
	limit, block int
	samples      bool
	step, prompt *pagedRun
	last         *pagedRun
	slots        []*Sequence // nil where there is none
	free         []int64     // pages
	scratch      int64       // the page to which slots without a sequence write
}

// Sequence is a sequence of a [Batch].
type Sequence struct {
	b     *Batch
	slot  int
	pages []int64
	done  int
	fed   bool  // in the present step
	token int64 // that was picked to follow it
}

// ErrNoRoom is the error of a sequence that finds no slot or no page. There may be some when another has left.
var ErrNoRoom = errors.New("the batch has no room")

// pagedRun is a program over the pools: of one token of each sequence, or of a block of one.
type pagedRun struct {
	p                                  *fusec.Program
	tokens, positions, lengths, places []int64
	table                              []int64
	starts                             []int64 // rows of the pool from which on keys and values are written
	row                                []int64 // whose logits a block gives
	logits                             []float32
	options                            []option // of a program that samples, each for all sequences
	picked                             []int64
}

// NewBatch compiles the programs of a batch.
func NewBatch(c *Checkpoint, o BatchOptions) (*Batch, error) {
	if o.Tokens == 0 {
		o.Tokens = c.Config.Context
	}
	if o.Cache == graph.Invalid {
		o.Cache = graph.F32
	}
	if o.Slots < 1 || o.Tokens < 1 || o.Slots > 1<<16 || o.Tokens > 1<<30 {
		return nil, fmt.Errorf("%d slots for sequences of %d tokens", o.Slots, o.Tokens)
	}
	if c.Config.RopeBase == 0 && o.Tokens > c.Config.Context {
		return nil, fmt.Errorf("sequences of %d tokens: the model has positions for %d", o.Tokens, c.Config.Context)
	}
	const block = 4 * pageTokens
	each := (o.Tokens + block - 1) / block * (block / pageTokens) // pages of a sequence
	if o.Pages == 0 {
		o.Pages = o.Slots * each
	}
	if o.Pages < block/pageTokens || o.Pages > math.MaxInt32 {
		return nil, fmt.Errorf("%d pages: want at least %d", o.Pages, block/pageTokens)
	}
	if err := c.Config.checkCache((o.Pages+1)*pageTokens, o.Cache); err != nil {
		return nil, err
	}
	var err error
	if o.Activations, err = checkActivations(o.Activations); err != nil {
		return nil, err
	}
	b := &Batch{c: c, limit: o.Tokens, block: block, samples: o.Samples, slots: make([]*Sequence, o.Slots), scratch: int64(o.Pages)}
	for i := range o.Pages {
		b.free = append(b.free, int64(o.Pages-1-i))
	}
	if b.step, err = b.compile(o.Slots, 1, each, o); err == nil {
		b.prompt, err = b.compile(1, block, each, o)
	}
	if err != nil {
		return nil, errors.Join(err, b.Close())
	}
	b.last = b.step
	return b, nil
}

// compile makes the program for so many sequences with so many tokens each, which attend to up to each pages.
func (b *Batch) compile(sequences, tokens, each int, o BatchOptions) (*pagedRun, error) {
	writes := sequences * max(tokens/pageTokens, 1)
	g, err := b.c.pagedGraph(sequences, tokens, each, writes, o.Pages+1, o.Cache, o.Activations, o.Samples)
	if err != nil {
		return nil, err
	}
	p, err := fusec.Compile(g, o.Compile...)
	if err != nil {
		return nil, err
	}
	r := &pagedRun{p: p}
	var other *fusec.Program
	if b.step != nil {
		other = b.step.p
	}
	err = b.c.give(p, other, g)
	input := func(to *[]int64, name string) {
		n := g.Lookup(name)
		if n == nil {
			return
		}
		*to = make([]int64, n.Type.Shape.Elems())
		t, failed := graph.TensorOf(*to, n.Type.Shape.Slice()...)
		if failed == nil {
			failed = p.Set(name, t)
		}
		err = errors.Join(err, failed)
	}
	for name, to := range map[string]*[]int64{"tokens": &r.tokens, "positions": &r.positions, "lengths": &r.lengths,
		"places": &r.places, "table": &r.table, "row": &r.row} {
		input(to, name)
	}
	if o.Samples {
		for _, name := range []string{temperatureName, topKName, topPName, seedName} {
			t := graph.NewTensor(g.Lookup(name).Type)
			r.options = append(r.options, option{name, t})
			err = errors.Join(err, p.Set(name, t))
		}
	}
	r.starts = make([]int64, writes)
	for i := range writes {
		t, failed := graph.TensorOf(r.starts[i : i+1])
		if failed == nil {
			failed = p.Set(startName(i), t)
		}
		err = errors.Join(err, failed)
	}
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return r, nil
}

func startName(i int) string { return fmt.Sprintf("start%d", i) }

// exec runs a program on the pools.
func (b *Batch) exec(r *pagedRun) error {
	if r != b.last {
		if err := r.p.ShareState(b.last.p); err != nil {
			return err
		}
		b.last = r
	}
	if err := r.p.Exec(); err != nil {
		return err
	}
	if b.samples {
		return find(r.p, "picked", &r.picked)
	}
	return find(r.p, "logits", &r.logits)
}

// Join adds a sequence that begins with a prompt, and returns the logits of the token after it, which are valid until the next
// call. Without a free slot, or pages for the prompt, the error is [ErrNoRoom].
func (b *Batch) Join(prompt []int) (s *Sequence, logits []float32, err error) {
	if b.samples {
		return nil, nil, errors.New("the batch picks tokens by itself: JoinSampling says how")
	}
	if s, err = b.join(prompt, nil); err != nil {
		return nil, nil, err
	}
	return s, b.prompt.logits, nil
}

// JoinSampling is Join for a sequence whose tokens are picked by the programs; [Sequence.Token] is the one after the prompt. A
// sequence has the same tokens as a [Model] with this sampling.
func (b *Batch) JoinSampling(prompt []int, sampling Sampling) (*Sequence, error) {
	if !b.samples {
		return nil, errors.New("the batch picks no tokens: its options do not say so")
	}
	options, err := sampling.options()
	if err != nil {
		return nil, err
	}
	return b.join(prompt, options)
}

func (b *Batch) join(prompt []int, options []option) (*Sequence, error) {
	slot := slices.Index(b.slots, nil)
	switch {
	case len(prompt) == 0:
		return nil, errors.New("there are no tokens: the model needs at least one")
	case len(prompt) > b.limit:
		return nil, fmt.Errorf("the prompt has %d tokens, and a sequence has room for %d", len(prompt), b.limit)
	case slot < 0:
		return nil, ErrNoRoom
	}
	for i, o := range options {
		b.prompt.options[i].value.CopyFrom(o.value)
		if o.value.Type.DType.IsFloat() {
			b.step.options[i].value.SetFloat(slot, o.value.Float(0))
		} else {
			b.step.options[i].value.SetInt(slot, o.value.Int(0))
		}
	}
	s := &Sequence{b: b, slot: slot}
	for rest := prompt; len(rest) > 0; {
		n := min(len(rest), b.block)
		err := s.grow(s.done + b.block)
		if err == nil {
			err = b.takeBlock(s, rest[:n])
		}
		if err != nil {
			b.release(s)
			return nil, err
		}
		rest = rest[n:]
	}
	if b.slots[slot] = s; b.samples {
		s.token = b.prompt.picked[0]
	}
	return s, nil
}

// grow takes pages until a sequence has them for so many tokens.
func (s *Sequence) grow(tokens int) error {
	for len(s.pages)*pageTokens < tokens {
		last := len(s.b.free) - 1
		if last < 0 {
			return ErrNoRoom
		}
		s.pages, s.b.free = append(s.pages, s.b.free[last]), s.b.free[:last]
	}
	return nil
}

// takeBlock runs a block of a prompt, filled up with tokens that no query sees. It begins with a page.
func (b *Batch) takeBlock(s *Sequence, tokens []int) error {
	r := b.prompt
	for i := range r.tokens {
		r.tokens[i] = int64(tokens[min(i, len(tokens)-1)])
		r.positions[i] = int64(s.done + i)
	}
	for i := range r.places {
		r.places[i] = min(r.positions[i], int64(b.c.Config.Context-1))
	}
	for i := range r.starts { // a block writes whole pages
		r.starts[i] = s.pages[s.done/pageTokens+i] * pageTokens
	}
	copy(r.table, s.pages)
	r.lengths[0], r.row[0] = int64(s.done+b.block), int64(len(tokens)-1)
	if err := b.exec(r); err != nil {
		return err
	}
	s.done += len(tokens)
	return nil
}

// Feed sets the token that the next [Batch.Step] takes of a sequence. It is [ErrNoRoom] if the pages are used up.
func (s *Sequence) Feed(token int) error {
	switch {
	case s.b == nil:
		return errors.New("the sequence has left its batch")
	case s.done == s.b.limit:
		return fmt.Errorf("the sequence is full: it has %d tokens", s.done)
	}
	if err := s.grow(s.done + 1); err != nil {
		return err
	}
	s.b.step.tokens[s.slot], s.fed = int64(token), true
	return nil
}

// Step runs the tokens that sequences were fed since the last step. Those that were fed none wait.
func (b *Batch) Step() error {
	r, some := b.step, false
	each := len(r.table) / len(b.slots)
	for i, s := range b.slots {
		if s == nil || !s.fed { // a slot that does nothing writes to a page that nobody reads
			r.tokens[i], r.positions[i], r.lengths[i], r.starts[i], r.table[i*each] = 0, 0, 1, b.scratch*pageTokens, b.scratch
			continue
		}
		some = true
		r.positions[i], r.lengths[i] = int64(s.done), int64(s.done+1)
		r.starts[i] = s.pages[s.done/pageTokens]*pageTokens + int64(s.done%pageTokens)
		copy(r.table[i*each:][:each], s.pages)
	}
	if !some {
		return errors.New("no sequence was fed a token")
	}
	copy(r.places, r.positions)
	if err := b.exec(r); err != nil {
		return err
	}
	for _, s := range b.slots {
		if s != nil && s.fed {
			if s.done, s.fed = s.done+1, false; b.samples {
				s.token = r.picked[s.slot]
			}
		}
	}
	return nil
}

// Logits are those of the token after a sequence, if the last step took one of it. They are valid until the next step.
func (s *Sequence) Logits() []float32 {
	v := s.b.c.Config.Vocabulary
	return s.b.step.logits[s.slot*v:][:v]
}

// Token is the token that the last run of the sequence has picked to follow it, in a batch that samples; [Sequence.Feed] takes it,
// or another.
func (s *Sequence) Token() int { return int(s.token) }

// Len is the number of tokens of the sequence.
func (s *Sequence) Len() int { return s.done }

// Leave ends a sequence, whose slot and pages others may take.
func (s *Sequence) Leave() {
	if s.b != nil {
		s.b.slots[s.slot] = nil
		s.b.release(s)
	}
}

func (b *Batch) release(s *Sequence) {
	b.free = append(b.free, s.pages...)
	s.pages, s.b = nil, nil
}

// Close releases the programs. The checkpoint stays open.
func (b *Batch) Close() error {
	var err error
	for _, r := range []*pagedRun{b.step, b.prompt} {
		if r != nil {
			err = errors.Join(err, r.p.Close())
		}
	}
	return err
}

// paged is what a decoder has for sequences whose keys and values are in pages.
type paged struct {
	sequences, pages          int
	positions, lengths, table *graph.Node
	starts                    []*graph.Node // rows of the pool from which on keys and values are written
	sin, cos                  *graph.Node   // [tokens, 1, features of a head ÷ 2]
}

// pagedGraph is the program of a [Batch]: [Checkpoint.Graph] for several sequences, or for a block of one.
func (c *Checkpoint) pagedGraph(sequences, tokens, each, writes, pages int, cache, activations graph.DType, samples bool) (
	*graph.Graph, error) {
	d := c.decoder(sequences*tokens, cache, activations)
	index := func(name string, dims ...int) *graph.Node { return d.b.Input(name, graph.TypeOf(graph.I64, dims...)) }
	p := &paged{sequences: sequences, pages: pages, positions: index("positions", sequences*tokens),
		lengths: index("lengths", sequences), table: index("table", sequences, each)}
	for i := range writes {
		p.starts = append(p.starts, index(startName(i)))
	}
	d.paged, d.samples = p, samples
	return d.graph()
}

// angles makes the sines and cosines by which the tokens of a run are turned.
func (p *paged) angles(d *decoder) {
	b, half := d.b, d.HeadDim/2
	freq := graph.NewTensor(graph.TypeOf(graph.F64, half))
	for j := range half {
		divisor := 1.0
		if d.RopeDivisors != nil {
			divisor = d.RopeDivisors[j]
		}
		freq.SetFloat(j, graph.RoPE{Base: d.RopeBase}.Angle(1, j, d.HeadDim, divisor))
	}
	shape := graph.ShapeOf(d.tokens, half)
	at := b.Reshape(b.CastTo(graph.F64, p.positions), d.tokens, 1)
	angle := b.Binary(graph.Mul, b.Broadcast(at, shape), b.Broadcast(b.Const(freq), shape))
	p.sin = b.Reshape(b.CastTo(graph.F32, b.Unary(graph.Sin, angle)), d.tokens, 1, half)
	p.cos = b.Reshape(b.CastTo(graph.F32, b.Unary(graph.Cos, angle)), d.tokens, 1, half)
}

// rotated turns the pairs of x [tokens, heads, features], each token by its position.
func (p *paged) rotated(d *decoder, x *graph.Node) *graph.Node {
	b := d.b
	if b.Err() != nil {
		return x
	}
	heads, half := x.Type.Shape.At(1), d.HeadDim/2
	pairs, axis := []int{d.tokens, heads, 2, half}, 2
	if d.RopeInterleaved {
		pairs, axis = []int{d.tokens, heads, half, 2}, 3
	}
	one := graph.ShapeOf(d.tokens, heads, half)
	split := b.Reshape(x, pairs...)
	u := b.Reshape(b.Slice(split, axis, 0, 1, 1), one.Slice()...)
	v := b.Reshape(b.Slice(split, axis, 1, 1, 1), one.Slice()...)
	cos, sin := b.Broadcast(p.cos, one), b.Broadcast(p.sin, one)
	u, v = b.Binary(graph.Sub, b.Binary(graph.Mul, u, cos), b.Binary(graph.Mul, v, sin)),
		b.Binary(graph.Add, b.Binary(graph.Mul, v, cos), b.Binary(graph.Mul, u, sin))
	whole := slices.Clone(pairs)
	whole[axis] = 1
	y := b.Add(graph.Concat{Axis: axis}, b.Reshape(u, whole...), b.Reshape(v, whole...))
	return b.Reshape(y, d.tokens, heads, d.HeadDim)
}

// attention writes the tokens' keys and values to their pages, and attends to those that the tables list. Operands are
// [tokens, heads, features], the result [tokens, heads·features].
func (p *paged) attention(d *decoder, name string, layer int, q, k, v *graph.Node) *graph.Node {
	b := d.b
	k, v = p.stored(d, name+".keys", k), p.stored(d, name+".values", v)
	op := graph.Attention{Scale: 1 / math.Sqrt(float64(d.HeadDim)), Causal: true, HasLengths: true, Tail: true, Page: pageTokens}
	if d.Windows != nil {
		op.Window = d.Windows[layer]
	}
	each := d.tokens / p.sequences
	q = d.queries(b.Transpose(b.Reshape(q, p.sequences, each, d.Heads, d.HeadDim), 0, 2, 1, 3))
	y := b.Transpose(b.CastTo(graph.F32, b.Add(op, q, k, v, p.lengths, p.table)), 0, 2, 1, 3)
	return b.Reshape(y, d.tokens, d.Heads*d.HeadDim)
}

// stored is a pool of pages [pages, heads, tokens of a page, features] with x [tokens, heads, features] written to it, as many
// tokens from each start on. In memory the features of all heads of a token are side by side.
func (p *paged) stored(d *decoder, name string, x *graph.Node) *graph.Node {
	return d.kept(name, x, func(name string, x *graph.Node) *graph.Node {
		b := d.b
		if b.Err() != nil {
			return x
		}
		heads, each, width := x.Type.Shape.At(1), d.tokens/len(p.starts), x.Type.Shape.At(2)
		pool := b.State(name, graph.TypeOf(x.Type.DType, p.pages, pageTokens, heads, width))
		y := b.Reshape(pool, p.pages*pageTokens, heads, width)
		for i, start := range p.starts {
			y = b.Add(graph.UpdateSlice{Axis: 0}, y, b.Slice(x, 0, i*each, each, 1), start)
		}
		y = b.Reshape(y, p.pages, pageTokens, heads, width)
		b.Update(pool, y)
		return b.Transpose(y, 0, 2, 1, 3)
	})
}
