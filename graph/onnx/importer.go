package onnx

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

// The opsets of the main domain that are read, and the oldest IR.
const (
	minOpset = 6
	maxOpset = 28
	minIR    = 3
	maxIR    = 14
)

// Bounds on what a small file may ask for by loops, functions in functions and large repetitions.
const (
	maxNodes  = 1 << 17 // ONNX nodes built, each time that one is, and so many bodies
	maxNested = 64      // functions and bodies in each other
	maxGraph  = 1 << 20 // nodes of the graph
	maxMade   = 1 << 25 // elements of constants that operators make
)

// An importer makes a graph of a model.
type importer struct {
	file      string // the name in origins
	files     *folder
	options   Options
	dims      map[string]int // sizes by name, of the options and of the given inputs
	open      map[string]bool
	g         *graph.Graph
	weights   map[string]*graph.Tensor
	fixed     map[string]bool
	names     map[string]int // of inputs and parameters: the number behind the next one of the name
	facts     graph.PerNode[fact]
	looked    int                         // how many nodes of the graph have facts
	elems     int                         // of values that were computed
	steps     int64                       // that this took
	tensors   map[*pb.TensorProto]*value  // initializers, which a body has in each step
	whole     map[*graph.Node]*graph.Node // of values of integers, the whole numbers that they are cast from
	functions map[string]*pb.FunctionProto
	built     int // ONNX nodes
	bodies    int // and graphs in them
	made      int // elements of constants
}

// A value is what a name stands for: a node, or a tensor that becomes one when an operator reads it.
type value struct {
	node   *graph.Node
	tensor *graph.Tensor
	name   string // of an initializer
	err    error  // why there is no node
	// unsigned are weights of type UINT4 less 8, as elements of I4; err is set, too.
	unsigned *graph.Tensor
	absent   bool // an operand of a function that is left out
}

// A scope is the names that nodes of one graph or function see.
type scope struct {
	values  map[string]*value
	outside *scope         // of a body: what it sees of the graph around it
	opsets  map[string]int // by domain
	attrs   map[string]*pb.AttributeProto
	path    string // of names of nodes around it, each followed by a slash
	nested  int
}

// lookup finds the value of a name.
func (s *scope) lookup(name string) *value {
	for ; s != nil; s = s.outside {
		if v := s.values[name]; v != nil {
			return v
		}
	}
	return nil
}

// refusal is how operators give up: it is caught at the node that is being built.
type refusal struct{ error }

// opsetsOf are the versions of domains. The main domain has two names.
func opsetsOf(ids []*pb.OperatorSetIdProto) map[string]int {
	m := map[string]int{}
	for _, id := range ids {
		m[domainOf(id.GetDomain())] = int(id.GetVersion())
	}
	return m
}

func domainOf(s string) string {
	if s == "ai.onnx" {
		return ""
	}
	return s
}

// model builds the graph.
func (m *importer) model(p *pb.ModelProto) error {
	if p.GetGraph() == nil {
		return errors.New("this is no ONNX model: it has no graph")
	}
	if v := p.GetIrVersion(); v < minIR || v > maxIR {
		return fmt.Errorf("the model has IR version %d; versions %d to %d are read", v, minIR, maxIR)
	}
	opsets := opsetsOf(p.GetOpsetImport())
	if v, ok := opsets[""]; ok && (v < minOpset || v > maxOpset) {
		return fmt.Errorf("the model is of opset %d; opsets %d to %d are read", v, minOpset, maxOpset)
	}
	m.functions = map[string]*pb.FunctionProto{}
	for _, f := range p.GetFunctions() {
		m.functions[functionKey(f.GetDomain(), f.GetName(), f.GetOverload())] = f
	}
	if len(p.GetGraph().GetSparseInitializer()) > 0 {
		return errors.New("sparse initializers are not supported")
	}
	s := &scope{values: map[string]*value{}, opsets: opsets}
	if err := m.initializers(p.GetGraph(), s); err != nil {
		return err
	}
	if err := m.bind(p.GetGraph()); err != nil {
		return err
	}
	if err := m.inputs(p.GetGraph(), s); err != nil {
		return err
	}
	if err := m.nodes(p.GetGraph().GetNode(), s); err != nil {
		return err
	}
	return m.outputs(p.GetGraph(), s)
}

// initializers declares the tensors of a graph. They become nodes when they are read.
func (m *importer) initializers(g *pb.GraphProto, s *scope) error {
	for _, p := range g.GetInitializer() {
		if s.values[p.GetName()] != nil {
			return fmt.Errorf("there are two initializers named %q", p.GetName())
		}
		if v := m.tensors[p]; v != nil {
			s.values[p.GetName()] = v
			continue
		}
		v := &value{name: p.GetName()}
		if _, err := elemType(p.GetDataType()); err != nil {
			v.err = fmt.Errorf("tensor %q: %w", p.GetName(), err)
			if pb.TensorProto_DataType(p.GetDataType()) == pb.TensorProto_UINT4 {
				if v.unsigned, err = m.files.unsigned4(p); err != nil {
					return err
				}
			}
		} else if v.tensor, err = m.files.tensor(p); err != nil {
			return err
		}
		m.tensors[p], s.values[p.GetName()] = v, v
	}
	return nil
}

