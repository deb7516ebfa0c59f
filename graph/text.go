package graph

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
)

// The text form of a graph can be read, compared line by line and written by hand:
//
//	fusec graph 1 "mlp" {
//	  # one node a line; # starts a comment
//	  x = input : f32[64,784]
//	  w = param : f32[784,10]                   @ "mlp.go:14"
//	  h = matmul x w : f32[64,10]               @ "mlp.go:31"
//	  %3 = unary[fn=relu] h : f32[64,10]        @ "mlp.go:32" activation
//	  m = state : f32[]
//	  %9 half = const[value=0.5] : f32[]
//	  mask = const[weights="fusec.const/10"] : f32[64,10]
//	  %11 = fusion[anchor=none kind=elementwise] %3 mask : f32[64,10] {
//	    %0 = input : f32[64,10]
//	    %1 = input : f32[64,10]
//	    %2 = binary[fn=mul] %0 %1 : f32[64,10]
//	    output "" = %2
//	  }
//	  output y = %11
//	  update m = half
//	  note divergence pool-padding "pool: Gorgonia begins with the south padding" h
//	}
//
// A program that trains may end like this, from version 2 on; in a file of version 1 these statements and phases are errors:
//
//	  %8 = matmul[trans_a=true] x dh : f32[784,10] backward
//	  output cost = cost
//	  mark %8 = cost by w wanted
//	  gradient "gradient of x" = cost by x
//	  optimiser adamw[rate=0.001 clip=1]
//	  step w = cost value %8
//	}
//
// A program of several participants, from version 3 on, begins with their mesh, and says how its sources are laid over it:
//
//	fusec graph 3 "linear" {
//	  mesh data=2 tensor=4
//	  x = input : f32[64,784] split [data,_]
//	  w = param : f32[784,512] split [_,tensor]
//	  h = matmul x w : f32[64,512]
//	  output h = h
//	}
//
// The grammar, in which { } repeats, [ ] may be absent, and quotes are literal:
//
//	file    = "fusec" "graph" ("1" | "2" | "3") [name] block
//	block   = "{" EOL { statement EOL } "}"
//	statement = node | "output" name "=" operand | "update" operand "=" operand | note | training | mesh
//	training = "gradient" name "=" operand "by" operand ["seed" operand] ["value" operand] ["wanted"]
//	         | "mark" operand ["=" operand] "by" operand ["seed" operand] ["wanted"]
//	         | "optimiser" word [attrs]
//	         | "step" operand ["=" operand] ["seed" operand] ["value" operand] ["rate" word] ["nodecay"]
//	mesh    = "mesh" word "=" digits { word "=" digits } ["parts"]
//	note    = "note" word [word] string [operand]
//	node    = [id] [name] "=" word [attrs] { operand } [":" type [phase] [split]] { origin } [block]
//	phase   = "forward" | "backward" | "optimiser"
//	split   = "split" list
//	origin  = "@" string [name] | "for" name
//	attrs   = "[" { word "=" value } "]"
//	value   = word | string | list
//	list    = "[" [ word { "," word } ] "]"
//	operand = id | name
//	id      = "%" digits
//	name    = word | string
//	type    = word [list]
//
//   - A word is made of letters, digits and _ . / - +. A name that starts with a letter or underscore and has no + is
//     written bare; any other, and the words output, update and for, in quotes with Go's escapes.
//   - The words note, gradient, mark, optimiser, step and mesh begin a statement unless an equals sign follows.
//   - An operand precedes its readers. A name that several nodes have cannot be used as an operand. Such nodes are
//     written with their IDs, and a name may be repeated only with an ID.
//   - A node without an ID gets the one after the highest so far. If IDs are far larger than the number of nodes, the
//     nodes are numbered from 0 after reading.
//   - The type after the colon is checked against the type rule. It may be absent except for operations whose type does
//     not follow from their operands: input, param, state, const, random, host.
//   - A node without a phase belongs to the forward pass. See [Phase].
//   - Attributes are as [Attrs] lists them; those that it always lists are required. A const has either value, a number
//     or a flat list in row-major order, or weights, the name of a tensor in the weights file. Values of floating-point
//     numbers are exact; inf, -inf and nan are numbers.
//   - @ gives an origin: the position, and the name if it differs from the node's; "for" gives an origin with a name
//     only. A node without any position gets that of its own line when read.
//   - The block of a fusion is its body; the attribute body is the body's name, if it has one.
//   - A note has a kind, a topic unless its kind is remark, a text, and the node that it is about. See [Note].
//   - gradient asks for an output, the gradient of the cost right of the equals sign by a node. mark says that a node of
//     the graph is such a gradient; a mark without a cost belongs to a cost that is not known. A seed is what the cost's
//     own gradient is, 1 if absent; a value is the node that computes the gradient; wanted is [GradMark.Wanted].
//   - optimiser gives the rule and the settings by which a run changes the parameters that the steps after it name, each
//     by the gradient of a cost or by a value. rate is a factor of the learning rate. See [fusec/graph/optim].
//   - mesh arranges the participants that run the program; see [Mesh]. It comes before the nodes. split says of an input,
//     parameter or state, axis by axis, along which axes of the mesh it is split into equal parts: _ for none, and names joined
//     by + for several. With parts the values are those of one participant, and split says of what they are parts. Else a source
//     without it gets the sharding that suits its readers.
//   - Host operations are written without their code and load without it.

