package cpu

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/kernels/cpu/pool"
	"fusec/kernels/group"
	"fusec/kernels/ref"
)

// TestCollectives compares the kernels of all participants, over groups along some axes of a mesh, with the reference.
func TestCollectives(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 9))
	mesh := graph.Mesh{{Name: "a", Size: 3}, {Name: "b", Size: 2}}
	for _, over := range []string{"a", "b", "a+b"} {
		axes, err := mesh.Axes(over)
		if err != nil {
			t.Fatal(err)
		}
		of := graph.Group{Over: over, Parts: mesh.Parts(axes)}
		ops := []graph.Op{graph.AllGather{Axis: 0, Group: of}, graph.AllGather{Axis: 1, Group: of},
			graph.AllToAll{Split: 1, Join: 1, Group: of}, graph.AllToAll{Split: 0, Join: 2, Group: of},
			graph.AllToAll{Split: 2, Join: 0, Group: of},
			graph.Part{Axis: 0, Group: of}, graph.Part{Axis: 2, Group: of}, graph.Permute{Shift: 1, Group: of},
			graph.Permute{Shift: -4, Group: of},
			graph.BroadcastFrom{Root: of.Parts - 1, Group: of}}
		for _, f := range []graph.ReduceFn{graph.Sum, graph.Mean, graph.MaxOf, graph.MinOf} {
			ops = append(ops, graph.AllReduce{Fn: f, Group: of}, graph.ReduceScatter{Fn: f, Axis: 0, Group: of},
				graph.ReduceScatter{Fn: f, Axis: 1, Group: of})
		}
		for _, op := range ops {
			for _, typ := range []graph.Type{graph.TypeOf(graph.F32, 6, 12, 6), graph.TypeOf(graph.F64, 6, 6, 6),
				graph.TypeOf(graph.I32, 6, 6, 18), graph.TypeOf(graph.F32, 0, 6, 6)} {
				t.Run(fmt.Sprintf("%s_%s_%v", op.OpName(), over, typ), func(t *testing.T) { compareCollective(t, r, mesh, op, typ) })
			}
		}
	}
}

func compareCollective(t *testing.T, r *rand.Rand, mesh graph.Mesh, op graph.Op, typ graph.Type) {
	b := graph.NewBuilder("")
	y := b.Add(op, b.Input("x", typ))
	b.Output("y", y)
	g, err := b.Graph()
	if err != nil {
		t.Skip(err) // the mean of integers
	}
	g.Mesh = mesh
	in := make([]map[string]*graph.Tensor, mesh.Size())
	for i := range in {
		in[i] = map[string]*graph.Tensor{"x": graphtest.Tensor(r, typ)}
	}
	want, _, err := ref.Mesh(g, in)
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for rank, transport := range group.Local(mesh.Size(), 0) {
		all.Go(func() {
			env := NewEnv(pool.New(1))
			defer env.Pool.Close()
			env.Mesh, env.Group = mesh, group.New(transport)
			operand := func(t graph.Type) []Operand {
				return []Operand{{DType: t.DType, Layout: graph.Contiguous(t.Shape)}}
			}
			k, err := Compile(op, operand(typ), operand(y.Type), env)
			if err != nil {
				t.Error(err)
				return
			}
			got := graph.NewTensor(y.Type)
			for range 2 { // the second time with memory that was used
				if err := k.Run([]Memory{MemoryOf(in[rank]["x"])}, []Memory{MemoryOf(got)}); err != nil {
					t.Error(err)
					return
				}
			}
			if err := ref.Check(got, want[rank]["y"]); err != nil {
				t.Errorf("participant %d: %v", rank, err)
			}
		})
	}
	all.Wait()
}
