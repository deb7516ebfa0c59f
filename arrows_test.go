package fusec_test

import (
	"os/exec"
	"strings"
	"testing"
)

// TestArrows holds the direction in which packages may import each other: graph knows nobody, passes and kernels know graph,
// lowering knows graph and kernels, the root package ties them, and nothing but drawings knows Graphviz. Of what
// stands under graph, nn and onnx alone know the reference: operations of nn run it on Gorgonia's machines, and onnx computes
// what is known while it reads a model. Only commands know onnx.
func TestArrows(t *testing.T) {
	const (
		gorgonia = "gorgonia.org/gorgonia"
		graphviz = "github.com/goccy/go-graphviz"
		dotted   = "github.com/emicklei/dot"
	)
	forbidden := map[string][]string{
		"fusec/graph":                 {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/trace":           {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/trace/tracejson": {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/report":          {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, "net/http"},
		"fusec/graph/report/live":     {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia},
		"fusec/graph/gorgonia":        {"fusec/passes", "fusec/kernels", "fusec/lowering", graphviz, dotted},
		"fusec/graph/onnx":            {"fusec/passes", "fusec/lowering", "fusec/kernels/cpu", gorgonia, graphviz, dotted},
		"fusec/graph/nn":              {"fusec/passes", "fusec/lowering", "fusec/kernels/cpu", graphviz, dotted},
		"fusec/graph/dot":             {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia},
		"fusec/passes":                {"fusec/passes/passtest", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/kernels/...":           {"fusec/passes", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/lowering/...":          {"fusec/passes", gorgonia, graphviz, dotted},
		"fusec/fpga/...":              {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec":                       {graphviz, dotted, "gonum.org/v1/plot", "fusec/graph/onnx", "fusec/cmd", "fusec/examples"},

		"fusec/graph/body":       {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/arena":      {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/atomicfile": {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/fuselock":   {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/filemap":    {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/gguf":       {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/fusectest":  {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/checkpoint": {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
		"fusec/graph/loader":     {"fusec/passes", "fusec/kernels", "fusec/lowering", gorgonia, graphviz, dotted},
	}
	// which do not know each other
	passes := []string{"attention", "fuse", "moe", "narrow", "raise", "recompute", "simplify", "weights"}
	for _, p := range passes {
		for _, q := range passes {
			if p != q {
				forbidden["fusec/passes/"+p] = append(forbidden["fusec/passes/"+p], "fusec/passes/"+q)
			}
		}
	}
	for packages, not := range forbidden {
		out, err := exec.Command("go", "list", "-deps", packages).CombinedOutput()
		if err != nil {
			t.Fatalf("go list -deps %s: %v\n%s", packages, err, out)
		}
		for _, dep := range strings.Fields(string(out)) {
			for _, n := range not {
				if dep == n || strings.HasPrefix(dep, n+"/") {
					t.Errorf("%s depends on %s", packages, dep)
				}
			}
		}
	}
}
