package panel

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
)

// TestIntegers multiplies rows that are rounded by weights of each type, with every instruction set, and compares with the sums of
// the rounded numbers in float64. Scales are of f32 and of f16.
func TestIntegers(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	p := pool.New(2)
	defer p.Close()
	for _, d := range []graph.DType{graph.I4, graph.I8} {
		for _, s := range [][4]int{{1, 1, 1, 0}, {1, 32, 64, 16}, {3, 70, 19, 8}, {1, 33, 13, 0}, {7, 40, 96, 32}, {15, 64, 32, 32},
			{70, 97, 24, 0}, {2, 5, 0, 0}, {5, 3, 999, 64}, {1, 1, graph.MaxIntegerRows, 0}} {
			for _, extreme := range []bool{false, true} {
				for _, halves := range []bool{false, true} {
					t.Run(fmt.Sprint(d, s, extreme, halves), func(t *testing.T) { multiplyIntegers(t, r, p, d, s, extreme, halves) })
				}
			}
		}
	}
}

func multiplyIntegers(t *testing.T, r *rand.Rand, p *pool.Pool, d graph.DType, s [4]int, extreme, halves bool) {
	m, n, k, block := s[0], s[1], s[2], s[3]
	w := graph.NewTensor(graph.TypeOf(d, n, k))
	for i := range k * n {
		v := int64(r.IntN(256) - 128)
		if d == graph.I4 {
			v >>= 4
		}
		if extreme {
			v = int64(-128)
			if d == graph.I4 {
				v = -8
			}
		}
		if d == graph.I8 {
			w.SetInt(i, v)
		} else {
			w.SetFloat(i, float64(v))
		}
	}
	op := graph.PackWeights{Trans: true, Quads: d == graph.I8}
	shape := graph.QuadShape(k, n)
	if d == graph.I4 {
		shape = graph.PanelShape(d, k, n)
	}
	panels := graph.NewTensor(graph.Type{DType: d, Shape: shape})
	NewPacker(k, n, op, d, d, p).Pack(w.Bytes(), panels.Bytes())
	x, c := make([]float32, m*k+1), make([]float32, m*n)
	for i := range x {
		x[i] = r.Float32() - 0.5
		if extreme {
			x[i] = -1
		}
	}
	of := block
	if of == 0 {
		of = max(k, 1)
	}
	blocks := max((k+of-1)/of, 1)
	scale, packed := make([]float32, blocks*n), make([]uint16, graph.PanelShape(graph.F16, blocks, n).Elems())
	for b := range blocks {
		for j := range n {
			h := graph.F16FromFloat32(r.Float32())
			packed[(j/columns*((blocks+steps-1)/steps*steps)+b)*columns+j%columns] = h
			scale[b*n+j] = graph.F16ToFloat32(h)
		}
	}
	if m > 2 { // a row of zeros, and one that is not finite
		clear(x[:k])
		x[k] = float32(math.Inf(1))
	}
	for _, kern := range kernels {
		plan, err := newPlan(Config{M: m, N: n, K: k, Type: d, Block: block, Scaled: true, Integers: true, LDX: k, LDC: n}, p, kern)
		if err != nil {
			t.Fatal(err)
		}
		if plan.Bytes() == 0 {
			t.Error("a plan without memory")
		}
		clear(c)
		if halves {
			err = plan.RunHalves(x, panels.Bytes(), packed, c, nil)
		} else {
			err = plan.Run(x, panels.Bytes(), scale, c, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range c {
			row, col, sum, size := i/n, i%n, 0.0, 0.0
			for from := 0; from < k; from += of {
				part, largest := x[row*k:][from:min(from+of, k)], float32(0)
				for _, v := range part {
					largest = max(largest, max(v, -v))
				}
				by := largest / 127
				for j, v := range part {
					v := graph.I8.Quantised(float64(v/by), 0) * float64(by) * w.Float(col*k+from+j) * float64(scale[from/of*n+col])
					sum, size = sum+v, size+math.Abs(v)
				}
			}
			if off := math.Abs(float64(c[i]) - sum); off > 1e-6*size+1e-30 || math.IsNaN(sum) != math.IsNaN(float64(c[i])) {
				t.Fatalf("%s: element %d is %v, want %v", kern.name, i, c[i], sum)
			}
		}
	}
}

// TestIntegersRefused asks for products of integers that there are none of.
func TestIntegersRefused(t *testing.T) {
	p := pool.New(1)
	defer p.Close()
	for _, cfg := range []Config{{M: 1, N: 1, K: 1, Type: graph.BF16, Integers: true},
		{M: 1, N: 1, K: graph.MaxIntegerRows + 1, Type: graph.I8, Integers: true}} {
		if _, err := New(cfg, p); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	plan, err := New(Config{M: 1, N: 1, K: 8, Type: graph.I8, Scaled: true, LDX: 8, LDC: 1}, p)
	if err != nil {
		t.Fatal(err)
	}
	x, q, c := make([]float32, 8), make([]byte, 256), make([]float32, 1)
	if plan.RunHalves(x, q, make([]uint16, 8), c, nil) == nil || plan.Run(x, q, nil, c, nil) == nil {
		t.Error("short scales are accepted")
	}
	if err := Integers(); (err == nil) != (kernels[0].integers != nil) {
		t.Error(err)
	}
}

// TestBytes multiplies rows of U8, in place and filled up, with every instruction set, and compares with sums of 64 bits.
func TestBytes(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	p := pool.New(2)
	defer p.Close()
	for _, s := range [][4]int{{1, 1, 1, 1}, {1, 32, 64, 64}, {3, 70, 19, 24}, {15, 64, 32, 40}, {7, 40, 96, 96}, {70, 97, 24, 24},
		{2, 5, 0, 0}, {8, 33, 8, 9}, {1, 1, graph.MaxIntegerRows, graph.MaxIntegerRows}} {
		m, n, k, ldx := s[0], s[1], s[2], s[3]
		x, w, c := make([]byte, max((m-1)*ldx+k, 0)), graph.NewTensor(graph.TypeOf(graph.I8, k, n)), make([]float32, m*n)
		for i := range x {
			x[i] = byte(r.Uint32()) | byte(255*(k>>16))
		}
		for i := range k * n {
			w.SetInt(i, int64(int8(r.Uint32()))|int64(-128*(k>>16)))
		}
		panels := graph.NewTensor(graph.Type{DType: graph.I8, Shape: graph.QuadShape(k, n)})
		NewPacker(k, n, graph.PackWeights{Quads: true}, graph.I8, graph.I8, p).Pack(w.Bytes(), panels.Bytes())
		for _, kern := range kernels {
			plan, err := newPlan(Config{M: m, N: n, K: k, Type: graph.I8, Bytes: true, LDX: ldx, LDC: n}, p, kern)
			if err != nil {
				t.Fatal(err)
			}
			if err := plan.RunBytes(x, panels.Bytes(), c, nil); err != nil {
				t.Fatal(err)
			}
			for i, got := range c {
				sum := int64(0)
				for j := range k {
					sum += int64(x[i/n*ldx+j]) * w.Int(j*n+i%n)
				}
				if got != float32(sum) {
					t.Fatalf("%s, %v: element %d is %v, want %d", kern.name, s, i, got, sum)
				}
			}
			if k > 0 && plan.RunBytes(x[1:], panels.Bytes(), c, nil) == nil {
				t.Error("short rows are accepted")
			}
		}
	}
	for _, cfg := range []Config{{M: 1, N: 1, K: 1, Type: graph.I4}, {M: 1, N: 1, K: graph.MaxIntegerRows + 1, Type: graph.I8},
		{M: 1, N: 1, K: 8, Block: 8, Type: graph.I8}, {M: 1, N: 1, K: 8, Scaled: true, Type: graph.I8}} {
		cfg.Bytes = true
		if _, err := New(cfg, p); err == nil {
			t.Errorf("%+v is accepted", cfg)
		}
	}
	if err := Bytes(); (err == nil) != (kernels[0].integers != nil && kernels[0].integers.bytes != nil) {
		t.Error(err)
	}
}
