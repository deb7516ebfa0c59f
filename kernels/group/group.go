// Package group joins the participants of a program: processes, or goroutines of one process. A [Transport] moves bytes
// between them. A [Group] makes collective operations of it whose results do not depend on chance: sums are made in the
// order of the participants, by whoever needs them, so that the bits are the same in each run, on each participant and with
// each transport.
//
// All-reduce is a reduce-scatter and an all-gather, each of which sends the least bytes that the operation needs (R. Thakur,
// R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in MPICH", 2005).
package group

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"fusec/graph"
)

// A Transport moves bytes between the participants of a program. One goroutine uses it at a time.
type Transport interface {
	// Rank is this participant's number, from 0, and Size how many there are.
	Rank() int
	Size() int
	// Exchange sends and receives messages, and returns when all are done: what was sent may be changed, and what was
	// received is there. Peers are ranks, none its own. Messages between two participants keep their order, and both agree
	// on their lengths. The error names the participant that failed, or that did not answer in time; after it the transport
	// cannot be used.
	Exchange(send, receive []Message) error
	// Abort tells the others that this participant has failed, so that they need not wait for it.
	Abort(err error)
	Close() error
}

// Message is bytes to or from a participant.
type Message struct {
	Peer  int
	Bytes []byte
}

// A LostError tells of a participant that has failed, or that has not come to a collective operation in time.
type LostError struct {
	Rank int
	Err  error
}

// Error names the participant.
func (e *LostError) Error() string { return fmt.Sprintf("participant %d is lost: %v", e.Rank, e.Err) }

// Unwrap is what went wrong.
func (e *LostError) Unwrap() error { return e.Err }

// IsLost reports whether an error tells of another participant, which has failed or does not come.
func IsLost(err error) bool {
	lost := new(LostError)
	return errors.As(err, &lost)
}

// Origin finds the error of a run in those of its participants, which may be nil: that of the first which has failed by itself, or
// else the first. It is -1 if none has failed.
func Origin(errs []error) int {
	at := -1
	for i, err := range errs {
		if err != nil && (at < 0 || IsLost(errs[at]) && !IsLost(err)) {
			at = i
		}
	}
	return at
}

// Of names the participant in an error.
func Of(rank int, err error) error { return fmt.Errorf("participant %d: %w", rank, err) }

// Together calls f for all participants of this process at the same time, and keeps the errors.
func Together[P any](all []P, errs []error, f func(i int, p P) error) {
	var wait sync.WaitGroup
	for i, p := range all[1:] {
		wait.Go(func() { errs[i+1] = f(i+1, p) })
	}
	errs[0] = f(0, all[0])
	wait.Wait()
}

// Group is the participants of a program, as one of them sees it. One goroutine uses it at a time.
type Group struct {
	t      Transport
	staged [2][]byte
	runs   int64 // that have begun
	sends  []Message
	gets   []Message
}

// New makes a group of a transport's participants.
func New(t Transport) *Group { return &Group{t: t} }

// Rank is this participant's number, from 0.
func (g *Group) Rank() int { return g.t.Rank() }

// Size is the number of participants.
func (g *Group) Size() int { return g.t.Size() }

// Threads reports whether all participants are goroutines of this process.
func (g *Group) Threads() bool {
	t, ok := g.t.(interface{ Threads() bool })
	return ok && t.Threads()
}

// Failed is the error of another participant, where the transport knows of one before it is used again.
func (g *Group) Failed() error {
	if t, ok := g.t.(interface{ Failed() error }); ok {
		return t.Failed()
	}
	return nil
}

// A Watcher is a transport that tells which participant the others wait for, where they do not wait in [Transport.Exchange].
type Watcher interface {
	// Begin says that this participant begins its run of a number. Numbers grow.
	Begin(run int64)
	// Late names a participant that has not begun a run for which this one has waited, or that does not answer. It is nil if there
	// is none, or if this one has not waited for as long as participants may be late.
	Late(run int64, waited time.Duration) error
}

