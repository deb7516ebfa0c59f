package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/lowering/estimate"
)

// Plan is fusec plan.
var Plan = &cli.Command{
	Name:    "plan",
	Args:    "[flags] model.graph",
	Summary: "predict a model on several participants: time, memory, and what they exchange",
	Doc: `
Compiles the model for one participant of a mesh, and predicts a run by the rates of a machine: each launch takes the
longer of its arithmetic and its memory traffic, each collective operation its latency and the bytes that a participant
sends. The rates are flags, or those of a --device; with --alone they are such that one device takes as long as it was
measured to, which is not for pipelines. Exposed is what no launch hides that does not depend on it. Overlapped is the
time of a run that hides the rest, as target cpu does; in order, that of one whose launches and collective operations
follow one another.

The mesh of a pipeline, which --pipeline asks for, is its stages. Compute is then what the slowest stage computes, exposed
what it waits for, and memory that of the stage that takes most.

Shardings are those of the file, and of --split and --zero. With --parallel auto, ways of splitting are compared: inputs
over the first axis of the mesh, weights of matrix products by columns or rows over its other axes, and the stages of
ZeRO. The fastest, overlapped, that fits into --memory is chosen, the first of equal ones.`,
	Examples: []cli.Example{
		{"fusec plan model.graph --mesh data=2,tensor=4", "a mesh of 8"},
		{"fusec plan model.graph --mesh data=8 --zero 1", "moments of the optimiser are split, too"},
		{"fusec plan model.graph --mesh data=2 --split w1=_,data", "a weight by columns"},
		{"fusec plan model.graph --mesh data=2,tensor=4 --parallel auto", "ways of splitting compared"},
		{"fusec plan model.graph --mesh stage=4 --pipeline 16", "a pipeline of 4 stages, and a batch of 16 microbatches"},
		{"fusec plan model.graph --mesh data=8 --target cuda --device h200 --alone 103ms", "8 GPUs, of a model that was timed on one"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		p := &planner{machine: estimate.Machine{FLOPS: 100e9, Bytes: 20e9, Link: 10e9, Launch: 2 * time.Microsecond,
			Latency: 10 * time.Microsecond}}
		p.compile.Declare(f)
		f.Func("mesh", "the participants on their axes, such as `data=2,tensor=4`; else those of the file", func(s string) (err error) {
			p.mesh, err = graph.ParseMesh(s)
			return err
		})
		f.Func("split", "how a source is split: `NAME=AXIS,...`, _ for an axis that is not; may be repeated", func(s string) error {
			name, axes, ok := strings.Cut(s, "=")
			if !ok || name == "" {
				return errors.New("want a name and the axes of the mesh, such as w=_,tensor")
			}
			p.splits = append(p.splits, splitFlag{name, strings.Split(axes, ",")})
			return nil
		})
		f.Func("zero", "`STAGE` of ZeRO: 1 and 2 split moments and gradients, 3 parameters, too", func(s string) (err error) {
			if p.zero, err = strconv.Atoi(s); err != nil || p.zero < 1 || p.zero > 3 {
				return errors.New("want a stage from 1 to 3")
			}
			return nil
		})
		f.Func("parallel", "`auto` compares ways of splitting", func(s string) error {
			if s != "auto" {
				return errors.New("want auto")
			}
			p.auto = true
			return nil
		})
		f.Func("device", fmt.Sprintf("`NAME` of a device whose rates are known: %s", strings.Join(deviceNames(), ", ")),
			func(s string) (err error) {
				m, ok := estimate.Devices[s]
				if p.machine = m; !ok {
					return fmt.Errorf("want %s", strings.Join(deviceNames(), " or "))
				}
				return nil
			})
		rate := func(name, what string, to func() *float64) {
			f.Func(name, fmt.Sprintf("%s, in `1e9` a second (default %g)", what, *to()/1e9), func(s string) error {
				v, err := strconv.ParseFloat(s, 64)
				if err != nil || !(v > 0 && v < 1e12) {
					return errors.New("want a positive number")
				}
				p.rates = append(p.rates, func() { *to() = v * 1e9 })
				return nil
			})
		}
		rate("gflops", "floating-point operations of a participant", func() *float64 { return &p.machine.FLOPS })
		rate("memory-rate", "bytes of memory traffic", func() *float64 { return &p.machine.Bytes })
		rate("link-rate", "bytes that a participant sends", func() *float64 { return &p.machine.Link })
		f.Func("alone", "`TIME` that one device was measured to take for the whole model: its rates are fitted to that",
			func(s string) (err error) {
				if p.alone, err = time.ParseDuration(s); err != nil || p.alone <= 0 {
					return errors.New("want a positive time, such as 103ms")
				}
				return nil
			})
		f.Func("memory", "the memory of a participant, such as `64GiB`; nothing that takes more is chosen", func(s string) (err error) {
			p.memory, err = cli.ParseBytes(s)
			return err
		})
		f.BoolVar(&p.json, "json", false, "print the plan as JSON")
		return p.run
	},
}

// planner is fusec plan with its flags.
type planner struct {
	compile modelio.CompileFlags
	mesh    graph.Mesh
	splits  []splitFlag
	zero    int
	auto    bool
	machine estimate.Machine
	rates   []func()      // flags of rates, which are set after those of a device
	alone   time.Duration // measured on one device, or 0
	memory  int64
	json    bool
}

type splitFlag struct {
	name string
	axes []string
}

// PlanReport is what fusec plan tells, and its JSON form.
type PlanReport struct {
	Schema       string    `json:"schema"` // fusec.plan/1
	Model        string    `json:"model"`
	Mesh         string    `json:"mesh"`
	Participants int       `json:"participants"`
	Ways         []planWay `json:"ways"`
	Chosen       int       `json:"chosen"` // of Ways; -1 if none fits into the memory
	Exchanges    []string  `json:"exchanges"`
}

// planWay is a way of splitting with what it is predicted to take, in seconds and bytes of a participant.
type planWay struct {
	Name       string   `json:"name"`
	Splits     []string `json:"splits"`
	ZeRO       int      `json:"zero"`
	Ordered    float64  `json:"in_order"`
	Overlapped float64  `json:"overlapped"`
	Compute    float64  `json:"compute"`
	Exchange   float64  `json:"exchange"`
	Exposed    float64  `json:"exposed"`
	Sent       int64    `json:"sent_bytes"`
	Memory     int64    `json:"memory_bytes"`

	splits    []splitFlag
	exchanges []string
}

func (p *planner) run(e *cli.Env, args []string) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	if p.auto && p.compile.Pipelined() {
		return cli.Usage("--parallel auto compares ways of splitting, and none of them is a pipeline")
	}
	g, err := p.compile.Load(e, path)
	if err != nil {
		return err
	}
	mesh := p.mesh
	if len(mesh) == 0 {
		mesh = g.Mesh
	}
	if len(mesh) == 0 {
		return cli.Usage("the file has no mesh: give --mesh, such as data=2")
	}
	for _, set := range p.rates {
		set()
	}
	if err := p.fit(g); err != nil {
		return err
	}
	rep := &PlanReport{Schema: "fusec.plan/1", Model: modelio.ModelName(path), Mesh: mesh.String(), Participants: mesh.Size()}
	given := planWay{Name: "as stated", splits: p.splits, ZeRO: p.zero}
	if err := p.predict(g, &given); err != nil {
		return err
	}
	rep.Ways = []planWay{given}
	if p.auto {
		if err := p.search(g, mesh, rep); err != nil {
			return err
		}
	}
	rep.Chosen = -1
	for i, w := range rep.Ways {
		if (p.memory == 0 || w.Memory <= p.memory) && (rep.Chosen < 0 || w.Overlapped < rep.Ways[rep.Chosen].Overlapped) {
			rep.Chosen = i
		}
	}
	rep.Exchanges = rep.Ways[max(rep.Chosen, 0)].exchanges
	if p.json {
		return cli.WriteJSON(e.Out, rep)
	}
	return e.Print(rep.text(p.memory))
}

