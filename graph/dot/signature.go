package dot

import (
	"fmt"
	"strings"

	"fusec/graph"
)

// signatures numbers nodes by what they compute. Equal numbers mean the same operation with the same attributes and
// bodies on operands of the same types. Names, origins and the operands themselves are ignored.
type signatures struct {
	consts folds
	number map[string]int
}

func newSignatures(consts folds) *signatures {
	return &signatures{consts: consts, number: make(map[string]int)}
}

// of is the node's number.
func (s *signatures) of(n *graph.Node) int {
	key := s.text(n)
	k, ok := s.number[key]
	if !ok {
		k = len(s.number)
		s.number[key] = k
	}
	return k
}

func (s *signatures) text(n *graph.Node) string {
	var b strings.Builder
	writeOp(&b, n.Op)
	b.WriteString(n.Type.String())
	for _, a := range n.Args {
		b.WriteByte('(')
		b.WriteString(a.Type.String())
		if v, ok := s.consts[a]; ok {
			fmt.Fprintf(&b, "=%v", v.Data)
		}
		b.WriteByte(')')
	}
	return b.String()
}

// writeOp writes an operation with all attributes and, for a fusion, the whole body.
func writeOp(b *strings.Builder, op graph.Op) {
	b.WriteString(op.OpName())
	for _, a := range attributes(op) {
		fmt.Fprintf(b, " %s=%v", a.key, a.value)
	}
	switch op := op.(type) {
	case graph.Const:
		fmt.Fprintf(b, " %v", op.Value.Type)
		if v, same := (&graph.Node{Op: op}).Uniform(); same {
			fmt.Fprintf(b, " %v", v.Data)
		}
	case graph.Fusion:
		at := make(map[*graph.Node]int, len(op.Body.Nodes))
		b.WriteByte('{')
		for i, n := range op.Body.Nodes {
			at[n] = i
			writeOp(b, n.Op)
			b.WriteString(n.Type.String())
			for _, a := range n.Args {
				fmt.Fprintf(b, " %%%d", at[a])
			}
			b.WriteByte(';')
		}
		for _, o := range op.Body.Outputs {
			fmt.Fprintf(b, " %%%d", at[o.Node])
		}
		b.WriteByte('}')
	}
}
