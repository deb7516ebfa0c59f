package graph

import (
	"encoding"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nodeText is the content of a node's line.
type nodeText struct {
	start    token // of the line
	id       int
	name     string
	op       token
	info     *OpInfo
	attrs    []Attr
	attrAt   []token // of the attributes' values
	args     []*Node
	typ      Type
	typeAt   token // kind tokenEOF if there is no type
	phase    Phase
	sharding Sharding
	origins  []Origin
	body     *Graph
}

// node reads one node. If there is an error right of the equals sign, the name and ID are defined nevertheless, so that
// readers of the node are not reported, too.
func (p *parser) node(sc *scope) error {
	t := nodeText{start: p.tok}
	if err := p.define(sc, &t); err != nil {
		return err
	}
	def := &definition{line: t.start.line}
	err := p.expression(sc, &t)
	if err == nil {
		def.node, err = p.build(sc, &t)
		p.report(err) // the line has been read to its end
		err = nil
	}
	sc.byID[t.id] = def
	if t.name != "" {
		if old := sc.byName[t.name]; old != nil {
			sc.byName[t.name] = &definition{line: old.line, ambiguous: true}
		} else {
			sc.byName[t.name] = def
		}
	}
	sc.g.nextID = max(sc.g.nextID, t.id+1)
	return err
}

// define reads what is left of the equals sign.
func (p *parser) define(sc *scope, t *nodeText) error {
	t.id = sc.g.nextID
	explicit := p.tok.kind == tokenID
	if explicit {
		id, err := p.id(p.tok)
		if err != nil {
			return err
		}
		if old := sc.byID[id]; old != nil {
			return p.fail(p.tok, "%v is defined twice, first in line %d", p.tok, old.line)
		}
		t.id = id
		p.advance()
	}
	if t.id > MaxID {
		return p.fail(t.start, "no ID up to %d is left", MaxID)
	}
	if !p.tok.is("=") {
		at := p.tok
		name, err := p.name("a node, output, update or '}'")
		if err != nil {
			return err
		}
		if old := sc.byName[name]; old != nil && !explicit {
			return p.fail(at, "%v is defined twice, first in line %d; nodes that share a name need IDs", at, old.line)
		}
		t.name = name
	}
	return nil
}

// expression reads the equals sign and what is right of it, to the end of the line or of the body.
func (p *parser) expression(sc *scope, t *nodeText) error {
	if err := p.want("="); err != nil {
		return err
	}
	t.op = p.tok
	if t.op.kind != tokenWord {
		return p.expected("an operation")
	}
	if t.info = OpByName(t.op.text); t.info == nil {
		return p.fail(t.op, "unknown operation %q%s", t.op.text, functionOf(t.op.text))
	}
	p.advance()
	if p.tok.is("[") {
		if err := p.attributes(t); err != nil {
			return err
		}
	}
	if err := p.operands(sc, t); err != nil {
		return err
	}
	if p.accept(":") {
		t.typeAt = p.tok
		var err error
		if t.typ, err = p.typeName(); err != nil {
			return err
		}
		if p.tok.kind == tokenWord && p.tok.text != keywordFor && p.tok.text != keywordSplit {
			if t.phase.UnmarshalText([]byte(p.tok.text)) != nil {
				return p.expected("a phase (" + strings.Join(phases[:], ", ") + ") or the end of the line")
			}
			if err := p.since(2, p.tok, "a phase"); err != nil {
				return err
			}
			p.advance()
		}
		if p.tok.kind == tokenWord && p.tok.text == keywordSplit {
			if err := p.split(sc, t); err != nil {
				return err
			}
		}
	}
	if err := p.origins(t); err != nil {
		return err
	}
	if _, ok := t.info.Proto.(Fusion); ok {
		if !p.tok.is("{") {
			return p.expected("'{' and the fusion's body")
		}
		errs := len(p.errs)
		t.body = New("")
		p.block(newScope(t.body, sc.depth+1))
		if len(p.errs) > errs {
			return errReported
		}
	}
	return p.endLine()
}

// operands reads as many operands as the operation takes.
func (p *parser) operands(sc *scope, t *nodeText) error {
	takes := func() string {
		s := fmt.Sprintf("%s takes %s", t.info.Name, t.info.arity())
		if t.info.Operands != "" {
			s += ": " + t.info.Operands
		}
		return s
	}
	var reported error
	for p.tok.isOperand() {
		if t.info.MaxArgs >= 0 && len(t.args) == t.info.MaxArgs {
			return p.fail(p.tok, "expected ':' or the end of the line, found operand %v; %s", p.tok, takes())
		}
		n, err := p.operand(sc)
		if err != nil && err != errReported {
			return err
		}
		if err != nil {
			reported = err
		}
		t.args = append(t.args, n)
	}
	if len(t.args) < t.info.MinArgs {
		return p.fail(p.tok, "expected an operand, found %v; %s", p.tok, takes())
	}
	return reported
}

// attributes reads the list in brackets.
func (p *parser) attributes(t *nodeText) error {
	p.advance()
	for !p.accept("]") {
		name, err := p.name("an attribute or ']'")
		if err != nil {
			return err
		}
		if err := p.want("="); err != nil {
			return err
		}
		at := p.tok
		value, err := p.value()
		if err != nil {
			return err
		}
		t.attrs = append(t.attrs, Attr{name, value})
		t.attrAt = append(t.attrAt, at)
	}
	return nil
}

// value reads a word, a string (which stays quoted) or a list.
func (p *parser) value() (string, error) {
	switch {
	case p.tok.kind == tokenWord || p.tok.kind == tokenString:
		return p.advance().raw, nil
	case p.tok.is("["):
		elems, err := p.list()
		return "[" + strings.Join(elems, ",") + "]", err
	}
	return "", p.expected("a value")
}

// list reads [a,b].
func (p *parser) list() ([]string, error) { return p.words("a number") }

// words reads a list whose elements are of some kind.
func (p *parser) words(of string) ([]string, error) {
	p.advance()
	var elems []string
	for !p.accept("]") {
		if len(elems) > 0 {
			if err := p.want(","); err != nil {
				return nil, err
			}
		}
		if p.tok.kind != tokenWord {
			return nil, p.expected(of)
		}
		elems = append(elems, p.advance().text)
	}
	return elems, nil
}

// typeName reads f32[2,3]; f32 alone is a scalar.
func (p *parser) typeName() (t Type, err error) {
	at := p.tok
	if at.kind != tokenWord {
		return t, p.expected("a type such as f32[2,3]")
	}
	if t.DType, err = ParseDType(at.text); err != nil {
		return t, p.fail(at, "%w", err)
	}
	p.advance()
	if !p.tok.is("[") {
		return t, nil
	}
	dims, err := p.list()
	if err != nil {
		return t, err
	}
	l, err := parseInts("[" + strings.Join(dims, ",") + "]")
	if err != nil {
		return t, p.fail(at, "%w", err)
	}
	t.Shape = Shape{l}
	if err := t.Shape.Check(); err != nil {
		return t, p.fail(at, "%w", err)
	}
	return t, nil
}

// origins reads the annotations. The line is the position if none is given.
func (p *parser) origins(t *nodeText) error {
	positioned := false
	for {
		if p.tok.kind == tokenWord && p.tok.text == keywordFor {
			p.advance()
			name, err := p.name("the name of the origin of the node")
			if err != nil {
				return err
			}
			t.origins = append(t.origins, Origin{Name: name})
			continue
		}
		if !p.accept("@") {
			break
		}
		if p.tok.kind != tokenString {
			return p.expected(`a position such as "model.go:88"`)
		}
		o := Origin{Name: t.name, Pos: p.advance().text}
		if p.tok.kind == tokenString || p.tok.kind == tokenWord && isBareName(p.tok.text) && p.tok.text != keywordFor {
			o.Name = p.advance().text
		}
		positioned = positioned || o.Pos != ""
		t.origins = append(t.origins, o)
	}
	if positioned {
		return nil
	}
	if len(t.origins) == 0 {
		t.origins = []Origin{{Name: t.name}}
	}
	t.origins[0].Pos = p.base + ":" + strconv.Itoa(t.start.line)
	return nil
}

// build adds the node that a line describes to the graph.
func (p *parser) build(sc *scope, t *nodeText) (*Node, error) {
	if p.nodes++; p.nodes > MaxNodes {
		p.fatal(t.start, "more than %d nodes", MaxNodes)
		return nil, errReported
	}
	op, err := p.operation(t)
	if err != nil {
		return nil, err
	}
	if IsSource(op) {
		if sc.depth == 0 {
			if t.name == "" {
				return nil, p.fail(t.start, "an %s needs a name", t.info.Name)
			}
			if sc.sources[t.name] {
				return nil, p.fail(t.start, "two sources are named %q", t.name)
			}
			sc.sources[t.name] = true
		} else if _, ok := op.(Input); !ok {
			return nil, p.fail(t.op, "a fusion's body holds only inputs")
		}
	}
	next := sc.g.nextID
	n, err := sc.g.Add(op, t.args...)
	sc.g.nextID = next
	if err != nil {
		if _, ok := op.(Custom); ok && t.name != "" { // whoever runs the file looks for what is missing in a program
			err = fmt.Errorf("node %q: %w", t.name, err)
		}
		return nil, p.fail(t.op, "%w", err)
	}
	n.ID, n.Name, n.Phase, n.Sharding, n.Origin = t.id, t.name, t.phase, t.sharding, t.origins
	if t.typeAt.kind != tokenEOF && t.typ != n.Type {
		return nil, p.fail(t.typeAt, "%v is %v by its operands, not %v", n, n.Type, t.typ)
	}
	if p.elems += n.Type.Shape.Elems(); p.elems > MaxElems {
		p.fatal(t.op, "the nodes have more than %d elements together", MaxElems)
		return nil, errReported
	}
	return n, nil
}

// operation makes the operation with its attributes.
func (p *parser) operation(t *nodeText) (Op, error) {
	switch proto := t.info.Proto.(type) {
	case Input, Param, State, Const, Random, Host:
		if t.typeAt.kind == tokenEOF {
			return nil, p.fail(t.op, "expected ':' and a type after %s, which has no other way to know it", t.info.Name)
		}
		if _, ok := proto.(Const); ok {
			return p.constant(t)
		}
	case Fusion:
		i := slices.IndexFunc(t.attrs, func(a Attr) bool { return a.Name == attrBody })
		if i >= 0 {
			name, err := strconv.Unquote(t.attrs[i].Value)
			if err != nil {
				return nil, p.fail(t.attrAt[i], "expected the body's name in quotes, found %v", t.attrAt[i])
			}
			t.body.Name = name
			t.attrs = slices.Delete(t.attrs, i, i+1)
			t.attrAt = slices.Delete(t.attrAt, i, i+1)
		}
	}
	op, i, err := makeOp(t.info, t.typ, t.attrs)
	if err != nil {
		at := t.op
		if i >= 0 {
			at = t.attrAt[i]
		}
		return nil, p.fail(at, "%w", err)
	}
	if f, ok := op.(Fusion); ok {
		f.Body = t.body
		op = f
	}
	return op, nil
}

// constant makes a constant from its elements or from the weights.
func (p *parser) constant(t *nodeText) (Op, error) {
	if len(t.attrs) != 1 {
		return nil, p.fail(t.op, "const needs one attribute, %s or %s", attrValue, attrWeights)
	}
	a, at := t.attrs[0], t.attrAt[0]
	switch a.Name {
	case attrValue:
		v, err := parseTensor(t.typ, a.Value)
		if err != nil {
			return nil, p.fail(at, "%w", err)
		}
		return Const{v}, nil
	case attrWeights:
		if at.kind != tokenWord && at.kind != tokenString {
			return nil, p.fail(at, "expected the name of a weight, found %v", at)
		}
		v, err := p.weights(at.text, t.typ)
		if err != nil {
			return nil, p.fail(at, "%w", err)
		}
		return Const{v}, nil
	}
	return nil, p.fail(at, "const has no attribute %q (it has %s, %s)", a.Name, attrValue, attrWeights)
}

// functionOf tells of which operations a name is a function, for errors.
func functionOf(name string) string {
	var ways []string
	for _, f := range []struct {
		op string
		fn encoding.TextUnmarshaler
	}{{"unary", new(UnaryFn)}, {"binary", new(BinaryFn)}, {"reduce", new(ReduceFn)}, {"pool", new(PoolFn)}} {
		if f.fn.UnmarshalText([]byte(name)) == nil {
			ways = append(ways, fmt.Sprintf("%s[fn=%s]", f.op, name))
		}
	}
	if len(ways) == 0 {
		return ""
	}
	return "; as a function it is written " + strings.Join(ways, " or ")
}
