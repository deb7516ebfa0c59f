package attention

import (
	"fmt"
	"math"
	"unsafe"

	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/vec"
)

// The backward pass computes the probabilities again from the log-sum-exp, block by block (Dao et al., arXiv
// 2205.14135, appendix B.4, and 2307.08691), so that its memory, without the gradients, is three numbers for each
// query:
//
//	Δ = Σ dout⊙out − dlse, by rows
//	for each block of keys of a head                          k, v, dk, dv: L2
//	  for each block of queries that may attend any of them   q, dout: L2
//	    for each panel of NR keys
//	      p = e^(q·kᵀ − lse), ds = p ⊙ (dout·vᵀ − Δ)          p, ds: panels [queries][NR], L1
//	      dvᵀ += doutᵀ·p, dkᵀ += qᵀ·ds
//	    dq += ds·k
//
// The subtractions cost nothing: −lse and −Δ are one more column of q and dout, against a column of ones of k and v.
// With dropout, Δ is subtracted after it. For queries whose log-sum-exp is too large to represent the logarithm of the
// sum, maxima and sums are computed again in a separate pass: see backward_far.go.
//
// Heads that share keys and values add to the same dk and dv, in order. If there are many heads of keys, each is a work
// item, which adds to its dq in place; if there are few, blocks of keys are the items for dk and dv, and then blocks of
// queries those for dq, with the probabilities computed again.

// manyHeads is how many heads of keys are enough work items.
const manyHeads = 8

// A BackwardConfig describes the gradient of an attention. Out and LSE of the attention are read. DOut and DQ are laid
// out as Out and Q, DLSE, if the log-sum-exp has a gradient, as LSE; DK and DV have an offset for each head of keys, or
// no offsets if they are not needed.
type BackwardConfig struct {
	Config
	DOut, DLSE, DQ, DK, DV gemm.Layout
}

// BackwardArgs are the operands of a run: those of the attention, its results, and the gradients.
type BackwardArgs[T Float] struct {
	Args[T]
	DOut, DLSE []T
	DQ, DK, DV []T
}

// A Backward computes the gradients of the attentions of one BackwardConfig.
type Backward[T Float] struct {
	Plan[T]                // operands, masks and reach, as in the forward pass
	dOut, dLSE, dQ, dK, dV gemm.Layout

	groups  int // heads of keys
	single  bool
	room    backwardRoom
	delta   []T // of each query
	far     far[T]
	scale   T // of dq and dk
	inverse T // of the share of probabilities that dropout keeps

	// The current run.
	args BackwardArgs[T]
}

// NewBackward makes a plan that runs on the workers of p.
func NewBackward[T Float](cfg BackwardConfig, p *pool.Pool) (*Backward[T], error) {
	d := cfg.Dims
	k := &Backward[T]{dOut: cfg.DOut, dLSE: cfg.DLSE, dQ: cfg.DQ, dK: cfg.DK, dV: cfg.DV}
	k.Plan = Plan[T]{Config: cfg.Config, micro: gemm.MicroOf[T](), pool: p, heads: d.Batch.Elems() * d.Heads}
	k.groups = k.heads / max(d.Group, 1)
	check := func(name string, l *gemm.Layout, heads int) error {
		if len(l.Offsets) != heads || l.RowStride < 0 || l.ColStride < 0 {
			return fmt.Errorf("attention backward: %s has %d offsets for %d heads, strides %d and %d",
				name, len(l.Offsets), heads, l.RowStride, l.ColStride)
		}
		return nil
	}
	for _, l := range []struct {
		name   string
		layout *gemm.Layout
		heads  int
		absent bool
	}{
		{"q", &k.Q, k.heads, false}, {"k", &k.K, k.heads, false}, {"v", &k.V, k.heads, false},
		{"out", &k.Out, k.heads, false}, {"lse", &k.LSE, k.heads, false}, {"dout", &k.dOut, k.heads, false},
		{"dlse", &k.dLSE, k.heads, cfg.DLSE.Offsets == nil}, {"dq", &k.dQ, k.heads, false},
		{"dk", &k.dK, k.groups, cfg.DK.Offsets == nil}, {"dv", &k.dV, k.groups, cfg.DV.Offsets == nil},
	} {
		if l.absent {
			continue
		}
		if err := check(l.name, l.layout, l.heads); err != nil {
			return nil, err
		}
	}
	if cfg.Blocking.Queries < 0 || cfg.Blocking.Keys < 0 {
		return nil, fmt.Errorf("attention backward: blocks of %d queries and %d keys",
			cfg.Blocking.Queries, cfg.Blocking.Keys)
	}
	k.inverse = T(1 / k.rule().Kept())
	k.scale = T(cfg.Op.Scale / k.rule().Kept())
	k.delta = make([]T, k.heads*d.Queries)
	k.cutBackward()
	k.far = newFar[T](k.heads*d.Queries, k.heads*k.blocks)
	return k, nil
}

// Room is how many elements of scratch each worker needs.
func (k *Backward[T]) Room() int { return k.room.total }

