// Package attention computes softmax(Scale·q·kᵀ + masks)·v block by block, so that the matrix of scores never exists:
// its memory does not grow with the number of queries or keys.
//
// # Algorithm
//
// The scheme is FlashAttention's (Dao et al., arXiv 2205.14135 and 2307.08691) with the online softmax of Milakov and
// Gimelshein (arXiv 1805.02867): for each query a running maximum m, a running sum l of e^(s−m) and a running result o
// are kept; a block of keys with a greater maximum scales l and o down.
//
//	for each block of queries of a head, in parallel          q, o: L2
//	  for each block of keys that they may attend
//	    pack k and v, if need be                              k, v: L2
//	    for each panel of NR queries                          q: L1
//	      s = k·qᵀ, a panel [keys][NR]                        s: L1
//	      mask s; raise m; s = e^(s−m); l += Σ s, down the columns
//	      oᵀ += vᵀ·s                                          oᵀ: a panel [width][NR]
//
// With AVX-512 the matrix kernels read rows of k and v in place, without packing. Rows that are far apart are copied to
// contiguous memory first.
//
// Everything is computed transposed: scores come out of the matrix kernel as the panel that the second product reads,
// so that probabilities are never moved, and a softmax of NR rows goes down the columns, vertically. Scale is folded
// into the packed queries.
//
// Keys outside of the reach of all queries of a panel by position (causal, window, lengths) are left out, and the
// remaining scores at the edges are masked. Blocks that an input mask excludes for all queries of a panel are skipped
// before anything is packed or multiplied.
//
// A few queries against many keys (decoding) stream keys and values once, in fixed chunks that are combined in order
// at the end, as in flash-decoding; heads that share keys and values do so together. In assembly, a key or a value that
// has been loaded is multiplied by four heads' queries or weights, where they attend to the same keys (gemm.Few).
//
// Keys and values of 16 bits, or of 8 with a scale for each, are read as they are stored, and become floats in registers. There the
// scales of 8 bits multiply the scores and the weights. Other queries convert a block of keys, and one of values, at a time.
//
// # Gradient
//
// A [Backward] computes the probabilities again from the log-sum-exp, block by block: see backward.go. Its memory,
// without the gradients, is three numbers for each query.
//
// # Pages
//
// Keys and values in pages of a pool (paged attention, Kwon et al., arXiv 2309.06180) are found through the sequence's
// table. Decoding reads them in place, a page at a time. Blocks that span several pages are copied to contiguous memory
// before they are packed.
//
// # Determinism
//
// Blocks and chunks depend on the shape and the processor's vector width only, so results are the same bits for every
// number of workers.
package attention

// Float is the element type of an attention.
type Float interface{ float32 | float64 }
