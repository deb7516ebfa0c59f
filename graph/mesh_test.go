package graph_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
)

func meshOf(t *testing.T, text string) graph.Mesh {
	t.Helper()
	m, err := graph.ParseMesh(text)
	if err != nil {
		t.Fatal(err)
	}
	if m.String() != text {
		t.Errorf("mesh %q is written as %q", text, m)
	}
	return m
}

func TestParseMesh(t *testing.T) {
	for text, want := range map[string]string{
		"data":                                "want axes with their sizes",
		"data=x":                              "want axes with their sizes",
		"data=0":                              "want at least 1",
		"data=2,data=3":                       "two axes",
		"1=2":                                 "begins with a letter",
		"_=2":                                 "cannot be named",
		"a=256,b=256,c=2":                     "at most 65536 participants",
		"a=1,b=1,c=1,d=1,e=1,f=1,g=1,h=1,i=1": "want at most 8",
	} {
		if _, err := graph.ParseMesh(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("mesh %q: error %v, want %q", text, err, want)
		}
	}
	if m := meshOf(t, ""); m.Size() != 1 {
		t.Errorf("the empty mesh has %d participants", m.Size())
	}
}

func TestMeshRanks(t *testing.T) {
	m := meshOf(t, "a=2,b=3,c=2")
	for _, c := range []struct {
		axes  string
		rank  int
		ranks []int
		place int
	}{
		{"a", 4, []int{4, 10}, 0}, {"b", 4, []int{0, 2, 4}, 2}, {"c", 5, []int{4, 5}, 1},
		{"a+c", 9, []int{2, 3, 8, 9}, 3}, {"a+b+c", 7, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, 7},
	} {
		axes, err := m.Axes(c.axes)
		if err != nil || m.Names(axes) != c.axes {
			t.Fatalf("%s: %v, %q", c.axes, err, m.Names(axes))
		}
		if ranks, place := m.Ranks(axes, c.rank); !slices.Equal(ranks, c.ranks) || place != c.place {
			t.Errorf("along %s with %d: %v, place %d", c.axes, c.rank, ranks, place)
		}
	}
	for _, bad := range []string{"d", "a+a", ""} {
		if _, err := m.Axes(bad); err == nil {
			t.Errorf("axes %q are accepted", bad)
		}
	}
}

// TestPartJoin cuts random tensors into the parts of all participants and joins them again.
func TestPartJoin(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	m := meshOf(t, "a=2,b=3")
	for range 50 {
		dims := make([]int, r.IntN(4))
		for i := range dims {
			dims[i] = []int{1, 2, 6, 12}[r.IntN(4)]
		}
		x := graph.NewTensor(graph.TypeOf([]graph.DType{graph.F32, graph.Bool, graph.BF16, graph.I64}[r.IntN(4)], dims...))
		for i := range x.Type.Shape.Elems() {
			x.SetFloat(i, float64(r.IntN(50)))
		}
		s := graph.Replicated
		for a := range m {
			if len(dims) > 0 {
				next := s
				next.Split[r.IntN(len(dims))] |= 1 << a
				if next.Check(m, x.Type.Shape) == nil {
					s = next
				}
			}
		}
		back := graph.NewTensor(x.Type)
		for rank := range m.Size() {
			part, err := s.Part(m, x, rank)
			if err != nil {
				t.Fatal(err)
			}
			if s.Whole(m, part.Type.Shape) != x.Type.Shape {
				t.Errorf("%v is no part of %v", part.Type, x.Type)
			}
			if err := s.Join(m, back, part, rank); err != nil {
				t.Fatal(err)
			}
		}
		if !back.Equal(x) {
			t.Errorf("%v split as %s is not joined again", x.Type, s.Text(m, len(dims)))
		}
	}
	x := graph.NewTensor(graph.TypeOf(graph.F32, 4, 4))
	s, err := m.SplitAlong("b", "_")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Part(m, x, 0); err == nil || !strings.Contains(err.Error(), "not a multiple of the 3 participants of b") {
		t.Errorf("error %v", err)
	}
	if err := graph.Replicated.Join(m, x, graph.NewTensor(graph.TypeOf(graph.F32, 4)), 0); err == nil {
		t.Error("a part of another type is accepted")
	}
}

const meshed = `fusec graph 3 "linear" {
  mesh data=2 tensor=4
  x = input : f32[64,784] split [data,_]
  w = param : f32[784,512] split [_,tensor]
  v = state : f32[8,512] split [data+tensor,_]
  %3 h = matmul x w : f32[64,512] backward
  %4 c = reduce_scatter[fn=sum axis=0 over="data+tensor" parts=8] h : f32[8,512]
  %5 d = part[axis=1 over=tensor parts=4] c : f32[8,128]
  output h = d
  update v = c
}
`

