package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/graphtest"
	"fusec/graph/precision"
	kernels "fusec/kernels/cuda"
	"fusec/kernels/ref"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda"
	"fusec/lowering/fpga"
	"fusec/passes"
)

// failure is what a check found.
type failure struct {
	check string // which check
	kind  string // "value", "error", "panic", "bits", …
	text  string
}

// Error implements error.
func (f *failure) Error() string { return fmt.Sprintf("%s: %s: %s", f.check, f.kind, f.text) }

// passing are the words of an error that do not change with sizes, names and places.
var passing = regexp.MustCompile(`"[^"]*"|%?[0-9][0-9.e+-]*|0x[0-9a-f]+|\([^()]*\)|\[[^]]*\]|NaN|[+-]?Inf`)

// like reports whether g is of f's fault, as far as can be told: of the same check, or of the first variant, of the same
// kind, and for what is not a value with the same message.
func (f *failure) like(g *failure) bool {
	if f == nil || g == nil || g.check != f.check && g.check != all || f.kind != g.kind {
		return false
	}
	first := func(s string) string {
		s, _, _ = strings.Cut(s, "\n")
		s = passing.ReplaceAllString(s, "")
		return s[:min(len(s), 80)]
	}
	return f.kind == "value" || f.kind == "bits" || first(f.text) == first(g.text)
}

// checker runs the checks over cases.
type checker struct {
	cuda, fpga bool
	only       string               // the one check to run, or all
	target     string               // the one target to run on, or all
	apart      bool                 // buffers on CUDA do not share a block
	after      func(g *graph.Graph) // changes what the passes made; for tests, which plant faults
}

// expected is what the reference makes of a case.
type expected struct {
	outputs, updates map[string]ref.Value
}

// check is the first failure of a case, or nil.
func (k *checker) check(c *graphtest.Case) *failure {
	var want expected
	var whole *graph.Graph
	in := c.Values()
	f := k.try("reference", func() error {
		var err error
		if whole, err = c.Whole(); err != nil {
			return err
		}
		want.outputs, want.updates, err = ref.EvalKept(whole, in)
		return err
	})
	if f != nil {
		return f
	}
	// A better formula may not overflow where arithmetic as written does, and may cancel where that does not, as σ(1−σ)
	// does for 1/(1+e⁻ˣ): gradients are right within ε of the largest.
	for _, d := range c.Gradients {
		v := want.outputs[d.Output]
		largest := 0.0
		for _, x := range v.F {
			if x = math.Abs(x); x > largest && !math.IsInf(x, 0) {
				largest = x
			}
		}
		for i, x := range v.F {
			if v.Mag[i] += largest; math.IsNaN(x) || math.IsInf(x, 0) {
				v.Mag[i] = math.Inf(1)
			}
		}
	}
	if f := k.try("raise", func() error { return want.raised(c, in) }); f != nil {
		return f
	}
	checks := []struct {
		name string
		run  func() error
	}{
		{"text", func() error { return sameText(c.Graph) }},
		{"file", func() error { return sameFile(c.Graph, in) }},
		{"differences", func() error { return differences(c, whole, in) }},
	}
	if k.target != "" {
		checks = nil
	}
	for _, c := range checks {
		if f := k.try(c.name, c.run); f != nil {
			return f
		}
	}
	var first map[string]*graph.Tensor
	var arena int64
	for _, v := range k.variants(c) {
		f := k.try(v.name, func() error {
			if v.budget {
				v.cfg.Budget = max(arena/2, 1)
			}
			got, bytes, err := k.run(c, v, in)
			if err != nil {
				return err
			}
			if err := want.compare(got); err != nil {
				return err
			}
			switch {
			case first == nil && v.name == all:
				first, arena = got, bytes
			case v.bits && first != nil:
				return sameBits(first, got)
			}
			return nil
		})
		if f != nil {
			return f
		}
	}
	return nil
}

