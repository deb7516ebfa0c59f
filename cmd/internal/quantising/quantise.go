// Package quantising is the command fusec quantise.
package quantising

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/quantise"
)

// Command is fusec quantise.
var Command = &cli.Command{
	Name:    "quantise",
	Args:    "[flags] model.graph",
	Summary: "store a model's weights in few bits",
	Doc: `
Stores the weights of a model's products as 8-bit or 4-bit integers with scales, and writes the model that reads them. It prints
for each layer how far its results are off, in norm, and leaves a layer as it is if that is more than --limit. With
--calibrate, layers are measured on the samples of a file, scales are chosen for what the layers read, and the outputs of
both models are compared. Without, only the weights are compared.

An array of the file is named like an input and is a value of it, or, with an axis before its own, as many values as that is
long.`,
	Examples: []cli.Example{
		{"fusec quantise model.graph --weights i8 -o small.graph", "8 bits, one scale for each column"},
		{"fusec quantise model.onnx --weights i4 --group 64 --calibrate samples.npz -o small.graph", "4 bits, measured on samples"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		q := &command{weights: "i8", activations: "f32", group: -1}
		f.Choice(&q.weights, "weights", []string{"i8", "i4"}, "store weights as `TYPE`: i8 or i4 (default i8)")
		group := "`N` rows of a column share a scale: a multiple of 8, or 0 for all (default 0 for i8, 64 for i4)"
		f.Func("group", group, func(s string) error {
			n, err := strconv.Atoi(s)
			if err != nil || n < 0 || n%8 != 0 {
				return errors.New("want 0 or a multiple of 8")
			}
			q.group = n
			return nil
		})
		f.Choice(&q.activations, "activations", []string{"f32", "i8"},
			"round what is multiplied by them to `TYPE`: f32, or i8, with which products sum integers (default f32)")
		limit := "leave layers whose results are off by more than `R`, relative to their norm (default 0.02 for i8, 0.15 for i4)"
		f.Func("limit", limit, func(s string) error {
			v, err := strconv.ParseFloat(s, 64)
			if err != nil || !(v > 0) {
				return errors.New("want a positive number")
			}
			q.limit = v
			return nil
		})
		f.StringVar(&q.calibrate, "calibrate", "", "measure on the samples of `FILE`, .npz or .safetensors")
		f.Output(&q.out, "write the model to `FILE`, named like small.graph, with its weights beside it")
		f.BoolVar(&q.json, "json", false, "print the report as JSON")
		q.shapes.In = modelio.InputFiles{}
		q.shapes.Declare(f, "")
		q.shapes.In.Declare(f, "")
		return q.run
	},
}

// command is fusec quantise with its flags.
type command struct {
	weights        string
	activations    string
	group          int // −1 for the default
	limit          float64
	calibrate, out string
	json           bool
	shapes         modelio.Shapes
}

// A Report is what the command prints.
type Report struct {
	Model       string   `json:"model"`
	Weights     string   `json:"weights"`
	Activations string   `json:"activations"`
	Group       int      `json:"group"` // 0: one scale for each column
	Limit       float64  `json:"limit"`
	Samples     int      `json:"samples"`
	Layers      []Layer  `json:"layers"`
	Outputs     []Output `json:"outputs,omitempty"`
	Bytes       int64    `json:"bytes"`        // of the weights of all layers
	BytesBefore int64    `json:"bytes_before"` // in the model as it was
}

// A Layer is a weight matrix.
type Layer struct {
	Name      string     `json:"name"`
	Shape     []int      `json:"shape"`
	Error     cli.Number `json:"error"` // relative, in norm: of what its products compute, or without samples of the weights
	Quantised bool       `json:"quantised"`
	Reason    string     `json:"reason,omitempty"` // why it stays as it is, or what it multiplies
	Bytes     int64      `json:"bytes"`
}

// An Output is how far an output is off.
type Output struct {
	Name  string     `json:"name"`
	Error cli.Number `json:"error"` // relative, in norm, over all samples
}

func (q *command) run(e *cli.Env, args []string) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	if path == modelio.StdinName {
		return cli.Usage("a graph on standard input comes without weights: give the path of a model")
	}
	if filepath.Ext(q.out) != ".graph" {
		return cli.Usage("-o: want a file named like small.graph")
	}
	if modelio.SameFile(path, q.out) {
		return cli.Usage("-o %s: that is the model itself, whose weights would be lost; name another file", q.out)
	}
	d, err := graph.ParseDType(q.weights)
	if err != nil {
		return cli.Usage("--weights: %v", err)
	}
	o := quantise.Options{Weights: d, Group: q.group}
	if o.Activations, err = graph.ParseDType(q.activations); err != nil {
		return cli.Usage("--activations: %v", err)
	}
	if q.group < 0 {
		o.Group = map[graph.DType]int{graph.I8: 0, graph.I4: 64}[d]
	}
	limit := q.limit
	if limit == 0 {
		limit = map[graph.DType]float64{graph.I8: 0.02, graph.I4: 0.15}[d]
	}
	g, w, err := modelio.LoadModel(e, path, &q.shapes)
	if err != nil {
		return err
	}
	var samples []map[string]*graph.Tensor
	if q.calibrate != "" {
		if samples, err = modelio.Samples(g, q.calibrate); err != nil {
			return err
		}
	}
	r := &Report{Model: path, Weights: q.weights, Activations: q.activations, Group: o.Group, Limit: limit, Samples: len(samples)}
	h, weights, err := r.quantise(e, g, w.Tensors, samples, o)
	if err != nil {
		return err
	}
	h.Name = modelio.ModelName(q.out)
	if err := graph.Save(q.out, h, weights); err != nil {
		return err
	}
	if q.json {
		return cli.WriteJSON(e.Out, r)
	}
	return r.print(e, q.out)
}

