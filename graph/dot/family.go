package dot

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// minFamily is how many similar parameters of one fusion are needed to draw them as one box.
const minFamily = 3

// families finds, for each fusion, parameters that only it reads, of one type and with names that differ in a number:
// for example the weights of an MoE's experts. It maps each of them to the whole family, in the order of the graph.
func (b *builder) families() map[*graph.Node][]*graph.Node {
	type kind struct {
		reader *graph.Node
		typ    graph.Type
		name   string // with numbers left out
	}
	alike := make(map[kind][]*graph.Node)
	for _, n := range b.graph.Nodes {
		if !b.solelyRead(n) || n.Name == "" {
			continue
		}
		if reader := b.readers[n][0]; isFusion(reader) {
			k := kind{reader, n.Type, strings.Map(func(r rune) rune {
				if notDigit(r) {
					return r
				}
				return -1
			}, n.Name)}
			alike[k] = append(alike[k], n)
		}
	}
	of := make(map[*graph.Node][]*graph.Node)
	for _, list := range alike {
		if len(list) < minFamily || !strings.Contains(namePattern(list[0].Name, list[len(list)-1].Name), "…") {
			continue
		}
		for _, n := range list {
			of[n] = list
		}
	}
	return of
}

func isFusion(n *graph.Node) bool {
	_, ok := n.Op.(graph.Fusion)
	return ok
}

// family draws one box for the first parameter of a family; the others use the same box.
func (b *builder) family(n *graph.Node, all []*graph.Node) {
	if first := all[0]; n != first {
		b.values[n] = b.values[first]
		return
	}
	tips := make([]string, len(all))
	for i, p := range all {
		tips[i] = clean(p.Name) + " " + p.Type.String()
	}
	name := namePattern(clean(n.Name), clean(all[len(all)-1].Name))
	x := b.scene.box(&box{key: fmt.Sprintf("node%d", n.ID), look: lookParam, inside: b.frame(b.reps.in[n]),
		tooltip: strings.Join(tips, "\n"),
		lines:   []textLine{{short(name, 32), roleOp}, {fmt.Sprintf("%d × %v", len(all), n.Type), roleType}}})
	b.values[n] = []value{{box: x, typ: n.Type}}
}
