// Package dot prints graphs and the records of a compilation: as pictures (DOT, SVG, PNG), as an aligned listing and
// as JSON. Everything it shows is in a [graph.Graph] or a [trace.Trace].
//
// # What a picture shows
//
// Data flows from top to bottom. An operation or a launch is a card: its kind in a bar of the kind's colour, with its
// number in the program; what the user calls it, or the layer that it belongs to; its formula; the type of its value and
// its costs; the parameters and states that only it and others read; a mark for each missed fusion, with the reason as a
// tooltip; and, with [Options.Measured], a bar as long as its time. What does not run on the program's target has a dashed
// border. Inputs and outputs are dark pills. Attributes that have their usual values are left out.
//
// What runs when parameters are set, and not in each run, has a frame of its own.
//
// A training step has a frame for each phase: forward, backward and optimiser. The optimiser is one card. Of the many
// values that the backward pass reads from the forward pass, only few are drawn as arrows; else the frame says how many.
//
// Layers that repeat are drawn once, inside a dashed frame marked "× 12". Layers that the user's names number, such as
// layer3.attention.q, are found by these names; others by their structure. [Detail] says how much of the rest is drawn;
// the default is the most that keeps the picture within [Options.MaxNodes] nodes. [Full] draws every node by itself, also
// parameters, views, and the bodies of fusions inside a frame for each launch.
//
// In SVG every node and edge has a tooltip with its full name, type and the user's file and line, and an id with the
// node's ID: "node7", and "node7.2" inside the body of node 7. A card of several operations has the ID of the first: "group7".
//
// # Determinism
//
// The same graph and records give the same bytes. Measured times are left out unless [Options.Measured] is set.
package dot
