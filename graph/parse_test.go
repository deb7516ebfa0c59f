package graph_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

func TestParseErrors(t *testing.T) {
	for _, c := range []struct{ src, want string }{
		{"", "1:1: expected a graph, which begins with: fusec graph 3, found the end of the file"},
		{"\n  hello", "2:3: expected a graph, which begins with: fusec graph 3, found hello"},
		{"fusec graph 1 {\n  x = input : f32\n  y = unary[fn=neg] x : f32 backward\n}",
			"3:29: a phase is of version 2 of the text form, and the file is of version 1"},
		{"fusec graph 1 {\n  x = input : f32\n  gradient g = x by x\n}",
			"3:3: gradient is of version 2 of the text form, and the file is of version 1"},
		{"fusec graph 1 {\n  w = param : f32\n  optimiser sgd[rate=1]\n  step w = w\n}", "3:3: optimiser is of version 2"},
		{"fusec graph 4 {", "1:13: the file has version 4 of the text form; this program reads versions up to 3"},
		{"fusec graph 0 {", "1:13: expected the version of the text form, such as 3, found 0"},
		{"fusec graph x {", "1:13: expected the version of the text form, such as 3, found x"},
		{"fusec graph 1 \"x\"", "1:18: expected '{', found the end of the file"},
		{"fusec graph 1 { x", "1:17: expected the end of the line, found x"},
		{"fusec graph 1 {\n", "2:1: expected '}' for the '{' of line 1, found the end of the file"},
		{"fusec graph 1 {\n} x", "2:3: expected the end of the line, found x"},
		{"fusec graph 1 {\n}\nx", "3:1: expected the end of the file, found x"},

		{":", "5:1: expected a node, output, update or '}', found ':'"},
		{"h matmul", "5:3: expected '=', found matmul"},
		{"h = ", "5:5: expected an operation, found the end of the line"},
		{"h = 'x'", `5:5: expected an operation, found unexpected character '\''`},
		{"h = mull x x", `5:5: unknown operation "mull"`},
		{"h = mul x x", `5:5: unknown operation "mul"; as a function it is written binary[fn=mul]`},
		{"h = max x x", `written binary[fn=max] or reduce[fn=max] or pool[fn=max]`},
		{"\ufeffh = mull x x", `5:1: expected a node, output, update or '}', found unexpected character '\ufeff'`},
		{"h = matmul x : f32[2]", "5:14: expected an operand, found ':'; matmul takes 2 operands: a, b"},
		{"h = matmul x y y", "5:16: expected ':' or the end of the line, found operand y; matmul takes 2 operands: a, b"},
		{"h = copy x y", "found operand y; copy takes 1 operand: x"},
		{"h = concat[axis=0]", "5:19: expected an operand, found the end of the line; concat takes at least 1 operand: x..."},
		{"h = matmul x z", "5:14: z is not defined above"},
		{"h = matmul x %7", "5:14: %7 is not defined above"},
		{"h = copy h", "5:10: h is not defined above"},
		{"h = matmul x 7", "5:14: expected an operand, found 7"},
		{"x = input : f32", "5:1: x is defined twice, first in line 2; nodes that share a name need IDs"},
		{"%1 = copy x", "5:1: %1 is defined twice, first in line 3"},
		{"%9 x = input : f32", `5:1: two sources are named "x"`},
		{"%9 x = copy x\nh = copy x", "6:10: several nodes are named x; write the ID of the one that is meant"},
		{"%99999999999 = copy x", "5:1: ID %99999999999 is larger than 1073741824"},
		{"h = copy %99999999999", "5:10: ID %99999999999 is larger than 1073741824"},
		{"%1073741824 = copy x\nh = copy x", "6:1: no ID up to 1073741824 is left"},
		{"% = copy x", "5:1: expected a node, output, update or '}', found expected digits after '%'"},
		{"= input : f32", "5:1: an input needs a name"},
		{`"a = copy x`, "5:1: expected a node, output, update or '}', found string without an end"},
		{`"\q" = copy x`, "found string with an unknown escape"},
		{"h = copy x extra", "found operand extra"},
		{"h = copy x : f32[2,3] y", "5:23: expected a phase (forward, backward, optimiser) or the end of the line, found y"},

		{"h = copy x : f32[2,4]", `5:14: "h" is f32[2,3] by its operands, not f32[2,4]`},
		{"h = copy x : f8", `5:14: unknown element type "f8"`},
		{"h = copy x :", "5:13: expected a type such as f32[2,3], found the end of the line"},
		{"h = copy x : f32[2 3]", "5:20: expected ',', found 3"},
		{"h = copy x : f32[2,:]", "5:20: expected a number, found ':'"},
		{"h = copy x : f32[a]", "5:14: expected an integer, found a"},
		{"h = input : f32[1,1,1,1,1,1,1,1,1]", "5:13: a list of 9 values: there are at most 8 axes"},
		{"h = input : f32[-1]", "5:13: dimension 0 of shape [-1] is negative"},
		{"h = input : f32[1048576,1048577]", "5:13: shape [1048576,1048577] has more than 1099511627776 elements"},
		{"h = input", "5:5: expected ':' and a type after input, which has no other way to know it"},
		{"h = matmul x x", `5:5: matmul of ("x" f32[2,3], "x" f32[2,3]): contracts 3 with 2 elements`},

		{"h = softmax x", `5:5: softmax needs the attribute "axis"`},
		{"h = softmax[axis] x", "5:17: expected '=', found ']'"},
		{"h = softmax[axis=] x", "5:18: expected a value, found ']'"},
		{"h = softmax[axis=x] x", `5:18: attribute "axis" of softmax: expected an integer, found x`},
		{"h = softmax[axis=[0]] x", "expected an integer, found [0]"},
		{"h = softmax[axis=0 axis=1] x", `5:25: attribute "axis" is given twice`},
		{"h = softmax[dim=0] x", `5:17: softmax has no attribute "dim" (it has axis)`},
		{"h = copy[dim=0] x", `copy has no attribute "dim" and takes none`},
		{"h = softmax[=0] x", "5:13: expected an attribute or ']', found '='"},
		{"h = unary[fn=foo] x", `5:14: attribute "fn" of unary: unknown name "foo"`},
		{"h = unary[fn=relu at_zero=up] x", `attribute "at_zero" of unary: unknown name "up"`},
		{"h = unary[fn=tanh at_zero=right] x", "tanh has no slope at 0 to choose"},
		{"h = unary[fn=elu alpha=x] x", "expected a number, found x"},
		{"h = unary[fn=elu alpha=nan.0] x", "expected the bits of a NaN, found nan.0"},
		{"h = unary[fn=elu alpha=1e999] x", "1e999 is too large for f64"},
		{"h = matmul[trans_a=1] x y", "expected true or false, found 1"},
		{"h = transpose[perm=1] x", "expected a list such as [1,2], found 1"},
		{"h = transpose[perm=[1,b]] x", "expected an integer, found b"},
		{"h = reshape[shape=1] x", "expected a list such as [1,2], found 1"},
		{"h = transpose[perm=[1,0] x", "5:27: expected '=', found the end of the line"},
		{`h = host[name="\z"] : f32`, "string with an unknown escape"},

		{"h = const : f32", "5:5: const needs one attribute, value or weights"},
		{"h = const[value=1]", "5:5: expected ':' and a type after const"},
		{"h = const[value=x] : f32", "5:17: expected a number, found x"},
		{"h = const[value=1e39] : f32", "1e39 is too large for f32"},
		{"h = const[value=nan.1] : f32", "expected the bits of a NaN"},
		{"h = const[value=1.5] : i32", "expected a number of i32, found 1.5"},
		{"h = const[value=3000000000] : i32", "expected a number of i32, found 3000000000"},
		{"h = const[value=maybe] : bool", "expected true or false, found maybe"},
		{"h = const[value=1] : f32[1]", "expected a list such as [1,2], found 1"},
		{"h = const[value=[1,2]] : f32[3]", "2 values for a constant of type f32[3]"},
		{"h = const[value=[1]] : f32[1099511627776]", "1 values for a constant"},
		{`h = const[weights="w"] : f32`, `5:19: no weight "w"`},
		{`h = const[weights=[1]] : f32`, "expected the name of a weight, found '['"},
		{`h = const[elems=1] : f32`, `const has no attribute "elems" (it has value, weights)`},

		{"h = copy x @", `5:13: expected a position such as "model.go:88", found the end of the line`},
		{"h = copy x @ model.go", "expected a position"},

		{"output", "5:7: expected the output's name, found the end of the line"},
		{"output y", "5:9: expected '=', found the end of the line"},
		{"output y =", "5:11: expected an operand, found the end of the line"},
		{"output y = x\noutput y = x", `6:8: two outputs are named "y"`},
		{"output y = x x", "expected the end of the line, found x"},
		{"update", "5:7: expected an operand"},
		{"update s", "5:9: expected '='"},
		{"update s = z", "z is not defined above"},
		{"update x = x", `5:1: update of "x", which is neither state nor parameter`},
		{"update s = x", `5:1: update of "s" of type f32[] with "x" of type f32[2,3]`},
		{"update s = s\nupdate s = s", `6:1: "s" is updated twice`},

		{"note", "5:5: expected the kind of the note, found the end of the line"},
		{"note hint \"text\"", `5:6: kind of a note: unknown name "hint"`},
		{"note remark topic \"text\"", `5:6: remark with the topic "topic": remarks have no topic`},
		{"note divergence \"text\"", `5:6: divergence with the topic "": remarks have no topic, and other notes need one`},
		{"note divergence 1st \"text\"", `topic "1st" of a note is not a word`},
		{"note remark text", "remarks have no topic"},
		{"note imitation topic x", "5:22: expected the text of the note, in quotes, found x"},
		{"note remark \"text\" z", "z is not defined above"},
		{"note remark \"text\" x x", "expected the end of the line, found x"},
		{"h = fusion[anchor=none kind=linear] x {\nnote remark \"text\"\n}", "6:1: a fusion's body has no notes"},

		{"h = fusion[anchor=none kind=linear] x", "5:38: expected '{' and the fusion's body, found the end of the line"},
		{"h = fusion[anchor=none kind=linear] x {\n}", `5:5: fusion of ("x" f32[2,3]): body has 0 inputs for 1 operands`},
		{"h = fusion[anchor=none kind=linear] {\np = param : f32\noutput y = p\n}", "6:5: a fusion's body holds only inputs"},
		{"h = fusion[anchor=none kind=linear body=x] {\n}", "expected the body's name in quotes, found x"},
		{"h = fusion[anchor=none kind=linear] x {\na = foo\n} : f32", `6:5: unknown operation "foo"`},
	} {
		src := c.src
		if !strings.HasPrefix(src, "fusec") && src != "" && !strings.HasPrefix(src, "\n") {
			src = "fusec graph 1 {\nx = input : f32[2,3]\ny = param : f32[3,2]\ns = state : f32\n" + src + "\n}\n"
		}
		_, err := graph.Parse("m.graph", []byte(src), nil)
		if _, marked := graph.Parse("m.graph", []byte("\ufeff"+src), nil); fmt.Sprint(err) != fmt.Sprint(marked) {
			t.Errorf("%q with a byte order mark: %v", c.src, marked)
		}
		if err == nil {
			t.Errorf("%q: no error, want %q", c.src, c.want)
			continue
		}
		first, _, _ := strings.Cut(err.Error(), "\n")
		if !strings.HasPrefix(first, "m.graph:") || !strings.Contains(first, c.want) {
			t.Errorf("%q:\ngot  %s\nwant %s", c.src, first, c.want)
		}
		var pe *graph.ParseError
		if !errors.As(err, &pe) || errors.Unwrap(pe) == nil {
			t.Errorf("%q: error of type %T", c.src, err)
		}
	}
}

