package onnx

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/onnx/internal/pb"
)

// The versions that are written.
const (
	writtenIR    = 10
	writtenOpset = 21
)

// maxInside bounds the bytes of weights in a model's own file. Larger ones are written beside it, to a file with the
// extension .data.
var maxInside int64 = 1 << 30

// aligned is the alignment of tensors in a file of weights, so that it can be mapped into memory.
const aligned = 64

// Save writes the forward pass of a graph as a model of opset 21, with the values of its parameters and state. Updates,
// gradients and an optimiser are not written: ONNX's models only infer. Operations without an operator are written as what
// they are made of. An operation that ONNX cannot say is an error that names it.
func Save(path string, g *graph.Graph, weights map[string]*graph.Tensor) error {
	if err := save(path, g, weights); err != nil {
		return fmt.Errorf("saving %s: %w", cmp.Or(path, "a model"), atomicfile.Cause(path, err))
	}
	return nil
}

// A Trained is a machine whose graph and weights can be taken, as fusec.Machine is; Node is Gorgonia's node.
type Trained[Node any] interface {
	Model(inputs ...Node) (*graph.Graph, map[string]*graph.Tensor, error)
}

// Export writes the forward pass of a machine's graph, with its weights as they are after the last run. Gorgonia does not
// tell weights from data: inputs names the nodes that are data.
func Export[Node any, M Trained[Node]](path string, vm M, inputs ...Node) error {
	g, weights, err := vm.Model(inputs...)
	if err != nil {
		return fmt.Errorf("saving %s: %w", path, err)
	}
	return Save(path, g, weights)
}

func save(path string, g *graph.Graph, weights map[string]*graph.Tensor) error {
	w := &writer{weights: weights, names: map[*graph.Node]string{}, used: map[string]bool{}, constants: map[string]string{},
		nodes: map[string]int{}}
	p, err := w.model(g)
	if err != nil {
		return err
	}
	var beside *atomicfile.File
	if w.bytes > maxInside {
		data := strings.TrimSuffix(path, filepath.Ext(path)) + ".data"
		if beside, err = atomicfile.Create(data); err != nil {
			return err
		}
		defer beside.Abort()
		if err := external(p.Graph.Initializer, beside, filepath.Base(data)); err != nil {
			return err
		}
		if err := beside.Sync(); err != nil {
			return err
		}
	}
	text, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		return err
	}
	f, err := atomicfile.Create(path)
	if err != nil {
		return err
	}
	defer f.Abort()
	if _, err := f.Write(text); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if beside != nil {
		if err := beside.Commit(); err != nil {
			return err
		}
	}
	return f.Commit()
}

// external moves the data of tensors to a file beside the model.
func external(tensors []*pb.TensorProto, to io.Writer, location string) error {
	offset := 0
	for _, t := range tensors {
		if len(t.RawData) < aligned {
			continue
		}
		pad := (aligned - offset%aligned) % aligned
		if _, err := to.Write(make([]byte, pad)); err != nil {
			return err
		}
		offset += pad
		if _, err := to.Write(t.RawData); err != nil {
			return err
		}
		for _, e := range [][2]string{{"location", location}, {"offset", strconv.Itoa(offset)},
			{"length", strconv.Itoa(len(t.RawData))}} {
			t.ExternalData = append(t.ExternalData, &pb.StringStringEntryProto{Key: proto.String(e[0]), Value: proto.String(e[1])})
		}
		t.DataLocation = pb.TensorProto_EXTERNAL.Enum()
		offset += len(t.RawData)
		t.RawData = nil
	}
	return nil
}

// A writer makes a model of a graph.
type writer struct {
	weights   map[string]*graph.Tensor
	p         pb.GraphProto
	names     map[*graph.Node]string // of values
	used      map[string]bool
	nodes     map[string]int    // by the name of a node, how many have had it, with a number after it or without
	constants map[string]string // the names of constants by what they hold
	bytes     int64             // of tensors
	node      *graph.Node       // that is being written
	fresh     int
}

