package simplify

import (
	"slices"

	"fusec/graph"
	"fusec/graph/trace"
)

// moveRules drop operations that do not move data:
//
//	a ─┐                          a ─┐
//	b ─ concat ─┐                 b ─ concat ─►
//	          c ─ concat ─►       c ─┘
var moveRules = []Rule{
	{"concat-one", "concat of one → its operand", trace.Exact, []graph.Op{graph.Concat{}}, concatOne},
	{"concat-concat", "concat of a concat along the same axis, read once → one", trace.Exact, []graph.Op{graph.Concat{}},
		concatConcat},
	{"concat-slices", "concat of slices of one value that follow one another along the axis → one slice, or the value", trace.Exact,
		[]graph.Op{graph.Concat{}}, concatSlices},
	{"pad-nothing", "pad by nothing → its operand", trace.Exact, []graph.Op{graph.Pad{}}, padNothing},
	{"pool-rounded", "maximum pool of rounded and limited numbers, read once → these of the pool", trace.Exact,
		[]graph.Op{graph.Pool{}}, poolRounded},
	{"dropout-nothing", "dropout of nothing → its operand", trace.Exact, []graph.Op{graph.Dropout{}}, dropoutNothing},
}

func concatOne(_ *simplifier, n *graph.Node) *graph.Node {
	if len(n.Args) == 1 {
		return n.Args[0]
	}
	return nil
}

func concatConcat(s *simplifier, n *graph.Node) *graph.Node {
	var args []*graph.Node
	for _, a := range n.Args {
		if a.Op == n.Op && s.oneUse(a) {
			args = append(args, a.Args...)
		} else {
			args = append(args, a)
		}
	}
	if len(args) == len(n.Args) {
		return nil
	}
	return s.b.Add(n.Op, args...)
}

// concatSlices leaves what repeats slices, such as the keys of grouped queries, as it is written: attention reads it so.
func concatSlices(s *simplifier, n *graph.Node) *graph.Node {
	axis := n.Op.(graph.Concat).Axis
	seen := make(map[*graph.Node]bool, len(n.Args))
	for _, a := range n.Args {
		if seen[a] {
			return nil
		}
		seen[a] = true
	}
	// start is where a is taken from a value without gaps.
	start := func(a *graph.Node) (int, bool) {
		op, ok := a.Op.(graph.Slice)
		if !ok || op.Axis != axis || op.Step != 1 {
			return 0, false
		}
		return op.ConstStart(a)
	}
	var args []*graph.Node
	for i := 0; i < len(n.Args); {
		a := n.Args[i]
		first, ok := start(a)
		size := a.Type.Shape.At(axis)
		for i++; ok && i < len(n.Args); i++ {
			next := n.Args[i]
			if at, follows := start(next); !follows || next.Args[0] != a.Args[0] || at != first+size {
				break
			}
			size += next.Type.Shape.At(axis)
		}
		if ok && size == a.Args[0].Type.Shape.At(axis) {
			a = a.Args[0]
		} else if size != a.Type.Shape.At(axis) {
			a = s.b.Slice(a.Args[0], axis, first, size, 1)
		}
		args = append(args, a)
	}
	if len(args) == len(n.Args) {
		return nil
	}
	return s.b.Add(n.Op, args...)
}

func padNothing(_ *simplifier, n *graph.Node) *graph.Node {
	if n.Args[0].Type == n.Type {
		return n.Args[0]
	}
	return nil
}

// poolRounded takes the maximum before what keeps the order of numbers: that work has fewer elements then. Limits alone stay, since
// a contraction applies them in registers. A window in the padding alone is −Inf and would be limited.
func poolRounded(s *simplifier, n *graph.Node) *graph.Node {
	op := n.Op.(graph.Pool)
	for i := range op.Pad.Len() {
		if op.Fn != graph.MaxPool || op.Pad.At(i) >= op.Kernel.At(i%op.Kernel.Len()) {
			return nil
		}
	}
	var chain []*graph.Node
	for x := n.Args[0]; s.oneUse(x); x = x.Args[0] {
		chain = append(chain, x)
		switch f := x.Op.(type) {
		case graph.Unary:
			if f.Fn == graph.Round {
				y := s.b.Add(op, x.Args[0])
				for _, x := range slices.Backward(chain) {
					y = s.b.Add(x.Op, append([]*graph.Node{y}, x.Args[1:]...)...)
				}
				return y
			}
			if f.Fn == graph.Relu {
				continue
			}
		case graph.Binary:
			if x.Args[1].Type.Shape.Rank() == 0 && (f.Fn == graph.Min || f.Fn == graph.Max || f.Fn == graph.Add) {
				continue
			}
		}
		return nil
	}
	return nil
}

func dropoutNothing(_ *simplifier, n *graph.Node) *graph.Node {
	if n.Op.(graph.Dropout).P == 0 {
		return n.Args[0]
	}
	return nil
}
