package cuda

import (
	"fmt"

	"fusec/graph"
)

// blockThreads is the number of threads of a block that does elementwise work.
const blockThreads = 256

// compileElementwise makes the kernel of a fusion without an anchor: each thread computes W elements side by side.
func compileElementwise(f graph.Fusion, args, results []Operand, cfg Config) (*Kernel, error) {
	var space graph.Shape
	for _, n := range f.Body.Nodes {
		if !isStoreView(n) && isComputed(n) && n.Type.Shape.Rank() > 0 {
			space = n.Type.Shape
		}
	}
	u := newUnit(args, results)
	w := 1
	if r := space.Rank(); r > 0 {
		for w < 4 && space.At(r-1)%(2*w) == 0 && space.At(r-1) > 0 {
			w *= 2
		}
	}
	coords := make([]string, space.Rank())
	for i := range coords {
		coords[i] = fmt.Sprintf("c%d", i)
	}
	b := newBody(u, f.Body, all(len(args)), space, coords, space.Rank()-1, w)
	for i, o := range f.Body.Outputs {
		if err := b.store(i, o.Node); err != nil {
			return nil, err
		}
	}
	n := space.Elems() / w
	u.printf("KERNEL(elementwise, %d, 1) {\n  constexpr int W = %d;\n", blockThreads, w)
	u.printf("  int e = blockIdx.x * %d + threadIdx.x;\n  if (e >= %d) return;\n", blockThreads, n)
	for i := space.Rank() - 1; i >= 0; i-- {
		d := space.At(i)
		if i == space.Rank()-1 {
			u.printf("  const int c%d = e %% %d * W;\n  e /= %d;\n", i, d/w, d/w)
		} else {
			u.printf("  const int c%d = e %% %d;\n  e /= %d;\n", i, d, d)
		}
	}
	u.printf("%s}\n", b.text("  "))
	if n == 0 {
		return &Kernel{}, nil
	}
	step := Step{Entry: "elementwise", Grid: [3]int{ceilDiv(n, blockThreads), 1, 1}, Block: blockThreads, Params: u.fields}
	return &Kernel{Source: u.source(), Steps: []Step{step}}, nil
}
