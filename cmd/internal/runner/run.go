// Package runner is `fusec run`.
package runner

import (
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"strconv"
	"strings"
	"time"
	"unicode"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/npy"
	"fusec/kernels/ref"
)

// Command is fusec run.
var Command = &cli.Command{
	Name:    "run",
	Args:    "[flags] model.graph",
	Summary: "run a model and show its outputs",
	Doc: `
Compiles the model and runs it once on the inputs given with --in. Inputs that are not given are random, decided by
--seed. Weights come from the .safetensors file beside the graph. State starts as that file has it; what a run does to
it is not written back. Weights that the model does not update are frozen: what follows from them and from constants
alone is computed once, before the rest.

With --against ref the reference computes everything a second time, in float64: each launch from the operands that it
read, and each output from the model as the file has it, before any pass. Results that differ by more than the bound are
listed, and the exit code is 1. In f32 the bound is 1e-5 of the sum of a result's terms, for convolutions by Winograd's
algorithm (see --no-winograd) of the terms of that algorithm. The reference is slow: a billion multiplications take it
seconds. --target ref runs the whole model on it.`,
	Examples: []cli.Example{
		{"fusec run model.graph", "on random inputs"},
		{"fusec run model.graph --in x=batch.npy --out results", "on an input of your own; each output becomes results/NAME.npy"},
		{"fusec run model.graph --target cuda --against ref", "compare each launch and output with the reference"},
		{"fusec run model.graph --random-weights --json", "without the weights; for programs"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		r := &runner{in: modelio.InputFiles{}}
		r.compile.Declare(f)
		r.values.Declare(f)
		r.in.Declare(f, "")
		f.StringVar(&r.out, "out", "", "write the outputs to the folder `DIR`, as .npy")
		f.Alias("out", "o")
		f.Alias("out", "output")
		f.Func("against", "compare each launch, and each output, with the `REFERENCE` ref", func(s string) error {
			if s != modelio.Reference().Name {
				return errors.New(cli.Unknown("reference", s, []string{modelio.Reference().Name}))
			}
			r.against = s
			return nil
		})
		f.Values("against", func() []string { return []string{modelio.Reference().Name} })
		f.BoolVar(&r.json, "json", false, "print the report as JSON")
		return r.run
	},
}

// runner is fusec run with its flags.
type runner struct {
	compile modelio.CompileFlags
	values  modelio.ValueFlags
	in      modelio.InputFiles
	out     string
	json    bool
	against string
}

// RunReport is what fusec run found, and its JSON form.
type RunReport struct {
	Schema      string      `json:"schema"` // fusec.run/1
	Model       string      `json:"model"`
	Target      string      `json:"target"`
	Precision   string      `json:"precision"` // f32, tf32, bf16 or f16; int8 on an overlay
	Seed        uint64      `json:"seed"`
	Launches    int         `json:"launches"`
	CompileNS   int64       `json:"compile_ns"`
	RunNS       int64       `json:"run_ns"`
	MemoryBytes int64       `json:"memory_bytes"` // besides inputs and weights
	Sources     []runSource `json:"sources"`
	Outputs     []runOutput `json:"outputs"`

	Against *runAgainst `json:"against,omitempty"`
}

type runSource struct {
	Name string `json:"name"`
	Kind string `json:"kind"` // input, param or state
	Type string `json:"type"`
	From string `json:"from"` // random, weights or the file's path
}

type runOutput struct {
	Name  string      `json:"name"`
	Type  string      `json:"type"`
	Mean  cli.Value   `json:"mean"` // these four without NaN; nan if there is nothing else
	Min   cli.Value   `json:"min"`
	Max   cli.Value   `json:"max"`
	NaN   int         `json:"nan"` // elements
	First []cli.Value `json:"first"`
	File  string      `json:"file,omitempty"`
}

func (r *runner) run(e *cli.Env, args []string) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	r.compile.Shapes.In = r.in
	g, vals, err := r.values.Load(e, path, &r.compile.Shapes, false)
	if err != nil {
		return err
	}
	if err := r.in.Read(g, vals); err != nil {
		return err
	}
	if len(g.Outputs)+len(g.Updates)+len(g.Gradients) == 0 && g.Training == nil {
		return fmt.Errorf("%s has no output: there is nothing to compute; a line such as \"output y = x\" names one", path)
	}
	show := cli.NewProgress(e.Stderr)
	var more []fusec.CompileOption
	if r.against != "" {
		more = append(more, fusec.WithReference())
	}
	p, err := r.compile.Compile(g, vals, modelio.Opening(e, show), more...)
	show.Done()
	if err != nil {
		return err
	}
	defer p.Close()
	var want map[string]ref.Value
	if r.against != "" { // before the run, which changes what updates write
		show.Show("%s by the reference", modelio.ModelName(path))
		want, err = wanted(g, p, vals)
		show.Done()
		if err != nil {
			return err
		}
	}
	start := time.Now()
	if err := p.Exec(); err != nil {
		return err
	}
	took := time.Since(start)
	if e.Ctx.Err() != nil {
		return e.Ctx.Err()
	}
	rep := &RunReport{Schema: "fusec.run/1", Model: modelio.ModelName(path), Target: r.compile.Target,
		Precision: p.Trace().Precision, Seed: r.values.Seed, Launches: len(p.Fusions()),
		CompileNS: p.CompileTime().Nanoseconds(), RunNS: took.Nanoseconds(), MemoryBytes: p.Bytes(), Sources: r.sources(g,
			vals), Outputs: []runOutput{}}
	var files []cli.Output
	names := g.OutputNames()
	paths := fileNames(names)
	for i, name := range names {
		t, err := p.Output(name)
		if err != nil {
			return err
		}
		out := summarise(name, t)
		if r.out != "" {
			out.File = paths[i]
			if len(name) > maxFileName {
				e.Note("the name of output %.40q… is too long for a file; it is in %s", name, out.File)
			}
			files = append(files, cli.Output{Path: out.File, Write: func(w io.Writer) error { return npy.Write(w, t) }})
		}
		rep.Outputs = append(rep.Outputs, out)
	}
	if r.out != "" {
		if err := cli.WriteFolder(r.out, files); err != nil {
			return err
		}
	}
	if r.against != "" {
		if rep.Against, err = against(r.against, p, want); err != nil {
			return err
		}
	}
	if r.json {
		err = cli.WriteJSON(e.Out, rep)
	} else {
		err = e.Print(rep.text(r.out))
	}
	if err == nil && rep.Against != nil {
		err = rep.Against.err()
	}
	return err
}

