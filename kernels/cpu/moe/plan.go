package moe

import (
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/tiling"
	"fusec/kernels/cpu/vec"
)

// weights is the number of kinds of weights.
const weights = int(graph.MoEB2) + 1

// A Config describes a mixture of experts, or its gradient.
type Config struct {
	Op       graph.MoE
	Dims     graph.MoEDims
	Backward bool

	// Rows of the tokens: Offsets has one entry for each token, ColStride is the distance of the elements of a row. Y
	// is y, or dy if Backward. DX and DGates are for the gradients; DGates has no Offsets if it is not needed.
	X, Gates, Y, DX, DGates gemm.Layout
	// Weights has, for each weight of the operation, the layouts for the experts: RowStride and ColStride of a matrix,
	// ColStride of a bias. DWeights is the same for the gradients, empty for gradients that are not needed. If a
	// gradient is needed only for some experts, the others have empty slices in a run.
	Weights, DWeights [weights][]gemm.Layout
	// Frozen weights are packed once, when an expert first gets a token; see Thaw.
	Frozen bool
}

// Args are the operands of a run: of the weights, and their gradients, a slice for each expert, which begins with its
// first element.
type Args[T Float] struct {
	X, Gates, Y, DX, DGates []T
	Weights, DWeights       [weights][][]T
}

// A Hidden computes the elementwise part of an expert: h = act(u), or act(u)⊙v if the mixture is gated. If it is not, v
// and dv are nil. Its functions are called by several workers at the same time.
type Hidden[T Float] struct {
	// Forward overwrites u with h.
	Forward func(worker int, u, v []T)
	// Backward sets h, and du = da·∂h/∂u and dv = da·∂h/∂v. Only a gradient needs it.
	Backward func(worker int, u, v, da, h, du, dv []T)
}

// A Plan computes the mixture of one Config.
type Plan[T Float] struct {
	Config
	hidden Hidden[T]
	micro  gemm.Micro[T]
	code   *vec.Kernels[T]
	pool   *pool.Pool
	blocking

	operands []operand // the products of a block, as far as they are packed
	packed   int       // elements of an expert's packed weights
	homes    int       // number of experts whose packed weights fit

	routes   routes
	segments []segment
	jobs     []job
	parts    int // of the hidden columns of a block

	owner  []int // of each home, the expert whose weights are there, or −1
	lately int   // the home that was filled last
	kept   []T   // packed frozen weights

	// The run in progress.
	args    Args[T]
	scratch [][]T
	pack    []T // packed weights
	slots   []T // rows of results, of dx if Backward
	dgate   []T // gradients of the gates, one for each slot
	h       [3][]T
}

// An operand is a weight as the right operand of a block's product: k×n, packed in blocks of kc steps.
type operand struct {
	weight   graph.MoEWeight
	trans    bool // of how the weight is stored
	k, n, kc int
	at       int // in the expert's packed weights
}

// The products of a block. Those of the gradient are transposed: da = dy·w2ᵀ and dx = du·w1ᵀ + dv·w3ᵀ.
const (
	inU = iota
	inV
	outY // forward
	outDU
	outDV

	inDA = outY // backward
)

// New makes a plan that runs on the workers of p, with the caller's functions for activations.
func New[T Float](cfg Config, hidden Hidden[T], p *pool.Pool) (*Plan[T], error) {
	k := &Plan[T]{Config: cfg, hidden: hidden, micro: gemm.MicroOf[T](), code: vec.Of[T](), pool: p}
	if err := k.check(); err != nil {
		return nil, err
	}
	k.cut()
	d, kin, kout := k.Dims, reductionBlock(k.Dims.Width), reductionBlock(k.Dims.Result)
	k.operands = []operand{
		inU:  {weight: graph.MoEW1, k: d.Width, n: d.Hidden, kc: kin},
		inV:  {weight: graph.MoEW3, k: d.Width, n: d.Hidden, kc: kin},
		outY: {weight: graph.MoEW2, k: d.Hidden, n: d.Result, kc: k.chunk},
	}
	if k.Backward {
		k.operands[inDA] = operand{weight: graph.MoEW2, trans: true, k: d.Result, n: d.Hidden, kc: kout}
		k.operands = append(k.operands,
			operand{weight: graph.MoEW1, trans: true, k: d.Hidden, n: d.Width, kc: k.chunk},
			operand{weight: graph.MoEW3, trans: true, k: d.Hidden, n: d.Width, kc: k.chunk})
	}
	for i := range k.operands {
		o := &k.operands[i]
		o.at = k.packed
		if k.Op.Gated || o.weight != graph.MoEW3 {
			k.packed += lineElements[T](o.k * tiling.RoundUp(o.n, k.micro.NR))
		}
	}
	k.reserve()
	return k, nil
}

// check validates the layouts.
func (c *Config) check() error {
	rows := map[string]gemm.Layout{"x": c.X, "gates": c.Gates, "y": c.Y}
	if c.Backward {
		rows["dx"] = c.DX
		if c.DGates.Offsets != nil {
			rows["dgates"] = c.DGates
		}
	}
	for name, l := range rows {
		if len(l.Offsets) != c.Dims.Tokens {
			return fmt.Errorf("moe: %s has %d offsets for %d tokens", name, len(l.Offsets), c.Dims.Tokens)
		}
	}
	for _, w := range c.Op.Weights() {
		if n := len(c.Weights[w]); n != c.Op.Experts {
			return fmt.Errorf("moe: %v has %d layouts for %d experts", w, n, c.Op.Experts)
		}
		if n := len(c.DWeights[w]); n != 0 && n != c.Op.Experts {
			return fmt.Errorf("moe: d%v has %d layouts for %d experts", w, n, c.Op.Experts)
		}
	}
	return nil
}

// Bytes is the plan's memory.
func (k *Plan[T]) Bytes() int64 {
	return int64(len(k.kept))*int64(unsafe.Sizeof(*new(T))) + k.routes.bytes()
}

// Thaw announces that frozen weights may have changed.
func (k *Plan[T]) Thaw() {
	for i := range k.owner {
		k.owner[i] = -1
	}
}

// Loads is the number of tokens that each expert got in the last run.
func (k *Plan[T]) Loads() []int { return k.routes.counts }
