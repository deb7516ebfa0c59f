package main

// programs lists all programs, by subject.
var programs = []program{
	{"linear-regression", "a line through points: scalars, momentum", linearRegression, 1e-9, false},
	{"logistic-regression", "one matrix and a vector, a penalty on weights, gradient descent", logisticRegression, 1e-9, false},
	{"matrix-factors", "ratings as products of two low-rank matrices, RMSProp", matrixFactors, 1e-9, false},
	{"digits", "a classifier of three layers with ReLU and cross-entropy, Adam", digits, 1e-3, false},

	{"xor", "two sigmoid layers learn exclusive or", xor, 1e-9, false},
	{"autoencoder", "images through 16 numbers and back, decoder tied to the encoder", autoencoder, 1e-8, false},
	{"vae", "a variational autoencoder: the noise is an input", vae, 1e-8, false},
	{"gan", "generator and discriminator in two graphs that share weights", gan, 1e-8, true},
	{"adversary", "the gradient of an input: the smallest change that fools a classifier", adversary, 1e-9, false},
	{"siamese", "two inputs through the same weights, contrastive loss", siamese, 1e-8, false},

	{"convnet", "convolutions, max pooling, dense layers: the shape of Gorgonia's own example", convnet, 1e-3, false},
	{"resnet", "residual blocks with batch normalisation, trained, then evaluated", resnet, 5e-3, false},
	{"text-cnn", "one-dimensional convolutions of several widths over a text, joined", textCNN, 1e-8, false},
	{"dual-network", "a player's network: one tower, a policy head and a value head", dualNetwork, 5e-3, false},

	{"lstm", "a cell unrolled over 12 steps", lstm, 1e-8, false},
	{"gru", "a gated cell unrolled over 10 steps, last state classified", gru, 1e-8, false},
	{"char-rnn", "a graph for each sentence, weights shared by all graphs", charRNN, 1e-8, false},
	{"stateful-rnn", "the last state, read from its node, begins the next run", statefulRNN, 1e-9, true},
	{"embedding", "rows of a table by index, word against context", embedding, 1e-9, false},
	{"attention", "one head of attention written out by hand, causal mask as a constant", attention, 1e-8, false},

	{"dqn", "Q-learning with a target network that is copied now and then", dqn, 1e-8, false},
	{"reinforce", "a policy's gradient: log-probabilities weighted by returns", reinforce, 1e-9, false},

	{"batch-norm", "training and evaluation of one graph by two machines", batchNorm, 1e-8, false},
	{"compile-function", "a prediction compiled apart from training", compileFunction, 1e-9, false},
	{"subgraph", "machines of parts of a graph", subgraph, 1e-9, false},
	{"user-op", "an operation of the program's own, with its derivative", userOp, 1e-9, false},
	{"shared-weights", "one set of weights in graphs of two batch sizes", sharedWeights, 1e-9, false},
	{"goroutines", "gradients of four goroutines' machines averaged", goroutines, 1e-9, false},
	{"inner-values", "values inside the graph, read from their nodes after each run", innerValues, 1e-9, true},
	{"lisp-machine", "a forward graph that the LispMachine differentiates", lispMachine, 1e-9, false},
}
