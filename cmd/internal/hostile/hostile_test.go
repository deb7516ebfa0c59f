package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fusec/graph"
	"fusec/graph/graphtest"
)

// TestFindings runs all checks over what the fuzzer has found and that has been corrected.
func TestFindings(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join("testdata", "*.graph"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("%d findings: %v", len(paths), err)
	}
	k := checker{cuda: !testing.Short(), fpga: true}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".graph"), func(t *testing.T) {
			c, err := graphtest.Load(path)
			if err != nil {
				t.Fatal(err)
			}
			if f := k.check(c); f != nil {
				t.Error(f)
			}
		})
	}
}

// TestSeeds runs the checks over some seeds.
func TestSeeds(t *testing.T) {
	for seed := range uint64(20) {
		k := checker{fpga: true}
		if f := k.check(graphtest.Hostile(seed, nil)); f != nil {
			t.Errorf("seed %d: %v", seed, f)
		}
	}
}

// TestPlantedFault lets a pass do wrong: the fault is found and the case made small.
func TestPlantedFault(t *testing.T) {
	k := checker{after: func(g *graph.Graph) { // tanh and its operand in any launch become erf
		for _, n := range g.Nodes {
			if f, ok := n.Op.(graph.Fusion); ok {
				for _, m := range f.Body.Nodes {
					if u, ok := m.Op.(graph.Unary); ok && u.Fn == graph.Tanh {
						m.Op = graph.Unary{Fn: graph.Erf}
					}
				}
			}
		}
	}}
	found := 0
	for seed := range uint64(60) {
		c := graphtest.Hostile(seed, nil)
		f := k.check(c)
		if f == nil {
			continue
		}
		if f.kind != "value" {
			t.Fatalf("seed %d: %v", seed, f)
		}
		again := k
		again.only = f.check
		small := minimise(c, func(c *graphtest.Case) bool { return f.like(again.check(c)) }, time.Now().Add(time.Minute))
		if n := len(small.Graph.Nodes); n > 4 {
			t.Errorf("seed %d: %d nodes are left of %d:\n%s", seed, n, len(c.Graph.Nodes), graph.Print(small.Graph))
		}
		if !f.like(again.check(small)) {
			t.Errorf("seed %d: the smaller case does not fail", seed)
		}
		if found++; found == 3 {
			return
		}
	}
	t.Errorf("the fault was found by %d of 60 seeds", found)
}

// TestLike tells failures of one fault from others.
func TestLike(t *testing.T) {
	a := &failure{"cuda", "error", `launch 3, fusion %17: no kernel for f32[3,4] (x.go:7)`}
	for _, tt := range []struct {
		f    *failure
		want bool
	}{
		{&failure{"cuda", "error", `launch 1, fusion %2: no kernel for f32[1,1] (y.go:9)`}, true},
		{&failure{"cuda", "error", `launch 1, fusion %2: out of memory`}, false},
		{&failure{"cuda", "panic", a.text}, false},
		{&failure{"text", "error", a.text}, false},
		{nil, false},
	} {
		if a.like(tt.f) != tt.want {
			t.Errorf("%v like %v: want %v", a, tt.f, tt.want)
		}
	}
}
