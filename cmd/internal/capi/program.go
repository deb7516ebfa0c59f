package capi

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/dot"
	"fusec/graph/onnx"
	"fusec/graph/report"
	"fusec/graph/trace/tracejson"
)

// Kind is what a value of a program's interface is for.
type Kind int

// The kinds of values, as fusec_kind numbers them.
const (
	KindInput Kind = iota
	KindParameter
	KindState
	KindOutput
	kinds
)

var kindNames = [kinds]string{"input", "parameter", "state", "output"}

// Value is a value of a program's interface.
type Value struct {
	Name string
	Type graph.Type
}

// Program is a compiled model. Calls that would overlap return an error.
type Program struct {
	busy    sync.Mutex
	program *fusec.Program // nil after Close
	graph   *graph.Graph
	values  [kinds][]Value
	given   map[string]*graph.Tensor // parameters that were set
	calls   calls
	ran     bool            // outputs hold the values of the last run
	queued  fusec.QueuedRun // the one that Queue asks for

	pinned runtime.Pinner
	views  map[string]*view
}

// view is what C knows of a value that it was handed.
type view struct {
	data    unsafe.Pointer
	shape   []int64
	strides []int64
}

// Open compiles a model: a .graph file with its weights beside it, a .onnx file, or a .fuse file.
func Open(path string, options []string) (*Program, error) {
	s, err := parseOptions(options)
	if err != nil {
		return nil, err
	}
	if filepath.Ext(path) == modelio.AheadExt {
		a, err := fusec.OpenAhead(path)
		if err != nil {
			return nil, err
		}
		s.compile = append(s.compile, fusec.WithAhead(a))
		return compile(a.Graph, s, a.Weights)
	}
	if strings.EqualFold(filepath.Ext(path), onnx.Extension) {
		m, err := onnx.Load(path, onnx.Options{Dims: s.dims})
		if err != nil {
			return nil, err
		}
		return compile(m.Graph, s, m.Weights)
	}
	if len(s.dims) > 0 {
		return nil, fmt.Errorf("options %sNAME=SIZE are for ONNX models; the sizes of %s are fixed", sizeOption, path)
	}
	g, w, err := graph.Load(path)
	if err != nil {
		return nil, err
	}
	return compile(g, s, w.Tensors)
}

// Parse compiles text in the form of a .graph file, without weights.
func Parse(text []byte, options []string) (*Program, error) {
	s, err := parseOptions(options)
	if err != nil {
		return nil, err
	}
	g, err := graph.Parse("text", text, nil)
	if err != nil {
		return nil, err
	}
	return compile(g, s, nil)
}

func compile(g *graph.Graph, s *settings, weights map[string]*graph.Tensor) (*Program, error) {
	if err := s.apply(g); err != nil {
		return nil, err
	}
	c := &Program{graph: g, given: map[string]*graph.Tensor{}, views: map[string]*view{}}
	for _, n := range g.Sources() {
		k := KindInput
		switch n.Op.(type) {
		case graph.Param:
			k = KindParameter
		case graph.State:
			k = KindState
		}
		c.values[k] = append(c.values[k], Value{n.Name, n.Type})
	}
	for _, o := range g.Outputs {
		c.values[KindOutput] = append(c.values[KindOutput], Value{o.Name, o.Node.Type})
	}
	for _, d := range g.Gradients {
		if d.Output != "" {
			c.values[KindOutput] = append(c.values[KindOutput], Value{d.Output, d.Of.Type})
		}
	}
	p, err := fusec.Compile(g, s.compile...)
	if err != nil {
		return nil, err
	}
	for name, t := range weights {
		if err := p.Set(name, t); err != nil {
			return nil, errors.Join(err, p.Close())
		}
		c.given[name] = t
	}
	c.program = p
	return c, nil
}

// errBusy is returned for a call that overlaps with another one.
var errBusy = errors.New("the program is in use by another thread")

// errClosed is returned for a program that was closed.
var errClosed = errors.New("the program is closed")

// use calls f while nobody else uses the program.
func (c *Program) use(f func() error) error {
	if !c.busy.TryLock() {
		return errBusy
	}
	defer c.busy.Unlock()
	if c.program == nil {
		return errClosed
	}
	return f()
}

// Close lets go of the program. Views of its values are invalid from then on.
func (c *Program) Close() error {
	return c.use(func() error {
		err := c.program.Close()
		c.program = nil
		c.pinned.Unpin()
		return err
	})
}

// Values lists the values of a kind in the order in which the model has them.
func (c *Program) Values(k Kind) ([]Value, error) {
	if k < 0 || k >= kinds {
		return nil, fmt.Errorf("there is no kind %d of values", k)
	}
	return c.values[k], nil
}

// find is the value of a name that is of one of the kinds.
func (c *Program) find(name string, among ...Kind) (Value, Kind, error) {
	for _, k := range among {
		for _, v := range c.values[k] {
			if v.Name == name {
				return v, k, nil
			}
		}
	}
	var names []string
	for _, k := range among {
		names = append(names, kindNames[k])
	}
	return Value{}, 0, fmt.Errorf("the program has no %s %q", cli.Either(names), name)
}

// Set gives an input, parameter or state its value. The tensor's memory is used in place if it can be.
func (c *Program) Set(name string, t *Tensor) error {
	return c.use(func() error {
		v, kind, err := c.find(name, KindInput, KindParameter, KindState)
		if err != nil {
			return err
		}
		in, err := t.In(v.Type)
		if err != nil {
			return fmt.Errorf("value of %q: %w", name, err)
		}
		if err := c.program.Set(name, in); err != nil {
			return err
		}
		if kind == KindParameter {
			c.given[name] = in
		}
		delete(c.calls.borrows, name)
		return nil
	})
}

