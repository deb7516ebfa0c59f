package dot

import (
	"math"
	"testing"
	"time"

	"fusec/graph"
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
		parts := condense(f, []string{"a", "b"})
		if len(parts) != 1 || parts[0].formula() != want {
			t.Errorf("got %+v, want %q", parts, want)
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
