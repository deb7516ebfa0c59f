package graph

import (
	"cmp"
	"strings"
)

// ScopeOf is the path of the layer to which a node of the given name belongs, with slashes: the name without its last
// part. Parts are separated by slashes or by dots; in a name without either, an underscore after a digit separates, too.
// A name without a path, or one that is not made of words, gives "". The gradients and the optimiser's states of a
// parameter have its scope. The names of nodes that PyTorch exports begin with a slash, and repeat what contains a part.
//
//	block3/attn/query            block3/attn
//	layers.3.attn.q.weight       layers/3/attn/q
//	/layer1/layer1.0/conv/Conv   layer1/0/conv
//	l3_w                         l3
//	gradient of fc1.bias         fc1
//	w1                           (none)
func ScopeOf(name string) string {
	for strings.HasPrefix(name, GradientOf) {
		name = name[len(GradientOf):]
	}
	if rest, ok := strings.CutPrefix(name, "optim/"); ok { // optim/moment/parameter
		_, name, _ = strings.Cut(rest, "/")
	}
	name, exported := strings.CutPrefix(name, "/")
	if len(name) == 0 || !isLetter(name[0]) {
		return ""
	}
	last, separated := -1, strings.ContainsAny(name, "/.")
	for i := range len(name) {
		switch c := name[i]; {
		case c == '/' || c == '.':
			if i == 0 || name[i-1] == '/' || name[i-1] == '.' {
				return ""
			}
			last = i
		case c == '_':
			if !separated && isDigit(name[i-1]) {
				last = i
			}
		case !isLetter(c) && !isDigit(c) && c != '-' && c < 0x80:
			return ""
		}
	}
	if last <= 0 {
		return ""
	}
	name = name[:last]
	if exported && strings.Contains(name, ".") {
		parts := strings.Split(name, "/")
		kept := parts[:0]
		for i, p := range parts {
			if i+1 == len(parts) || !strings.HasPrefix(parts[i+1], p+".") {
				kept = append(kept, p)
			}
		}
		name = strings.Join(kept, "/")
	}
	return strings.ReplaceAll(name, ".", "/")
}

func isDigit(c byte) bool  { return '0' <= c && c <= '9' }
func isLetter(c byte) bool { return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c >= 0x80 }

// Scopes finds the scopes of nodes. The zero value is ready to use. Nodes must not be changed between calls.
type Scopes struct {
	of   map[*Node]string
	deep map[*Node]int // the length of the longest path to a node
	last []Origin      // the list that was last looked at, and what it gives
	path string
}

// manyOrigins is how many origins of a node Scopes looks at.
const manyOrigins = 64

// Of is the scope of n: that of its name, or what the scopes of its origins, else of the parameters that it reads, else
// of its other operands have in common. Of a fusion's origins those of its anchor count, if they have a scope. If parameters have
// nothing in common, it is the scope of the first: the anchor of a fusion comes first. Where values of several layers meet, as in a
// residual sum, it is the layer of the last one made. A copy of a parameter counts as the parameter. In the optimiser's phase only
// names, origins and parameters count, and what concerns several layers has no scope.
func (s *Scopes) Of(n *Node) string {
	if scope, ok := s.of[n]; ok {
		return scope
	}
	if s.of == nil {
		s.of = map[*Node]string{}
	}
	scope := ScopeOf(n.Name)
	_, input := n.Op.(Input)
	if _, number, ok := strings.Cut(n.Name, "."); input && ok && strings.Trim(number, "0123456789") == "" {
		scope = "" // PyTorch numbers values that have the same name: input.1
	} else if scope == "" {
		scope = s.origins(n.Origin)
		if f, ok := n.Op.(Fusion); ok {
			if a := f.Anchored(); a != nil {
				scope = cmp.Or(s.origins(a.Origin), scope)
			}
		}
	}
	var weights, values []string
	var last *Node // of values, the one that is made last
	if scope == "" {
		for _, a := range n.Args {
			of := s.Of(a)
			base := a
			for IsView(base.Op) || base.Op == (Copy{}) {
				base = base.Args[0]
			}
			if _, ok := base.Op.(Param); ok && of != "" {
				weights = append(weights, of)
			} else if of != "" {
				values = append(values, of)
				if last == nil || s.depth(a) > s.depth(last) {
					last = a
				}
			}
		}
	}
	if scope == "" {
		scope = commonPath(weights)
	}
	if scope == "" && n.Phase != Optimiser {
		switch {
		case len(weights) > 0:
			scope = weights[0]
		case len(values) > 0:
			scope = commonPath(values)
			of := s.Of(last)
			if next, _, _ := strings.Cut(strings.TrimPrefix(of[len(scope):], "/"), "/"); scope == "" || next != "" &&
				isDigit(next[len(next)-1]) {
				scope = of
			}
		}
	}
	s.of[n] = scope
	return scope
}

// depth is the length of the longest path from a source to n.
func (s *Scopes) depth(n *Node) int {
	d, ok := s.deep[n]
	if ok {
		return d
	}
	if s.deep == nil {
		s.deep = map[*Node]int{}
	}
	for _, a := range n.Args {
		d = max(d, s.depth(a)+1)
	}
	s.deep[n] = d
	return d
}

// origins is the path that the scopes of origins have in common. Launches may share one list of many origins.
func (s *Scopes) origins(list []Origin) string {
	list = list[:min(len(list), manyOrigins)]
	if len(list) == 0 {
		return ""
	}
	if len(s.last) == len(list) && &s.last[0] == &list[0] {
		return s.path
	}
	var all []string
	for _, o := range list {
		if scope := ScopeOf(o.Name); scope != "" {
			all = append(all, scope)
		}
	}
	s.last, s.path = list, commonPath(all)
	return s.path
}

// commonPath is the path with which all of the given ones begin.
func commonPath(paths []string) string {
	if len(paths) == 0 {
		return ""
	}
	common := paths[0]
	for _, p := range paths[1:] {
		for common != "" && p != common && !strings.HasPrefix(p, common+"/") {
			common = common[:max(strings.LastIndexByte(common, '/'), 0)]
		}
	}
	return common
}
