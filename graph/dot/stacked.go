package dot

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// Stacked weights. The pass stack-weights makes one product of several that read the same operand, with weights that
// follow one another in a concat. Cards name the layers of all of them, and formulas call a part of the result by the
// layer to which it belongs.

// stacked are the layers whose weights a value stacks, or whose results it has one after the other.
type stacked struct {
	scope  string   // of all layers
	layers []string // below scope
	sizes  []int
}

// name is the common name of the layers.
func (s *stacked) name() string {
	return strings.TrimPrefix(s.scope+"/", "/") + strings.Join(s.layers, ", ")
}

// part is the layer to which a part of the result belongs, by what is written behind the name of the whole; or "".
func (s *stacked) part(slice string) string {
	start := 0
	for i, size := range s.sizes {
		if slice == fmt.Sprintf("[%d:%d]", start, start+size) {
			return short(s.layers[i], 16)
		}
		start += size
	}
	return ""
}

// stackedBy finds the layers whose weights n stacks, or whose weights stand stacked at the product n; nil if there are
// none, or they have no names.
func (b *builder) stackedBy(n *graph.Node) *stacked {
	switch op := n.Op.(type) {
	case graph.Concat:
		return b.stackedWeights(op, n)
	case graph.MatMul:
	case graph.Fusion:
		if op.Anchor != graph.AnchorMatMul {
			return nil
		}
	default:
		return nil
	}
	for _, a := range n.Args {
		if k, ok := base(a).Op.(graph.Concat); ok {
			if s := b.stackedWeights(k, base(a)); s != nil {
				return s
			}
		}
	}
	return nil
}

// stackedWeights are the layers of the parameters in a concat: those of their names, or of the nodes that were stacked.
func (b *builder) stackedWeights(op graph.Concat, n *graph.Node) *stacked {
	s := &stacked{}
	var scopes, origins []string
	for _, a := range n.Args {
		if _, param := base(a).Op.(graph.Param); !param {
			return nil
		}
		s.sizes = append(s.sizes, a.Type.Shape.At(op.Axis))
		scopes = append(scopes, b.scopes.Of(base(a)))
	}
	if s.of(scopes) {
		return s
	}
	for _, o := range n.Origin {
		if scope := graph.ScopeOf(o.Name); len(origins) == 0 || origins[len(origins)-1] != scope {
			origins = append(origins, scope)
		}
	}
	if len(origins) != len(n.Args) || !s.of(origins) {
		return nil
	}
	return s
}

// of takes scopes that differ in their last part alone.
func (s *stacked) of(scopes []string) bool {
	seen := map[string]bool{}
	for i, scope := range scopes {
		at := strings.LastIndexByte(scope, '/')
		above, layer := scope[:max(at, 0)], scope[at+1:]
		if layer == "" || seen[layer] || i > 0 && above != s.scope {
			s.layers = nil
			return false
		}
		seen[layer] = true
		s.scope, s.layers = above, append(s.layers, layer)
	}
	return true
}
