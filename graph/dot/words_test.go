package dot

import (
	"math"
	"strings"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/trace"
)

func TestHuman(t *testing.T) {
	for _, c := range []struct{ got, want string }{
		{humanFLOPs(0), "0 FLOP"},
		{humanFLOPs(999), "999 FLOP"},
		{humanFLOPs(1000), "1 kFLOP"},
		{humanFLOPs(12345), "12.3 kFLOP"},
		{humanFLOPs(999_999), "1 MFLOP"},
		{humanBytes(1 << 30), "1 GiB"},
		{humanBytes(math.MaxInt64), "8 EiB"},
		{humanBytes(1023), "1023 B"},
		{humanBytes(1536), "1.5 KiB"},
		{humanBytes(1 << 20), "1 MiB"},
		{humanBytes(1000 << 10), "1000 KiB"},
		{humanMeasure(trace.Measure{Name: "sent", Unit: "bytes", Value: 4096}, "about "), "sent about 4 KiB"},
		{humanMeasure(trace.Measure{Name: "exchange", Unit: "µs", Value: 10.4}, "about "), "exchange about 10.4 µs"},
		{humanMeasure(trace.Measure{Name: "cycles", Unit: "cycles", Value: 12300}, "about "), "about 12.3 kcycles"},
		{humanMeasure(trace.Measure{Name: "error", Unit: "%", Value: 2}, ""), "error 2 %"},
		{humanTime(2500 * time.Nanosecond), "2.5 µs"},
		{humanTime(12 * time.Millisecond), "12 ms"},
		{humanTime(3 * time.Second), "3 s"},
		{humanTime(7), "7 ns"},
		{number(-0.5), "−0.5"},
		{number(1e-5), "1e-5"},
		{number(1e9), "1e9"},
		{number(math.Inf(1)), "∞"},
		{number(math.Inf(-1)), "−∞"},
		{plural(1, "launch"), "1 launch"},
		{plural(2, "launch"), "2 launches"},
		{plural(0, "node"), "0 nodes"},
		{position("/home/me/model/net.go:12"), "model/net.go:12"},
		{position(`C:\me\model\net.go:12`), "model/net.go:12"},
		{position("net.go:12"), "net.go:12"},
		{short("abcdef", 4), "abc…"},
		{clean("a\nb\x00\xff"), "a\\nb\uFFFD\uFFFD"},
		{namePattern("h0.w", "h11.w"), "h{0…11}.w"},
		{namePattern("h10.w", "h11.w"), "h{10…11}.w"},
		{namePattern("a", "b"), "a"},
		{namePattern("w", "w"), "w"},
		{namePattern("l0.e0", "l3.e3"), "l0.e0"},
		{variable("blocks.3.attn/wq"), "wq"},
		{variable("layer.3"), "layer"},
		{variable(""), "x"},
	} {
		if c.got != c.want {
			t.Errorf("got %q, want %q", c.got, c.want)
		}
	}
}

// TestExpressions checks brackets and what is written where.
func TestExpressions(t *testing.T) {
	type build func(b *graph.Builder, x, y *graph.Node) *graph.Node
	bin := func(f graph.BinaryFn, x, y build) build {
		return func(b *graph.Builder, p, q *graph.Node) *graph.Node { return b.Binary(f, x(b, p, q), y(b, p, q)) }
	}
	un := func(f graph.UnaryFn, x build) build {
		return func(b *graph.Builder, p, q *graph.Node) *graph.Node { return b.Unary(f, x(b, p, q)) }
	}
	x := func(_ *graph.Builder, x, _ *graph.Node) *graph.Node { return x }
	y := func(_ *graph.Builder, _, y *graph.Node) *graph.Node { return y }
	for want, e := range map[string]build{
		"a + b":         bin(graph.Add, x, y),
		"(a + b) × b":   bin(graph.Mul, bin(graph.Add, x, y), y),
		"a − (b − a)":   bin(graph.Sub, x, bin(graph.Sub, y, x)),
		"a − b − a":     bin(graph.Sub, bin(graph.Sub, x, y), x),
		"a ÷ (a × b)":   bin(graph.Div, x, bin(graph.Mul, x, y)),
		"(a ^ b) ^ b":   bin(graph.Pow, bin(graph.Pow, x, y), y),
		"(a + b)²":      un(graph.Square, bin(graph.Add, x, y)),
		"−a × b":        un(graph.Neg, bin(graph.Mul, x, y)),
		"(−a) × b":      bin(graph.Mul, un(graph.Neg, x), y),
		"1 ÷ (a + b)":   un(graph.Recip, bin(graph.Add, x, y)),
		"max(a + b, b)": bin(graph.Max, bin(graph.Add, x, y), y),
		"a + b < b":     bin(graph.Lt, bin(graph.Add, x, y), y),
	} {
		f := body(t, func(b *graph.Builder, in func(...int) *graph.Node) []*graph.Node {
			return []*graph.Node{e(b, in(3), in(3))}
		})
		parts := condense(f, []string{"a", "b"}, nil)
		if len(parts) != 1 || parts[0].formula() != want {
			t.Errorf("got %+v, want %q", parts, want)
		}
	}
}

