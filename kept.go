package fusec

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"fusec/graph"
	"fusec/graph/atomicfile"
	"fusec/graph/optim"
	"fusec/graph/trace"
	"fusec/lowering"
	"fusec/lowering/reuse"
	"fusec/passes"
)

// Programs are kept in the process, for graphs that are equal, and in files, for processes to come.

// The default size of the cache: see [WithoutProgramCache].
const (
	cachedPrograms     = 256
	cachedProgramBytes = 64 << 20
)

// reusedNote is what the trace of a program says that was not compiled.
const reusedNote = "program reused: an equal graph was compiled before"

// ClearProgramCache lets go of all programs that are kept for graphs to come. Programs in use are not affected.
func ClearProgramCache() { programs.Clear() }

// programs are those of this process.
var programs = reuse.New(cachedPrograms, cachedProgramBytes)

// programKey is what decides, beside the graph, which program is made.
type programKey struct {
	cfg       config
	device    any    // its [lowering.Device.Shared]
	optimizer string // its [request.optimizerKey]
}

// key is the configuration without what does not decide which program is made, so that two configurations give
// the same program if their keys are deeply equal. What is not named here counts; so does every field that is added. The
// optimiser is compared by [request.optimizerKey], gradients by their nodes' places, and values are outputs of the graph.
func (c config) key() config {
	c.optimizer, c.gradients, c.values, c.allValues = nil, nil, nil, false
	c.seed, c.err, c.withoutCache, c.unverified = 0, nil, false, false
	c.target, c.options, c.workers, c.applied, c.kept = "", nil, 0, 0, 0
	c.compile, c.machine, c.special = nil, nil, nil
	return c
}

// optimizerKey says what the optimiser makes of the steps; ok is false if its rule is not one that is known to be
// described by the values of its fields.
func (r *request) optimizerKey() (key string, ok bool) {
	if r.cfg.optimizer == nil {
		return "", true
	}
	o := *r.cfg.optimizer
	if t := reflect.TypeOf(o.Rule); t.Kind() != reflect.Struct || t.PkgPath() != reflect.TypeFor[optim.Optimizer]().PkgPath() {
		return "", false
	}
	var b strings.Builder
	for _, s := range r.steps {
		g, err := o.Of(s.Param.Name, s.Param.Type)
		if err != nil {
			return "", false
		}
		fmt.Fprintf(&b, "%#v", g)
	}
	o.Rate, o.Group = nil, nil // which the program does not know
	fmt.Fprintf(&b, "%#v", o)
	return b.String(), true
}

// clone is the request in terms of a graph that nobody else knows, with constants of its own.
func (r *request) clone() request {
	g, to := r.graph.Clone()
	for _, n := range g.Nodes {
		if k, ok := n.Op.(graph.Const); ok {
			n.Op = graph.Const{Value: k.Value.Clone()}
		}
	}
	own := func(n *graph.Node) *graph.Node {
		if m, ok := to[n]; ok {
			return m
		}
		return n // of another graph, which the passes refuse
	}
	c := *r
	c.graph, c.gradients, c.steps = g, slices.Clone(r.gradients), slices.Clone(r.steps)
	for i, d := range c.gradients {
		c.gradients[i] = passes.Gradient{Cost: own(d.Cost), Of: own(d.Of), Seed: own(d.Seed), Value: own(d.Value), Output: d.Output}
	}
	for i, s := range c.steps {
		c.steps[i] = passes.Step{Param: own(s.Param), Cost: own(s.Cost), Seed: own(s.Seed), Value: own(s.Value)}
	}
	return c
}

