package cpu

import (
	"iter"
	"slices"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/vec"
)

// A reduction kernel combines elements along axes in blocks, and then runs what follows over the reduced values.
//
// The elements before reduction are [kept][blocks of the reduced][...]. Where the innermost axis is reduced, a block
// is a range of it, and gives one number per reduction. Where it is kept, a block is a range of the reduced axes, and
// gives a vector: one number for each element of a segment of the innermost axes. Blocks are cut by shape alone, and
// combined two by two, so that sums of many numbers keep their accuracy. Where a segment of the innermost axes is short,
// it has some elements of the last reduced axis besides, side by side, whose sums are joined in the end (fold).
//
// A variance is taken together with the mean that it is about; see moments.go.
type reduction[T float] struct {
	p      *program[T]
	env    *Env
	frames []*frame[T]
	sums   []sum[T]
	after  *elementwise[T] // of the reduced shape
	mems   []Memory        // the operands of after: the arguments, then the reduced values
	inArgs int

	across bool // the innermost axes are kept
	kept   int  // kept rows: all kept axes, or those before the reduced ones
	count  int  // elements or rows that are reduced into one
	inner  int  // across: the kept innermost elements, fold times
	fold   int  // across: elements of the last reduced axis that a segment has
	block  int  // elements or rows per block
	blocks int
	parts  int // across: segments of the innermost elements
	width  int
	group  int // kept rows per item, where rows are short

	phase   reducePhase
	results []Memory
}

// A reducePhase is what the items of a reduction do.
type reducePhase uint8

const (
	reducing  reducePhase = iota // blocks
	combining                    // the results of blocks
	folding                      // what lies side by side in a segment
)

// A sum is one of the reductions.
type sum[T float] struct {
	averages bool
	slot     int // the vector that is reduced
	row      func([]T) T
	two      func(a, b T) T
	combine  func(dst, a, b []T)
	identity T
	partial  []T         // [blocks][kept·inner]
	total    []T         // [kept·inner]
	moments  *moments[T] // or nil: of a mean of which the variance is taken, too
}

// newReduction compiles a body in which nothing leads back from the reduced values, but for a variance from its mean.
func newReduction[T float](b *body.Program, args, results []Operand, env *Env) (Kernel, error) {
	space, axes := b.Space, b.Axes
	r := &reduction[T]{env: env, inArgs: len(args)}
	last := space.Rank() - 1
	for last > 0 && space.At(last) == 1 {
		last--
	}
	r.across = !axes.Has(last)
	tail := 0 // kept innermost axes
	if r.across {
		for i := space.Rank() - 1; i >= 0 && !axes.Has(i); i-- {
			tail++
		}
	}
	perm, kept := reducedBefore(space, axes, tail)
	split := kept // of the permuted axes, the first that a segment runs over
	last = space.Rank() - tail - 1
	r.fold = 1
	if r.across {
		split = space.Rank() - tail
		r.fold = foldOf(space, last)
	}
	before, after := newCompiler[T](b, space), newCompiler[T](b, b.Kept)
	before.inner = graph.IntsOf(perm.Slice()[split:]...)
	if r.fold > 1 {
		before.inner = axesFrom(last, space.Rank())
	}
	after.rows = true

	// To what follows, a reduced value is a further argument: the kept axes in their order.
	afterArgs := len(args)
	about := b.Moments()
	reduced := func(i int) {
		after.values[i] = after.load(afterArgs, dtypeOf[T](), graph.Contiguous(b.Kept))
		afterArgs++
	}
	for i := range b.Values {
		v := &b.Values[i]
		if v.Kind != body.Row || about != nil && v.Level > 1 {
			continue
		}
		if err := before.compile(v.Args[0]); err != nil {
			return nil, err
		}
		s := newSum[T](v.Node.Op.(graph.Reduce).Fn, before.asVector(before.operand(v.Args[0])).slot)
		before.p.slots[s.slot].pinned = true
		reduced(i)
		if variance, ok := about[i]; ok {
			s.moments = newMoments[T]()
			reduced(variance)
		}
		r.sums = append(r.sums, s)
	}
	for i, o := range results {
		c := after
		if !b.Stores[i].PerRow {
			c = before
		}
		if err := c.output(i, o); err != nil {
			return nil, err
		}
	}
	r.after = after.elementwise(env)

	p := before.p
	r.p = p
	all := p.accesses()
	if r.fold > 1 { // the last reduced axis falls into two, of which the second belongs to the segment
		space = cutAxis(space, last, r.fold)
		for _, a := range all {
			a.layout = cutLayout(a.layout, last, r.fold)
		}
		perm, kept = reducedBefore(space, axes, tail+1)
	}
	for _, a := range all {
		a.layout = a.layout.Transpose(perm)
	}
	s := permuted(space, perm)
	size := func(lo, hi int) int {
		n := 1
		for i := lo; i < hi; i++ {
			n *= s.At(i)
		}
		return n
	}
	if r.across {
		p.dom = newDomain3(s, kept, split, all)
		r.kept, r.count, r.inner = size(0, kept), size(kept, split), size(split, s.Rank())
	} else {
		p.dom = newDomain(s, kept, all)
		r.kept, r.count, r.inner = size(0, kept), size(kept, s.Rank()), 1
	}
	before.direct(-1, -1)
	r.cut()
	env.reserve(p.scratchBytes(r.width))
	r.frames = p.newFrames(env)
	for i := range r.sums {
		t := &r.sums[i]
		t.total = make([]T, r.kept*r.inner/r.fold)
		t.partial = t.total
		if r.blocks > 1 || r.fold > 1 {
			t.partial = make([]T, r.blocks*r.kept*r.inner)
		}
		if t.moments != nil {
			t.moments.room(r, env.Pool.Workers())
		}
	}
	r.mems = make([]Memory, len(args), afterArgs)
	for i := range r.sums {
		t := &r.sums[i]
		r.mems = append(r.mems, memoryOf(t.total))
		if t.moments != nil {
			r.mems = append(r.mems, memoryOf(t.moments.total))
		}
	}
	return r, nil
}

