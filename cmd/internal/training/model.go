package training

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/examples"
	"fusec/examples/train"
	"fusec/graph"
	"fusec/graph/loader"
	"fusec/graph/optim"
	"fusec/graph/trace"
)

// ownFlags are the flags for models of the user's own.
type ownFlags struct {
	data      []dataFlag
	optimizer string
	shapes    modelio.Shapes
}

// A dataFlag is --data NAME,NEXT=FILE#TENSOR:TYPE. NEXT, TENSOR and TYPE may be left out.
type dataFlag struct{ text, name, next, path, tensor, raw string }

func (o *ownFlags) addData(text string) error {
	names, path, ok := strings.Cut(text, "=")
	d := dataFlag{text: text, path: path}
	d.name, d.next, _ = strings.Cut(names, ",")
	if !ok || d.name == "" || path == "" || strings.HasSuffix(names, ",") || d.name == d.next {
		return errors.New("want NAME=FILE, or NAME,NEXT=FILE")
	}
	if i := strings.LastIndexByte(d.path, ':'); i >= 0 && slices.Contains(loader.Kinds(), d.path[i+1:]) {
		d.path, d.raw = d.path[:i], d.path[i+1:]
	}
	if i := strings.LastIndexByte(d.path, '#'); i >= 0 {
		d.path, d.tensor = d.path[:i], d.path[i+1:]
	}
	for _, other := range o.data {
		for _, name := range []string{d.name, d.next} {
			if name != "" && (name == other.name || name == other.next) {
				return fmt.Errorf("input %q is given twice", name)
			}
		}
	}
	o.data = append(o.data, d)
	return nil
}

// words are the flags as they were given.
func (o *ownFlags) words() (words []string) {
	for _, d := range o.data {
		words = append(words, "--data", d.text)
	}
	if o.optimizer != "" {
		words = append(words, "--optimizer", o.optimizer)
	}
	return append(words, o.shapes.Words()...)
}

// defaultRate and defaultRule train where nothing is said.
const (
	defaultRate = 1e-3
	defaultRule = "adamw"
)

// A model is one of the user's own, with its data.
type model struct {
	path    string
	g       *graph.Graph
	cost    string                   // the output's name
	weights map[string]*graph.Tensor // nil: to be drawn
	file    *graph.Weights           // that they came from, or nil
	rate    float64                  // the optimiser's, 0 if it has none
	added   bool                     // the optimiser is not the file's
	sources []loader.Source
	batch   int
	samples int64

	p      *fusec.Program
	data   *loader.Loader
	staged bool // each participant of a group has a stage
	steps  int
	beside bool // the device computes by itself, and the next batch is copied to it meanwhile
	given  int  // the step whose batch the program has been given beside the one before, or 0
}

// kept is the present value of a state, or of a parameter that is updated. All participants of a group call it.
func (m *model) kept(name string) (*graph.Tensor, error) {
	if m.staged {
		return m.p.Whole(name)
	}
	return m.p.State(name)
}

// open reads a model and looks at its data.
func (o *ownFlags) open(e *cli.Env, path string) (*model, error) {
	m := &model{path: path}
	g, weights, err := modelio.LoadModel(e, path, &o.shapes)
	var missing *graph.MissingWeightsError
	switch {
	case errors.As(err, &missing) && missing.NoFile:
		if g, err = modelio.LoadGraph(e, path, &o.shapes); err != nil {
			return nil, err
		}
	case err != nil:
		return nil, err
	default:
		m.file, m.weights = weights, weights.Tensors
	}
	m.g = g
	if err := m.rule(o.optimizer); err != nil {
		return nil, err
	}
	i := slices.IndexFunc(m.g.Outputs, func(o graph.Output) bool {
		return slices.ContainsFunc(m.g.Training.Steps, func(s graph.Step) bool { return s.Cost == o.Node })
	})
	if i < 0 {
		return nil, fmt.Errorf("%s: the cost by which it trains is no output", path)
	}
	m.cost = m.g.Outputs[i].Name
	if err := m.feed(o.data); err != nil {
		return nil, err
	}
	data, err := m.load(0)
	if err != nil {
		return nil, err
	}
	m.samples = data.Rows()
	return m, data.Close()
}

