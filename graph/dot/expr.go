package dot

import (
	"fmt"
	"strings"
	"unicode"

	"fusec/graph"
)

// part is a piece of a fusion's body as Compact draws it: the anchor, a reduction, or elementwise work written as one
// expression.
type part struct {
	node *graph.Node // the node whose value it is
	name string      // what other parts call that value
	text string      // such as "gelu(y + b)"
	// reads lists what the part reads, each once: inputs of the body and the nodes of other parts.
	reads []*graph.Node
	out   bool // an output of the body
}

// formula is the part as an equation, or without its name if nothing reads it.
func (p part) formula() string {
	if p.name == "" {
		return p.text
	}
	return p.name + " = " + p.text
}

// condenser turns a body into parts.
type condenser struct {
	consts folds
	uses   map[*graph.Node]int
	inline map[*graph.Node]bool // written at its reader
	names  map[*graph.Node]string
	reads  []*graph.Node // of the part being written
}

// condense cuts a body into parts. args names the operands.
func condense(body *graph.Graph, args []string) []part {
	c := &condenser{consts: foldable(body), uses: make(map[*graph.Node]int), inline: make(map[*graph.Node]bool),
		names: make(map[*graph.Node]string)}
	fusible := make(map[*graph.Node]bool) // read by elementwise work only
	for _, n := range body.Nodes {
		if graph.IsView(n.Op) {
			continue
		}
		for _, a := range n.Args {
			b := c.base(a)
			if c.uses[b]++; c.uses[b] == 1 {
				fusible[b] = graph.Joins(n.Op)
			} else {
				fusible[b] = false
			}
		}
	}
	outputs := make(map[*graph.Node]bool)
	for _, o := range body.Outputs {
		outputs[c.base(o.Node)] = true
	}
	taken := make(map[string]bool)
	input := 0
	for _, n := range body.Nodes {
		if _, ok := n.Op.(graph.Input); ok {
			if input < len(args) {
				c.names[n] = args[input]
				taken[args[input]] = true
			}
			input++
		}
	}
	var parts []part
	for _, n := range body.Nodes {
		if _, folded := c.consts[n]; folded || graph.IsView(n.Op) || graph.IsSource(n.Op) {
			continue
		}
		if graph.Joins(n.Op) && fusible[n] && !outputs[n] {
			c.inline[n] = true
			continue
		}
		p := part{node: n, out: outputs[n]}
		c.reads = nil
		p.text = c.write(n, graph.BindLoose)
		p.reads = c.reads
		if c.uses[n] > 0 {
			p.name = unused(symbol(n), taken)
			c.names[n] = p.name
		}
		parts = append(parts, p)
	}
	return parts
}

// base looks through views.
func (c *condenser) base(n *graph.Node) *graph.Node {
	for {
		if _, folded := c.consts[n]; folded || !graph.IsView(n.Op) {
			return n
		}
		n = n.Args[0]
	}
}

// symbol proposes a name for a value inside a body.
func symbol(n *graph.Node) string {
	if n.Name != "" {
		return variable(n.Name)
	}
	switch op := n.Op.(type) {
	case graph.MatMul, graph.Conv2D, graph.Pool, graph.Gather:
		return "y"
	case graph.Reduce:
		return map[graph.ReduceFn]string{graph.Sum: "s", graph.Mean: "mean", graph.Prod: "prod", graph.MaxOf: "m", graph.MinOf: "m"}[op.Fn]
	}
	return "t"
}

// unused makes a name that is not in taken and adds it there.
func unused(name string, taken map[string]bool) string {
	try := name
	for i := 1; taken[try]; i++ {
		try = fmt.Sprintf("%s%d", name, i)
	}
	taken[try] = true
	return try
}

