package onnx

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"fusec/graph"
	"fusec/graph/onnx/internal/pb"
)

// bodied is an attribute that is a graph of nodes, with some inputs and outputs.
func bodied(name string, in, out []string, nodes ...*pb.NodeProto) *pb.AttributeProto {
	g := &pb.GraphProto{Node: nodes}
	for _, n := range in {
		g.Input = append(g.Input, &pb.ValueInfoProto{Name: proto.String(n)})
	}
	for _, n := range out {
		g.Output = append(g.Output, &pb.ValueInfoProto{Name: proto.String(n)})
	}
	return &pb.AttributeProto{Name: &name, Type: pb.AttributeProto_GRAPH.Enum(), G: g}
}

// TestBodiesWithoutNodes has a loop in a loop whose steps do nothing: a small file that would ask for 2³² steps.
func TestBodiesWithoutNodes(t *testing.T) {
	loop := func(body *pb.AttributeProto) *pb.NodeProto {
		return &pb.NodeProto{OpType: proto.String("Loop"), Input: []string{"s"}, Attribute: []*pb.AttributeProto{body}}
	}
	inner := loop(bodied("body", []string{"j", "d"}, []string{"d"}))
	outer := bodied("body", []string{"i", "c"}, []string{"c"}, inner)
	d := newDraft("Loop", outer).reads("s").weight("s", 1<<16)
	d.Graph.Node[0].Output = nil
	_, err := Read("m.onnx", d.bytes(t), Options{})
	if err == nil || !strings.Contains(err.Error(), "loops in each other have more than 131072 steps") {
		t.Error(err)
	}
}

// TestBodyWeights has a body with a weight: all steps read one parameter.
func TestBodyWeights(t *testing.T) {
	add := &pb.NodeProto{OpType: proto.String("Add"), Input: []string{"v", "w"}, Output: []string{"u"}}
	body := bodied("body", []string{"i", "c", "v"}, []string{"c", "u"}, add)
	w := &pb.TensorProto{Name: proto.String("w"), DataType: proto.Int32(1), Dims: []int64{3}, FloatData: []float32{1, 2, 3}}
	body.G.Initializer = []*pb.TensorProto{w}
	d := newDraft("Loop", body).reads("s", "", "x").weight("s", 5)
	m, err := Read("m.onnx", d.bytes(t), Options{})
	if err != nil {
		t.Fatal(err)
	}
	if len(m.Weights) != 1 || m.Weights["w"] == nil {
		t.Errorf("weights %v", m.Weights)
	}
}

// TestUnique names parameters alike.
func TestUnique(t *testing.T) {
	m := &importer{names: map[string]int{}}
	got := ""
	for _, name := range []string{"w", "w", "w.2", "w", "", "w.2", "unnamed"} {
		got += m.unique(name) + " "
	}
	if want := "w w.2 w.2.2 w.3 unnamed w.2.3 unnamed.2 "; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestAllKnown bounds what is computed while a model is read, of all nodes together.
func TestAllKnown(t *testing.T) {
	const long = 1 << 15
	g := graph.New("m")
	b := graph.Extend(g)
	v := b.Scalar(graph.F32, 1)
	for range long { // a chain that no recursion should follow
		v = b.Unary(graph.Neg, v)
	}
	m := &importer{g: g}
	got, err := m.known(v)
	if err != nil || got == nil || got.Float(0) != 1 || m.elems != long || !m.constant(v) {
		t.Errorf("%v %v, of %d elements", got, err, m.elems)
	}
	for _, c := range []struct{ elems, steps int64 }{{maxAllKnown, 0}, {0, maxAllFLOPs}} {
		m := &importer{g: g, elems: int(c.elems), steps: c.steps}
		if _, err := m.known(v); err == nil || !strings.Contains(err.Error(), "all that is computed while the model is read") {
			t.Error(err)
		}
	}
}