func (w *writer) model(g *graph.Graph) (*pb.ModelProto, error) {
	g, err := writable(g)
	if err != nil {
		return nil, err
	}
	w.p.Name = proto.String(g.Name)
	if g.Name == "" {
		w.p.Name = proto.String("model")
	}
	for _, n := range g.Sources() {
		w.used[n.Name] = true
		w.names[n] = n.Name
	}
	// A node takes the name of the first output that it is, unless that is the name of a source.
	for _, o := range g.Outputs {
		if !w.used[o.Name] && w.names[o.Node] == "" && o.Name != "" {
			w.names[o.Node], w.used[o.Name] = o.Name, true
		}
	}
	for _, n := range g.Nodes {
		if err := w.write(n); err != nil {
			return nil, fmt.Errorf("%s: %w", n.Where(), err)
		}
	}
	for _, o := range g.Outputs {
		if w.names[o.Node] != o.Name {
			if o.Name == "" {
				return nil, fmt.Errorf("the output that is %s has no name, which ONNX has no form for", o.Node.Where())
			}
			if w.used[o.Name] {
				return nil, fmt.Errorf("output %q has the name of another value", o.Name)
			}
			w.used[o.Name] = true
			w.node = o.Node
			w.emitTo(o.Name, "Identity", []string{w.names[o.Node]})
		}
		w.p.Output = append(w.p.Output, info(o.Name, o.Node.Type))
	}
	return &pb.ModelProto{IrVersion: proto.Int64(writtenIR), ProducerName: proto.String("fusec"), Graph: &w.p,
		OpsetImport: []*pb.OperatorSetIdProto{{Version: proto.Int64(writtenOpset)}}}, nil
}

// writable is a copy of the forward pass in operations that have a form in ONNX, as far as they can be taken apart.
func writable(g *graph.Graph) (*graph.Graph, error) {
	c, _ := g.Clone()
	c.Updates, c.Gradients, c.Training = nil, nil, nil
	c.Outputs = slices.DeleteFunc(c.Outputs, func(o graph.Output) bool { return o.Node.Phase != graph.Forward })
	if len(c.Outputs) == 0 && len(g.Outputs) > 0 {
		return nil, errors.New("no output is of the forward pass")
	}
	if err := c.Tidy(); err != nil {
		return nil, err
	}
	for {
		with := map[*graph.Node]*graph.Node{}
		apart := map[*graph.Node][]*graph.Node{}
		b := graph.Extend(c)
		for _, n := range slices.Clone(c.Nodes) {
			if r, ok := n.Op.(graph.Result); ok {
				if parts := apart[n.Args[0]]; parts != nil {
					with[n] = parts[r.Index]
				}
				continue
			}
			if f := forms[n.Op.OpName()]; f != nil && (f.fits == nil || f.fits(n)) {
				continue
			}
			parts := graph.Decompose(b, n)
			if parts == nil {
				parts = graph.Lower(b, n)
			}
			if parts != nil {
				with[n], apart[n] = parts[0], parts
			}
		}
		if err := b.Err(); err != nil {
			return nil, err
		}
		if len(with) == 0 {
			return c, nil
		}
		c.Replace(with)
		if err := c.Tidy(); err != nil {
			return nil, err
		}
	}
}

// info declares a value.
func info(name string, t graph.Type) *pb.ValueInfoProto {
	s := &pb.TensorShapeProto{}
	for _, d := range t.Shape.Slice() {
		s.Dim = append(s.Dim, &pb.TensorShapeProto_Dimension{Value: &pb.TensorShapeProto_Dimension_DimValue{DimValue: int64(d)}})
	}
	return &pb.ValueInfoProto{Name: &name, Type: &pb.TypeProto{Value: &pb.TypeProto_TensorType{
		TensorType: &pb.TypeProto_Tensor{ElemType: proto.Int32(int32(onnxType(t.DType))), Shape: s}}}}
}

