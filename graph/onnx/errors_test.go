package onnx

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

// A draft is a model that tests change.
type draft struct{ pb.ModelProto }

// newDraft is a model of one node: y = op(x) with x f32[2,3].
func newDraft(op string, attrs ...*pb.AttributeProto) *draft {
	d := &draft{}
	d.IrVersion = proto.Int64(10)
	d.OpsetImport = []*pb.OperatorSetIdProto{{Version: proto.Int64(21)}}
	d.Graph = &pb.GraphProto{Node: []*pb.NodeProto{{OpType: &op, Name: proto.String("the node"), Input: []string{"x"},
		Output: []string{"y"}, Attribute: attrs}},
		Input:  []*pb.ValueInfoProto{valueInfo("x", pb.TensorProto_FLOAT, 2, 3)},
		Output: []*pb.ValueInfoProto{valueInfo("y", pb.TensorProto_FLOAT)}}
	return d
}

// microsoftDraft is newDraft for an operator that ONNX Runtime adds.
func microsoftDraft(op string, attrs ...*pb.AttributeProto) *draft {
	d := newDraft(op, attrs...)
	d.Graph.Node[0].Domain = proto.String(microsoft)
	return d
}

// valueInfo is a declared tensor. A size below 0 is open, with the name n.
func valueInfo(name string, k pb.TensorProto_DataType, sizes ...int64) *pb.ValueInfoProto {
	t := &pb.TypeProto_Tensor{ElemType: proto.Int32(int32(k)), Shape: &pb.TensorShapeProto{}}
	for _, s := range sizes {
		d := &pb.TensorShapeProto_Dimension{Value: &pb.TensorShapeProto_Dimension_DimValue{DimValue: s}}
		if s < 0 {
			d.Value = &pb.TensorShapeProto_Dimension_DimParam{DimParam: "n"}
		}
		t.Shape.Dim = append(t.Shape.Dim, d)
	}
	return &pb.ValueInfoProto{Name: &name, Type: &pb.TypeProto{Value: &pb.TypeProto_TensorType{TensorType: t}}}
}

func intValue(name string, v int64) *pb.AttributeProto {
	return &pb.AttributeProto{Name: &name, Type: pb.AttributeProto_INT.Enum(), I: &v}
}

func intValues(name string, v ...int64) *pb.AttributeProto {
	return &pb.AttributeProto{Name: &name, Type: pb.AttributeProto_INTS.Enum(), Ints: v}
}

// weight adds an initializer of integers.
func (d *draft) weight(name string, v ...int64) *draft {
	d.Graph.Initializer = append(d.Graph.Initializer, &pb.TensorProto{Name: &name, DataType: proto.Int32(int32(pb.TensorProto_INT64)),
		Dims: []int64{int64(len(v))}, Int64Data: v})
	return d
}

// reads sets the operands of the node.
func (d *draft) reads(names ...string) *draft {
	d.Graph.Node[0].Input = names
	return d
}

// changed changes the model.
func (d *draft) changed(f func(d *draft)) *draft {
	f(d)
	return d
}

