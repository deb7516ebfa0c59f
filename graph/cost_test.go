package graph_test

import (
	"math"
	"testing"

	"fusec/graph"
)

func TestCost(t *testing.T) {
	for expr, want := range map[string]graph.Cost{
		"const[value=1] : f32":              {},
		"reshape[shape=[3,2]] m":            {},
		"slice[axis=1 size=2 step=1] m i":   {},
		"matmul m n":                        {FLOPs: 2 * 2 * 3 * 5, ReadBytes: 4 * (6 + 15), WriteBytes: 4 * 10},
		"matmul[trans_a=true] m m":          {FLOPs: 2 * 2 * 9, ReadBytes: 4 * 12, WriteBytes: 4 * 9},
		"unary[fn=neg] m":                   {FLOPs: 6, ReadBytes: 24, WriteBytes: 24},
		"unary[fn=exp] d":                   {FLOPs: 72, ReadBytes: 48, WriteBytes: 48},
		"binary[fn=lt] m s":                 {FLOPs: 6, ReadBytes: 28, WriteBytes: 6},
		"select b m s":                      {FLOPs: 6, ReadBytes: 34, WriteBytes: 24},
		"cast[to=f64] m":                    {ReadBytes: 24, WriteBytes: 48},
		"reduce[fn=sum axes=[1]] m":         {FLOPs: 6, ReadBytes: 24, WriteBytes: 8},
		"gather[axis=0] m i":                {ReadBytes: 32, WriteBytes: 12},
		"scatter_add[axis=0 size=9] ints m": {FLOPs: 6, ReadBytes: 48, WriteBytes: 36},
		"softmax[axis=0] m":                 {FLOPs: 96, ReadBytes: 24, WriteBytes: 24},
		"batch_norm c v4 v4 v4 v4":          {FLOPs: 8 * 280, ReadBytes: 4 * (280 + 16), WriteBytes: 4 * (280 + 8)},
		"dropout m i":                       {FLOPs: 6, ReadBytes: 32, WriteBytes: 24},
		"batch_norm c v4 v4 v4 v4\n%99 = result[index=1] %13": {},
		"conv2d[stride=[1,1] dilation=[1,1] pad=[0,0,0,0] groups=2] c w": {
			FLOPs: 2 * (2 * 6 * 3 * 5) * (2 * 3 * 3), ReadBytes: 4 * (280 + 108), WriteBytes: 4 * 180},
		"conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] groups=2] c w\n%14 = conv2d_transpose[stride=[1,1] dilation=[1,1] " +
			"pad=[1,1,1,1] groups=2 h=5 w=7] %13 w": {
			FLOPs: 2 * (2 * 6 * 5 * 7) * (2 * 3 * 3), ReadBytes: 4 * (420 + 108), WriteBytes: 4 * 280},
		"conv2d[stride=[1,1] dilation=[1,1] pad=[1,1,1,1] groups=2] c w\n%14 = conv2d_filter_grad[stride=[1,1] dilation=[1,1] " +
			"pad=[1,1,1,1] groups=2 kh=3 kw=3] c %13": {
			FLOPs: 2 * (2 * 6 * 5 * 7) * (2 * 3 * 3), ReadBytes: 4 * (280 + 420), WriteBytes: 4 * 108},
		"pool[fn=max kernel=[3,2] stride=[1,1] pad=[0,0,0,0]] c": {
			FLOPs: 6 * 2 * 4 * 3 * 6, ReadBytes: 4 * 280, WriteBytes: 4 * 144},
		"fusion[anchor=none kind=elementwise] m {\nx = input : f32[2,3]\n%1 = unary[fn=exp] x\n%2 = binary[fn=add] %1 x\n" +
			"output y = %2\n}": {
			FLOPs: 72 + 6, ReadBytes: 24, WriteBytes: 24},
	} {
		g, err := parse("%13 = " + expr)
		if err != nil {
			t.Fatal(err)
		}
		if got := graph.CostOf(g.Nodes[len(g.Nodes)-1]); got != want {
			t.Errorf("%s: %+v, want %+v", expr, got, want)
		}
	}
	if c := (graph.Cost{FLOPs: 11, ReadBytes: 22, WriteBytes: 33}); c.Bytes() != 55 {
		t.Errorf("%d bytes", c.Bytes())
	}
	if c := graph.CostOf(&graph.Node{Op: negate}); c != (graph.Cost{}) {
		t.Errorf("cost of a bad node: %v", c)
	}
}

// TestCostDoesNotOverflow has sizes that the type rules accept, but whose product is too large.
func TestCostDoesNotOverflow(t *testing.T) {
	for _, src := range []string{
		"x = input : f32[1,1,524288,524288]\nw = input : f32[1,1,524288,524288]\n" +
			"y = conv2d[stride=[1,1] dilation=[1,1] pad=[262144,262144,262144,262144] groups=1] x w",
		"x = input : f32[1,1,524288,524288]\n" +
			"y = pool[fn=max kernel=[524288,524288] stride=[1,1] pad=[262144,262144,262144,262144]] x",
	} {
		g, err := graph.Parse("m.graph", []byte("fusec graph 1 {\n"+src+"\n}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if c := graph.CostOf(g.Nodes[len(g.Nodes)-1]); c.FLOPs != math.MaxInt64 {
			t.Errorf("%s: %v", src, c)
		}
	}
}
