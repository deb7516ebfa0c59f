// Package nn has operations that Gorgonia lacks, for use in Gorgonia code: attention, rotary positions, layer and RMS
// normalisation, GELU, SiLU, SwiGLU, embeddings, cross-entropy, dropout from a seed, top-k, mixtures of experts with
// their router, message passing on graphs, and convolutional networks. Each is one node of Gorgonia's graph, with a
// gradient:
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
// The importer (package fusec/graph/gorgonia) imports these nodes as a graph.Attention, a graph.RMSNorm and so on,
// which fuse with the operations around them. Written in Gorgonia's operations, each is a dozen nodes that have to be
// recognised. Their gradients from gorgonia.Grad are dropped and derived again, like all gradients.
//
// They also run on Gorgonia's TapeMachine, with the same values, gradients and random numbers: an operation's Do
// evaluates the same definition that the importer gets, with the reference kernels in float64. Therefore this package
// imports kernels/ref, as no other package under graph does: there is no second formula that could differ. The
// reference is not optimised and slow. It is for checking a model, not for training. Gorgonia's LispMachine cannot
// differentiate these operations, because it differentiates in another way.
//
// A mixture of experts is routed by [Route], or by a layer made with [NewMoE]. Other values of a routing than its
// gates, such as losses that balance the experts and counts for monitoring, are methods of [Routing]. Their nodes are
// in the graph only if the methods are called.
//
// Convolutional networks are made of layers ([Conv2d], [BatchNorm], [Residual], [Sequential]); the example of Sequential
// is ResNet-18. The running statistics of a batch norm are state, which graphs for training and for evaluation can share.
//
// For decoding, a [KVCache] stores the keys and values of earlier tokens, in its own memory, which fusec's machines
// write in place. Its content is state, like the count of [Seeds]: fusec's machines change it at the end of a
// successful run, Gorgonia's when they execute the node.
//
// For operands that do not fit, functions return an error and do not panic; it names the operation, the operand and the
// user's node. A Gorgonia node has one value. So a further result is a separate node, like the indices of [TopK], or is
// not available, like attention's log-sum-exp.
package nn