// TestSeveralErrors has errors in several lines; a line that reads a wrong one is not reported for that.
func TestSeveralErrors(t *testing.T) {
	src := `fusec graph 1 {
  x = input : f32[2]
  a = foo x
  b = copy a
  c = fusion[anchor=none kind=linear] x {
    %0 = input : f32[2]
    %1 = bar %0
  }
  d = relu x {
    %0 = nonsense {
    }
  }
  e = binary[fn=add] c d
  f = copy missing
  output y = e
  update z = f
}`
	_, err := graph.Parse("m.graph", []byte(src), nil)
	var got []string
	for _, line := range strings.Split(fmt.Sprint(err), "\n") {
		got = append(got, strings.Join(strings.SplitN(line, ":", 4)[1:3], ":"))
	}
	if want := "[3:7 7:10 9:7 14:12 16:10]"; fmt.Sprint(got) != want {
		t.Errorf("errors at %v, want %s:\n%v", got, want, err)
	}

	src = "fusec graph 1 {\n" + strings.Repeat("x\n", 100) + "}"
	_, err = graph.Parse("m.graph", []byte(src), nil)
	if n := strings.Count(fmt.Sprint(err), "\n"); n != 9 {
		t.Errorf("%d errors, want 10", n+1)
	}
}

func TestBounds(t *testing.T) {
	nested := func(depth int) string {
		return "fusec graph 1 {\n" + strings.Repeat("f = fusion[anchor=none kind=linear] {\n", depth) +
			"c = const[value=1] : f32\noutput y = c\n" + strings.Repeat("}\noutput y = f\n", depth) + "}"
	}
	if _, err := graph.Parse("m.graph", []byte(nested(4)), nil); err != nil {
		t.Errorf("nesting of 4: %v", err)
	}
	large := "fusec graph 1 {\n"
	for i := range 3 {
		large += fmt.Sprintf("x%d = input : f32[549755813888]\n", i)
	}
	nodes := "fusec graph 1 {\nx = input : f32\n" + strings.Repeat("=copy x\n", graph.MaxNodes)
	for want, src := range map[string]string{
		"nested deeper than 4":        nested(5),
		"nested deeper":               nested(10000),
		"the line has more than":      "fusec graph 1 {\n#" + strings.Repeat("x", graph.MaxLine) + "\n}",
		"the file has":                strings.Repeat("\n", graph.MaxText+1),
		"more than 262144 nodes":      nodes,
		"the nodes have more than 10": large,
	} {
		_, err := graph.Parse("m.graph", []byte(src), nil)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %.200v, want one with %q", err, want)
		}
	}
}

