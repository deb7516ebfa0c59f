package graph

import (
	"errors"
	"fmt"
)

// Verify checks what every graph must satisfy: operands before users, operations in the table with operands that fit
// their type rule, unique IDs and source names, outputs and updates that are nodes of the graph, well-formed bodies of
// fusions. All violations are reported together.
func Verify(g *Graph) error { return verify(g, 0) }

// checkBody is what [VerifyBodies] was given.
var checkBody func(f Fusion) error

// VerifyBodies makes [Verify] check bodies of fusions by lowering them. Package graph/body calls it when it is initialised,
// and all targets import that package. Without it Verify checks which operations a body has, and not the forms of its values.
func VerifyBodies(check func(f Fusion) error) { checkBody = check }

// maxNesting bounds the nesting of bodies of fusions.
const maxNesting = 4

func verify(g *Graph, depth int) error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	if depth > maxNesting {
		return fmt.Errorf("fusions are nested deeper than %d", maxNesting)
	}
	at := newNodesByID(g.Nodes)
	names := make(map[string]*Node)
	for _, n := range g.Nodes {
		if n == nil || n.Op == nil {
			fail("%v has no operation", n)
			continue
		}
		for i, a := range n.Args {
			if !at.has(a) {
				fail("%s: operand %d (%v) is not a node before it", n.Where(), i, a)
			}
		}
		if other := at.add(n); other != nil {
			fail("nodes %s and %s have the same ID %d", other.Where(), n.Where(), n.ID)
		}
		t, err := resultType(n.Op, n.Args)
		switch {
		case err != nil:
			fail("%s: %w", n.Where(), err)
		case t != n.Type:
			fail("%s: has type %v, its operands give %v", n.Where(), n.Type, t)
		}
		if n.Sharding.Given {
			if err := n.checkSharding(g); err != nil {
				fail("%s: %w", n.Where(), err)
			}
		}
		switch op := n.Op.(type) {
		case Input, Param, State:
			if depth == 0 && n.Name == "" {
				fail("%s has no name", n.Where())
			}
			if other := names[n.Name]; other != nil && depth == 0 {
				fail("%s and %s have the same name", other.Where(), n.Where())
			}
			names[n.Name] = n
			if _, in := op.(Input); !in && depth > 0 {
				fail("%s: a fusion's body holds only inputs", n.Where())
			}
		case Const: // a Const without a value, or a Fusion without a body, has been reported by its type rule
			if op.Value == nil {
				break
			}
			if err := op.Value.Check(); err != nil {
				fail("%s: %w", n.Where(), err)
			}
		case Fusion:
			if op.Body == nil {
				break
			}
			if err := verify(op.Body, depth+1); err != nil {
				fail("body of %s: %w", n.Where(), err)
			} else if beside, err := op.checkAnchor(); err != nil {
				fail("body of %s: %w", n.Where(), err)
			} else if checkBody != nil && !beside {
				if err := checkBody(op); err != nil {
					fail("body of %s: %w", n.Where(), err)
				}
			}
		}
	}
	out := make(map[string]bool)
	for _, o := range g.Outputs {
		if !at.has(o.Node) {
			fail("output %q is not a node of the graph", o.Name)
		}
		if out[o.Name] {
			fail("two outputs are named %q", o.Name)
		}
		out[o.Name] = true
	}
	written := make(map[*Node]bool)
	for _, u := range g.Updates {
		if !at.has(u.Target) || !at.has(u.Value) {
			fail("update of %v with %v: not a node of the graph", u.Target, u.Value)
			continue
		}
		switch u.Target.Op.(type) {
		case State, Param:
		default:
			fail("update of %s, which is neither state nor parameter", u.Target.Where())
		}
		if u.Target.Type != u.Value.Type {
			fail("update of %s of type %v with a value of type %v", u.Target.Where(), u.Target.Type, u.Value.Type)
		}
		if written[u.Target] {
			fail("%s is updated twice", u.Target.Where())
		}
		written[u.Target] = true
	}
	for _, n := range g.Notes {
		if err := n.check(); err != nil {
			fail("%w", err)
		}
		if depth > 0 {
			fail("a fusion's body has a note")
		}
		if n.Node != nil && !at.has(n.Node) {
			fail("note about %v, which is not a node of the graph", n.Node)
		}
	}
	if err := g.verifyTraining(at.has, out); err != nil {
		fail("%w", err)
	}
	if err := g.Mesh.Check(); err != nil {
		fail("%w", err)
	}
	if depth > 0 && len(g.Mesh) > 0 {
		fail("a fusion's body has a mesh")
	}
	if depth > 0 && (len(g.Gradients) > 0 || g.Training != nil) {
		fail("a fusion's body asks for gradients")
	}
	return errors.Join(errs...)
}

// nodesByID is a set of nodes.
type nodesByID struct {
	small []*Node        // by ID, where that is small
	large map[int]*Node  // by ID, where it is not
	twins map[*Node]bool // nodes with the ID of another node
}

// newNodesByID makes an empty set with space for the nodes of a graph.
func newNodesByID(nodes []*Node) *nodesByID {
	most := -1
	for _, n := range nodes {
		if n != nil && n.ID < 8*len(nodes)+1024 {
			most = max(most, n.ID)
		}
	}
	return &nodesByID{small: make([]*Node, most+1)}
}

func (s *nodesByID) of(id int) *Node {
	if uint(id) < uint(len(s.small)) {
		return s.small[id]
	}
	return s.large[id]
}

func (s *nodesByID) has(n *Node) bool { return n != nil && (s.of(n.ID) == n || s.twins[n]) }

// add adds n, and returns another node of the same ID, or nil.
func (s *nodesByID) add(n *Node) (other *Node) {
	switch other = s.of(n.ID); {
	case other != nil:
		if s.twins == nil {
			s.twins = map[*Node]bool{}
		}
		s.twins[n] = true
	case uint(n.ID) < uint(len(s.small)):
		s.small[n.ID] = n
	default:
		if s.large == nil {
			s.large = map[int]*Node{}
		}
		s.large[n.ID] = n
	}
	return other
}
