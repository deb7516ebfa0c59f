package cuda

import (
	"fmt"
	"slices"

	"fusec/graph"
	"fusec/graph/body"
	"fusec/graph/trace"
	"fusec/lowering"
)

// DefaultHidden is how many bytes of hidden values mixtures of experts keep for their gradients, see [Hidden].
const DefaultHidden = 4 << 30

// Hidden lets mixtures of experts keep hidden values for their gradients, as many bytes in all; the default is [DefaultHidden].
// Those for which there is no room are computed again, which is one product more for each gradient, or two where mixtures are
// gated. Programs within a budget of memory keep none.
func Hidden(bytes int64) Option { return func(d *Device) { d.hidden = bytes } }

// keepHidden replaces the kernels of mixtures and of their gradients by those that keep and find hidden values, and says of the
// other gradients why they compute them again.
func (d *Device) keepHidden(p *lowering.Program, list []generated, keeping func(i int) generated) {
	left := d.hidden
	for i, m := range mixturesOf(p) {
		if m < 0 || list[i].err != nil || list[m].err != nil {
			continue
		}
		keeps, finds := keeping(m), keeping(i)
		reason := ""
		switch {
		case p.Frugal:
			reason = "the program has a budget of memory"
		case keeps.err != nil || finds.err != nil || keeps.kernel.Kept == 0 || keeps.kernel.Kept != finds.kernel.Kept:
			reason = "the tokens of the experts do not fit into one wave, or the two launches divide them otherwise"
		case list[m].kernel.Kept == 0 && keeps.kernel.Kept > left:
			reason = fmt.Sprintf("they are %d bytes, and of the %d that cuda.Hidden allows in all, %d are left", keeps.kernel.Kept,
				d.hidden, left)
		}
		if reason != "" {
			list[i].again = reason
			continue
		}
		if list[m].kernel.Kept == 0 {
			left -= keeps.kernel.Kept
		}
		list[m], list[i] = keeps, finds
	}
}

// noteHidden has the last stage of a trace tell what became of the hidden values of each mixture that has a gradient.
func noteHidden(t *trace.Trace, p *lowering.Program, list []generated) {
	if len(t.Stages) == 0 {
		return
	}
	last := &t.Stages[len(t.Stages)-1]
	for i, m := range mixturesOf(p) {
		if m < 0 || list[i].err != nil {
			continue
		}
		text := fmt.Sprintf("the gradient of %s computes hidden values again: %s", p.Launches[m].Node.Where(), list[i].again)
		if list[i].again == "" {
			text = fmt.Sprintf("%s keeps its hidden values for its gradient: %d bytes", p.Launches[m].Node.Where(), list[i].kernel.Kept)
		}
		n := p.Launches[i].Node
		last.Notes = append(last.Notes, trace.Note{Node: n.ID, Origin: n.Origin, Text: text})
	}
}

// mixturesOf finds, for each launch that is the gradient of a mixture of experts, the launch of that mixture: its operands are
// the same values in the same places. It is −1 for all others.
func mixturesOf(p *lowering.Program) []int {
	of := slices.Repeat([]int{-1}, len(p.Launches))
	type mixture struct {
		launch   int
		op       graph.MoE
		operands []lowering.View
	}
	var seen []mixture
	for i := range p.Launches {
		l := &p.Launches[i]
		f, ok := l.Op.(graph.Fusion)
		if !ok || f.Anchor != graph.AnchorMoE || l.Device != "" {
			continue
		}
		args, results := l.Operands()
		b, err := body.Lower(f, args, results)
		if err != nil {
			continue
		}
		m := mixture{launch: i}
		grad := false
		switch op := b.Anchor.Op.(type) {
		case graph.MoE:
			m.op = op
		case graph.MoEGrad:
			m.op, grad = op.MoE(), true
		}
		for _, o := range b.Operands[:m.op.Operands()] {
			m.operands = append(m.operands, lowering.View{Buffer: l.Args[o.Arg].Buffer, Layout: o.Layout})
		}
		if !grad {
			seen = append(seen, m)
			continue
		}
		for _, s := range slices.Backward(seen) {
			if s.op == m.op && slices.Equal(s.operands, m.operands) && !written(p, s.launch, i, m.operands) {
				of[i] = s.launch
				break
			}
		}
	}
	return of
}

// written reports whether launches between two write where some operands are.
func written(p *lowering.Program, from, to int, operands []lowering.View) bool {
	for i := from; i < to; i++ {
		if overlap(p, p.Launches[i].Results, operands) {
			return true
		}
	}
	return false
}
