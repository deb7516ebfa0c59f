// Package reuse caches programs by their inputs, so that code that builds an equal graph for every batch compiles it
// once:
//
//	graph, options ─► request ─► hash ─► candidates ─► same structure, bit for bit? ─► program, kernels of a closed one
//	                                                   └─ none ─► passes, lowering ─► program, kept for the next
//
// Two programs of one request share the lowered program, which never changes. Everything else is separate: kernels and
// their packed weights, the memory of values, bound tensors, state, goroutines. The next program reuses the kernels,
// and their memory, of a closed one.
//
// Names and origins are labels of a request, which are not compared. A program with other labels than the compiled one
// gets the names of its sources and outputs immediately. Only reports and errors need the other labels: the passes,
// which are deterministic, then run again on the program's graph.
package reuse

import (
	"container/list"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"fusec/graph"
	"fusec/lowering"
)

// spares is how many kernels of closed programs are kept for each program.
const spares = 8

// A Request is the complete input of a program's compilation.
type Request struct {
	Graph *graph.Graph
	// Nodes are nodes of the graph with a special part, such as the cost of a gradient; nil entries are compared, too.
	Nodes []*graph.Node
	// Outputs are names of outputs that compiling adds; empty ones add none.
	Outputs []string
	// Key is everything else that determines the program: requests with deeply equal keys get the same program.
	Key  any
	Made any // returned to the caller with the program; not compared
	// Labels says that the program, or its messages during a run, depend on names.
	Labels bool
}

// Opaque is the name of an operation of the graph that cannot be compared with others, so that the program cannot be
// cached; empty if there is none.
func Opaque(g *graph.Graph) string {
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.Host); ok {
			return n.Where()
		}
	}
	return ""
}

// An Entry is a program that was compiled.
type Entry struct {
	Request Request // with a graph that never changes
	Program *lowering.Program
	hash    uint64
	bytes   int64 // of all of it
	spares  []lowering.Spare
	at      *list.Element // nil after it was dropped
}

// same reports whether a request gives this program, and whether all labels are equal, too.
func (e *Entry) same(r *Request) (same, labels bool) {
	its := &e.Request
	if len(r.Nodes) != len(its.Nodes) ||
		!slices.EqualFunc(r.Outputs, its.Outputs, func(a, b string) bool { return (a == "") == (b == "") }) {
		return false, false
	}
	if !reflect.DeepEqual(r.Key, its.Key) || !graph.SameStructure(r.Graph, its.Graph) {
		return false, false
	}
	p, q := graph.Positions(r.Graph), graph.Positions(its.Graph)
	for i, n := range r.Nodes {
		if at := p.Of(n); at != q.Of(its.Nodes[i]) || at < 0 && n != nil {
			return false, false
		}
	}
	return true, graph.SameLabels(r.Graph, its.Graph) && slices.Equal(r.Outputs, its.Outputs)
}

// Labelled is the program with the names that a request gives to its sources and outputs.
func (e *Entry) Labelled(r *Request) *lowering.Program {
	sources, outputs := map[string]string{}, map[string]string{}
	for i, n := range e.Request.Graph.Nodes {
		if graph.IsSource(n.Op) {
			sources[n.Name] = r.Graph.Nodes[i].Name
		}
	}
	for i, o := range e.Request.Graph.Outputs {
		outputs[o.Name] = r.Graph.Outputs[i].Name
	}
	for i, name := range e.Request.Outputs {
		outputs[name] = r.Outputs[i]
	}
	p := *e.Program
	p.Name = r.Graph.Name
	p.Buffers, p.Outputs = slices.Clone(p.Buffers), slices.Clone(p.Outputs)
	rename := func(at *string, names map[string]string) {
		if name, ok := names[*at]; ok {
			*at = name
		}
	}
	for i := range p.Buffers {
		switch b := &p.Buffers[i]; b.Role {
		case lowering.Input, lowering.Param, lowering.State:
			rename(&b.Name, sources)
		case lowering.Output:
			rename(&b.Name, outputs)
		}
	}
	for i := range p.Outputs {
		rename(&p.Outputs[i].Name, outputs)
	}
	return &p
}

// A Cache keeps the most recently used programs, up to a number and a size. Several goroutines may use it.
type Cache struct {
	mu                    sync.Mutex
	programs              map[uint64][]*Entry
	used                  *list.List // of *Entry, the last used first
	bytes                 int64
	maxPrograms, maxBytes int64

	// Hash chooses the programs that a request is compared with; equal graphs have equal ones.
	Hash func(*graph.Graph) uint64
}

// New makes a cache of at most the given number of programs, with at most the given bytes of programs and of kernels of
// closed ones.
func New(programs, bytes int64) *Cache {
	c := &Cache{maxPrograms: programs, maxBytes: bytes, Hash: graph.StructureHash}
	c.Clear()
	return c
}

