package body

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/kernels/ref/cases"
)

// parse reads a graph from a file's text whose last node is a fusion of the given anchor and body, and gives the fusion.
func parse(anchor, inputs, body string) (graph.Fusion, error) {
	var outside, args, inside strings.Builder
	for i, u := range strings.Fields(inputs) {
		fmt.Fprintf(&outside, "a%d = input : %s\n", i, u)
		fmt.Fprintf(&args, " a%d", i)
		fmt.Fprintf(&inside, "x%d = input : %s\n", i, u)
	}
	g, err := graph.Parse("m.graph",
		[]byte(fmt.Sprintf("fusec graph 1 {\n%sf = fusion[anchor=%s kind=elementwise]%s {\n%s%s\n}\noutput y = f\n}",
			&outside, anchor, &args, &inside, body)), nil)
	if err != nil {
		return graph.Fusion{}, err
	}
	return g.Nodes[len(g.Nodes)-1].Op.(graph.Fusion), nil
}

// operands describes contiguous operands and results of a fusion.
func operands(f graph.Fusion) (args, results []graph.Operand) {
	for _, n := range f.Body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			args = append(args, graph.Operand{DType: n.Type.DType, Layout: graph.Contiguous(n.Type.Shape)})
		}
	}
	for _, o := range f.Body.Outputs {
		results = append(results, graph.Operand{DType: o.Node.Type.DType, Layout: graph.Contiguous(o.Node.Type.Shape)})
	}
	return args, results
}

// TestText shows programs of each form.
func TestText(t *testing.T) {
	for _, tt := range []struct{ anchor, inputs, body, want string }{
		{"none", "f32[4,6] f32[6,4] f32", `
			v = transpose[perm=[1,0]] x1
			a = binary[fn=add] x0 v
			unused = unary[fn=exp] a
			b = binary[fn=mul] a x2
			c = reshape[shape=[24]] b
			output y = c
			output z = a`, `none over [4,6] in f32
  v0 = argument 0 [4,6]
  v1 = argument 1 [4,6]+0/[1 4]
  v2 = binary fn=add v0 v1
  v3 = argument 2 [4,6]+0/[0 0]
  v4 = binary fn=mul v2 v3
  result 0 [4,6] = v4
  result 1 [4,6] = v2
`},
		{"row", "f32[4,6] f32[6] f32[4]", `
			m = reduce[fn=mean axes=[1]] x0
			k = reshape[shape=[4,1]] m
			w = broadcast[shape=[4,6]] k
			d = binary[fn=sub] x0 w
			n = rms_norm[eps=0.1] d x1
			r = binary[fn=add] m x2
			s = reduce[fn=sum axes=[0]] n
			output y = r
			output z = n
			output s = s`, `row over [4,6] in f32, rows along [1]
  v0 = argument 0 [4,6]  # level 0
  v1 = reduce fn=mean axes=[1] v0  # level 1, one for each row
  v2 = binary fn=sub v0 v1  # level 1
  v3 = argument 1 [4,6]+0/[0 1]  # level 0
  v4 = rms_norm eps=0.1 v2 v3  # level 2
  v5 = argument 2 [4,6]+0/[1 0]  # level 0, one for each row
  v6 = binary fn=add v1 v5  # level 1, one for each row
  result 0 [4,6]+0/[1 0] = v6
  result 1 [4,6] = v4
  result 2 [6] = column sums of v4
`},
		{"matmul", "f32[4,3] f32[3,6] i64", `
			p = matmul x0 x1
			d = dropout[p=0.5] p x2
			s = reduce[fn=sum axes=[0] keep=true] d
			r = reshape[shape=[6]] s
			output y = d
			output s = r`, `matmul over [4,6] in f32
  operand 0 = argument 0 [4,3]
  operand 1 = argument 1 [3,6]
  v0 = matmul
  v1 = argument 2 [4,6]+0/[0 0]
  v2 = dropout p=0.5 v0 v1
  result 0 [4,6] = v2
  result 1 [1,6] = column sums of v2
`},
		{"conv", "f32[1,4,4,2] f32[1,1,2,3]", `
			c = conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1 layout=nhwc] x0 x1
			a = unary[fn=relu] c
			s = reduce[fn=sum axes=[0,1,2]] a
			output y = a
			output s = s`, `conv over [1,4,4,3] in f32
  operand 0 = argument 0 [1,4,4,2]
  operand 1 = argument 1 [1,1,2,3]
  v0 = conv2d
  v1 = unary fn=relu v0
  result 0 [1,4,4,3] = v1
  result 1 [3] = column sums of v1
`},
		{"conv", "f32[1,4,4,2] f32[1,1,2,3]", `
			c = conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1 layout=nhwc] x0 x1
			p = pool[fn=max kernel=[2,2] stride=[2,2] pad=[0,0,0,0] count_pad=false layout=nhwc] c
			r = reshape[shape=[12]] p
			output y = r`, `conv over [1,4,4,3] in f32
  operand 0 = argument 0 [1,4,4,2]
  operand 1 = argument 1 [1,1,2,3]
  v0 = conv2d
  result 0 [1,2,2,3] = windows of v0
`},
		{"attention", "f32[5,4] f32[5,4] f32[5,4]", `
			a = attention[scale=1.0 window=0 page=0 dropout=0.5] x0 x1 x2 seed
			l = result[index=1] a
			h = cast[to=bf16] a
			v = transpose[perm=[1,0]] h
			output y = v
			output l = l`, `attention
  operand 0 = argument 0 [5,4]
  operand 1 = argument 1 [5,4]
  operand 2 = argument 2 [5,4]
  operand 3 = 7
  v0 = attention
  v1 = cast to=bf16 v0
  v2 = attention.1
  result 0 [5,4]+0/[1 5] = v1
  result 1 [5] = v2
`},
	} {
		body := tt.body
		if tt.anchor == "attention" {
			body = "seed = const[value=7] : i64\n" + body
		}
		f, err := parse(tt.anchor, tt.inputs, body)
		if err != nil {
			t.Fatal(err)
		}
		args, results := operands(f)
		p, err := Lower(f, args, results)
		if err != nil {
			t.Error(err)
			continue
		}
		if got := p.String(); got != tt.want {
			t.Errorf("the program is\n%s, not\n%s", got, tt.want)
		}
	}
}

