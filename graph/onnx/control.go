package onnx

import (
	"math"
	"slices"

	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

func init() {
	body := func(name string) attr { return attr{name: name, def: required{graphAttr{}}} }
	declare(
		operator{name: "If", min: 1, max: 1, exact: true, build: buildIf, attrs: []attr{body("then_branch"), body("else_branch")}},
		operator{name: "Loop", max: -1, exact: true, build: buildLoop, attrs: []attr{body("body")}},
		operator{name: "Scan", max: -1, exact: true, build: buildScan,
			attrs: []attr{body("body"), {name: "num_scan_inputs", def: required{int64(0)}},
				{name: "directions", def: []int64(nil), until: 8}, {name: "scan_input_directions", def: []int64(nil), from: 9},
				{name: "scan_output_directions", def: []int64(nil), from: 9}, {name: "scan_input_axes", def: []int64(nil), from: 9},
				{name: "scan_output_axes", def: []int64(nil), from: 9}}},
	)
}

// label names the node in the origins of nodes of its body.
func (c *call) label() string {
	if name := c.proto.GetName(); name != "" {
		return name
	}
	return c.proto.GetOpType()
}

// runBody builds a body.
func (c *call) runBody(g *pb.GraphProto, args []*value) []*value {
	results, err := c.m.body(g, args, c.scope, c.label())
	c.check(err)
	return results
}

// truth is the value of a condition, which has to be known.
func (c *call) truth(v *value) bool {
	t := v.tensor
	if t == nil {
		n, err := c.m.nodeOf(v)
		c.check(err)
		if t = c.valueOf(n); t == nil {
			c.refuse("its condition depends on data: only conditions that are known while the model is read are supported")
		}
	}
	if t.Type.DType != graph.Bool || t.Type.Shape.Elems() != 1 {
		c.refuse("its condition is %v", t.Type)
	}
	return t.Int(0) != 0
}

func buildIf(c *call) []*value {
	name := "else_branch"
	if c.truth(c.args[0]) {
		name = "then_branch"
	}
	return c.runBody(c.body(name), nil)
}

// maxSteps bounds the steps of a loop that is written out.
const maxSteps = 1 << 16

// buildLoop writes out a loop whose number of steps is known.
func buildLoop(c *call) []*value {
	g := c.body("body")
	steps := math.MaxInt
	if c.there(0) {
		steps = c.knownInt(0)
	}
	goOn := !c.there(1) || c.truth(c.args[1])
	var carried []*value
	for i := 2; i < len(c.args); i++ {
		if c.args[i] == nil {
			c.refuse("operand %d is missing", i)
		}
		carried = append(carried, c.args[i])
	}
	outputs := len(g.GetOutput()) - 1 - len(carried)
	if outputs < 0 {
		c.refuse("its body has %d results", len(g.GetOutput()))
	}
	scanned := make([][]*graph.Node, outputs)
	for step := 0; step < steps && goOn; step++ {
		if step == maxSteps {
			c.refuse("it has more than %d steps", maxSteps)
		}
		at := graph.NewTensor(graph.TypeOf(graph.I64))
		at.SetInt(0, int64(step))
		cond := graph.Scalar(graph.Bool, 1)
		results := c.runBody(g, append([]*value{{tensor: at}, {tensor: cond}}, carried...))
		goOn = c.truth(results[0])
		carried = results[1 : 1+len(carried)]
		for i, v := range results[1+len(carried):] {
			n, err := c.m.nodeOf(v)
			c.check(err)
			scanned[i] = append(scanned[i], n)
		}
	}
	results := slices.Clone(carried)
	for i, parts := range scanned {
		results = append(results, &value{node: c.stacked(parts, 0, g.GetOutput()[1+len(carried)+i])})
	}
	return results
}

// stacked joins the results of steps along a new axis. Without steps, the body has to declare the shape.
func (c *call) stacked(parts []*graph.Node, axis int, info *pb.ValueInfoProto) *graph.Node {
	if len(parts) == 0 {
		t := info.GetType().GetTensorType()
		d, err := elemType(t.GetElemType())
		c.check(err)
		var sizes []int64
		for _, d := range t.GetShape().GetDim() {
			if d.GetDimParam() != "" || d.GetValue() == nil {
				c.refuse("it has no steps, and its body does not say what shape %q has", info.GetName())
			}
			sizes = append(sizes, d.GetDimValue())
		}
		if t.GetShape() == nil {
			c.refuse("it has no steps, and its body does not say what shape %q has", info.GetName())
		}
		s, err := shapeOf(sizes)
		c.check(err)
		return c.filled(graph.Type{DType: d, Shape: c.shape(slices.Insert(s.Slice(), c.axis(axis, s.Rank()+1), 0)...)}, 0)
	}
	rank := parts[0].Type.Shape.Rank() + 1
	axis = c.axis(axis, rank)
	var rows []*graph.Node
	for _, p := range parts {
		rows = append(rows, c.reshape(p, slices.Insert(dims(p), axis, 1)...))
	}
	return c.concat(axis, rows...)
}

// part is element i of an axis of x.
func (c *call) part(x *graph.Node, axis, i int) *graph.Node {
	return c.without(c.slice(x, axis, i, 1, 1), axis)
}

// listed is an attribute with a value for each of n things, all 0 by default.
func (c *call) listed(name string, n int) []int {
	l := c.ints(name)
	if len(l) == 0 {
		return make([]int, n)
	}
	if len(l) != n {
		c.refuse("attribute %q has %d values, not %d", name, len(l), n)
	}
	return l
}

// buildScan writes out the steps over the elements of axes.
func buildScan(c *call) []*value {
	g, inputs := c.body("body"), c.int("num_scan_inputs")
	args := c.args
	if c.opset < 9 {
		if len(args) == 0 || args[0] != nil {
			c.refuse("sequences of different lengths are not supported")
		}
		args = args[1:]
	}
	states := len(args) - inputs
	outputs := len(g.GetOutput()) - states
	if inputs < 1 || states < 0 || outputs < 0 || slices.Contains(args, nil) {
		c.refuse("%d operands, %d of them scanned, and %d results of its body", len(args), inputs, len(g.GetOutput()))
	}
	s := scan{g: g, states: states, inDirections: c.listed("scan_input_directions", inputs),
		outDirections: c.listed("scan_output_directions", outputs),
		inAxes:        c.listed("scan_input_axes", inputs), outAxes: c.listed("scan_output_axes", outputs)}
	if c.opset >= 9 {
		return c.scan(s, args)
	}
	// Up to opset 8 the first axis of all operands is that of a batch.
	s.inDirections = c.listed("directions", inputs)
	var nodes []*graph.Node
	for _, a := range args {
		n, err := c.m.nodeOf(a)
		c.check(err)
		if n.Type.Shape.Rank() < 1 || n.Type.Shape.At(0) < 1 {
			c.refuse("a batch %v", n.Type)
		}
		nodes = append(nodes, n)
	}
	var results [][]*graph.Node
	for b := range nodes[0].Type.Shape.At(0) {
		var row []*value
		for _, n := range nodes {
			if b >= n.Type.Shape.At(0) {
				c.refuse("a batch of %v and one of %v", nodes[0].Type, n.Type)
			}
			row = append(row, &value{node: c.part(n, 0, b)})
		}
		for i, v := range c.scan(s, row) {
			n, err := c.m.nodeOf(v)
			c.check(err)
			if b == 0 {
				results = append(results, nil)
			}
			results[i] = append(results[i], n)
		}
	}
	var all []*graph.Node
	for _, parts := range results {
		all = append(all, c.stacked(parts, 0, nil))
	}
	return several(all...)
}

// A scan is what a Scan does.
type scan struct {
	g                                            *pb.GraphProto
	states                                       int
	inDirections, outDirections, inAxes, outAxes []int
}

func (c *call) scan(s scan, args []*value) []*value {
	state := args[:s.states]
	steps := -1
	var xs []*graph.Node
	for i, a := range args[s.states:] {
		n, err := c.m.nodeOf(a)
		c.check(err)
		s.inAxes[i] = c.axis(s.inAxes[i], n.Type.Shape.Rank())
		if size := n.Type.Shape.At(s.inAxes[i]); steps >= 0 && steps != size {
			c.refuse("scanned axes of %d and %d elements", steps, size)
		} else {
			steps = size
		}
		xs = append(xs, n)
	}
	if steps > maxSteps {
		c.refuse("it has more than %d steps", maxSteps)
	}
	scanned := make([][]*graph.Node, len(s.outAxes))
	for step := range steps {
		in := slices.Clone(state)
		for i, x := range xs {
			at := step
			if s.inDirections[i] != 0 {
				at = steps - 1 - step
			}
			in = append(in, &value{node: c.part(x, s.inAxes[i], at)})
		}
		results := c.runBody(s.g, in)
		state = results[:s.states]
		for i, v := range results[s.states:] {
			n, err := c.m.nodeOf(v)
			c.check(err)
			scanned[i] = append(scanned[i], n)
		}
	}
	results := slices.Clone(state)
	for i, parts := range scanned {
		if s.outDirections[i] != 0 {
			slices.Reverse(parts)
		}
		results = append(results, &value{node: c.stacked(parts, s.outAxes[i], s.g.GetOutput()[s.states+i])})
	}
	return results
}
