package grouptest

import (
	"bytes"
	"fmt"
	"math"

	"fusec/graph"
	"fusec/kernels/group"
)

// A Doer makes a collective operation on values whose parts follow one another, as [group.Team.Collective] does.
type Doer func(op graph.Collective, d graph.DType, x, y []byte) error

// Collectives makes collective operations of all kinds, on several types and sizes, for the participant at a place of n, and
// compares them with what they are by definition. Sums may be added in any order. All participants call it.
func Collectives(n, place int, do Doer) error {
	of := graph.Group{Parts: n}
	ops := []graph.Collective{graph.AllReduce{Fn: graph.Sum, Group: of}, graph.AllReduce{Fn: graph.Mean, Group: of},
		graph.ReduceScatter{Fn: graph.Sum, Group: of}, graph.AllGather{Group: of}, graph.AllToAll{Group: of},
		graph.Permute{Shift: 1, Group: of}, graph.Permute{Shift: -n - 2, Group: of}, graph.BroadcastFrom{Root: n - 1, Group: of}}
	for _, op := range ops {
		for _, d := range []graph.DType{graph.F32, graph.F64, graph.BF16, graph.F16, graph.I32, graph.U8} {
			for _, size := range []int{1, 3, 1000} {
				if r, ok := op.(graph.AllReduce); ok && r.Fn == graph.Mean && !d.IsReal() {
					continue
				}
				if err := collective(op, d, n, place, size*n, do); err != nil {
					return fmt.Errorf("participant %d of %d, %s of %d elements of %v: %w", place, n, op.OpName(), size*n, d, err)
				}
			}
		}
	}
	return nil
}

// of is a participant's values, which all know.
func of(d graph.DType, rank, size int) *graph.Tensor {
	x, t := values(rank, size), graph.NewTensor(graph.TypeOf(d, size))
	for i := range size {
		v := x.Float(i)
		if !d.IsReal() {
			v = math.Abs(math.Round(8 * v))
		}
		t.SetFloat(i, v)
	}
	return t
}

func collective(op graph.Collective, d graph.DType, n, place, size int, do Doer) error {
	terms := make([]*graph.Tensor, n)
	for r := range terms {
		terms[r] = of(d, r, size)
	}
	x := terms[place].Bytes()
	y := graph.NewTensor(graph.TypeOf(d, group.ResultBytes(op, size, n)))
	if err := do(op, d, x, y.Bytes()); err != nil {
		return err
	}
	part := func(t *graph.Tensor, i int) []byte { return t.Bytes()[len(x)/n*i:][:len(x)/n] }
	var want []byte
	switch op := op.(type) {
	case graph.AllReduce:
		return sums(op.Fn, terms, y, 0)
	case graph.ReduceScatter:
		return sums(op.Fn, terms, y, size/n*place)
	case graph.AllGather:
		for _, t := range terms {
			want = append(want, t.Bytes()...)
		}
	case graph.AllToAll:
		for _, t := range terms {
			want = append(want, part(t, place)...)
		}
	case graph.Permute:
		_, last := group.Neighbours(place, op.Shift, n)
		want = terms[last].Bytes()
	case graph.BroadcastFrom:
		want = terms[op.Root].Bytes()
	}
	if !bytes.Equal(y.Bytes(), want) {
		return fmt.Errorf("the result is something else")
	}
	return nil
}

// sums compares sums of the terms' elements from one on.
func sums(f graph.ReduceFn, terms []*graph.Tensor, y *graph.Tensor, from int) error {
	eps := map[graph.DType]float64{graph.F32: 1e-6, graph.F64: 1e-14, graph.F16: 2e-3, graph.BF16: 1e-2}[y.Type.DType]
	for i := range y.Type.Shape.Elems() {
		want, bound := 0.0, 0.0
		for _, t := range terms {
			want += t.Float(from + i)
			bound += math.Abs(t.Float(from + i))
		}
		if f == graph.Mean {
			want /= float64(len(terms))
		}
		if got := y.Float(i); !(math.Abs(got-want) <= eps*bound) {
			return fmt.Errorf("element %d is %g, not %g", i, got, want)
		}
	}
	return nil
}
