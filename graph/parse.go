package graph

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// maxErrors is how many errors Parse reports.
const maxErrors = 10

// ParseError is an error at a position in a file.
type ParseError struct {
	File      string
	Line, Col int // from 1; columns count bytes
	Err       error
}

// Error gives the error as file:line:col: message.
func (e *ParseError) Error() string {
	return fmt.Sprintf("%s:%d:%d: %v", e.File, e.Line, e.Col, e.Err)
}

// Unwrap returns the error without its position.
func (e *ParseError) Unwrap() error { return e.Err }

// Lookup finds the tensor of the given name and type in the weights. It is called for constants that the text form does
// not contain.
type Lookup func(name string, t Type) (*Tensor, error)

// LookupIn looks tensors up in a map, such as that of [Constants].
func LookupIn(m map[string]*Tensor) Lookup {
	return func(name string, t Type) (*Tensor, error) {
		v := m[name]
		if v == nil {
			return nil, fmt.Errorf("no weight %q", name)
		}
		if v.Type != t {
			return nil, fmt.Errorf("weight %q is %v, not %v", name, v.Type, t)
		}
		return v, nil
	}
}

// Parse reads the text form of a graph and verifies the graph. The file's name is used in errors and as the position of
// nodes that have none. weights may be nil if there are none. The error joins up to ten of type *[ParseError].
func Parse(file string, src []byte, weights Lookup) (*Graph, error) {
	if weights == nil {
		weights = LookupIn(nil)
	}
	text := strings.TrimPrefix(string(src), "\ufeff") // the byte order mark that editors for Windows write
	p := &parser{file: file, base: filepath.Base(file), weights: weights, lex: lexer{src: text, line: 1}}
	if !p.fits() {
		return nil, errors.Join(p.errs...)
	}
	p.advance()
	g := p.graph()
	if len(p.errs) > 0 {
		return nil, errors.Join(p.errs...)
	}
	if err := errors.Join(Verify(g), g.checkBackward()); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return g, nil
}

type parser struct {
	file, base string
	weights    Lookup
	version    int // of the file
	lex        lexer
	tok        token
	errs       []error
	stopped    bool // too many errors, or a bound was exceeded
	nodes      int
	elems      int
}

// scope is one block: the file's graph or the body of a fusion.
type scope struct {
	g       *Graph
	depth   int
	byName  map[string]*definition
	byID    map[int]*definition
	sources map[string]bool
	outputs map[string]bool
	updated map[*Node]bool
}

// definition is the node of a name or ID.
type definition struct {
	node      *Node // nil if the line had an error
	line      int
	ambiguous bool // several nodes have the name
}

func newScope(g *Graph, depth int) *scope {
	return &scope{g, depth, map[string]*definition{}, map[int]*definition{}, map[string]bool{}, map[string]bool{}, map[*Node]bool{}}
}

// errReported is returned where an error has been reported before, as for the use of a node whose line was wrong.
var errReported = errors.New("reported before")

// fits checks the size of the file and of its lines.
func (p *parser) fits() bool {
	src := p.lex.src
	if len(src) > MaxText {
		p.fatal(token{line: 1, col: 1}, "the file has %d bytes, more than %d", len(src), MaxText)
		return false
	}
	line := 0
	for l := range strings.Lines(src) {
		if line++; len(l) > MaxLine {
			p.fatal(token{line: line, col: 1}, "the line has more than %d bytes", MaxLine)
			return false
		}
	}
	return true
}

// fail makes an error at t.
func (p *parser) fail(t token, format string, a ...any) error {
	return &ParseError{p.file, t.line, t.col, fmt.Errorf(format, a...)}
}

// expected makes the error that another token was found instead of want.
func (p *parser) expected(want string) error {
	if p.tok.kind == tokenBad {
		return p.fail(p.tok, "expected %s, found %s", want, p.tok.text)
	}
	return p.fail(p.tok, "expected %s, found %v", want, p.tok)
}

// report records an error, which Parse returns.
func (p *parser) report(err error) {
	if err == nil || err == errReported || p.stopped {
		return
	}
	if p.errs = append(p.errs, err); len(p.errs) == maxErrors {
		p.stop()
	}
}

