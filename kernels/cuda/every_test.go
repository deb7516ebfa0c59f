package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// long says that tests run all their cases, which takes hours: .ci/long sets it.
var long = os.Getenv("FUSEC_LONG") != ""

// TestEveryOperation runs all operations that may stand alone, contractions aside, on the common examples. Of integers, each
// example has one of four types, with $FUSEC_LONG each of them.
func TestEveryOperation(t *testing.T) {
	var checks []cudatest.Check
	lists := map[graph.DType][]cases.Case{graph.F32: cases.All(graph.F32), graph.F64: cases.All(graph.F64)}
	integers := []graph.DType{graph.I8, graph.U16, graph.I64, graph.U64} // of each size and kind one
	for at, d := range integers {
		for i, c := range cases.Integers(d) {
			if long || i%len(integers) == at {
				lists[d] = append(lists[d], c)
			}
		}
	}
	for d, list := range lists {
		r := rand.New(rand.NewPCG(1, uint64(d)))
		for _, c := range list {
			if !standsAlone(c.Op) {
				continue
			}
			check := cudatest.Check{Name: fmt.Sprintf("%s_%v", c.Name, d), Op: c.Op}
			for _, a := range c.Args {
				check.Args = append(check.Args, a.Draw(r))
			}
			checks = append(checks, check)
		}
	}
	cudatest.Run(t, cudatest.Open(t), checks...)
}

// standsAlone reports whether an operation, contractions aside, may be a launch of its own.
func standsAlone(op graph.Op) bool {
	switch op := op.(type) {
	case graph.Fusion, graph.Host, graph.MatMul, graph.Attention, graph.AttentionGrad, graph.MoE, graph.MoEGrad:
		return false
	case graph.Quantize, graph.Dequantize, graph.PackWeights, graph.PanelMatMul:
		return false // on the host, or made of simpler operations
	case graph.Conv2DTranspose:
		return op.Layout == graph.NHWC // else made of simpler operations
	case graph.Conv2DFilterGrad:
		return op.Layout == graph.NHWC
	}
	_, slice := op.(graph.Slice)
	if info := graph.InfoOf(op); info.Decompose != nil && info.Lower != nil {
		return kernels.HasKernel(op)
	}
	return graph.ClassOf(op) != graph.ClassSource && (!graph.IsView(op) || slice)
}