// Begin says that this participant begins a run in which others may wait for it, and gives the run's number.
func (g *Group) Begin() int64 {
	g.runs++
	if w, ok := g.t.(Watcher); ok {
		w.Begin(g.runs)
	}
	return g.runs
}

// Late is the error of a participant that has not come to a run for which this one has waited, if the transport can tell.
func (g *Group) Late(run int64, waited time.Duration) error {
	if w, ok := g.t.(Watcher); ok {
		return w.Late(run, waited)
	}
	return nil
}

// Exchange sends and receives messages: see [Transport].
func (g *Group) Exchange(send, receive []Message) error { return g.t.Exchange(send, receive) }

// Abort tells the others that this participant has failed.
func (g *Group) Abort(err error) { g.t.Abort(err) }

// Close leaves the group.
func (g *Group) Close() error { return g.t.Close() }

// Team is some of the participants, in order; this one is at Place.
type Team struct {
	g     *Group
	ranks []int
	place int
}

// Team makes a team of the given ranks, of which this participant is one. All of them make it with the same list.
func (g *Group) Team(ranks []int) (*Team, error) {
	place := slices.Index(ranks, g.Rank())
	if place < 0 {
		return nil, fmt.Errorf("participant %d is not among %v", g.Rank(), ranks)
	}
	for i, r := range ranks {
		if r < 0 || r >= g.Size() || slices.Contains(ranks[:i], r) {
			return nil, fmt.Errorf("a team of the ranks %v among %d participants", ranks, g.Size())
		}
	}
	return &Team{g, slices.Clone(ranks), place}, nil
}

// All is the team of all participants.
func (g *Group) All() *Team {
	t := &Team{g: g, place: g.Rank()}
	for r := range g.Size() {
		t.ranks = append(t.ranks, r)
	}
	return t
}

// Failed is [Group.Failed].
func (t *Team) Failed() error { return t.g.Failed() }

// Size is the number of participants of the team, and Place this one's position.
func (t *Team) Size() int  { return len(t.ranks) }
func (t *Team) Place() int { return t.place }

// Neighbours are where a participant at a place sends its value, and from where it receives one, if values go around a ring of n by
// shift places.
func Neighbours(place, shift, n int) (next, last int) {
	turn := func(by int) int { return ((place+by)%n + n) % n }
	return turn(shift % n), turn(-shift % n)
}

// Swap sends send[i] to the i-th participant of the team and receives what it sends into receive[i]; the own part is copied.
// An empty part is not sent. What i sends to j is as long as what j receives from i.
func (t *Team) Swap(send, receive [][]byte) error {
	g := t.g
	g.sends, g.gets = g.sends[:0], g.gets[:0]
	n := len(t.ranks)
	for k := 1; k < n; k++ { // each begins with its neighbours, so that no participant is everyone's first
		i, j := (t.place+k)%n, (t.place-k+n)%n
		if len(send[i]) > 0 {
			g.sends = append(g.sends, Message{t.ranks[i], send[i]})
		}
		if len(receive[j]) > 0 {
			g.gets = append(g.gets, Message{t.ranks[j], receive[j]})
		}
	}
	copy(receive[t.place], send[t.place])
	if len(g.sends)+len(g.gets) == 0 {
		return nil
	}
	return g.t.Exchange(g.sends, g.gets)
}

// Gather gives each participant the bytes of all, joined in order: x is as long on each, and y is Size times as long.
func (t *Team) Gather(x, y []byte) error {
	n := len(t.ranks)
	send, receive := make([][]byte, n), make([][]byte, n)
	for i := range n {
		send[i], receive[i] = x, y[i*len(x):][:len(x)]
	}
	return t.Swap(send, receive)
}

