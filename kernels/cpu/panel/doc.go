// Package panel multiplies rows of float32 by weights of few bits that lie in panels, as graph.PackWeights arranges them. The
// weights are unpacked in registers, so that a product of few rows takes the time of reading them in the form in which they are
// stored:
//
//	I4      a word has 8 rows of a column: shift, and look the number up in a register (AVX-512), or shift twice (AVX2); move the
//	        byte to the top of a word, and convert a number with 28 bits behind the point (NEON)
//	I8      extend the sign, convert; with NEON as I4, with 24 bits
//	BF16    extend with zeros, shift
//	F16     convert
//
// A work item is some panels times at most 64 rows. Its rows are computed in blocks of 8, 4, 2 and 1 with AVX-512 and NEON, of 2
// and 1 with AVX2, whose sums stay in registers for a block of weights that share a scale. So each weight is unpacked once for 8
// rows, and scales cost little. One row reads scales of binary16 as they are; for more, those of a panel are converted first. The
// order of the sums depends on the number of rows alone.
//
// With AVX2, whose registers have room for two rows, weights are unpacked to memory where there are at least 32 rows: a piece of a
// panel that stays in the cache, once for all rows of an item, times its scales. The routines of products of float32 multiply
// by it. With AVX-512 so are weights with offsets, whose addition costs next to nothing there. In products of fewer rows, offsets
// are multiplied by the sums of the rows' blocks.
//
// NEON has registers for the sums of 4 and 8 rows in a half and in a quarter of a panel's columns. It goes over a piece of the
// panel once for each, so weights without blocks are cut into pieces that stay in the cache.
//
// Products of integers round the rows to 8 bits first. AVX512-VNNI multiplies four pairs and adds them to a sum in one instruction;
// weights get an offset, as one of its operands is unsigned. AVX2 multiplies sizes by numbers with the sign of the weights. On Arm
// SDOT does with numbers that both have signs what AVX512-VNNI does, where the processor has FEAT_DotProd. SMMLA, of FEAT_I8MM,
// multiplies two rows by two columns, eight pairs each. Without them NEON sums products in pairs, which have room in 16 bits.
//
// Rows of U8 are multiplied as they are, by AVX512-VNNI, AVX2, SDOT or SUDOT, and read where they lie if their length is a multiple
// of 8. SUDOT, of FEAT_I8MM, multiplies signed by unsigned numbers; for SDOT 128 is taken from each number of a row, and the sum of
// each column is computed beside the products, and added 128 times. AVX2 multiplies pairs of numbers of 16 bits, the even and the
// odd bytes, since two products of bytes may have no room there. Processors with AVX-512 but without VNNI multiply in float32,
// which is as fast there, and those of Arm without dot products do so, too.
//
// Rows of BF16 are multiplied by weights of BF16 in pairs, where the processor has AVX512-BF16: an instruction multiplies two
// numbers each of 16 columns, and adds to sums in float32. Two rows of a panel are brought side by side in registers. So a product
// takes half of the time that it takes in float32.
//
// Other numbers of 16 bits are converted and multiplied in float32. The sums of FEAT_FP16 have 11 bits, fewer than a product
// may lose. FMLAL, of FEAT_FHM, multiplies no more numbers than FMLA does, and would round X.
package panel

//go:generate sh -c "cd ../internal/gen && go run ./panel -out ../../panel/kernel_amd64.s -stubs ../../panel/kernel_amd64.go -pkg panel"
//go:generate sh -c "cd ../internal/gen && go run ./panel -arch=arm64 -out ../../panel/kernel_arm64.s -stubs ../../panel/kernel_arm64.go -pkg panel"
