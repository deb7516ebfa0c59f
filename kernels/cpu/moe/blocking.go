package moe

import (
	"unsafe"

	"fusec/kernels/cpu/tiling"
)

// Sizes that the caches suggest. They are the same on every processor, so that results depend on the instruction set
// alone; see package gemm.
const (
	// reductionMax bounds the steps of a reduction that are packed as one panel, chunkMax the hidden columns of a
	// chunk, which are the reduction of the product that follows.
	reductionMax, chunkMax = 256, 192
	// blockBytes bounds the memory of a block at one time: tokens, hidden values of a chunk, results. rowsMax and, in
	// panels, rowsMin bound its rows.
	blockBytes       = 640 << 10
	rowsMax, rowsMin = 192, 4
	// blocksWanted is the number of blocks of tokens, if there are enough tokens. partsWanted is the number of work
	// items if there are fewer blocks, by dividing the hidden columns.
	blocksWanted, partsWanted = 32, 16
	// slotBytes and hiddenBytes bound the rows of results and the hidden values of a segment, weightBytes the packed
	// weights of a wave, for each worker.
	slotBytes, hiddenBytes = 4 << 20, 4 << 20
	weightBytes            = 4 << 20
	// pieceColumns bounds the columns of a weight that are packed at a time.
	pieceColumns = 256
	// outerMax bounds the sides of a block of a weight's gradient.
	outerMax = 256
	// tokenRanges is the number of work items that route tokens and sum their results, each of at least rangeMin
	// tokens.
	tokenRanges, rangeMin = 64, 16
)

// A blocking is the block sizes of a mixture. It is a function of the shape, the element type and the kernel; see also
// run.
type blocking struct {
	chunk, chunks int // hidden columns of a chunk, and how many chunks there are
	padded        int // the widths of all chunks, whole panels each
	rows          int // of a block at most, a multiple of MR
	piece         int // columns of a weight that are packed at a time, whole panels
	segment       int // tokens of an expert that a wave takes at most
	waveRows      int // rows of a wave
	slotRows      int // rows of slots of all parts
	out, ld       int // width of a slot, and that of whole panels
	room          room
}

// room has the offsets of the parts of a worker's scratch, in elements. A block and a block of a weight's gradient use
// the same memory.
type room struct {
	x, dy, stage, u, v, da, h, piece int
	a, b, c, rows, sums              int
	total                            int
}

// cut chooses the blocking and lays out the workers' scratch.
func (k *Plan[T]) cut() {
	d, mr, nr := k.Dims, k.micro.MR, k.micro.NR
	size := int(unsafe.Sizeof(*new(T)))
	b := &k.blocking
	b.piece = pieceColumns / nr * nr
	b.chunk = evenly(d.Hidden, chunkMax, nr)
	b.chunks = tiling.CeilDiv(d.Hidden, b.chunk)
	b.padded = max(b.chunks-1, 0)*b.chunk + tiling.RoundUp(d.Hidden-max(b.chunks-1, 0)*b.chunk, nr)
	b.out = d.Result
	hidden, kept := 2, 0 // current values of a chunk, and those stored for the weights' gradients
	if k.Op.Gated {
		hidden++
	}
	each := d.Width
	if k.Backward {
		b.out = d.Width
		each += d.Result
		kept = hidden
		hidden += 2
	}
	b.ld = tiling.RoundUp(b.out, nr)
	each = (each + b.ld + hidden*b.chunk) * size
	b.rows = min(max(blockBytes/each/mr*mr, rowsMin*mr), rowsMax/mr*mr)
	b.segment = slotBytes / size / max(b.ld, 1)
	if k.Backward {
		b.segment = min(b.segment, hiddenBytes/size/max(b.padded, 1))
	}
	b.segment = tiling.RoundUp(min(max(b.segment, 2*b.rows, reductionMax), max(d.Tokens, 1)), mr)
	b.waveRows = max(b.segment, min(4*k.pool.Workers(), blocksWanted)*b.rows)
	b.waveRows = min(b.waveRows, tiling.RoundUp(d.Tokens, mr)*k.Op.Experts)
	b.slotRows = max(b.waveRows, min(2*partsWanted*b.rows, b.waveRows*max(b.chunks, 1)))

	var block, outer room
	block.x = take[T](&block, b.rows*d.Width)
	if k.Backward {
		block.dy = take[T](&block, b.rows*d.Result)
	}
	block.stage = take[T](&block, mr*max(d.Width, d.Result))
	block.u, block.v = take[T](&block, b.rows*b.chunk), take[T](&block, b.rows*b.chunk)
	if k.Backward {
		block.da = take[T](&block, b.rows*b.chunk)
	}
	block.h = take[T](&block, b.rows*b.chunk)
	block.piece = take[T](&block, reductionMax*pieceColumns)
	k.room = block
	if kept > 0 {
		wide := tiling.RoundUp(outerMax, max(mr, nr)) + mr
		outer.a, outer.b = take[T](&outer, reductionMax*wide), take[T](&outer, reductionMax*wide)
		outer.c, outer.rows = take[T](&outer, wide*wide), take[T](&outer, reductionMax*outerMax)
		outer.sums = take[T](&outer, 2*outerMax)
		k.room.a, k.room.b, k.room.c, k.room.rows, k.room.sums = outer.a, outer.b, outer.c, outer.rows, outer.sums
		k.room.total = max(block.total, outer.total)
	}
}

