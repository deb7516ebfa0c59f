package dot

import "fusec/graph"

// Kind is a group of launches and operations that have one colour in pictures and reports.
type Kind struct {
	Name   string   `json:"name"`
	Colour string   `json:"colour"` // #RRGGBB, on white paper
	Of     []string `json:"of"`     // names of kinds of launches, as in [trace.Launch], and of operations
}

// Kinds lists the kinds in the order of the legend.
func Kinds() []Kind {
	kinds := make([]Kind, len(looks))
	for i, l := range looks {
		kinds[i] = Kind{Name: l.name, Colour: l.colour, Of: []string{}}
		if i <= int(lookPool) {
			kinds[i].Of = append(kinds[i].Of, graph.Kind(i).String())
		}
	}
	for _, op := range graph.Ops() {
		if k := &kinds[lookOf(op.Proto)]; op.Name != "fusion" && !(len(k.Of) > 0 && k.Of[0] == op.Name) {
			k.Of = append(k.Of, op.Name)
		}
	}
	return kinds
}