// sources tells where each value came from.
func (r *runner) sources(g *graph.Graph, vals *modelio.Values) []runSource {
	list := []runSource{}
	for _, n := range g.Sources() {
		s := runSource{n.Name, n.Op.OpName(), n.Type.String(), "weights"}
		if file, ok := r.in[n.Name]; ok {
			s.From = file
		} else if vals.Random[n.Name] {
			s.From = "random"
		}
		list = append(list, s)
	}
	return list
}

// summarise describes an output.
func summarise(name string, t *graph.Tensor) runOutput {
	const first = 6
	o := runOutput{Name: name, Type: t.Type.String(), First: []cli.Value{}}
	n := t.Type.Shape.Elems()
	least, most := -1, -1 // the elements
	for i := range n {
		v := t.Float(i)
		if i < first {
			o.First = append(o.First, cli.ValueOf(t, i))
		}
		if math.IsNaN(v) {
			o.NaN++
			continue
		}
		if least < 0 || less(t, i, least) {
			least = i
		}
		if most < 0 || less(t, most, i) {
			most = i
		}
	}
	nan := cli.Value{Number: cli.Number(math.NaN())}
	o.Mean, o.Min, o.Max = nan, nan, nan
	if least >= 0 {
		o.Mean = mean(t, n-o.NaN)
		o.Min, o.Max = cli.ValueOf(t, least), cli.ValueOf(t, most)
	}
	return o
}