// TestHeadingOfParticipants: what each of several participants computes says so.
func TestHeadingOfParticipants(t *testing.T) {
	for parts, want := range map[bool]bool{true: true, false: false} {
		g := graph.New("g")
		g.Mesh, g.Parts = graph.Mesh{{Name: "data", Size: 2}}, parts
		b := builder{drawing: drawing{graph: g, target: "cpu"}, scene: &scene{}}
		b.heading()
		if got := strings.Contains(strings.Join(b.scene.facts, ""), "each of 2 participants (data=2)"); got != want {
			t.Errorf("parts %v: %q", parts, b.scene.facts)
		}
	}
}

func TestEveryOperationHasALook(t *testing.T) {
	for _, info := range graph.Ops() {
		if l := lookOf(info.Proto); int(l) >= len(looks) || looks[l].name == "" || tint(looks[l].colour, 50) == looks[l].colour {
			t.Errorf("%s has look %d", info.Name, l)
		}
		if opName(info.Proto) == "" {
			t.Errorf("%s has no label", info.Name)
		}
	}
	for k := graph.KindElementwise; k <= graph.KindMoE; k++ {
		if looks[k].name == "" || look(k) >= lookMove {
			t.Errorf("kind %s has no look of its own", k)
		}
	}
}

// TestColours simulates how readers with protanopia and deuteranopia see the legend (matrices of Machado, Oliveira and
// Fernandes, 2009): any two kinds differ by a ΔE of at least 10.
func TestColours(t *testing.T) {
	for sight, m := range map[string][3][3]float64{
		"normal":       {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}},
		"deuteranopia": {{0.367322, 0.860646, -0.227968}, {0.280085, 0.672501, 0.047413}, {-0.011820, 0.042940, 0.968881}},
		"protanopia":   {{0.152286, 1.052583, -0.204868}, {0.114503, 0.786281, 0.099216}, {-0.003882, -0.048116, 1.051998}},
	} {
		for a := range lookCarried {
			for b := range a {
				if looks[a].colour == looks[b].colour {
					if a != lookOutput && a != lookConst {
						t.Errorf("%s and %s have one colour", looks[a].name, looks[b].name)
					}
					continue
				}
				x, y := lab(looks[a].colour, m), lab(looks[b].colour, m)
				if d := math.Sqrt(math.Pow(x[0]-y[0], 2) + math.Pow(x[1]-y[1], 2) + math.Pow(x[2]-y[2], 2)); d < 10 {
					t.Errorf("%s: %s and %s differ by %.1f", sight, looks[a].name, looks[b].name, d)
				}
			}
		}
	}
}

// lab is a colour as m changes it, in CIE L*a*b*.
func lab(colour string, m [3][3]float64) [3]float64 {
	red, green, blue, _ := rgb(strings.ToLower(colour))
	var in, out [3]float64
	for i, c := range []int{red, green, blue} {
		if v := float64(c) / 255; v <= 0.04045 {
			in[i] = v / 12.92
		} else {
			in[i] = math.Pow((v+0.055)/1.055, 2.4)
		}
	}
	for i := range out {
		out[i] = min(max(m[i][0]*in[0]+m[i][1]*in[1]+m[i][2]*in[2], 0), 1)
	}
	f := func(v float64) float64 {
		if v > 0.008856 {
			return math.Cbrt(v)
		}
		return 7.787*v + 16.0/116
	}
	x := f((0.4124*out[0] + 0.3576*out[1] + 0.1805*out[2]) / 0.95047)
	y := f(0.2126*out[0] + 0.7152*out[1] + 0.0722*out[2])
	z := f((0.0193*out[0] + 0.1192*out[1] + 0.9505*out[2]) / 1.08883)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}

// TestMicrobatches: what goes along the axis of microbatches is not between participants.
func TestMicrobatches(t *testing.T) {
	over := func(axis string) graph.Group { return graph.Group{Over: axis, Parts: 2} }
	for want, op := range map[look]graph.Op{
		lookCollective: graph.AllGather{Group: over("data")},
		lookMove:       graph.AllGather{Group: over(graph.Microbatch)},
		lookReduce:     graph.AllReduce{Fn: graph.Sum, Group: over(graph.Microbatch)},
	} {
		if got := lookOf(op); got != want {
			t.Errorf("%v has the look %v, want %v", op, got, want)
		}
	}
}
