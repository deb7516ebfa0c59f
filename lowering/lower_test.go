package lowering

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
)

func f32(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }

// made builds a graph as the last pass would leave it.
// made is the graph that a function makes.
var made = graphtest.Built

// chain has every role, views, an operation with several results and an update.
func chain(b *graph.Builder) {
	x, w := b.Input("x", f32(4, 6)), b.Param("w", f32(6, 6))
	s := b.State("s", f32(6, 4))
	y := b.Add(graph.Copy{}, b.Transpose(b.MatMul(x, w, false, false), 1, 0))
	z := b.Named(b.Add(graph.Concat{Axis: 0}, y, s), "joined")
	b.Output("z", b.Reshape(z, 48))
	b.Output("c", b.Add(graph.Copy{}, b.Const(graph.Filled(f32(3), 2))))
	b.Update(s, b.Add(graph.Copy{}, y))
	i := b.Input("image", f32(2, 3))
	n := b.Add(graph.BatchNorm{Eps: 1, Momentum: 0.5, Train: true}, i, b.Param("g", f32(3)), b.Param("h", f32(3)),
		b.Param("m", f32(3)), b.Param("v", f32(3)))
	b.Output("norm", n)
	b.Output("variance", b.Named(b.Add(graph.Result{Index: 2}, n), "running"))
}

func TestLower(t *testing.T) {
	p, err := Lower(made(t, chain), "none")
	if err != nil {
		t.Fatal(err)
	}
	got := p.String()
	for _, want := range []string{
		`program "test" for none: 6 launches, arena 256 bytes (320 without sharing)`,
		`input    f32[4,6]            "x"`,
		`state    f32[6,4]            "s"`,
		`const    f32[3]`,
		`output   f32[48]             "z"`,
		`output   f32[3]              "variance"`,
		`1: matmul       b0[4,6] b1[6,6] → b3[4,6]  # %3, 288 flops, 336 bytes`,
		`2: copy         b3[6,4]+0/[1 6] → b4[6,4]`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the program lacks\n%s\n%s", want, got)
		}
	}
	if s := p.Sources(Param); len(s) != 5 || s[0].Name != "w" || p.Buffers[s[0].Buffer].Type != f32(6, 6) {
		t.Errorf("parameters %v", s)
	}
	if len(p.Updates) != 1 || p.Buffers[p.Updates[0].Target].Name != "s" || p.Buffers[p.Updates[0].Value].Role != Output {
		t.Errorf("updates %v", p.Updates)
	}
	tr := p.Trace()
	if tr.Target != "none" || len(tr.Launches) != len(p.Launches) || tr.ParamBytes != 4*(36+4*3+3) {
		t.Errorf("trace %+v", tr)
	}
	l := tr.Launches[2]
	if l.Kind != "concat" || l.Name != "joined" || strings.Join(tr.BufferNames(l.Reads), " ") != "b4 s" ||
		strings.Join(tr.BufferNames(l.Writes), " ") != "z" || len(l.Origin) != 1 {
		t.Errorf("launch %+v", l)
	}
}

// TestLowerKinds names fusions by what they are to the user.
func TestLowerKinds(t *testing.T) {
	body := graph.New("")
	b := graph.Extend(body)
	b.Output("0", b.Unary(graph.Exp, b.Add(graph.Input{Type: f32(4)})))
	g := made(t, func(b *graph.Builder) {
		x := b.Input("x", f32(4, 2))
		column := b.Reshape(b.Slice(x, 1, 1, 1, 1), 4)
		b.Output("y", b.Add(graph.Fusion{Anchor: graph.AnchorNone, Kind: graph.KindElementwise, Body: body}, column))
	})
	p, err := Lower(g, "none")
	if err != nil {
		t.Fatal(err)
	}
	l := p.Launches[0]
	if l.Kind() != "elementwise" || l.Args[0].String() != "b0[4]+1/[2]" {
		t.Errorf("%s of %v", l.Kind(), l.Args[0])
	}
	if l.Bytes != 2*4*4 {
		t.Errorf("%d bytes are touched, want the 4 elements read and the 4 written", l.Bytes)
	}
}

// TestLowerResultTwice reads one further result through two nodes.
func TestLowerResultTwice(t *testing.T) {
	g := made(t, func(b *graph.Builder) {
		vector := func(name string) *graph.Node { return b.Param(name, f32(3)) }
		n := b.Add(graph.BatchNorm{Eps: 1, Momentum: 0.5}, b.Input("x", f32(2, 3)), vector("g"), vector("h"), vector("m"), vector("v"))
		one, two := b.Add(graph.Result{Index: 1}, n), b.Add(graph.Result{Index: 1}, n)
		b.Output("y", b.Binary(graph.Add, one, two))
	})
	p, err := Lower(g, "none")
	if err != nil {
		t.Fatal(err)
	}
	if a := p.Launches[1].Args; a[0] != a[1] || a[0] != p.Launches[0].Results[1] {
		t.Errorf("operands %v of the sum, results %v", a, p.Launches[0].Results)
	}
}

