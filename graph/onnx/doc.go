// Package onnx reads and writes models in the Open Neural Network Exchange format (https://onnx.ai): IR 3 and newer,
// opsets 6 to 28.
//
// [Load] reads a model into a [graph.Graph] and the values of its weights. Each operator is a row of a table: its domain
// and name, its attributes with their defaults by opset, and the function that builds its nodes. An operator has no node
// of its own in a graph: it becomes the operations of package graph that compute it, so that all passes and targets
// know it. Nodes keep the name of the ONNX node and its index as their origin, which errors and drawings show.
//
// Sizes are fixed when a model is read. Symbolic sizes of inputs are bound by [Options]. Arithmetic on shapes is computed
// while reading: the value of a node whose operands are known is known, too. Operators that need a value then, such as
// the new shape of a Reshape, the condition of an If or the number of a Loop's iterations, are refused by name if it is
// not known. An input whose value is given is known, and its value becomes part of the graph if an operator needs it;
// [Model.Fixed] lists such inputs.
//
// Floating-point initializers with more than one element become parameters; other initializers and constants become
// constants. Computation in 16-bit types is in f32, and each operator's result is rounded to its type, as the
// specification says.
//
// Quantised values keep their integer types; the arithmetic of quantised operators is that of the specification.
//
// [Save] writes a graph as a model of opset 21 with its weights inside, or beside it if they are large.
package onnx

//go:generate protoc -I internal/pb --go_out=internal/pb --go_opt=paths=source_relative --go_opt=Monnx.proto=fusec/graph/onnx/internal/pb onnx.proto
