// Package dot prints graphs and the records of a compilation: as pictures (DOT, SVG, PNG), as an aligned listing and
// as JSON. Everything it shows is in a [graph.Graph] or a [trace.Trace].
//
// # What a picture shows
//
// Data flows from top to bottom. A node carries the user's name, the operation with its attributes, and the type of
// its value. Sources and constants look different from values that are computed: inputs and outputs are dark pills,
// parameters sand-coloured boxes, state a cylinder. A constant whose elements are all equal is written into the label
// of the operation that reads it ("mul × 0.5"). A [graph.Fusion] is a tinted cluster, one launch, with its body
// inside and one colour per kind; the operations of a stage that is not fused yet have the colour of the kind they
// will belong to. In the last stage each launch carries its number, its kernel, its arithmetic and its traffic.
//
// Layers that repeat are drawn once, inside a dashed frame marked "× 12", with a dashed edge for each value that one
// repetition passes to the next. [Detail] says how much of the rest is drawn; the default is the most that keeps the
// picture within [Options.MaxNodes] nodes.
//
// In SVG every node and edge has a tooltip with its full name, type and the user's file and line, and an id with the
// node's ID: "node7", and "node7.2" inside the body of node 7.
//
// # Determinism
//
// The same graph and records give the same bytes. Measured times are left out unless [Options.Measured] is set.
package dot