// name makes the name of a value.
func (w *writer) name() string {
	for {
		w.fresh++
		if name := fmt.Sprintf("v%d", w.fresh); !w.used[name] {
			w.used[name] = true
			return name
		}
	}
}

// emit writes a node and returns the name of its result.
func (w *writer) emit(op string, args []string, attrs ...*pb.AttributeProto) string {
	to := w.name()
	w.emitTo(to, op, args, attrs...)
	return to
}

func (w *writer) emitTo(to, op string, args []string, attrs ...*pb.AttributeProto) {
	p := &pb.NodeProto{OpType: proto.String(op), Input: args, Output: []string{to}, Attribute: attrs}
	if len(w.node.Origin) == 1 {
		p.Name = proto.String(w.nodeName(w.node.Origin[0].Name))
	}
	w.p.Node = append(w.p.Node, p)
}

// nodeName is a name that no other node has: that of the node's origin, of which several may come.
func (w *writer) nodeName(name string) string {
	if name == "" {
		return ""
	}
	try := name
	for w.nodes[try] > 0 {
		w.nodes[name]++
		try = fmt.Sprintf("%s.%d", name, w.nodes[name])
	}
	w.nodes[try]++
	return try
}

// tensor writes an initializer.
func (w *writer) tensor(name string, t *graph.Tensor) {
	raw := slices.Clone(t.Bytes())
	if !littleEndian {
		swap(raw, t.Type.DType.Size())
	}
	p := &pb.TensorProto{Name: &name, DataType: proto.Int32(int32(onnxType(t.Type.DType))), RawData: raw}
	for _, d := range t.Type.Shape.Slice() {
		p.Dims = append(p.Dims, int64(d))
	}
	w.bytes += int64(len(raw))
	w.p.Initializer = append(w.p.Initializer, p)
}

// constant is the name of a constant; equal small ones are written once.
func (w *writer) constant(t *graph.Tensor) string {
	const small = 256
	key := ""
	if t.Type.Bytes() <= small {
		key = fmt.Sprintf("%v %x", t.Type, t.Bytes())
		if name := w.constants[key]; name != "" {
			return name
		}
	}
	name := w.name()
	w.tensor(name, t)
	if key != "" {
		w.constants[key] = name
	}
	return name
}

// ints is a constant vector.
func (w *writer) ints(v ...int) string {
	t := graph.NewTensor(graph.TypeOf(graph.I64, len(v)))
	for i, x := range v {
		t.SetInt(i, int64(x))
	}
	return w.constant(t)
}

// scalar is a constant of rank 0.
func (w *writer) scalar(d graph.DType, v float64) string { return w.constant(graph.Scalar(d, v)) }

// write writes a node of the graph.
func (w *writer) write(n *graph.Node) error {
	w.node = n
	if onnxType(n.Type.DType) == pb.TensorProto_UNDEFINED {
		return fmt.Errorf("ONNX has no elements of type %v", n.Type.DType)
	}
	switch op := n.Op.(type) {
	case graph.Input:
		w.p.Input = append(w.p.Input, info(n.Name, n.Type))
		return nil
	case graph.Param, graph.State:
		t := w.weights[n.Name]
		if t == nil {
			return fmt.Errorf("no value of this name is given")
		}
		if t.Type != n.Type {
			return fmt.Errorf("its value is %v", t.Type)
		}
		if err := t.Check(); err != nil {
			return err
		}
		w.tensor(n.Name, t)
		return nil
	case graph.Const:
		if name := w.names[n]; name != "" {
			w.tensor(name, op.Value)
		} else {
			w.names[n] = w.constant(op.Value)
		}
		return nil
	case graph.Result:
		return w.result(op, n)
	}
	f := forms[n.Op.OpName()]
	if f == nil {
		if c, ok := n.Op.(graph.Custom); ok {
			return fmt.Errorf("ONNX has no operator for %s, a function of the program's own", c.Fn)
		}
		return fmt.Errorf("ONNX has no operator for it")
	}
	args := make([]string, len(n.Args))
	for i, a := range n.Args {
		args[i] = w.names[a]
	}
	before := len(w.p.Node)
	result, err := f.write(w, n, args)
	if err != nil {
		return err
	}
	if want := w.names[n]; want != "" && want != result { // the name of an output
		if last := len(w.p.Node) - 1; last >= before && w.p.Node[last].Output[0] == result {
			w.p.Node[last].Output[0] = want
			return nil
		}
		w.emitTo(want, "Identity", []string{result})
		return nil
	}
	w.names[n] = result
	return nil
}

