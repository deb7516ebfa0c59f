package vec

import (
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
)

// TestHalves converts every number of 16 bits to float32 and back, and numbers of float32 around them, with and without
// assembly: the bits are those of package graph, except that a NaN may have others.
func TestHalves(t *testing.T) {
	native := [2]halfGroups{groupsF16, groupsBF16}
	defer func() { groupsF16, groupsBF16 = native[0], native[1] }()
	testHalves[float64](t)
	testHalves[float32](t)
	groupsF16, groupsBF16 = halfGroups{}, halfGroups{}
	testHalves[float32](t)
}

func testHalves[T Float](t *testing.T) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range []graph.DType{graph.F16, graph.BF16} {
		bits := make([]uint16, 1<<16+r.IntN(8))
		for i := range bits {
			bits[i] = uint16(i)
		}
		wide := run(t, len(bits), nil, func(dst []T) { FromHalf(dst, bits, d) })
		back := make([]uint16, len(bits))
		ToHalf(back, wide, d)
		for i, v := range wide {
			if want := T(d.From16(bits[i])); v != want && (v == v || want == want) {
				t.Fatalf("%T: %v of %#04x is %v, want %v", v, d, bits[i], v, want)
			}
			if v == v && back[i] != bits[i] || v != v && d.From16(back[i]) == d.From16(back[i]) {
				t.Fatalf("%T: %v of %v is %#04x, want %#04x", v, d, v, back[i], bits[i])
			}
		}
		x := make([]T, len(bits))
		for i := range x { // of all magnitudes, some halfway between two numbers
			x[i] = T(math.Float32frombits(r.Uint32()))
			if next := wide[(i+1)%len(wide)]; i%2 == 0 && wide[i] == wide[i] && next == next {
				x[i] = T(float32(wide[i]/2 + next/2))
			}
		}
		ToHalf(back, x, d)
		rounded := run(t, len(x), nil, func(dst []T) { RoundHalf(dst, x, d) })
		for i, v := range x {
			want := d.From16(d.Bits16(float64(v)))
			if got := d.From16(back[i]); math.Float32bits(got) != math.Float32bits(want) && (got == got || want == want) {
				t.Fatalf("%T: %v of %v is %v, want %v", v, d, v, got, want)
			}
			if got := float32(rounded[i]); math.Float32bits(got) != math.Float32bits(want) && (got == got || want == want) {
				t.Fatalf("%T: %v rounded to %v is %v, want %v", v, v, d, got, want)
			}
		}
		for _, n := range lengths() {
			run(t, n, nil, func(dst []T) { FromHalf(dst, bits[0x3c00:][:n], d) })
			run(t, n, nil, func(dst []T) { RoundHalf(dst, x[:n], d) })
			room := make([]uint16, n+16)
			ToHalf(room[8:8+n:8+n], x[:n], d)
			for i, h := range room {
				if (i < 8 || i >= 8+n) && h != 0 {
					t.Fatalf("length %d: wrote outside the destination, at %d", n, i-8)
				}
			}
		}
	}
}
