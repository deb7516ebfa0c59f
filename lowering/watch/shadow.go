package watch

import (
	"cmp"
	"fmt"
	"path/filepath"
	"strconv"

	"fusec/graph"
	"fusec/kernels/ref"
	"fusec/lowering"
)

// Shadow has the reference compute some of the launches of a training run again. In each run other launches are taken, so
// that each is taken once in as many runs as Every says.
type Shadow struct {
	Every  int
	Folder string // into which a launch that departs is written
	Target string // on which the program runs, for errors
	Same   bool   // the program runs on the reference itself, from which no launch departs
	// Seen is what has been compared so far.
	Seen Seen

	run int64 // runs that were begun
}

// Seen tells how near launches came to their bounds.
type Seen struct {
	Launches int64         // compared
	Launch   int           // the index of the one that came nearest; -1 if none departs at all
	Node     string        // of that launch: what it computes, by the user's name, and where that was built
	Worst    ref.Departure // of that launch
}

// String is one line for people.
func (s Seen) String() string {
	compared := fmt.Sprintf("shadow: %d launches compared with the reference", s.Launches)
	if s.Launches == 1 {
		compared = "shadow: 1 launch compared with the reference"
	}
	if s.Launch < 0 || s.Worst.Elements == 0 {
		return compared + ", and none departs"
	}
	return fmt.Sprintf("%s; launch %d, %s, comes nearest to its bound, at %.2g of it", compared, s.Launch+1, s.Node, s.Worst.Worst)
}

// Begin begins a run of so many launches, and reports whether any is to be compared in it.
func (s *Shadow) Begin(launches int) bool {
	first := (int64(s.Every) - s.run%int64(s.Every)) % int64(s.Every)
	s.run++
	return first < int64(launches)
}

// takes reports whether a launch is compared in the present run.
func (s *Shadow) takes(launch int) bool { return (int64(launch)+s.run-1)%int64(s.Every) == 0 }

// DepartureError tells of a launch that departs from the reference by more than its bound. The run has ended before
// parameters and state changed.
type DepartureError struct {
	Launch    int            // its index
	Node      string         // what it computes, by the user's name, and where that was built
	Origin    []graph.Origin // the user's nodes that it computes
	Departure ref.Departure
	Target    string
	// File is a graph of the launch alone. The values that it read are in the weights file beside it.
	File string
	Err  error // why File could not be written
}

// Error implements error.
func (e *DepartureError) Error() string {
	s := fmt.Sprintf("launch %d, %s, departs from the reference: %v%s", e.Launch+1, e.Node, e.Departure, standsFor(e.Origin))
	if e.Err != nil {
		return s + "; it could not be written to a file: " + e.Err.Error()
	}
	return fmt.Sprintf("%s; fusec run %s --against ref --target %s runs it alone", s, e.File, e.Target)
}

// Unwrap gives the error with which the file was written.
func (e *DepartureError) Unwrap() error { return e.Err }

// shadow compares a launch, if it is one to be compared in this run.
func (w *Watcher) shadow(index int, l *lowering.Launch, value func(lowering.View) (*graph.Tensor, error)) error {
	s := w.Shadow
	if !s.takes(index) {
		return nil
	}
	if s.Same {
		s.Seen.Launches++
		return nil
	}
	d, args, err := w.departure(l, value, true)
	if err != nil || args == nil {
		return err
	}
	s.Seen.Launches++
	if d.Worst > s.Seen.Worst.Worst {
		s.Seen.Launch, s.Seen.Node, s.Seen.Worst = index, l.Node.Where(), d
	}
	if d.Off == 0 {
		return nil
	}
	e := &DepartureError{Launch: index, Node: l.Node.Where(), Origin: l.Node.Origin, Departure: d, Target: s.Target}
	e.File, e.Err = s.write(index, l, args)
	return e
}

// write writes a launch as a graph of its own, in which the values that it read are parameters.
func (s *Shadow) write(index int, l *lowering.Launch, args []*graph.Tensor) (string, error) {
	path := filepath.Join(s.Folder, fmt.Sprintf("fusec-shadow-%d.graph", index+1))
	g, weights, err := alone(l, args)
	if err != nil {
		return path, err
	}
	return path, graph.Save(path, g, weights)
}

// alone is a launch as a graph of its own, and the values of its parameters.
func alone(l *lowering.Launch, args []*graph.Tensor) (*graph.Graph, map[string]*graph.Tensor, error) {
	b := graph.Extend(graph.New(cmp.Or(l.Node.Name, "launch"))).From(l.Node)
	weights := map[string]*graph.Tensor{}
	operands := make([]*graph.Node, len(args))
	for i, t := range args {
		name := ""
		if i < len(l.Node.Args) {
			name = l.Node.Args[i].Name
		}
		if name == "" || weights[name] != nil {
			name = "operand" + strconv.Itoa(i)
		}
		weights[name] = t.Clone()
		operands[i] = b.Param(name, t.Type)
	}
	var results []*graph.Node
	if f, ok := l.Op.(graph.Fusion); ok {
		results = b.Inline(f.Body, operands)
	} else {
		results = []*graph.Node{b.Add(l.Op, operands...)}
		for i := range l.Results[1:] {
			results = append(results, b.Add(graph.Result{Index: i + 1}, results[0]))
		}
	}
	for i, n := range results {
		b.Output("result"+strconv.Itoa(i), n)
	}
	g, err := b.Graph()
	return g, weights, err
}
