package cuda

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// primitives is a body whose composites are decomposed.
func primitives(body *graph.Graph) (*graph.Graph, error) {
	g := graph.New(body.Name)
	b := graph.Extend(g)
	at := map[*graph.Node]*graph.Node{}
	for _, n := range body.Nodes {
		args := make([]*graph.Node, len(n.Args))
		for i, a := range n.Args {
			args[i] = at[a]
		}
		if info := graph.InfoOf(n.Op); info.Decompose != nil {
			at[n] = info.Decompose(b.From(n), n.Op, args)[0]
		} else {
			at[n] = b.From(n).Add(n.Op, args...)
		}
		if b.Err() == nil {
			at[n].Name = n.Name
		}
	}
	for _, o := range body.Outputs {
		b.Output(o.Name, at[o.Node])
	}
	return g, b.Err()
}

// kept lists the variables of units that one stage makes and another reads: they are held in arrays, by name with their
// types. Largest is how many bytes of them a unit of one element holds at once.
func (b *printer) kept() (types map[string]string, largest int) {
	types = map[string]string{}
	made, last := map[string]stmt{}, map[string]int{}
	for _, s := range b.stmts {
		if s.name != "" && !s.fixed {
			made[s.name] = s
		}
		for _, u := range s.uses {
			if m, ok := made[u]; ok && m.stage != s.stage {
				types[u] = m.typ
				last[u] = max(last[u], s.stage)
			}
		}
	}
	for stage := range b.stage {
		bytes := 0
		for name := range types {
			if made[name].stage <= stage && stage < last[name] {
				bytes += laneBytes(types[name])
			}
		}
		largest = max(largest, bytes)
	}
	return types, largest
}

func laneBytes(typ string) int {
	if strings.Contains(typ, "double") || strings.Contains(typ, "i64") {
		return 8
	}
	return 4
}

// arrays declares what is kept, for U units.
func arrays(kept map[string]string, indent string) string {
	var b strings.Builder
	for _, name := range sorted(kept) {
		fmt.Fprintf(&b, "%s%s %s[U];\n", indent, kept[name], "k"+name[1:])
	}
	return b.String()
}

func sorted(kept map[string]string) []string {
	var l []string
	for name := range kept {
		l = append(l, name)
	}
	slices.SortFunc(l, func(x, y string) int {
		if len(x) != len(y) {
			return len(x) - len(y)
		}
		return strings.Compare(x, y)
	})
	return l
}

// before is the text of a stage that is the same for all units, without stores; once is its stores.
func (b *printer) before(stage int, indent string) string {
	return b.some(indent, func(s stmt) bool { return s.stage == stage && s.fixed && !s.store })
}

func (b *printer) once(stage int, indent string) string {
	return b.some(indent, func(s stmt) bool { return s.stage == stage && s.fixed && s.store })
}

func (b *printer) some(indent string, which func(stmt) bool) string {
	var t strings.Builder
	for _, s := range b.stmts {
		if which(s) {
			t.WriteString(indent + s.text + "\n")
		}
	}
	return t.String()
}

// unit is the text of a stage for unit number u, which takes what it needs of the arrays and leaves there what others
// need.
func (b *printer) unit(stage int, kept map[string]string, indent string) string {
	var t strings.Builder
	inside := func(s stmt) bool { return s.stage == stage && !s.fixed }
	made := map[string]bool{}
	taken := map[string]string{}
	for _, s := range b.stmts {
		if !inside(s) {
			continue
		}
		made[s.name] = true
		for _, name := range s.uses {
			if typ, ok := kept[name]; ok && !made[name] {
				taken[name] = typ
			}
		}
	}
	for _, name := range sorted(taken) {
		fmt.Fprintf(&t, "%sconst auto %s = k%s[u];\n", indent, name, name[1:])
	}
	for _, s := range b.stmts {
		if inside(s) {
			t.WriteString(indent + s.text + "\n")
		}
	}
	for _, s := range b.stmts {
		if _, ok := kept[s.name]; ok && inside(s) {
			fmt.Fprintf(&t, "%sk%s[u] = %s;\n", indent, s.name[1:], s.name)
		}
	}
	return t.String()
}

// forget drops what differs between units, so that a further stage writes it again.
func (b *printer) forget() {
	for i := range b.values {
		if v := &b.values[i]; v.kind != constant && !v.fixed {
			*v = value{}
		}
	}
}