// deviceNames lists the devices whose rates are known.
func deviceNames() []string { return slices.Sorted(maps.Keys(estimate.Devices)) }

// fit fits the machine's rates to what one device was measured to take for the model.
func (p *planner) fit(g *graph.Graph) error {
	switch {
	case p.alone == 0:
		return nil
	case p.compile.Pipelined():
		return cli.Usage("--alone is not for a pipeline: its stages are on devices of their own")
	}
	one, _ := g.Clone()
	one.Mesh = nil
	for _, n := range one.Nodes {
		n.Sharding = graph.Sharding{}
	}
	_, program, err := fusec.Plan(one, p.compile.Options()...)
	if err != nil {
		return err
	}
	p.machine = p.machine.Fitted(program, p.alone)
	return nil
}

// predict compiles the graph as one way says, and fills in what it takes.
func (p *planner) predict(g *graph.Graph, w *planWay) error {
	opts := p.compile.Options()
	if p.mesh != nil {
		opts = append(opts, fusec.WithMesh(p.mesh.String()))
	}
	for _, s := range w.splits {
		opts = append(opts, fusec.WithSplit(s.name, s.axes...))
		w.Splits = append(w.Splits, s.name+"="+strings.Join(s.axes, ","))
	}
	if w.ZeRO > 0 {
		opts = append(opts, fusec.WithZeRO(w.ZeRO))
	}
	if err := p.compile.Check(); err != nil {
		return err
	}
	tr, program, err := fusec.Plan(g, opts...)
	if err != nil {
		return err
	}
	s := estimate.Of(program, p.machine)
	w.Ordered, w.Overlapped, w.Compute = s.Ordered().Seconds(), s.Overlapped().Seconds(), s.Compute.Seconds()
	w.Exchange, w.Exposed, w.Sent, w.Memory = s.Exchange.Seconds(), s.Exposed.Seconds(), s.Sent, s.Memory
	for _, stage := range tr.Stages {
		if name := stage.Name; name == "pipeline" || name == "shard" && len(program.Stages) == 0 {
			for _, n := range stage.Notes {
				w.exchanges = append(w.exchanges, n.Text)
			}
		}
	}
	return nil
}

