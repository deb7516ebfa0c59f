package capi

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/graph"
	"fusec/graph/optim"
	"fusec/lowering"
)

// ExtraOptions are given to programs for their targets. Tests have GPUs emulated by them.
var ExtraOptions []lowering.TargetOption

// settings are the options of a program, "name=value" each.
type settings struct {
	target    string
	queued    bool // runs take the caller's memory
	compile   []fusec.CompileOption
	gradients []string       // output:cost:of
	rule      string         // of the optimiser, or empty
	dims      map[string]int // sizes that an ONNX model leaves open
	rates     []graph.Attr   // the optimiser's settings
}

// optionNames are the names that an option can have, but for those of the optimiser's settings.
var optionNames = []string{"target", "threads", "precision", "memory", "memory_budget", "seed", "gradient", "optimizer"}

// How the names of options begin that have a name of their own behind it.
const (
	optimizerSetting = "optimizer." // a setting of the optimiser
	sizeOption       = "dim."       // a size that an ONNX model leaves open
)

func parseOptions(options []string) (*settings, error) {
	s := &settings{target: fusec.Targets()[0]}
	for _, o := range options {
		name, value, ok := strings.Cut(o, "=")
		if !ok {
			return nil, fmt.Errorf("option %q: want name=value", o)
		}
		if err := s.set(name, value); err != nil {
			return nil, fmt.Errorf("option %q: %w", o, err)
		}
	}
	if s.rule == "" && len(s.rates) > 0 {
		return nil, fmt.Errorf("option %q without %q", optimizerSetting+s.rates[0].Name, "optimizer")
	}
	t, _ := fusec.TargetNamed(s.target)
	for _, o := range ExtraOptions {
		if o.Of() == t.Name {
			s.compile = append(s.compile, fusec.WithTarget("", o))
		}
	}
	if s.queued {
		if t.Queued == nil {
			can := cli.Targets(func(t lowering.Target) bool { return t.Queued != nil })
			return nil, fmt.Errorf("option %q is not for target %q, but for %s", "memory=caller", s.target,
				cli.Either(can))
		}
		s.compile = append(s.compile, fusec.WithTarget("", t.Queued))
	}
	return s, nil
}

func (s *settings) set(name, value string) error {
	number := func() (int64, error) {
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, errors.New("want a whole number")
		}
		return n, nil
	}
	add := func(o fusec.Option) { s.compile = append(s.compile, o) }
	switch name {
	case "target":
		s.target = value
		add(fusec.WithTarget(value))
	case "memory":
		if value != "caller" {
			return errors.New("want memory=caller")
		}
		s.queued = true
	case "threads":
		n, err := number()
		if err != nil || n < 1 || n > fusec.MaxWorkers {
			return fmt.Errorf("want a number from 1 to %d", fusec.MaxWorkers)
		}
		add(fusec.WithWorkers(int(n)))
	case "precision":
		p, err := fusec.ParsePrecision(value)
		if err != nil {
			return err
		}
		add(fusec.WithPrecision(p))
	case "memory_budget":
		n, err := number()
		if err != nil || n < 1 {
			return errors.New("want a number of bytes")
		}
		add(fusec.WithMemoryBudget(n))
	case "seed":
		n, err := number()
		if err != nil {
			return err
		}
		add(fusec.WithSeed(n))
	case "gradient":
		s.gradients = append(s.gradients, value)
	case "optimizer":
		s.rule = value
	default:
		if size, ok := strings.CutPrefix(name, sizeOption); ok {
			n, err := number()
			if err != nil || n < 0 || n > math.MaxInt32 {
				return errors.New("want a size")
			}
			if s.dims == nil {
				s.dims = map[string]int{}
			}
			s.dims[size] = int(n)
			return nil
		}
		setting, ok := strings.CutPrefix(name, optimizerSetting)
		if !ok {
			return errors.New(cli.Unknown("option", name, optionNames))
		}
		s.rates = append(s.rates, graph.Attr{Name: setting, Value: value})
	}
	return nil
}

// apply has the graph ask for the gradients and the optimiser's steps.
func (s *settings) apply(g *graph.Graph) error {
	for _, asked := range s.gradients {
		names := strings.Split(asked, ":")
		if len(names) != 3 {
			return fmt.Errorf("option gradient=%s: want OUTPUT:COST:OF", asked)
		}
		cost, err := optim.Cost(g, names[1])
		if err != nil {
			return fmt.Errorf("option gradient=%s: %w", asked, err)
		}
		of := g.SourcesByName()[names[2]]
		if of == nil || !of.Type.DType.IsFloat() {
			return fmt.Errorf("option gradient=%s: the model has no input or parameter %q of a floating-point type", asked, names[2])
		}
		g.Gradients = append(g.Gradients, graph.GradMark{Cost: cost, Of: of, Output: names[0], Wanted: true})
	}
	if s.rule == "" {
		return nil
	}
	t, err := optim.Steps(g, s.rule, s.rates)
	if err != nil {
		return fmt.Errorf("option optimizer=%s: %w", s.rule, err)
	}
	g.Training = t
	return nil
}
