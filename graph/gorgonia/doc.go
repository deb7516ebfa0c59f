// Package gorgonia turns Gorgonia's expression graphs into fusec's and back. It is the only place that knows
// Gorgonia's insides; it knows those of v0.9.18 and refuses others.
//
//   - [Import] makes a graph.Graph of an ExprGraph. Operations are recognised by the name of their Go type and the
//     values of their fields; what cannot be recognised, such as an operation of the user's own, stays whole as a
//     graph.Host that runs its Do. [Imported] keeps the ties between both graphs: which node a value comes from, where
//     results go, what is the gradient of what.
//   - [Load], [Store], [NewValue], [Bind] and [BindGrad] carry values over between the two.
//   - [ReadOptions] tells what a list of Gorgonia's machine options asks for, so that a machine outside Gorgonia can
//     honour them.
//   - [Export] writes a graph.Graph as an ExprGraph through Gorgonia's public functions.
//
// An imported graph means what the mathematics of its operations says. Where Gorgonia computes something else, that is
// listed in the documentation of fusec; where the importer can see that Gorgonia went wrong while the graph was built,
// it says so in a note.
package gorgonia
