// Package pipeline runs a program that is cut into stages on several participants, each of which computes one stage: pipeline
// parallelism by the schedule 1F1B (D. Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using
// Megatron-LM", arXiv 2104.04473, section 2.2.1, PipeDream-Flush):
//
//	stage 1  F1 F2 F3 B1 F4 B2 F5 B3 B4 B5      of 5 microbatches
//	stage 2     F1 F2 B1 F3 B2 F4 B3 F5 B4 B5
//	stage 3        F1 B1 F2 B2 F3 B3 F4 B4 F5 B5
//
// Of p stages, the one numbered s from 0 keeps what the backward pass needs of p−s microbatches at most, however many there are. A
// participant waits for (p−1)/(m+p−1) of a step with m microbatches, if stages take equally long: the bubble.
package pipeline

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/lowering"
)

// The programs of a stage, in the order in which they run.
const (
	Before   = iota // of each microbatch, before the first of Forward
	Forward         // of each microbatch
	Backward        // of each microbatch
	Norms           // once, after all microbatches: numbers that stages tell each other
	Update          // once, after that
	programs
)

// Parts is a program that is cut into stages. Values are handed over by name, as [fusec/passes/pipeline] describes it.
type Parts struct {
	Microbatches int
	Mesh         graph.Mesh                    // of the participants of each stage, who share its work; empty for one
	Index        string                        // the input that is the number of the microbatch
	Split        map[string]graph.Sharding     // of inputs, over microbatches and the axes of Mesh
	Stages       [][programs]*lowering.Program // nil where there is nothing to compute

	inPlace bool // devices have no memory of their own
}

// mesh is the axes over which inputs are split.
func (p *Parts) mesh() graph.Mesh {
	return append(graph.Mesh{{Name: graph.Microbatch, Size: p.Microbatches}}, p.Mesh...)
}

// Participants is how many there are in all, and each how many share a stage. Ranks count stage by stage.
func (p *Parts) Participants() int { return len(p.Stages) * p.each() }
func (p *Parts) each() int         { return p.Mesh.Size() }

// whole is the type of what the participants of a stage have in parts.
func (p *Parts) whole(b *lowering.Buffer) graph.Type {
	return b.Type.Reshaped(b.Sharding.Whole(p.Mesh, b.Type.Shape))
}

// String lists all programs.
func (p *Parts) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d microbatches\n", p.Microbatches)
	for _, stage := range p.Stages {
		for _, q := range stage {
			if q != nil {
				b.WriteString(q.String())
			}
		}
	}
	return b.String()
}

// Flight is how many microbatches a stage has in work at a time, at most.
func (p *Parts) Flight(stage int) int {
	if !p.trains() {
		return 1
	}
	return min(p.Microbatches, len(p.Stages)-stage)
}

// trains reports whether any stage has a backward pass.
func (p *Parts) trains() bool {
	return slices.ContainsFunc(p.Stages, func(s [programs]*lowering.Program) bool { return s[Backward] != nil })
}

// buffer finds a buffer of some roles by name, or -1.
func buffer(q *lowering.Program, name string, roles ...lowering.Role) int {
	if q == nil {
		return -1
	}
	return slices.IndexFunc(q.Buffers, func(b lowering.Buffer) bool { return b.Name == name && slices.Contains(roles, b.Role) })
}

// A value is handed over between programs.
type value struct {
	name string
	typ  graph.Type
	back bool  // it comes from a backward pass
	from int   // the stage that makes it
	to   []int // the other stages that read it
	here bool  // the stage that makes it reads it, too, in its backward pass
}

// values lists what forward and backward passes hand over, in the order in which it is made.
func (p *Parts) values() (list []*value) {
	for s, stage := range p.Stages {
		for k, q := range stage[:Norms] {
			if q == nil {
				continue
			}
			for _, o := range q.Outputs {
				v := &value{name: o.Name, typ: q.Buffers[o.Buffer].Type, back: k == Backward, from: s}
				for t, other := range p.Stages {
					reads := buffer(other[Forward], v.name, lowering.Input) >= 0 || buffer(other[Backward], v.name, lowering.Input) >= 0
					switch {
					case reads && t == s:
						v.here = true
					case reads:
						v.to = append(v.to, t)
					}
				}
				list = append(list, v)
			}
		}
	}
	return list
}

// crosses reports whether the value goes from one stage to the next, or, of a backward pass, to the one before.
func (v *value) crosses(from int) bool {
	return slices.ContainsFunc(v.to, func(t int) bool {
		if v.back {
			return t < from && from <= v.from
		}
		return v.from <= from && from < t
	})
}

// Sent is how many bytes a stage sends to others for each microbatch.
func (p *Parts) Sent(stage int) (bytes int64) {
	for _, v := range p.values() {
		if v.crosses(stage) {
			bytes += v.typ.Bytes()
		}
	}
	return bytes
}

// Kept is how many bytes a stage keeps of each microbatch in work.
func (p *Parts) Kept(stage int) (bytes int64) {
	for _, v := range p.values() {
		if v.stays(stage) {
			bytes += v.typ.Bytes()
		}
	}
	return bytes
}

// stays reports whether a stage has the value: it makes, reads or passes it on.
func (v *value) stays(stage int) bool {
	if v.from == stage {
		return v.here || len(v.to) > 0
	}
	return slices.Contains(v.to, stage) || v.crosses(stage)
}
