package cpu

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/ref"
)

// recurrenceOperands draws the operands of a recurrence.
func recurrenceOperands(r *rand.Rand, cell graph.Cell, d graph.DType, steps, n, h int) []*graph.Tensor {
	args := []*graph.Tensor{drawTensor(r, d, -1, 1, steps, n, cell.Gates()*h), drawTensor(r, d, -0.2, 0.2, h, cell.Gates()*h),
		drawTensor(r, d, -1, 1, n, h)}
	switch cell {
	case graph.LSTM:
		args = append(args, drawTensor(r, d, -1, 1, n, h))
	case graph.GRUAfter:
		args = append(args, drawTensor(r, d, -1, 1, h))
	}
	return args
}

// TestRecurrence takes layers of several items, forward and backward.
func TestRecurrence(t *testing.T) {
	r := rand.New(rand.NewPCG(51, 52))
	for cell := graph.TanhCell; cell <= graph.GRUAfter; cell++ {
		for _, d := range []graph.DType{graph.F32, graph.F64} {
			for i, s := range [][3]int{{4, 1, 33}, {3, 7, 40}, {5, 3, 65}, {2, 40, 65}, {4, 6, 70}, {4, 6, 64}, {5, 65, 20}} {
				args := recurrenceOperands(r, cell, d, s[0], s[1], s[2])
				checkOp(t, graph.Recurrence{Cell: cell, Reverse: i == 1}, args...)
				for range 2 * cell.Results() {
					args = append(args, drawTensor(r, d, -1, 1, s[0], s[1], s[2]))
				}
				checkOp(t, graph.RecurrenceGrad{Cell: cell, Reverse: i == 1}, args...)
			}
		}
	}
}

// TestRecurrenceFrozen packs frozen weights once, and again after a thaw, of sequences for each worker, of many and of few.
func TestRecurrenceFrozen(t *testing.T) {
	for _, n := range []int{5, 2, 19} {
		frozenRecurrence(t, n)
	}
}

func frozenRecurrence(t *testing.T, n int) {
	r := rand.New(rand.NewPCG(53, 54))
	p := pool.New(2)
	defer p.Close()
	op := graph.Recurrence{Cell: graph.LSTM}
	args := recurrenceOperands(r, op.Cell, graph.F32, 3, n, 20)
	var from []Operand
	var in []Memory
	for _, a := range args {
		from, in = append(from, Contiguous(a.Type)), append(in, MemoryOf(a))
	}
	from[1].Frozen = true
	y, c := graph.NewTensor(graph.TypeOf(graph.F32, 3, n, 20)), graph.NewTensor(graph.TypeOf(graph.F32, 3, n, 20))
	k, err := Compile(op, from, []Operand{Contiguous(y.Type), Contiguous(c.Type)}, NewEnv(p))
	if err != nil {
		t.Fatal(err)
	}
	check := func() error {
		t.Helper()
		if err := k.Run(in, []Memory{MemoryOf(y), MemoryOf(c)}); err != nil {
			t.Fatal(err)
		}
		values := make([]ref.Value, len(args))
		for i, a := range args {
			values[i] = ref.FromTensor(a)
		}
		want, err := ref.OpBound(op, values)
		if err != nil {
			t.Fatal(err)
		}
		return ref.Check(y, want[0])
	}
	if err := check(); err != nil {
		t.Error(err)
	}
	args[1].CopyFrom(drawTensor(r, graph.F32, -1, 1, 20, 80))
	if check() == nil {
		t.Error("frozen weights were read again without a thaw")
	}
	Thaw(k)
	if err := check(); err != nil {
		t.Error(err)
	}
	if n := Bytes(k); n < args[1].Type.Bytes() {
		t.Errorf("%d bytes are kept", n)
	}
}

// BenchmarkRecurrence runs a layer of 256 elements over 100 steps.
func BenchmarkRecurrence(b *testing.B) {
	r := rand.New(rand.NewPCG(55, 56))
	for _, cell := range []graph.Cell{graph.TanhCell, graph.GRUAfter, graph.LSTM} {
		for _, n := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("%s/%d", cell, n), func(b *testing.B) {
				p := pool.New(2)
				defer p.Close()
				k, err := stand(graph.Recurrence{Cell: cell}, recurrenceOperands(r, cell, graph.F32, 100, n, 256), p)
				if err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					if err := k.run(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
