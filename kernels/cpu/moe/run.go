package moe

import (
	"cmp"
	"slices"

	"fusec/graph"
	"fusec/kernels/cpu/tiling"
)

// A segment is the tokens of an expert that one wave processes.
type segment struct {
	expert  int
	from, n int // tokens, of the expert's
	rows    int // of whole panels
	block   int // rows per block
	blocks  int
	home    int // of the expert's packed weights, or private or streamed
	slot    int // its first row of slots; those of the next part follow after rows more
	row     int // its first row of hidden values
}

// Homes of weights that are not packed for all.
const (
	private  = -1 - iota // the worker that computes the only block packs them
	streamed             // they are read in place: see few.go
)

// A job is a work item of any kind.
type job struct {
	kind    jobKind
	cost    int // by which jobs are sorted, the largest first
	segment *segment
	weight  graph.MoEWeight // whose gradient
	expert  int
	i, j, n int // depend on the kind
}

type jobKind uint8

const (
	jobClear   jobKind = iota // the gradient of a weight of an expert without tokens
	jobPack                   // operand i of an expert into home j, the block of its reduction and columns with number n
	jobBlock                  // i: row of the segment, j: part
	jobOuter                  // a weight's gradient; i: chunk of hidden columns, j: first column of the tokens' rows
	jobCombine                // i: range of tokens; the segments from number j on, n of them
)

// Run computes the mixture. shared has Shared elements, and each of scratch, one for each worker of the pool, Room
// elements; all start at cache lines. The slices are as long as the layouts need. It allocates only memory for packed
// frozen weights at the first run, and for longer lists of tokens if one has more than TopK experts.
func (k *Plan[T]) Run(args Args[T], shared []T, scratch [][]T) {
	k.args, k.scratch = args, scratch
	defer k.release()
	if k.Frozen && k.kept == nil {
		k.kept = make([]T, k.homes*k.packed)
		k.Thaw()
	}
	k.share(shared)
	k.route()
	k.cutSegments()
	if !k.Frozen {
		k.Thaw()
	}
	k.jobs = k.jobs[:0]
	k.clearUnused()
	for next := 0; ; {
		first := next
		next = k.wave(first)
		k.runJobs()
		if next == first {
			return
		}
		for i := range k.segments[first:next] {
			k.addBlocks(&k.segments[first+i])
		}
		k.runJobs()
		for i := range k.segments[first:next] {
			k.addOuter(&k.segments[first+i])
		}
		for r := range k.routes.ranges {
			k.jobs = append(k.jobs, job{kind: jobCombine, i: r, j: first, n: next - first})
		}
	}
}

// release drops the references to the caller's data.
func (k *Plan[T]) release() {
	k.args, k.scratch, k.slots, k.dgate, k.pack, k.h = Args[T]{}, nil, nil, nil, nil, [3][]T{}
}

// cutSegments cuts the tokens of each expert into segments and blocks.
func (k *Plan[T]) cutSegments() {
	mr, pairs, blocks := k.micro.MR, 0, 0
	for _, n := range k.routes.counts {
		pairs += n
	}
	most := min(k.rows, max(tiling.RoundUp(tiling.CeilDiv(pairs, blocksWanted), mr), rowsMin*mr))
	k.segments = k.segments[:0]
	for e, n := range k.routes.counts {
		each := evenly(n, k.segment, mr)
		for from := 0; from < n; from += each {
			s := segment{expert: e, from: from, n: min(each, n-from)}
			s.rows, s.block = tiling.RoundUp(s.n, mr), evenly(s.n, most, mr)
			s.blocks = tiling.CeilDiv(s.n, s.block)
			blocks += s.blocks
			k.segments = append(k.segments, s)
		}
	}
	k.parts = 1
	if blocks > 0 && blocks < partsWanted {
		k.parts = max(min(k.chunks, tiling.CeilDiv(partsWanted, blocks)), 1)
	}
}

// wave selects the segments from number first on that fit, assigns homes to their experts' weights, and adds the jobs
// for packing them. It returns the number of the next segment.
func (k *Plan[T]) wave(first int) (next int) {
	slot, row, homes := 0, 0, 0
	for next = first; next < len(k.segments); next++ {
		s := &k.segments[next]
		again := k.Backward && next > first && s.from > 0 // adds to gradients that this wave makes
		if row+s.rows > k.waveRows || homes == k.homes || again {
			break
		}
		s.row, s.slot = row, slot
		row += s.rows
		slot += s.rows * k.parts
		switch {
		case k.Frozen:
			s.home = s.expert
		case k.isFew(s):
			s.home = streamed
			continue
		case s.blocks == 1:
			s.home = private
			continue
		case k.owner[k.lately] == s.expert:
			s.home = k.lately
			homes++
			continue
		default:
			k.lately = (k.lately + 1) % k.homes
			s.home = k.lately
			homes++
		}
		if k.owner[s.home] != s.expert {
			k.owner[s.home] = s.expert
			k.addPacking(s)
		}
	}
	return next
}

// addBlocks adds the blocks of a segment.
func (k *Plan[T]) addBlocks(s *segment) {
	for row := 0; row < s.n; row += s.block {
		for part := range k.parts {
			k.jobs = append(k.jobs, job{kind: jobBlock, cost: min(s.block, s.n-row), segment: s, i: row, j: part})
		}
	}
}

// runJobs does the work that has been added, the largest first.
func (k *Plan[T]) runJobs() {
	slices.SortStableFunc(k.jobs, func(a, b job) int { return cmp.Compare(b.cost, a.cost) })
	k.pool.Run(len(k.jobs), (*jobTask[T])(k))
	k.jobs = k.jobs[:0]
}

// jobTask does a job.
type jobTask[T Float] Plan[T]

func (t *jobTask[T]) Do(worker, item int) {
	k := (*Plan[T])(t)
	j := &k.jobs[item]
	switch j.kind {
	case jobClear:
		k.clear(j)
	case jobPack:
		k.packPiece(j)
	case jobBlock:
		b := k.block(worker, j)
		if k.Backward {
			b.backward()
		} else {
			b.forward()
		}
	case jobOuter:
		k.outer(worker, j)
	case jobCombine:
		k.combine(j)
	}
}

// combine adds the slots of a wave to the results of a range of tokens, in the order of experts.
func (k *Plan[T]) combine(j *job) {
	lo, hi := k.rangeOf(j.i)
	for i := range k.segments[j.j:][:j.n] {
		s := &k.segments[j.j+i]
		tokens := k.routes.tokens(s)
		from, _ := slices.BinarySearch(tokens, int32(lo))
		for r := from; r < s.n && int(tokens[r]) < hi; r++ {
			t := tokens[r]
			for part := range k.parts {
				at := s.slot + part*s.rows + r
				row := k.slots[at*k.ld:][:k.out]
				if !k.Backward {
					k.addRow(k.args.Y[k.Y.Offsets[t]:], k.Y.ColStride, row, k.gate(t, s.expert))
					continue
				}
				k.addRow(k.args.DX[k.DX.Offsets[t]:], k.DX.ColStride, row, 1)
				if k.DGates.Offsets != nil {
					k.args.DGates[k.DGates.Offsets[t]+s.expert*k.DGates.ColStride] += k.dgate[at]
				}
			}
		}
	}
}

// addRow adds by·x to a row whose elements are stride apart.
func (k *Plan[T]) addRow(dst []T, stride int, x []T, by T) {
	if stride == 1 {
		k.code.Axpy(dst[:len(x)], x, by)
		return
	}
	for i, v := range x {
		dst[i*stride] += by * v
	}
}