// inputs declares the inputs of the model that have no initializer, or whose value is given in its place.
func (m *importer) inputs(g *pb.GraphProto, s *scope) error {
	var unbound []string
	seen := map[string]bool{}
	for _, in := range g.GetInput() {
		name := in.GetName()
		if seen[name] {
			return fmt.Errorf("there are two inputs named %q", name)
		}
		seen[name] = true
		if s.values[name] != nil && m.options.Inputs[name] == nil {
			continue // an initializer is its value, as up to IR 3 every initializer is an input
		}
		t := in.GetType().GetTensorType()
		if t == nil {
			s.values[name] = &value{err: fmt.Errorf("input %q is no tensor; only tensors are supported", name)}
			continue
		}
		d, err := elemType(t.GetElemType())
		if err != nil {
			s.values[name] = &value{err: fmt.Errorf("input %q: %w", name, err)}
			continue
		}
		shape, open, err := m.shapeOf(name, t)
		if err != nil {
			return fmt.Errorf("input %q: %w", name, err)
		}
		if len(open) > 0 {
			for _, o := range open {
				if !slices.Contains(unbound, o) {
					unbound = append(unbound, o)
				}
			}
			continue
		}
		typ := graph.Type{DType: d, Shape: shape}
		if given := m.options.Inputs[name]; given != nil && given.Type.Shape != shape {
			return fmt.Errorf("input %q is %v; its value is %v", name, typ, given.Type)
		}
		b := graph.Extend(m.g)
		n := b.Input(m.unique(name), typ)
		if err := b.Err(); err != nil {
			return fmt.Errorf("input %q: %w", name, err)
		}
		n.Origin = []graph.Origin{{Name: name}}
		s.values[name] = &value{node: n}
	}
	if len(unbound) > 0 {
		return fmt.Errorf("the sizes %s of the model's inputs are open: bind each with --dim NAME=SIZE, or give the inputs' values",
			strings.Join(unbound, ", "))
	}
	return nil
}

// bind takes symbolic sizes from the values of inputs.
func (m *importer) bind(g *pb.GraphProto) error {
	m.dims, m.open = map[string]int{}, map[string]bool{}
	maps.Copy(m.dims, m.options.Dims)
	for _, in := range g.GetInput() {
		given := m.options.Inputs[in.GetName()]
		shape := in.GetType().GetTensorType().GetShape()
		if given == nil || shape == nil {
			continue
		}
		if given.Type.Shape.Rank() != len(shape.GetDim()) {
			return fmt.Errorf("input %q has %d axes; its value is %v", in.GetName(), len(shape.GetDim()), given.Type)
		}
		for i, d := range shape.GetDim() {
			key := dimKey(in.GetName(), i, d)
			size := given.Type.Shape.At(i)
			if old, ok := m.dims[key]; ok && old != size {
				return fmt.Errorf("%s is %d; the value of input %q is %v", key, old, in.GetName(), given.Type)
			}
			m.dims[key] = size
		}
	}
	return nil
}

// dimKey is the name by which a size of an input is bound.
func dimKey(input string, axis int, d *pb.TensorShapeProto_Dimension) string {
	if d.GetDimParam() != "" {
		return d.GetDimParam()
	}
	return fmt.Sprintf("%s[%d]", input, axis)
}

// shapeOf is the shape of an input, and the names of sizes that nothing binds. Some exporters write −1 for an open size.
func (m *importer) shapeOf(name string, t *pb.TypeProto_Tensor) (s graph.Shape, open []string, err error) {
	if t.GetShape() == nil {
		if given := m.options.Inputs[name]; given != nil {
			return given.Type.Shape, nil, nil
		}
		return s, nil, errors.New("the model does not say how many axes it has; give its value")
	}
	dims := make([]int64, len(t.GetShape().GetDim()))
	for i, d := range t.GetShape().GetDim() {
		if _, fixed := d.GetValue().(*pb.TensorShapeProto_Dimension_DimValue); fixed && d.GetDimValue() >= 0 {
			dims[i] = d.GetDimValue()
			continue
		}
		key := dimKey(name, i, d)
		m.open[key] = true
		size, ok := m.dims[key]
		if !ok {
			open = append(open, key)
		}
		dims[i] = int64(size)
	}
	s, err = shapeOf(dims)
	return s, open, err
}

