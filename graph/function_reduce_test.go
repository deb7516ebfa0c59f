package graph

import (
	"slices"
	"strings"
	"testing"
)

// TestReductionsAreWhole takes each fact out of a row, and a row out of a target's answers: the check names the reduction or
// pool.
func TestReductionsAreWhole(t *testing.T) {
	if err := checkReductions(reduceRows[:], poolRows[:]); err != nil {
		t.Fatal(err)
	}
	reduction := func(change func(*ReduceInfo)) error {
		rows := slices.Clone(reduceRows[:])
		change(&rows[Prod])
		return checkReductions(rows, poolRows[:])
	}
	pool := func(change func(*PoolInfo)) error {
		rows := slices.Clone(poolRows[:])
		change(&rows[AvgPool])
		return checkReductions(reduceRows[:], rows)
	}
	for _, c := range []struct {
		err  error
		want string
	}{
		{reduction(func(r *ReduceInfo) { *r = ReduceInfo{} }), "reduction 2 has no row"},
		{reduction(func(r *ReduceInfo) { r.Fn = Mean }), "row of prod is that of reduction 1"},
		{reduction(func(r *ReduceInfo) { r.Doc = "" }), "prod lacks"},
		{reduction(func(r *ReduceInfo) { r.Symbol = "" }), "prod lacks"},
		{reduction(func(r *ReduceInfo) { r.Of = Integers }), "prod lacks"},
		{reduction(func(r *ReduceInfo) { r.Join = Sub }), "prod joins elements by sub"},
		{reduction(func(r *ReduceInfo) { r.IdentityInt = nil }), "prod needs IdentityInt"},
		{reduction(func(r *ReduceInfo) { r.Grad = nil }), "prod has no gradient"},
		{pool(func(r *PoolInfo) { *r = PoolInfo{} }), "pool 1 has no row"},
		{pool(func(r *PoolInfo) { r.Fn = MaxPool }), "row of avg is that of pool 0"},
		{pool(func(r *PoolInfo) { r.Doc = "" }), "avg lacks"},
		{pool(func(r *PoolInfo) { r.GradGrad = nil }), "avg lacks"},
		{CheckReductions("mars", map[ReduceFn]int{Sum: 1, Mean: 0, Prod: 2, MinOf: 4}), "mars has no answer for the reduction max"},
		{CheckPools("mars", map[PoolFn]bool{MaxPool: true}), "mars has no answer for the pool avg"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %q", c.err, c.want)
		}
	}
}