// TestRefusals reads bodies that break the contract from a .graph file: Verify lowers them, and the error names the node.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct{ want, anchor, inputs, body string }{
		{`concat "c" (m.graph:5) has no place in a body`, "none", "f32[4]", "c = concat[axis=0] x0\noutput y = c"},
		{`const "c" (m.graph:5) is not one number`, "none", "f32[2]",
			"c = const[value=[1,2]] : f32[2]\ny = binary[fn=add] x0 c\noutput y = y"},
		{`"y" (m.graph:10): a value of shape [3] has no place in an iteration space of [2,3]`, "none", "f32[3] f32[2,3] f32",
			"z = unary[fn=neg] x2\ny = binary[fn=add] x0 z\nx = binary[fn=add] x1 z\noutput y = y\noutput x = x"},
		{`transpose "v" (m.graph:6) of a computed value inside a body`, "none", "f32[3,3]",
			"y = unary[fn=neg] x0\nv = transpose[perm=[1,0]] y\nz = binary[fn=add] v x0\noutput z = z"},
		{`slice "v"`, "none", "f32[3,3]",
			"i = const[value=0] : i64\ny = unary[fn=neg] x0\nv = slice[axis=0 size=2 step=1] y i\noutput z = v"},
		{`reshape "v"`, "none", "f32[6,4]", "w = transpose[perm=[1,0]] x0\nv = reshape[shape=[24]] w\ny = unary[fn=neg] v\noutput y = y"},
		{`reshape "v" (m.graph:6) cannot be stored`, "none", "f32[6,4]",
			"y = unary[fn=neg] x0\nv = reshape[shape=[3,2,4]] y\nw = transpose[perm=[1,0,2]] v\nu = reshape[shape=[24]] w\noutput y = u"},
		{`slice "v"`, "none", "f32[4] i64", "v = slice[axis=0 size=2 step=1] x0 x1\ny = unary[fn=neg] v\noutput y = y"},
		{`dropout "d"`, "none", "f32[4] i64", "s = unary[fn=neg] x1\nd = dropout[p=0.5] x0 s\noutput d = d"},
		{`dropout "d" (m.graph:9) draws for [] elements`, "none", "f32[4] f32 i64",
			"d = dropout[p=0.5] x1 x2\ny = binary[fn=add] x0 d\noutput y = y"},
		{`a fusion of anchor`, "none", "f32[4]", "s = reduce[fn=sum axes=[0]] x0\noutput y = s"},
		{`softmax "s"`, "row", "f32[4,6]", "r = reduce[fn=sum axes=[1]] x0\ns = softmax[axis=0] x0\noutput r = r\noutput s = s"},
		{`broadcast "b"`, "row", "f32[6,6]",
			"r = reduce[fn=sum axes=[1]] x0\nb = broadcast[shape=[6,6]] r\ny = binary[fn=sub] x0 b\noutput y = y"},
		{`neg "w" (m.graph:7), a weight of rms_norm "n" (m.graph:8), is computed in the same launch`, "row", "f32[6,6] f32[6]",
			"w = unary[fn=neg] x1\nn = rms_norm[eps=0.1] x0 w\noutput n = n"},
		{`sum over axes [0] "c"`, "row", "f32[2,3,4]",
			"r = reduce[fn=mean axes=[2]] x0\nc = reduce[fn=sum axes=[0]] x0\noutput r = r\noutput c = c"},
		{`sum over axes [0] "c" (m.graph:6) is read in the launch that sums it`, "row", "f32[4,4]",
			"r = reduce[fn=mean axes=[1]] x0\nc = reduce[fn=sum axes=[0]] x0\nz = unary[fn=neg] c\noutput r = r\noutput z = z"},
		{`sum over axes [0] "c"`, "matmul", "f32[2,3,4] f32[4,5]", "p = matmul x0 x1\nc = reduce[fn=sum axes=[0]] p\noutput c = c"},
		{`sum over axes [0,1,2] "s"`, "conv", "f32[1,2,4,4] f32[4,2,1,1]",
			"c = conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1] x0 x1\ns = reduce[fn=sum axes=[0,1,2]] c\noutput y = s"},
		{`pool "p" (m.graph:8) has no place in a fusion of anchor conv`, "conv", "f32[1,2,4,4] f32[4,2,1,1]",
			"c = conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1] x0 x1\np = pool[fn=max kernel=[1,1] stride=[1,1] " +
				"pad=[0,0,0,0] count_pad=false layout=nhwc] c\noutput y = p"},
		{`pool "p" (m.graph:12) has no place in a fusion of anchor conv`, "conv", "f32[1,4,4,2] f32[1,1,1,2] f32[2] f32[1,1,2,3]",
			"c = separable_conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] low=0 high=6] x0 x1 x2 x3\np = pool[fn=max kernel=[1,1] " +
				"stride=[1,1] pad=[0,0,0,0] count_pad=false layout=nhwc] c\noutput y = p"},
		{`pool "p" (m.graph:8) is handed out beside other results`, "conv", "f32[1,2,4,4] f32[4,2,1,1]",
			"c = conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=1] x0 x1\np = pool[fn=max kernel=[1,1] stride=[1,1] " +
				"pad=[0,0,0,0] count_pad=false] c\noutput y = p\noutput c = c"},
		{`pool "p"`, "none", "f32[1,2,4,4]", "n = unary[fn=neg] x0\np = pool[fn=max kernel=[1,1] stride=[1,1] pad=[0,0,0,0] " +
			"count_pad=false] n\noutput y = p"},
		{`neg "n"`, "matmul", "f32[4,4]", "n = unary[fn=neg] x0\np = matmul n x0\noutput p = p"},
		{`matmul "q"`, "matmul", "f32[4,4]", "p = matmul x0 x0\nq = matmul x0 x0\noutput p = p\noutput q = q"},
		{`neg "n"`, "attention", "f32[5,4]", "a = attention[scale=1.0 window=0 page=0] x0 x0 x0\nn = unary[fn=neg] a\noutput y = n"},
		{`"x0"`, "attention", "f32[5,4]", "a = attention[scale=1.0 window=0 page=0] x0 x0 x0\noutput y = a\noutput x = x0"},
		{`result 0 of attention "a"`, "attention", "f32[5,4]",
			"a = attention[scale=1.0 window=0 page=0] x0 x0 x0\noutput y = a\noutput z = a"},
		{`attention "a"`, "attention", "f32[5,4]",
			"a = attention[scale=1.0 window=0 page=0] x0 x0 x0\nl = result[index=1] a\noutput l = l"},
	} {
		f, err := parse(tt.anchor, tt.inputs, tt.body)
		if beside := strings.Contains(tt.body, "q = matmul"); beside && err == nil {
			err = Check(f) // Verify leaves several products to kernels of one's own
		}
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("error %v, want one about %s", err, tt.want)
		}
	}
	f, err := parse("none", "f32[4]", "y = unary[fn=neg] x0\noutput y = y")
	if err != nil {
		t.Fatal(err)
	}
	args, results := operands(f)
	wide := []graph.Operand{{DType: graph.F64, Layout: args[0].Layout}}
	long := []graph.Operand{{DType: graph.F32, Layout: graph.Contiguous(graph.ShapeOf(5))}}
	for want, err := range map[string]error{
		"operand 0":  second(Lower(f, wide, results)),
		"result 0":   second(Lower(f, args, long)),
		"2 operands": second(Lower(f, append(args, args...), results)),
		"anchor 99":  second(Lower(graph.Fusion{Anchor: 99, Body: f.Body}, args, results)),
		"without":    second(Lower(graph.Fusion{Anchor: graph.AnchorConv, Body: f.Body}, args, results)),
		"anchor 0":   second(Lower(graph.Fusion{}, args, results)),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one about %s", err, want)
		}
	}
}