// unique is a name for an input or a parameter that no other has.
func (m *importer) unique(name string) string {
	if name == "" {
		name = "unnamed"
	}
	try := name
	for m.names[try] > 0 {
		m.names[name]++
		try = fmt.Sprintf("%s.%d", name, m.names[name])
	}
	m.names[try] = 1
	return try
}

// nodes builds the nodes of a graph or a function in their order, in which operands come before their readers.
func (m *importer) nodes(nodes []*pb.NodeProto, s *scope) error {
	for i, p := range nodes {
		if m.built++; m.built > maxNodes {
			return fmt.Errorf("%s: with all loops and functions written out there are more than %d nodes", nodeName(p, i), maxNodes)
		}
		if err := m.node(p, i, s); err != nil {
			return fmt.Errorf("%s: %w", nodeName(p, i), err)
		}
	}
	return nil
}

// nodeName is how errors name a node: by its operator, its name, and its index in its graph.
func nodeName(p *pb.NodeProto, index int) string {
	if p.GetName() == "" {
		return fmt.Sprintf("node %d (%s)", index, p.GetOpType())
	}
	return fmt.Sprintf("node %d (%s %q)", index, p.GetOpType(), p.GetName())
}

// node builds one node: what its operator's row says, or the body of a function of the model.
func (m *importer) node(p *pb.NodeProto, index int, s *scope) error {
	var args []*value
	for _, name := range p.GetInput() {
		var v *value
		if name != "" { // an empty name stands for an operand that is left out
			if v = s.lookup(name); v == nil {
				return fmt.Errorf("its operand %q is not computed before it", name)
			}
			if v.absent {
				v = nil
			}
		}
		args = append(args, v)
	}
	for len(args) > 0 && args[len(args)-1] == nil {
		args = args[:len(args)-1]
	}
	domain := domainOf(p.GetDomain())
	var results []*value
	var err error
	if f := m.functions[functionKey(domain, p.GetOpType(), p.GetOverload())]; f != nil {
		results, err = m.function(f, p, args, s)
	} else {
		results, err = m.operator(domain, p, index, args, s)
	}
	if err != nil {
		return err
	}
	for i, name := range p.GetOutput() {
		switch {
		case name == "":
		case i >= len(results) || results[i] == nil:
			s.values[name] = &value{err: fmt.Errorf("result %d of %s is not supported", i, nodeName(p, index))}
		case s.values[name] != nil:
			return fmt.Errorf("%q is computed twice", name)
		default:
			s.values[name] = results[i]
		}
	}
	return nil
}

// operator builds a node by its operator's row.
func (m *importer) operator(domain string, p *pb.NodeProto, index int, args []*value, s *scope) (results []*value, err error) {
	row := operators[operatorKey{domain, p.GetOpType()}]
	if row == nil {
		if domain != "" {
			return nil, fmt.Errorf("the operator %s of the domain %s is not supported", p.GetOpType(), domain)
		}
		return nil, fmt.Errorf("the operator %s is not supported", p.GetOpType())
	}
	version, ok := s.opsets[domain]
	if !ok {
		if domain == "" {
			return nil, errors.New("the model does not say of what opset it is")
		}
		version = 1
	}
	c := &call{m: m, row: row, scope: s, opset: version, proto: p, args: args}
	origin := graph.Origin{Name: s.path + p.GetName(), Pos: fmt.Sprintf("%s:%d", m.file, index)}
	if p.GetName() == "" {
		origin.Name = s.path + p.GetOpType()
		if len(p.GetOutput()) > 0 {
			origin.Name += " " + p.GetOutput()[0]
		}
	}
	c.b = graph.Extend(m.g, origin)
	defer func() {
		switch r := recover().(type) {
		case nil:
		case refusal:
			results, err = nil, r.error
		default:
			panic(r)
		}
	}()
	return c.run(), nil
}

// A function's nodes are built in the place of a node that calls it.
func (m *importer) function(f *pb.FunctionProto, p *pb.NodeProto, args []*value, s *scope) ([]*value, error) {
	if s.nested >= maxNested {
		return nil, fmt.Errorf("functions are nested more than %d deep", maxNested)
	}
	inner := &scope{values: map[string]*value{}, opsets: opsetsOf(f.GetOpsetImport()), attrs: map[string]*pb.AttributeProto{},
		nested: s.nested + 1, path: s.path + p.GetName() + "/"}
	for _, a := range f.GetAttributeProto() {
		inner.attrs[a.GetName()] = a
	}
	for _, a := range p.GetAttribute() {
		bound, err := s.attribute(a)
		if err != nil {
			return nil, err
		}
		if bound != nil {
			inner.attrs[a.GetName()] = bound
		}
	}
	if len(args) > len(f.GetInput()) {
		return nil, fmt.Errorf("the function takes %d operands, not %d", len(f.GetInput()), len(args))
	}
	for i, name := range f.GetInput() {
		inner.values[name] = &value{absent: true}
		if i < len(args) && args[i] != nil {
			inner.values[name] = args[i]
		}
	}
	if err := m.nodes(f.GetNode(), inner); err != nil {
		return nil, err
	}
	return inner.results(f.GetOutput())
}