// fatal reports an error and stops reading.
func (p *parser) fatal(t token, format string, a ...any) {
	p.report(p.fail(t, format, a...))
	p.stop()
}

func (p *parser) stop() {
	p.stopped = true
	p.lex.pos = len(p.lex.src)
	p.tok = token{}
}

func (p *parser) advance() token {
	t := p.tok
	if !p.stopped {
		p.tok = p.lex.next()
	}
	return t
}

// accept consumes the token if it is s.
func (p *parser) accept(s string) bool {
	if !p.tok.is(s) {
		return false
	}
	p.advance()
	return true
}

func (p *parser) want(s string) error {
	if !p.accept(s) {
		return p.expected("'" + s + "'")
	}
	return nil
}

func (p *parser) skipEOLs() {
	for p.tok.kind == tokenEOL {
		p.advance()
	}
}

// endLine consumes the end of a line or of the file.
func (p *parser) endLine() error {
	switch p.tok.kind {
	case tokenEOL:
		p.advance()
	case tokenEOF:
	default:
		return p.expected("the end of the line")
	}
	return nil
}

// skipLine goes to the next line after an error, past the block that begins on this one.
func (p *parser) skipLine() {
	depth, last := 0, p.tok
	for p.tok.kind != tokenEOF {
		switch {
		case p.tok.kind == tokenEOL && depth == 0 && !last.is("{"):
			p.advance()
			return
		case p.tok.kind == tokenEOL && last.is("{"):
			depth++
		case p.tok.is("}") && depth > 0:
			depth--
		}
		last = p.advance()
	}
}

// graph reads a whole file.
func (p *parser) graph() *Graph {
	p.skipEOLs()
	g := New("")
	if err := p.header(g); err != nil {
		p.report(err)
		p.stop()
		return nil
	}
	p.block(newScope(g, 0))
	p.report(p.endLine())
	p.skipEOLs()
	if p.tok.kind != tokenEOF {
		p.report(p.expected("the end of the file"))
	}
	return g
}

func (p *parser) header(g *Graph) error {
	if !p.accept("fusec") || !p.accept("graph") {
		return p.expected(fmt.Sprintf("a graph, which begins with: fusec graph %d", Version))
	}
	v, err := strconv.Atoi(p.tok.text)
	if p.tok.kind != tokenWord || err != nil || v < 1 {
		return p.expected(fmt.Sprintf("the version of the text form, such as %d", Version))
	}
	if v > Version {
		return p.fail(p.tok, "the file has version %d of the text form; this program reads versions up to %d", v, Version)
	}
	p.version = v
	p.advance()
	if p.tok.kind == tokenString || p.tok.kind == tokenWord {
		g.Name = p.advance().text
	}
	if !p.tok.is("{") {
		return p.expected("'{'")
	}
	return nil
}

// block reads statements in braces.
func (p *parser) block(sc *scope) {
	open := p.advance()
	if sc.depth > maxNesting {
		p.fatal(open, "fusions are nested deeper than %d", maxNesting)
		return
	}
	if err := p.endLine(); err != nil {
		p.report(err)
		p.skipLine()
	}
	for {
		p.skipEOLs()
		switch {
		case p.tok.kind == tokenEOF:
			p.report(p.expected(fmt.Sprintf("'}' for the '{' of line %d", open.line)))
			return
		case p.accept("}"):
			sc.g.closeGaps()
			return
		}
		if err := p.statement(sc); err != nil {
			p.report(err)
			p.skipLine()
		}
	}
}

func (p *parser) statement(sc *scope) error {
	var err error
	switch {
	case p.tok.kind == tokenWord && p.tok.text == keywordOutput:
		err = p.output(sc)
	case p.tok.kind == tokenWord && p.tok.text == keywordUpdate:
		err = p.update(sc)
	case p.tok.kind == tokenWord && p.tok.text == keywordNote && !p.next().is("="):
		err = p.note(sc)
	case p.tok.kind == tokenWord && p.tok.text == keywordMesh && !p.next().is("="):
		err = p.mesh(sc)
	case p.tok.kind == tokenWord && slices.Contains(trainingKeywords, p.tok.text) && !p.next().is("="):
		err = p.training(sc)
	default:
		return p.node(sc)
	}
	if err != nil {
		return err
	}
	return p.endLine()
}