// rule gives the graph its optimiser: that of the flag, or its own.
func (m *model) rule(text string) error {
	if m.g.Training != nil && text != "" {
		return cli.Usage("--optimizer: %s trains by %s already", m.path, m.g.Training.Rule)
	}
	if m.g.Training == nil {
		if text == "" {
			text = defaultRule
		}
		fields := strings.Split(text, ",")
		var settings []graph.Attr
		for _, f := range fields[1:] {
			name, value, _ := strings.Cut(f, "=")
			if name == "rate" {
				return cli.Usage("--optimizer %s: --lr is the learning rate", text)
			}
			settings = append(settings, graph.Attr{Name: name, Value: value})
		}
		var err error
		if m.g.Training, err = optim.Steps(m.g, fields[0], settings); err != nil {
			return fmt.Errorf("%s: %w", m.path, err)
		}
		m.added = true
	}
	o, err := optim.FromTraining(m.g.Training)
	switch {
	case err == nil:
		m.rate = o.Rate(0)
	case m.added:
		return cli.Usage("--optimizer %s: %v", text, err)
	}
	return err
}

// feed finds the source of each input.
func (m *model) feed(data []dataFlag) error {
	inputs := map[string]*graph.Node{}
	for _, n := range m.g.Sources() {
		if _, ok := n.Op.(graph.Input); ok {
			inputs[n.Name] = n
		}
	}
	sizes := modelio.IndexSizes(m.g)
	names := slices.Sorted(maps.Keys(inputs))
	for _, d := range data {
		for _, name := range []string{d.name, d.next} {
			if name != "" && inputs[name] == nil {
				return cli.Usage("--data %s: %s", d.name, cli.Unknown("input", name, names))
			}
		}
		n := inputs[d.name]
		s := n.Type.Shape
		if s.Rank() == 0 {
			return cli.Usage("--data %s: the input is a single number, and has no axis of samples", d.name)
		}
		if m.batch == 0 {
			m.batch = s.At(0)
		}
		source := loader.Source{Name: d.name, Path: d.path, Tensor: d.tensor, Raw: d.raw, DType: n.Type.DType,
			Limit: int64(sizes[n])}
		if bare, err := loader.IsBare(d.path); err != nil {
			return fmt.Errorf("--data %s: %w", d.name, err)
		} else if bare && d.raw == "" {
			source.Raw = "u16" // as files of tokens are
			if n.Type.DType.IsFloat() {
				source.Raw = n.Type.DType.String()
			}
		}
		switch {
		case d.next != "":
			next := inputs[d.next]
			if s.Rank() != 2 || next.Type != n.Type {
				return cli.Usage("--data %s,%s: the inputs are %v and %v; want two of [samples, length] and one type", d.name, d.next,
					n.Type, next.Type)
			}
			source.Window = loader.Window{Length: s.At(1), Targets: d.next}
			if l := int64(sizes[next]); l > 0 && (source.Limit == 0 || l < source.Limit) {
				source.Limit = l
			}
			delete(inputs, d.next)
		case source.Raw != "" && s.Rank() == 2 && !n.Type.DType.IsFloat():
			source.Window = loader.Window{Length: s.At(1)} // tokens after the last whole row are left out
		case source.Raw != "":
			source.Row = s.Slice()[1:]
		}
		delete(inputs, d.name)
		m.sources = append(m.sources, source)
	}
	if len(inputs) > 0 {
		left := slices.Sorted(maps.Keys(inputs))
		return cli.Usage("nothing says where the data of %s come from: want --data %s=FILE for %s", m.path, left[0], quoted(left))
	}
	if len(m.sources) == 0 {
		return fmt.Errorf("%s has no inputs: there is nothing to train it on", m.path)
	}
	return nil
}

// quoted lists names for a sentence.
func quoted(names []string) string {
	var list []string
	for _, n := range names {
		list = append(list, strconv.Quote(n))
	}
	return strings.Join(list, ", ")
}

// load opens the data, in the order of a seed.
func (m *model) load(seed uint64) (*loader.Loader, error) {
	data, err := loader.Open(loader.Options{Batch: m.batch, Shuffle: true, Seed: seed, DropLast: true}, m.sources...)
	if err != nil {
		return nil, err
	}
	for name, got := range data.Types() {
		if n := m.g.SourcesByName()[name]; n.Type != got {
			err := fmt.Errorf("the data of input %q makes batches of %v; the model takes %v", name, got, n.Type)
			return nil, errors.Join(err, data.Close())
		}
	}
	return data, nil
}

// example describes the model as an example's description does.
func (m *model) example() *examples.Example {
	return &examples.Example{Name: modelio.ModelName(m.path), Samples: int(m.samples), Defaults: train.Settings{
		Steps: max(int(m.samples)/m.batch, 1), Batch: m.batch, Rate: cmp.Or(m.rate, defaultRate), Seed: modelio.DefaultSeed}}
}