// Get describes the value of an output after a run, or the present value of a state or trained parameter. What it points at
// is pinned until the program is closed.
func (c *Program) Get(name string, to *Tensor) error {
	return c.use(func() error {
		if to == nil {
			return errors.New("no tensor was given")
		}
		_, kind, err := c.find(name, KindOutput, KindState, KindParameter)
		if err != nil {
			return err
		}
		var t *graph.Tensor
		if kind == KindOutput && c.isLent(name) {
			return fmt.Errorf("output %q was written into the memory of a call", name)
		} else if kind == KindOutput {
			if t, err = c.program.Output(name); err == nil && !c.ran {
				err = fmt.Errorf("output %q has no value before a run, and none after one that failed", name)
			}
		} else {
			t, err = c.program.State(name)
		}
		if err != nil {
			return err
		}
		c.show(fmt.Sprint(kind, name), t, to)
		return nil
	})
}

// show describes a tensor of the program's to C. Key tells values apart.
func (c *Program) show(key string, t *graph.Tensor, to *Tensor) {
	v := c.views[key]
	if v == nil {
		v = &view{}
		shape := t.Type.Shape
		for i, s := range shape.Strides() {
			v.shape, v.strides = append(v.shape, int64(shape.At(i))), append(v.strides, int64(s))
		}
		if shape.Rank() > 0 {
			c.pinned.Pin(&v.shape[0])
			c.pinned.Pin(&v.strides[0])
		}
		c.views[key] = v
	}
	data := unsafe.Pointer(unsafe.SliceData(t.Bytes()))
	if data != nil && data != v.data {
		c.pinned.Pin(data)
		v.data = data
	}
	*to = Tensor{Data: data, Device: Device{Type: deviceCPU}, NDim: int32(len(v.shape)), DType: DTypeOf(t.Type.DType),
		Shape: unsafe.SliceData(v.shape), Strides: unsafe.SliceData(v.strides)}
}

// Run runs the program on what was set.
func (c *Program) Run() error {
	return c.use(func() error { return c.runOwn(c.program.Exec) })
}

// Start is the first half of Run.
func (c *Program) Start() error {
	return c.use(func() error { return c.runOwn(c.program.Start) })
}

// Wait is the second half of Run.
func (c *Program) Wait() error {
	return c.use(func() error {
		err := c.program.Wait()
		c.ran = c.ran && err == nil
		return err
	})
}

// Save writes the model and its present weights.
func (c *Program) Save(path string) error {
	return c.use(func() error {
		weights := map[string]*graph.Tensor{}
		for _, k := range []Kind{KindParameter, KindState} {
			for _, v := range c.values[k] {
				t, err := c.program.State(v.Name)
				if err != nil {
					if t = c.given[v.Name]; t == nil {
						return fmt.Errorf("parameter %q has no value", v.Name)
					}
				}
				weights[v.Name] = t
			}
		}
		return graph.Save(path, c.graph, weights)
	})
}

// fusion is a launch in JSON.
type fusion struct {
	Kind       string   `json:"kind"`
	Name       string   `json:"name,omitempty"`
	Operations []string `json:"operations"`
	FLOPs      int64    `json:"flops"`
	Bytes      int64    `json:"bytes"`
	Prepared   bool     `json:"prepared,omitempty"`
}

// steps is how training goes, in JSON.
type steps struct {
	Steps     int64   `json:"steps"`
	Skipped   int64   `json:"skipped"`
	Rate      float64 `json:"rate"`
	LossScale float64 `json:"loss_scale"`
	Norm      float64 `json:"norm"`
}

// reports are the forms of a report by name.
var reports = map[string]func(*Program, *bytes.Buffer) error{
	"fusions": func(c *Program, w *bytes.Buffer) error {
		list := []fusion{}
		for _, f := range c.program.Fusions() {
			j := fusion{Kind: f.Kind, Name: f.Name, Operations: []string{}, FLOPs: f.FLOPs, Bytes: f.Bytes, Prepared: f.Prepared}
			for _, o := range f.Nodes {
				j.Operations = append(j.Operations, o.Name)
			}
			list = append(list, j)
		}
		return encode(w, list)
	},
	"trace": func(c *Program, w *bytes.Buffer) error {
		about := modelio.AboutHere(c.graph.Name)
		return encode(w, tracejson.New(c.program.Trace(), tracejson.All(about, false)))
	},
	"steps": func(c *Program, w *bytes.Buffer) error {
		s := c.program.StepStats()
		return encode(w, steps(s))
	},
	"svg": func(c *Program, w *bytes.Buffer) error { return c.draw(w, dot.FormatSVG) },
	"html": func(c *Program, w *bytes.Buffer) error {
		return report.Page(w, tracejson.New(c.program.Trace(), tracejson.All(modelio.AboutHere(c.graph.Name), false)))
	},
	"dot": func(c *Program, w *bytes.Buffer) error { return c.draw(w, dot.FormatDOT) },
}

func (c *Program) draw(w *bytes.Buffer, f dot.Format) error {
	tr := c.program.Trace()
	return dot.Stage(w, tr, len(tr.Stages)-1, dot.Options{Format: f})
}

// Report is a report in one of the forms that fusec.h lists.
func (c *Program) Report(form string) ([]byte, error) {
	write := reports[form]
	if write == nil {
		return nil, errors.New(cli.Unknown("report", form, slices.Sorted(maps.Keys(reports))))
	}
	var w bytes.Buffer
	err := c.use(func() error { return write(c, &w) })
	return w.Bytes(), err
}

// encode writes JSON on one line.
func encode(w *bytes.Buffer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return e.Encode(v)
}
