package dot

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"fusec/graph"
)

// part is a line of a fusion's formula: a value that is read several times or handed out, or a piece of a long expression.
type part struct {
	name string // what other parts call the value; empty if nothing reads it
	text string // such as "gelu(x @ w + b)"
}

// formula is the part as an equation, or without its name if nothing reads it.
func (p part) formula() string {
	if p.name == "" {
		return p.text
	}
	return p.name + " = " + p.text
}

// maxInline is the length, in characters, up to which an expression is written inside another.
const maxInline = 44

// condenser turns a body into parts.
type condenser struct {
	consts folds
	uses   map[*graph.Node]int
	inline map[*graph.Node]bool // written at its reader
	names  map[*graph.Node]string
	slices map[*graph.Node]func(part string) string // the names of parts of a value, or "" for other parts
}

// condense cuts a body into parts. args names the operands, and slices parts of them.
func condense(body *graph.Graph, args []string, slices map[int]func(part string) string) []part {
	c := &condenser{consts: foldable(body), uses: make(map[*graph.Node]int), inline: make(map[*graph.Node]bool),
		names: make(map[*graph.Node]string), slices: make(map[*graph.Node]func(string) string)}
	for _, n := range body.Nodes {
		if passes(n) {
			continue
		}
		for _, a := range n.Args {
			c.uses[c.base(a)]++
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
				c.slices[n] = slices[input]
			}
			input++
		}
	}
	var parts []part
	for _, n := range body.Nodes {
		if _, folded := c.consts[n]; folded || passes(n) || graph.IsSource(n.Op) {
			continue
		}
		text := c.write(n, graph.BindLoose)
		if c.uses[n] == 1 && !outputs[n] && utf8.RuneCountInString(text) <= maxInline {
			c.inline[n] = true
			continue
		}
		p := part{text: text}
		if c.uses[n] > 0 {
			p.name = unused(symbol(n), taken)
			c.names[n] = p.name
		}
		parts = append(parts, p)
	}
	return parts
}

// sliced says which part of a value the views down to n take: [8:16], or nothing for all of it.
func sliced(n *graph.Node, consts folds) (part string) {
	for ; passes(n); n = n.Args[0] {
		s, ok := n.Op.(graph.Slice)
		if !ok {
			continue
		}
		lo, fixed := consts[n.Args[1]]
		switch {
		case !fixed:
			part = "[…]" + part
		case s.Step == 1:
			part = fmt.Sprintf("[%d:%d]", lo.Int(0), lo.Int(0)+int64(s.Size)) + part
		default:
			part = fmt.Sprintf("[%d::%d]", lo.Int(0), s.Step) + part
		}
	}
	return part
}

// formulaOf writes the operation of a node outside a fusion. args names the operands, and slices parts of them.
func formulaOf(n *graph.Node, args []string, slices map[int]func(part string) string, consts folds) string {
	c := &condenser{consts: consts, names: make(map[*graph.Node]string), slices: make(map[*graph.Node]func(string) string)}
	for i, a := range n.Args {
		c.slices[c.base(a)] = slices[i]
		// operand adds the part that is read
		c.names[c.base(a)] = strings.TrimSuffix(args[i], sliced(a, consts))
	}
	return c.write(n, graph.BindLoose)
}

// passes reports whether n is only another name for its operand, or for a part of it.
func passes(n *graph.Node) bool {
	_, result := n.Op.(graph.Result)
	return result || graph.IsView(n.Op)
}

// base looks through views and Results.
func (c *condenser) base(n *graph.Node) *graph.Node {
	for {
		if _, folded := c.consts[n]; folded || !passes(n) {
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
	if op, ok := n.Op.(graph.Reduce); ok {
		return op.Fn.Info().Symbol
	}
	anchor, _ := graph.AnchorOf(n.Op)
	if anchor.Contracts() || graph.KindOf(n.Op) == graph.KindPool || graph.ClassOf(n.Op) == graph.ClassIndex {
		return "y"
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
	if part := sliced(n, c.consts); part != "" {
		if of := c.slices[b]; of != nil && of(part) != "" {
			return of(part)
		}
		return c.operand(b, graph.BindAtom) + part
	}
	if v, ok := c.consts[b]; ok {
		return scalar(v)
	}
	if c.inline[b] {
		return c.write(b, bind)
	}
	if k, ok := b.Op.(graph.Const); ok {
		return "const " + k.Value.Type.String()
	}
	return c.names[b]
}

// write writes the operation of n. An expression that binds less than its surroundings gets brackets.
func (c *condenser) write(n *graph.Node, around graph.Binding) string {
	args := func(words ...string) string {
		list := make([]string, 0, len(n.Args)+len(words))
		for _, a := range n.Args {
			if v, ok := c.consts[c.base(a)]; ok && n.Op.OpName() == "rope" && v.Type.DType.IsInt() && v.Int(0) == 0 {
				continue // positions begin at 0 unless the user says otherwise
			}
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
		return bracket(c.matmul(op, n), graph.BindProduct, around)
	case graph.MoE:
		return c.mixture(op, n)
	case graph.MoEGrad:
		return c.mixture(op.MoE(), n)
	}
	return opName(n.Op) + args(attrWords(n)...)
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
