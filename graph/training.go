package graph

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
)

// GradMark says which node of a graph is a derivative, or asks for one. A graph that was imported with a backward pass has
// marks; a pass uses them to drop that backward pass and to derive it again.
type GradMark struct {
	Of    *Node // the node with respect to which Cost is differentiated
	Value *Node // d(Cost)/d(Of), as computed by the graph; nil if it is only asked for
	Cost  *Node // the node that is differentiated; nil if it could not be determined
	Seed  *Node // d(Cost)/d(Cost): nil for 1
	// Wanted says that the user asked for this derivative. The others are intermediate results of a wanted one.
	Wanted bool
	// Output asks the compiler to hand out the derivative as an output of this name.
	Output string
}

// Training is an optimiser: it says that a run changes parameters by their gradients. Package optim knows the rules.
type Training struct {
	Rule     string // such as "adamw"
	Settings []Attr // numbers by name, such as clip=1
	Steps    []Step
	Pos      string // file:line that it was read from, or empty
}

// Step is the update of one parameter.
type Step struct {
	Param   *Node
	Cost    *Node   // nil if unknown: then Value is taken as it is
	Seed    *Node   // d(Cost)/d(Cost): nil for 1
	Value   *Node   // the gradient, if the graph has it already
	Rate    float64 // factor of the learning rate; 0 counts as 1
	NoDecay bool    // no weight decay
}

// maxBackward bounds the work that a file's gradients ask for: costs times nodes.
const maxBackward = 1 << 22

// trainingNodes calls f for each place in which a gradient or a step names a node.
func (g *Graph) trainingNodes(f func(at **Node)) {
	for i := range g.Gradients {
		d := &g.Gradients[i]
		f(&d.Of)
		f(&d.Value)
		f(&d.Cost)
		f(&d.Seed)
	}
	if g.Training != nil {
		for i := range g.Training.Steps {
			s := &g.Training.Steps[i]
			f(&s.Param)
			f(&s.Cost)
			f(&s.Seed)
			f(&s.Value)
		}
	}
}

// cloneTraining copies gradients and steps from the graph of which g is a clone.
func (g *Graph) cloneTraining(from *Graph, to map[*Node]*Node) {
	g.Gradients = slices.Clone(from.Gradients)
	if o := from.Training; o != nil {
		c := *o
		c.Settings, c.Steps = slices.Clone(o.Settings), slices.Clone(o.Steps)
		g.Training = &c
	}
	g.trainingNodes(func(at **Node) { *at = to[*at] })
}

// verifyTraining checks gradients and steps. has reports whether a node belongs to the graph, and taken which names
// outputs have.
func (g *Graph) verifyTraining(has func(*Node) bool, taken map[string]bool) error {
	var errs []error
	fail := func(format string, a ...any) { errs = append(errs, fmt.Errorf(format, a...)) }
	g.trainingNodes(func(at **Node) {
		if *at != nil && !has(*at) {
			fail("a gradient or step of %v, which is not a node of the graph", *at)
		}
	})
	for _, d := range g.Gradients {
		switch {
		case d.Of == nil:
			fail("a gradient that does not say of what")
		case d.Value == nil && d.Output == "":
			fail("the gradient by %s is neither computed nor asked for", d.Of.Where())
		case d.Output != "" && d.Cost == nil:
			fail("the gradient %q by %s has no cost", d.Output, d.Of.Where())
		case d.Output != "" && taken[d.Output]:
			fail("two outputs are named %q", d.Output)
		case d.Seed != nil && d.Cost == nil:
			fail("the gradient by %s has a seed and no cost", d.Of.Where())
		}
		if d.Output != "" {
			taken[d.Output] = true
		}
	}
	if g.Training == nil {
		return errors.Join(errs...)
	}
	stepped := map[*Node]bool{}
	for _, s := range g.Training.Steps {
		if s.Param == nil {
			fail("a step that does not say of what")
			continue
		}
		if _, ok := s.Param.Op.(Param); !ok {
			fail("a step of %s, which is not a parameter", s.Param.Where())
		}
		if s.Cost == nil && s.Value == nil {
			fail("the step of %s has neither a cost nor a gradient", s.Param.Where())
		}
		if stepped[s.Param] {
			fail("%s has two steps", s.Param.Where())
		}
		stepped[s.Param] = true
	}
	return errors.Join(errs...)
}

