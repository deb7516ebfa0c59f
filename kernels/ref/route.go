package ref

import (
	"math"
	"slices"

	"fusec/graph"
)

// falling lists the indices of a row from the largest element to the smallest: of equal ones the first comes first, and
// NaN comes last.
func falling(row []float64) []int {
	order := make([]int, len(row))
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		x, y := row[i], row[j]
		switch {
		case x > y || math.IsNaN(y) && !math.IsNaN(x):
			return -1
		case x < y || math.IsNaN(x) && !math.IsNaN(y):
			return 1
		}
		return 0
	})
	return order
}

var _ = formulas.Add("top_k", func(op graph.Op, a []Value, types []graph.Type, bound bool) ([]Value, error) {
	return topK(op.(graph.TopK), a[0], types, bound), nil
})

// topK sorts each row. Which element comes first is unsure where others stand within its error.
func topK(op graph.TopK, x Value, types []graph.Type, bound bool) []Value {
	values, at := zeros(types[0]), zeros(types[1])
	if bound {
		values.Mag, at.Mag = make([]float64, values.Len()), make([]float64, at.Len())
	}
	n := x.Type.Shape.At(x.Type.Shape.Rank() - 1)
	for row := 0; op.K > 0 && row*op.K < values.Len(); row++ {
		order := falling(x.F[row*n:][:n])
		for k, i := range order[:op.K] {
			to := row*op.K + k
			values.F[to], at.I[to] = x.F[row*n+i], int64(i)
			if !bound {
				continue
			}
			values.Mag[to] = x.mag(row*n + i)
			if !apart(x, row*n, order, k) {
				at.Mag[to] = unsure
			}
		}
		if bound { // a rank's value moves no further than the element of the row that may move most
			for k := range op.K {
				for i := range n {
					values.Mag[row*op.K+k] = max(values.Mag[row*op.K+k], x.mag(row*n+i))
				}
			}
		}
	}
	return []Value{values, at}
}

// apart reports whether the element of rank k of a row that starts at element first stands further from its
// neighbours in rank than the errors of both.
func apart(x Value, first int, order []int, k int) bool {
	for _, next := range []int{k - 1, k + 1} {
		if next < 0 || next >= len(order) {
			continue
		}
		i, j := first+order[k], first+order[next]
		if room := x.Type.DType.Tolerance() * (x.mag(i) + x.mag(j)); room > 0 && math.Abs(x.F[i]-x.F[j]) <= room {
			return false
		}
	}
	return true
}

var _ = formulas.Add("route", func(op graph.Op, a []Value, types []graph.Type, bound bool) ([]Value, error) {
	return route(op.(graph.Route), a[0], types, bound), nil
})

// route makes every choice by the definition. All of it is unsure if any two scores of one chooser stand within their
// errors: with a capacity, one choice moves others.
func route(op graph.Route, x Value, types []graph.Type, bound bool) []Value {
	sent, dropped := zeros(types[0]), zeros(types[1])
	experts := x.Type.Shape.At(x.Type.Shape.Rank() - 1)
	tokens := 0
	if experts > 0 {
		tokens = x.Len() / experts
	}
	sure := true
	ranks := func(n, first, step int) []int {
		line := Value{Type: x.Type, F: make([]float64, n), Mag: make([]float64, n)}
		for i := range n {
			line.F[i], line.Mag[i] = x.F[first+i*step], x.mag(first+i*step)
		}
		order := falling(line.F)
		for k := range order {
			sure = sure && apart(line, 0, order, k)
		}
		return order
	}
	chosen := func(i int) bool { return !math.IsNaN(x.F[i]) && !math.IsInf(x.F[i], -1) }
	if op.ExpertChoice {
		for e := range experts {
			for _, t := range ranks(tokens, e, experts)[:min(op.Capacity, tokens)] {
				if chosen(t*experts + e) {
					sent.I[t*experts+e] = 1
				}
			}
		}
		for t := range tokens {
			if !slices.Contains(sent.I[t*experts:][:experts], 1) {
				dropped.I[0]++
			}
		}
	} else {
		order := make([][]int, tokens)
		for t := range order {
			order[t] = ranks(experts, t*experts, 1)
		}
		load := make([]int, experts)
		for k := range op.K {
			for t := range order {
				e := order[t][k]
				switch {
				case !chosen(t*experts + e):
				case op.Capacity > 0 && load[e] == op.Capacity:
					dropped.I[e]++
				default:
					load[e]++
					sent.I[t*experts+e] = 1
				}
			}
		}
	}
	if bound && !sure {
		sent.Mag, dropped.Mag = filled(sent.Len(), unsure), filled(dropped.Len(), unsure)
	}
	return []Value{sent, dropped}
}

func filled(n int, v float64) []float64 {
	s := make([]float64, n)
	for i := range s {
		s[i] = v
	}
	return s
}