// mean is that of the n elements that are not NaN. Integers are added exactly: a mean that is whole has all digits, another is
// the nearest float64.
func mean(t *graph.Tensor, n int) cli.Value {
	if !t.Type.DType.IsInt() {
		sum := 0.0
		for i := range t.Type.Shape.Elems() {
			if v := t.Float(i); !math.IsNaN(v) {
				sum += v
			}
		}
		return cli.Value{Number: cli.Number(sum / float64(n))}
	}
	sum, term := new(big.Int), new(big.Int)
	for i := range n {
		term.SetString(t.Whole(i), 10)
		sum.Add(sum, term)
	}
	m := new(big.Rat).SetFrac(sum, big.NewInt(int64(n)))
	nearest, _ := m.Float64()
	v := cli.Value{Number: cli.Number(nearest)}
	if m.IsInt() {
		v.Whole = m.Num().String()
	}
	return v
}

// less compares two elements, integers exactly.
func less(t *graph.Tensor, i, j int) bool {
	if t.Type.DType.IsInt() {
		return t.Type.DType.Less(t.Int(i), t.Int(j))
	}
	return t.Float(i) < t.Float(j)
}

// maxFileName is the most bytes of a file's name that file systems have in common, less those of an extension.
const maxFileName = 200

// fileNames are the files of outputs, all different: their names, with _ for what is no letter, digit, dot, hyphen or
// underscore and for a dot at the beginning. A name that is too long is cut, and of several with one file all but the first
// get a number.
func fileNames(outputs []string) []string {
	files, taken := make([]string, len(outputs)), map[string]bool{}
	for i, name := range outputs {
		s := strings.Map(func(r rune) rune {
			if r < 128 && (r == '.' || r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r)) {
				return r
			}
			return '_'
		}, name)
		s = s[:min(len(s), maxFileName)]
		if s == "" || s[0] == '.' {
			s = "_" + strings.TrimPrefix(s, ".")
		}
		try := s
		for n := 2; taken[strings.ToLower(try)]; n++ { // some file systems do not tell the cases of letters apart
			try = fmt.Sprintf("%s_%d", s, n)
		}
		taken[strings.ToLower(try)] = true
		files[i] = try + ".npy"
	}
	return files
}

// text prints the report for people; dir is where the outputs went.
func (rep *RunReport) text(dir string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on %s: %s in %s, compiled in %s, memory %s\n", rep.Model, modelio.On(rep.Target, rep.Precision),
		cli.Plural(rep.Launches, "launch", "launches"),
		cli.HumanTime(time.Duration(rep.RunNS)), cli.HumanTime(time.Duration(rep.CompileNS)), cli.HumanBytes(rep.MemoryBytes))
	var random []string
	for _, s := range rep.Sources {
		if s.From == "random" {
			random = append(random, s.Name)
		}
	}
	if len(random) > 0 {
		fmt.Fprintf(&b, "random, seed %d: %s\n", rep.Seed, strings.Join(cli.FirstOf(random, 8), ", "))
	}
	t := cli.NewTable("output", "type", ">mean", ">min", ">max", ">nan", "first values", "file")
	for _, o := range rep.Outputs {
		var first []string
		for _, v := range o.First {
			first = append(first, v.Short())
		}
		nan := ""
		if o.NaN > 0 {
			nan = strconv.Itoa(o.NaN)
		}
		t.Row(o.Name, o.Type, o.Mean.Short(), o.Min.Short(), o.Max.Short(), nan, strings.Join(first, " "), o.File)
	}
	b.WriteString("\n" + t.String())
	if rep.Against != nil {
		b.WriteString("\n" + rep.Against.text())
	}
	if dir != "" {
		fmt.Fprintf(&b, "\n%s in %s\n", cli.Plural(len(rep.Outputs), "file", "files"), dir)
	}
	return b.String()
}