func second[T any](_ T, err error) error { return err }

// TestEveryForm computes the programs of all forms of bodies, value by value, and compares them with the reference.
func TestEveryForm(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, c := range append(cases.Fusions(), cases.Dropouts(r, 12)...) {
		f, types, err := c.Op()
		if err != nil {
			t.Fatal(err)
		}
		if !f.Anchor.Whole() {
			compare(t, c.Name, r, f, types)
		}
	}
}

// TestRandomBodies does so with random bodies.
func TestRandomBodies(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		anchor := []graph.Anchor{graph.AnchorNone, graph.AnchorMatMul, graph.AnchorRow}[r.IntN(3)]
		f, types, err := cases.Bodied(anchor, func(b *graph.Builder, in cases.Inputs) { randomBody(r, anchor, b, in) })
		if err != nil {
			t.Fatal(err)
		}
		compare(t, fmt.Sprint("seed ", seed), r, f, types)
	}
}

// randomBody builds a body: some elementwise work on operands seen through views, around a product or reductions.
func randomBody(r *rand.Rand, anchor graph.Anchor, b *graph.Builder, in cases.Inputs) {
	const d = graph.F64
	m, n := 1+r.IntN(6), 1+r.IntN(6)
	batch := 1 + r.IntN(3)
	space := graph.ShapeOf(batch, m, n)
	load := func() *graph.Node {
		switch r.IntN(6) {
		case 0:
			return b.Broadcast(in(d, n), space)
		case 1:
			return b.Broadcast(in(d, m, 1), space)
		case 2:
			return b.Transpose(in(d, n, batch, m), 1, 2, 0)
		case 3:
			return b.Slice(in(d, batch, 2*m+1, n), 1, 1, m, 2)
		case 4:
			return b.Reshape(in(d, batch*m, n), batch, m, n)
		}
		return in(d, batch, m, n)
	}
	full := []*graph.Node{load()}
	var perRow []*graph.Node // [batch, m, 1]
	pick := func(l []*graph.Node) *graph.Node { return l[r.IntN(len(l))] }
	work := func(x, y *graph.Node) *graph.Node {
		switch r.IntN(4) {
		case 0:
			return b.Unary(graph.Tanh, x)
		case 1:
			return b.Binary(graph.Max, x, b.Scalar(d, 0.25))
		case 2:
			return b.Binary(graph.Mul, in(d), x)
		}
		return b.Binary(graph.Sub, x, y)
	}
	if anchor == graph.AnchorMatMul {
		full = []*graph.Node{b.MatMul(in(d, batch, m, 4), b.Transpose(in(d, n, 4), 1, 0), false, false)}
	}
	if anchor == graph.AnchorRow {
		perRow = append(perRow, b.Reduce(graph.Sum, full[0], true, 2))
	}
	for range 2 + r.IntN(12) {
		switch k := r.IntN(8); {
		case k < 3:
			full = append(full, work(pick(full), pick(full)))
		case k == 3:
			full = append(full, b.Binary(graph.Add, pick(full), load()))
		case perRow == nil:
		case k == 4:
			perRow = append(perRow, b.Reshape(b.Reduce(graph.MaxOf, pick(full), false, 2), batch, m, 1))
		case k == 5:
			perRow = append(perRow, work(pick(perRow), pick(perRow)))
		case k == 6:
			full = append(full, b.Binary(graph.Add, pick(full), b.Broadcast(pick(perRow), space)))
		default:
			perRow = append(perRow, b.Reshape(b.Binary(graph.Add, b.Reshape(pick(perRow), batch*m), in(d, batch*m)), batch, m, 1))
		}
	}
	b.Output("", b.Transpose(full[len(full)-1], 0, 2, 1))
	b.Output("", b.Reshape(b.Unary(graph.Neg, pick(full)), batch*m, n))
	if perRow != nil {
		b.Output("", b.Reshape(pick(perRow), m, batch))
	}
	if anchor != graph.AnchorNone && batch*m*n > 1 {
		b.Output("", b.Reduce(graph.Sum, pick(full), false, 0, 1))
	}
}

