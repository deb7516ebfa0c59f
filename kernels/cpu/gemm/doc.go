// Package gemm multiplies matrices: C = A·B, one product or a batch of them,
// in float32 or float64, packed and register-blocked, on the workers of a
// pool.Pool.
//
// A Plan is made once for a shape and a layout of the operands, and run many
// times on changing data; running allocates nothing. Plans of one program
// share their scratch through a Workspace.
//
// # Algorithm
//
// The scheme is Goto's and BLIS's (K. Goto and R. van de Geijn, "Anatomy of
// High-Performance Matrix Multiplication", ACM TOMS 34(3), 2008). The
// reduction is cut into blocks of about 256 so that one panel of B stays in
// the first-level cache, the rows into blocks of about 144 so that one block
// of A stays in the second:
//
//	for each block of columns, n0                     B block: L3
//	  for each block of the reduction, k0
//	    pack B[k0, n0] into panels of nr columns
//	    pack A[·, k0]  into panels of mr rows         A block: L2
//	    for each tile of C, in parallel
//	      for each panel of B in the tile             B panel: L1
//	        for each panel of A in the tile
//	          mr×nr block of C += panel·panel         C block: registers
//	    after the last k0: the caller's Epilogue, tile by tile
//
// Where A and B, packed, fit into a few megabytes together, the loop over k0 is inside the tile, which stays in the first-level
// cache, and workers pack for themselves what others would have to fetch from their caches (whole.go).
//
// A product whose rows of A have contiguous elements does not pack them if B is prepacked, or small enough to be packed at once: A
// is read where it lies, a tile is computed over the whole reduction, and a bias, a residual and bounds are applied while sums are
// in registers (inplace.go).
//
// Packing makes every inner access contiguous, so operands may have any
// strides: transposed and permuted views cost no more than plain ones.
// Products too small for this are computed whole by one work item each, and
// products with few rows or columns stream the matrix once, unpacked.
//
// A product of at most 64 rows by a prepacked matrix takes about as long as reading it. While a panel is multiplied, the next
// one is asked for, and the blocks of C in registers have the number of rows, of two, that leaves fewer rows unused.
//
// # Determinism
//
// How the reduction is cut depends on the shape and the processor's vector
// width only. Results are the same bits for every number of workers and
// every order in which they take their tiles.
package gemm

//go:generate sh -c "cd ../internal/gen && go run ./gemm -out ../../gemm/kernel_amd64.s -stubs ../../gemm/kernel_amd64.go -pkg gemm"
//go:generate sh -c "cd ../internal/gen && go run ./gemm -arch=arm64 -out ../../gemm/kernel_arm64.s -stubs ../../gemm/kernel_arm64.go -pkg gemm"

// Float is the element type of a product.
type Float interface{ float32 | float64 }

// An Epilogue finishes tiles of C: for example bias, activation and residual.
type Epilogue interface {
	// Tile is called once for each tile, when its elements have their final
	// value and are still in the cache. The tiles of a run cover C without
	// overlap. The callee knows C and its strides, and may change the
	// elements of this tile. Tiles are cut by the plan's shape alone, so a
	// partial result kept per tile does not depend on the number of workers.
	Tile(worker, batch, row, col, rows, cols int)
}