// Whole joins the parts that the participants have of a value. They stand on the mesh in their order.
func (t *Team) Whole(m graph.Mesh, s graph.Sharding, part *graph.Tensor) (*graph.Tensor, error) {
	all := make([]byte, len(part.Bytes())*len(t.ranks))
	if err := t.Gather(part.Bytes(), all); err != nil {
		return nil, err
	}
	whole, one := graph.NewTensor(part.Type.Reshaped(s.Whole(m, part.Type.Shape))), graph.NewTensor(part.Type)
	for r := range t.ranks {
		copy(one.Bytes(), all[r*len(one.Bytes()):])
		if err := s.Join(m, whole, one, r); err != nil {
			return nil, err
		}
	}
	return whole, nil
}

// Broadcast gives all participants the bytes of the one at place root.
func (t *Team) Broadcast(x []byte, root int) error {
	n := len(t.ranks)
	send, receive := make([][]byte, n), make([][]byte, n)
	if t.place != root {
		receive[root] = x
		return t.Swap(send, receive)
	}
	for i := range n {
		if i != root {
			send[i] = x
		}
	}
	return t.Swap(send, receive)
}

// Reduce combines the elements of all participants' tensors of one type, and gives each all results: y may be x.
func (t *Team) Reduce(f graph.ReduceFn, d graph.DType, x, y []byte) error {
	n, size := len(t.ranks), d.Size()
	elems := len(x) / size
	cut := func(i int) int { return i * elems / n * size } // parts of as equal a length as can be
	send, receive := make([][]byte, n), make([][]byte, n)
	own := cut(t.place+1) - cut(t.place)
	stage := t.g.stage(0, own*n)
	for i := range n {
		send[i], receive[i] = x[cut(i):cut(i+1)], stage[i*own:][:own]
	}
	if err := t.Swap(send, receive); err != nil {
		return err
	}
	sum := t.g.stage(1, own)
	if err := Combine(f, d, receive, sum); err != nil {
		return err
	}
	for i := range n {
		send[i], receive[i] = sum, y[cut(i):cut(i+1)]
	}
	return t.Swap(send, receive)
}

// ReduceScatter combines parts that participants have for each other: parts[i] is for participant i, and y is the sum of
// those for this one.
func (t *Team) ReduceScatter(f graph.ReduceFn, d graph.DType, parts [][]byte, y []byte) error {
	n := len(t.ranks)
	stage := t.g.stage(0, len(y)*n)
	receive := make([][]byte, n)
	for i := range n {
		receive[i] = stage[i*len(y):][:len(y)]
	}
	if err := t.Swap(parts, receive); err != nil {
		return err
	}
	return Combine(f, d, receive, y)
}

// stage is memory that the next collective operation uses again.
func (g *Group) stage(i, n int) []byte {
	if len(g.staged[i]) < n {
		g.staged[i] = graph.NewTensor(graph.TypeOf(graph.F64, (n+7)/8)).Bytes()
	}
	return g.staged[i][:n]
}

// Combine reduces terms element by element in their order into y, which overlaps none of them.
func Combine(f graph.ReduceFn, d graph.DType, terms [][]byte, y []byte) error {
	if len(terms) == 0 {
		return errors.New("nothing to combine")
	}
	copy(y, terms[0])
	switch d {
	case graph.F32:
		combine[float32](f, terms, y)
	case graph.F64:
		combine[float64](f, terms, y)
	case graph.F16:
		half(f, terms, y, graph.F16ToFloat32, graph.F16FromFloat32)
	case graph.BF16:
		half(f, terms, y, graph.BF16ToFloat32, graph.BF16FromFloat32)
	case graph.I8:
		combine[int8](f, terms, y)
	case graph.I16:
		combine[int16](f, terms, y)
	case graph.I32:
		combine[int32](f, terms, y)
	case graph.I64:
		combine[int64](f, terms, y)
	case graph.U8:
		combine[uint8](f, terms, y)
	case graph.U16:
		combine[uint16](f, terms, y)
	case graph.U32:
		combine[uint32](f, terms, y)
	case graph.U64:
		combine[uint64](f, terms, y)
	default:
		return fmt.Errorf("%v is not combined", d)
	}
	return nil
}
