package attention

import (
	"fmt"
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/cpu/vec"
)

// A Config describes an attention over Heads heads in all, the heads of all batches in order. Offsets of a layout are
// the starts of the heads' matrices: Q and Out have Queries rows, K and V Keys rows (an offset for each head of
// queries, whether they share keys or not), Mask Queries rows of Keys columns, and LSE Queries rows of one column.
// Strides may be anything not negative.
//
// With pages, rows and strides of K and V are those of a page, offsets are those of the head in the first page of the
// pool, and KPages and VPages are the distances of the pages.
type Config struct {
	Op   graph.Attention
	Dims graph.AttentionDims

	Q, K, V, Mask, Out, LSE gemm.Layout
	KPages, VPages          int
	Bool                    bool // the mask is one of Bools
	// Half is the type of keys and values of 16 bits, which are converted block by block; Invalid if they have the type of the rest,
	// or 8 bits.
	Half graph.DType
	// KeyScale and ValueScale are the columns of scales of keys and values of 8 bits, where the operation has them, as K and V are.
	KeyScale, ValueScale           gemm.Layout
	KeyScalePages, ValueScalePages int

	Blocking Blocking
}

// A Blocking is the block sizes of an attention. Zeros are chosen by the shape.
type Blocking struct {
	Queries int // per work item
	Keys    int // per step
}

// Args are the operands of a run. Mask or Keep, Lengths (one for each batch), Table (Keys÷Page entries for each batch;
// those that [graph.Attention.Entries] counts are pages of the pool) and Seed are required if the operation has them;
// LSE may be nil.
type Args[T Float] struct {
	Q, K, V, Mask []T
	K16, V16      []uint16 // in place of K and V
	K8, V8        []int8   // in place of K and V, with their scales

	KeyScale, ValueScale []T
	Keep                 []bool
	Lengths              []int
	Table                []int
	Seed                 uint64
	Out, LSE             []T
}

// A Plan computes the attentions of one Config.
type Plan[T Float] struct {
	Config
	micro gemm.Micro[T]
	wide  gemm.Micro[T] // micro with panels of A that fit the width of a value
	// Whether the matrix kernels read rows of keys and values without packing; and whether there is scratch for a
	// contiguous copy of a block's rows.
	keysInPlace, valuesInPlace bool
	copiesKeys, copiesValues   bool
	pool                       *pool.Pool
	heads                      int

	queries, keys int // of a block
	blocks        int // of queries in a head
	room          room

	few      bool                  // few queries: see decode.go
	together []gemm.Few[T, T]      // for several rows at once, the last for one; nil if rows are computed one by one
	halves   []gemm.Few[T, uint16] // the same for keys and values of 16 bits, in place
	bytes    []gemm.Few[T, int8]   // and of 8 bits
	chunk    int                   // keys
	chunks   int                   // in a head
	partials []T                   // [group][chunk][row] of partial results

	// The run in progress.
	args    Args[T]
	scratch [][]T
}

// New makes a plan that runs on the workers of p.
func New[T Float](cfg Config, p *pool.Pool) (*Plan[T], error) {
	return newPlan(cfg, p, gemm.MicroOf[T]())
}

