package pipeline

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/lowering"
)

// whole makes one program of those of all stages, or of one stage, for the caller and for reports: its sources and outputs are
// those of the graph, whole, and its launches those of the stages one after another. Outputs are those of all stages in any
// case. Only is the stage, or -1. Of one stage, values that its participants have in parts are those of one of them.
func (p *Parts) program(only int) (*lowering.Program, error) {
	w := &lowering.Program{Microbatches: p.Microbatches}
	if len(p.Mesh) > 0 {
		w.Mesh = append(graph.Mesh{{Name: "stage", Size: len(p.Stages)}}, p.Mesh...)
	}
	handed := p.handed()
	type key struct {
		name string
		typ  graph.Type
	}
	shared := map[key]int{} // buffers that several programs have
	outputs := map[string]bool{}
	updated := map[int]bool{}
	for s, stage := range p.Stages {
		here := only < 0 || only == s
		if here {
			w.Stages = append(w.Stages, p.describe(s))
		}
		for k, q := range stage {
			if q == nil {
				continue
			}
			w.Name, w.Target = q.Name, q.Target
			if q.Refusal != "" && here && w.Refusal == "" {
				w.Refusal = fmt.Sprintf("%s: %s", q.Name, q.Refusal)
			}
			to, first := make([]int, len(q.Buffers)), len(w.Launches)
			for i, b := range q.Buffers {
				b.First, b.Last = b.First+first, b.Last+first
				own := k == Update && slices.ContainsFunc(q.Outputs, func(o lowering.Binding) bool { return o.Buffer == i })
				source := b.Role == lowering.Input || b.Role == lowering.Param || b.Role == lowering.State
				if own {
					if outputs[b.Name] {
						return nil, fmt.Errorf("two stages have an output %q", b.Name)
					}
					outputs[b.Name] = true
					w.Outputs = append(w.Outputs, lowering.Binding{Name: b.Name, Buffer: len(w.Buffers)})
				} else if !here {
					continue
				}
				switch split, ok := p.Split[b.Name]; {
				case handed[b.Name] && !own: // from program to program
					b.Role = lowering.Temp
				case b.Role == lowering.Prepared:
					b.Role = lowering.Temp
				case b.Role == lowering.Temp:
					b.Offset += w.ArenaBytes
				case b.Role == lowering.Input && ok && k < Norms:
					b.Type = b.Type.Reshaped(split.Whole(p.mesh(), b.Type.Shape))
					b.Sharding = graph.Replicated
				case source && only < 0:
					b.Type, b.Sharding = p.whole(&b), graph.Replicated
				case source: // over the mesh of all
					for d := range b.Sharding.Split {
						b.Sharding.Split[d] <<= 1
					}
				}
				if at, ok := shared[key{b.Name, b.Type}]; ok && (source || handed[b.Name]) && !own {
					to[i] = at
					w.Buffers[at].Last = max(w.Buffers[at].Last, b.Last)
					continue
				}
				to[i] = len(w.Buffers)
				if (source || handed[b.Name]) && !own {
					shared[key{b.Name, b.Type}] = to[i]
				}
				w.Buffers = append(w.Buffers, b)
			}
			if !here {
				continue
			}
			for _, l := range q.Launches {
				l.Args, l.Results = moved(l.Args, to), moved(l.Results, to)
				w.Launches = append(w.Launches, l)
			}
			for _, u := range q.Updates {
				if t := to[u.Target]; k >= Norms && !updated[t] {
					updated[t] = true
					w.Updates = append(w.Updates, lowering.Update{Target: t, Value: t})
				}
			}
			w.ArenaBytes += q.ArenaBytes
			w.BufferBytes += q.BufferBytes
			w.RunningBytes += q.RunningBytes
		}
	}
	for i, b := range w.Buffers { // what another stage updates is sent here
		if (b.Role == lowering.Param || b.Role == lowering.State) && !updated[i] && p.home(b.Name) >= 0 {
			w.Updates = append(w.Updates, lowering.Update{Target: i, Value: i})
		}
	}
	return w, nil
}

// describe tells what a stage is.
func (p *Parts) describe(s int) lowering.Stage {
	st := lowering.Stage{Sent: p.Sent(s)}
	if p.inPlace {
		st.Memory = p.Kept(s) * int64(p.Flight(s))
	}
	seen := map[string]bool{}
	for k, q := range p.Stages[s] {
		if q == nil {
			continue
		}
		st.Launches += len(q.Launches)
		if k < Norms {
			st.Each += len(q.Launches)
		}
		st.Memory += q.ArenaBytes + q.PreparedBytes + q.ScratchBytes
		for _, b := range q.Buffers {
			switch b.Role {
			case lowering.Input, lowering.Param, lowering.State, lowering.Const:
				if b.Name == "" || !seen[b.Name] || !p.inPlace { // programs have values of their own on a device
					st.Memory += b.Type.Bytes()
				}
				seen[b.Name] = true
			case lowering.Output:
				if !p.inPlace {
					st.Memory += b.Type.Bytes()
				}
			}
		}
	}
	return st
}

// home is the first stage that updates a parameter or state, or -1.
func (p *Parts) home(name string) int {
	return slices.IndexFunc(p.Stages, func(stage [programs]*lowering.Program) bool {
		q := stage[Update]
		return q != nil && slices.ContainsFunc(q.Updates, func(u lowering.Update) bool { return q.Buffers[u.Target].Name == name })
	})
}

func moved(views []lowering.View, to []int) []lowering.View {
	list := make([]lowering.View, len(views))
	for i, v := range views {
		v.Buffer = to[v.Buffer]
		list[i] = v
	}
	return list
}

// handed are the names of what programs hand over to each other, and of the sums that they keep.
func (p *Parts) handed() map[string]bool {
	names := map[string]bool{p.Index: true}
	for _, stage := range p.Stages {
		for k, q := range stage {
			if q == nil || k == Update {
				continue
			}
			for _, o := range q.Outputs {
				names[o.Name] = true
			}
			for _, u := range q.Updates { // of Forward and Backward: sums
				names[q.Buffers[u.Target].Name] = true
			}
		}
	}
	return names
}
