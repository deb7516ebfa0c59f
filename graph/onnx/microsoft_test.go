package onnx

import (
	"os"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

// TestMicrosoft compares the operators that ONNX Runtime adds with its answers; testdata/microsoft.py makes them. What a node
// computes for an operand may not depend on whether its values are known while the model is read.
func TestMicrosoft(t *testing.T) {
	const path = "testdata/microsoft/cases.onnx"
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var all pb.ModelProto
	if err := proto.Unmarshal(data, &all); err != nil {
		t.Fatal(err)
	}
	tensors := map[string]*pb.TensorProto{}
	for _, p := range all.GetGraph().GetInitializer() {
		tensors[p.GetName()] = p
	}
	var given []string
	for _, in := range all.GetGraph().GetInput() {
		given = append(given, in.GetName())
	}
	covered := map[string]bool{}
	for _, node := range all.GetGraph().GetNode() {
		covered[node.GetOpType()] = true
		for _, frozen := range []bool{false, true} {
			name := node.GetName()
			if frozen {
				name += ", all known"
			}
			t.Run(name, func(t *testing.T) {
				m := &pb.ModelProto{IrVersion: all.IrVersion, OpsetImport: all.OpsetImport, Graph: &pb.GraphProto{Node: []*pb.NodeProto{node}}}
				in := map[string]*graph.Tensor{}
				for i, operand := range node.GetInput() {
					p := tensors[operand]
					switch known := frozen && i != 0; {
					case operand == "":
					case slices.Contains(given, operand) && !known:
						m.Graph.Input = append(m.Graph.Input, valueInfo(operand, pb.TensorProto_DataType(p.GetDataType()), p.GetDims()...))
						if in[operand], err = new(folder).tensor(p); err != nil {
							t.Fatal(err)
						}
					default:
						m.Graph.Initializer = append(m.Graph.Initializer, p)
					}
				}
				for _, result := range node.GetOutput() {
					if result != "" {
						m.Graph.Output = append(m.Graph.Output, valueInfo(result, pb.TensorProto_FLOAT))
					}
				}
				one, err := proto.Marshal(m)
				if err != nil {
					t.Fatal(err)
				}
				got, err := runModel(path, one, in)
				if err != nil {
					t.Fatal(err)
				}
				for _, result := range m.Graph.Output {
					want, err := new(folder).tensor(tensors[result.GetName()])
					if err != nil {
						t.Fatal(err)
					}
					atol := 1e-5
					if node.GetOpType() == "DynamicQuantizeLSTM" {
						atol = 5e-3 // its inputs and states are rounded to 8 bits by ONNX Runtime
					}
					if want.Type.DType.IsInt() && want.Type.DType.Size() == 1 {
						atol = 1 // numbers halfway between two may be rounded to the other one
					}
					if err := nearBy(got[result.GetName()], want, 1e-4, atol); err != nil {
						t.Errorf("%s: %v", result.GetName(), err)
					}
				}
			})
		}
	}
	for _, name := range Operators()[microsoft] {
		if !covered[name] {
			t.Errorf("%s has no case", name)
		}
	}
}

// TestOperandsOfAnyRank gives each operator operands of all ranks, with and without elements: it is built or refused.
func TestOperandsOfAnyRank(t *testing.T) {
	shapes := [][]int64{{}, {0}, {2}, {2, 2}, {1, 0, 2}, {2, 2, 2}, {1, 2, 2, 2}, {1, 2, 1, 0, 2}, {1, 1, 1, 1, 1}}
	ints := map[string]int64{"num_heads": 1, "kv_num_heads": 1, "q_num_heads": 1, "K": 2, "N": 2, "block_size": 4, "do_rotary": 1,
		"opset": 13}
	for key, row := range operators {
		if row.domain != microsoft && !slices.Contains([]string{"LinearAttention", "GridSample", "AffineGrid", "Col2Im", "DFT", "STFT"},
			row.name) {
			continue
		}
		var attrs []*pb.AttributeProto
		for _, a := range row.attrs {
			if v, ok := ints[a.name]; ok {
				attrs = append(attrs, intValue(a.name, v))
			}
		}
		for _, a := range shapes {
			for _, b := range shapes {
				for _, ints := range []bool{false, true} {
					d := newDraft(key.name, attrs...)
					d.Graph.Node[0].Domain = &key.domain
					d.Graph.Input = []*pb.ValueInfoProto{valueInfo("x", pb.TensorProto_FLOAT, a...), valueInfo("y", pb.TensorProto_FLOAT, b...)}
					reads := []string{"x", "y", "y", "y", "y", "x"}
					if ints {
						d.Graph.Input[1] = valueInfo("y", pb.TensorProto_INT64, b...)
						reads = append(reads[:5], "s", "s", "x", "x")
						d.weight("s", 1)
					}
					if row.max >= 0 {
						reads = reads[:min(len(reads), row.max)]
					}
					d.Graph.Node[0].Output[0], d.Graph.Output[0].Name = "z", proto.String("z")
					if m, err := Read("m.onnx", d.reads(reads...).bytes(t), Options{}); err == nil {
						if err := graph.Verify(m.Graph); err != nil {
							t.Errorf("%s of %v and %v: %v", key.name, a, b, err)
						}
					}
				}
			}
		}
	}
}