// compare computes the programs of a fusion on random operands and compares them with the reference.
func compare(t *testing.T, name string, r *rand.Rand, f graph.Fusion, types []graph.Type) {
	t.Helper()
	args := make([]ref.Value, len(types))
	for i, u := range types {
		a := cases.Arg{Type: u, Lo: -1.5, Hi: 1.5}
		if u.DType.IsInt() {
			a.Lo, a.Hi = -20, 20
		}
		args[i] = ref.FromTensor(a.Draw(r))
	}
	want, err := ref.OpBound(f, args)
	if err != nil {
		t.Fatal(err)
	}
	in, out := operands(f)
	parts, err := LowerSegments(f, in, out)
	if err != nil {
		t.Errorf("%s: %v", name, err)
		return
	}
	for _, p := range parts {
		var own []ref.Value
		for _, a := range p.Segment.Args {
			own = append(own, args[a])
		}
		got, err := run(p.Program, own, p.Results)
		if err != nil {
			t.Fatalf("%s: %v\n%v", name, err, p.Program)
		}
		for i, y := range got {
			if err := ref.Check(y, want[p.Segment.Results[i]]); err != nil {
				t.Errorf("%s: result %d: %v\n%v", name, p.Segment.Results[i], err, p.Program)
			}
		}
	}
}