// reusable is the request as package reuse compares it, for devices that share the given value; or the reason why its program
// cannot be found again.
func (r *request) reusable(shared any) (q reuse.Request, reason string) {
	optimizer, ok := r.optimizerKey()
	if !ok {
		return q, fmt.Sprintf("the optimiser's rule %T is the user's own", r.cfg.optimizer.Rule)
	}
	if at := reuse.Opaque(r.graph); at != "" {
		return q, fmt.Sprintf("%s is opaque: nobody can tell whether another one is equal", at)
	}
	q = reuse.Request{Graph: r.graph, Key: programKey{r.cfg.key(), shared, optimizer}, Labels: r.cfg.optimizer != nil ||
		r.cfg.watched()}
	for _, d := range r.gradients {
		q.Nodes = append(q.Nodes, d.Cost, d.Of, d.Seed, d.Value)
		q.Outputs = append(q.Outputs, d.Output)
	}
	for _, s := range r.steps {
		q.Nodes = append(q.Nodes, s.Param, s.Cost, s.Seed, s.Value)
	}
	return q, ""
}

// obtain finds the request's program and an executable for it, or makes them.
func (p *Program) obtain(device lowering.Device) (err error) {
	r := &p.request
	shared := device.Shared()
	keep, reason := shared != nil && !r.cfg.withoutCache, ""
	var found *reuse.Entry
	var q reuse.Request
	labels := false
	if keep {
		if q, reason = r.reusable(shared); reason == "" {
			found, labels = programs.Find(&q)
		}
		keep = reason == ""
	}
	if r.cfg.unverified && !labels { // one that is equal in all has been verified
		if err := graph.Verify(r.graph); err != nil {
			return fmt.Errorf("importing a Gorgonia graph: %w", err)
		}
	}
	if found != nil {
		return p.adopt(found, labels, &q, device)
	}
	if keep {
		*r = r.clone()
		q, _ = r.reusable(shared)
		q.Made = &request{graph: r.graph, gradients: r.gradients, steps: r.steps}
	}
	if p.trace, p.program, err = r.plan(device); err != nil {
		return err
	}
	if reason != "" {
		p.note(trace.Note{Node: -1, Text: "the program is not kept for equal graphs: " + reason})
	}
	if p.exe, err = device.Compile(p.program); err != nil {
		return err
	}
	if shared == nil {
		p.exe = lowering.CloseWhenDropped(p.exe, p.program)
	}
	if keep {
		p.cached = programs.Add(&q, p.program)
	}
	return nil
}

// adopt makes p a program that is kept.
func (p *Program) adopt(e *reuse.Entry, labels bool, q *reuse.Request, device lowering.Device) (err error) {
	p.cached = e
	if labels {
		made := e.Request.Made.(*request)
		p.program = e.Program
		p.graph, p.gradients, p.steps = made.graph, made.gradients, made.steps
	} else {
		p.program, p.strange = e.Labelled(q), true
		p.request = p.clone() // the caller may change the graph
	}
	p.note(trace.Note{Node: -1, Text: reusedNote})
	if s := programs.Spare(e); s != nil {
		p.exe = s.Executable(p.program)
		return nil
	}
	p.exe, err = device.Compile(p.program)
	return err
}

// describe makes the trace, and the labels of launches, of a program that was found and not compiled.
func (p *Program) describe() {
	if p.trace != nil || p.cached == nil {
		return
	}
	device, err := p.cfg.device(false)
	var tr *trace.Trace
	var program *lowering.Program
	if err == nil {
		tr, program, err = p.plan(device)
	}
	if err != nil { // it has been planned before
		if tr == nil {
			tr = &trace.Trace{}
		}
		tr.Stages = append(tr.Stages, trace.Stage{Notes: []trace.Note{{Node: -1, Text: err.Error()}}})
	} else {
		p.program, p.strange = program, false
	}
	p.trace = tr
	notes := p.notes
	p.notes = nil
	p.note(notes...)
}

// note adds to the trace, which may be yet to come.
func (p *Program) note(notes ...trace.Note) {
	if p.trace == nil {
		p.notes = append(p.notes, notes...)
		return
	}
	first := &p.trace.Stages[0].Notes
	*first = append(*first, notes...)
}

