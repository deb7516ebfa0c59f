package onnx

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fusec"
	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
	"fusec/graph/trace"
)

// TestQuantised runs models that onnxruntime.quantization makes in each of its forms, as testdata/quantised.py keeps them, compares
// with ONNX Runtime, and counts the products that read weights of few bits as they are stored.
func TestQuantised(t *testing.T) {
	two := "[i8 i8]"
	panels := map[string]string{ // by model: the types of such weights
		"mlp-qdq": two, "mlp-qdq-channels": two, "mlp-qlinear": two, "mlp-dynamic": two, "mlp-dynamic-u8": two, "mlp-4-bits": "[i4]",
		"mlp-4-bits-qdq": "[i4]", "mlp-4-bits-qdq-unsigned": "[i4]", "mlp-8-bits": "[i8]", "convolutions-qdq": "[i8]",
		"convolutions-qlinear": "[i8]", "convolutions-dynamic": "[i8]", "attention-qdq": "[i8 i8 i8 i8]",
		"attention-qlinear": "[i8 i8 i8 i8]", "attention-dynamic": "[i8 i8 i8 i8]", "recurrent-dynamic": "[]",
	}
	// How far apart answers may be. ONNX Runtime rounds the inputs and states of a recurrence, too. A number halfway between two may
	// be rounded to the other one, which is one step of the result of convolutions-qlinear.
	off := map[string]float64{"recurrent-dynamic": 1e-2, "convolutions-qlinear": 0.144}
	paths, err := filepath.Glob("testdata/quantised/*.onnx")
	if err != nil || len(paths) == 0 {
		t.Fatalf("no models: %v", err)
	}
	for _, path := range paths {
		model := strings.TrimSuffix(filepath.Base(path), ".onnx")
		t.Run(model, func(t *testing.T) {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var p pb.ModelProto
			if err := proto.Unmarshal(data, &p); err != nil {
				t.Fatal(err)
			}
			given, wanted := map[string]*graph.Tensor{}, map[string]*graph.Tensor{}
			for _, w := range p.GetGraph().GetInitializer() {
				for prefix, all := range map[string]map[string]*graph.Tensor{"given/": given, "wanted/": wanted} {
					if of, ok := strings.CutPrefix(w.GetName(), prefix); ok {
						if all[of], err = new(folder).tensor(w); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			got, err := runModel(path, data, given)
			if err != nil {
				t.Fatal(err)
			}
			for name, want := range wanted {
				if err := nearBy(got[name], want, 1e-4, max(1e-4, off[model])); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			m, err := Read(path, data, Options{})
			if err != nil {
				t.Fatal(err)
			}
			tr, _, err := fusec.Plan(m.Graph)
			if err != nil {
				t.Fatal(err)
			}
			var types []string
			packed := tr.Stages[slices.IndexFunc(tr.Stages, func(s trace.Stage) bool { return s.Name == "pack-quantised" })].Graph
			for _, n := range packed.Nodes {
				if _, ok := n.Op.(graph.PanelMatMul); ok {
					types = append(types, n.Args[1].Type.DType.String())
				}
			}
			slices.Sort(types)
			if got := fmt.Sprint(types); got != panels[model] {
				t.Errorf("weights %s, want %s", got, panels[model])
			}
		})
	}
}

// TestUnsigned reads numbers of four bits without a sign.
func TestUnsigned(t *testing.T) {
	model := func(op string, reads []string, tensors ...*pb.TensorProto) []byte {
		d := newDraft(op).reads(reads...)
		for i, p := range tensors {
			p.Name = proto.String([]string{"w", "s", "z"}[i])
			d.Graph.Initializer = append(d.Graph.Initializer, p)
		}
		return d.bytes(t)
	}
	four := func(dims []int64, bytes ...byte) *pb.TensorProto {
		return &pb.TensorProto{DataType: proto.Int32(int32(pb.TensorProto_UINT4)), Dims: dims, RawData: bytes}
	}
	scale := func(v ...float32) *pb.TensorProto {
		p := &pb.TensorProto{DataType: proto.Int32(int32(pb.TensorProto_FLOAT)), FloatData: v}
		if len(v) > 1 {
			p.Dims = []int64{int64(len(v))}
		}
		return p
	}
	w := func() *pb.TensorProto { return four([]int64{3}, 0x8f, 0x01) }
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"no zero point":   {model("DequantizeLinear", []string{"w", "s"}, w(), scale(0.5)), "[7.5 4 0.5]"},
		"zero point":      {model("DequantizeLinear", []string{"w", "s", "z"}, w(), scale(0.5), four(nil, 0x08)), "[3.5 0 -3.5]"},
		"scale of each":   {model("DequantizeLinear", []string{"w", "s"}, four([]int64{1, 3}, 0x8f, 0x01), scale(1, 2, 3)), "[15 16 3]"},
		"another type":    {model("DequantizeLinear", []string{"w", "s", "s"}, w(), scale(0.5)), "! zero points f32[] for weights"},
		"zero point only": {model("DequantizeLinear", []string{"x", "s", "z"}, w(), scale(0.5), four(nil, 8)), "! type UINT4"},
		"elsewhere":       {model("Relu", []string{"w"}, w()), "! elements of type UINT4 are not supported"},
		"no bytes":        {model("Relu", []string{"x"}, four([]int64{3}, 1)), "! takes 2 bytes; it has 1"},
	} {
		in := map[string]*graph.Tensor{"x": graph.NewTensor(graph.TypeOf(graph.F32, 2, 3))}
		got, err := runModel("m.onnx", c.data, in)
		text := ""
		switch {
		case err != nil:
			text = "! " + err.Error()
		default:
			for _, v := range got {
				text = fmt.Sprint(v.Data)
			}
		}
		if !strings.Contains(text, strings.TrimPrefix(c.want, "! ")) || strings.HasPrefix(c.want, "!") != (err != nil) {
			t.Errorf("%s: %s, want %s", name, text, c.want)
		}
	}
}
