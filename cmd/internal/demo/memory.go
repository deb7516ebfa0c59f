package demo

import (
	"fmt"
	"slices"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/lowering"
)

// demoMemory is where a program has memory, in bytes, besides its inputs and weights; and those.
type demoMemory struct {
	Values  int64 `json:"values"`  // between launches, which share one arena
	Outputs int64 `json:"outputs"` // handed out
	Scratch int64 `json:"scratch"` // of the kernels, which share it
	Kernels int64 `json:"packed"`  // what kernels keep between runs: weights, packed
	Inputs  int64 `json:"inputs"`
	Weights int64 `json:"weights"` // and constants
}

// peak is what a run needs besides inputs and weights, packed or not.
func (m *demoMemory) peak() int64 { return m.Values + m.Outputs + m.Scratch }

func newDemoMemory(p *fusec.Program) demoMemory {
	held := p.Memory()
	m := demoMemory{Values: held.Arena, Outputs: held.Outputs, Scratch: held.Scratch, Kernels: held.Kernels}
	for _, b := range p.Lowered().Buffers {
		switch b.Role {
		case lowering.Input:
			m.Inputs += b.Type.Bytes()
		case lowering.Param, lowering.Const:
			m.Weights += b.Type.Bytes()
		}
	}
	return m
}

// demoBuffer is a value between launches.
type demoBuffer struct {
	Name  string `json:"name"` // or what its launch does
	Type  string `json:"type"`
	Bytes int64  `json:"bytes"`
	First int    `json:"first"` // launch, from 1, that writes it
	Last  int    `json:"last"`  // launch that reads it last
	Of    int    `json:"of"`    // launches
}

// buffersShown is how many of the largest values are listed.
const buffersShown = 6

// largestBuffers lists the largest values between launches, of equal ones the earliest first.
func largestBuffers(p *lowering.Program) []demoBuffer {
	var list []demoBuffer
	for _, b := range p.Buffers {
		if b.Role == lowering.Temp {
			name := b.Name
			if name == "" {
				name = p.Launches[b.First].Kind()
			}
			list = append(list, demoBuffer{Name: name, Type: b.Type.String(), Bytes: b.Type.Bytes(), First: b.First + 1,
				Last: b.Last + 1, Of: len(p.Launches)})
		}
	}
	slices.SortStableFunc(list, func(a, b demoBuffer) int {
		switch {
		case a.Bytes > b.Bytes:
			return -1
		case a.Bytes < b.Bytes:
			return 1
		}
		return a.First - b.First
	})
	return list[:min(len(list), buffersShown)]
}

// memoryText tells where the memory of both programs is.
func (s *demoSection) memoryText() string {
	var b strings.Builder
	t := cli.NewTable("where memory is", ">unfused", ">fused")
	u, f := &s.Unfused.Memory, &s.Fused.Memory
	for _, r := range []struct {
		name string
		u, f int64
	}{
		{"values between launches", u.Values, f.Values}, {"outputs", u.Outputs, f.Outputs},
		{"scratch of kernels", u.Scratch, f.Scratch},
		{"  sum: peak memory", u.peak(), f.peak()}, {"weights, packed", u.Kernels, f.Kernels},
		{"inputs, yours", u.Inputs, f.Inputs}, {"weights and constants, yours", u.Weights, f.Weights},
	} {
		t.Row(r.name, cli.HumanBytes(r.u), cli.HumanBytes(r.f))
	}
	b.WriteString(t.String())
	for _, side := range []struct {
		name string
		list []demoBuffer
	}{{"unfused", s.Unfused.Largest}, {"fused", s.Fused.Largest}} {
		if len(side.list) == 0 {
			fmt.Fprintf(&b, "\n%s: no value is stored between launches\n", side.name)
			continue
		}
		t := cli.NewTable(side.name+": largest values", ">size", "type", ">launches", "lifetime")
		for _, v := range side.list {
			t.Row(v.Name, cli.HumanBytes(v.Bytes), v.Type, fmt.Sprintf("%d–%d of %d", v.First, v.Last, v.Of), v.lifetime())
		}
		fmt.Fprintf(&b, "\n%s", t)
	}
	return b.String()
}

// lifetimeCells is the width of a lifetime's drawing.
const lifetimeCells = 24

// lifetime draws when a value exists in the course of a run.
func (v *demoBuffer) lifetime() string {
	cells := min(v.Of, lifetimeCells)
	from, to := (v.First-1)*cells/v.Of, (v.Last*cells+v.Of-1)/v.Of
	to = max(to, from+1)
	return strings.Repeat("·", from) + strings.Repeat("█", to-from) + strings.Repeat("·", cells-to)
}
