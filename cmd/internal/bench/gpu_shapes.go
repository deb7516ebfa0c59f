package bench

import (
	"fmt"
	"math"

	"fusec"
	"fusec/graph"
)

// A productShape is a product C[m,n] = Σ_k A[m,k]·B[k,n] for each matrix of a batch, in bf16. transA says that A lies as [k,m],
// transB that B lies as [n,k].
type productShape struct {
	batch, m, k, n int
	transA, transB bool
}

// alignedShapes have rows of whole multiples of 16 bytes; the rows of oddShapes do not, or their tiles are not full. The rivals'
// program has the same list.
var (
	alignedShapes = []productShape{
		{1, 1024, 1024, 1024, false, false}, {1, 4096, 4096, 4096, false, false}, {1, 4096, 4096, 4096, true, false},
		{1, 4096, 4096, 4096, false, true}, {1, 8192, 8192, 8192, false, false}, {1, 512, 4096, 4096, false, false},
		{1, 16384, 1024, 4096, false, false}, {1, 256, 16384, 4096, false, false}, {1, 65536, 256, 1024, false, false},
		{1, 4096, 14336, 4096, false, true}, {1, 128, 8192, 8192, false, false}, {1, 8192, 64, 8192, false, false},
		{64, 512, 512, 512, false, false}, {16, 2048, 128, 2048, false, true}, {32, 256, 1024, 256, true, false},
	}
	oddShapes = []productShape{
		{1, 1000, 1000, 1000, false, false}, {1, 4095, 4095, 4095, false, false}, {1, 4097, 4096, 4096, false, false},
		{1, 4096, 4097, 4096, false, false}, {1, 4096, 4096, 4097, false, false}, {1, 2047, 1023, 513, true, false},
		{1, 2047, 1023, 513, false, true}, {1, 777, 1333, 2049, false, false}, {1, 8192, 768, 50257, false, true},
		{1, 127, 8191, 8191, false, false}, {1, 65537, 65, 129, false, false}, {1, 20000, 300, 300, false, false},
		{1, 333, 30000, 77, false, false}, {33, 333, 77, 555, false, false}, {100, 100, 100, 100, false, true},
	}
)

// shapeWorks are products of many shapes in bf16.
func shapeWorks(small bool) []*gpuWork {
	aligned, odd := alignedShapes, oddShapes
	if small {
		aligned, odd = []productShape{{2, 16, 24, 8, true, false}}, []productShape{{1, 7, 5, 9, false, true}}
	}
	var list []*gpuWork
	for _, s := range aligned {
		list = append(list, s.measured("aligned"))
	}
	for _, s := range odd {
		list = append(list, s.measured("odd"))
	}
	return list
}

// side is the shape of an operand of rows × columns, or of its transpose.
func (s productShape) side(rows, columns int, transposed bool) graph.Type {
	if transposed {
		rows, columns = columns, rows
	}
	if s.batch == 1 {
		return graph.TypeOf(graph.BF16, rows, columns)
	}
	return graph.TypeOf(graph.BF16, s.batch, rows, columns)
}

func (s productShape) measured(kind string) *gpuWork {
	name := fmt.Sprintf("product %s %dx%dx%d", kind, s.m, s.k, s.n)
	if s.batch > 1 {
		name += fmt.Sprintf(" batch %d", s.batch)
	}
	if s.transA {
		name += " Aᵀ"
	}
	if s.transB {
		name += " Bᵀ"
	}
	return &gpuWork{name: name, unit: teraFLOPs, precision: fusec.BF16, check: s.check,
		work:  2 * float64(s.batch) * float64(s.m) * float64(s.k) * float64(s.n),
		scale: map[string]float64{"w": 1 / math.Sqrt(float64(s.k))},
		build: func(b *graph.Builder) {
			x, w := b.Input("x", s.side(s.m, s.k, s.transA)), b.Input("w", s.side(s.k, s.n, s.transB))
			b.Output("y", b.CastTo(graph.BF16, b.MatMul(x, w, s.transA, s.transB)))
		}}
}

// check compares sampled elements of sampled matrices.
func (s productShape) check(v *gpuValues) error {
	x, w := v.in["x"], v.in["w"]
	// at is an element of a matrix of the given size in a batch, which may lie transposed.
	at := func(t *graph.Tensor, matrix, row, column, rows, columns int, transposed bool) float64 {
		i := row*columns + column
		if transposed {
			i = column*rows + row
		}
		return t.Float(matrix*rows*columns + i)
	}
	return each(samples(s.batch*s.m), func(r int) error {
		matrix, row := r/s.m, r%s.m
		for _, column := range samples(s.n) {
			sum := termSum{}
			for i := range s.k {
				sum.add(at(x, matrix, row, i, s.m, s.k, s.transA) * at(w, matrix, i, column, s.k, s.n, s.transB))
			}
			if err := sum.compare("y", v, r*s.n+column, operandError(fusec.BF16)); err != nil {
				return err
			}
		}
		return nil
	})
}