// Clear drops all programs. Programs in use are not affected.
func (c *Cache) Clear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.used != nil {
		for at := c.used.Front(); at != nil; at = at.Next() {
			e := at.Value.(*Entry)
			e.at, e.spares = nil, nil
		}
	}
	c.programs, c.used, c.bytes = map[uint64][]*Entry{}, list.New(), 0
}

// Find returns the program of a request, or nil, and whether its labels are those of the request.
func (c *Cache) Find(r *Request) (_ *Entry, labels bool) {
	hash := c.Hash(r.Graph)
	c.mu.Lock()
	candidates := slices.Clone(c.programs[hash])
	c.mu.Unlock()
	var found *Entry
	for _, e := range candidates { // what is compared never changes
		same, same2 := e.same(r)
		if same && (found == nil || same2) && (same2 || !r.Labels) {
			found, labels = e, same2
		}
		if labels {
			break
		}
	}
	if found != nil {
		c.mu.Lock()
		if found.at != nil {
			c.used.MoveToFront(found.at)
		}
		c.mu.Unlock()
	}
	return found, labels
}

// Add adds the program of a request, whose graph must not be changed afterwards; nil if it is too large.
func (c *Cache) Add(r *Request, p *lowering.Program) *Entry {
	e := &Entry{Request: *r, Program: p, hash: c.Hash(r.Graph), bytes: graphBytes(r.Graph) + programBytes(p)}
	if e.bytes > c.maxBytes/4 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	e.at = c.used.PushFront(e)
	c.programs[e.hash] = append(c.programs[e.hash], e)
	c.bytes += e.bytes
	c.limit()
	return e
}

// limit drops the least recently used programs until the rest is small enough.
func (c *Cache) limit() {
	for c.bytes > c.maxBytes || int64(c.used.Len()) > c.maxPrograms {
		e := c.used.Remove(c.used.Back()).(*Entry)
		c.bytes -= e.bytes
		rest := slices.DeleteFunc(c.programs[e.hash], func(o *Entry) bool { return o == e })
		if c.programs[e.hash] = rest; len(rest) == 0 {
			delete(c.programs, e.hash)
		}
		e.at, e.spares = nil, nil
	}
}

// Leave stores the spare of a closed executable of the program.
func (c *Cache) Leave(e *Entry, s lowering.Spare) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.at == nil || len(e.spares) == spares || s.Bytes() > c.maxBytes/16 {
		return
	}
	e.spares = append(e.spares, s)
	e.bytes += s.Bytes()
	c.bytes += s.Bytes()
	c.limit()
}

// Spare takes the spare of a closed executable of the program, or nil.
func (c *Cache) Spare(e *Entry) lowering.Spare {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(e.spares)
	if n == 0 {
		return nil
	}
	s := e.spares[n-1]
	e.spares[n-1] = nil
	e.spares = e.spares[:n-1]
	e.bytes -= s.Bytes()
	c.bytes -= s.Bytes()
	return s
}

// Len is the number of programs.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used.Len()
}

// Check returns an error if the cache is larger than its limits, or if its counts are wrong.
func (c *Cache) Check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	listed, sum := 0, int64(0)
	for _, l := range c.programs {
		listed += len(l)
		for _, e := range l {
			sum += e.bytes
		}
	}
	if n := c.used.Len(); n != listed || int64(n) > c.maxPrograms || sum != c.bytes || sum > c.maxBytes {
		return fmt.Errorf("%d programs are kept, %d of them by hash, of at most %d, in %d bytes, counted as %d, of at most %d",
			n, listed, c.maxPrograms, sum, c.bytes, c.maxBytes)
	}
	return nil
}

// Spares is the number of spares of the program.
func (c *Cache) Spares(e *Entry) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(e.spares)
}

// graphBytes is the approximate memory of a graph.
func graphBytes(g *graph.Graph) int64 {
	total := int64(0)
	for _, n := range g.Nodes {
		total += nodeBytes(n)
	}
	return total
}

func nodeBytes(n *graph.Node) int64 {
	total := 400 + 8*int64(len(n.Args)) + 32*int64(len(n.Origin))
	switch op := n.Op.(type) {
	case graph.Const:
		total += op.Value.Type.Bytes()
	case graph.Fusion:
		total += graphBytes(op.Body)
	}
	return total
}

// programBytes is the approximate memory of a program.
func programBytes(p *lowering.Program) int64 {
	total := int64(0)
	for i := range p.Launches {
		l := &p.Launches[i]
		total += 200*int64(1+len(l.Args)+len(l.Results)) + nodeBytes(l.Node)
	}
	for _, b := range p.Buffers {
		total += 200
		if b.Role == lowering.Const {
			total += b.Type.Bytes()
		}
	}
	return total
}