func functionKey(domain, name, overload string) string {
	return domainOf(domain) + "\x00" + name + "\x00" + overload
}

// attribute follows the reference of an attribute in a function to that of the node that calls it; nil if there is none.
func (s *scope) attribute(a *pb.AttributeProto) (*pb.AttributeProto, error) {
	if a.GetRefAttrName() == "" {
		return a, nil
	}
	for ; s != nil; s = s.outside {
		if s.attrs != nil {
			return s.attrs[a.GetRefAttrName()], nil
		}
	}
	return nil, fmt.Errorf("attribute %q refers to a function's, and there is no function", a.GetName())
}

// results are the values of the outputs of a body or a function.
func (s *scope) results(names []string) ([]*value, error) {
	out := make([]*value, len(names))
	for i, name := range names {
		if out[i] = s.lookup(name); out[i] == nil {
			return nil, fmt.Errorf("its result %q is not computed", name)
		}
	}
	return out, nil
}

// body builds a graph that is an attribute, with values for its inputs.
func (m *importer) body(g *pb.GraphProto, args []*value, s *scope, label string) ([]*value, error) {
	if s.nested >= maxNested {
		return nil, fmt.Errorf("bodies are nested more than %d deep", maxNested)
	}
	if len(g.GetInput()) != len(args) {
		return nil, fmt.Errorf("its body has %d inputs, not %d", len(g.GetInput()), len(args))
	}
	if m.bodies++; m.bodies > maxNodes { // which may have no nodes
		return nil, fmt.Errorf("loops in each other have more than %d steps", maxNodes)
	}
	inner := &scope{values: map[string]*value{}, outside: s, opsets: s.opsets, path: s.path + label + "/", nested: s.nested + 1}
	if err := m.initializers(g, inner); err != nil {
		return nil, err
	}
	for i, in := range g.GetInput() {
		inner.values[in.GetName()] = args[i]
	}
	if err := m.nodes(g.GetNode(), inner); err != nil {
		return nil, err
	}
	var names []string
	for _, o := range g.GetOutput() {
		names = append(names, o.GetName())
	}
	return inner.results(names)
}

// outputs declares the results of the model, drops what no result needs, and checks the graph.
func (m *importer) outputs(p *pb.GraphProto, s *scope) error {
	if len(p.GetOutput()) == 0 {
		return errors.New("the model has no outputs")
	}
	b := graph.Extend(m.g)
	seen := map[string]bool{}
	for _, o := range p.GetOutput() {
		name := o.GetName()
		v := s.lookup(name)
		if v == nil {
			return fmt.Errorf("output %q is not computed", name)
		}
		if seen[name] {
			return fmt.Errorf("there are two outputs named %q", name)
		}
		seen[name] = true
		n, err := m.nodeOf(v)
		if err != nil {
			return fmt.Errorf("output %q: %w", name, err)
		}
		b.Output(name, n)
	}
	m.dropUnread()
	if _, err := b.Graph(); err != nil {
		return err
	}
	return nil
}

// dropUnread drops the parameters that no output needs: they were read for their values alone.
func (m *importer) dropUnread() {
	var outputs []*graph.Node
	for _, o := range m.g.Outputs {
		outputs = append(outputs, o.Node)
	}
	live := graph.Ancestors(outputs...)
	m.g.Nodes = slices.DeleteFunc(m.g.Nodes, func(n *graph.Node) bool {
		_, param := n.Op.(graph.Param)
		if param && !live[n] {
			delete(m.weights, n.Name)
		}
		_, input := n.Op.(graph.Input)
		return !live[n] && !input
	})
}

// nodeOf is the node of a value. Initializers of more than one element become parameters if they are floating-point numbers, or
// of a type that quantised numbers have.
func (m *importer) nodeOf(v *value) (*graph.Node, error) {
	switch {
	case v.err != nil:
		return nil, v.err
	case v.node != nil:
		return v.node, nil
	}
	b := graph.Extend(m.g, graph.Origin{Name: v.name})
	d := v.tensor.Type.DType
	if v.name != "" && (d.IsReal() || d.Quantizes()) && v.tensor.Type.Shape.Elems() > 1 {
		v.node = b.Param(m.unique(v.name), v.tensor.Type)
		m.weights[v.node.Name] = v.tensor
	} else {
		v.node = b.Const(v.tensor)
	}
	return v.node, b.Err()
}
