package pipeline_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"fusec"
	"fusec/graph"
	"fusec/graph/graphtest"
)

// onReference trains on one device, the reference.
func onReference(t *testing.T, g *graph.Graph, steps int) run {
	t.Helper()
	p, err := fusec.Compile(g, adam(), fusec.CompileOption(fusec.WithTarget("ref")))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	want, err := train(g, p, steps)
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// meshed trains in stages whose participants share their work, on devices of one process and in a group, and compares.
func meshed(t *testing.T, g *graph.Graph, mesh string, m int, want run, opts ...fusec.CompileOption) {
	t.Helper()
	parsed, err := graph.ParseMesh(mesh)
	if err != nil {
		t.Fatal(err)
	}
	const steps = 3
	name := fmt.Sprintf("%s, %d microbatches, %d options", mesh, m, len(opts))
	opts = append([]fusec.CompileOption{adam(), fusec.WithPipeline(m), fusec.WithMesh(mesh),
		fusec.CompileOption(fusec.WithVerify())}, opts...)
	p, err := fusec.Compile(g, append(opts, devices(parsed.Size()))...)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	defer func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}()
	got, err := train(g, p, steps)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	compare(t, name, got, want)
	runs, err := together(g, parsed.Size(), steps, opts...)
	if err != nil {
		t.Fatalf("%s in a group: %v", name, err)
	}
	for i, r := range runs {
		compare(t, name+" in a group", r, want)
		for w, x := range r.weights {
			if string(x.Bytes()) != string(got.weights[w].Bytes()) {
				t.Errorf("%s: participant %d of a group has other bits of %s than one process", name, i, w)
			}
		}
	}
}

// TestMesh trains stages whose participants share their work as one device does.
func TestMesh(t *testing.T) {
	g := network(t)
	want := onReference(t, g, 3)
	tensor := []fusec.CompileOption{fusec.WithSplit("w2", "", "tensor"), fusec.WithSplit("w3", "tensor", "")}
	meshed(t, g, "stage=2,data=2", 3, want)
	meshed(t, g, "stage=2,data=3", 2, want, fusec.WithZeRO(3))
	meshed(t, g, "stage=2,tensor=7", 2, want, tensor...)
	meshed(t, g, "stage=2,data=2,tensor=7", 3, want, append(tensor, fusec.WithZeRO(1))...)
}

// TestMeshRandom trains random networks on random meshes, with and without ZeRO, as the reference does on one device.
func TestMeshRandom(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 3))
		g := graphtest.Built(t, func(b *graph.Builder) {
			f := func(dims ...int) graph.Type { return graph.TypeOf(graph.F32, dims...) }
			x, y := b.Input("x", f(batch, 3)), b.Input("y", f(batch, 4))
			tied := b.Param("tied", f(4, 4))
			h := b.MatMul(x, b.Param("first", f(3, 4)), false, false)
			all := []*graph.Node{h}
			for i := range 3 + r.IntN(4) {
				name := func(s string) string { return fmt.Sprintf("%s%d", s, i) }
				switch r.IntN(6) {
				case 0:
					h = b.Unary(graph.Tanh, h)
				case 1:
					w := tied
					if r.IntN(3) > 0 {
						w = b.Param(name("w"), f(4, 4))
					}
					h = b.MatMul(h, w, false, r.IntN(2) > 0)
				case 2:
					h = b.Binary(graph.Add, h, b.Broadcast(b.Param(name("b"), f(4)), h.Type.Shape))
				case 3:
					h = b.Binary(graph.Add, h, all[r.IntN(len(all))])
				case 4:
					h = b.Add(graph.RMSNorm{Eps: 1e-3}, h, b.Param(name("g"), f(4)))
				case 5:
					s := b.Param(name("s"), f())
					h = b.Binary(graph.Mul, h, b.Broadcast(s, h.Type.Shape))
				}
				all = append(all, h)
			}
			h = b.Unary(graph.Tanh, b.MatMul(h, tied, false, false))
			h = b.Binary(graph.Add, h, b.MatMul(x, b.Param("last", f(3, 4)), false, false))
			off := b.Unary(graph.Square, b.Binary(graph.Sub, h, y))
			cost := b.Reduce(graph.Mean, off, false, 0, 1)
			if r.IntN(2) > 0 { // a mean over what counts
				rows := b.Unary(graph.Square, b.Input("rows", f(batch)))
				cost = b.Binary(graph.Div, b.Reduce(graph.Sum, b.Binary(graph.Mul, rows, b.Reduce(graph.Sum, off, false, 1)), false, 0),
					b.Reduce(graph.Sum, rows, false, 0))
			}
			b.Output("cost", cost)
			b.Output("h", h)
		})
		meshes := []string{"stage=2,data=2", "stage=3,data=2", "stage=2,data=3", "stage=2,other=2", "stage=2,data=2,other=2",
			"stage=2,data=1"}
		mesh := meshes[r.IntN(len(meshes))]
		var opts []fusec.CompileOption
		if zero := r.IntN(4); zero > 0 && !strings.Contains(mesh, "stage=2,other") {
			opts = append(opts, fusec.WithZeRO(zero))
		}
		if strings.Contains(mesh, "other") {
			opts = append(opts, fusec.WithSplit("tied", "", "other"))
		}
		p, err := fusec.Compile(g, append(opts, adam(), fusec.WithMesh(mesh), fusec.WithPipeline(2))...)
		if err == nil || !strings.Contains(err.Error(), "give WithDevices or WithGroup") {
			t.Fatalf("without devices: %v, %v", p, err)
		}
		if _, _, err := fusec.Plan(g, append(opts, adam(), fusec.WithMesh(mesh), fusec.WithPipeline(2))...); err != nil {
			if !strings.Contains(err.Error(), "cut the model elsewhere") {
				t.Errorf("seed %d: %v", seed, err)
			}
			continue
		}
		meshed(t, g, mesh, 2, onReference(t, g, 3), opts...)
	}
}