// OutputNames lists what a run hands out: the outputs, and the gradients that are asked for.
func (g *Graph) OutputNames() []string {
	var names []string
	for _, o := range g.Outputs {
		names = append(names, o.Name)
	}
	for _, d := range g.Gradients {
		if d.Output != "" {
			names = append(names, d.Output)
		}
	}
	return names
}

// checkBackward refuses a file that asks for the gradients of so many costs that making them would take very long.
func (g *Graph) checkBackward() error {
	costs := map[[2]*Node]bool{}
	for _, d := range g.Gradients {
		costs[[2]*Node{d.Cost, d.Seed}] = true
	}
	if g.Training != nil {
		for _, s := range g.Training.Steps {
			costs[[2]*Node{s.Cost, s.Seed}] = true
		}
	}
	if len(costs) > max(1, maxBackward/max(1, len(g.Nodes))) {
		return fmt.Errorf("gradients of %d costs in a graph of %d nodes: the product is more than %d", len(costs), len(g.Nodes),
			maxBackward)
	}
	return nil
}

// equalTraining explains the first difference between the gradients and steps of two graphs; at gives the node of b for
// each of a.
func equalTraining(a, b *Graph, at map[*Node]*Node) error {
	same := func(x, y *Node) bool { return at[x] == y }
	if !slices.EqualFunc(a.Gradients, b.Gradients, func(d, e GradMark) bool {
		return same(d.Of, e.Of) && same(d.Value, e.Value) && same(d.Cost, e.Cost) && same(d.Seed, e.Seed) &&
			d.Wanted == e.Wanted && d.Output == e.Output
	}) {
		return fmt.Errorf("the gradients differ: %v and %v", a.Gradients, b.Gradients)
	}
	o, p := a.Training, b.Training
	if (o == nil) != (p == nil) || o != nil && (o.Rule != p.Rule || !slices.Equal(o.Settings, p.Settings) ||
		!slices.EqualFunc(o.Steps, p.Steps, func(s, t Step) bool {
			return same(s.Param, t.Param) && same(s.Cost, t.Cost) && same(s.Seed, t.Seed) && same(s.Value, t.Value) &&
				s.Rate == t.Rate && s.NoDecay == t.NoDecay
		})) {
		return fmt.Errorf("the optimisers differ: %v and %v", o, p)
	}
	return nil
}

// training writes the statements of gradients and the optimiser.
func (p *printer) training(g *Graph, indent string, ref func(*Node) string) {
	clause := func(word string, n *Node) {
		if n != nil {
			p.b.WriteString(" " + word + " " + ref(n))
		}
	}
	for _, d := range g.Gradients {
		p.version = max(p.version, 2)
		if d.Output != "" {
			p.b.WriteString(indent + keywordGradient + " " + quoteName(d.Output))
		} else {
			p.b.WriteString(indent + keywordMark + " " + ref(d.Value))
		}
		clause("=", d.Cost)
		clause(keywordBy, d.Of)
		clause(keywordSeed, d.Seed)
		if d.Output != "" {
			clause(keywordValue, d.Value)
		}
		if d.Wanted {
			p.b.WriteString(" " + keywordWanted)
		}
		p.b.WriteByte('\n')
	}
	if g.Training == nil {
		return
	}
	p.version = max(p.version, 2)
	p.b.WriteString(indent + keywordOptimiser + " " + g.Training.Rule + attrList(g.Training.Settings) + "\n")
	for _, s := range g.Training.Steps {
		p.b.WriteString(indent + keywordStep + " " + ref(s.Param))
		clause("=", s.Cost)
		clause(keywordSeed, s.Seed)
		clause(keywordValue, s.Value)
		if s.Rate != 0 {
			p.b.WriteString(" " + keywordRate + " " + strconv.FormatFloat(s.Rate, 'g', -1, 64))
		}
		if s.NoDecay {
			p.b.WriteString(" " + keywordNoDecay)
		}
		p.b.WriteByte('\n')
	}
}

// training reads a statement that begins with a keyword: gradient, mark, optimiser or step.
func (p *parser) training(sc *scope) error {
	at := p.advance()
	if err := p.since(2, at, at.text); err != nil {
		return err
	}
	if sc.depth > 0 {
		return p.fail(at, "a fusion's body has no %s", at.text)
	}
	switch at.text {
	case keywordOptimiser:
		return p.optimiser(sc, at)
	case keywordStep:
		return p.step(sc, at)
	}
	return p.gradient(sc, at)
}

