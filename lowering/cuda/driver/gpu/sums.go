//go:build gpu

package gpu

// Large sums of the GPUs of one host. Each participant adds up a part of all elements. Copy engines bring it the other
// participants' terms of that part, and take the sums to all. So the multiprocessors only add what is in their own memory. Terms of
// small operands, which make poor copies, are read where they are, and their sums written to all participants.

/*
#include "native.h"
*/
import "C"

import (
	"unsafe"

	"fusec/graph"
	"fusec/lowering/cuda/driver"
)

// mostStaged is how many bytes of others' terms there is room for. Sums of more take several turns. Tests change it.
var mostStaged = 64 << 20

const (
	// leastStaged is how many bytes a participant's part of an operand has, at least, that copy engines bring.
	leastStaged = 128 << 10
	// sumAlign is the number of elements of which parts are multiples, so that they begin where words of 16 bytes do.
	sumAlign = 8
	// sumBlocks and sumThreads are the launch of sum_large: they fill each of the chips that have NVLink.
	sumBlocks, sumThreads = 264, 512
)

// segments is the parameter of sum_large.
type segments struct {
	list     [24]segment // SEGMENTS of sum.cu
	count, n int32
}

// segment is elements whose terms are added up in the order of the participants.
type segment struct {
	from, to        [mostPeers]uint64
	elems           int64
	results, bits16 int32 // how many of to there are, and whether elements are bf16
}

// sumsLarge reports whether an exchange is a sum that queueSums makes.
func (p *peers) sumsLarge(x driver.Exchange, of []driver.Exchange) bool {
	bytes := 0
	for _, o := range of {
		if isSum(o) {
			bytes += operandBytes(o)
		}
	}
	return isSum(x) && bytes >= leastCopy
}

// A share is elements of a sum: from each participant's part, those from one to another.
type share struct {
	driver.Exchange
	x, y     []C.CUdeviceptr // of each participant; y of this one only if the sum is scattered
	part     int             // elements of a participant; the last ones may have fewer
	from, to int
	all      bool // all participants need all sums
	staged   bool // copy engines bring the terms
}

// at is the elements of the share that a participant adds up.
func (h *share) at(place int) (first, n int) {
	first = min(place*h.part+h.from, h.Elems)
	return first, min(place*h.part+h.to, h.Elems) - first
}

// stagedBytes is how much room a participant's terms take, so that the next ones begin where words of 16 bytes do.
func stagedBytes(bytes int) int { return (bytes + 15) &^ 15 }

// queueSums queues sums, in as many turns as the room for their terms requires.
func (p *peers) queueSums(s *stream, list []driver.Exchange) error {
	if len(list) == 0 {
		return nil
	}
	if err := p.load(); err != nil {
		return err
	}
	if p.staging == 0 {
		var err error
		if p.staging, err = p.c.g.Alloc(int64(mostStaged)); err != nil {
			return err
		}
	}
	n := len(p.at)
	var turn []share
	room := mostStaged
	for _, x := range list {
		h := share{Exchange: x, part: x.Elems / n}
		var err error
		if h.x, err = p.locate(x.X); err != nil {
			return err
		}
		if _, h.all = x.Op.(graph.AllReduce); h.all {
			h.part = (x.Elems + n*sumAlign - 1) / (n * sumAlign) * sumAlign
			if h.y, err = p.locate(x.Y); err != nil {
				return err
			}
		}
		size := x.DType.Size()
		h.staged = h.part*size >= leastStaged
		for h.from < h.part {
			h.to = h.part
			if h.staged {
				h.to = min(h.to, h.from+room/size/(n-1)/sumAlign*sumAlign)
			}
			if h.to == h.from {
				if err := p.sumTurn(s, turn); err != nil {
					return err
				}
				turn, room = nil, mostStaged
				continue
			}
			turn = append(turn, h)
			if h.staged {
				room -= (n - 1) * stagedBytes((h.to-h.from)*size)
			}
			h.from = h.to
		}
	}
	return p.sumTurn(s, turn)
}

// sumTurn queues the sums of shares whose terms there is room for.
func (p *peers) sumTurn(s *stream, list []share) error {
	place, others := p.c.team.Place(), p.others()
	if err := p.meet(s, readyRound, others, others); err != nil {
		return err
	}
	var terms, sums []pull
	var adds []segment
	copied := false // sums to all participants, even if this one has all by itself
	free := C.CUdeviceptr(p.staging)
	for i := range list {
		h := &list[i]
		size := C.CUdeviceptr(h.DType.Size())
		first, n := h.at(place)
		a := segment{elems: int64(n), results: 1}
		if h.DType == graph.BF16 {
			a.bits16 = 1
		}
		for k, x := range h.x {
			at := x + C.CUdeviceptr(first)*size
			if h.staged && k != place && n > 0 {
				terms = append(terms, pull{k, at, free, n * int(size)})
				at = free
				free += C.CUdeviceptr(stagedBytes(n * int(size)))
			}
			a.from[k] = uint64(at)
		}
		switch {
		case !h.all:
			a.to[0] = uint64(h.Y) + uint64(h.from)*uint64(size)
		case h.staged:
			a.to[0] = uint64(h.y[place]) + uint64(first)*uint64(size)
		default:
			a.results = int32(len(h.y))
			for k, y := range h.y {
				a.to[k] = uint64(y) + uint64(first)*uint64(size)
			}
		}
		if n > 0 {
			adds = append(adds, a)
		}
		if !h.all || !h.staged {
			continue
		}
		copied = true
		for _, k := range others {
			if first, n := h.at(k); n > 0 {
				at := C.CUdeviceptr(first) * size
				sums = append(sums, pull{k, h.y[k] + at, h.y[place] + at, n * int(size)})
			}
		}
	}
	if err := p.pull(s, terms); err != nil {
		return err
	}
	for len(adds) > 0 {
		var a segments
		a.n, a.count = int32(len(p.at)), int32(copy(a.list[:], adds))
		adds = adds[a.count:]
		params := unsafe.Slice((*byte)(unsafe.Pointer(&a)), unsafe.Sizeof(a))
		if err := s.Launch(p.large, [3]int{sumBlocks, 1, 1}, sumThreads, 0, params); err != nil {
			return err
		}
	}
	if err := p.meet(s, usedRound, others, others); err != nil || !copied {
		return err
	}
	if err := p.pull(s, sums); err != nil {
		return err
	}
	return p.meet(s, summedRound, others, others)
}
