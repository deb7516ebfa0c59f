package dot

import (
	"fmt"

	"fusec/graph"
)

// look is the appearance of a node or cluster. The first looks are the kinds of fusion.
type look uint8

const (
	lookElementwise look = look(graph.KindElementwise)
	lookMatMul      look = look(graph.KindMatMul)
	lookConv        look = look(graph.KindConv)
	lookSoftmax     look = look(graph.KindSoftmax)
	lookNorm        look = look(graph.KindNorm)
	lookReduce      look = look(graph.KindReduce)
	lookAttention   look = look(graph.KindAttention)
	lookMoE         look = look(graph.KindMoE)
	lookPool        look = look(graph.KindPool)
)

// The looks of other things than fusions.
const (
	lookGather look = lookPool + 1 + iota
	lookMove
	lookCollective
	lookHost
	lookView
	lookInput
	lookOutput
	lookParam
	lookState
	lookConst
	lookOptimiser
	lookCarried
	lookTitle
)

// looks gives each its name in the legend and its colour. The colours are near those of Okabe and Ito and some of Tol's
// muted scheme; in normal sight and in a simulation of protanopia and of deuteranopia any two differ by a ΔE of 10 or more.
var looks = [...]struct{ name, colour string }{
	graph.KindElementwise: {"elementwise", "#D887BD"},
	graph.KindLinear:      {"linear", "#0572B2"},
	graph.KindMatMul:      {"matmul", "#56B4E9"},
	graph.KindConv:        {"conv", "#D55E00"},
	graph.KindSoftmax:     {"softmax", "#E69F00"},
	graph.KindNorm:        {"norm", "#009E73"},
	graph.KindReduce:      {"reduce", "#999933"},
	graph.KindAttention:   {"attention", "#9F3D92"},
	graph.KindMoE:         {"moe", "#882255"},
	graph.KindPool:        {"pool", "#44AA99"},
	lookGather:            {"gather", "#332288"},
	lookMove:              {"data movement", "#686F7C"},
	lookCollective:        {"between participants", "#3C18FC"},
	lookHost:              {"host", "#B00020"},
	lookView:              {"view, free", "#B8BEC6"},
	lookInput:             {"input, output", "#1F2937"},
	lookOutput:            {"output", "#1F2937"},
	lookParam:             {"parameter", "#9F8959"},
	lookState:             {"state", "#6B849C"},
	lookConst:             {"constant", "#9F8959"},
	lookOptimiser:         {"optimiser", "#4B3F72"},
	lookCarried:           {"repeated", frame},
	lookTitle:             {"title", frame},
}

// Colours of text, lines and paper.
const (
	ink      = "#111827"
	faint    = "#4B5563"
	line     = "#4B5563"
	lineWeak = "#B3A582"
	lineKept = "#9CA3AF"
	paper    = "#FFFFFF"
	sand     = "#F7F1E1"
	steel    = "#E3EAF0"
	frame    = "#6B7280"

	missedInk  = "#B00020"
	timeColour = "#D97706"
)

// stageFill is the ground of a stage of a pipeline, whose frame has the colour of what goes between participants.
const stageFill = "#FBFBFE"

// The frames of the phases.
var (
	phaseFills = [...]string{graph.Forward: "#F4F7FB", graph.Backward: "#FBF6EF", graph.Optimiser: "#F4F2F9", prepared: "#F2F7F2"}
	phaseLines = [...]string{graph.Forward: "#9DB4D3", graph.Backward: "#D9B98A", graph.Optimiser: "#B5A8D6", prepared: "#A9C4A4"}
)

// contrast is the colour of text on a ground of the given colour.
func contrast(colour string) string {
	var r, g, b float64
	var c [3]int
	if _, err := fmt.Sscanf(colour, "#%02X%02X%02X", &c[0], &c[1], &c[2]); err == nil {
		r, g, b = float64(c[0]), float64(c[1]), float64(c[2])
	}
	if 0.299*r+0.587*g+0.114*b > 140 {
		return ink
	}
	return paper
}

// lookOf is how an operation outside a fusion is drawn.
func lookOf(op graph.Op) look {
	switch op := op.(type) {
	case graph.Input:
		return lookInput
	case graph.Param:
		return lookParam
	case graph.State:
		return lookState
	case graph.Const:
		return lookConst
	case graph.Fusion:
		return look(op.Kind)
	case graph.Host:
		return lookHost
	case graph.Result:
		return lookView
	}
	if k := graph.KindOf(op); k != graph.KindElementwise {
		return look(k)
	}
	switch graph.ClassOf(op) {
	case graph.ClassContraction:
		return lookMatMul
	case graph.ClassReduce:
		return lookReduce
	case graph.ClassView:
		return lookView
	case graph.ClassMove:
		return lookMove
	case graph.ClassIndex:
		return lookGather
	case graph.ClassCollective:
		if op.(graph.Collective).Of().Over != graph.Microbatch {
			return lookCollective
		}
		if _, sum := op.(graph.AllReduce); sum { // of one participant, over microbatches
			return lookReduce
		}
		return lookMove
	}
	return lookElementwise
}

// tint mixes a colour of the form #RRGGBB with white; share is that of the colour, in percent.
func tint(colour string, share int) string {
	var c [3]int
	if _, err := fmt.Sscanf(colour, "#%02X%02X%02X", &c[0], &c[1], &c[2]); err != nil {
		return colour
	}
	for i := range c {
		c[i] = (c[i]*share + 255*(100-share)) / 100
	}
	return fmt.Sprintf("#%02X%02X%02X", c[0], c[1], c[2])
}