// result names a further result of an operation by the node that has written it, which is the last of its operation.
func (w *writer) result(op graph.Result, n *graph.Node) error {
	first := w.names[n.Args[0]]
	i := slices.IndexFunc(w.p.Node, func(p *pb.NodeProto) bool { return p.Output[0] == first })
	if i < 0 || len(w.p.Node[i].Output) <= op.Index {
		return fmt.Errorf("ONNX has no operator for result %d of %s", op.Index, n.Args[0].Describe())
	}
	name := w.p.Node[i].Output[op.Index]
	if want := w.names[n]; want != "" {
		w.emitTo(want, "Identity", []string{name})
		return nil
	}
	w.names[n] = name
	return nil
}

// attributeOf makes an attribute of an int, []int, float64 or string.
func attributeOf(name string, v any) *pb.AttributeProto {
	a := &pb.AttributeProto{Name: &name}
	switch v := v.(type) {
	case int:
		a.Type, a.I = pb.AttributeProto_INT.Enum(), proto.Int64(int64(v))
	case bool:
		return attributeOf(name, map[bool]int{true: 1}[v])
	case []int:
		a.Type = pb.AttributeProto_INTS.Enum()
		for _, x := range v {
			a.Ints = append(a.Ints, int64(x))
		}
	case float64:
		a.Type, a.F = pb.AttributeProto_FLOAT.Enum(), proto.Float32(float32(v))
	case string:
		a.Type, a.S = pb.AttributeProto_STRING.Enum(), []byte(v)
	}
	return a
}

// A form is how an operation is written.
type form struct {
	fits  func(n *graph.Node) bool // nil: always; otherwise it is taken apart
	write func(w *writer, n *graph.Node, args []string) (string, error)
}

// forms are those of operations, by name.
var forms = map[string]*form{}

// simple is a form of one operator with attributes.
func simple(op string, attrs func(n *graph.Node) []*pb.AttributeProto) *form {
	return &form{write: func(w *writer, n *graph.Node, args []string) (string, error) {
		var as []*pb.AttributeProto
		if attrs != nil {
			as = attrs(n)
		}
		return w.emit(op, args, as...), nil
	}}
}

// A unaryForm writes a function of one variable, of the only operand in args.
type unaryForm func(w *writer, n *graph.Node, args []string) string

// plain is a function that is an operator, with attributes.
func plain(name string, attrs ...*pb.AttributeProto) unaryForm {
	return func(w *writer, _ *graph.Node, args []string) string { return w.emit(name, args, attrs...) }
}

// withAlpha is an operator with the function's number.
func withAlpha(name string) unaryForm {
	return func(w *writer, n *graph.Node, args []string) string {
		return w.emit(name, args, attributeOf("alpha", n.Op.(graph.Unary).Alpha))
	}
}

// with writes an operator of x and a number.
func (w *writer) with(n *graph.Node, name, x string, v float64) string {
	return w.emit(name, []string{x, w.scalar(n.Type.DType, v)})
}

