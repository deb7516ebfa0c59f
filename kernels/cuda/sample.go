package cuda

import (
	"fmt"

	"fusec/graph"
)

var _ = answers.Add(plain(compileSample))

// compileSample draws from each row with a block of threads.
func compileSample(_ graph.Sample, args, results []Operand) *Kernel {
	u := newUnit(args, results)
	s := args[graph.SampleLogits].Layout.Shape
	rows, n := results[0].Layout.Shape.Elems(), s.At(s.Rank()-1)
	if rows == 0 {
		return &Kernel{}
	}
	threads := blockThreads
	if n > 16*blockThreads {
		threads = 512 // with 1024, registers are spilled
	}
	own := args[graph.SampleSeed].Layout.Shape.Rank() > 0
	option := func(i int) string {
		if args[i].Layout.Shape.Rank() == 0 {
			return "*(" + u.at(i) + ")"
		}
		return "(" + u.at(i) + ")[row]"
	}
	counter := "u64(" + option(graph.SampleStep) + ")"
	if !own {
		counter = fmt.Sprintf("%s * %d + row", counter, rows)
	}
	shared := fmt.Sprintf("SampleShared<%d>", threads)
	u.entry("sample", threads, "SHARED;", "const u64 row = blockIdx.x;",
		fmt.Sprintf("sample<%d>(%s + row * %d, %d, %s, %s, %s, %s, %s, %s + row, reinterpret_cast<%s *>(shared));", threads,
			u.at(graph.SampleLogits), n, n, option(graph.SampleTemperature), option(graph.SampleTopK), option(graph.SampleTopP),
			option(graph.SampleSeed), counter, u.to(0), shared))
	step := Step{Entry: "sample", Grid: [3]int{rows, 1, 1}, Block: threads, Shared: sampleShared(threads)}
	return u.kernel(0, []Step{step}, "sample")
}

// sampleShared is the size of a SampleShared.
func sampleShared(threads int) int { return 8*(2048+1024+2*(threads/32)) + 16 }