// Version is the version of the text form. Files of earlier versions are read. Version 2 adds phases,
// gradients and the optimiser, version 3 meshes and shardings. A graph is written in the first version that has all of it.
const Version = 3

// Bounds of the text form, so that no input makes the reader allocate without limit. The number of elements of all
// nodes of a file together is bounded by [MaxElems], and the nesting of bodies by [Verify].
const (
	MaxText  = 1 << 26 // bytes of a file
	MaxLine  = 1 << 20 // bytes of a line
	MaxNodes = 1 << 18 // nodes of a file, bodies included
	MaxID    = 1 << 30 // of a node
)

// constPrefix begins the names of constants in the weights file. No parameter may have such a name.
const constPrefix = "fusec.const"

const (
	keywordOutput = "output"
	keywordUpdate = "update"
	keywordFor    = "for"
	keywordNote   = "note" // if no '=' follows

	keywordMesh  = "mesh"  // if no '=' follows
	keywordSplit = "split" // behind a type
	keywordParts = "parts" // behind a mesh

	keywordGradient  = "gradient" // if no '=' follows, as the next three
	keywordMark      = "mark"
	keywordOptimiser = "optimiser"
	keywordStep      = "step"

	keywordBy      = "by" // between the operands of these statements
	keywordSeed    = "seed"
	keywordValue   = "value"
	keywordWanted  = "wanted"
	keywordRate    = "rate"
	keywordNoDecay = "nodecay"
)

var trainingKeywords = []string{keywordGradient, keywordMark, keywordOptimiser, keywordStep}

// Print writes the graph in the text form. The same graph gives the same bytes. Constants of more than [MaxInline]
// elements are named only; [Constants] has them.
func Print(g *Graph) string {
	p := printer{version: 1}
	p.block(g, "", constPrefix)
	name := ""
	if g.Name != "" {
		name = strconv.Quote(g.Name) + " "
	}
	return fmt.Sprintf("fusec graph %d %s%s\n", p.version, name, p.b.Bytes())
}

// Constants returns the constants that the text form does not contain, by the names that it uses for them.
func Constants(g *Graph) map[string]*Tensor {
	m := map[string]*Tensor{}
	constants(m, g, constPrefix)
	return m
}

func constants(m map[string]*Tensor, g *Graph, path string) {
	for _, n := range g.Nodes {
		switch op := n.Op.(type) {
		case Const:
			if op.Value.Type.Shape.Elems() > MaxInline {
				m[constName(path, n)] = op.Value
			}
		case Fusion:
			constants(m, op.Body, constName(path, n))
		}
	}
}

// constName is the name of a constant, or the path of those in a fusion's body.
func constName(path string, n *Node) string { return path + "/" + strconv.Itoa(n.ID) }

type printer struct {
	b       bytes.Buffer
	version int // that the graph needs
}