// raised makes unsure what is NaN or 0 as it is written and another number once formulas are recognised: a softmax written
// by hand divides 0 by 0 where all exponentials are 0, and a small exponential that is 0 by another small one.
func (w *expected) raised(c *graphtest.Case, in map[string]*graph.Tensor) error {
	if c.Draw == graphtest.Ordinary {
		return nil
	}
	g, _, err := passes.Run(c.Graph, passes.Config{Stop: "raise"})
	if err != nil {
		return err
	}
	outputs, updates, err := ref.EvalKept(g, in)
	if err != nil {
		return err
	}
	for _, of := range []struct{ written, raised map[string]ref.Value }{{w.outputs, outputs}, {w.updates, updates}} {
		for name, v := range of.written {
			for i, x := range v.F {
				if r := of.raised[name].F[i]; math.IsNaN(x) && !math.IsNaN(r) || x == 0 && r != 0 {
					v.Mag[i] = math.Inf(1)
				}
			}
		}
	}
	return nil
}

// Kinds of failures are told by errors of these types; any other is an "error".
type kindOf struct {
	kind string
	error
}

// try runs one check and tells how it failed.
func (k *checker) try(name string, run func() error) (f *failure) {
	if k.only != "" && name != k.only && name != "reference" && name != all {
		return nil
	}
	defer func() {
		if r := recover(); r != nil {
			f = &failure{name, "panic", fmt.Sprintf("%v\n%s", r, debug.Stack())}
		}
	}()
	err := run()
	var kind kindOf
	switch {
	case err == nil:
		return nil
	case errors.As(err, &kind):
		return &failure{name, kind.kind, err.Error()}
	}
	return &failure{name, "error", err.Error()}
}

// variant is one way to compile and run a case.
type variant struct {
	name   string
	device func() (lowering.Device, error)
	cfg    passes.Config
	lower  []lowering.Option
	budget bool // half of the memory for temporary values that the first variant took
	bits   bool // gives the first variant's bits
	close  bool // values are close only as far as the device is
}

// all is the variant with all passes, the first.
const all = "all passes"

// gradients are those that a case asks for.
func gradients(c *graphtest.Case) (list []passes.Gradient) {
	for _, g := range c.Gradients {
		list = append(list, passes.Gradient{Cost: g.Cost, Of: g.Of, Output: g.Output})
	}
	return list
}

func (k *checker) variants(c *graphtest.Case) []variant {
	onCPU := func(opts ...cpu.Option) func() (lowering.Device, error) {
		return func() (lowering.Device, error) { return cpu.New(opts...), nil }
	}
	one := onCPU(cpu.Workers(1))
	if k.target == cuda.Target.Name {
		return []variant{k.onCUDA(c)}
	}
	if halves(c.Graph) {
		return k.devices(c)
	}
	l := []variant{
		{name: all, device: one},
		{name: "three workers", device: onCPU(cpu.Workers(3)), bits: true},
		{name: "frozen parameters", device: onCPU(cpu.Workers(2)), cfg: passes.Config{Frozen: true}},
		{name: "memory budget", device: one, budget: true, bits: true},
		{name: "copied updates", device: one, lower: []lowering.Option{lowering.CopyUpdates()}},
	}
	none := map[string]bool{}
	for _, p := range passes.All() {
		without := passes.Config{Gradients: gradients(c), Disable: map[string]bool{p.Name: true}}
		if p.Needed != nil && p.Needed(without) != "" {
			continue
		}
		none[p.Name] = true
		l = append(l, variant{name: "without " + p.Name, device: one, cfg: passes.Config{Disable: without.Disable}})
	}
	l = append(l, variant{name: "without any pass", device: one, cfg: passes.Config{Disable: none}})
	return append(l, k.devices(c)...)
}

// halves reports whether something is contracted in 16 bits, which the processor does not do.
func halves(g *graph.Graph) bool {
	return slices.ContainsFunc(g.Nodes, func(n *graph.Node) bool {
		return graph.Contracts(n.Op, 0) && n.Args[0].Type.DType.Is16()
	})
}