// Bytes is the plan's memory.
func (k *Backward[T]) Bytes() int64 {
	return int64(len(k.delta)+len(k.far.top)+len(k.far.share))*int64(unsafe.Sizeof(*new(T))) + int64(len(k.far.blocks))
}

// Run computes the gradients. scratch has Room elements for each worker of the pool, aligned to cache lines. The slices
// are as long as the layouts need. It allocates nothing.
func (k *Backward[T]) Run(args BackwardArgs[T], scratch [][]T) {
	k.args, k.Plan.args, k.scratch = args, args.Args, scratch
	defer k.release()
	k.pool.Run(k.heads*k.blocks, (*deltaTask[T])(k))
	if k.single {
		k.pool.Run(k.groups, (*groupTask[T])(k))
		return
	}
	k.pool.Run(k.groups*k.chunks, (*keysTask[T])(k))
	k.pool.Run(k.heads*k.blocks, (*queriesTask[T])(k))
}

// release drops the references to the caller's data.
func (k *Backward[T]) release() {
	k.args = BackwardArgs[T]{}
	k.Plan.release()
}

// deltaTask computes Δ for a block of queries of a head, sets their dq to 0, and finds the values that are subtracted
// in their exponentials.
type deltaTask[T Float] Backward[T]

// Do implements pool.Task.
func (t *deltaTask[T]) Do(worker, item int) {
	k := (*Backward[T])(t)
	d, out, dout := k.Dims, &k.Out, &k.dOut
	head, first := item/k.blocks, item%k.blocks*k.queries
	for i := first; i < min(first+k.queries, d.Queries); i++ {
		at, from := out.Offsets[head]+i*out.RowStride, dout.Offsets[head]+i*dout.RowStride
		var sum T
		switch {
		case d.Width == 0:
		case out.ColStride == 1 && dout.ColStride == 1:
			sum = vec.Of[T]().Dot()(k.args.Out[at:][:d.Width], k.args.DOut[from:][:d.Width])
		default:
			for c := range d.Width {
				sum += k.args.Out[at+c*out.ColStride] * k.args.DOut[from+c*dout.ColStride]
			}
		}
		if k.dLSE.Offsets != nil {
			sum -= k.args.DLSE[k.dLSE.Offsets[head]+i*k.dLSE.RowStride]
		}
		if k.lse(head, i) == T(math.Inf(-1)) {
			sum = 0
		}
		k.delta[head*d.Queries+i] = sum
		k.addQuery(head, i, nil)
	}
	k.findFar(worker, head, item%k.blocks)
}

// addQuery adds Scale·x to dq of a query; without x it makes it 0.
func (k *Backward[T]) addQuery(head, query int, x []T) {
	depth, to := k.Dims.Depth, &k.dQ
	if depth == 0 {
		return
	}
	dq := k.args.DQ[to.Offsets[head]+query*to.RowStride:]
	switch {
	case x != nil && to.ColStride == 1:
		vec.Of[T]().Axpy(dq[:depth], x, k.scale)
	case x != nil:
		for c, v := range x {
			dq[c*to.ColStride] += k.scale * v
		}
	case to.ColStride == 1:
		clear(dq[:depth])
	default:
		for c := range depth {
			dq[c*to.ColStride] = 0
		}
	}
}

// negativeLSE is added to a score before its exponential. A query that attends to no key has no finite log-sum-exp, and
// only scores of −Inf. Nothing is added for a far query.
func (k *Backward[T]) negativeLSE(head, query int) T {
	if lse := k.lse(head, query); lse != T(math.Inf(-1)) && !k.far.is(head*k.Dims.Queries+query) {
		return -lse
	}
	return 0
}

func (k *Backward[T]) lse(head, query int) T {
	return k.args.LSE[k.LSE.Offsets[head]+query*k.LSE.RowStride]
}

// groupTask computes all gradients of a head of keys and of the heads of queries that share it.
type groupTask[T Float] Backward[T]

// Do implements pool.Task.
func (t *groupTask[T]) Do(worker, group int) {
	k := (*Backward[T])(t)
	b := k.pair(worker)
	b.wantQ, b.wantK, b.wantV = true, k.dK.Offsets != nil, k.dV.Offsets != nil
	for chunk := range k.chunks {
		b.alongQueries(group, chunk)
	}
}

// keysTask computes dk and dv of a block of keys.
type keysTask[T Float] Backward[T]

// Do implements pool.Task.
func (t *keysTask[T]) Do(worker, item int) {
	k := (*Backward[T])(t)
	b := k.pair(worker)
	b.wantK, b.wantV = k.dK.Offsets != nil, k.dV.Offsets != nil
	if b.wantK || b.wantV {
		b.alongQueries(item%k.groups, item/k.groups)
	}
}

// queriesTask computes dq of a block of queries.
type queriesTask[T Float] Backward[T]

// Do implements pool.Task. The last queries, which have the most keys if the attention is causal, come first.
func (t *queriesTask[T]) Do(worker, item int) {
	k := (*Backward[T])(t)
	b := k.pair(worker)
	b.wantQ = true
	b.queriesAt(item%k.heads, k.blocks-1-item/k.heads)
	for chunk := range k.chunks {
		b.keysAt(b.head/k.Dims.Group, chunk)
		b.meet()
	}
}