func TestMeshText(t *testing.T) {
	g, err := graph.Parse("m.graph", []byte(meshed), nil)
	if err != nil {
		t.Fatal(err)
	}
	text := graph.Print(g)
	again, err := graph.Parse("m.graph", []byte(text), nil)
	if err != nil {
		t.Fatal(err, text)
	}
	if err := graph.Equal(g, again); err != nil {
		t.Error(err)
	}
	for _, line := range strings.Split(meshed, "\n")[:5] {
		if !strings.Contains(text, strings.TrimSpace(line)) {
			t.Errorf("no %q in\n%s", line, text)
		}
	}
	other, _ := g.Clone()
	if !graph.SameStructure(g, other) || graph.StructureHash(g) != graph.StructureHash(other) {
		t.Error("a clone has another structure")
	}
	other.Nodes[0].Sharding = graph.Replicated
	if graph.SameStructure(g, other) || graph.Equal(g, other) == nil {
		t.Error("a sharding is no part of the structure")
	}
	other, _ = g.Clone()
	other.Mesh = other.Mesh[:1]
	if graph.SameStructure(g, other) || graph.Equal(g, other) == nil {
		t.Error("the mesh is no part of the structure")
	}
	parts := strings.Replace(strings.Replace(meshed, "tensor=4\n", "tensor=4 parts\n", 1), "f32[64,784] split", "f32[63,784] split", 1)
	parts = strings.Replace(strings.Replace(parts, "f32[64,512]", "f32[63,512]", 1), "%4 c = reduce_scatter[fn=sum axis=0",
		"%4 c = reduce_scatter[fn=sum axis=1", 1)
	parts = strings.NewReplacer("h : f32[8,512]", "h : f32[63,64]", "c : f32[8,128]", "c : f32[63,16]", "  update v = c\n",
		"").Replace(parts)
	p, err := graph.Parse("p.graph", []byte(parts), nil)
	if err != nil || !p.Parts {
		t.Fatal(err)
	}
	if again, err = graph.Parse("p.graph", []byte(graph.Print(p)), nil); err != nil || graph.Equal(p, again) != nil {
		t.Errorf("parts are not read again: %v", err)
	}
}

func TestMeshTextErrors(t *testing.T) {
	head := "fusec graph 3 {\n"
	for text, want := range map[string]string{
		"fusec graph 2 {\n mesh data=2\n}":                                            "2:2: mesh is of version 3",
		head + "mesh\n}":                                                              "expected an axis with its size",
		head + "mesh data=2 data=2\n}":                                                "two axes",
		head + "mesh data=x\n}":                                                       "the number of participants along data",
		head + "mesh data=2\nmesh data=2\n}":                                          "a second mesh",
		head + "x = input : f32[2]\nmesh data=2\n}":                                   "before the nodes",
		head + "mesh data=2\nx = input : f32[3] split [data]\n}":                      "3:20: axis 0 of [3] is not a multiple",
		head + "mesh data=2\nx = input : f32[2] split [rows]\n}":                      "no axis \"rows\"",
		head + "mesh data=2\nx = input : f32[2] split [data,_]\n}":                    "a split of 2 axes",
		head + "mesh data=2\nx = input : f32[2,2] split [data,data]\n}":               "used twice",
		head + "mesh data=2\nx = input : f32[2] split data\n}":                        "expected a list such as [data,_]",
		head + "mesh data=2\nx = input : f32[2]\ny = copy x : f32[2] split [data]\n}": "stated of inputs",
		head + "x = input : f32[2]\ny = all_gather[axis=0] x : f32[2]\n}":             "parts is from 1",
		head + "x = input : f32[2]\ny = all_gather[axis=1 parts=2] x\n}":              "axis 1 of a tensor of rank 1",
		head + "x = input : f32[3]\ny = reduce_scatter[fn=sum axis=0 parts=2] x\n}":   "not a multiple of 2 participants",
		head + "x = input : f32[3]\ny = reduce_scatter[fn=prod axis=0 parts=3] x\n}":  "not a reduction of a group",
		head + "x = input : f32[4]\ny = all_to_all[split=0 join=1 parts=2] x\n}":      "axis 1 of a tensor of rank 1",
		head + "x = input : f32[4]\ny = part[axis=0 parts=99999999] x\n}":             "parts is from 1",
		head + "x = input : f32[4]\ny = broadcast_from[root=2 parts=2] x\n}":          "root 2 of 2 participants",
		head + "x = input : f32[4]\ny = permute[shift=1] x\n}":                        "parts is from 1",
		head + "x = input : f32[4]\ny = all_reduce[fn=sum parts=-1] x\n}":             "parts is from 1",
	} {
		if _, err := graph.Parse("m.graph", []byte(text), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\nerror %v, want %q", text, err, want)
		}
	}
}

// TestLinkBytes has the counts of algorithms that send the least.
func TestLinkBytes(t *testing.T) {
	four := graph.Group{Parts: 4}
	for op, want := range map[graph.Op]int64{
		graph.AllReduce{Group: four}: 2 * 48, graph.ReduceScatter{Group: four}: 48, graph.AllGather{Group: four}: 192,
		graph.AllToAll{Join: 1, Group: four}: 48, graph.Part{Group: four}: 0, graph.Permute{Shift: 1, Group: four}: 64,
		graph.BroadcastFrom{Group: four}: 64, graph.Copy{}: 0,
	} {
		b := graph.NewBuilder("")
		n := b.Add(op, b.Input("x", graph.TypeOf(graph.F32, 4, 4)))
		if err := b.Err(); err != nil {
			t.Fatal(err)
		}
		if got := graph.LinkBytes(n, 4); got != want {
			t.Errorf("%v sends %d bytes, want %d", op, got, want)
		}
		if got := graph.LinkBytes(n, 1); got != 0 {
			t.Errorf("%v sends %d bytes alone", op, got)
		}
	}
	m := meshOf(t, "a=2,b=2")
	for g, want := range map[graph.Group]string{{}: "15 <nil>", {Over: "a", Parts: 2}: "1 <nil>",
		{Over: "a", Parts: 4}: "0 a group of 4"} {
		axes, err := g.Axes(m)
		if want == "15 <nil>" {
			want = "3 <nil>"
		}
		if got := fmt.Sprint(axes, " ", err); !strings.HasPrefix(got, want) {
			t.Errorf("group %v: %s, want %s", g, got, want)
		}
	}
}