// devices are the variants on other targets than the processor.
func (k *checker) devices(c *graphtest.Case) []variant {
	var l []variant
	if k.cuda {
		l = append(l, k.onCUDA(c))
	}
	if k.fpga && len(c.Graph.Updates) == 0 && !halves(c.Graph) {
		v := variant{name: fpga.Target.Name, device: openFPGA, close: true}
		if v.cfg.Frozen = c.Seed%2 == 0; v.cfg.Frozen {
			v.name += " frozen"
		}
		l = append(l, v)
	}
	return l
}

// onCUDA is one of the ways to run a case there, by its seed: in a precision, with what only the newest chips have or
// without, with parameters that are frozen or not, all at once or launch by launch in memory that is not shared.
func (k *checker) onCUDA(c *graphtest.Case) variant {
	v := variant{name: cuda.Target.Name}
	rounding := kernels.F32
	if i := c.Seed % 8; i >= 5 {
		v.cfg.Precision = []precision.Precision{precision.TF32, precision.BF16, precision.F16}[i-5]
		rounding = []kernels.Precision{kernels.TF32, kernels.BF16, kernels.F16}[i-5]
		v.name += " " + v.cfg.Precision.String()
	}
	opts := []cuda.Option{cuda.Precision(rounding)}
	if c.Seed/8%8 == 0 {
		opts = append(opts, cuda.Portable())
		v.name += " portable"
	}
	if v.cfg.Frozen = c.Seed/128%2 == 0; v.cfg.Frozen {
		v.name += " frozen"
	}
	if k.apart || !lasting || c.Seed/64%2 == 0 {
		opts = append(opts, cuda.Apart(), cuda.Each())
		v.name += " apart"
	}
	v.device = func() (lowering.Device, error) { return openCUDA(opts...) }
	return v
}

// run compiles a case in one way and runs it twice; the second run must give the first one's bits. It returns the
// outputs, and the updates by the names of their targets behind an arrow; and the bytes of the arena.
func (k *checker) run(c *graphtest.Case, v variant,
	in map[string]*graph.Tensor) (_ map[string]*graph.Tensor, arena int64, err error) {
	d, err := v.device()
	if err != nil {
		return nil, 0, err
	}
	if closer, ok := d.(io.Closer); ok {
		defer func() { err = errors.Join(err, closer.Close()) }()
	}
	cfg := v.cfg
	cfg.Target, cfg.Verify = d, true
	cfg.Gradients = gradients(c)
	before := graph.Print(c.Graph)
	final, _, err := passes.Run(c.Graph, cfg)
	if err != nil {
		return nil, 0, err
	}
	if graph.Print(c.Graph) != before {
		return nil, 0, kindOf{"changed", errors.New("the passes changed the graph that they were given")}
	}
	if k.after != nil {
		k.after(final)
	}
	lower := slices.Concat(d.Lowering(), v.lower)
	if cfg.Frozen {
		lower = append(lower, lowering.Frozen())
	}
	p, err := lowering.Lower(final, d.Name(), lower...)
	if err != nil {
		return nil, 0, err
	}
	d.Place(p)
	e, err := d.Compile(p)
	if err != nil {
		return nil, 0, err
	}
	defer func() { err = errors.Join(err, e.Close()) }()
	var first map[string]*graph.Tensor
	for range 2 {
		got, err := runOnce(e, p, in)
		if err != nil {
			return nil, 0, err
		}
		if first == nil {
			first = got
		} else if err := sameBits(first, got); err != nil {
			return nil, 0, kindOf{"second run", err}
		}
	}
	switch v.cfg.Precision {
	case precision.TF32: // products have no bound here
		return nil, 0, nil
	case precision.BF16, precision.F16: // the rounding that was asked for is in the graph that the passes made
		var want expected
		if want.outputs, want.updates, err = ref.EvalKept(final, in); err != nil {
			return nil, 0, err
		}
		return nil, 0, want.compare(first)
	}
	if v.close {
		return nil, 0, nil
	}
	return first, p.ArenaBytes, nil
}