// unaries are the forms of functions of one variable.
var unaries = map[graph.UnaryFn]unaryForm{
	graph.Neg: plain("Neg"), graph.Abs: plain("Abs"), graph.Sign: plain("Sign"), graph.Ceil: plain("Ceil"),
	graph.Floor: plain("Floor"), graph.Round: plain("Round"), graph.Exp: plain("Exp"), graph.Log: plain("Log"),
	graph.Sqrt: plain("Sqrt"), graph.Recip: plain("Reciprocal"), graph.Sin: plain("Sin"), graph.Cos: plain("Cos"),
	graph.Tan: plain("Tan"), graph.Asin: plain("Asin"), graph.Acos: plain("Acos"), graph.Atan: plain("Atan"),
	graph.Sinh: plain("Sinh"), graph.Cosh: plain("Cosh"), graph.Asinh: plain("Asinh"), graph.Acosh: plain("Acosh"),
	graph.Atanh: plain("Atanh"), graph.Tanh: plain("Tanh"), graph.Sigmoid: plain("Sigmoid"),
	graph.Softplus: plain("Softplus"), graph.Erf: plain("Erf"), graph.Relu: plain("Relu"), graph.Not: plain("Not"),
	graph.GeluErf: plain("Gelu"), graph.GeluTanh: plain("Gelu", attributeOf("approximate", "tanh")),
	graph.LeakyRelu: withAlpha("LeakyRelu"), graph.Elu: withAlpha("Elu"),
	graph.Expm1: func(w *writer, n *graph.Node, x []string) string { return w.with(n, "Sub", w.emit("Exp", x), 1) },
	graph.Log1p: func(w *writer, n *graph.Node, x []string) string {
		return w.emit("Log", []string{w.with(n, "Add", x[0], 1)})
	},
	graph.Log2: func(w *writer, n *graph.Node, x []string) string {
		return w.with(n, "Mul", w.emit("Log", x), 1/math.Ln2)
	},
	graph.Rsqrt: func(w *writer, _ *graph.Node, x []string) string {
		return w.emit("Reciprocal", []string{w.emit("Sqrt", x)})
	},
	graph.Square: func(w *writer, _ *graph.Node, x []string) string { return w.emit("Mul", []string{x[0], x[0]}) },
	graph.Cube: func(w *writer, _ *graph.Node, x []string) string {
		return w.emit("Mul", []string{w.emit("Mul", []string{x[0], x[0]}), x[0]})
	},
	graph.GeluTanhSlope: func(w *writer, n *graph.Node, x []string) string { // s + x·s(1−s)·(2u)′
		const k = 2 * math.Sqrt2 * math.SqrtPi / math.Pi
		mul := func(a, b string) string { return w.emit("Mul", []string{a, b}) }
		sq := mul(x[0], x[0])
		s := w.emit("Sigmoid", []string{mul(x[0], w.with(n, "Add", w.with(n, "Mul", sq, k*0.044715), k))})
		a := mul(x[0], w.with(n, "Add", w.with(n, "Mul", sq, 3*k*0.044715), k))
		return w.emit("Add", []string{s, mul(a, mul(s, w.with(n, "Add", w.emit("Neg", []string{s}), 1)))})
	},
	graph.GeluErfSlope: func(w *writer, n *graph.Node, x []string) string { // (1 + erf(x/√2))/2 + x·φ(x)
		phi := w.with(n, "Mul", w.with(n, "Add", w.emit("Erf", []string{w.with(n, "Mul", x[0], 1/math.Sqrt2)}), 1), 0.5)
		half := w.with(n, "Mul", w.emit("Mul", []string{x[0], x[0]}), -0.5)
		density := w.with(n, "Mul", w.emit("Exp", []string{half}), 1/math.Sqrt(2*math.Pi))
		return w.emit("Add", []string{phi, w.emit("Mul", []string{x[0], density})})
	},
	graph.Silu: func(w *writer, _ *graph.Node, x []string) string {
		return w.emit("Mul", []string{x[0], w.emit("Sigmoid", x)})
	},
}

