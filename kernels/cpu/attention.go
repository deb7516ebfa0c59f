package cpu

import (
	"fmt"
	"maps"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/kernels/cpu/attention"
)

// An attend kernel computes an Attention whose operands and results are seen through views. Package attention says how.
type attend[T float] struct {
	attendInputs[T]
	plan     *attention.Plan[T]
	out, lse int // results, -1 where there is none
}

// attendInputs are the operands of an attention, which its gradient reads as well.
type attendInputs[T float] struct {
	env *Env

	q, k, v, mask, lengths, table, seed attentionView

	lengthAt, tableAt []int
	perBatch, entries []int
	scratch           [][]T // of each worker
}

func newAttendInputs[T float](env *Env) attendInputs[T] {
	return attendInputs[T]{env: env, scratch: make([][]T, env.Pool.Workers())}
}

// An attentionView is how an operand of the anchor is read: through a layout of an argument, or as a constant number.
// Without an argument, arg is -1.
type attentionView struct {
	arg    int
	layout graph.Layout
	number uint64
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
func (k *attendInputs[T]) config(op graph.Attention, b *body.Program, args []Operand, further map[*attentionView]int) attention.Config {
	want := map[*attentionView]int{
		&k.q: 0, &k.k: 1, &k.v: 2, &k.mask: op.MaskArg(), &k.lengths: op.LengthsArg(), &k.table: op.TableArg(),
		&k.seed: op.SeedArg(),
	}
	maps.Copy(want, further)
	for to, i := range want {
		if to.arg = -1; i < 0 {
			continue
		}
		o := b.Operands[i]
		if to.arg, to.layout = o.Arg, o.Layout; o.Number != nil {
			to.number = uint64(o.Number.Int(0))
		}
	}
	types := b.OperandTypes()
	q, d := types[0].Shape, op.DimsOf(types)
	cfg := attention.Config{Op: op, Dims: d, Blocking: k.env.Attention}
	cfg.Q = matrices(k.q.layout, 1)
	if op.Page > 0 {
		cfg.K, cfg.KPages = pooled(k.k.layout, d)
		cfg.V, cfg.VPages = pooled(k.v.layout, d)
		k.tableAt = offsets(k.table.layout, d.Batch.Rank()+1)
		k.entries = make([]int, len(k.tableAt))
	} else {
		cfg.K, cfg.V = matrices(k.k.layout, d.Group), matrices(k.v.layout, d.Group)
	}
	if op.HasMask {
		cfg.Mask = matrices(k.mask.layout.Broadcast(d.Scores(q)), 1)
		cfg.Bool = args[k.mask.arg].DType == graph.Bool
	}
	if op.HasLengths {
		k.lengthAt = offsets(k.lengths.layout, d.Batch.Rank())
		k.perBatch = make([]int, len(k.lengthAt))
	}
	return cfg
}

// Run implements [Kernel].
func (k *attend[T]) Run(args, results []Memory) error {
	run := k.inputs(args)
	run.Out = lanes[T](&results[k.out])
	if k.table.arg >= 0 {
		if err := k.readTable(args[k.table.arg].I64); err != nil {
			return err
		}
		run.Table = k.entries
	}
	if k.lse >= 0 {
		run.LSE = lanes[T](&results[k.lse])
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
	run := attention.Args[T]{
		Q: lanes[T](&args[k.q.arg]), K: lanes[T](&args[k.k.arg]), V: lanes[T](&args[k.v.arg]), Seed: k.seed.number,
	}
	if k.mask.arg >= 0 {
		run.Mask, run.Keep = lanes[T](&args[k.mask.arg]), args[k.mask.arg].Bool
	}
	if k.lengths.arg >= 0 {
		m := &args[k.lengths.arg]
		for i, at := range k.lengthAt {
			if m.I64 != nil {
				k.perBatch[i] = int(m.I64[at])
			} else {
				k.perBatch[i] = int(m.I32[at])
			}
		}
		run.Lengths = k.perBatch
	}
	if k.seed.arg >= 0 {
		run.Seed = uint64(args[k.seed.arg].I64[k.seed.layout.Offset])
	}
	return run
}

// readTable takes over the entries of the table that count and checks that they are pages of the pool.
func (k *attend[T]) readTable(table []int64) error {
	op, pages := k.plan.Op, k.k.layout.Shape.At(0)
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

func (k *attend[T]) bytes() int64 { return k.plan.Bytes() }