// word consumes the current token if it is the given word.
func (p *parser) word(s string) bool {
	if p.tok.kind != tokenWord || p.tok.text != s {
		return false
	}
	p.advance()
	return true
}

// clause reads the operand after a word or '=', if it is there.
func (p *parser) clause(sc *scope, word string, to **Node) (err error) {
	if p.word(word) || word == "=" && p.accept(word) {
		*to, err = p.operand(sc)
	}
	return err
}

// clauses reads several.
func (p *parser) clauses(sc *scope, words []string, to ...**Node) error {
	for i, word := range words {
		if err := p.clause(sc, word, to[i]); err != nil {
			return err
		}
	}
	return nil
}

func (p *parser) gradient(sc *scope, at token) (err error) {
	var d GradMark
	asked := at.text == keywordGradient
	name := p.tok
	if asked {
		d.Output, err = p.name("the name of the gradient's output")
	} else {
		d.Value, err = p.operand(sc)
	}
	if err != nil {
		return err
	}
	if err := p.clause(sc, "=", &d.Cost); err != nil {
		return err
	}
	if asked && d.Cost == nil {
		return p.expected("'=' and the cost")
	}
	if !p.word(keywordBy) {
		return p.expected("'" + keywordBy + "' and a node")
	}
	if d.Of, err = p.operand(sc); err != nil {
		return err
	}
	if d.Cost != nil {
		if err := p.clause(sc, keywordSeed, &d.Seed); err != nil {
			return err
		}
	}
	if asked {
		if sc.outputs[d.Output] {
			return p.fail(name, "two outputs are named %q", d.Output)
		}
		sc.outputs[d.Output] = true
		if err := p.clause(sc, keywordValue, &d.Value); err != nil {
			return err
		}
	}
	d.Wanted = p.word(keywordWanted)
	if len(sc.g.Gradients) == MaxNodes {
		p.fatal(at, "more than %d gradients", MaxNodes)
		return errReported
	}
	sc.g.Gradients = append(sc.g.Gradients, d)
	return nil
}

func (p *parser) optimiser(sc *scope, at token) error {
	if sc.g.Training != nil {
		return p.fail(at, "a second optimiser; the first is in %s", sc.g.Training.Pos)
	}
	if p.tok.kind != tokenWord {
		return p.expected("an optimiser's rule, such as adamw")
	}
	t := nodeText{op: p.advance()}
	if p.tok.is("[") {
		if err := p.attributes(&t); err != nil {
			return err
		}
	}
	for i, a := range t.attrs {
		if t.attrAt[i].kind != tokenWord {
			return p.fail(t.attrAt[i], "%s of an optimiser is a number, not %v", a.Name, t.attrAt[i])
		}
		if slices.ContainsFunc(t.attrs[:i], func(b Attr) bool { return a.Name == b.Name }) {
			return p.fail(t.attrAt[i], "%s is given twice", a.Name)
		}
	}
	sc.g.Training = &Training{Rule: t.op.text, Settings: t.attrs, Pos: p.base + ":" + strconv.Itoa(at.line)}
	return nil
}

func (p *parser) step(sc *scope, at token) (err error) {
	o := sc.g.Training
	if o == nil {
		return p.fail(at, "a step comes after its optimiser")
	}
	var s Step
	if s.Param, err = p.operand(sc); err != nil {
		return err
	}
	if err := p.clauses(sc, []string{"=", keywordSeed, keywordValue}, &s.Cost, &s.Seed, &s.Value); err != nil {
		return err
	}
	if p.word(keywordRate) {
		if s.Rate, err = strconv.ParseFloat(p.tok.text, 64); p.tok.kind != tokenWord || err != nil ||
			!(s.Rate > 0 && s.Rate <= math.MaxFloat64) {
			return p.expected("a factor of the learning rate, more than 0")
		}
		p.advance()
	}
	s.NoDecay = p.word(keywordNoDecay)
	if len(o.Steps) == MaxNodes {
		p.fatal(at, "more than %d steps", MaxNodes)
		return errReported
	}
	o.Steps = append(o.Steps, s)
	return nil
}
