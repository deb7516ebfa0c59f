package attention

import (
	"unsafe"

	"fusec/kernels/cpu/tiling"
)

const (
	// backwardQueries and backwardKeys are the greatest blocks, multiples of the width of all matrix kernels' panels:
	// two panels of [queries][NR] take half of a first-level cache, and packing a block of queries for each block of keys
	// is some percent of the work on the pair.
	backwardQueries, backwardQueriesMin = 96, 48
	backwardKeys, backwardKeysMin       = 192, 64
	// backwardQueryBytes bounds a block of queries and their dout, each packed both ways; backwardKeyBytes bounds a
	// block of keys, packed both ways, and values, with their gradients.
	backwardQueryBytes, backwardKeyBytes = 96 << 10, 240 << 10
)

// backwardRoom has the offsets of the parts of a worker's scratch, in elements.
type backwardRoom struct {
	q, qT, dout, doutT     int
	k, kT, v, dk, dv       int
	p, dp, ds, dq          int
	line, drawn            int
	total                  int
	depth, width, depthRow int // rounded up: of dk and dv to whole panels of A, of dq to those of B
}

// cutBackward chooses the blocks and lays out the scratch.
func (k *Backward[T]) cutBackward() {
	d := k.Dims
	mr, nr := k.micro.MR, k.micro.NR
	each := max((d.Depth+d.Width)*int(unsafe.Sizeof(*new(T))), 1)
	k.single = k.groups >= manyHeads

	k.queries = min(backwardQueries, max(backwardQueryBytes/(2*each), backwardQueriesMin))
	k.keys = min(backwardKeys, max(backwardKeyBytes*2/(5*each), backwardKeysMin))
	for !k.single && k.groups*tiling.CeilDiv(d.Keys, k.keys) < manyHeads && k.keys > backwardKeysMin {
		k.keys /= 2
	}
	if k.Blocking.Queries > 0 {
		k.queries = k.Blocking.Queries
	}
	if k.Blocking.Keys > 0 {
		k.keys = k.Blocking.Keys
	}
	k.queries = tiling.RoundUp(min(k.queries, max(d.Queries, 1)), mr)
	k.keys = tiling.RoundUp(min(k.keys, max(d.Keys, 1)), nr)
	k.blocks, k.chunks = tiling.CeilDiv(d.Queries, k.queries), tiling.CeilDiv(d.Keys, k.keys)

	r := &k.room
	var at room
	r.depth, r.width, r.depthRow = tiling.RoundUp(d.Depth, mr), tiling.RoundUp(d.Width, mr), tiling.RoundUp(d.Depth, nr)
	r.q, r.qT = take[T](&at, k.queries*(d.Depth+1)), take[T](&at, k.queries*r.depth)
	r.dout, r.doutT = take[T](&at, k.queries*(d.Width+1)), take[T](&at, k.queries*r.width)
	r.k, r.kT = take[T](&at, k.keys*(d.Depth+1)), take[T](&at, k.keys*r.depthRow)
	r.v = take[T](&at, k.keys*(d.Width+1))
	r.dk, r.dv = take[T](&at, k.keys*r.depth), take[T](&at, k.keys*r.width)
	r.p, r.dp = take[T](&at, k.queries*nr), take[T](&at, k.queries*nr)
	r.ds, r.dq = take[T](&at, k.queries*k.keys), take[T](&at, k.queries*r.depthRow)
	r.line = take[T](&at, nr)
	r.drawn = at.total
	if k.Op.Dropout > 0 {
		take[T](&at, (k.queries*nr+31)/32)
	}
	r.total = at.total
}