// quantise stores the layers and measures them.
func (r *Report) quantise(e *cli.Env, g *graph.Graph, weights map[string]*graph.Tensor, samples []map[string]*graph.Tensor,
	o quantise.Options) (*graph.Graph, map[string]*graph.Tensor, error) {
	show := cli.NewProgress(e.Stderr)
	defer show.Done()
	all := quantise.Layers(g)
	var layers []quantise.Layer
	for _, l := range all {
		if l.Reason == "" {
			layers = append(layers, l)
		}
	}
	importance, err := moments(e, show, g, weights, samples, layers)
	if err != nil {
		return nil, nil, err
	}
	stored := make([]quantise.Stored, len(layers))
	for i, l := range layers {
		if err := e.Ctx.Err(); err != nil {
			return nil, nil, err
		}
		show.Show("layer %d of %d: %s", i+1, len(layers), l.Weight.Name)
		stored[i].Layer = l
		if stored[i].Q, stored[i].Scale, err = l.Matrix(weights[l.Weight.Name], importance[i], o); err != nil {
			return nil, nil, err
		}
	}
	lost, err := losses(e, show, g, weights, samples, stored, o)
	if err != nil {
		return nil, nil, err
	}
	var kept []quantise.Stored
	at := map[*graph.Node]int{}
	for i := range stored {
		at[stored[i].Weight] = i
	}
	for _, l := range all {
		n := l.Weight
		of := Layer{Name: n.Name, Shape: n.Type.Shape.Slice(), Reason: l.Reason, Bytes: n.Type.Bytes()}
		r.BytesBefore += of.Bytes
		if i, ok := at[n]; ok {
			of.Error = cli.Number(lost[i])
			if lost[i] <= r.Limit {
				of.Quantised, of.Bytes = true, l.Bytes(o)
				if o.Activations == graph.I8 && !l.Rounds(o) {
					of.Reason = fmt.Sprintf("its rows are no whole groups of %d", o.Group)
				}
				kept = append(kept, stored[i])
			} else {
				of.Reason = fmt.Sprintf("its results would be off by %s, more than %v", percent(lost[i]), percent(r.Limit))
			}
		}
		r.Bytes += of.Bytes
		r.Layers = append(r.Layers, of)
	}
	h, values, err := quantise.Replace(g, weights, kept, o)
	if err != nil {
		return nil, nil, err
	}
	return h, values, r.outputs(e, show, g, h, weights, values, samples)
}

// compiled is the program of a graph with its weights.
func compiled(g *graph.Graph, weights map[string]*graph.Tensor) (*fusec.Program, error) {
	p, err := fusec.Compile(g)
	if err != nil {
		return nil, err
	}
	for _, n := range g.Sources() {
		if t := weights[n.Name]; t != nil {
			if err := p.Set(n.Name, t); err != nil {
				p.Close()
				return nil, err
			}
		}
	}
	return p, nil
}

// each runs a graph on all samples.
func each(e *cli.Env, show *cli.Progress, what string, g *graph.Graph, weights map[string]*graph.Tensor,
	samples []map[string]*graph.Tensor, take func(sample int, out map[string]*graph.Tensor)) error {
	p, err := compiled(g, weights)
	if err != nil {
		return err
	}
	defer p.Close()
	for i, in := range samples {
		if err := e.Ctx.Err(); err != nil {
			return err
		}
		show.Show("%s: sample %d of %d", what, i+1, len(samples))
		out, err := p.Run(in)
		if err != nil {
			return err
		}
		take(i, out)
	}
	return nil
}