// run computes a program by the reference, each value for all elements of the space.
func run(p *Program, args []ref.Value, results []graph.Operand) ([]*graph.Tensor, error) {
	values := make([]ref.Value, len(p.Values))
	apply := func(op graph.Op, in ...ref.Value) (ref.Value, error) {
		out, err := ref.Op(op, in)
		if err != nil {
			return ref.Value{}, err
		}
		return out[0], nil
	}
	wide := func(x ref.Value, perRow bool) (ref.Value, error) {
		if perRow {
			return apply(graph.Broadcast{Shape: p.Kept}, x)
		}
		return apply(graph.Broadcast{Shape: p.Space}, x)
	}
	for i, v := range p.Values {
		in := make([]ref.Value, len(v.Args))
		for k, a := range v.Args {
			in[k] = values[a]
		}
		var y ref.Value
		var err error
		switch v.Kind {
		case Load:
			if v.PerRow && p.Kind == graph.AnchorRow {
				v.Layout.Shape = p.Kept
			}
			y = gathered(args[v.Arg], v.Layout)
		case Constant:
			y = gathered(ref.FromTensor(v.Number), graph.Layout{})
		case Elementwise:
			for k := range in {
				if in[k], err = wide(in[k], v.PerRow); err != nil {
					return nil, err
				}
			}
			y, err = apply(v.Node.Op, in...)
		case Draw:
			if in[0], err = wide(in[0], false); err != nil {
				return nil, err
			}
			in[1] = gathered(in[1], graph.Layout{})
			y, err = apply(v.Node.Op, in...)
		case Row:
			for k := range in {
				if in[k], err = wide(in[k], false); err != nil {
					return nil, err
				}
				if graph.RowWeights(v.Node.Op, k) {
					last := p.Space.Rank() - 1
					l := graph.Layout{Shape: graph.ShapeOf(p.Space.At(last))}
					l.Stride[0] = 1
					in[k] = gathered(in[k], l)
				}
			}
			op := v.Node.Op
			if r, ok := op.(graph.Reduce); ok {
				r.Keep = true
				op = r
			}
			y, err = apply(op, in...)
		case AnchorResult:
			var operands []ref.Value
			for _, o := range p.Operands {
				operands = append(operands, gathered(args[o.Arg], o.Layout))
			}
			y, err = apply(p.Anchor.Op, operands...)
		}
		if err != nil {
			return nil, fmt.Errorf("value %d: %w", i, err)
		}
		values[i] = y
	}
	var out []*graph.Tensor
	for i, s := range p.Stores {
		y, err := wide(values[s.Value], s.PerRow)
		if err != nil {
			return nil, err
		}
		if s.PerRow {
			s.Layout.Shape = p.Kept
		}
		to := graph.NewTensor(results[i].Type())
		if s.Sums {
			if y, err = apply(s.Node.Op, y); err != nil {
				return nil, err
			}
		}
		each(s.Layout, func(from, at int) {
			if y.F != nil {
				to.SetFloat(at, y.F[from])
			} else {
				to.SetInt(at, y.I[from])
			}
		})
		out = append(out, to)
	}
	return out, nil
}

