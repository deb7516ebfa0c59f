package graph

// GradMark says which node of a graph is a derivative, for graphs that came with a backward pass of their own. It is
// what a pass needs to drop that backward pass and make it anew.
type GradMark struct {
	Of    *Node // what is differentiated with respect to
	Value *Node // d(Cost)/d(Of), as the graph computes it
	Cost  *Node // what is differentiated; nil where it could not be determined
	Seed  *Node // d(Cost)/d(Cost): nil for 1
	// Wanted tells that the user asked for this derivative. The others are steps on the way to a wanted one.
	Wanted bool
}
