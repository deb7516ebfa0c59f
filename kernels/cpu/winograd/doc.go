// Package winograd convolves images in NHWC, x [N, H, W, C], with filters [3, 3, C, O], in float32, with the algorithms
// F(2×2, 3×3) and F(4×4, 3×3) of Winograd: stride and dilation are 1, and there is one group of channels.
//
// A Plan is made once for a shape and run many times; running allocates nothing. The filters are transformed once, or, where they
// change, in each run; see [Filters]. An epilogue finishes blocks of the result while they are in the cache, as in package conv.
//
// # Algorithm
//
// A tile of m×m pixels of the result is Aᵀ·(Σ (G·g·Gᵀ) ⊙ (Bᵀ·d·B))·A, where d is the patch of m+2 pixels to a side that it
// depends on, g a filter, and the sum that over the channels (A. Lavin and S. Gray, "Fast Algorithms for Convolutional
// Neural Networks", arXiv 1509.09308). The product in the middle is one of matrices for each of the (m+2)² points of a
// tile, [tiles, C] times [C, O]. With m = 2 there are 16 multiplications for 36, with m = 4 36 for 144.
//
//	for each band of tiles and some panels of filters, in parallel
//	  v = Bᵀ·d·B of all tiles of the band             L2
//	  for each panel of filters
//	    for each point: m = v · panel                 L2
//	    y = Aᵀ·m·A of all tiles
//	  the caller's Epilogue
//
// The transforms have a lane of a vector for each channel. Products are those of [gemm.Micro.Gather].
//
// # Accuracy
//
// The points of F(2×2, 3×3) are 0, 1, −1 and infinity. Those of F(4×4, 3×3) are 0, ±5/8, ±3/2 and infinity: with points
// that are no small integers, rounding errors are about half of what the usual ±1 and ±2 give (S. A. Alam et al., "Winograd
// Convolution for Deep Neural Networks: Efficient Point Selection", arXiv 2201.10369), and so are the constants of the
// bound.
//
// An error is proportional to what the algorithm adds up, not to the terms of the sum that defines a convolution: to
//
//	|Aᵀ|·(Σ (|G|·|g|·|Gᵀ|) ⊙ (|Bᵀ|·|d|·|B|))·|A|
//
// (B. Barabasz et al., "Error Analysis and Improving the Accuracy of Winograd Convolution for Deep Neural Networks", arXiv
// 1803.10986, theorem 2). Package ref computes that; see [graph.Conv2D]. One value that is not finite makes all of the
// tiles that read it so.
//
// # Determinism
//
// How a sum is cut depends on the shape and the processor's vector width only. Results are the same bits for every
// number of workers.
package winograd

//go:generate go run -C ../internal/gen ./vec -family=winograd -pkg=winograd -out=../../winograd/kernels_amd64.s -stubs=../../winograd/kernels_amd64.go
//go:generate go run -C ../internal/gen ./vec -arch=arm64 -family=winograd -pkg=winograd -out=../../winograd/kernels_arm64.s -stubs=../../winograd/kernels_arm64.go
