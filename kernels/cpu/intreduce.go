package cpu

import "fusec/graph"

var _ = answers.Add(own(compileReduce))

// compileReduce makes the kernel of a Reduce that stands alone. Over no axes it is a copy; of floats a row fusion.
func compileReduce(op graph.Reduce, args, results []Operand, env *Env) (Kernel, error) {
	switch d := args[0].DType; {
	case op.Axes.Len() == 0:
		return newMove(results[0], env, []part{copyPart(0, args[0], results[0])}), nil
	case d.IsInt():
		return byInteger(d, newIntReduce[int8], newIntReduce[int16], newIntReduce[int32], newIntReduce[int64], newIntReduce[uint8],
			newIntReduce[uint16], newIntReduce[uint32], newIntReduce[uint64])(op, args[0], results[0], env), nil
	}
	return fused(op, args, results, env)
}

// An intReduce combines integers exactly; sums and products wrap as in Go. The reduced elements of each result are cut
// into blocks, whose partial results are combined at the end.
type intReduce[T graph.Integer] struct {
	env      *Env
	join     join[T]
	identity T
	x, y     Operand
	dom      domain // rows are results, the inner axes are reduced
	from     access
	block    int // elements of a row per item
	blocks   int
	group    int // rows per item, where they are short
	partial  []T // [rows][blocks]

	src []T
}

func newIntReduce[T graph.Integer](op graph.Reduce, x, y Operand, env *Env) Kernel {
	k := &intReduce[T]{env: env, join: joins[T]()[op.Fn], identity: T(op.Fn.Info().IdentityInt(x.DType)), x: x, y: y}
	s := x.Layout.Shape
	perm, kept := keptFirst(s, op.Axes)
	k.from.layout = x.Layout.Transpose(perm)
	k.dom = newDomain(permuted(s, perm), kept, []*access{&k.from})
	k.block = min(max(k.dom.n, 1), grain)
	k.blocks = chunks(k.dom.n, k.block)
	k.group = max(grain/k.block, 1)
	k.partial = make([]T, k.dom.rows*k.blocks)
	return k
}

// Run implements [Kernel].
func (k *intReduce[T]) Run(args, results []Memory) error {
	d := &k.dom
	if d.rows == 0 {
		return nil
	}
	k.src = elems[T](args[0])
	k.env.Pool.Run(chunks(d.rows, k.group)*k.blocks, k)
	k.src = nil
	dst := elems[T](results[0])[k.y.Layout.Offset:][:d.rows]
	for i := range dst {
		v := k.identity
		for _, p := range k.partial[i*k.blocks:][:k.blocks] {
			v = k.join.two(v, p)
		}
		dst[i] = v
	}
	return nil
}

// Do runs one item; see pool.Task.
func (k *intReduce[T]) Do(_, item int) {
	block, first := item%k.blocks, item/k.blocks*k.group
	start := block * k.block
	n := min(k.block, k.dom.n-start)
	for row := first; row < min(first+k.group, k.dom.rows); row++ {
		src, v := k.src, k.identity
		if n > 0 {
			src = src[k.from.at(&k.dom, row):]
		}
		k.from.each(&k.dom, start, n, func(_, off, count, stride int) {
			v = k.join.run(v, src[off:], count, stride)
		})
		k.partial[row*k.blocks+block] = v
	}
}

// bytes is the memory of the partial results.
func (k *intReduce[T]) bytes() int64 {
	return int64(len(k.partial) * k.x.DType.Size())
}