// each calls f for each element of a layout: its number, and its place.
func each(l graph.Layout, f func(i, at int)) {
	var walk func(axis, i, at int)
	walk = func(axis, i, at int) {
		if axis == l.Shape.Rank() {
			f(i, at)
			return
		}
		for k := range l.Shape.At(axis) {
			walk(axis+1, i*l.Shape.At(axis)+k, at+k*l.Stride[axis])
		}
	}
	walk(0, 0, l.Offset)
}

// gathered are the elements of x that a layout shows.
func gathered(x ref.Value, l graph.Layout) ref.Value {
	y := ref.Value{Type: graph.Type{DType: x.Type.DType, Shape: l.Shape}}
	each(l, func(_, at int) {
		if x.Type.DType.IsReal() {
			y.F = append(y.F, x.F[at])
		} else {
			y.I = append(y.I, x.I[at])
		}
	})
	return y
}

// TestLongChain lowers a body whose values follow one another.
func TestLongChain(t *testing.T) {
	b := graph.NewBuilder("chain")
	x := b.Input("x", graph.TypeOf(graph.F32, 8))
	const n = 100_000
	for range n {
		x = b.Unary(graph.Tanh, x)
	}
	b.Output("y", x)
	g, err := b.Graph()
	if err != nil {
		t.Fatal(err)
	}
	f := graph.Fusion{Body: g}
	args, results := operands(f)
	p, err := Lower(f, args, results)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Values) != n+1 || p.Stores[0].Value != n {
		t.Errorf("%d values, the last of which is stored: %d", len(p.Values), p.Stores[0].Value)
	}
}
