package cpu

import (
	"fmt"
	"maps"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/attention"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/vec"
)

// An attend kernel computes an Attention whose operands and results are seen through views. Package attention says how.
type attend[T float] struct {
	attendInputs[T]
	plan     *attention.Plan[T]
	out, lse int // results, -1 where there is none
}

// attendInputs are the operands of an attention, which its gradient reads as well.
type attendInputs[T float] struct {
	env   *Env
	halfQ *halfQueries[T] // nil unless queries have 16 bits

	q, k, v, mask, lengths, table, seed body.Operand // Arg is −1 where there is no argument
	keyScale, valueScale                body.Operand

	lengthAt, tableAt []int
	lengthType        graph.DType
	perBatch, entries []int
	scratch           [][]T // of each worker
}

func newAttendInputs[T float](env *Env) attendInputs[T] {
	return attendInputs[T]{env: env, scratch: make([][]T, env.Pool.Workers())}
}

// newAttend compiles a Fusion anchored on an Attention or its gradient, in the element type of its queries.
func newAttend[T float](b *body.Program, args []Operand, env *Env) (Kernel, error) {
	if op, ok := b.Anchor.Op.(graph.AttentionGrad); ok {
		return newAttendGrad[T](op, b, args, env)
	}
	k := &attend[T]{attendInputs: newAttendInputs[T](env)}
	cfg := k.config(b.Anchor.Op.(graph.Attention), b, args, nil)
	k.out, k.lse = -1, -1
	err := handed(b, func(i, which int, l graph.Layout) {
		if which == 0 {
			k.out, cfg.Out = i, matrices(l, 1)
		} else {
			k.lse, cfg.LSE = i, columns(l)
		}
	})
	if err != nil {
		return nil, err
	}
	if k.plan, err = attention.New[T](cfg, env.Pool); err != nil {
		return nil, err
	}
	env.reserve(k.plan.Room() * b.Anchor.Type.DType.Size())
	return k, nil
}

// handed calls f for each result of the launch, with the result of the anchor that it is.
func handed(b *body.Program, f func(i, which int, l graph.Layout)) error {
	for i := range b.Stores {
		s := &b.Stores[i]
		which, cast := b.ResultOf(s)
		if cast != nil {
			return fmt.Errorf("%s: the CPU hands out the results of %s as they are", cast.Where(), b.Anchor.Where())
		}
		f(i, which, s.Layout)
	}
	return nil
}

// config finds the operands of the anchor, further ones beside those of the attention op, and describes the attention.
func (k *attendInputs[T]) config(op graph.Attention, b *body.Program, args []Operand,
	further map[*body.Operand]int) attention.Config {
	want := map[*body.Operand]int{
		&k.q: 0, &k.k: 1, &k.v: 2, &k.mask: op.MaskArg(), &k.lengths: op.LengthsArg(), &k.table: op.TableArg(),
		&k.seed: op.SeedArg(), &k.keyScale: op.KeyScaleArg(), &k.valueScale: op.ValueScaleArg(),
	}
	maps.Copy(want, further)
	for to, i := range want {
		if to.Arg = -1; i >= 0 {
			*to = b.Operands[i]
		}
	}
	types := b.OperandTypes()
	q, d := types[0].Shape, op.DimsOf(types)
	cfg := attention.Config{Op: op, Dims: d, Blocking: k.env.Attention}
	cfg.Q = matrices(k.q.Layout, 1)
	if t := types[0].DType; t.Is16() {
		if !op.HasScales {
			cfg.Half = t
		}
		k.halfQ = newHalfQueries[T](k.env, t, cfg.Q, d)
		cfg.Q = k.halfQ.to
	}
	rows := func(o *body.Operand) (gemm.Layout, int) {
		if op.Page > 0 {
			return pooled(o.Layout, d)
		}
		return matrices(o.Layout, d.Group), 0
	}
	cfg.K, cfg.KPages = rows(&k.k)
	cfg.V, cfg.VPages = rows(&k.v)
	if op.HasScales {
		cfg.KeyScale, cfg.KeyScalePages = rows(&k.keyScale)
		cfg.ValueScale, cfg.ValueScalePages = rows(&k.valueScale)
	}
	if op.Page > 0 {
		k.tableAt = offsets(k.table.Layout, d.Batch.Rank()+1)
		k.entries = make([]int, len(k.tableAt))
	}
	if op.HasMask {
		cfg.Mask = matrices(k.mask.Layout.Broadcast(d.Scores(q)), 1)
		cfg.Bool = args[k.mask.Arg].DType == graph.Bool
	}
	if op.HasLengths {
		k.lengthAt, k.lengthType = offsets(k.lengths.Layout, d.Batch.Rank()), args[k.lengths.Arg].DType
		k.perBatch = make([]int, len(k.lengthAt))
	}
	return cfg
}