// variable is the last component of a user's name, in the form of an identifier.
func variable(name string) string {
	fields := strings.FieldsFunc(name, func(r rune) bool { return r == '.' || r == '/' || r == ':' || unicode.IsSpace(r) })
	for len(fields) > 1 && !strings.ContainsFunc(fields[len(fields)-1], unicode.IsLetter) {
		fields = fields[:len(fields)-1]
	}
	if len(fields) == 0 {
		return "x"
	}
	return short(fields[len(fields)-1], 16)
}

// operand writes a value as an operand.
func (c *condenser) operand(n *graph.Node, bind graph.Binding) string {
	b := c.base(n)
	if v, ok := c.consts[b]; ok {
		return scalar(v)
	}
	if c.inline[b] {
		return c.write(b, bind)
	}
	if k, ok := b.Op.(graph.Const); ok {
		return "const " + k.Value.Type.String()
	}
	seen := false
	for _, r := range c.reads {
		seen = seen || r == b
	}
	if !seen {
		c.reads = append(c.reads, b)
	}
	return c.names[b]
}

// write writes the operation of n. An expression that binds less than its surroundings gets brackets.
func (c *condenser) write(n *graph.Node, around graph.Binding) string {
	args := func(words ...string) string {
		list := make([]string, 0, len(n.Args)+len(words))
		for _, a := range n.Args {
			list = append(list, c.operand(a, graph.BindLoose))
		}
		return "(" + strings.Join(append(list, words...), ", ") + ")"
	}
	switch op := n.Op.(type) {
	case graph.Unary:
		if form := op.Fn.Info().Form; form.Bind > graph.BindLoose {
			return bracket(form.Sign+c.operand(n.Args[0], form.Right)+form.After, form.Bind, around)
		}
		if op.Fn.HasAlpha() {
			return op.Fn.String() + args(number(op.Alpha))
		}
		return op.Fn.String() + args()
	case graph.Binary:
		form := op.Fn.Info().Form
		if form.Bind == graph.BindLoose {
			return form.Sign + args()
		}
		return bracket(infix(op.Fn, c.operand(n.Args[0], form.Left), c.operand(n.Args[1], form.Right)), form.Bind, around)
	case graph.Select:
		return "where" + args()
	case graph.Cast:
		return op.To.String() + args()
	case graph.Dropout:
		return "dropout" + fmt.Sprintf("(%s, %s)", c.operand(n.Args[0], graph.BindLoose), number(op.P))
	case graph.Reduce:
		return op.Fn.String() + args()
	case graph.MatMul:
		return c.matmul(op, n)
	case graph.MoE:
		return c.mixture(op, n)
	case graph.MoEGrad:
		return c.mixture(op.MoE(), n)
	}
	return opName(n.Op) + args(attrWords(n.Op)...)
}

// matmul writes a product with transposes as primes: a @ b'.
func (c *condenser) matmul(op graph.MatMul, n *graph.Node) string {
	a, b := c.operand(n.Args[0], graph.BindPower), c.operand(n.Args[1], graph.BindPower)
	if op.TransA {
		a += "'"
	}
	if op.TransB {
		b += "'"
	}
	return a + " @ " + b
}

// mixture writes a mixture of experts, or its gradient, with a description instead of its many weights.
func (c *condenser) mixture(op graph.MoE, n *graph.Node) string {
	var names []string
	for i, a := range n.Args {
		if name := c.operand(a, graph.BindLoose); i < 2 {
			names = append(names, name)
		}
	}
	words := append(names, plural(op.Experts, "expert"))
	switch {
	case op.Dense:
		words = append(words, "all open")
	case op.TopK > 0:
		words = append(words, fmt.Sprintf("top %d", op.TopK))
	}
	words = append(words, op.Activation.String())
	if op.Gated {
		words = append(words, "gated")
	}
	return opName(n.Op) + "(" + strings.Join(words, ", ") + ")"
}

func bracket(s string, bind, around graph.Binding) string {
	if bind < around {
		return "(" + s + ")"
	}
	return s
}
