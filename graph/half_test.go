package graph_test

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref/cases"
)

var halves = []graph.DType{graph.BF16, graph.F16}

// TestBits16 goes through all numbers of 16 bits: each is itself, what lies between two goes to the nearer one, and
// from the middle to the even one.
func TestBits16(t *testing.T) {
	for _, d := range halves {
		inf := d.Bits16(math.Inf(1))
		for b := range inf + 1 {
			v := float64(d.From16(b))
			if d.Bits16(v) != b || d.Bits16(-v) != b|1<<15 {
				t.Fatalf("%v: %#x is %v, whose bits are %#x", d, b, v, d.Bits16(v))
			}
			if b == inf {
				continue
			}
			next := float64(d.From16(b + 1))
			if b+1 == inf { // as if the range went on
				next = 2*v - float64(d.From16(b-1))
			}
			middle := v + (next-v)/2
			for x, want := range map[float64]uint16{
				middle: b + b&1, math.Nextafter(middle, 0): b, math.Nextafter(middle, math.Inf(1)): b + 1,
			} {
				if got := d.Bits16(x); got != want {
					t.Fatalf("%v: %v becomes %#x, want %#x", d, x, got, want)
				}
			}
		}
		for b := inf + 1; b < 1<<15; b++ { // NaNs
			if got := d.Bits16(float64(d.From16(b))); got != b|d.Bits16(math.NaN()) {
				t.Fatalf("%v: NaN %#x becomes %#x", d, b, got)
			}
		}
	}
	if graph.F16FromFloat32(65519) != 0x7bff || graph.F16FromFloat32(65520) != 0x7c00 || graph.F16ToFloat32(1) != 0x1p-24 {
		t.Error("the ends of f16 are wrong")
	}
}

func TestBF16FromFloat32(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 100000 {
		x := math.Float32frombits(r.Uint32())
		got, want := graph.BF16FromFloat32(x), graph.BF16.Bits16(float64(x))
		if got != want {
			t.Fatalf("%v (%#x) becomes %#x, want %#x", x, math.Float32bits(x), got, want)
		}
	}
	if graph.BF16ToFloat32(0x3fc0) != 1.5 {
		t.Error("0x3fc0 is not 1.5")
	}
}

