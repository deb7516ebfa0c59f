package cuda_test

import (
	"strings"
	"testing"

	"fusec/graph"
	"fusec/kernels/cuda"
)

// TestCollectiveSteps looks at the steps of collective operations of four participants: one exchange each, with copies before and
// after it where the parts of a value do not follow one another, and the participants' values combined where NCCL does not.
func TestCollectiveSteps(t *testing.T) {
	of := graph.Group{Over: "data", Parts: 4}
	for _, c := range []struct {
		name     string
		op       graph.Op
		d        graph.DType
		x        []int
		steps    string // entries, "exchange" for one
		exchange string
		elems    int
	}{
		{"all_reduce", graph.AllReduce{Fn: graph.Sum, Group: of}, graph.F32, []int{8, 3}, "exchange", "all_reduce", 24},
		{"maximum", graph.AllReduce{Fn: graph.MaxOf, Group: of}, graph.F32, []int{8, 3}, "exchange combine_all", "all_gather", 24},
		{"mean", graph.AllReduce{Fn: graph.Mean, Group: of}, graph.F32, []int{5}, "exchange", "all_reduce", 5},
		{"reduce_scatter", graph.ReduceScatter{Fn: graph.Sum, Group: of}, graph.F64, []int{8, 3}, "exchange", "reduce_scatter", 24},
		{"of columns", graph.ReduceScatter{Fn: graph.Sum, Axis: 1, Group: of}, graph.F32, []int{3, 8}, "swap_8 exchange",
			"reduce_scatter", 24},
		{"least part", graph.ReduceScatter{Fn: graph.MinOf, Axis: 1, Group: of}, graph.F32, []int{3, 8},
			"swap_8 exchange combine_all", "all_to_all", 24},
		{"all_gather", graph.AllGather{Group: of}, graph.BF16, []int{2, 3}, "exchange", "all_gather", 6},
		{"columns joined", graph.AllGather{Axis: 1, Group: of}, graph.BF16, []int{2, 3}, "exchange swap_2", "all_gather", 6},
		{"all_to_all", graph.AllToAll{Split: 0, Join: 1, Group: of}, graph.F32, []int{8, 3}, "exchange swap_4", "all_to_all", 24},
		{"turned", graph.AllToAll{Split: 1, Join: 0, Group: of}, graph.I8, []int{2, 8}, "swap_2 exchange", "all_to_all", 16},
		{"permute", graph.Permute{Shift: 1, Group: of}, graph.F32, []int{7}, "exchange", "permute", 7},
		{"broadcast_from", graph.BroadcastFrom{Root: 2, Group: of}, graph.F32, []int{7}, "exchange", "broadcast_from", 7},
		{"empty", graph.AllReduce{Fn: graph.Sum, Group: of}, graph.F32, []int{0, 3}, "", "", 0},
		{"alone", graph.AllReduce{Fn: graph.Sum, Group: graph.Group{Parts: 1}}, graph.F32, []int{7}, "elementwise", "", 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := graph.TypeOf(c.d, c.x...)
			types, err := graph.InfoOf(c.op).Infer(c.op, []graph.Type{x})
			if err != nil {
				t.Fatal(err)
			}
			operand := func(t graph.Type) []cuda.Operand {
				return []cuda.Operand{{DType: t.DType, Layout: graph.Contiguous(t.Shape)}}
			}
			k, err := cuda.Compile(c.op, operand(x), operand(types[0]), cuda.Config{Chip: cuda.H200})
			if err != nil {
				t.Fatal(err)
			}
			var entries []string
			for _, s := range k.Steps {
				if s.Exchange == nil {
					entries = append(entries, s.Entry)
					continue
				}
				entries = append(entries, "exchange")
				if name := s.Exchange.Op.OpName(); name != c.exchange || s.Exchange.Elems != c.elems || s.Exchange.DType != c.d {
					t.Errorf("%s of %d %v is exchanged, want %s of %d", name, s.Exchange.Elems, s.Exchange.DType, c.exchange, c.elems)
				}
			}
			if got := strings.Join(entries, " "); got != c.steps {
				t.Errorf("the steps are %q, want %q", got, c.steps)
			}
			if k.Exchanges() != (c.exchange != "") {
				t.Errorf("Exchanges is %v", k.Exchanges())
			}
		})
	}
}

// TestRestoreSteps counts what one step takes back of many updates in place.
func TestRestoreSteps(t *testing.T) {
	op := graph.UpdateSlice{Axis: 1}
	o := cuda.OverwriteOf(op, graph.TypeOf(graph.F32, 2, 10, 4), graph.TypeOf(graph.F32, 2, 3, 4))
	if want := (cuda.Overwrite{Outer: 2, Stride: 160, Size: 48, Row: 16}); o != want {
		t.Errorf("an update of three rows of ten overwrites %+v, want %+v", o, want)
	}
	list := make([]cuda.Overwrite, 70)
	for i := range list {
		list[i] = o
	}
	if k := cuda.Restore(list); len(k.Steps) != 2 || len(k.Steps[0].Params) != len(k.Steps[1].Params) {
		t.Errorf("70 updates are taken back in %d steps, want 2 of as many parameters", len(k.Steps))
	}
	if k := cuda.Collect(3); len(k.Steps) != 1 || !strings.Contains(k.Source, "collect_status") {
		t.Errorf("reports are collected by %+v", k.Steps)
	}
}
