package bench

import (
	"cmp"
	"flag"
	"math"
	"testing"

	"fusec/cmd/peers/workload"
	"fusec/graph"
	"fusec/kernels/ref"
)

var answers = flag.Bool("answers", false, "compute the right answers of the large products and networks too (minutes)")

// answer computes a workload by the reference.
func answer(t *testing.T, w workload.Workload) (y []float64) {
	t.Helper()
	g, _, outputs, err := workloadGraph(w, graph.F64)
	if err != nil {
		t.Fatal(err)
	}
	var wrt []*graph.Node
	in := map[string]*graph.Tensor{}
	for _, x := range w.Tensors {
		in[x.Name] = graph.NewTensor(graph.TypeOf(graph.F64, x.Shape...))
		for i, v := range x.Data() {
			in[x.Name].SetFloat(i, float64(v))
		}
	}
	for _, x := range w.Weights() {
		wrt = append(wrt, g.Lookup(x.Name))
	}
	if w.Base != "" {
		grads, err := graph.Gradients(g, g.Outputs[0].Node, wrt)
		if err != nil {
			t.Fatal(err)
		}
		for i, d := range grads {
			graph.Extend(g).Output(outputs[1+i], d)
		}
	}
	out, _, err := ref.Eval(g, in)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range outputs {
		y = append(y, out[name].Floats()...)
	}
	return y
}

// TestAnswers computes the right answers of workloads again; those of large ones only with -answers.
func TestAnswers(t *testing.T) {
	for _, w := range workload.All() {
		if large := 1e9; !*answers && (w.FLOPs > large || testing.Short() && w.FLOPs > large/10) {
			continue
		}
		t.Run(w.Name, func(t *testing.T) {
			t.Parallel()
			sum, abs := workload.Checksum(answer(t, w))
			if math.Abs(sum-w.Checksum) > 1e-9*abs || math.Abs(abs-w.AbsSum) > 1e-9*abs {
				t.Errorf("Checksum: %.17g, AbsSum: %.17g; the table says %.17g, %.17g", sum, abs, w.Checksum, w.AbsSum)
			}
			if !w.Right(sum) || w.Right(sum+2*cmp.Or(w.Tolerance, workload.Tolerance)*abs) || w.Right(math.NaN()) {
				t.Error("Right judges wrongly")
			}
		})
	}
}
