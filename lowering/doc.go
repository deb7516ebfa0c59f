// Package lowering turns a graph into a [Program]: buffers, with places in one arena, and launches in order. A
// program is plain data; a [Device] makes it executable.
//
//	graph.Graph ─► Lower ─► Program ─► Device.Compile ─► Executable ─► Run
//
// Views become strides: a Reshape, Transpose, Broadcast or Slice costs nothing as long as strides can say it, and one
// Copy launch where a reader needs more.
package lowering
