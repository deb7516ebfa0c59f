package fusec

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"gorgonia.org/gorgonia"

	"fusec/graph"
	"fusec/lowering"
)

// A Specialisation is the graph of a model for inputs of certain shapes.
type Specialisation struct {
	Graph   *graph.Graph
	Weights map[string]*graph.Tensor // values of parameters, by name
	Fixed   []string                 // inputs whose values, not only their shapes, the graph depends on
}

// Specialised is a program for inputs of any shape: for each combination of shapes a graph is built and compiled when it is
// first needed, and the programs that were used last are kept. Goroutines may share it. Runs with the same shapes wait for
// each other, and others do not.
type Specialised struct {
	build func(map[string]*graph.Tensor) (Specialisation, error)
	cfg   config

	mu     sync.Mutex
	kept   []*specialisation // the one used last is first
	made   int
	closed bool
}

// A specialisation is a program for certain types of inputs, and for certain values of some. What its mutex does not guard
// is guarded by that of Specialised; types are written once, and the rest is written before done is closed.
type specialisation struct {
	types map[string]graph.Type
	done  chan struct{} // closed when compiling has ended
	fixed map[string]*graph.Tensor

	uses    int  // runs that have it or wait for it
	dropped bool // it is no longer kept; the last of these runs closes it

	mu      sync.Mutex // held by the run
	program *Program
}

// SpecialiseOption configures [Specialise]. Every [Option] is one.
type SpecialiseOption func(gorgonia.VM)

const specialisationsKept = 8

// WithKept sets how many programs a [Specialised] keeps for later runs with the same shapes; the default is 8. Each has
// memory of its own for weights in the form that its target takes, and for temporary values.
func WithKept(n int) SpecialiseOption {
	return SpecialiseOption(option(func(c *config) {
		c.special = append(c.special, "WithKept")
		if c.kept = n; n < 1 {
			c.fail("WithKept(%d): want at least 1", n)
		}
	}))
}

// Specialise gives a program for inputs of any shape. The function build makes the graph for the inputs that a run is given:
// for their shapes, and for the values of those that it then names in Fixed. It may be called by several goroutines at
// once. For an ONNX model with open sizes it is [fusec/graph/onnx.Load] with these inputs. Graphs with state or updates are
// refused, for each shape would have its own.
func Specialise(build func(in map[string]*graph.Tensor) (Specialisation, error), opts ...SpecialiseOption) (*Specialised, error) {
	if build == nil {
		return nil, errors.New("there is no function that builds a graph")
	}
	plain := make([]CompileOption, len(opts))
	for i, o := range opts {
		plain[i] = CompileOption(o)
	}
	cfg, err := readOptions(plain)
	for _, name := range cfg.compile {
		err = errors.Join(err, fmt.Errorf("%s is for Compile", name))
	}
	if cfg.optimizer != nil {
		err = errors.Join(err, errors.New("WithOptimizer is for one graph, whose weights it updates"))
	}
	if err != nil {
		return nil, err
	}
	if cfg.kept == 0 {
		cfg.kept = specialisationsKept
	}
	return &Specialised{build: build, cfg: cfg}, nil
}

// Run runs the program for the shapes of the given inputs, all of which have to be there, and returns all outputs in memory
// of their own.
func (s *Specialised) Run(in map[string]*graph.Tensor) (map[string]*graph.Tensor, error) {
	var out map[string]*graph.Tensor
	err := s.With(in, func(p *Program) (err error) {
		out, err = p.Run(nil)
		return err
	})
	return out, err
}

// With calls f with the program for the shapes of the given inputs, which are set. The program is f's until it returns; f
// must neither close it nor call methods of s.
func (s *Specialised) With(in map[string]*graph.Tensor, f func(*Program) error) error {
	for name, t := range in {
		if t == nil {
			return fmt.Errorf("no value was given for %q", name)
		}
		if err := t.Check(); err != nil {
			return fmt.Errorf("value of %q: %w", name, err)
		}
	}
	e, err := s.acquire(in)
	if err != nil {
		return err
	}
	defer s.release(e)
	e.mu.Lock()
	defer e.mu.Unlock()
	for name, t := range in {
		if err := e.program.Set(name, t); err != nil {
			return err
		}
	}
	return f(e.program)
}

// Compiled is how many programs have been compiled until now.
func (s *Specialised) Compiled() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made
}

// Close closes all programs, those that run when they have ended. Later runs are refused.
func (s *Specialised) Close() error {
	s.mu.Lock()
	s.closed = true
	closing := s.drop(0)
	s.mu.Unlock()
	return lowering.CloseAll(closing)
}

