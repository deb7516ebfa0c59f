package gorgonia

import (
	"fmt"
	"slices"
	"strings"

	"fusec/graph"
)

// Divergence is a place where Gorgonia v0.9.18 computes something else than its documentation or mathematics says, and
// that can be seen in a graph. docs/divergences.md has a row for each, and for those that only values show.
type Divergence struct {
	Topic    string // as docs/divergences.md and notes name it
	Gorgonia string // what Gorgonia does, as the rest of a sentence
	Fusec    string // what the imported graph means, unless it is to imitate Gorgonia
	Imitated bool   // by Options.Gorgonia
	Always   bool   // and without that, for the graph does not say what else it could mean
}

// divergences are all of them, in the order of docs/divergences.md.
var divergences []Divergence

// Divergences lists all, in the order of docs/divergences.md.
func Divergences() []Divergence { return slices.Clone(divergences) }

func diverges(topic, gorgonia, fusec string, imitated bool) Divergence {
	return known(Divergence{Topic: topic, Gorgonia: gorgonia, Fusec: fusec, Imitated: imitated})
}

func known(d Divergence) Divergence {
	divergences = append(divergences, d)
	return d
}

const (
	imitated   = true
	inimitable = false
)

var (
	overwrittenInput = diverges("overwritten-input", "overwrites the input or weight in place",
		"nothing that the user owns is written to", inimitable)
	softmaxMaximum = diverges("softmax-maximum", "takes the first element of the whole tensor for that of each row when it looks "+
		"for the maximum: NaN where they are far apart",
		"each row's maximum is subtracted", inimitable)
	middleAxis = diverges("middle-axis", "combines wrong elements along an inner axis of four or more",
		"the right elements are combined", imitated)
	averageDivisor = diverges("average-divisor", "divides by the width of the image", "the divisor is the size of the window",
		imitated)
	poolPadding = diverges("pool-padding", "begins with the south and east paddings",
		"the order is north, south, west, east, as documented", imitated)
	byIndices  = diverges("by-indices", "takes wrong elements along an axis above 0", "the right elements are taken", imitated)
	oneElement = diverges("one-element", "fails when run on two shapes of one element that differ", "it runs", inimitable)
	batchOfOne = diverges("batch-of-one", "divides the running variance by 0", "it is divided by 1", inimitable)
	stepSlice  = diverges("step-slice", "infers fewer elements than the slice has", "those that it infers are taken",
		inimitable)
	mergedConstants = diverges("merged-constants", "has merged constants of two types that print alike",
		"each has its reader's type", inimitable)
	randomNumbers = diverges("random-numbers", "seeds its generator by the time", "numbers follow from a seed and a counter",
		inimitable)

	byIndicesGradient = diverges("by-indices-gradient", "has a gradient with wrong elements, or panics",
		"the gradient is a scatter-add", imitated)
	averageGradient = diverges("average-gradient", "has a wrong gradient", "each element gets its share", imitated)
	dropoutGradient = diverges("dropout-gradient", "divides the gradient by p, in evaluation as well; where p is 0 it is 0",
		"the gradient is scaled as the value is", imitated)
	batchNormGradient = diverges("batch-norm-gradient", "divides the gradient in evaluation by √ε",
		"the running variance is used", imitated)
	log2Gradient    = diverges("log2-gradient", "has the gradient dy·ln 2 ÷ x", "it is dy ÷ (x·ln 2)", imitated)
	invSqrtGradient = diverges("inverse-sqrt-gradient", "has the gradient −dy ÷ 2y³", "it is −dy·y³ ÷ 2", imitated)
	outerGradient   = diverges("outer-product-gradient", "has a gradient whose shapes do not fit", "it is right", inimitable)
	tiedMaximum     = diverges("tied-maximum", "gives the whole gradient to each of several equal maxima",
		"they share it evenly", imitated)
	tiedPair = diverges("tied-pair", "gives the whole gradient to the first of two equal operands",
		"they share it evenly", imitated)
	gradientPenalty = diverges("gradient-penalty",
		"drops the terms of the gradient of a gradient that pass through nodes that have a derivative already",
		"it has all terms", imitated)
	secondGrad = known(Divergence{Topic: "second-grad",
		Gorgonia: "keeps the derivatives of the cost for which Grad was called first",
		Fusec:    "the same", Imitated: true, Always: true})
)

// differs notes that Gorgonia computes something else than what is being imported, and reports whether to imitate it.
func (c *call) differs(d Divergence) bool {
	c.met = append(c.met, d)
	return d.Imitated && c.opts.Gorgonia
}

// tell leaves a note about v for each divergence that was met when it was imported.
func (c *call) tell(v *graph.Node) {
	if len(c.met) == 0 {
		return
	}
	called := strings.Join(strings.Fields(c.from.Name), " ")
	for _, d := range c.met {
		c.meets(d, v, called)
	}
}

// meets leaves a note about v that a divergence was met, at what is called so.
func (im *importer) meets(d Divergence, v *graph.Node, called string) {
	note := graph.Note{Kind: graph.Divergence, Topic: d.Topic, Node: v,
		Text: fmt.Sprintf("%s: Gorgonia %s %s; here %s", called, version, d.Gorgonia, d.Fusec)}
	switch {
	case im.opts.Gorgonia && d.Imitated:
		note.Kind = graph.Imitation
		note.Text = fmt.Sprintf("%s: done as by Gorgonia %s, which %s", called, version, d.Gorgonia)
	case im.opts.Gorgonia:
		note.Text += "; it cannot be imitated"
	}
	im.Graph.Notes = append(im.Graph.Notes, note)
}