func (d *draft) bytes(t testing.TB) []byte {
	t.Helper()
	b, err := proto.Marshal(&d.ModelProto)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestErrors reads models with mistakes.
func TestErrors(t *testing.T) {
	tensor := func(p *pb.TensorProto) func(*draft) {
		return func(d *draft) {
			p.Name = proto.String("w")
			d.Graph.Initializer = append(d.Graph.Initializer, p)
		}
	}
	external := func(kv ...string) *draft {
		p := &pb.TensorProto{DataType: proto.Int32(1), Dims: []int64{2}, DataLocation: pb.TensorProto_EXTERNAL.Enum()}
		for i := 0; i < len(kv); i += 2 {
			p.ExternalData = append(p.ExternalData, &pb.StringStringEntryProto{Key: &kv[i], Value: &kv[i+1]})
		}
		return newDraft("Add").reads("x", "w").changed(tensor(p))
	}
	bits := func(bits, k, n, block int64) []*pb.AttributeProto {
		return []*pb.AttributeProto{intValue("bits", bits), intValue("K", k), intValue("N", n), intValue("block_size", block)}
	}
	const where = `node 0 (Relu "the node"): `
	for name, c := range map[string]struct {
		d    *draft
		want string
	}{
		"no graph": {newDraft("Relu").changed(func(d *draft) { d.Graph = nil }), "it has no graph"},
		"old IR":   {newDraft("Relu").changed(func(d *draft) { d.IrVersion = proto.Int64(2) }), "IR version 2; versions 3 to"},
		"old opset": {newDraft("Relu").changed(func(d *draft) { d.OpsetImport[0].Version = proto.Int64(5) }),
			"opset 5; opsets 6 to"},
		"no opset": {newDraft("Relu").changed(func(d *draft) { d.OpsetImport = nil }),
			where + "the model does not say of what opset it is"},
		"unknown operator": {newDraft("Frobnicate"), `node 0 (Frobnicate "the node"): the operator Frobnicate is not supported`},
		"unknown domain": {newDraft("Relu").changed(func(d *draft) { d.Graph.Node[0].Domain = proto.String("my.own") }),
			where + "the operator Relu of the domain my.own is not supported"},
		"refused":         {newDraft("NonZero"), "the shape of its result depends on data"},
		"operands":        {newDraft("Relu").reads("x", "x"), where + "it has 2 operands"},
		"missing operand": {newDraft("Add").reads("", "x"), "operand 0 is missing"},
		"not computed":    {newDraft("Relu").reads("z"), where + `its operand "z" is not computed before it`},
		"output": {newDraft("Relu").changed(func(d *draft) { d.Graph.Output[0].Name = proto.String("q") }),
			`output "q" is not computed`},
		"no output": {newDraft("Relu").changed(func(d *draft) { d.Graph.Output = nil }), "the model has no outputs"},
		"outputs": {newDraft("Relu").changed(func(d *draft) { d.Graph.Output = append(d.Graph.Output, d.Graph.Output[0]) }),
			`two outputs named "y"`},
		"twice": {newDraft("Relu").changed(func(d *draft) { d.Graph.Node = append(d.Graph.Node, d.Graph.Node[0]) }),
			`node 1 (Relu "the node"): "y" is computed twice`},
		"second result": {newDraft("Relu").changed(func(d *draft) { d.Graph.Node[0].Output = []string{"", "y"} }),
			`output "y": result 1 of node 0`},
		"unknown attribute": {newDraft("Relu", intValue("q", 1)), where + `there is no attribute "q" in opset 21`},
		"attribute's type":  {newDraft("Concat", intValues("axis", 1)), `attribute "axis" is of type INTS, not INT`},
		"attribute missing": {newDraft("Concat"), `its attribute "axis", of type int64, is missing`},
		"strings": {newDraft("Relu").changed(func(d *draft) { d.Graph.Input[0] = valueInfo("x", pb.TensorProto_STRING, 2) }),
			`elements of type STRING are not supported`},
		"unknown type": {newDraft("Relu").changed(func(d *draft) { d.Graph.Input[0] = valueInfo("x", 77, 2) }),
			`elements of type 77, which is unknown, are not supported`},
		"open size": {newDraft("Relu").changed(func(d *draft) { d.Graph.Input[0] = valueInfo("x", pb.TensorProto_FLOAT, 2, -1) }),
			"the sizes n of the model's inputs are open: bind each with --dim NAME=SIZE"},
		"unnamed size": {newDraft("Relu").changed(func(d *draft) {
			d.Graph.Input[0].Type.GetTensorType().Shape.Dim[1].Value = nil
		}), "the sizes x[1] of"},
		"no shape": {newDraft("Relu").changed(func(d *draft) { d.Graph.Input[0].Type.GetTensorType().Shape = nil }),
			"does not say how many axes it has"},
		"many axes": {newDraft("Relu").changed(func(d *draft) { d.Graph.Input[0] = valueInfo("x", 1, 1, 1, 1, 1, 1, 1, 1, 1, 1) }),
			"it has 9 axes; there may be 8"},
		"huge": {newDraft("Relu").changed(func(d *draft) { d.Graph.Input[0] = valueInfo("x", 1, 1<<39, 1<<39) }),
			"has more than"},
		"sequence": {newDraft("Relu").changed(func(d *draft) { d.Graph.Input[0].Type.Value = &pb.TypeProto_SequenceType{} }),
			`input "x" is no tensor`},
		"short data": {newDraft("Add").reads("x",
			"w").changed(tensor(&pb.TensorProto{DataType: proto.Int32(1), Dims: []int64{1 << 38}, RawData: []byte{1, 2}})), "it has 2"},
		"typed data": {newDraft("Add").reads("x",
			"w").changed(tensor(&pb.TensorProto{DataType: proto.Int32(1), Dims: []int64{3}, FloatData: []float32{1}})),
			`tensor "w": f32[3] has 3 elements; it is given 1`},
		"negative size": {newDraft("Add").reads("x", "w").changed(tensor(&pb.TensorProto{DataType: proto.Int32(1), Dims: []int64{-3}})),
			"axis 0 has the size -3"},
		"segments": {newDraft("Add").reads("x",
			"w").changed(tensor(&pb.TensorProto{DataType: proto.Int32(1), Segment: &pb.TensorProto_Segment{}})), "it is in segments"},
		"initializers": {newDraft("Relu").weight("w", 1).weight("w", 1), `two initializers named "w"`},
		"inputs": {newDraft("Relu").changed(func(d *draft) { d.Graph.Input = append(d.Graph.Input, d.Graph.Input[0]) }),
			`two inputs named "x"`},
		"sparse": {newDraft("Relu").changed(func(d *draft) { d.Graph.SparseInitializer = []*pb.SparseTensorProto{{}} }),
			"sparse initializers are not supported"},
		"outside":      {external("location", "../secret"), `its data is in "../secret", which is not below the model's folder`},
		"absolute":     {external("location", "/etc/passwd"), `is not below the model's folder`},
		"link":         {external("location", "link"), `its external data`},
		"beyond":       {external("location", "data", "offset", "4"), `its external data is not in "data": 8 bytes at 4`},
		"offset":       {external("location", "data", "offset", "-4"), `the offset -4`},
		"number":       {external("location", "data", "offset", "x"), `the offset "x"`},
		"length":       {external("location", "data", "length", "4"), `the length 4; it takes 8 bytes`},
		"no file":      {external("location", "nothing"), `its external data`},
		"data's shape": {newDraft("Reshape").reads("x", "x"), `operand 1, "x", decides the shape of the result and depends on data`},
		"reshape":      {newDraft("Reshape").reads("x", "s").weight("s", 5, -1), "[2,3] has no shape [5 -1]"},
		"real indices": {newDraft("Gather").reads("x",
			"w").changed(tensor(&pb.TensorProto{DataType: proto.Int32(11), Dims: []int64{1}, RawData: make([]byte, 8)})),
			"indices are f64"},
		"real places": {newDraft("ScatterElements").reads("x", "w",
			"x").changed(tensor(&pb.TensorProto{DataType: proto.Int32(1), Dims: []int64{2, 3}, RawData: make([]byte, 24)})),
			"indices"},
		"large reshape": {newDraft("Reshape").reads("x", "s").weight("s", 1<<40, 1<<40), "has more than"},
		"broadcast":     {newDraft("Add").reads("x", "s").weight("s", 5, 1), "shapes [2,3] and [2] do not broadcast"},
		"large tile":    {newDraft("Tile").reads("x", "s").weight("s", 1<<39, 1<<39), "has more than"},
		"large pad":     {newDraft("Pad").reads("x", "s").weight("s", 1<<39, 1<<39, 0, 0), "more than"},
		"large expand":  {newDraft("Expand").reads("x", "s").weight("s", 1<<30, 1<<30, 2, 3), "has more than"},
		"axis":          {newDraft("Concat", intValue("axis", 2)), "axis 2 of a tensor of rank 2"},
		"types":         {newDraft("Add").reads("x", "s").weight("s", 5), "element types f32 and i64 differ"},
		"cast":          {newDraft("Cast", intValue("to", 8)), "a cast to STRING is not supported"},
		"bits": {microsoftDraft("MatMulNBits", bits(4, 3, 7, 16)...).reads("x", "x", "x"),
			"weights f32[2,3]; [7,3] in blocks of 16 are u8[7,1,8]"},
		"3 bits": {microsoftDraft("MatMulNBits", bits(3, 3, 7, 16)...).reads("x", "x", "x"),
			"weights of 3 bits are not supported"},
		"large bits": {microsoftDraft("MatMulNBits", bits(4, 1<<40, 1<<40, 16)...).reads("x", "x", "x"), "in blocks of 16"},
		"heads":      {microsoftDraft("Attention", intValue("num_heads", 2)).reads("x", "x"), "it takes [B,S,·] and a matrix"},
		"no keys": {microsoftDraft("MultiHeadAttention", intValue("num_heads", 2)),
			"queries are [B,s,h·d] or [B,s,h,3,d], not f32[2,3]"},
		"total": {microsoftDraft("GroupQueryAttention", intValue("num_heads", 1), intValue("kv_num_heads", 1)),
			"1 heads of queries and 1 of keys"},
		"skip": {microsoftDraft("SkipLayerNormalization").reads("x", "s", "x").weight("s", 1, 2),
			"shapes [2,3] and [2] do not broadcast"},
		"grid":        {newDraft("GridSample").reads("x", "x"), "a grid f32[2,3] for an image f32[2,3]"},
		"affine grid": {newDraft("AffineGrid").reads("x", "s").weight("s", 2, 1, 1<<40, 1<<40), "maps f32[2,3] for an image"},
		"large blocks": {newDraft("Col2Im").reads("x", "s", "s").weight("s", 1<<40, 1<<40),
			"blocks [1099511627776 1099511627776] in an image"},
		"blocks":    {newDraft("Col2Im").reads("x", "s", "s").weight("s", 2, 2), "blocks [2 2] in an image [2 2], of f32[2,3]"},
		"transform": {newDraft("DFT").reads("x"), "it takes [...,1] or [...,2], not f32[2,3]"},
		"frames":    {newDraft("STFT").reads("x", "s", "", "s").weight("s", 4), "frames of 4 numbers, 4 apart, of f32[2,3,1]"},
		"rule": {newDraft("LinearAttention", intValue("q_num_heads", 1), intValue("kv_num_heads", 1)).reads("x", "x", "x"),
			`the rule "gated_delta", given a decay: false`},
		"recursion": {newDraft("F").changed(func(d *draft) {
			d.Graph.Node[0].Domain = proto.String("f")
			f := &pb.FunctionProto{Name: proto.String("F"), Domain: proto.String("f"), Input: []string{"x"}, Output: []string{"y"},
				Node: d.Graph.Node}
			d.Functions = append(d.Functions, f)
		}), "functions are nested more than 64 deep"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "m.onnx")
			os.WriteFile(filepath.Join(dir, "data"), make([]byte, 8), 0o666)
			if err := os.Symlink("/etc/passwd", filepath.Join(dir, "link")); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, c.d.bytes(t), 0o666); err != nil {
				t.Fatal(err)
			}
			_, err := Load(path, Options{})
			if err == nil || !strings.Contains(err.Error(), c.want) || !strings.HasPrefix(err.Error(), path) {
				t.Errorf("error %v, want %s", err, c.want)
			}
		})
	}
	for _, data := range []string{"", "x", "\x08", "\x3a\xff\xff\xff\xff\x0f"} {
		if _, err := Read("m", []byte(data), Options{}); err == nil || !strings.Contains(err.Error(), "this is no ONNX model") {
			t.Errorf("%q: %v", data, err)
		}
	}
	if _, err := Load("nothing.onnx", Options{}); !os.IsNotExist(err) {
		t.Error(err)
	}
}