// search adds ways of splitting: weights over the axes of the mesh but the first, one after another, as long as the prediction
// becomes better, and the stages of ZeRO.
func (p *planner) search(g *graph.Graph, mesh graph.Mesh, rep *PlanReport) error {
	best := rep.Ways[0]
	best.Name = "weights over " + mesh.Names(mesh.All()&^1)
	for _, n := range products(g) {
		if slices.ContainsFunc(best.splits, func(s splitFlag) bool { return s.name == n.Name }) {
			continue
		}
		for _, axis := range mesh[1:] {
			rank, from := n.Type.Shape.Rank(), best
			for d := rank - 1; d >= rank-2; d-- {
				if n.Type.Shape.At(d)%axis.Size != 0 || axis.Size == 1 {
					continue
				}
				axes := slices.Repeat([]string{"_"}, rank)
				axes[d] = axis.Name
				way := planWay{Name: best.Name, ZeRO: p.zero, splits: append(slices.Clip(from.splits), splitFlag{n.Name, axes})}
				if err := p.predict(g, &way); err != nil {
					return err
				}
				if way.Overlapped < best.Overlapped {
					best = way
				}
			}
		}
	}
	if len(best.splits) > len(p.splits) {
		rep.Ways = append(rep.Ways, best)
	}
	for _, zero := range []int{1, 3} {
		if zero <= p.zero {
			continue
		}
		for _, from := range rep.Ways[:min(len(rep.Ways), 2)] {
			way := planWay{Name: fmt.Sprintf("%s, ZeRO %d", from.Name, zero), ZeRO: zero, splits: from.splits}
			if err := p.predict(g, &way); err != nil {
				return err
			}
			rep.Ways = append(rep.Ways, way)
		}
	}
	return nil
}

// products lists the parameters that matrix products read, in the order of these, each once.
func products(g *graph.Graph) (list []*graph.Node) {
	for _, n := range g.Nodes {
		if _, ok := n.Op.(graph.MatMul); !ok {
			continue
		}
		for _, a := range n.Args {
			if _, ok := a.Op.(graph.Param); ok && !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	return list
}

// text prints the plan for people.
func (rep *PlanReport) text(memory int64) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s on the mesh %s of %s\n\n", rep.Model, rep.Mesh, cli.Plural(rep.Participants, "participant", "participants"))
	seconds := func(s float64) string { return cli.HumanTime(time.Duration(s * 1e9)) }
	t := cli.NewTable("", "way", ">in order", ">overlapped", ">compute", ">exchange", ">exposed", ">sent", ">memory")
	for i, w := range rep.Ways {
		mark := ""
		if i == rep.Chosen && len(rep.Ways) > 1 {
			mark = "*"
		}
		t.Row(mark, w.Name, seconds(w.Ordered), seconds(w.Overlapped), seconds(w.Compute), seconds(w.Exchange), seconds(w.Exposed),
			cli.HumanBytes(w.Sent), cli.HumanBytes(w.Memory))
	}
	fmt.Fprintf(&b, "%s\n", t)
	if rep.Chosen < 0 {
		fmt.Fprintf(&b, "no way fits into %s\n", cli.HumanBytes(memory))
		return b.String()
	}
	if w := rep.Ways[rep.Chosen]; len(rep.Ways) > 1 {
		fits := ""
		if memory > 0 {
			fits = " that fits into " + cli.HumanBytes(memory)
		}
		fmt.Fprintf(&b, "chosen: %s, the fastest%s", w.Name, fits)
		var flags []string
		for _, s := range w.Splits {
			flags = append(flags, "--split "+s)
		}
		if w.ZeRO > 0 {
			flags = append(flags, fmt.Sprintf("--zero %d", w.ZeRO))
		}
		if len(flags) > 0 {
			fmt.Fprintf(&b, ": %s", strings.Join(flags, " "))
		}
		b.WriteString("\n")
	}
	for _, s := range rep.Exchanges {
		fmt.Fprintf(&b, "  %s\n", cmp.Or(s, "nothing is exchanged"))
	}
	return b.String()
}
