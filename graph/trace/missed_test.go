package trace

import (
	"testing"

	"fusec/graph"
)

// program has a chain of launches, 1 to 4, whose values are vectors of 10 numbers; launch 5 reads what 2 makes, too. Launch n
// computes node n and writes buffer n; buffer 0 is the input.
func program() *Program {
	p := &Program{Buffers: []Buffer{{Role: "input", Type: graph.TypeOf(graph.F32, 10)}}}
	for i, reads := range [][]int{{0}, {1}, {2, 2}, {3}, {2}} {
		role := "temp"
		if i > 2 {
			role = "output"
		}
		p.Buffers = append(p.Buffers, Buffer{Role: role, Type: graph.TypeOf(graph.F32, 10)})
		p.Launches = append(p.Launches, Launch{Node: i + 1, Reads: reads, Writes: []int{i + 1}, Bytes: 80})
	}
	return p
}

func missed(pattern, reason string, nodes ...int) Miss {
	return Miss{Pattern: pattern, Reason: reason, Nodes: nodes, Joins: nodes}
}

// TestMissed groups misses by their cause, in the order of their weight, and tells what a program would save without them.
func TestMissed(t *testing.T) {
	shared := missed("linear", `"b" has 3 uses`, 2, 3) // launch 5 reads the value between them, too
	chain := missed("linear", `"a" has 2 uses`, 1, 2)
	again := missed("linear", `"c" has 7 uses`, 2, 1)     // the same launches
	apart := missed("row", "no row at model.go:12", 1, 3) // launch 2 stands between them
	one := missed("row", "no row at model.go:77", 4)
	unknown := missed("moe", "no experts", 17, 18)
	tr := &Trace{Program: program(), Stages: []Stage{{}, {Misses: []Miss{apart, unknown, shared, chain, one, again}}}}
	list := tr.Missed()
	if len(list) != 3 {
		t.Fatalf("%d groups: %+v", len(list), list)
	}
	for i, want := range []struct {
		pattern, cause string
		misses         int
		saves          Work
		counts         bool
	}{
		// Buffer 1 is neither written nor read, 80 bytes; 40 bytes of buffer 2, which launch 5 reads, are not read.
		{"linear", "# has # uses", 3, Work{Launches: 2, Bytes: 120}, true},
		{"row", "no row at #", 2, Work{}, false},
		{"moe", "no experts", 1, Work{}, false},
	} {
		g := list[i]
		if g.Stage != 1 || g.Pattern != want.pattern || g.Cause != want.cause || len(g.List) != want.misses || g.Saves != want.saves ||
			g.Counts != want.counts {
			t.Errorf("group %d is %+v, want %+v", i, g, want)
		}
	}
	if got := list[0].List[0].Saves; got != (Work{Launches: 1, Bytes: 40}) {
		t.Errorf("one of several readers saves %+v", got)
	}
	if got := list[1].List[0].Launches; len(got) != 2 || got[0] != 0 || got[1] != 2 {
		t.Errorf("launches %v", got)
	}
	tr.Program = nil
	for _, g := range tr.Missed() {
		if !g.Counts || g.Saves != (Work{}) {
			t.Errorf("without a program: %+v", g)
		}
	}
	tr.Program = program()
	for i := range tr.Program.Launches {
		tr.Program.Launches[i].Prepared = true
	}
	for _, g := range tr.Missed() {
		if g.Counts {
			t.Errorf("of launches that run once: %+v", g)
		}
	}
}
