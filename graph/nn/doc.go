// Package nn has the operations of today's networks that Gorgonia lacks, for use in Gorgonia code: attention, rotary
// positions, layer and RMS normalisation, GELU, SiLU, SwiGLU, embeddings, cross-entropy, dropout from a seed, top-k,
// mixtures of experts with their router, and message passing on graphs. Each is one node of Gorgonia's graph with a
// right gradient:
//
//	g := gorgonia.NewGraph()
//	x := gorgonia.NewTensor(g, gorgonia.Float32, 3, gorgonia.WithShape(4, 128, 256), gorgonia.WithName("x"))
//	gain := gorgonia.NewVector(g, gorgonia.Float32, gorgonia.WithShape(256), gorgonia.WithName("gain"))
//	layer, err := nn.NewMultiHeadAttention(g, gorgonia.Float32, "attn", 256, 8, 2)
//	layer.Options.Causal = true
//	h, err := nn.RMSNorm(x, gain, 1e-6)
//	h, err = layer.Forward(h)
//	y, err := gorgonia.Add(x, h)
//	vm := fusec.NewMachine(g)
//
// The importer (package fusec/graph/gorgonia) takes these nodes as they are meant: as a graph.Attention, a
// graph.RMSNorm and so on, which fuse with what stands around them, where the same written in Gorgonia's own
// operations is a dozen nodes that have to be recognised. Gradients that gorgonia.Grad makes of them are dropped and
// made anew, like all.
//
// On Gorgonia's TapeMachine they run, too, and give the same values, gradients and random numbers: an operation's Do
// evaluates the very definition that the importer gets, with the reference kernels in float64. It is the reason why
// this package, alone of those under graph, knows kernels/ref: no second formula can differ from the first. It is
// slow, as the reference is never optimised: for checking a model, not for training one. Gorgonia's LispMachine,
// which differentiates in another way, cannot differentiate these operations.
//
// A mixture of experts is routed by [Route], or by a layer made with [NewMoE]. What there is to know of a routing
// beside its gates, the losses that keep the experts in balance and the counts to watch, are methods of [Routing]: a
// node that is not asked for is not in the graph.
//
// For decoding, a [KVCache] keeps the keys and values of the tokens before, in memory of its own that fusec's machines
// write in place. What it keeps is state, as the count of [Seeds] is: fusec's machines change it when a run has
// succeeded, Gorgonia's when they come by.
//
// Functions return an error, not a panic, for operands that do not fit; it names the operation, the operand and the
// user's node. Gorgonia's node holds one value, so results beside the first are nodes of their own, as the indices of
// [TopK] are, or are not handed out, as attention's log-sum-exp is not.
package nn
