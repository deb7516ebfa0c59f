package moves_test

import (
	"fmt"
	"strings"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda"
	"fusec/passes"
	"fusec/passes/passtest"
	"fusec/passes/rewrite"
)

// A decoder writes what follows the products of a token's norm.
type decoder struct {
	*graph.Builder
	at, x *graph.Node
}

const (
	heads, size, capacity = 3, 6, 5
)

func (b *decoder) product(name string) *graph.Node {
	y := b.MatMul(b.x, b.Param("w"+name, graph.TypeOf(graph.F32, 7, heads*size)), false, false)
	return b.Reshape(y, 2, heads, 1, size)
}

func (b *decoder) turned(x *graph.Node) *graph.Node { return b.Add(graph.RoPE{Base: 100}, x, b.at) }

func (b *decoder) half(x *graph.Node) *graph.Node { return b.CastTo(graph.BF16, x) }

func (b *decoder) cached(name string, x *graph.Node) *graph.Node {
	return b.Cache(name, 2, capacity, x, b.at)
}

// sum hands out the sum of all elements of values.
func (b *decoder) sum(values ...*graph.Node) {
	for i, v := range values {
		b.Output(fmt.Sprint("sum", i), b.Reduce(graph.Sum, b.CastTo(graph.F32, v), false, 0, 1, 2, 3))
	}
}

// joined lists the operations of each launch of moves, those of a result after another.
func joined(t *testing.T, target rewrite.Target, build func(b *decoder)) string {
	t.Helper()
	g := graphtest.Built(t, func(b *graph.Builder) {
		d := &decoder{Builder: b, at: b.Input("at", graph.TypeOf(graph.I64))}
		d.x = b.Unary(graph.Exp, b.Input("x", graph.TypeOf(graph.F32, 2, 7)))
		build(d)
	})
	h, _ := passtest.Run(t, g, passes.Config{Target: target, Frozen: true})
	var list []string
	for _, n := range h.Nodes {
		if f, ok := n.Op.(graph.Fusion); ok && f.Anchor == graph.AnchorMoves {
			var ops []string
			for _, m := range f.Body.Nodes {
				if c := graph.ClassOf(m.Op); c != graph.ClassSource && c != graph.ClassView {
					ops = append(ops, m.Op.OpName())
				}
			}
			list = append(list, strings.Join(ops, " "))
		}
	}
	return strings.Join(list, "; ")
}

func TestJoin(t *testing.T) {
	for _, c := range []struct {
		name, want string
		build      func(b *decoder)
	}{
		{"queries, keys and values", "rope cast rope cast update_slice cast update_slice", func(b *decoder) {
			q, k := b.half(b.turned(b.product("q"))), b.cached("keys", b.half(b.turned(b.product("k"))))
			b.Output("q", q)
			b.sum(k, b.cached("values", b.half(b.product("v"))))
		}},
		{"of one product, in f32", "rope rope update_slice", func(b *decoder) {
			x := b.Named(b.product("qk"), "qk")
			b.sum(b.turned(b.Slice(x, 1, 0, 1, 1)), b.cached("keys", b.turned(b.Slice(x, 1, 1, 2, 1))))
		}},
		{"a rotation and its cast", "rope cast", func(b *decoder) { b.Output("q", b.half(b.turned(b.product("q")))) }},
		{"a rotation alone", "", func(b *decoder) { b.sum(b.turned(b.product("q"))) }},
		{"casts alone", "", func(b *decoder) {
			b.Output("q", b.half(b.product("q")))
			b.Output("k", b.half(b.product("k")))
		}},
		{"a rotation that is handed out", "cast update_slice", func(b *decoder) {
			k := b.turned(b.product("k"))
			b.Output("k", k)
			b.sum(b.cached("keys", b.half(k)))
		}},
		{"keys of keys", "rope update_slice; rope update_slice", func(b *decoder) {
			k := b.cached("keys", b.turned(b.product("k")))
			b.x = b.Unary(graph.Tanh, b.Reshape(b.Slice(b.Slice(b.Slice(k, 2, 0, 1, 1), 1, 0, 2, 1), 3, 0, 3, 1), 2, 6))
			b.x = b.Add(graph.Concat{Axis: 1}, b.x, b.Slice(b.x, 1, 0, 1, 1))
			b.sum(b.cached("more", b.turned(b.product("m"))))
		}},
		{"a cache that something else reads", "rope rope", func(b *decoder) {
			state := b.State("keys", graph.TypeOf(graph.F32, 2, heads, capacity, size))
			b.Update(state, b.Add(graph.UpdateSlice{Axis: 2}, state, b.turned(b.product("k")), b.at))
			b.sum(b.Unary(graph.Exp, state), b.turned(b.product("q")))
		}},
		{"where a cache is not updated", "", func(b *decoder) {
			zeros := b.Param("zeros", graph.TypeOf(graph.F32, 2, heads, capacity, size))
			b.sum(b.Add(graph.UpdateSlice{Axis: 2}, zeros, b.turned(b.product("k")), b.at))
		}},
	} {
		if got := joined(t, cuda.New(cuda.Precision(0)), c.build); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		if got := joined(t, cpu.New(), c.build); got != "" {
			t.Errorf("%s: on the processor %q", c.name, got)
		}
	}
}