// reducedBefore is the permutation kept, reduced, tail for reduced axes that are not the innermost, and the number of
// kept axes before the reduced ones.
func reducedBefore(s graph.Shape, axes graph.Ints, tail int) (perm graph.Ints, kept int) {
	var first, then []int
	for i := range s.Rank() {
		if i >= s.Rank()-tail || axes.Has(i) {
			then = append(then, i)
		} else {
			first = append(first, i)
		}
	}
	return graph.IntsOf(append(first, then...)...), len(first)
}

// foldOf is how many elements of axis last, the last that is reduced, a segment has besides all of the axes behind it: a
// divisor of its size.
func foldOf(s graph.Shape, last int) int {
	inner := 1
	for i := last + 1; i < s.Rank(); i++ {
		inner *= s.At(i)
	}
	n := s.At(last)
	if s.Rank() == graph.MaxRank || inner == 0 {
		return 1
	}
	for f := min(n, segment/inner); f > 1; f-- {
		if n%f == 0 {
			return f
		}
	}
	return 1
}

// cutAxis makes two axes of one, the second of n elements.
func cutAxis(s graph.Shape, axis, n int) graph.Shape {
	dims := slices.Insert(slices.Clone(s.Slice()), axis+1, n)
	dims[axis] /= n
	return graph.ShapeOf(dims...)
}

// cutLayout is cutAxis for a layout.
func cutLayout(l graph.Layout, axis, n int) graph.Layout {
	r := graph.Layout{Shape: cutAxis(l.Shape, axis, n), Offset: l.Offset}
	copy(r.Stride[:axis+1], l.Stride[:])
	copy(r.Stride[axis+1:], l.Stride[axis:])
	r.Stride[axis] *= n
	return r
}

func newSum[T float](fn graph.ReduceFn, slot int) sum[T] {
	k, row := vec.Of[T](), fn.Info()
	return sum[T]{averages: row.Averages, slot: slot, row: k.Reduce(reductions[fn]), two: joins[T]()[fn].two,
		combine: k.BinaryVV(row.Join), identity: T(row.Identity)}
}

func (r *reduction[T]) bytes() int64 {
	n := 0
	for _, s := range r.sums {
		own := len(s.total)
		if r.blocks > 1 || r.fold > 1 {
			own += len(s.partial)
		}
		n += own
		if m := s.moments; m != nil {
			n += own + 2*r.width*len(m.first)
		}
	}
	return int64(n) * int64(dtypeOf[T]().Size())
}

// longSum is how many numbers are added one after another.
const longSum = 128

// cut decides the blocks, by shape alone.
func (r *reduction[T]) cut() {
	r.group, r.parts = 1, 1
	if r.across {
		r.width = min(r.inner, segment)
		r.parts = chunks(r.inner, segment)
		r.block = min(max(r.count, 1), longSum)
		r.blocks = chunks(r.count, r.block)
		r.group = max(grain/max(r.width*r.block, 1), 1)
		if r.parts > 1 || r.blocks > 1 {
			r.group = 1
		}
		return
	}
	r.block = grain
	r.width = min(r.count, longRow)
	r.blocks = chunks(r.count, r.block)
	if r.blocks == 1 {
		r.group = max(grain/max(r.count, 1), 1)
	}
}

func (r *reduction[T]) Run(args, results []Memory) error {
	r.results = results
	copy(r.mems[:r.inArgs], args)
	r.p.beginAll(r.env, r.frames, r.width)
	if n := r.kept * r.inner; n > 0 {
		r.phase = reducing
		r.env.Pool.Run(chunks(r.kept, r.group)*r.blocks*r.parts, r)
		if err := failed(r.frames); err != nil {
			return err
		}
		r.phase = combining
		r.env.Pool.Run(chunks(n, grain), r)
		if r.fold > 1 {
			r.phase = folding
			r.env.Pool.Run(chunks(r.kept, max(grain/r.inner, 1)), r)
		}
	}
	r.results = nil
	err := r.after.Run(r.mems, results)
	clear(r.mems[:r.inArgs])
	return err
}