func TestTruncatedFiles(t *testing.T) {
	src := graphtest.ReadFile(t, "testdata/fusion.graph")
	for n := range len(src) - 1 {
		if _, err := graph.Parse("m.graph", src[:n], nil); err == nil {
			t.Errorf("no error in the first %d of %d bytes", n, len(src))
		}
	}
}

func TestLookupIn(t *testing.T) {
	src := []byte("fusec graph 1 {\nc = const[weights=w] : f32[2]\noutput y = c\n}")
	m := map[string]*graph.Tensor{"w": graph.NewTensor(graph.TypeOf(graph.F32, 2))}
	if _, err := graph.Parse("m.graph", src, graph.LookupIn(m)); err != nil {
		t.Error(err)
	}
	m["w"] = graph.NewTensor(graph.TypeOf(graph.F32, 3))
	if _, err := graph.Parse("m.graph", src, graph.LookupIn(m)); err == nil ||
		!strings.Contains(err.Error(), `"w" is f32[3], not f32[2]`) {
		t.Errorf("wrong type: %v", err)
	}
}

// TestOriginsRead reads what Print writes of every list of origins: with and without names and positions, and with names
// that are words of the text form.
func TestOriginsRead(t *testing.T) {
	all := []graph.Origin{{}, {Name: "h"}, {Name: "other"}, {Name: "for"}, {Pos: "a.go:1"}, {Name: "h", Pos: "a.go:2"},
		{Name: "for", Pos: "a.go:3"}, {Name: "output", Pos: "\"\n"}, {Name: "@", Pos: "for"}}
	n := len(all)
	for i := range n * n * n {
		b := graph.NewBuilder("origins")
		h := b.Input("h", graph.TypeOf(graph.F32, 2))
		b.Output("y", h)
		g := graphtest.Graph(t, b)
		h.Origin = []graph.Origin{all[i%n], all[i/n%n], all[i/n/n]}
		text := graph.Print(g)
		back, err := graph.Parse("m.graph", []byte(text), nil)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for k, o := range back.Nodes[0].Origin {
			want := h.Origin[k]
			if want.Pos == "" {
				o.Pos = "" // that of the line
			}
			if o != want {
				t.Errorf("origins %q became %q", h.Origin, back.Nodes[0].Origin)
			}
		}
		roundTrip(t, back)
	}
}