// TestLowerRefuses: Lower refuses graphs that pass place has not prepared.
func TestLowerRefuses(t *testing.T) {
	for want, build := range map[string]func(b *graph.Builder){
		"strides cannot express it": func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Exp, b.Reshape(b.Transpose(b.Input("x", f32(4, 6)), 1, 0), 24)))
		},
		"operand %1 is not contiguous": func(b *graph.Builder) {
			b.Output("y", b.Unary(graph.Exp, b.Transpose(b.Input("x", f32(4, 6)), 1, 0)))
		},
		"is in memory of another value": func(b *graph.Builder) {
			b.Output("y", b.Input("x", f32(4, 6)))
		},
		"transpose %2": func(b *graph.Builder) {
			y := b.Unary(graph.Exp, b.Input("x", f32(4, 6)))
			b.Output("y", b.Transpose(y, 1, 0))
		},
		"input \"x\"": func(b *graph.Builder) {
			x := b.Input("x", f32(4, 6))
			b.Update(b.State("s", f32(4, 6)), x)
		},
	} {
		if _, err := Lower(made(t, build), "none"); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
	// A node that breaks its type rule, as only a pass with a mistake leaves one.
	g := made(t, func(b *graph.Builder) { b.Output("y", b.Unary(graph.Exp, b.Input("x", f32(4)))) })
	g.Nodes[1].Op = graph.MatMul{}
	if _, err := Lower(g, "none"); err == nil || !strings.Contains(err.Error(), "matmul takes 2 operands") {
		t.Errorf("error %v", err)
	}
	if _, err := Lower(g, "none", CopyUpdates(), nil); err == nil || !strings.Contains(err.Error(), "option 1 is nil") {
		t.Errorf("error %v", err)
	}
}

// TestLowerSliceAtRunTime launches a slice whose start is an operand.
func TestLowerSliceAtRunTime(t *testing.T) {
	p, err := Lower(made(t, func(b *graph.Builder) {
		x, start := b.Input("x", f32(4, 6)), b.Input("start", graph.TypeOf(graph.I64))
		b.Output("y", b.Add(graph.Slice{Axis: 0, Size: 2, Step: 1}, x, start))
	}), "none")
	if err != nil || len(p.Launches) != 1 || p.Launches[0].Kind() != "slice" {
		t.Fatalf("%v, %v", p, err)
	}
}

// TestBeside makes gradients of weights as soon as what they need is there, and keeps that for a while. What takes more
// memory than it reads stays where it is.
func TestBeside(t *testing.T) {
	trains := false
	backward := func(b *graph.Builder) {
		x := b.Input("x", f32(8, 8))
		var layers []*graph.Node
		for range 6 {
			x = b.MatMul(x, b.Param(fmt.Sprint("w", len(layers)), f32(8, 8)), false, false)
			layers = append(layers, x)
		}
		b.Output("x", b.Unary(graph.Tanh, x))
		for i := 1; i < len(layers); i++ {
			b.Output(fmt.Sprint("dw", i), b.MatMul(layers[i-1], layers[i], true, false))
		}
		far := b.Add(graph.Copy{}, b.Broadcast(b.Reduce(graph.Sum, layers[0], false, 0), graph.ShapeOf(32, 8)))
		b.Output("far", b.MatMul(far, layers[5], false, false))
		if trains {
			bias := b.Param("bias", f32(8))
			b.Update(bias, b.BinaryScalar(graph.Mul, bias, 0.5))
		}
	}
	kinds := func(opts ...Option) (s string, p *Program) {
		p, err := Lower(made(t, backward), "none", opts...)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range p.Launches {
			s += l.Kind() + fmt.Sprint(l.Args[0].Buffer, " ")
		}
		return s, p
	}
	plain, _ := kinds()
	if again, p := kinds(Beside(3)); again != plain || p.Trains() {
		t.Errorf("%s, and with Beside without a step %s", plain, again)
	}
	trains = true
	plain, _ = kinds()
	if again, _ := kinds(Beside(0)); again != plain {
		t.Errorf("%s, and with Beside(0) %s", plain, again)
	}
	got, p := kinds(Beside(3))
	if got == plain {
		t.Error(got)
	}
	written := make([]bool, len(p.Buffers))
	for i, l := range p.Launches {
		for _, v := range l.Args {
			if b := &p.Buffers[v.Buffer]; b.Role == Temp && !written[v.Buffer] {
				t.Errorf("launch %d reads what has not been made\n%v", i, p)
			} else if p.independent(i, 3) && b.Role == Temp && b.Last < min(i+3, len(p.Launches)-1) {
				t.Errorf("launch %d: its operand is kept until %d\n%v", i, b.Last, p)
			}
		}
		for _, v := range l.Results {
			written[v.Buffer] = true
		}
	}
}

// TestPlan places random lifetimes so that no two that meet share memory, in no more than the sum of all.
func TestPlan(t *testing.T) {
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := &Program{}
		for range 30 {
			p.Buffers = append(p.Buffers, Buffer{Role: Temp, Type: f32(r.IntN(300))})
		}
		for b := range p.Buffers { // each buffer is made by launch b and read by one a little later
			p.Launches = append(p.Launches, Launch{Results: []View{{Buffer: b}}})
			if from := b - r.IntN(6); from >= 0 && from != b {
				p.Launches[b].Args = []View{{Buffer: from}}
			}
		}
		plan(p, 0)
		for i, a := range p.Buffers {
			if a.Offset%64 != 0 || a.Offset+a.Type.Bytes() > p.ArenaBytes {
				t.Fatalf("seed %d: buffer %d of %d bytes at %d of %d", seed, i, a.Type.Bytes(), a.Offset, p.ArenaBytes)
			}
			for j, b := range p.Buffers[:i] {
				meet := a.First <= b.Last && b.First <= a.Last
				if meet && a.Offset < b.Offset+b.Type.Bytes() && b.Offset < a.Offset+a.Type.Bytes() {
					t.Fatalf("seed %d: buffers %d and %d share memory", seed, i, j)
				}
			}
		}
		if p.ArenaBytes > p.BufferBytes {
			t.Fatalf("seed %d: an arena of %d bytes for %d", seed, p.ArenaBytes, p.BufferBytes)
		}
	}
}
