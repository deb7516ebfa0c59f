package attention

import (
	"unsafe"

	"fusec/graph"
	"fusec/kernels/cpu/gemm"
	"fusec/kernels/cpu/tiling"
)

const (
	// blockQueries is the largest number of queries of a work item. Packing a block of keys and values for 512 of them
	// is some three percent of the work on it, for 256 six.
	blockQueries, blockQueriesMin = 512, 64
	// itemsWanted is the number of work items of an attention, if it is large enough.
	itemsWanted = 32
	// blockKeys is the greatest number of keys in a block, a multiple of the width of all matrix kernels' panels: a
	// panel of scores takes less than half of a first-level cache.
	blockKeys, blockKeysMin = 192, 48
	// queryBytes bounds a block of queries and their results, keyBytes a block of packed keys and values: together they
	// stay in a second-level cache of 512 KiB.
	queryBytes, keyBytes = 288 << 10, 112 << 10

	// fewQueries is the largest number of queries with shared keys for which the cost of an attention is that of
	// reading keys and values.
	fewQueries = 8
	// convertedBytes bounds keys and values of 16 or 8 bits that few queries read, as they are converted: they stay in a first-level
	// cache. There are at least convertedMin.
	convertedBytes, convertedMin = 24 << 10, 16
	// chunkKeys is the least number of keys in a chunk, chunksWanted the preferred number of chunks of all heads
	// together.
	chunkKeys    = 256
	chunksWanted = 64
)

// room has the offsets of the parts of a worker's scratch, in elements.
type room struct {
	q, o, k, v, s, mask int
	keyRows, valueRows  int
	keyScales           int
	valueScales         int
	drawn, byKey        int // random words of a panel, along the keys and along the queries
	m, l, c, alpha, sum int
	started             int
	total               int
}

// take reserves n elements, whole cache lines.
func take[T Float](r *room, n int) (at int) {
	line := 64 / int(unsafe.Sizeof(*new(T)))
	at = r.total
	r.total += tiling.RoundUp(n, line)
	return at
}

// cut chooses the blocks and lays out the scratch.
func (k *Plan[T]) cut() {
	d := k.Dims
	size := int(unsafe.Sizeof(*new(T)))
	mr, nr, width := k.micro.MR, k.micro.NR, tiling.RoundUp(d.Width, k.wide.MR)
	rows := d.Group * d.Queries
	k.few = rows <= fewQueries && k.Blocking.Queries == 0

	each := max((d.Depth+width)*size, 1) // bytes of a key and value, or of a query and result
	k.keys = min(blockKeys, max(keyBytes/each/blockKeysMin*blockKeysMin, blockKeysMin))
	if k.Blocking.Keys > 0 {
		k.keys = k.Blocking.Keys
	}
	if k.few && k.Half != graph.Invalid && k.K.ColStride == 1 && k.V.ColStride == 1 {
		k.halves = alike(k, k.micro.Halves[k.Half])
	}
	if k.few && k.Op.HasScales && k.K.ColStride == 1 && k.V.ColStride == 1 {
		k.bytes = alike(k, k.micro.Bytes)
	}
	inPlace := len(k.halves)+len(k.bytes) > 0
	if k.few && !inPlace {
		k.together = alike(k, k.micro.Few)
	}
	if k.few && (k.Half != graph.Invalid || k.Op.HasScales) && !inPlace && k.Blocking.Keys == 0 {
		k.keys = max(convertedBytes/each/convertedMin*convertedMin, convertedMin)
	}
	k.keys = min(k.keys, max(d.Keys, 1))
	if k.few {
		k.cutKeys(rows)
		return
	}

	k.queries = min(blockQueries, max(queryBytes/each/nr*nr, blockQueriesMin))
	for k.heads*tiling.CeilDiv(d.Queries, k.queries) < itemsWanted && k.queries > blockQueriesMin {
		k.queries /= 2
	}
	if k.Blocking.Queries > 0 {
		k.queries = k.Blocking.Queries
	}
	k.queries = tiling.RoundUp(min(k.queries, max(d.Queries, 1)), nr)
	k.blocks = tiling.CeilDiv(d.Queries, k.queries)

	panels := k.queries / nr
	r := &k.room
	r.q = take[T](r, gemm.PackedLen(nr, d.Depth, k.queries))
	r.o = take[T](r, panels*nr*width)
	r.k = take[T](r, gemm.PackedLen(mr, d.Depth, k.keys))
	r.v = take[T](r, gemm.PackedLen(k.wide.MR, k.keys, d.Width))
	r.s = take[T](r, nr*tiling.RoundUp(k.keys+mr, mr))
	r.mask = take[T](r, nr*(k.keys+mr))
	if k.copiesKeys {
		r.keyRows = take[T](r, k.keys*d.Depth)
	}
	if k.copiesValues {
		r.valueRows = take[T](r, k.keys*d.Width)
	}
	r.drawn, r.byKey = take[T](r, k.dropRoom(nr)), take[T](r, k.dropRoom(nr))
	r.m, r.l = take[T](r, panels*nr), take[T](r, panels*nr)
	r.c, r.alpha, r.sum = take[T](r, nr), take[T](r, nr), take[T](r, nr)
	r.started = take[T](r, panels)
}

// cutKeys is cut for few queries.
func (k *Plan[T]) cutKeys(rows int) {
	d := k.Dims
	groups := max(k.heads/max(d.Group, 1), 1)
	k.chunks = min(tiling.CeilDiv(chunksWanted, groups), max(d.Keys/chunkKeys, 1))
	k.chunk = max(tiling.CeilDiv(d.Keys, k.chunks), 1)
	k.chunks = max(tiling.CeilDiv(d.Keys, k.chunk), 1)
	k.partials = make([]T, groups*k.chunks*rows*(d.Width+partialHead))
	scores := 1 // rows of
	if len(k.together) > 0 {
		scores = k.together[0].Vectors
	}
	if len(k.halves) > 0 {
		scores = k.halves[0].Vectors
	}
	if len(k.bytes) > 0 {
		scores = k.bytes[0].Vectors
	}

	r := &k.room
	r.q = take[T](r, rows*d.Depth)
	r.k = take[T](r, k.keys*d.Depth)
	r.v = take[T](r, k.keys*d.Width)
	r.s, r.mask = take[T](r, scores*k.keys), take[T](r, k.keys)
	if len(k.bytes) > 0 {
		r.keyScales, r.valueScales = take[T](r, k.keys), take[T](r, k.keys)
	}
	r.drawn = take[T](r, k.dropRoom(1))
}