// start compiles the model's step.
func (m *model) start(s train.Settings) (*train.Run, error) {
	g := *m.g
	g.Training = optim.AtRate(g.Training, s.Rate)
	opts := []fusec.CompileOption{fusec.WithSeed(int64(s.Seed)), fusec.WithPrecision(s.Precision)}
	if s.Target != "" {
		opts = append(opts, modelio.OnTarget(s.Target))
	}
	if s.Workers > 0 {
		opts = append(opts, fusec.WithWorkers(s.Workers))
	}
	m.staged = s.Group != nil && s.Microbatches > 0
	first, _, _ := strings.Cut(s.Target, ",")
	kind, _ := fusec.TargetNamed(first)
	m.steps, m.beside = s.Steps, kind.Device != "" && s.Microbatches == 0
	for _, o := range s.Participants() {
		opts = append(opts, fusec.CompileOption(o))
	}
	var err error
	if m.p, err = fusec.Compile(&g, opts...); err != nil {
		return nil, err
	}
	if m.weights == nil {
		m.weights = firstWeights(m.g, s.Seed)
	}
	if err := m.set(m.weights); err != nil {
		return nil, err
	}
	if m.data, err = m.load(s.Seed); err != nil {
		return nil, err
	}
	return train.New(ownMachine{m}, m.task(), s, m.loss)
}

// close releases what start has opened.
func (m *model) close() error {
	if m.data == nil {
		return nil
	}
	return m.data.Close()
}

func (m *model) task() *train.Task {
	return &train.Task{Fill: m.fill, Evaluate: func() ([]train.Score, error) { return []train.Score{}, nil }}
}

// fill gives the program the batch of a step, unless it has been given it beside the step before.
func (m *model) fill(step int) error {
	if m.given == step && step > 0 {
		return nil
	}
	if m.data.Position() != int64(step) { // after a checkpoint
		if err := m.data.SetPosition(int64(step)); err != nil {
			return err
		}
	}
	b, err := m.data.Next()
	if err != nil {
		return err
	}
	return m.set(b.Tensors)
}

// ahead gives the program the batch of the next step, if it has been read, while the device computes. An error of reading is that
// of fill, which tries again.
func (m *model) ahead() error {
	step := m.data.Position()
	if step >= int64(m.steps) || !m.data.Ready() {
		return nil
	}
	b, err := m.data.Next()
	if err != nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(b.Tensors)) {
		if err := m.p.Prefetch(name, b.Tensors[name]); err != nil {
			return err
		}
	}
	m.given = int(step)
	return nil
}

// loss is the cost of the last step.
func (m *model) loss() (float64, error) {
	t, err := m.p.Output(m.cost)
	if err != nil {
		return 0, err
	}
	return t.Float(0), nil
}

// params are the names of the model's parameters.
func (m *model) params() (names []string) {
	for _, n := range m.g.Sources() {
		if _, ok := n.Op.(graph.Param); ok {
			names = append(names, n.Name)
		}
	}
	return names
}

func (m *model) parameters() (total int) {
	for _, name := range m.params() {
		total += m.g.SourcesByName()[name].Type.Shape.Elems()
	}
	return total
}

// save writes the model as it came, with the weights as they are.
func (m *model) save(path string, vm train.Machine) error {
	weights, err := vm.Weights()
	if err != nil {
		return err
	}
	for _, n := range m.g.Sources() {
		if _, ok := n.Op.(graph.State); ok {
			if weights[n.Name], err = m.kept(n.Name); err != nil {
				return err
			}
		}
	}
	g := *m.g
	if m.added {
		g.Training = nil
	}
	return graph.Save(path, &g, weights)
}

// firstWeights makes the first weights: filters of convolutions as [train.DrawFilters] draws them, matrices as [train.Draw] does,
// vectors 1 where they are factors, such as the gain of a norm, else 0.
func firstWeights(g *graph.Graph, seed uint64) map[string]*graph.Tensor {
	uses := g.Uses()
	weights := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		if _, ok := n.Op.(graph.Param); !ok {
			continue
		}
		t := graph.NewTensor(n.Type)
		weights[n.Name] = t
		next := func() float64 { return 0 }
		switch inputs := filterInputs(uses, n); {
		case inputs > 0:
			next = train.DrawFilters(n.Name, inputs, seed)
		case !vector(uses, n):
			next = train.Draw(n.Name, n.Type.Shape.Slice(), seed)
		case factor(uses, n):
			next = func() float64 { return 1 }
		}
		for i := range n.Type.Shape.Elems() {
			t.SetFloat(i, next())
		}
	}
	return weights
}