// block writes the statements of a graph in braces.
func (p *printer) block(g *Graph, indent, path string) {
	named := make(map[string]int)
	for _, n := range g.Nodes {
		named[n.Name]++
	}
	ref := func(n *Node) string {
		if n.Name != "" && named[n.Name] == 1 {
			return quoteName(n.Name)
		}
		return "%" + strconv.Itoa(n.ID)
	}
	p.b.WriteString("{\n")
	inner := indent + "  "
	if len(g.Mesh) > 0 {
		p.version = 3
		p.b.WriteString(inner + keywordMesh + " " + strings.ReplaceAll(g.Mesh.String(), ",", " "))
		if g.Parts {
			p.b.WriteString(" " + keywordParts)
		}
		p.b.WriteByte('\n')
	}
	next := 0
	for _, n := range g.Nodes {
		p.b.WriteString(inner)
		if n.Name == "" || n.ID != next || named[n.Name] > 1 {
			fmt.Fprintf(&p.b, "%%%d ", n.ID)
		}
		next = max(next, n.ID+1)
		if n.Name != "" {
			p.b.WriteString(quoteName(n.Name) + " ")
		}
		p.b.WriteString("= " + n.Op.OpName() + attrText(n, path))
		for _, a := range n.Args {
			p.b.WriteString(" " + ref(a))
		}
		p.b.WriteString(" : " + n.Type.String())
		if n.Phase != Forward {
			p.b.WriteString(" " + n.Phase.String())
			p.version = max(p.version, 2)
		}
		if n.Sharding.Given {
			p.b.WriteString(" " + keywordSplit + " " + n.Sharding.Text(g.Mesh, n.Type.Shape.Rank()))
		}
		p.origins(n)
		if f, ok := n.Op.(Fusion); ok {
			p.b.WriteByte(' ')
			p.block(f.Body, inner, constName(path, n))
		}
		p.b.WriteByte('\n')
	}
	for _, o := range g.Outputs {
		fmt.Fprintf(&p.b, "%s%s %s = %s\n", inner, keywordOutput, quoteName(o.Name), ref(o.Node))
	}
	for _, u := range g.Updates {
		fmt.Fprintf(&p.b, "%s%s %s = %s\n", inner, keywordUpdate, ref(u.Target), ref(u.Value))
	}
	p.training(g, inner, ref)
	for _, n := range g.Notes {
		fmt.Fprintf(&p.b, "%s%s %v ", inner, keywordNote, n.Kind)
		if n.Topic != "" {
			p.b.WriteString(n.Topic + " ")
		}
		p.b.WriteString(strconv.Quote(n.Text))
		if n.Node != nil {
			p.b.WriteString(" " + ref(n.Node))
		}
		p.b.WriteByte('\n')
	}
	p.b.WriteString(indent + "}")
}

// origins writes the node's origins, except the node itself at an unknown position.
func (p *printer) origins(n *Node) {
	if len(n.Origin) == 1 && n.Origin[0] == (Origin{Name: n.Name}) {
		return
	}
	for _, o := range n.Origin {
		if o.Pos == "" {
			p.b.WriteString(" " + keywordFor + " " + quoteName(o.Name))
			continue
		}
		p.b.WriteString(" @ " + strconv.Quote(o.Pos))
		if o.Name != n.Name {
			p.b.WriteString(" " + quoteName(o.Name))
		}
	}
}

// attrText is a node's attributes in brackets, or nothing.
func attrText(n *Node, path string) string {
	attrs := Attrs(n.Op)
	switch op := n.Op.(type) {
	case Const:
		if len(attrs) == 0 {
			attrs = []Attr{{attrWeights, strconv.Quote(constName(path, n))}}
		}
	case Fusion:
		if op.Body.Name != "" {
			attrs = append(attrs, Attr{attrBody, strconv.Quote(op.Body.Name)})
		}
	}
	return attrList(attrs)
}

// attrList is attributes in brackets, or nothing.
func attrList(attrs []Attr) string {
	if len(attrs) == 0 {
		return ""
	}
	var b strings.Builder
	for i, a := range attrs {
		b.WriteByte("[ "[min(i, 1)])
		b.WriteString(a.Name + "=" + a.Value)
	}
	b.WriteByte(']')
	return b.String()
}

// Attributes of the text form that are no fields.
const (
	attrValue   = "value"   // of a const: its elements
	attrWeights = "weights" // of a const: where its elements are
	attrBody    = "body"    // of a fusion: its body's name
)
