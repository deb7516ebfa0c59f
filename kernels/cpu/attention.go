package cpu

import (
	"fmt"
	"maps"

	"fusec/graph"
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

// newAttention compiles a Fusion anchored on an Attention, in the element type of its queries.
func newAttention(f graph.Fusion, args, results []Operand, env *Env) (Kernel, error) {
	anchor := f.Anchored()
	if anchor == nil {
		return nil, fmt.Errorf("an attention fusion without an attention")
	}
	if _, ok := anchor.Op.(graph.AttentionGrad); ok {
		compile := byFloat(anchor.Type.DType, newAttendGrad[float32], newAttendGrad[float64])
		return compile(f.Body, anchor, args, results, env)
	}
	return byFloat(anchor.Type.DType, newAttend[float32], newAttend[float64])(f.Body, anchor, args, results, env)
}

func newAttend[T float](body *graph.Graph, anchor *graph.Node, args, results []Operand, env *Env) (Kernel, error) {
	k := &attend[T]{attendInputs: newAttendInputs[T](env)}
	cfg, err := k.config(anchor.Op.(graph.Attention), body, anchor, args, nil)
	if err != nil {
		return nil, err
	}
	if err := k.outputs(body, anchor, results, &cfg); err != nil {
		return nil, err
	}
	if k.plan, err = attention.New[T](cfg, env.Pool); err != nil {
		return nil, err
	}
	env.reserve(k.plan.Room() * anchor.Type.DType.Size())
	return k, nil
}

// config finds the operands of the anchor, further ones beside those of the attention op, and describes the attention.
func (k *attendInputs[T]) config(op graph.Attention, body *graph.Graph, anchor *graph.Node, args []Operand,
	further map[*attentionView]int) (attention.Config, error) {
	want := map[*attentionView]int{
		&k.q: 0, &k.k: 1, &k.v: 2, &k.mask: op.MaskArg(), &k.lengths: op.LengthsArg(), &k.table: op.TableArg(),
		&k.seed: op.SeedArg(),
	}
	maps.Copy(want, further)
	if err := k.operands(want, body, anchor, args); err != nil {
		return attention.Config{}, err
	}
	types := make([]graph.Type, len(anchor.Args))
	for i, a := range anchor.Args {
		types[i] = a.Type
	}
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
	return cfg, nil
}

// operands finds what each operand of the anchor is; want has the operand's number, or −1 for one that is not there.
func (k *attendInputs[T]) operands(want map[*attentionView]int, body *graph.Graph, anchor *graph.Node,
	args []Operand) error {
	inputs := map[*graph.Node]int{}
	for _, n := range body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			inputs[n] = len(inputs)
		}
	}
	for to, i := range want {
		if to.arg = -1; i < 0 {
			continue
		}
		n := anchor.Args[i]
		if x, ok := n.Uniform(); ok && to == &k.seed {
			to.number = uint64(x.Int(0))
			continue
		}
		var err error
		if *to, err = viewOf(n, inputs, args); err != nil {
			return err
		}
	}
	return nil
}

// viewOf follows a load view to its argument.
func viewOf(n *graph.Node, inputs map[*graph.Node]int, args []Operand) (attentionView, error) {
	if i, ok := inputs[n]; ok {
		return attentionView{arg: i, layout: args[i].Layout}, nil
	}
	if !graph.IsView(n.Op) {
		return attentionView{}, fmt.Errorf("%s is computed in the same launch as what reads it", n.Where())
	}
	v, err := viewOf(n.Args[0], inputs, args)
	if err != nil {
		return v, err
	}
	l, ok := v.layout.View(n)
	if !ok {
		return v, fmt.Errorf("%s cannot be read through strides", n.Where())
	}
	v.layout = l
	return v, nil
}

// storedBy follows store views up to the value they store, which is laid out so.
func storedBy(n *graph.Node, l graph.Layout) (*graph.Node, graph.Layout, error) {
	for graph.IsStoreView(n) {
		var ok bool
		if l, ok = l.Invert(n); !ok {
			return nil, l, fmt.Errorf("%s cannot be stored through strides", n.Where())
		}
		n = n.Args[0]
	}
	return n, l, nil
}

// outputs finds where the results of the anchor go.
func (k *attend[T]) outputs(body *graph.Graph, anchor *graph.Node, results []Operand, cfg *attention.Config) error {
	k.out, k.lse = -1, -1
	for i, o := range body.Outputs {
		n, l, err := storedBy(o.Node, results[i].Layout)
		if err != nil {
			return err
		}
		_, further := n.Op.(graph.Result)
		switch {
		case n == anchor && k.out < 0:
			k.out, cfg.Out = i, matrices(l, 1)
		case further && n.Args[0] == anchor && k.lse < 0:
			k.lse, cfg.LSE = i, columns(l)
		default:
			return fmt.Errorf("output %q is not a result of the attention", o.Name)
		}
	}
	if k.out < 0 {
		return fmt.Errorf("%s: its result is not handed out", anchor.Where())
	}
	return nil
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