func runOnce(e lowering.Executable, p *lowering.Program, in map[string]*graph.Tensor) (map[string]*graph.Tensor, error) {
	bound := map[int]*graph.Tensor{}
	for i, b := range p.Buffers {
		if b.Role <= lowering.State {
			bound[i] = in[b.Name].Clone()
			if err := e.Bind(i, bound[i]); err != nil {
				return nil, err
			}
		}
	}
	if err := e.Run(); err != nil {
		return nil, err
	}
	if err := e.Sync(); err != nil {
		return nil, err
	}
	got := map[string]*graph.Tensor{}
	for _, o := range p.Outputs {
		got[o.Name] = e.Output(o.Buffer).Clone()
	}
	written := map[int]bool{}
	for _, u := range p.Updates {
		got[updated(p.Buffers[u.Target].Name)] = bound[u.Target]
		written[u.Target] = true
	}
	for i, t := range bound {
		if !written[i] && !t.Equal(in[p.Buffers[i].Name]) {
			return nil, kindOf{"changed", fmt.Errorf("the run changed the value of %s %q", p.Buffers[i].Role, p.Buffers[i].Name)}
		}
	}
	return got, nil
}

// updated is the key of the new value of a state or parameter among outputs.
func updated(name string) string { return "→ " + name }

// compare compares what was computed with what should be; nothing at all is right where a target cannot be compared.
func (w *expected) compare(got map[string]*graph.Tensor) error {
	if got == nil {
		return nil
	}
	if len(got) != len(w.outputs)+len(w.updates) {
		return kindOf{"missing", fmt.Errorf("%d outputs and updates, want %d", len(got), len(w.outputs)+len(w.updates))}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		want, ok := w.outputs[name]
		if !ok {
			want = w.updates[strings.TrimPrefix(name, updated(""))]
		}
		if err := ref.Check(got[name], want); err != nil {
			return kindOf{"value", fmt.Errorf("%q: %w", name, err)}
		}
	}
	return nil
}

func sameBits(a, b map[string]*graph.Tensor) error {
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if !a[name].Equal(b[name]) {
			return kindOf{"bits", fmt.Errorf("%q differs in its bits", name)}
		}
	}
	return nil
}

// sameText prints the graph and reads it.
func sameText(g *graph.Graph) error {
	h, err := graph.Parse("case.graph", []byte(graph.Print(g)), graph.LookupIn(graph.Constants(g)))
	if err != nil {
		return err
	}
	return graph.Equal(g, h)
}

// sameFile saves the graph with its weights and loads both.
func sameFile(g *graph.Graph, in map[string]*graph.Tensor) error {
	dir, err := os.MkdirTemp("", "fusec-hostile")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	weights := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Input); !ok {
			weights[n.Name] = in[n.Name]
		}
	}
	path := filepath.Join(dir, "case.graph")
	if err := graph.Save(path, g, weights); err != nil {
		return err
	}
	h, w, err := graph.Load(path)
	if err != nil {
		return err
	}
	if err := graph.Equal(g, h); err != nil {
		return err
	}
	return sameBits(weights, w.Tensors)
}