// binaries are the operators of functions of two variables. A second one is of the first one's result.
var binaries = map[graph.BinaryFn][]string{
	graph.Add: {"Add"}, graph.Sub: {"Sub"}, graph.Mul: {"Mul"}, graph.Div: {"Div"}, graph.Pow: {"Pow"}, graph.Max: {"Max"},
	graph.Min: {"Min"}, graph.Lt: {"Less"}, graph.Gt: {"Greater"}, graph.Le: {"LessOrEqual"}, graph.Ge: {"GreaterOrEqual"},
	graph.Eq: {"Equal"}, graph.Ne: {"Equal", "Not"}, graph.And: {"And"}, graph.Or: {"Or"},
}

// reduceNames and poolNames are ONNX's operators.
var (
	reduceNames = map[graph.ReduceFn]string{graph.Sum: "ReduceSum", graph.Mean: "ReduceMean", graph.Prod: "ReduceProd",
		graph.MaxOf: "ReduceMax", graph.MinOf: "ReduceMin"}
	poolNames = map[graph.PoolFn]string{graph.MaxPool: "MaxPool", graph.AvgPool: "AveragePool"}
)

func init() {
	if err := errors.Join(graph.CheckReductions("graph/onnx", reduceNames), graph.CheckPools("graph/onnx", poolNames)); err != nil {
		panic(err)
	}
	forms["unary"] = &form{write: func(w *writer, n *graph.Node, args []string) (string, error) {
		f := n.Op.(graph.Unary).Fn
		if write := unaries[f]; write != nil {
			return write(w, n, args), nil
		}
		return "", fmt.Errorf("ONNX has no operator for %v", f)
	}}
	forms["binary"] = &form{write: func(w *writer, n *graph.Node, args []string) (string, error) {
		f := n.Op.(graph.Binary).Fn
		if binaries[f] == nil {
			return "", fmt.Errorf("ONNX has no operator for %v", f)
		}
		y := w.emit(binaries[f][0], args)
		for _, op := range binaries[f][1:] {
			y = w.emit(op, []string{y})
		}
		return y, nil
	}}
	forms["select"] = simple("Where", nil)
	quantised := func(n *graph.Node, axis, block int) []*pb.AttributeProto {
		a := []*pb.AttributeProto{attributeOf("axis", axis), attributeOf("block_size", block)}
		if q, ok := n.Op.(graph.Quantize); ok && len(n.Args) == 2 {
			a = append(a, attributeOf("output_dtype", int(onnxType(q.To))))
		}
		return a
	}
	forms["quantize"] = simple("QuantizeLinear", func(n *graph.Node) []*pb.AttributeProto {
		op := n.Op.(graph.Quantize)
		return quantised(n, op.Axis, op.Block)
	})
	forms["dequantize"] = simple("DequantizeLinear", func(n *graph.Node) []*pb.AttributeProto {
		op := n.Op.(graph.Dequantize)
		return quantised(n, op.Axis, op.Block)
	})
	forms["cast"] = simple("Cast", func(n *graph.Node) []*pb.AttributeProto {
		return []*pb.AttributeProto{attributeOf("to", int(onnxType(n.Op.(graph.Cast).To)))}
	})
	forms["matmul"] = &form{write: func(w *writer, n *graph.Node, args []string) (string, error) {
		op := n.Op.(graph.MatMul)
		args = w.wide(n, args)
		for i, trans := range []bool{op.TransA, op.TransB} {
			if r := n.Args[i].Type.Shape.Rank(); trans {
				perm := make([]int, r)
				for j := range perm {
					perm[j] = j
				}
				perm[r-1], perm[r-2] = r-2, r-1
				args[i] = w.emit("Transpose", []string{args[i]}, attributeOf("perm", perm))
			}
		}
		return w.emit("MatMul", args), nil
	}}
	forms["conv2d"] = &form{fits: inRows, write: func(w *writer, n *graph.Node, args []string) (string, error) {
		op, f := n.Op.(graph.Conv2D), n.Args[1].Type.Shape
		return w.emit("Conv", w.wide(n, args), window(f, op.Stride, op.Dilation, op.Pad, op.Groups)...), nil
	}}
	forms["conv2d_transpose"] = &form{fits: inRows, write: func(w *writer, n *graph.Node, args []string) (string, error) {
		op, f, y := n.Op.(graph.Conv2DTranspose), n.Args[1].Type.Shape, n.Args[0].Type.Shape
		extra := make([]int, 2)
		for i, size := range []int{op.H, op.W} {
			extra[i] = size - ((y.At(i+2)-1)*op.Stride.At(i) + op.Dilation.At(i)*(f.At(i+2)-1) + 1 - op.Pad.At(i) - op.Pad.At(i+2))
		}
		attrs := append(window(f, op.Stride, op.Dilation, op.Pad, op.Groups), attributeOf("output_padding", extra))
		return w.emit("ConvTranspose", w.wide(n, args), attrs...), nil
	}}
	forms["im2col"] = &form{write: writePatches}
	forms["pool"] = &form{fits: inRows, write: func(w *writer, n *graph.Node, args []string) (string, error) {
		op := n.Op.(graph.Pool)
		attrs := []*pb.AttributeProto{attributeOf("kernel_shape", op.Kernel.Slice()), attributeOf("strides", op.Stride.Slice()),
			attributeOf("pads", op.Pad.Slice())}
		if op.Fn.Info().Reduce.Info().Averages {
			attrs = append(attrs, attributeOf("count_include_pad", op.CountPad))
		}
		return w.emit(poolNames[op.Fn], args, attrs...), nil
	}}
	forms["reduce"] = &form{write: func(w *writer, n *graph.Node, args []string) (string, error) {
		op := n.Op.(graph.Reduce)
		return w.emit(reduceNames[op.Fn], []string{args[0], w.ints(op.Axes.Slice()...)}, attributeOf("keepdims", op.Keep),
			attributeOf("noop_with_empty_axes", true)), nil
	}}
	forms["softmax"] = simple("Softmax", func(n *graph.Node) []*pb.AttributeProto {
		return []*pb.AttributeProto{attributeOf("axis", n.Op.(graph.Softmax).Axis)}
	})
	forms["log_softmax"] = simple("LogSoftmax", func(n *graph.Node) []*pb.AttributeProto {
		return []*pb.AttributeProto{attributeOf("axis", n.Op.(graph.LogSoftmax).Axis)}
	})
	forms["layer_norm"] = simple("LayerNormalization", func(n *graph.Node) []*pb.AttributeProto {
		return []*pb.AttributeProto{attributeOf("epsilon", n.Op.(graph.LayerNorm).Eps)}
	})
	forms["group_norm"] = simple("GroupNormalization", func(n *graph.Node) []*pb.AttributeProto {
		op := n.Op.(graph.GroupNorm)
		return []*pb.AttributeProto{attributeOf("epsilon", op.Eps), attributeOf("num_groups", op.Groups)}
	})
	forms["batch_norm"] = simple("BatchNormalization", func(n *graph.Node) []*pb.AttributeProto {
		return []*pb.AttributeProto{attributeOf("epsilon", n.Op.(graph.BatchNorm).Eps)}
	})
	forms["batch_norm"].fits = func(n *graph.Node) bool { return !n.Op.(graph.BatchNorm).Train }
	forms["reshape"] = shaped("Reshape", func(n *graph.Node) graph.Shape { return n.Op.(graph.Reshape).Shape },
		attributeOf("allowzero", 1))
	forms["broadcast"] = shaped("Expand", func(n *graph.Node) graph.Shape { return n.Op.(graph.Broadcast).Shape })
	forms["transpose"] = simple("Transpose", func(n *graph.Node) []*pb.AttributeProto {
		return []*pb.AttributeProto{attributeOf("perm", n.Op.(graph.Transpose).Perm.Slice())}
	})
	forms["concat"] = simple("Concat", func(n *graph.Node) []*pb.AttributeProto {
		return []*pb.AttributeProto{attributeOf("axis", n.Op.(graph.Concat).Axis)}
	})
	forms["copy"] = simple("Identity", nil)
	forms["pad"] = &form{write: func(w *writer, n *graph.Node, args []string) (string, error) {
		op := n.Op.(graph.Pad)
		return w.emit("Pad", []string{args[0], w.ints(append(op.Lo.Slice(), op.Hi.Slice()...)...), w.scalar(n.Type.DType, op.Value)}), nil
	}}
	forms["slice"] = &form{write: writeSlice}
	forms["gather"] = simple("Gather", func(n *graph.Node) []*pb.AttributeProto {
		return []*pb.AttributeProto{attributeOf("axis", n.Op.(graph.Gather).Axis)}
	})
	forms["top_k"] = &form{write: func(w *writer, n *graph.Node, args []string) (string, error) {
		values := w.emit("TopK", []string{args[0], w.ints(n.Op.(graph.TopK).K)})
		p := w.p.Node[len(w.p.Node)-1]
		p.Output = append(p.Output, w.name())
		return values, nil
	}}
}