// newPlan is New with the routines of some instruction set.
func newPlan[T Float](cfg Config, p *pool.Pool, micro gemm.Micro[T]) (*Plan[T], error) {
	d := cfg.Dims
	k := &Plan[T]{Config: cfg, micro: micro, wide: micro.Fit(d.Width), pool: p, heads: d.Batch.Elems() * d.Heads}
	k.keysInPlace = micro.TileRows != nil && cfg.K.ColStride == 1
	k.valuesInPlace = micro.TileColumns != nil && cfg.V.ColStride == 1 && d.Width%micro.ColumnsMR == 0
	if k.valuesInPlace {
		k.wide.MR = micro.ColumnsMR
	}
	converted := cfg.Half != graph.Invalid || cfg.Op.HasScales
	k.copiesKeys = converted || cfg.Op.Page > 0 || k.keysInPlace && !dense(&cfg.K, d.Depth)
	k.copiesValues = converted || cfg.Op.Page > 0 || k.valuesInPlace && !dense(&cfg.V, d.Width)
	layouts := map[string]gemm.Layout{"q": cfg.Q, "k": cfg.K, "v": cfg.V, "out": cfg.Out}
	if cfg.Op.HasScales {
		layouts["key scale"], layouts["value scale"] = cfg.KeyScale, cfg.ValueScale
	}
	for name, l := range layouts {
		if len(l.Offsets) != k.heads || l.RowStride < 0 || l.ColStride < 0 {
			return nil, fmt.Errorf("attention: %s has %d offsets for %d heads, strides %d and %d",
				name, len(l.Offsets), k.heads, l.RowStride, l.ColStride)
		}
	}
	if cfg.Op.Page < 0 || cfg.KPages < 0 || cfg.VPages < 0 || cfg.Op.Page > 0 && d.Keys%cfg.Op.Page != 0 {
		return nil, fmt.Errorf("attention: %d keys in pages of %d, strides %d and %d",
			d.Keys, cfg.Op.Page, cfg.KPages, cfg.VPages)
	}
	if cfg.Blocking.Queries < 0 || cfg.Blocking.Keys < 0 {
		return nil, fmt.Errorf("attention: blocks of %d queries and %d keys", cfg.Blocking.Queries, cfg.Blocking.Keys)
	}
	k.cut()
	return k, nil
}

// dense reports whether rows are close enough to be read in place repeatedly. Rows that are far apart evict each other
// from a set-associative cache, so a block of them is copied first.
func dense(l *gemm.Layout, width int) bool { return l.RowStride <= 2*width }

// Room is how many elements of scratch each worker needs.
func (k *Plan[T]) Room() int { return k.room.total }

// Blocks is the block sizes in use: queries of a work item, rounded to the matrix kernels' panels, and keys of a step.
// Few queries are not divided.
func (k *Plan[T]) Blocks() Blocking {
	if k.few {
		return Blocking{Queries: k.Dims.Queries, Keys: min(k.keys, k.chunk)}
	}
	return Blocking{Queries: k.queries, Keys: k.keys}
}

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

// release drops the references to the caller's data.
func (k *Plan[T]) release() { k.args, k.scratch = Args[T]{}, nil }

// valid is the largest number of keys to which a head may attend.
func (k *Plan[T]) valid(head int) int {
	if k.args.Lengths == nil {
		return k.Dims.Keys
	}
	return min(max(k.args.Lengths[head/k.Dims.Heads], 0), k.Dims.Keys)
}

// An operand is keys or values: x, half if they have 16 bits, or bytes if they have 8, and then scales.
type operand[T Float] struct {
	x     []T
	half  []uint16
	bytes []int8
	scale []T
	l     *gemm.Layout
	pages int // their distance
	width int // elements of a row

	scales     *gemm.Layout
	scalePages int
}

func (k *Plan[T]) keyRows() operand[T] {
	a := &k.args
	return operand[T]{a.K, a.K16, a.K8, a.KeyScale, &k.K, k.KPages, k.Dims.Depth, &k.KeyScale, k.KeyScalePages}
}

func (k *Plan[T]) valueRows() operand[T] {
	a := &k.args
	return operand[T]{a.V, a.V16, a.V8, a.ValueScale, &k.V, k.VPages, k.Dims.Width, &k.ValueScale, k.ValueScalePages}
}

// converted reports whether the elements are not of type T.
func (o *operand[T]) converted() bool { return o.half != nil || o.scale != nil }

// scaling is the operand's scales as an operand of one column.
func (o *operand[T]) scaling() operand[T] {
	return operand[T]{x: o.scale, l: o.scales, pages: o.scalePages, width: 1}
}

