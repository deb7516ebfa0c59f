// Package lowering turns a graph into a [Program]: buffers, with offsets in one arena, and launches in order. A program
// is plain data; a [Device] makes it executable.
//
//	graph.Graph ─► Lower ─► Program ─► Device.Compile ─► Executable ─► Run
//
// Views become strides: a Reshape, Transpose, Broadcast or Slice costs nothing if strides express it. Otherwise it is
// one Copy launch.
package lowering