// Run implements [Kernel].
func (k *attend[T]) Run(args, results []Memory) error {
	run := k.inputs(args)
	run.Out = elems[T](results[k.out])
	if k.table.Arg >= 0 {
		if err := k.readTable(elems[int64](args[k.table.Arg])); err != nil {
			return err
		}
		run.Table = k.entries
	}
	if k.lse >= 0 {
		run.LSE = elems[T](results[k.lse])
	}
	k.share(k.plan.Room())
	k.plan.Run(run, k.scratch)
	return nil
}

// share gives every worker room for so many elements.
func (k *attendInputs[T]) share(room int) {
	for w := range k.scratch {
		k.scratch[w] = scratchOf[T](k.env, w, 0, room)
	}
}

// inputs are the operands of the attention for a run.
func (k *attendInputs[T]) inputs(args []Memory) attention.Args[T] {
	var run attention.Args[T]
	if k.halfQ != nil {
		run.Q = k.halfQ.convert(elems[uint16](args[k.q.Arg]))
	} else {
		run.Q = elems[T](args[k.q.Arg])
	}
	switch {
	case k.keyScale.Arg >= 0:
		run.K8, run.V8 = elems[int8](args[k.k.Arg]), elems[int8](args[k.v.Arg])
		run.KeyScale, run.ValueScale = elems[T](args[k.keyScale.Arg]), elems[T](args[k.valueScale.Arg])
	case k.halfQ != nil:
		run.K16, run.V16 = elems[uint16](args[k.k.Arg]), elems[uint16](args[k.v.Arg])
	default:
		run.K, run.V = elems[T](args[k.k.Arg]), elems[T](args[k.v.Arg])
	}
	if k.seed.Number != nil {
		run.Seed = uint64(k.seed.Number.Int(0))
	}
	if k.mask.Arg >= 0 {
		run.Mask, run.Keep = elems[T](args[k.mask.Arg]), elems[bool](args[k.mask.Arg])
	}
	if k.lengths.Arg >= 0 {
		m := args[k.lengths.Arg]
		for i, at := range k.lengthAt {
			if k.lengthType == graph.I64 {
				k.perBatch[i] = int(elems[int64](m)[at])
			} else {
				k.perBatch[i] = int(elems[int32](m)[at])
			}
		}
		run.Lengths = k.perBatch
	}
	if k.seed.Arg >= 0 {
		run.Seed = uint64(elems[int64](args[k.seed.Arg])[k.seed.Layout.Offset])
	}
	return run
}

// readTable takes over the entries of the table that count and checks that they are pages of the pool.
func (k *attend[T]) readTable(table []int64) error {
	op, pages := k.plan.Op, k.k.Layout.Shape.At(0)
	n := len(k.entries) / max(len(k.perBatch), 1)
	for batch, valid := range k.perBatch {
		for i := range op.Entries(n, valid) {
			page := table[k.tableAt[batch*n+i]]
			if page < 0 || page >= int64(pages) {
				return fmt.Errorf("attention: page %d, entry %d of the table of batch %d, is outside 0..%d",
					page, i, batch, pages-1)
			}
			k.entries[batch*n+i] = int(page)
		}
	}
	return nil
}

func (k *attend[T]) bytes() int64 {
	n := k.plan.Bytes()
	if k.halfQ != nil {
		n += int64(len(k.halfQ.q)) * int64(dtypeOf[T]().Size())
	}
	return n
}

// halfQueries converts queries of 16 bits, which an attention reads once for each block of keys.
type halfQueries[T float] struct {
	env      *Env
	of       graph.DType
	from, to gemm.Layout // of the heads
	d        graph.AttentionDims
	src      []uint16
	q        []T
}

func newHalfQueries[T float](env *Env, of graph.DType, from gemm.Layout, d graph.AttentionDims) *halfQueries[T] {
	h := &halfQueries[T]{env: env, of: of, from: from, to: gemm.RowMajor(d.Depth), d: d}
	h.to.Offsets = make([]int, len(from.Offsets))
	for i := range h.to.Offsets {
		h.to.Offsets[i] = i * d.Queries * d.Depth
	}
	h.q = make([]T, len(from.Offsets)*d.Queries*d.Depth)
	return h
}

func (h *halfQueries[T]) convert(src []uint16) []T {
	h.src = src
	h.env.Pool.Run(len(h.from.Offsets), h)
	h.src = nil
	return h.q
}

// Do converts the queries of a head; see pool.Task.
func (h *halfQueries[T]) Do(_, head int) {
	for i := range h.d.Queries {
		to, at := h.q[h.to.Offsets[head]+i*h.d.Depth:][:h.d.Depth], h.from.Offsets[head]+i*h.from.RowStride
		if h.from.ColStride == 1 && len(to) > 0 {
			vec.FromHalf(to, h.src[at:], h.of)
			continue
		}
		for j := range to {
			to[j] = T(h.of.From16(h.src[at+j*h.from.ColStride]))
		}
	}
}
