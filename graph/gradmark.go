package graph

// GradMark says which node of a graph is a derivative, for graphs that were imported with a backward pass. A pass uses
// it to drop that backward pass and to derive it again.
type GradMark struct {
	Of    *Node // the node with respect to which Cost is differentiated
	Value *Node // d(Cost)/d(Of), as computed by the graph
	Cost  *Node // the node that is differentiated; nil if it could not be determined
	Seed  *Node // d(Cost)/d(Cost): nil for 1
	// Wanted says that the user asked for this derivative. The others are intermediate results of a wanted one.
	Wanted bool
}