// moments are the importances of the rows of each layer; nil without samples.
func moments(e *cli.Env, show *cli.Progress, g *graph.Graph, weights map[string]*graph.Tensor, samples []map[string]*graph.Tensor,
	layers []quantise.Layer) ([][]float64, error) {
	sums := make([][]float64, len(layers))
	if len(samples) == 0 || len(layers) == 0 {
		return sums, nil
	}
	h, err := quantise.Moments(g, layers)
	if err != nil {
		return nil, err
	}
	return sums, each(e, show, "what layers read", h, weights, samples, func(_ int, out map[string]*graph.Tensor) {
		for i := range layers {
			sums[i] = quantise.Importance(i, &layers[i], out, sums[i])
		}
	})
}

// losses are the relative errors of the layers.
func losses(e *cli.Env, show *cli.Progress, g *graph.Graph, weights map[string]*graph.Tensor, samples []map[string]*graph.Tensor,
	stored []quantise.Stored, o quantise.Options) ([]float64, error) {
	lost := make([]float64, len(stored))
	if len(samples) == 0 || len(stored) == 0 {
		for i := range stored {
			lost[i] = stored[i].WeightError(weights[stored[i].Weight.Name], o)
		}
		return lost, nil
	}
	h, more, err := quantise.Losses(g, stored, o)
	if err != nil {
		return nil, err
	}
	for name, t := range weights {
		more[name] = t
	}
	off, size := make([]float64, len(stored)), make([]float64, len(stored))
	err = each(e, show, "what layers lose", h, more, samples, func(_ int, out map[string]*graph.Tensor) {
		for i := range stored {
			a, b := quantise.Lost(i, &stored[i].Layer, out)
			off[i], size[i] = off[i]+a, size[i]+b
		}
	})
	for i := range lost {
		lost[i] = quantise.Relative(off[i], size[i])
	}
	return lost, err
}

// outputs compares what both models hand out.
func (r *Report) outputs(e *cli.Env, show *cli.Progress, g, h *graph.Graph, before, after map[string]*graph.Tensor,
	samples []map[string]*graph.Tensor) error {
	if len(samples) == 0 {
		return nil
	}
	plain, _ := g.Clone()
	plain.Gradients, plain.Training = nil, nil
	first, err := compiled(plain, before)
	if err != nil {
		return err
	}
	defer first.Close()
	off, size := make([]float64, len(g.Outputs)), make([]float64, len(g.Outputs))
	var failed error
	err = each(e, show, "outputs", h, after, samples, func(i int, got map[string]*graph.Tensor) {
		want, err := first.Run(samples[i])
		if err != nil {
			failed = err
			return
		}
		for k, o := range g.Outputs {
			for j, v := range want[o.Name].Floats() {
				d := got[o.Name].Float(j) - v
				off[k], size[k] = off[k]+d*d, size[k]+v*v
			}
		}
	})
	if err == nil {
		err = failed
	}
	for k, o := range g.Outputs {
		r.Outputs = append(r.Outputs, Output{o.Name, cli.Number(quantise.Relative(off[k], size[k]))})
	}
	return err
}

func percent(v float64) string { return fmt.Sprintf("%.3g %%", 100*v) }

// print writes the report as text.
func (r *Report) print(e *cli.Env, to string) error {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "layer\tweights\terror\tsize\t")
	kept := 0
	for _, l := range r.Layers {
		note, off := l.Reason, "-"
		if l.Quantised {
			kept++
		}
		if l.Error != 0 {
			off = percent(float64(l.Error))
		}
		switch {
		case l.Quantised && note != "":
			note = "what it multiplies stays: " + note
		case note != "":
			note = "stays: " + note
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", l.Name, strings.ReplaceAll(strings.Trim(fmt.Sprint(l.Shape), "[]"), " ", "×"), off,
			cli.HumanBytes(l.Bytes), note)
	}
	t.Flush()
	for _, o := range r.Outputs {
		fmt.Fprintf(&b, "output %s is off by %s\n", o.Name, percent(float64(o.Error)))
	}
	what := "weights are"
	if r.Samples > 0 {
		what = "results, on " + cli.Plural(r.Samples, "sample", "samples") + ", are"
	}
	fmt.Fprintf(&b, "%s: %d of %s in %s, %s instead of %s; errors of %s relative to their norm\n", to, kept,
		cli.Plural(len(r.Layers), "layer", "layers"), r.Weights, cli.HumanBytes(r.Bytes), cli.HumanBytes(r.BytesBefore), what)
	return e.Print(b.String())
}