// Room is how many elements of scratch each worker needs.
func (k *Plan[T]) Room() int { return k.room.total }

// Shared is how many elements of scratch the workers need together.
func (k *Plan[T]) Shared() int {
	n := k.slotRows*k.ld + lineElements[T](k.slotRows)
	if k.Backward {
		n += len(k.h) * k.waveRows * k.padded
	}
	if !k.Frozen {
		n += k.homes * k.packed
	}
	return n
}

// share divides the scratch that the workers share.
func (k *Plan[T]) share(mem []T) {
	next := func(n int) (part []T) {
		part, mem = mem[:n], mem[n:]
		return part
	}
	if k.pack = k.kept; !k.Frozen {
		k.pack = next(k.homes * k.packed)
	}
	k.slots, k.dgate = next(k.slotRows*k.ld), next(lineElements[T](k.slotRows))
	if k.Backward {
		for i := range k.h {
			k.h[i] = next(k.waveRows * k.padded)
		}
	}
}

// reserve allocates the plan's lists of tokens and of work.
func (k *Plan[T]) reserve() {
	e, t := k.Op.Experts, k.Dims.Tokens
	size := int(unsafe.Sizeof(*new(T)))
	k.homes = min(max(weightBytes/size*k.pool.Workers()/max(k.packed, 1), 1), e)
	if k.Frozen {
		k.homes = e
	}
	k.owner = make([]int, k.homes)
	k.routes.reserve(t, e, k.Op.TopK, k.Op.Dense)
	k.segments = make([]segment, 0, min(e*tiling.CeilDiv(t, k.segment), e+e*t/k.segment))
	inWave := min(cap(k.segments), tiling.CeilDiv(k.waveRows, k.micro.MR))
	pieces := 0
	for i := range k.operands {
		o := &k.operands[i]
		pieces += tiling.CeilDiv(o.k, max(o.kc, 1)) * tiling.CeilDiv(o.n, k.piece)
	}
	outer := max(k.chunks, 1) * (2*tiling.CeilDiv(k.Dims.Width, outerMax) + tiling.CeilDiv(k.Dims.Result, outerMax) + 3)
	blocks := max(tiling.CeilDiv(k.waveRows, k.micro.MR), 2*partsWanted)
	k.jobs = make([]job, 0, max(e*weights+k.homes*pieces+k.routes.ranges+inWave*outer, blocks))
}

// take reserves n elements, whole cache lines.
func take[T Float](r *room, n int) (at int) {
	at = r.total
	r.total += lineElements[T](n)
	return at
}

// lineElements rounds a number of elements up to whole cache lines.
func lineElements[T Float](n int) int { return tiling.RoundUp(n, 64/int(unsafe.Sizeof(*new(T)))) }

// evenly returns the size of the parts when n is cut into equal parts that are multiples of step and, where step
// allows, not above limit.
func evenly(n, limit, step int) int {
	if n == 0 {
		return step
	}
	return tiling.RoundUp(tiling.CeilDiv(n, tiling.CeilDiv(n, max(limit/step*step, step))), step)
}

// reductionBlock cuts the steps of a reduction into equal blocks.
func reductionBlock(k int) int {
	return max(evenly(k, reductionMax, 8), 1)
}