// TestIDsFarApart reads nodes with IDs that no array can have, in a body as well.
func TestIDsFarApart(t *testing.T) {
	src := `fusec graph 1 {
  x = input : f32[2]
  %1000000000 = unary[fn=tanh] x : f32[2]
  c = fusion[anchor=none kind=elementwise] %1000000000 {
    %1000000000 = input : f32[2]
    %1000000001 = unary[fn=exp] %1000000000
    output "" = %1000000001
  }
  output y = c
}`
	g, err := graph.Parse("m.graph", []byte(src), nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range g.Nodes {
		if n.ID != i {
			t.Errorf("node %d has ID %d", i, n.ID)
		}
		if f, ok := n.Op.(graph.Fusion); ok && f.Body.Nodes[1].ID != 1 {
			t.Errorf("the body's second node has ID %d", f.Body.Nodes[1].ID)
		}
	}
	roundTrip(t, g)
}

// FuzzParse: no input makes the parser panic, and what it reads is unchanged after printing and reading again.
func FuzzParse(f *testing.F) {
	files, err := filepath.Glob("testdata/*.graph")
	if err != nil || len(files) == 0 {
		f.Fatal("no files to begin with", err)
	}
	for _, file := range files {
		src, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(src)
	}
	f.Add([]byte("fusec graph 1 {\n h = input : f32[2] for h for other @ \"\" @ \"a.go:1\" for \"for\"\n output y = h\n}"))
	f.Add([]byte(trainingGraph))
	f.Add([]byte(
		"fusec graph 1 {\n c = const[weights=w] : f32[20]\n y = conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1] c c\n}"))
	weights := func(name string, t graph.Type) (*graph.Tensor, error) {
		if t.Shape.Elems() > 1000 {
			return nil, errors.New("too large")
		}
		return graph.NewTensor(t), nil
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		g, err := graph.Parse("m.graph", src, weights)
		if err != nil {
			return
		}
		roundTrip(t, g)
		for _, n := range g.Nodes {
			if c := graph.CostOf(n); c.ReadBytes < 0 || c.WriteBytes < 0 {
				t.Errorf("cost of %s is %v", n.Where(), c)
			}
		}
	})
}
