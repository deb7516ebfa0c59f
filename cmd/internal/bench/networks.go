package bench

import (
	"fmt"
	"time"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/models/zoo"
	fgorgonia "fusec/graph/gorgonia"
)

// network is a Gorgonia program that runs on fusec's Machine and on the TapeMachine.
type network struct {
	name  string
	build func() *zoo.Model
}

// zooNetworks are those of testdata/models, in the same sizes.
var zooNetworks = []network{
	{"digits-mlp", func() *zoo.Model { return zoo.DigitsMLP(360) }},
	{"lenet", func() *zoo.Model { return zoo.LeNet(8) }},
	{"moe-block", func() *zoo.Model { return zoo.MoEBlock(64, 64, 128, 4) }},
	{"moe-top2", func() *zoo.Model { return zoo.MoETop2(64, 32, 64, 8) }},
	{"transformer-block", func() *zoo.Model { return zoo.TransformerBlock(4, 128, 256, 8, 1024) }},
}

// trained are the names of the networks that training measures.
var trained = map[string]bool{"digits-mlp": true, "lenet": true, "transformer-block": true}

// networkReport is what was found about networks, and its JSON form. Times are in nanoseconds.
type networkReport struct {
	Schema  string          `json:"schema"` // fusec.networks/1
	Machine cli.Machine     `json:"machine"`
	Threads int             `json:"threads"`
	Rounds  int             `json:"rounds"`
	Results []networkResult `json:"results"`
}

type networkResult struct {
	Name       string     `json:"name"`
	FusecNS    int64      `json:"fusec_ns"`
	PeerNS     int64      `json:"peer_ns"` // of the TapeMachine
	Spread     float64    `json:"spread"`  // of fusec's rounds: (slowest − fastest) ÷ median
	Ratio      float64    `json:"ratio"`   // the TapeMachine's time over fusec's
	Difference cli.Number `json:"difference"`
}

// networks times networks forward.
func (b *bencher) networks(e *cli.Env) (*outcome, error) { return b.raceNetworks(e, false) }

// training is networks with their gradients.
func (b *bencher) training(e *cli.Env) (*outcome, error) { return b.raceNetworks(e, true) }

func (b *bencher) raceNetworks(e *cli.Env, train bool) (*outcome, error) {
	rep := &networkReport{Schema: "fusec.networks/1", Machine: cli.ThisMachine(), Threads: b.compile.Threads, Rounds: b.rounds}
	var list []network
	for _, n := range zooNetworks {
		if !train || trained[n.name] {
			list = append(list, n)
		}
	}
	entries, err := sweep(b.progress(e), list, func(n network, show *cli.Progress) (entry, error) {
		return b.raceNetwork(e, rep, n, train, show)
	})
	if err != nil {
		return nil, err
	}
	return &outcome{report: rep, text: rep.text(train), entries: entries}, nil
}

// raceNetwork times one network on both machines, whose results are compared first.
func (b *bencher) raceNetwork(e *cli.Env, rep *networkReport, n network, train bool, show *cli.Progress) (entry, error) {
	subject := "network " + n.name
	if train {
		subject = "training of " + n.name
	}
	var field []Contestant
	var results [2][]float64
	for i, name := range []string{"fusec", tapeName} {
		vm, result, err := n.machine(name == "fusec", train, b.compile.Threads)
		if err != nil {
			return entry{}, fmt.Errorf("%s on %s: %w", subject, name, err)
		}
		defer vm.Close()
		run := func() error {
			err := vm.RunAll()
			vm.Reset()
			return err
		}
		if err := run(); err != nil {
			return entry{}, fmt.Errorf("%s on %s: %w", subject, name, err)
		}
		if results[i], err = result(); err != nil {
			return entry{}, fmt.Errorf("%s on %s: %w", subject, name, err)
		}
		field = append(field, Contestant{name, run})
	}
	far := Difference(results[0], results[1])
	if !(far <= disagreement) {
		return entry{}, fmt.Errorf("%s: fusec and the %s differ by %.1e", subject, tapeName, far)
	}
	times, err := Race(e.Ctx, field, b.rounds, b.seconds,
		func(round int) { show.Show("%s: round %d of %d", subject, round+1, b.rounds) })
	if err != nil {
		return entry{}, err
	}
	r := newEntry(subject, tapeName, b.compile.Threads, times[0], times[1], 1)
	rep.Results = append(rep.Results, networkResult{subject, times[0].Duration().Nanoseconds(),
		times[1].Duration().Nanoseconds(), times[0].Spread(),
		r.Ratio, cli.Number(far)})
	return r, nil
}

// machine builds the network and a machine for it. What is compared is the output, or the gradient of the first parameter.
func (n network) machine(fused, train bool, threads int) (vm gorgonia.VM, result func() ([]float64, error), err error) {
	m := n.build()
	if err := gorgonia.Let(m.Input, tensor.New(tensor.WithShape(m.Input.Shape()...),
		tensor.WithBacking(uniform(m.Input.Shape().TotalSize(), 1)))); err != nil {
		return nil, nil, err
	}
	var value gorgonia.Value
	var opts []gorgonia.VMOpt
	read := func() (gorgonia.Value, error) { return value, nil }
	if train {
		cost, err := gorgonia.Square(m.Output)
		if err == nil {
			cost, err = gorgonia.Mean(cost)
		}
		if err == nil {
			_, err = gorgonia.Grad(cost, m.Params...)
		}
		if err != nil {
			return nil, nil, err
		}
		opts = append(opts, gorgonia.BindDualValues(m.Params...))
		read = m.Params[0].Grad
	} else {
		gorgonia.Read(m.Output, &value)
	}
	if fused {
		vm = fusec.NewMachine(m.Graph, append(opts, fusec.WithWorkers(threads))...)
	} else {
		vm = gorgonia.NewTapeMachine(m.Graph, opts...)
	}
	return vm, func() ([]float64, error) {
		v, err := read()
		if err != nil {
			return nil, err
		}
		t, err := fgorgonia.ToTensor(v)
		if err != nil {
			return nil, err
		}
		return t.Clone().Floats(), nil
	}, nil
}

// text prints the report for people.
func (rep *networkReport) text(train bool) string {
	t := cli.NewTable("", ">fusec", ">± rounds", ">"+tapeName, ">times as fast")
	for _, r := range rep.Results {
		t.Row(r.Name, cli.HumanTime(time.Duration(r.FusecNS)), cli.Percent(r.Spread/2), cli.HumanTime(time.Duration(r.PeerNS)),
			cli.Digits(r.Ratio))
	}
	kind := "forward"
	if train {
		kind = "forward and backward, all gradients bound"
	}
	return fmt.Sprintf("networks of Gorgonia, %s, float32; %s on %s; median of %d rounds\n\n%s", kind,
		cli.Plural(rep.Threads, "thread", "threads"), rep.Machine, rep.Rounds, t)
}
