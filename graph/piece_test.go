package graph_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"fusec/graph"
)

// TestPieces cuts random tensors in two random ways, and makes the pieces of one way of those of the other.
func TestPieces(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	m := meshOf(t, "a=2,b=3,c=1")
	// cut is the pieces that the participants have, each once.
	cut := func(x *graph.Tensor) (list []graph.Piece) {
		s := graph.Replicated
		for a, axis := range m {
			if d := r.IntN(x.Type.Shape.Rank() + 1); d < x.Type.Shape.Rank() && x.Type.Shape.At(d)%(axis.Size*m.Parts(s.Split[d])) == 0 {
				s.Split[d] |= 1 << a
			}
		}
		copies := map[[graph.MaxRank]int]int{}
		for rank := range m.Size() {
			part, err := s.Part(m, x, rank)
			if err != nil {
				t.Fatal(err)
			}
			p := s.Piece(m, part, rank)
			if err := p.Check(); err != nil {
				t.Fatal(err)
			}
			full := x.Type.Shape.Elems() > 0
			if p.Whole != x.Type.Shape || full && p.Copy != copies[p.At] || p.Copies != m.Parts(m.All()&^s.Over()) {
				t.Fatalf("%v of %v: copy %d of %d, of %v, after %d", s.Text(m, x.Type.Shape.Rank()), m, p.Copy, p.Copies, p.Whole,
					copies[p.At])
			}
			if copies[p.At]++; p.Copy == 0 {
				list = append(list, p)
			}
		}
		return list
	}
	for range 300 {
		dims := make([]int, r.IntN(4))
		for i := range dims {
			dims[i] = r.IntN(7) * (1 + r.IntN(2)*5)
		}
		x := graph.NewTensor(graph.TypeOf(graph.I16, dims...))
		for i := range x.Type.Shape.Elems() {
			x.SetInt(i, int64(r.IntN(1000)))
		}
		from, to := cut(x), cut(x)
		for _, p := range to {
			got, filled := p, 0
			got.Tensor = graph.NewTensor(p.Type)
			for _, q := range from {
				n, err := got.Fill(q)
				if err != nil {
					t.Fatal(err)
				}
				if n != got.Common(q) {
					t.Errorf("%d elements are filled, of %d", n, got.Common(q))
				}
				filled += n
			}
			if filled != p.Type.Shape.Elems() || !got.Equal(p.Tensor) {
				t.Fatalf("%v: a piece of shape %v at %v has %d elements, or others", x.Type, p.Type.Shape, p.At, filled)
			}
		}
	}
}

func TestPieceRefused(t *testing.T) {
	f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
	four := graph.Piece{Tensor: graph.NewTensor(f(4)), Whole: graph.ShapeOf(4)}
	for want, p := range map[string]graph.Piece{
		"no tensor":                         {},
		"a piece of shape [4] of a value":   {Tensor: four.Tensor, Whole: graph.ShapeOf(4, 1)},
		"begins at 1 of axis 0":             {Tensor: four.Tensor, Whole: graph.ShapeOf(4), At: [graph.MaxRank]int{1}},
		"begins at -1 of axis 0":            {Tensor: four.Tensor, Whole: graph.ShapeOf(4), At: [graph.MaxRank]int{-1}},
		"stored in few bits, are not split": {Tensor: graph.NewTensor(graph.TypeOf(graph.I4, 2)), Whole: graph.ShapeOf(4)},
		"elements":                          {Tensor: four.Tensor, Whole: graph.ShapeOf(1<<30, 1<<30)},
	} {
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	if err := four.Check(); err != nil {
		t.Error(err)
	}
	for _, other := range []graph.Piece{
		{Tensor: graph.NewTensor(graph.TypeOf(graph.F64, 4)), Whole: graph.ShapeOf(4)},
		{Tensor: graph.NewTensor(f(4)), Whole: graph.ShapeOf(5)},
	} {
		if _, err := four.Fill(other); err == nil || !strings.Contains(err.Error(), "are not of one value") {
			t.Errorf("error %v", err)
		}
	}
}
