// Package conv convolves images in NHWC, x [N, H, W, C] with filters
// [KH, KW, C/G, O], in float32 or float64, on the workers of a pool.Pool.
//
// A Plan is made once for a shape, and run many times on changing data; running allocates nothing. The result is one
// row-major matrix [N·OH·OW, O]: a row is a pixel. A Finish is applied to sums in registers: a bias, a residual and bounds.
// An Epilogue does anything else with blocks of the result while they are in the cache.
//
// # Algorithm
//
// A convolution is the product of a matrix of patches, [N·OH·OW, KH·KW·C/G], and the filters, for each group. The
// matrix of patches is never made. In NHWC what a pixel of the result reads of a row of the image is contiguous, so a
// patch is KH pieces, at the same distances for each pixel; a dilated one, or one of some of the channels, is KH·KW. The
// matrix kernel has a pointer for each pixel of its block, and walks through the pieces: see [gemm.Micro.Gather]. (M.
// Dukhan, "The Indirect Convolution Algorithm", arXiv 1907.02129, has a pointer for each pixel and tap.)
//
//	for each band of pixels and some panels of filters, in parallel
//	  if patches reach over the border: copy the rows of the image under the band     L2
//	  for each panel of filters                                                       panel: L2
//	    for each block of pixels
//	      mr×nr block of C = pieces · panel, and its Finish                           block of C: registers
//	  the caller's Epilogue
//
// While a panel is used, the next one is loaded from memory into the second-level cache, where filters are large.
//
// A worker copies what its band reads of the image, with zeros around it, to scratch of its own. Without a border the
// image is read where it is.
//
// A convolution of integers, of u8 by i8, is the same one over elements of four channels; see [NewQuads].
//
// # Determinism
//
// How a sum is cut depends on the shape and the processor's vector width only. Results are the same bits for every
// number of workers.
package conv