// acquire finds or makes the program for inputs, and counts the run as one of its uses.
func (s *Specialised) acquire(in map[string]*graph.Tensor) (*specialisation, error) {
	types := make(map[string]graph.Type, len(in))
	for name, t := range in {
		types[name] = t.Type
	}
	for {
		s.mu.Lock()
		if s.closed {
			s.mu.Unlock()
			return nil, errors.New("the program is closed")
		}
		e, wait := s.find(types, in)
		if e != nil {
			e.uses++
			s.mu.Unlock()
			return e, nil
		}
		if wait != nil { // its values of inputs may fit, too
			s.mu.Unlock()
			<-wait
			continue
		}
		e = &specialisation{types: types, done: make(chan struct{}), uses: 1}
		s.kept = slices.Insert(s.kept, 0, e)
		s.mu.Unlock()

		if err := s.make(e, in); err != nil {
			return nil, err
		}
		return e, nil
	}
}

// make compiles the program of a specialisation, which is no longer kept if that fails, and closes those that are too many.
func (s *Specialised) make(e *specialisation, in map[string]*graph.Tensor) error {
	var program *Program
	var fixed map[string]*graph.Tensor
	var closing []*Program
	err := errors.New("building the graph panicked")
	func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			defer close(e.done)
			if err != nil {
				s.kept = slices.DeleteFunc(s.kept, func(other *specialisation) bool { return other == e })
				return
			}
			e.program, e.fixed = program, fixed
			s.made++
			keep := s.cfg.kept
			if s.closed {
				keep = 0
			}
			closing = s.drop(keep)
		}()
		program, fixed, err = s.compile(in)
	}()
	if err != nil {
		return err
	}
	if err := lowering.CloseAll(closing); err != nil {
		s.release(e)
		return err
	}
	return nil
}

// find looks for the program for inputs and puts it first. If there is none, wait is the end of a compilation that may give
// one, or nil.
func (s *Specialised) find(types map[string]graph.Type, in map[string]*graph.Tensor) (e *specialisation, wait chan struct{}) {
	for i, e := range s.kept {
		if !maps.Equal(e.types, types) {
			continue
		}
		select {
		case <-e.done:
		default:
			wait = e.done
			continue
		}
		fits := true
		for name, t := range e.fixed {
			fits = fits && t.Equal(in[name])
		}
		if fits {
			copy(s.kept[1:i+1], s.kept[:i])
			s.kept[0] = e
			return e, nil
		}
	}
	return nil, wait
}

// compile makes the program for inputs, with its weights set.
func (s *Specialised) compile(in map[string]*graph.Tensor) (*Program, map[string]*graph.Tensor, error) {
	made, err := s.build(maps.Clone(in))
	if err != nil {
		return nil, nil, err
	}
	if g := made.Graph; g != nil {
		if i := slices.IndexFunc(g.Nodes, func(n *graph.Node) bool { _, ok := n.Op.(graph.State); return ok }); i >= 0 {
			return nil, nil, fmt.Errorf("%s is state, which programs for several shapes cannot share", g.Nodes[i].Where())
		}
		if len(g.Updates) > 0 || g.Training != nil {
			return nil, nil, fmt.Errorf("graph %q updates parameters or state, which programs for several shapes cannot share",
				g.Name)
		}
	}
	fixed := map[string]*graph.Tensor{}
	for _, name := range made.Fixed {
		if in[name] == nil {
			return nil, nil, fmt.Errorf("the graph depends on the value of an input %q, which was not given", name)
		}
		fixed[name] = in[name].Clone()
	}
	p, err := compileWith(made.Graph, s.cfg)
	if err != nil {
		return nil, nil, err
	}
	for name, t := range made.Weights {
		if err := p.Set(name, t); err != nil {
			return nil, nil, errors.Join(err, p.Close())
		}
	}
	return p, fixed, nil
}

// release ends a run.
func (s *Specialised) release(e *specialisation) {
	s.mu.Lock()
	e.uses--
	last := e.dropped && e.uses == 0
	s.mu.Unlock()
	if last {
		e.program.Close()
	}
}

// drop takes all but the programs used last out of those that are kept, and lists the ones that no run has. What is being
// compiled stays.
func (s *Specialised) drop(keep int) (closing []*Program) {
	ready := 0
	s.kept = slices.DeleteFunc(s.kept, func(e *specialisation) bool {
		if e.program == nil {
			return false
		}
		if ready++; ready <= keep {
			return false
		}
		e.dropped = true
		if e.uses == 0 {
			closing = append(closing, e.program)
		}
		return true
	})
	return closing
}
