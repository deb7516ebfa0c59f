package cpu

import (
	"sort"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// A partKernel is a part of a launch: a kernel whose items can run together with those of others.
type partKernel interface {
	pool.Task
	begin(args, results []Memory) (items int)
	end() error
	// forget says that another kernel has used a worker's scratch.
	forget(worker int)
}

// A joined kernel runs the kernels of a body's segments at once: their items, one after the other, are the items of one
// run over the pool.
type joined struct {
	env   *Env
	parts []joinedPart
	first []int // by part: its first item; then the number of all
	last  []int // by worker: the part of which it did an item
}

type joinedPart struct {
	kernel        partKernel
	segment       graph.Segment
	args, results []Memory
}

func (j *joined) add(k partKernel, s graph.Segment) {
	j.parts = append(j.parts, joinedPart{k, s, make([]Memory, len(s.Args)), make([]Memory, len(s.Results))})
	j.first = make([]int, len(j.parts)+1)
}

// Run implements [Kernel].
func (j *joined) Run(args, results []Memory) error {
	for i := range j.parts {
		p := &j.parts[i]
		for k, a := range p.segment.Args {
			p.args[k] = args[a]
		}
		for k, r := range p.segment.Results {
			p.results[k] = results[r]
		}
		j.first[i+1] = j.first[i] + p.kernel.begin(p.args, p.results)
	}
	j.env.Pool.Run(j.first[len(j.parts)], j)
	var first error
	for i := range j.parts {
		p := &j.parts[i]
		if err := p.kernel.end(); err != nil && first == nil {
			first = err
		}
		clear(p.args)
		clear(p.results)
	}
	return first
}

// Do runs one item of one part; see pool.Task.
func (j *joined) Do(worker, item int) {
	i := sort.SearchInts(j.first, item+1) - 1
	if j.last[worker] != i {
		j.last[worker] = i
		j.parts[i].kernel.forget(worker)
	}
	j.parts[i].kernel.Do(worker, item-j.first[i])
}
