package loader

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"fusec/graph"
)

// TestConverts compares every conversion with Go's, element by element, from data at odd addresses.
func TestConverts(t *testing.T) {
	inf := math.Inf(1)
	for _, c := range []struct {
		kind   string
		values any // as Go has them
		want   []float64
	}{
		{"bool", []uint8{0, 1, 1}, []float64{0, 1, 1}},
		{"u8", []uint8{0, 7, 255}, []float64{0, 7, 255}},
		{"i8", []int8{-128, 0, 127}, []float64{-128, 0, 127}},
		{"u16", []uint16{0, 258, 65535}, []float64{0, 258, 65535}},
		{"i16", []int16{-32768, -2, 32767}, []float64{-32768, -2, 32767}},
		{"u32", []uint32{0, 1 << 30}, []float64{0, 1 << 30}},
		{"i32", []int32{-1 << 31, 3, 1<<31 - 1}, []float64{-1 << 31, 3, 1<<31 - 1}},
		{"u64", []uint64{0, 1 << 30, 5}, []float64{0, 1 << 30, 5}},
		{"i64", []int64{-1 << 31, 3}, []float64{-1 << 31, 3}},
		{"f16", []uint16{0x3c00, 0xc000, 0x7c00, 1}, []float64{1, -2, inf, 0x1p-24}},
		{"bf16", []uint16{0x3f80, 0xc120, 0xff80}, []float64{1, -10, -inf}},
		{"f32", []float32{1, -0.1, float32(inf)}, []float64{1, float64(float32(-0.1)), inf}},
		{"f64", []float64{math.Pi, -1e-300, math.NaN()}, []float64{math.Pi, -1e-300, math.NaN()}},
	} {
		raw, err := binary.Append([]byte{0xff}, binary.LittleEndian, c.values)
		if err != nil {
			t.Fatal(err)
		}
		for _, to := range []graph.DType{graph.F32, graph.F64, graph.I32, graph.I64, graph.Bool} {
			for _, affine := range []bool{false, true} {
				src := &Source{}
				if affine {
					src.Scale, src.Offset = 0.3, -0.7
				}
				isInt := c.kind[0] == 'i' || c.kind[0] == 'u' || c.kind == "bool"
				legal := to.IsFloat() || !affine && (to.IsInt() && isInt || c.kind == "bool")
				t.Run(fmt.Sprint(c.kind, " to ", to, " affine ", affine), func(t *testing.T) {
					d, err := newDecoder(c.kind, to, src)
					if (err == nil) != legal {
						t.Fatalf("error %v", err)
					}
					if !legal {
						return
					}
					got := graph.Filled(graph.TypeOf(to, len(c.want)+2), 1)
					if bad := d(got.Data, 1, raw[1:]); bad >= 0 {
						t.Fatalf("element %d does not fit", bad)
					}
					want := graph.Filled(got.Type, 1)
					for i, v := range c.want {
						switch {
						case affine && to == graph.F32:
							p := float32(v) * float32(0.3)
							v = float64(p + float32(-0.7))
						case affine:
							p := v * 0.3
							v = p + -0.7
						}
						want.SetFloat(i+1, v)
					}
					if !sameFloats(got.Floats(), want.Floats()) {
						t.Errorf("got %v, want %v", got.Floats(), want.Floats())
					}
				})
			}
		}
	}
}

// TestExact: 64 bits stay 64 bits, and NaNs keep theirs.
func TestExact(t *testing.T) {
	raw := binary.LittleEndian.AppendUint64(nil, 0x7ff8dead_beef0001)
	f, i := make([]float64, 1), make([]int64, 1)
	for kind, data := range map[string]any{"f64": f, "i64": i} {
		d, err := newDecoder(kind, kinds[kind].dtype, &Source{})
		if err != nil || d(data, 0, raw) >= 0 {
			t.Fatal(err)
		}
	}
	if math.Float64bits(f[0]) != 0x7ff8dead_beef0001 || i[0] != 0x7ff8dead_beef0001 {
		t.Errorf("%x, %x", math.Float64bits(f[0]), i[0])
	}
}

// TestLimit: the bounds themselves.
func TestLimit(t *testing.T) {
	for _, c := range []struct {
		limit int64
		raw   []byte
		bad   int
	}{
		{5, []byte{0, 4, 1}, -1}, {5, []byte{0, 5, 1}, 1}, {5, []byte{0, 4, 255}, 2},
		{1, []byte{0, 0}, -1}, {0, []byte{255, 128}, -1},
		{math.MaxInt64, []byte{1, 255}, 1},
	} {
		d, err := newDecoder("i8", graph.I64, &Source{Limit: c.limit})
		if err != nil {
			t.Fatal(err)
		}
		if bad := d(make([]int64, len(c.raw)), 0, c.raw); bad != c.bad {
			t.Errorf("limit %d of %v: element %d, want %d", c.limit, c.raw, bad, c.bad)
		}
	}
}