// differences compares the reference's gradients with finite differences, in the direction of a random vector, where
// all is in F64 and differences of two steps agree: elsewhere they tell nothing.
func differences(c *graphtest.Case, whole *graph.Graph, in map[string]*graph.Tensor) error {
	if len(c.Gradients) == 0 || c.Draw != graphtest.Ordinary {
		return nil
	}
	for _, n := range c.Graph.Nodes {
		_, running := n.Op.(graph.BatchNorm) // whose running statistics pass no gradient
		if n.Type.DType.IsReal() && n.Type.DType != graph.F64 || running {
			return nil
		}
	}
	values, err := ref.Nodes(whole, in, true)
	if err != nil {
		return err
	}
	for _, n := range whole.Nodes { // a closed gate passes no gradient, though its expert would change the result
		op, mixture := n.Op.(graph.MoE)
		if of, ok := n.Op.(graph.MoEGrad); ok { // which may have a gradient in its turn
			op, mixture = of.MoE(), true
		}
		if mixture && !op.Dense && slices.Contains(values[n.Args[1]][0].F, 0) {
			return nil
		}
	}
	gradients := map[string]ref.Value{}
	for _, o := range whole.Outputs {
		gradients[o.Name] = values[o.Node][0]
	}
	plain, err := ref.Nodes(c.Graph, in, false)
	if err != nil {
		return err
	}
	for _, d := range c.Gradients {
		told, want, err := difference(c, d, plain[d.Of][0], in)
		if err != nil {
			return err
		}
		if !told {
			continue
		}
		got, size, rounding := 0.0, 0.0, 0.0
		for i, x := range gradients[d.Output].F {
			got += x * direction(i)
			size += math.Abs(x)
			rounding += 1e-14 * gradients[d.Output].Mag[i] // of terms that cancel
		}
		if math.Abs(got-want) > 1e-4*(1+size)+rounding {
			return kindOf{"value", fmt.Errorf("%q: %v in a direction in which finite differences are %v", d.Output, got, want)}
		}
	}
	return nil
}

// direction is element i of the direction of [difference].
func direction(i int) float64 { return math.Sin(float64(3*i + 1)) }

// difference is the derivative of a cost when a value moves, by two steps that agree; else it tells nothing.
func difference(c *graphtest.Case, d graphtest.Gradient, at ref.Value,
	in map[string]*graph.Tensor) (told bool, _ float64, err error) {
	// Of larger values rounding takes a part of the step that shows.
	if at.Type.Shape.Elems() == 0 || slices.ContainsFunc(at.F, func(x float64) bool { return math.Abs(x) > 1e5 }) {
		return false, 0, nil
	}
	const moved = "hostile.moved"
	one := c.Clone()
	of, cost := one.Graph.Nodes[slices.Index(c.Graph.Nodes, d.Of)], one.Graph.Nodes[slices.Index(c.Graph.Nodes, d.Cost)]
	b := graph.Extend(one.Graph)
	x := b.Input(moved, of.Type)
	if of == cost {
		cost = x
	}
	for _, n := range one.Graph.Nodes {
		if _, ok := n.Op.(graph.Result); ok { // of a further result of the same operation
			continue
		}
		for i, a := range n.Args {
			if a == of {
				n.Args[i] = x
			}
		}
	}
	one.Graph.Outputs, one.Graph.Updates = []graph.Output{{Name: "cost", Node: cost}}, nil
	if err := one.Graph.Tidy(); err != nil {
		return false, 0, err
	}
	in = maps.Clone(in)
	value := func(h float64) (float64, error) {
		in[moved] = at.Tensor()
		for i := range at.F {
			in[moved].SetFloat(i, at.F[i]+h*direction(i))
		}
		out, _, err := ref.Eval(one.Graph, in)
		if err != nil {
			return 0, err
		}
		return out["cost"].Float(0), nil
	}
	middle, err := value(0)
	if err != nil {
		return false, 0, err
	}
	var slopes [2]float64
	for i, h := range []float64{1e-4, 5e-5} {
		up, err := value(h)
		if err != nil {
			return false, 0, err
		}
		down, err := value(-h)
		if err != nil {
			return false, 0, err
		}
		slopes[i] = (up - down) / (2 * h)
		if bend := math.Abs(up+down-2*middle) / h; bend > 1e-3*(1+math.Abs(slopes[i])) {
			return false, 0, nil // a kink, of which each side has a slope of its own
		}
	}
	diff := math.Abs(slopes[0] - slopes[1])
	return diff < 1e-6*(1+math.Abs(slopes[1])), slopes[1], nil // not NaN either
}
