// Package moe computes mixtures of experts, y[t] = Σ_e gate[t,e]·FFN_e(x[t]), and their gradients: the tokens of each
// expert are gathered and go through its network as one product, so that time grows with the number of pairs of a token
// and an expert, not with the number of experts.
//
// # Algorithm
//
// Tokens are grouped by expert as in Shazeer et al. (arXiv 1701.06538): count, prefix sums, lists in ascending order.
// The grouped products are those of MegaBlocks (Gale et al., arXiv 2211.15841) without its sparse format: a work item
// is a block of one expert's tokens, which goes through the whole network while it is in the second-level cache.
//
//	for each wave of experts                              slots, packed weights: bounded
//	  pack the weights of its experts, in parallel        experts without tokens are never packed
//	  for each block of tokens of an expert, in parallel
//	    pack the block's tokens                           x: L2
//	    for each chunk of hidden columns
//	      u = x·w1 + b1, v = x·w3 + b3                    u, v: L2; a panel of weights: L1
//	      h = act(u) ⊙ v, by the caller's vector program
//	      slots += h·w2                                   slots: a row for each pair
//	  for each range of tokens, in parallel
//	    y += gate·slot, in the order of experts
//
// If an expert's tokens fit into one block, the worker that computes the block packs the weights, in pieces that stay
// in the cache. For a few tokens the weights are read once in place. If there are few blocks, the chunks of hidden
// columns are divided among workers, too, and each part has its own slots.
//
// The gradient computes u and v again, and from da = dy·w2ᵀ the gradients du and dv of both; gate·da·w1ᵀ goes to slots
// that become dx, and Σ h⊙da is the gradient of the gate. h, gate·du and gate·dv of a wave are stored for a second
// phase, which computes the weights' gradients: products over an expert's tokens, a work item for each block of the
// result.
//
// # Determinism
//
// Blocks, chunks, parts and segments depend on the shape and on how tokens are routed; the number of workers affects
// only the size of a wave. Each sum has one order, and no two workers add to the same memory at the same time, so
// results are the same bits for every number of workers.
package moe

// Float is the element type of a mixture.
type Float interface{ float32 | float64 }
