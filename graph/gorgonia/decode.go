package gorgonia

import (
	"fmt"
	"maps"
	"slices"

	"fusec/graph"

	gorg "gorgonia.org/gorgonia"
)

// call is one operation being imported: the operation, its fields, its operands as imported and the type that its
// value should have.
type call struct {
	*importer
	n    *gorg.Node
	op   gorg.Op
	from graph.Origin // of n
	f    *fields
	args []*graph.Node
	want graph.Type
	b    *graph.Builder
	met  []Divergence // where Gorgonia computes something else

	fields fields // that f refers to
}

// decoder writes an operation in terms of fusec's. It takes that many operands, or any number if args is −1.
type decoder struct {
	args int
	f    func(*call) (*graph.Node, error)
}

// decoders are those of Gorgonia's operations, by the name of the operation's type.
var decoders map[string]decoder

func init() {
	decoders = map[string]decoder{
		"elemUnaryOp":         {1, (*call).unary},
		"elemBinOp":           {2, (*call).binary},
		"minBetween":          {2, (*call).minBetween},
		"maxBetween":          {2, (*call).maxBetween},
		"dtConvOp":            {1, (*call).convert},
		"Iop":                 {1, (*call).identity},
		"constantScalar":      {0, (*call).constant},
		"constantTensor":      {0, (*call).constant},
		"sizeOp":              {1, (*call).size},
		"linAlgBinOp":         {2, (*call).linear},
		"tensordotOp":         {2, (*call).tensordot},
		"sumOp":               {1, (*call).sum},
		"maxOp":               {1, (*call).max},
		"softmaxOp":           {1, (*call).softmax},
		"softmaxDiffOp":       {3, (*call).softmaxDiff},
		"reshapeOp":           {1, (*call).identity}, // conform gives the result its shape
		"transposeOp":         {1, (*call).transpose},
		"repeatOp":            {2, (*call).repeat},
		"concatOp":            {-1, (*call).concat},
		"sliceOp":             {1, (*call).slice},
		"sliceIncrOp":         {2, (*call).sliceIncr},
		"atOp":                {1, (*call).at},
		"diagFlatOp":          {1, (*call).diagFlat},
		"byIndicesOp":         {2, (*call).byIndices},
		"byIndicesOpDiffOp":   {3, (*call).byIndicesDiff},
		"im2colOp":            {1, (*call).im2col},
		"col2imOp":            {1, (*call).col2im},
		"maxPoolOp":           {1, (*call).pool},
		"maxPoolDiffOp":       {3, (*call).pool},
		"avgPoolOp":           {1, (*call).pool},
		"avgPoolDiffOp":       {3, (*call).pool},
		"globalAveragePoolOp": {1, (*call).globalAveragePool},
		"upsampleOp":          {1, (*call).upsample},
		"upsampleDiffOp":      {3, (*call).upsampleDiff},
		"BatchNormOp":         {1, (*call).batchNorm},
		"batchnormDiffOp":     {2, (*call).batchNormDiff},
		"GroupNormOp":         {1, (*call).groupNorm},
		"groupNormDiffOp":     {2, (*call).groupNormDiff},
		"dropoutOp":           {1, (*call).dropout},
		"dropoutDiffOp":       {3, (*call).dropoutDiff},
		"randomOp":            {0, (*call).random},
	}
}

// hosted are Gorgonia's operations that fusec has no counterpart for, and why.
var hosted = map[string]string{
	"sparsemaxOp":     "fusec has no operation that sorts",
	"sparsemaxDiffOp": "fusec has no operation that sorts",
	"ctcLossOp":       "its recurrence runs along sequences of varying length",
	"ctcLossDiffOp":   "its recurrence runs along sequences of varying length",
	"yoloOp":          "its post-processing of detections depends on the values",
}

// decode imports the operation: by its decoder or, where it has none or that gives up, whole, to be run on the host.
func (c *call) decode() (*graph.Node, error) {
	name := typeName(c.op)
	reason := hosted[name]
	d, known := decoders[name]
	if _, ok := c.op.(Builder); ok {
		d, known = decoder{-1, (*call).build}, true
	}
	opaque := strange(c.n) || slices.ContainsFunc(c.args, func(a *graph.Node) bool { return c.Opaques[a] != nil })
	switch {
	case opaque:
		reason = "fusec has no type for the elements that it works on"
	case known:
		v, err := c.attempt(d)
		if err == nil {
			return v, nil
		}
		reason = err.Error()
	case name == "":
		reason = "it is an operation of the user's own"
	case reason == "":
		reason = "it is not an operation of Gorgonia " + version
	}
	v, err := c.host()
	if err != nil {
		return nil, fmt.Errorf("%s; nor can it run on the host: %w", reason, err)
	}
	c.note(v, "%s runs on the host by its own Do: %s", describe(c.op), reason)
	return v, nil
}

// attempt runs a decoder and takes back what it added if it fails.
func (c *call) attempt(d decoder) (v *graph.Node, err error) {
	before, updates, notes := len(c.Graph.Nodes), len(c.Graph.Updates), len(c.Graph.Notes)
	im, args := *c.Imported, c.args
	seed, draws := c.seed, c.draws
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
		if err != nil {
			c.Graph.Nodes, c.Graph.Updates, c.Graph.Notes = c.Graph.Nodes[:before], c.Graph.Updates[:updates], c.Graph.Notes[:notes]
			c.met = nil
			*c.Imported, c.args, c.seed, c.draws = im, args, seed, draws
			maps.DeleteFunc(c.shared, func(_ any, s [2]*graph.Node) bool { return !slices.Contains(c.Graph.Nodes, s[0]) })
			c.begin()
		}
	}()
	if d.args >= 0 && len(c.args) != d.args {
		return nil, fmt.Errorf("it has %d operands instead of %d", len(c.args), d.args)
	}
	if v, err = d.f(c); err != nil {
		return nil, err
	}
	if c.f.err != nil {
		return nil, c.f.err
	}
	if v, err = c.conform(v); err != nil {
		return nil, err
	}
	if len(c.Graph.Nodes) == before && c.n.Deriv() != nil {
		// The value is an operand's, but its derivative may be another: it needs a node of its own.
		v = c.b.Add(graph.Reshape{Shape: v.Type.Shape}, v)
	}
	return v, c.b.Err()
}

// conform gives a value the type that Gorgonia inferred. Gorgonia is free with axes of size 1.
func (c *call) conform(v *graph.Node) (*graph.Node, error) {
	if err := c.b.Err(); err != nil {
		return nil, err
	}
	if v.Type.DType != c.want.DType || v.Type.Shape.Elems() != c.want.Shape.Elems() {
		return nil, fmt.Errorf("the value has type %v, Gorgonia inferred %v", v.Type, c.want)
	}
	if v.Type.Shape != c.want.Shape {
		v = c.b.Reshape(v, c.want.Shape.Slice()...)
	}
	return v, c.b.Err()
}

// twin identifies the operation of which this one, a derivative, is part: they share hidden state.
func (c *call) twin() any {
	if !c.f.v.IsValid() {
		return c.n
	}
	for _, name := range []string{"BatchNormOp", "dropoutOp"} {
		if v := c.f.v.FieldByName(name); v.IsValid() {
			return v.UnsafePointer()
		}
	}
	return c.f.addressable().v.Addr().UnsafePointer()
}
