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
		threads = sampleThreads
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
	u.printf("constexpr int PARTS = %d;\n", sampleParts(n))
	u.printf("static_assert(sizeof(SampleShared<%d>) == %d && sizeof(SamplePartShared<%d>) == %d);\n", threads, sampleShared(threads),
		sampleThreads, samplePartShared)
	u.printf("static_assert(8 * SampleParts::SIZE == %d);\n", samplePartSize)
	row := fmt.Sprintf("%s + row * %d, %d", u.at(graph.SampleLogits), n, n)
	var steps []Step
	memory := int64(0)
	parts := "(const u64 *)nullptr"
	if all := rows * sampleParts(n); all > 0 {
		memory = int64(all) * samplePartSize
		parts = u.scratch("u64", "parts", 0)
		u.entry("sample_parts", sampleThreads, "SHARED;", "const u64 row = blockIdx.x / PARTS;",
			fmt.Sprintf("sample_part<%d, PARTS>(%s, int(blockIdx.x %% PARTS), %s, %s, %s + blockIdx.x * i64(SampleParts::SIZE), "+
				"reinterpret_cast<SamplePartShared<%[1]d> *>(shared));", sampleThreads, row, option(graph.SampleTemperature),
				option(graph.SampleTopK), parts))
		steps = append(steps, Step{Entry: "sample_parts", Grid: [3]int{all, 1, 1}, Block: sampleThreads, Shared: samplePartShared})
		parts += " + row * i64(PARTS * SampleParts::SIZE)"
	}
	u.entry("sample", threads, "SHARED;", "const u64 row = blockIdx.x;",
		fmt.Sprintf("sample<%d, PARTS>(%s, %s, %s, %s, %s, %s, %s + row, %s, reinterpret_cast<SampleShared<%[1]d> *>(shared));", threads,
			row, option(graph.SampleTemperature), option(graph.SampleTopK), option(graph.SampleTopP), option(graph.SampleSeed), counter,
			u.to(0), parts))
	steps = append(steps, Step{Entry: "sample", Grid: [3]int{rows, 1, 1}, Block: threads, Shared: sampleShared(threads)})
	return u.kernel(memory, steps, "sample")
}

const (
	sampleThreads = 512 // with 1024, registers are spilled
	// samplePartShared is the size of a SamplePartShared, and samplePartSize that of what it finds.
	samplePartShared, samplePartSize = 8*(256+sampleThreads/32) + 4*128 + 8, 8 * (2 + 256)
)

// sampleParts is into how many parts a row of n logits is divided, in which blocks look for the greatest first, or 0.
func sampleParts(n int) int {
	const size = 8192 // of a part, where there are fewer than the most
	if n <= size {
		return 0
	}
	return min(ceilDiv(n, size), 32)
}

// sampleShared is the size of a SampleShared.
func sampleShared(threads int) int { return 8*(2048+3072+2*(threads/32)) + 16 }
