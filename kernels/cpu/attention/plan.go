package attention

import (
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
)

// A Config describes an attention over Heads heads in all, those of all batches one after another. Offsets of a layout
// say where a head's matrix starts: Q and Out have Queries rows, K and V Keys rows (an offset for each head of queries,
// whether they share keys or not), Mask Queries rows of Keys columns, and LSE Queries rows of one column. Strides may
// be anything not negative.
type Config struct {
	Op   graph.Attention
	Dims graph.AttentionDims

	Q, K, V, Mask, Out, LSE gemm.Layout
	Bool                    bool // the mask is one of Bools

	Blocking Blocking
}

// A Blocking is how an attention is cut. Zeros are chosen by the shape.
type Blocking struct {
	Queries int // per work item
	Keys    int // per step
}

// Args are the operands of a run. Mask or Keep, Lengths (one for each batch) and Seed are there if the operation has
// them; LSE may be nil.
type Args[T Float] struct {
	Q, K, V, Mask []T
	Keep          []bool
	Lengths       []int
	Seed          uint64
	Out, LSE      []T
}

// A Plan computes the attentions of one Config.
type Plan[T Float] struct {
	Config
	micro gemm.Micro[T]
	pool  *pool.Pool
	heads int

	queries, keys int // of a block
	blocks        int // of queries in a head
	room          room

	few      bool // few queries: see decode.go
	chunk    int  // keys
	chunks   int  // in a head
	partials []T  // [group][chunk][row] of partial results

	// The run in progress.
	args    Args[T]
	scratch [][]T
}

// New makes a plan that runs on the workers of p.
func New[T Float](cfg Config, p *pool.Pool) (*Plan[T], error) {
	d := cfg.Dims
	k := &Plan[T]{Config: cfg, micro: gemm.MicroOf[T](), pool: p, heads: d.Batch.Elems() * d.Heads}
	for name, l := range map[string]gemm.Layout{"q": cfg.Q, "k": cfg.K, "v": cfg.V, "out": cfg.Out} {
		if len(l.Offsets) != k.heads || l.RowStride < 0 || l.ColStride < 0 {
			return nil, fmt.Errorf("attention: %s has %d offsets for %d heads, strides %d and %d",
				name, len(l.Offsets), k.heads, l.RowStride, l.ColStride)
		}
	}
	if cfg.Blocking.Queries < 0 || cfg.Blocking.Keys < 0 {
		return nil, fmt.Errorf("attention: blocks of %d queries and %d keys", cfg.Blocking.Queries, cfg.Blocking.Keys)
	}
	k.cut()
	return k, nil
}

// Room is how many elements of scratch each worker needs.
func (k *Plan[T]) Room() int { return k.room.total }

// Bytes is the memory that the plan keeps.
func (k *Plan[T]) Bytes() int64 { return int64(len(k.partials)) * int64(unsafe.Sizeof(*new(T))) }

// Run computes the attention. scratch has Room elements for each worker of the pool, aligned to cache lines. The
// slices are as long as the layouts need. It allocates nothing.
func (k *Plan[T]) Run(args Args[T], scratch [][]T) {
	if k.heads*k.Dims.Queries == 0 {
		return
	}
	k.args, k.scratch = args, scratch
	defer k.release()
	if !k.few {
		k.pool.Run(k.heads*k.blocks, (*blockTask[T])(k))
		return
	}
	groups := k.heads / k.Dims.Group
	k.pool.Run(groups*k.chunks, (*chunkTask[T])(k))
	k.pool.Run(groups, (*combineTask[T])(k))
}

// release lets go of the caller's data.
func (k *Plan[T]) release() { k.args, k.scratch = Args[T]{}, nil }

// valid is the number of keys that a head may attend at most.
func (k *Plan[T]) valid(head int) int {
	if k.args.Lengths == nil {
		return k.Dims.Keys
	}
	return min(max(k.args.Lengths[head/k.Dims.Heads], 0), k.Dims.Keys)
}

// reach returns the keys that queries i to j−1 of a head may attend: those that any may, and those that all may.
func (k *Plan[T]) reach(i, j, valid int) (lo, hi, allLo, allHi int) {
	lo, allHi = k.Op.Range(k.Dims, i, valid)
	allLo, hi = k.Op.Range(k.Dims, j-1, valid)
	return lo, hi, allLo, allHi
}