// inRows reports whether an operation on images is on [N,C,H,W].
func inRows(n *graph.Node) bool { return n.Op.(graph.ImageOp).ImageLayout() == graph.NCHW }

// window is the attributes of a convolution with filters of shape f.
func window(f graph.Shape, stride, dilation, pad graph.Ints, groups int) []*pb.AttributeProto {
	return []*pb.AttributeProto{attributeOf("kernel_shape", []int{f.At(2), f.At(3)}), attributeOf("strides", stride.Slice()),
		attributeOf("dilations", dilation.Slice()), attributeOf("pads", pad.Slice()), attributeOf("group", groups)}
}

// writePatches writes the patches of an image as a convolution of each channel with filters of a single 1.
func writePatches(w *writer, n *graph.Node, args []string) (string, error) {
	op, x, d := n.Op.(graph.Im2Col), n.Args[0].Type.Shape, n.Type.DType
	k := op.Kernel.At(0) * op.Kernel.At(1)
	f := graph.NewTensor(graph.TypeOf(d, x.At(1)*k, 1, op.Kernel.At(0), op.Kernel.At(1)))
	for i := range x.At(1) * k {
		f.SetFloat(i*k+i%k, 1)
	}
	y := w.emit("Conv", []string{args[0], w.constant(f)}, window(f.Type.Shape, op.Stride, op.Dilation, op.Pad, x.At(1))...)
	return w.emit("Transpose", []string{y}, attributeOf("perm", []int{0, 2, 3, 1})), nil
}

