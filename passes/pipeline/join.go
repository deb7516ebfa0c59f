package pipeline

import (
	"fmt"
	"slices"

	"fusec/graph"
)

// Joined is the graphs of all stages as one.
type Joined struct {
	Graph *graph.Graph
	To    map[*graph.Node]*graph.Node // the node in it of each node of the graphs
	At    map[int]int                 // by a node's ID the stage, but for what goes between them
}

// Join draws the graphs of all stages as one, for records of a compilation: what a stage sends to the next one, or to the one
// before, goes there by a permute, and numbers that all are told by a broadcast. Of equal names of sources there is one.
func Join(name string, stages []Stage) (*Joined, error) {
	n := len(stages)
	g := &graph.Graph{Name: name, Mesh: graph.Mesh{{Name: "stage", Size: n}}, Parts: true}
	for _, s := range stages {
		for _, of := range s.Graphs() {
			if of != nil && len(g.Mesh) == 1 {
				g.Mesh = append(g.Mesh, of.Mesh...)
			}
		}
	}
	b := graph.Extend(g)
	j := &Joined{Graph: g, To: map[*graph.Node]*graph.Node{}, At: map[int]int{}}
	to := j.To
	type given struct {
		at   map[int]*graph.Node // by stage
		from int
	}
	handed, sources := map[string]*given{}, map[string]*graph.Node{}
	updated := map[*graph.Node]bool{}
	group := graph.Group{Over: "stage", Parts: n}
	add := func(s, kind int) error {
		of := stages[s].Graphs()[kind]
		if of == nil {
			return nil
		}
		for _, m := range of.Nodes {
			if v := handed[m.Name]; v != nil && graph.IsSource(m.Op) && v.at[v.from].Type == m.Type {
				if kind == update && v.at[s] == nil {
					b.From(v.at[v.from])
					v.at[s] = b.Add(graph.BroadcastFrom{Root: v.from, Group: group}, v.at[v.from])
				}
				for t := v.from; v.at[s] == nil; {
					shift := 1
					if s < t {
						shift = -1
					}
					b.From(v.at[t])
					if v.at[t+shift] == nil {
						v.at[t+shift] = b.Add(graph.Permute{Shift: shift, Group: group}, v.at[t])
					}
					t += shift
				}
				to[m] = v.at[s]
				continue
			}
			if v := handed[m.Name]; v != nil && graph.IsSource(m.Op) { // parts of all microbatches
				part := v.at[v.from]
				axis, parts := joinAxis(part.Type, m.Type)
				if !slices.ContainsFunc(g.Mesh, func(a graph.MeshAxis) bool { return a.Name == graph.Microbatch }) {
					g.Mesh = append(g.Mesh, graph.MeshAxis{Name: graph.Microbatch, Size: parts})
				}
				b.From(part)
				to[m] = b.Add(graph.AllGather{Axis: axis, Group: graph.Group{Over: graph.Microbatch, Parts: parts}}, part)
				j.At[to[m].ID] = s
				continue
			}
			if graph.IsSource(m.Op) && sources[m.Name] != nil {
				to[m] = sources[m.Name]
				continue
			}
			args := make([]*graph.Node, len(m.Args))
			for i, a := range m.Args {
				args[i] = to[a]
			}
			k := b.Add(m.Op, args...)
			k.Like(m)
			j.At[k.ID] = s
			if to[m] = k; graph.IsSource(m.Op) {
				k.Sharding = Staged(m.Sharding)
				sources[m.Name] = k
			}
			if err := b.Err(); err != nil {
				return fmt.Errorf("drawing %s: %w", m.Where(), err)
			}
		}
		for _, o := range of.Outputs {
			if kind == update {
				g.Outputs = append(g.Outputs, graph.Output{Name: o.Name, Node: to[o.Node]})
			} else {
				handed[o.Name] = &given{map[int]*graph.Node{s: to[o.Node]}, s}
			}
		}
		for _, u := range of.Updates {
			if t := to[u.Target]; !updated[t] { // several stages update numbers alike
				updated[t] = true
				g.Updates = append(g.Updates, graph.Update{Target: t, Value: to[u.Value]})
			}
		}
		return nil
	}
	for kind := range Kinds {
		for s := range n {
			if kind == backward {
				s = n - 1 - s
			}
			if err := add(s, kind); err != nil {
				return nil, err
			}
		}
	}
	return j, nil
}

// Staged is a sharding over the mesh of a stage's participants as one over the mesh of all, whose first axis is the stages.
func Staged(s graph.Sharding) graph.Sharding {
	for d := range s.Split {
		s.Split[d] <<= 1
	}
	return s
}

// joinAxis is the axis along which parts follow one another in a whole value, and how many there are.
func joinAxis(part, whole graph.Type) (axis, parts int) {
	for d := range whole.Shape.Rank() {
		if n := part.Shape.At(d); n != whole.Shape.At(d) {
			return d, whole.Shape.At(d) / max(n, 1)
		}
	}
	return 0, 1
}