func (p *parser) output(sc *scope) error {
	p.advance()
	at := p.tok
	name, err := p.name("the output's name")
	if err != nil {
		return err
	}
	if sc.outputs[name] {
		return p.fail(at, "two outputs are named %q", name)
	}
	sc.outputs[name] = true
	if err := p.want("="); err != nil {
		return err
	}
	n, err := p.operand(sc)
	if err != nil {
		return err
	}
	sc.g.Outputs = append(sc.g.Outputs, Output{name, n})
	return nil
}

func (p *parser) update(sc *scope) error {
	at := p.advance()
	target, err := p.operand(sc)
	if err != nil {
		return err
	}
	if err := p.want("="); err != nil {
		return err
	}
	value, err := p.operand(sc)
	if err != nil {
		return err
	}
	switch target.Op.(type) {
	case State, Param:
	default:
		return p.fail(at, "update of %v, which is neither state nor parameter", target)
	}
	if target.Type != value.Type {
		return p.fail(at, "update of %v of type %v with %v of type %v", target, target.Type, value, value.Type)
	}
	if sc.updated[target] {
		return p.fail(at, "%v is updated twice", target)
	}
	sc.updated[target] = true
	sc.g.Updates = append(sc.g.Updates, Update{target, value})
	return nil
}

// since refuses what a version of the text form added, in a file of an earlier one.
func (p *parser) since(version int, at token, what string) error {
	if p.version < version {
		return p.fail(at, "%s is of version %d of the text form, and the file is of version %d", what, version, p.version)
	}
	return nil
}

// next is the token after the current one.
func (p *parser) next() token {
	l := p.lex
	return l.next()
}

func (p *parser) note(sc *scope) error {
	at := p.advance()
	var n Note
	if sc.depth > 0 {
		return p.fail(at, "a fusion's body has no notes")
	}
	if p.tok.kind != tokenWord {
		return p.expected("the kind of the note")
	}
	at = p.advance()
	if err := n.Kind.UnmarshalText([]byte(at.text)); err != nil {
		return p.fail(at, "kind of a note: %w", err)
	}
	if p.tok.kind == tokenWord {
		n.Topic = p.advance().text
	}
	if err := n.check(); err != nil {
		return p.fail(at, "%w", err)
	}
	if p.tok.kind != tokenString {
		return p.expected("the text of the note, in quotes")
	}
	n.Text = p.advance().text
	if p.tok.kind != tokenEOL && p.tok.kind != tokenEOF {
		var err error
		if n.Node, err = p.operand(sc); err != nil {
			return err
		}
	}
	sc.g.Notes = append(sc.g.Notes, n)
	return nil
}

// name reads a bare or quoted name.
func (p *parser) name(want string) (string, error) {
	if p.tok.kind == tokenString || p.tok.kind == tokenWord && isBareName(p.tok.text) {
		return p.advance().text, nil
	}
	return "", p.expected(want)
}

// isOperand reports whether t can only be an operand.
func (t token) isOperand() bool {
	return t.kind == tokenID || t.kind == tokenString || t.kind == tokenWord && t.text != keywordFor
}

// operand reads a name or ID and finds its node.
func (p *parser) operand(sc *scope) (*Node, error) {
	t := p.tok
	var d *definition
	switch {
	case t.kind == tokenID:
		id, err := p.id(t)
		if err != nil {
			return nil, err
		}
		d = sc.byID[id]
	case t.kind == tokenString || t.kind == tokenWord && isBareName(t.text):
		d = sc.byName[t.text]
	default:
		return nil, p.expected("an operand")
	}
	p.advance()
	switch {
	case d == nil:
		return nil, p.fail(t, "%v is not defined above", t)
	case d.ambiguous:
		return nil, p.fail(t, "several nodes are named %v; write the ID of the one that is meant", t)
	case d.node == nil:
		return nil, errReported
	}
	return d.node, nil
}

func (p *parser) id(t token) (int, error) {
	id, err := strconv.Atoi(t.text)
	if err != nil || id > MaxID {
		return 0, p.fail(t, "ID %v is larger than %d", t, MaxID)
	}
	return id, nil
}