// Do runs one item; see pool.Task.
func (r *reduction[T]) Do(worker, item int) {
	switch r.phase {
	case combining:
		r.combine(item)
		return
	case folding:
		each := max(grain/r.inner, 1)
		for k := item * each; k < min((item+1)*each, r.kept); k++ {
			r.join(k)
		}
		return
	}
	part := item % r.parts
	block := item / r.parts % r.blocks
	first := item / r.parts / r.blocks * r.group
	lo, hi := block*r.block, min((block+1)*r.block, r.count)
	for k := first; k < min(first+r.group, r.kept); k++ {
		if r.across {
			r.columns(worker, k, block, part*segment, lo, hi)
		} else {
			r.range1(worker, k, block, lo, hi)
		}
	}
}

// range1 reduces elements lo to hi of kept row k to a number.
func (r *reduction[T]) range1(worker, k, block, lo, hi int) {
	f := r.frames[worker]
	for i := range r.sums {
		s := &r.sums[i]
		s.partial[block*r.kept+k] = s.identity
	}
	for at := lo; at < hi; at += r.width {
		r.p.exec(f, k, at, min(r.width, hi-at), r.mems, r.results)
		for i := range r.sums {
			s := &r.sums[i]
			to := &s.partial[block*r.kept+k]
			if s.moments != nil {
				s.moments.addRow(to, &s.moments.partial[block*r.kept+k], f.v[s.slot], at-lo)
				continue
			}
			*to = s.two(*to, s.row(f.v[s.slot]))
		}
	}
}

// columns reduces rows lo to hi of kept row k, for the segment of the innermost elements that starts at from.
func (r *reduction[T]) columns(worker, k, block, from, lo, hi int) {
	f, n := r.frames[worker], min(r.width, r.inner-from)
	at := (block*r.kept+k)*r.inner + from
	fill := vec.Of[T]().Fill()
	for i := range r.sums {
		s := &r.sums[i]
		fill(s.partial[at:][:n], s.identity)
		if s.moments != nil {
			fill(s.moments.partial[at:][:n], 0)
		}
	}
	for row := lo; row < hi; row++ {
		r.p.exec(f, k*r.count+row, from, n, r.mems, r.results)
		for i := range r.sums {
			s := &r.sums[i]
			acc := s.partial[at:][:n]
			if s.moments != nil {
				s.moments.add(worker, acc, s.moments.partial[at:][:n], f.v[s.slot], row == lo)
				continue
			}
			s.combine(acc, acc, f.v[s.slot])
		}
	}
	for i := range r.sums {
		if s := &r.sums[i]; s.moments != nil {
			s.moments.close(worker, s.partial[at:][:n], s.moments.partial[at:][:n], hi-lo)
		}
	}
}

// pairs are the steps in which n parts are joined into the first, two by two: each joins part from into part to.
func pairs(n int) iter.Seq2[int, int] {
	return func(yield func(to, from int) bool) {
		for step := 1; step < n; step *= 2 {
			for to := 0; to+step < n; to += 2 * step {
				if !yield(to, to+step) {
					return
				}
			}
		}
	}
}

// combine joins the blocks' results for a range of the reduced values, two by two.
func (r *reduction[T]) combine(item int) {
	n := r.kept * r.inner
	lo, hi := item*grain, min((item+1)*grain, n)
	for i := range r.sums {
		s := &r.sums[i]
		part := func(block int) []T { return s.partial[block*n+lo : block*n+hi] }
		if m := s.moments; m != nil {
			m.joinBlocks(s, r, lo, hi)
			continue
		}
		for to, from := range pairs(r.blocks) {
			s.combine(part(to), part(to), part(from))
		}
		if r.fold == 1 {
			total := s.total[lo:hi]
			copy(total, part(0))
			s.finish(total, r.count)
		}
	}
}

// join joins the elements of a kept row that belong to the same reduced value, two by two.
func (r *reduction[T]) join(k int) {
	n := r.inner / r.fold
	for i := range r.sums {
		s := &r.sums[i]
		part := func(j int) []T { return s.partial[k*r.inner+j*n:][:n] }
		if m := s.moments; m != nil {
			m.joinFold(s, r, k, n)
			continue
		}
		for to, from := range pairs(r.fold) {
			s.combine(part(to), part(to), part(from))
		}
		total := s.total[k*n:][:n]
		copy(total, part(0))
		s.finish(total, r.count*r.fold)
	}
}

// finish turns sums of so many numbers into means, if those are wanted.
func (s *sum[T]) finish(total []T, count int) {
	if s.averages {
		vec.Of[T]().BinaryVS(graph.Div)(total, total, T(count))
	}
}