// TestOptions binds open sizes.
func TestOptions(t *testing.T) {
	open := newDraft("Add").reads("x", "z").changed(func(d *draft) {
		d.Graph.Input = []*pb.ValueInfoProto{valueInfo("x", 1, 2, -1), valueInfo("z", 1, -1)}
	}).bytes(t)
	f32 := func(dims ...int) *graph.Tensor { return graph.NewTensor(graph.TypeOf(graph.F32, dims...)) }
	for name, c := range map[string]struct {
		o    Options
		want string
	}{
		"dims":  {Options{Dims: map[string]int{"n": 3}}, "f32[2,3]"},
		"value": {Options{Inputs: map[string]*graph.Tensor{"z": f32(4)}}, "f32[2,4]"},
		"both":  {Options{Dims: map[string]int{"n": 4}, Inputs: map[string]*graph.Tensor{"z": f32(4)}}, "f32[2,4]"},
		"conflict": {Options{Dims: map[string]int{"n": 3}, Inputs: map[string]*graph.Tensor{"z": f32(4)}},
			`! n is 3; the value of input "z" is f32[4]`},
		"rank": {Options{Inputs: map[string]*graph.Tensor{"z": f32(4, 4)}}, `! input "z" has 1 axes; its value is f32[4,4]`},
		"shape": {Options{Dims: map[string]int{"n": 3}, Inputs: map[string]*graph.Tensor{"x": f32(3, 3)}},
			`! input "x" is f32[2,3]; its value is f32[3,3]`},
		"negative": {Options{Dims: map[string]int{"n": -3}}, "! axis 1 has the size -3"},
	} {
		m, err := Read("m.onnx", open, c.o)
		got := ""
		if err != nil {
			got = "! " + err.Error()
		} else {
			got = m.Graph.Outputs[0].Node.Type.String()
		}
		want, fails := strings.CutPrefix(c.want, "! ")
		if fails != (err != nil) || !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestFixed reads a model whose input decides on a shape.
func TestFixed(t *testing.T) {
	d := newDraft("Reshape").reads("x", "s").changed(func(d *draft) {
		d.Graph.Input = append(d.Graph.Input, valueInfo("s", pb.TensorProto_INT64, 2))
	})
	s, err := graph.TensorOf([]int64{3, 2}, 2)
	if err != nil {
		t.Fatal(err)
	}
	m, err := Read("m.onnx", d.bytes(t), Options{Inputs: map[string]*graph.Tensor{"s": s}})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Fixed) != 1 || m.Fixed[0] != "s" || m.Graph.Outputs[0].Node.Type != graph.TypeOf(graph.F32, 3, 2) {
		t.Errorf("fixed %q, output %v", m.Fixed, m.Graph.Outputs[0].Node.Type)
	}
}

// FuzzRead reads models that are changed at random: they are read or refused.
func FuzzRead(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.onnx")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	for _, op := range []string{"Resize", "Slice", "Einsum", "Scan", "LSTM", "TopK", "ScatterND", "MaxPool", "Attention", "GridSample",
		"AffineGrid", "Col2Im", "DFT", "STFT"} {
		f.Add(newDraft(op, intValue("axis", 1), intValues("axes", 0, 1)).reads("x", "s", "s", "s").weight("s", 1, 0).bytes(f))
	}
	for _, op := range Operators()[microsoft] {
		f.Add(microsoftDraft(op, intValue("num_heads", 1), intValue("kv_num_heads", 1)).reads("x", "x", "x", "s", "s", "s",
			"s").weight("s", 1, 0).bytes(f))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Read("m.onnx", data, Options{Dims: map[string]int{"batch": 2, "steps": 3, "n": 2}})
		if err != nil {
			return
		}
		if err := graph.Verify(m.Graph); err != nil {
			t.Error(err)
		}
	})
}