// read calls f with each operation that reads what a parameter becomes in other shapes and types, and with the operand that this
// is, until f reports true, which read returns.
func read(uses *graph.Uses, n *graph.Node, f func(reader *graph.Node, operand int) bool) bool {
	for _, u := range uses.Readers(n) {
		if graph.IsView(u.Op) || u.Op.OpName() == "cast" {
			if read(uses, u, f) {
				return true
			}
			continue
		}
		for i, a := range u.Args {
			if a == n && f(u, i) {
				return true
			}
		}
	}
	return false
}

// filterInputs is of how many inputs an element of a result is the sum if a parameter is the filters of a convolution, else 0.
// Over one or three axes, a convolution has them in another shape: see [graph.Builder.Convolve].
func filterInputs(uses *graph.Uses, n *graph.Node) (inputs float64) {
	if n.Type.Shape.Elems() == 0 {
		return 0
	}
	read(uses, n, func(u *graph.Node, operand int) bool {
		op, ok := u.Op.(graph.ImageOp)
		if !ok || op.FilterAt() != operand {
			return false
		}
		out, channels, _, _ := op.ImageLayout().FilterDims(u.Args[operand].Type.Shape)
		elems := float64(n.Type.Shape.Elems())
		if op, ok := op.(graph.Conv2DTranspose); ok {
			in := float64(out) / float64(op.Groups)
			inputs = elems / float64(channels*op.Groups*op.Stride.At(0)*op.Stride.At(1))
			read(uses, u, func(v *graph.Node, _ int) bool { // channels of slices, which are summed up along a third axis
				sum, ok := v.Op.(graph.Col2Im)
				if ok {
					inputs *= float64(sum.Kernel.At(0)) / float64(sum.Stride.At(0))
				}
				return ok
			})
			inputs = max(inputs, in) // strides may leave out elements, but those that they do not are sums of in
		} else {
			inputs = elems / float64(out)
		}
		return true
	})
	return inputs
}

// vector reports whether a parameter is one number for each column: it has one axis, or [1, n] that is no operand of a product.
func vector(uses *graph.Uses, n *graph.Node) bool {
	s := n.Type.Shape
	return s.Rank() < 2 || s.Elems() == s.At(s.Rank()-1) && !read(uses, n, func(u *graph.Node, operand int) bool {
		return graph.Contracts(u.Op, operand)
	})
}

// factor reports whether what a parameter becomes, in another shape, is multiplied by something, or is the gain of a norm.
func factor(uses *graph.Uses, n *graph.Node) bool {
	return read(uses, n, func(u *graph.Node, operand int) bool {
		info := graph.InfoOf(u.Op)
		return (info.RowWeights || info.ChannelWeights) && operand == 1 || u.Op == graph.Binary{Fn: graph.Mul}
	})
}

// ownMachine has a model's program do the steps of a run.
type ownMachine struct{ *model }

func (m ownMachine) RunAll() error {
	if !m.beside {
		return m.p.Exec()
	}
	if err := m.p.Start(); err != nil {
		return err
	}
	err := m.ahead()
	return errors.Join(m.p.Wait(), err)
}

func (m ownMachine) Reset()                     {}
func (m ownMachine) Sync() error                { return m.p.Sync() }
func (m ownMachine) Close() error               { return m.p.Close() }
func (m ownMachine) StepStats() fusec.StepStats { return m.p.StepStats() }
func (m ownMachine) Program() *fusec.Program    { return m.p }
func (m ownMachine) Trace() *trace.Trace        { return m.p.Trace() }
func (m ownMachine) Fusions() []fusec.Fusion    { return m.p.Fusions() }

// Weights are the parameters, those that no step changes, too.
func (m ownMachine) Weights() (map[string]*graph.Tensor, error) {
	weights := map[string]*graph.Tensor{}
	for _, name := range m.params() {
		weights[name] = m.weights[name].Clone()
	}
	for _, s := range m.g.Training.Steps {
		t, err := m.kept(s.Param.Name)
		if err != nil {
			return nil, err
		}
		weights[s.Param.Name] = t.Clone()
	}
	return weights, nil
}

func (m ownMachine) State() (map[string]*graph.Tensor, error) {
	state := map[string]*graph.Tensor{}
	for _, name := range m.p.States() {
		t, err := m.kept(name)
		if err != nil {
			return nil, err
		}
		state[name] = t.Clone()
	}
	return state, nil
}

func (m ownMachine) SetWeights(weights map[string]*graph.Tensor) error { return m.set(weights) }
func (m ownMachine) SetState(state map[string]*graph.Tensor) error     { return m.set(state) }

// set gives the program values.
func (m *model) set(values map[string]*graph.Tensor) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if err := m.p.Set(name, values[name]); err != nil {
			return err
		}
	}
	return nil
}