// at is where the rows of an operand begin, from a key of a head on, and how many of the n requested rows follow one another: those
// of one page.
func (k *Plan[T]) at(o *operand[T], head, key, n int) (at, run int) {
	at = o.l.Offsets[head]
	if page := k.Op.Page; page > 0 {
		n = min(n, page-key%page)
		at += k.args.Table[head/k.Dims.Heads*(k.Dims.Keys/page)+key/page] * o.pages
		key %= page
	}
	return at + key*o.l.RowStride, n
}

// rowsAt is the rows of an operand of type T from a key of a head on; see at.
func (k *Plan[T]) rowsAt(o *operand[T], head, key, n int) ([]T, int) {
	at, run := k.at(o, head, key, n)
	return o.x[min(at, len(o.x)):], run
}

// copyRows copies n rows of an operand to contiguous memory, and converts them.
func (k *Plan[T]) copyRows(dst []T, o *operand[T], head, key, n int) {
	for end := key + n; key < end; {
		at, run := k.at(o, head, key, end-key)
		switch {
		case o.half != nil:
			k.widen(dst[:run*o.width], o, at)
		case o.scale != nil:
			k.dequantize(dst[:run*o.width], o, at, head, key)
		default:
			for i := range run {
				vec.Gather(dst[i*o.width:][:o.width], o.x[min(at+i*o.l.RowStride, len(o.x)):], o.l.ColStride)
			}
		}
		dst = dst[run*o.width:]
		key += run
	}
}

// widen converts rows of 16 bits.
func (k *Plan[T]) widen(dst []T, o *operand[T], at int) {
	switch w := o.width; {
	case len(dst) == 0:
	case o.l.ColStride == 1 && o.l.RowStride == w:
		vec.FromHalf(dst, o.half[at:], k.Half)
	case o.l.ColStride == 1 || w == 1:
		for i := 0; i < len(dst); i += w {
			vec.FromHalf(dst[i:][:w], o.half[at+i/w*o.l.RowStride:], k.Half)
		}
	default:
		for i := range dst {
			dst[i] = T(k.Half.From16(o.half[at+i/w*o.l.RowStride+i%w*o.l.ColStride]))
		}
	}
}

// copyScales copies the scales of rows from a key of a head on to contiguous memory.
func (k *Plan[T]) copyScales(dst []T, o *operand[T], head, key int) {
	scales := o.scaling()
	for len(dst) > 0 {
		at, run := k.at(&scales, head, key, len(dst))
		vec.Gather(dst[:run], scales.x[min(at, len(scales.x)):], scales.l.RowStride)
		dst, key = dst[run:], key+run
	}
}

// dequantize converts rows of 8 bits, from a key of a head on, which follow one another from at on.
func (k *Plan[T]) dequantize(dst []T, o *operand[T], at, head, key int) {
	w := o.width
	if len(dst) == 0 {
		return
	}
	scales := o.scaling()
	scaleAt, _ := k.at(&scales, head, key, len(dst)/w)
	multiply := vec.Of[T]().BinaryVS(graph.Mul)
	for i := range len(dst) / w {
		row := dst[i*w:][:w]
		from := o.bytes[at+i*o.l.RowStride:]
		if o.l.ColStride == 1 || w == 1 {
			vec.FromInts(row, from[:w])
		} else {
			for j := range row {
				row[j] = T(from[j*o.l.ColStride])
			}
		}
		multiply(row, row, o.scale[scaleAt+i*o.scales.RowStride])
	}
}

// reach returns the keys that queries i to j−1 of a head may attend: those that any may, and those that all may.
func (k *Plan[T]) reach(i, j, valid int) (lo, hi, allLo, allHi int) {
	lo, allHi = k.Op.Range(&k.Dims, i, valid)
	allLo, hi = k.Op.Range(&k.Dims, j-1, valid)
	return lo, hi, allLo, allHi
}
