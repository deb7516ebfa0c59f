package cuda_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"fusec/graph"
	"fusec/kernels/ref/cases"
	"fusec/lowering/cuda/cudatest"
)

// TestEveryOperation runs all operations that may stand alone, contractions aside, on the common examples.
func TestEveryOperation(t *testing.T) {
	var checks []cudatest.Check
	lists := map[graph.DType][]cases.Case{graph.F32: cases.All(graph.F32), graph.F64: cases.All(graph.F64)}
	for _, d := range []graph.DType{graph.I8, graph.U16, graph.I64, graph.U64} { // of each size and kind one
		lists[d] = cases.Integers(d)
	}
	for d, list := range lists {
		r := rand.New(rand.NewPCG(1, uint64(d)))
		for _, c := range list {
			switch c.Op.(type) {
			case graph.Fusion, graph.Host, graph.MatMul, graph.Attention, graph.AttentionGrad, graph.MoE, graph.MoEGrad:
				continue
			case graph.Quantize, graph.Dequantize, graph.PackWeights, graph.PanelMatMul:
				continue // on the host, or made of simpler operations
			}
			switch op := c.Op.(type) {
			case graph.Recurrence, graph.RecurrenceGrad:
				continue // their steps are written out
			case graph.Conv2DTranspose, graph.Conv2DFilterGrad:
				if op.(graph.ImageOp).ImageLayout() != graph.NHWC {
					continue // made of simpler operations
				}
			}
			_, slice := c.Op.(graph.Slice)
			if graph.ClassOf(c.Op) == graph.ClassSource || graph.IsView(c.Op) && !slice {
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