// TestHalfTypeRules has what takes 16 bits and what does not.
func TestHalfTypeRules(t *testing.T) {
	const head = `fusec graph 1 {
h = input : bf16[4,4]
g = input : f16[4,4]
f = input : f32[4,4]
i = input : i64
b = input : bool[4,4]
lse = input : f32[4]
image = input : bf16[1,2,5,5]
filter = input : bf16[3,2,3,3]
`
	const window = "stride=[1,1] dilation=[1,1] pad=[0,0,0,0]"
	for _, c := range []struct{ expr, want string }{
		{"cast[to=bf16] f", "bf16[4,4]"},
		{"cast[to=f32] h", "f32[4,4]"},
		{"cast[to=i32] g", "i32[4,4]"},
		{"matmul h h", "f32[4,4]"},
		{"matmul g g", "f32[4,4]"},
		{"matmul h g", "! element types bf16 and f16 differ"},
		{"matmul h f", "! element types bf16 and f32 differ"},
		{"conv2d[" + window + " groups=1] image filter", "f32[1,3,3,3]"},
		{"attention[window=0] h h h", "f32[4,4]"},
		{"attention[window=0 has_mask=true] h h h f", "f32[4,4]"},
		{"attention[window=0 has_mask=true] h h h b", "f32[4,4]"},
		{"attention[window=0 has_mask=true] h h h h", "! the mask is bf16, not bool or f32"},
		{"attention[window=0] h h g", "! element types bf16, bf16 and f16 differ"},
		{"attention_grad[window=0] h h h h lse h", "f32[4,4]"},
		{"attention_grad[window=0] h h h f lse h", "! out is f32[4,4], not bf16[4,4]"},
		{"attention_grad[window=0] h h h h lse f", "! dout is f32[4,4], not bf16[4,4]"},
		{"moe[top_k=0 experts=4 activation=relu stacked=false] h f h h h h h h h h", "f32[4,4]"},
		{"moe[top_k=0 experts=4 activation=relu] h h h h h h h h h h", "! the gates are bf16[4,4], not f32[4,4]"},
		{"moe[top_k=0 experts=4 activation=relu] h f h h h h h h h f", "! w2 of expert 3 is f32[4,4], not bf16[4,4]"},
		{"moe_grad[top_k=0 experts=4 activation=relu] h f h h h h h h h h h", "f32[4,4]"},
		{"moe_grad[top_k=0 experts=4 activation=relu] h f h h h h h h h h f", "! dy is f32[4,4], not bf16[4,4]"},
		{"transpose[perm=[1,0]] h", "bf16[4,4]"},
		{"reshape[shape=[16]] h", "bf16[16]"},
		{"broadcast[shape=[2,4,4]] h", "bf16[2,4,4]"},
		{"concat[axis=0] h h", "bf16[8,4]"},
		{"concat[axis=0] h g", "! differ"},
		{"slice[axis=0 size=2 step=1] h i", "bf16[2,4]"},
		{"update_slice[axis=0] h h i", "bf16[4,4]"},
		{"pad[lo=[0,0] hi=[1,0] value=0] h", "bf16[5,4]"},
		{"copy h", "bf16[4,4]"},
		{"const[value=[1,0.1]] : bf16[2]", "bf16[2]"},
		{"unary[fn=neg] h", "! neg of bf16: only casts, moves and contractions take 16-bit elements; cast to f32 first"},
		{"unary[fn=exp] g", "! exp needs f32 or f64, not f16"},
		{"binary[fn=add] h h", "! add of bf16: only casts"},
		{"binary[fn=eq] h h", "! eq of bf16: only casts"},
		{"select b h h", "! of bf16: only casts"},
		{"reduce[fn=sum axes=[0]] h", "! sum of bf16: only casts"},
		{"softmax[axis=0] h", "! needs f32 or f64, not bf16"},
		{"dropout[p=0.5] h i", "! needs f32 or f64, not bf16"},
		{"all_reduce[fn=sum] h", "bf16[4,4]"},
		{"all_reduce[fn=max] h", "! max of bf16: only casts, moves and contractions take 16-bit elements; cast to f32 first"},
		{"squared_norm h", "f64[]"},
	} {
		g, err := graph.Parse("m.graph", []byte(head+"y = "+c.expr+"\n}"), nil)
		if want, bad := strings.CutPrefix(c.want, "! "); bad {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want one with %q", c.expr, err, want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.expr, err)
			continue
		}
		if got := g.Nodes[len(g.Nodes)-1].Type.String(); got != c.want {
			t.Errorf("%s is %s, want %s", c.expr, got, c.want)
		}
	}
}

// TestHalfGradients compares gradients with those of the same operation in f32 on the same values.
func TestHalfGradients(t *testing.T) {
	for _, d := range halves {
		for _, c := range cases.Half(d) {
			if _, none := withoutGradient[c.Op.OpName()]; none {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				half, wrt := gradientGraph(t, c, false)
				if cast, ok := c.Op.(graph.Cast); ok && cast.To.Is16() {
					return // of f32 at best: there is nothing to compare with
				}
				in := c.Inputs(rand.New(rand.NewPCG(1, 2)))
				wide := map[string]*graph.Tensor{}
				c.Args = append([]cases.Arg(nil), c.Args...)
				for i, name := range c.Names() {
					x := in[name]
					if x.Type.DType == d {
						x = graph.NewTensor(x.Type.With(graph.F32))
						for j, v := range in[name].Floats() {
							x.SetFloat(j, v)
						}
						c.Args[i].Type.DType = graph.F32
					}
					wide[name] = x
				}
				full, _ := gradientGraph(t, c, false)
				got, want := evalRef(t, half, in), evalRef(t, full, wide)
				for _, name := range wrt {
					off, size := 0.0, 0.0
					for i, w := range want["d"+name].Floats() {
						off, size = off+math.Pow(got["d"+name].Float(i)-w, 2), size+w*w
					}
					if math.Sqrt(off) > 2e-2*math.Sqrt(size) {
						t.Errorf("d%s is off by %v of %v", name, math.Sqrt(off), math.Sqrt(size))
					}
				}
			})
		}
	}
}
