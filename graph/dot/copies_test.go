package dot

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"fusec/graph"
)

// convStep is a step that copies the filters of each convolution, as passes/layout does, and changes them.
func convStep(t *testing.T, convs int) *graph.Graph {
	t.Helper()
	b := graph.NewBuilder("step")
	x := b.Param("images", graph.TypeOf(graph.F32, 2, 8, 8, 4))
	var filters []*graph.Node
	y := x
	for i := range convs {
		w := b.Param(fmt.Sprintf("conv%d.weight", i+1), graph.TypeOf(graph.F32, 4, 4, 3, 3))
		filters = append(filters, w)
		k := b.Add(graph.Copy{}, b.Transpose(w, 2, 3, 1, 0))
		y = b.Add(graph.Conv2D{Stride: graph.IntsOf(1, 1), Dilation: graph.IntsOf(1, 1), Pad: graph.IntsOf(1, 1, 1, 1), Groups: 1,
			Layout: graph.NHWC}, y, k)
		y = b.Add(graph.Pool{Fn: graph.MaxPool, Kernel: graph.IntsOf(1, 1), Stride: graph.IntsOf(1, 1), Pad: graph.IntsOf(0, 0, 0, 0),
			Layout: graph.NHWC}, y)
	}
	b.Output("y", y)
	for _, w := range filters {
		b.Update(w, b.Unary(graph.Neg, w))
	}
	return finish(t, b)
}

// TestCopies draws the copies of parameters as one card, which the readers mention. A single copy keeps its own card. What a
// training step does not change is drawn as its data.
func TestCopies(t *testing.T) {
	for convs, want := range map[int]int{1: 1, 3: 0} {
		s := layout(drawing{graph: convStep(t, convs), opts: Options{Detail: Compact, Expand: true}})
		cards, copies, readers := []string(nil), 0, 0
		for _, x := range s.nodes {
			if strings.HasPrefix(x.key, "copies") {
				cards = append(cards, fmt.Sprint(x.lines))
				if strings.Count(x.tooltip, "\n")+1 != convs || !strings.Contains(x.tooltip, "conv2.weight f32[3,3,4,4]") {
					t.Errorf("the copies are told as %q", x.tooltip)
				}
			}
			if slices.ContainsFunc(x.lines, func(l textLine) bool { return strings.HasPrefix(l.text, "copy(") }) {
				copies++
			}
			if slices.ContainsFunc(x.lines, func(l textLine) bool {
				return strings.HasPrefix(l.text, "conv2d(") && !strings.Contains(l.text, "weight")
			}) {
				t.Errorf("the formula %v does not name the parameter", x.lines)
			}
			if slices.ContainsFunc(x.sources, func(l string) bool { return l == "weight [4,4,3,3], copied" }) {
				readers++
			}
			if x.key == "node0" && (x.look != lookInput || !strings.Contains(fmt.Sprint(x.lines), "not trained")) {
				t.Errorf("the images are drawn as %v: %v", x.look, x.lines)
			}
		}
		switch {
		case copies != want:
			t.Errorf("%d convolutions: %d cards of a copy, want %d", convs, copies, want)
		case want == 1 && len(cards) > 0, want == 0 &&
			(len(cards) != 1 || !strings.Contains(cards[0], fmt.Sprintf("%d parameters copied", convs))):
			t.Errorf("%d convolutions: cards of copies %q", convs, cards)
		case want == 0 && readers != convs:
			t.Errorf("%d of %d readers mention the copy", readers, convs)
		}
		if convs > 1 && !slices.ContainsFunc(s.nodes, func(x *box) bool {
			return slices.ContainsFunc(x.lines, func(l textLine) bool { return strings.HasPrefix(l.text, "max_pool(conv2d, ") })
		}) {
			t.Error("no pool names the convolution that it reads")
		}
	}
}

// TestDetour refuses to draw two layers as one if a value comes back to them from an operation outside: its arrow would
// point against the order of the program.
func TestDetour(t *testing.T) {
	for _, detour := range []bool{false, true} {
		b := graph.NewBuilder("detour")
		x := b.Input("x", graph.TypeOf(graph.F32, 4, 8))
		for i := range 2 {
			w := b.Param(fmt.Sprintf("layer%d.w", i), graph.TypeOf(graph.F32, 8, 8))
			for range 5 {
				x = b.Unary(graph.Tanh, b.MatMul(x, w, false, false))
			}
			if i == 0 && detour {
				x = b.Unary(graph.Exp, x)
				x.Name = "other.exp"
			}
		}
		b.Output("y", x)
		g := finish(t, b)
		r := &repeats{first: make(map[*graph.Node]*graph.Node), in: make(map[*graph.Node]*block), places: make(map[*graph.Node][]place),
			consts: foldable(g), sigs: make(map[*graph.Node]int), graph: g, large: true}
		if r.named(g, (&drawing{graph: g}).regions(phasesOf(g))); (len(r.blocks) == 0) != detour {
			t.Errorf("detour %v: %d blocks", detour, len(r.blocks))
		}
	}
}