// wide casts operands of 16 bits to the type of the result, in which contractions of them sum.
func (w *writer) wide(n *graph.Node, args []string) []string {
	for i, a := range n.Args {
		if a.Type.DType != n.Type.DType {
			args[i] = w.emit("Cast", []string{args[i]}, attributeOf("to", int(onnxType(n.Type.DType))))
		}
	}
	return args
}

// shaped is a form of an operator whose second operand is a shape.
func shaped(op string, shape func(n *graph.Node) graph.Shape, attrs ...*pb.AttributeProto) *form {
	return &form{write: func(w *writer, n *graph.Node, args []string) (string, error) {
		return w.emit(op, []string{args[0], w.ints(shape(n).Slice()...)}, attrs...), nil
	}}
}

// writeSlice writes a slice, from a start that may be computed.
func writeSlice(w *writer, n *graph.Node, args []string) (string, error) {
	op := n.Op.(graph.Slice)
	if start, ok := op.ConstStart(n); ok {
		end := start + max(op.Size-1, 0)*op.Step + min(op.Size, 1)
		return w.emit("Slice", []string{args[0], w.ints(start), w.ints(end), w.ints(op.Axis), w.ints(op.Step)}), nil
	}
	start := w.emit("Reshape", []string{args[1], w.ints(1)})
	end := w.emit("Add", []string{start, w.ints(max(op.Size-1, 0)*op.Step + min(op.Size, 1))})
	return w.emit("Slice", []string{args[0], start, end, w.ints(op.Axis), w.ints(op.Step)}), nil
}