// explain gives the error of a run in terms of the program's own nodes.
func (p *Program) explain(err error) error {
	if e, ok := err.(*lowering.LaunchError); ok && p.strange {
		p.describe()
		return &lowering.LaunchError{Launch: e.Launch, Node: p.program.Launches[e.Launch].Node, Err: e.Err}
	}
	return err
}

// release closes the executable. What it leaves serves the next program of an equal request.
func (p *Program) release() error {
	err := p.exe.Close()
	if p.cached != nil && err == nil {
		if s := p.exe.Spare(); s != nil {
			programs.Leave(p.cached, s)
		}
	}
	return err
}

// The parts of a file that CompileAhead writes, a zip archive, beside those of the target.
const (
	aheadSchema  = "fusec.fuse/1"
	aheadHeader  = "fuse.json" // the schema, and the fields of the target's header
	aheadGraph   = "model.graph"
	aheadWeights = "model.safetensors"
)

// Ahead is a model that was compiled ahead of time for a target: the graph, its weights, and what the target has made of
// it. [Compile] with [WithAhead] runs it: a GPU's driver alone is enough, for example.
type Ahead struct {
	Graph   *graph.Graph
	Weights map[string]*graph.Tensor // by parameter and state; nil if the file holds none
	Chip    string                   // what it was compiled for, such as "sm_90a" or "the overlay sim8"

	target  string
	options []lowering.TargetOption
}

// CompileAhead compiles a graph for the target that the options name, of which no device need be there, and writes what a
// program needs to run on one: the graph, its weights (nil leaves them out), and for a GPU the machine code of its kernels,
// for an overlay the ranges of its values, which are found on samples. The options are those of [Compile]. Progress, if not
// nil, is told how many kernels are done.
func CompileAhead(path string, g *graph.Graph, weights map[string]*graph.Tensor, progress func(done, all int),
	opts ...CompileOption) error {
	cfg, err := newConfig(opts)
	if err != nil {
		return err
	}
	_, program, err := Plan(g, opts...)
	if err != nil {
		return err
	}
	device, err := cfg.device(false)
	if err != nil {
		return err
	}
	compiler, ok := device.(lowering.Ahead)
	if !ok {
		return fmt.Errorf("target %q: nothing is compiled ahead of time for it", cfg.target)
	}
	fields, parts, err := compiler.CompileAhead(program, weights, progress)
	if err != nil {
		return err
	}
	header, err := aheadHeaderOf(fields)
	if err != nil {
		return err
	}
	return atomicfile.Write(path, func(w io.Writer) error { return writeAhead(w, g, weights, header, parts) })
}

// aheadHeaderOf is the schema and the fields of a target's header as one object.
func aheadHeaderOf(fields any) ([]byte, error) {
	text, err := json.Marshal(fields)
	if err != nil {
		return nil, err
	}
	var header bytes.Buffer
	err = json.Indent(&header, []byte(fmt.Sprintf(`{"schema":%q,%s`, aheadSchema, bytes.TrimPrefix(text, []byte("{")))), "", "  ")
	return header.Bytes(), err
}

func writeAhead(w io.Writer, g *graph.Graph, weights map[string]*graph.Tensor, header []byte, parts map[string][]byte) error {
	dir, err := os.MkdirTemp("", "fuse")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := graph.Save(filepath.Join(dir, aheadGraph), g, weights); err != nil {
		return err
	}
	z := zip.NewWriter(w)
	put := func(name string, from io.Reader) error {
		to, err := z.CreateHeader(&zip.FileHeader{Name: name, Method: zip.Store})
		if err == nil {
			_, err = io.Copy(to, from)
		}
		return err
	}
	if err := put(aheadHeader, bytes.NewReader(header)); err != nil {
		return err
	}
	for _, name := range []string{aheadGraph, aheadWeights} {
		f, err := os.Open(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) {
			continue // a graph without weights
		}
		if err != nil {
			return err
		}
		err = put(name, f)
		f.Close()
		if err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		if err := put(name, bytes.NewReader(parts[name])); err != nil {
			return err
		}
	}
	return z.Close()
}

// OpenAhead reads a file that [CompileAhead] wrote.
func OpenAhead(path string) (*Ahead, error) {
	a, err := openAhead(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

func openAhead(path string) (*Ahead, error) {
	z, err := zip.OpenReader(path)
	if place := (*fs.PathError)(nil); errors.As(err, &place) {
		return nil, place.Err
	}
	if err != nil {
		return nil, fmt.Errorf("not a compiled model: %w", err)
	}
	defer z.Close()
	dir, err := os.MkdirTemp("", "fuse")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	var header []byte
	parts := map[string][]byte{}
	if err := unpacks(path, z.File); err != nil {
		return nil, err
	}
	for _, f := range z.File {
		if err := readPart(f, dir, &header, parts); err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name, err)
		}
	}
	var info struct{ Schema string }
	if err := json.Unmarshal(header, &info); header != nil && err != nil {
		return nil, fmt.Errorf("%s: %w", aheadHeader, err)
	}
	if info.Schema != aheadSchema {
		return nil, fmt.Errorf("its schema is %q, not %q", info.Schema, aheadSchema)
	}
	a := &Ahead{}
	for _, t := range targets {
		if t.Load == nil {
			continue
		}
		opts, what, ok, err := t.Load(header, parts)
		if err != nil {
			return nil, err
		}
		if ok {
			a.Chip, a.target, a.options = what, t.Name, opts
		}
	}
	if a.target == "" {
		return nil, errors.New("it was compiled for a target that this version does not know")
	}
	file := filepath.Join(dir, aheadGraph)
	g, w, err := graph.Load(file)
	if missing := (*graph.MissingWeightsError)(nil); errors.As(err, &missing) {
		a.Graph, err = graph.LoadGraph(file)
		return a, err
	}
	if err != nil {
		return nil, err
	}
	a.Graph, a.Weights = g, w.Tensors
	return a, nil
}

// unpacks refuses an archive whose parts have more bytes than the file: [CompileAhead] compresses none, and a small file
// could otherwise fill the memory.
func unpacks(path string, parts []*zip.File) error {
	file, err := os.Stat(path)
	if err != nil {
		return err
	}
	left := uint64(file.Size())
	for _, f := range parts {
		if f.UncompressedSize64 > left {
			return fmt.Errorf("its parts have more bytes than the file, which has %d; they are not compressed in a compiled model",
				file.Size())
		}
		left -= f.UncompressedSize64
	}
	return nil
}

// readPart takes over one part of the archive; the graph and its weights go to files in dir.
func readPart(f *zip.File, dir string, header *[]byte, parts map[string][]byte) error {
	part, err := f.Open()
	if err != nil {
		return err
	}
	defer part.Close()
	r := io.LimitReader(part, int64(f.UncompressedSize64)) // whatever the archive really holds
	if f.Name == aheadGraph || f.Name == aheadWeights {
		to, err := os.Create(filepath.Join(dir, f.Name))
		if err != nil {
			return err
		}
		_, err = io.Copy(to, r)
		return errors.Join(err, to.Close())
	}
	data, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	if f.Name == aheadHeader {
		*header = data
	} else {
		parts[f.Name] = data
	}
	return nil
}

// WithAhead has [Compile] take what was compiled ahead of time, for the graph that is stored with it, and its target, if no
// device of that target is named.
func WithAhead(a *Ahead) CompileOption {
	return option(func(c *config) {
		if a == nil {
			c.fail("WithAhead: the compiled model is nil")
			return
		}
		if name, _, _ := strings.Cut(c.target, ":"); name != a.target {
			c.target = a.target
		}
		c.options = append(c.options, a.options...)
	})
}

// Target is the name of the target that it was compiled for.
func (a *Ahead) Target() string { return a.target }
