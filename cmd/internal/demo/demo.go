// Package demo is `fusec demo`: what attention, mixtures of experts and fusion are worth, side by side.
package demo

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"strconv"

	"fusec"
	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/memlimit"
	"fusec/kernels/cpu/attention"
	"fusec/kernels/cpu/pool"
	"fusec/lowering"
)

// Command is fusec demo.
var Command = &cli.Command{
	Name:    "demo",
	Args:    "[flags]",
	Summary: "show what fusion is worth: attention, mixture of experts, transformer block",
	Doc: `
Builds three graphs in their parts, as one writes them, compiles each twice, with fusion and without, and measures both
in this process, in turn:

  1. attention: softmax(q·kᵀ/√d)·v for --heads heads. Unfused, the scores of all queries with all keys are in memory;
     fused, a block of them at a time is, as large as suits the cache (--block-size).
  2. mixture of experts: a router sends each token to --top-k of --num-experts feed-forward networks, four times as wide
     as the model. Unfused, every expert computes every token and most of it is multiplied by zero; fused, an expert
     computes the tokens that are sent to it. The bars show how many those are, and what is over an expert's capacity:
     --capacity times an even share. The losses are those that training adds to keep the experts in even use.
  3. transformer block: norms, projections, attention and a mixture of experts (or with --ffn one network), with biases,
     activations and residual sums moved into the launches that produce what they read.

Unfused is fusec, too, with the same kernels for matrix products, norms and softmax, but a launch for each operation,
and for each transposed or repeated value a copy: it is what fusion alone is worth. The outputs of both are compared; if
they differ by more than rounding, the exit code is 1. Inputs and weights are random. Tokens that rounding sends to
another expert, where two experts tie, are counted and left out of the comparison; more than one in a hundred is an
error.

Time is the median over the rounds. Peak memory is what a run needs besides inputs and weights: the values between
launches, as many as are alive at once, outputs and the kernels' scratch; weights, packed as the kernels want them, come
on top in both programs. Traffic is what the launches read and write, counted from their operands.`,
	Examples: []cli.Example{
		{"fusec demo", "all three, some seconds"},
		{"fusec demo --seq-len 2048 --batch-size 1 --causal", "a longer sequence, of which each token sees what came before"},
		{"fusec demo --num-experts 32 --top-k 1 --capacity 1", "many experts, each with a small capacity"},
		{"fusec demo --block-size 32", "what the attention's block size does"},
		{"fusec demo --profile-memory", "where the memory is, and which values are the largest"},
		{"fusec demo --json", "for programs"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		d := &demo{target: fusec.Targets()[0], seconds: 0.4,
			shape: demoShape{Batch: 4, Seq: 256, Model: 256, Experts: 8, TopK: 2, Factor: 1.25}}
		s := &d.shape
		f.Count(&s.Batch, "batch-size", 1, "`N` sequences at a time (default 4)")
		f.Count(&s.Seq, "seq-len", 1, "sequences of `N` tokens (default 256)")
		f.Count(&s.Model, "d-model", 1, "tokens of `N` numbers (default 256)")
		f.Count(&s.Heads, "heads", 1, "attend by `N` heads (default: such that each is 64 wide, if that divides; else 1)")
		f.Count(&d.block, "block-size", 0, "attend in blocks of `N` queries and keys (default 0: chosen by the shape)")
		f.Count(&s.Experts, "num-experts", 1, "`N` experts (default 8)")
		f.Count(&s.TopK, "top-k", 1, "send each token to `N` experts (default 2)")
		const capacity = "an expert takes at most `F` times an even share of the tokens; 0: all (default 1.25)"
		f.Func("capacity", capacity, func(v string) error {
			c, err := strconv.ParseFloat(v, 64)
			if err != nil || !(c >= 0 && c <= bench.MaxExperts) {
				return fmt.Errorf("want a number from 0 to %d", bench.MaxExperts)
			}
			s.Factor = c
			return nil
		})
		f.BoolVar(&s.Causal, "causal", false, "queries attend keys up to their own")
		f.BoolVar(&s.FFN, "ffn", false, "the block has a feed-forward network instead of a mixture of experts")
		timed := cli.Targets(func(t lowering.Target) bool { return !t.Untimed })
		f.Choice(&d.target, "target", timed, "run on the `TARGET` "+cli.Either(timed)+" (default cpu)")
		f.Alias("target", "device")
		f.Threads(&d.threads, "all")
		f.Seconds(&d.seconds, "seconds", "measure each program for `S` seconds in all (default 0.4)")
		f.BoolVar(&d.memory, "profile-memory", false, "show where memory is, and the largest values with their lifetimes")
		f.BoolVar(&d.json, "json", false, "print the report as JSON")
		return d.run
	},
}

// demo is fusec demo with its flags.
type demo struct {
	shape        demoShape
	target       string
	block        int
	threads      int
	seconds      float64
	memory, json bool
}

// demoRounds is how many turns the two programs take.
const demoRounds = 3

func (d *demo) run(e *cli.Env, args []string) error {
	if len(args) > 0 {
		return cli.Usage("unexpected argument %q", args[0])
	}
	if err := d.complete(); err != nil {
		return err
	}
	graphs, err := d.shape.demoGraphs()
	if err != nil {
		return err
	}
	for _, g := range graphs {
		if err := d.affords(g); err != nil {
			return err
		}
	}
	rep := &demoReport{Schema: "fusec.demo/1", Machine: cli.ThisMachine(), Device: d.target, Threads: d.threads,
		Rounds: demoRounds, Shape: d.shape, profiled: d.memory}
	if rep.Blocks, err = d.blocks(); err != nil {
		return err
	}
	show := cli.NewProgress(e.Stderr)
	defer show.Done()
	var wrong error
	for i, g := range graphs {
		progress := func(round int) {
			show.Show("%d of %d, %s: round %d of %d", i+1, len(graphs), g.Name, round+1, demoRounds)
		}
		s, err := d.compare(e, g, progress)
		if err != nil {
			return fmt.Errorf("%s: %w", g.Name, err)
		}
		rep.Sections = append(rep.Sections, s)
		wrong = errors.Join(wrong, s.wrong(d.shape.tokens()))
	}
	show.Done()
	if d.json {
		return errors.Join(cli.WriteJSON(e.Out, rep), wrong)
	}
	err = e.Print(rep.text())
	return errors.Join(err, wrong)
}

// complete checks the flags with one another and fills in what they leave open.
func (d *demo) complete() error {
	s := &d.shape
	for _, f := range []struct {
		flag      string
		value, to int
	}{
		{"batch-size", s.Batch, bench.MaxBatch}, {"seq-len", s.Seq, bench.MaxSeq}, {"d-model", s.Model, bench.MaxModel},
		{"heads", s.Heads, bench.MaxHeads}, {"block-size", d.block, bench.MaxSeq}, {"num-experts", s.Experts, bench.MaxExperts},
	} {
		if f.value > f.to {
			return cli.Usage("--%s %d: want at most %d", f.flag, f.value, f.to)
		}
	}
	if s.Heads == 0 {
		s.Heads = 1
		if s.Model%64 == 0 {
			s.Heads = s.Model / 64
		}
	}
	if s.Model%s.Heads != 0 {
		return cli.Usage("--d-model %d is not a multiple of --heads %d", s.Model, s.Heads)
	}
	if s.TopK > s.Experts {
		return cli.Usage("--top-k %d is more than --num-experts %d", s.TopK, s.Experts)
	}
	if d.threads == 0 {
		d.threads = runtime.GOMAXPROCS(0)
	}
	s.Hidden = hiddenFactor * s.Model
	if s.Factor > 0 {
		even := float64(s.tokens()) * float64(s.TopK) / float64(s.Experts)
		s.Capacity = max(1, int(math.Ceil(s.Factor*even)))
	}
	return d.tooLarge("an unfused program", s.least())
}

// least is a lower bound of the memory that the unfused programs need, for sizes at which not even a graph with its
// mask should be made.
func (s *demoShape) least() float64 {
	scores := float64(s.Batch) * float64(s.Heads) * float64(s.Seq) * float64(s.Seq)
	weights := 2 * float64(s.Experts) * float64(s.Model) * float64(s.Hidden)
	return 4 * max(scores, weights, float64(s.tokens())*float64(s.Hidden))
}

// tooLarge refuses sizes that need more memory than this machine has.
func (d *demo) tooLarge(what string, need float64) error {
	err := memlimit.Check(int64(min(need, 1<<60)))
	if err == nil {
		return nil
	}
	s := &d.shape
	return cli.Usage("--batch-size %d --seq-len %d --d-model %d --num-experts %d: %s: %v", s.Batch, s.Seq, s.Model, s.Experts, what,
		err)
}

// affords checks that both programs of a graph and their values fit into memory at once.
func (d *demo) affords(g *graph.Graph) error {
	var need float64
	for _, n := range g.Sources() {
		need += float64(n.Type.Bytes())
	}
	for _, opts := range [][]fusec.CompileOption{d.options(true), d.options(false)} {
		_, p, err := fusec.Plan(g, opts...)
		if err != nil {
			return err
		}
		need += float64(p.ArenaBytes)
		for _, b := range p.Buffers {
			if b.Role == lowering.Output || b.Role == lowering.Const || b.Role == lowering.Param { // these are packed
				need += float64(b.Type.Bytes())
			}
		}
	}
	return d.tooLarge("fused and unfused "+g.Name, need)
}

// options are those of the fused or the unfused program.
func (d *demo) options(fused bool) []fusec.CompileOption {
	var own []lowering.TargetOption
	if t, _ := fusec.TargetNamed(d.target); t.AttentionBlock != nil {
		own = append(own, t.AttentionBlock(d.block))
	}
	opts := []fusec.CompileOption{modelio.OnTarget(d.target, own...), fusec.WithWorkers(d.threads)}
	if !fused {
		for _, name := range bench.Unfused {
			opts = append(opts, fusec.WithoutPass(name))
		}
	}
	return opts
}

// blocks asks the kernel how it cuts an attention of these sizes.
func (d *demo) blocks() (demoBlocks, error) {
	s := &d.shape
	p := pool.New(1)
	defer p.Close()
	op := graph.Attention{Scale: 1, Causal: s.Causal}
	cfg := attention.Rows(op, s.Batch*s.Heads, s.Seq, s.Seq, s.Model/s.Heads)
	cfg.Blocking = attention.Blocking{Queries: d.block, Keys: d.block}
	plan, err := attention.New[float32](cfg, p)
	if err != nil {
		return demoBlocks{}, err
	}
	b := plan.Blocks()
	return demoBlocks{b.Queries, b.Keys, d.block > 0}, nil
}

// compare compiles a graph with and without fusion, compares what they compute, and measures both in turn.
func (d *demo) compare(e *cli.Env, g *graph.Graph, progress func(round int)) (*demoSection, error) {
	vals := demoValues(g)
	section := &demoSection{Name: g.Name}
	var programs []*fusec.Program
	var field []bench.Contestant
	for _, name := range []string{"unfused", "fused"} {
		p, err := fusec.Compile(g, d.options(name == "fused")...)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		defer p.Close()
		for _, n := range g.Sources() {
			if err := p.Set(n.Name, vals[n.Name]); err != nil {
				return nil, err
			}
		}
		if err := p.Exec(); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		programs = append(programs, p)
		field = append(field, bench.Contestant{Name: name, Run: p.Exec})
	}
	if err := section.agree(g, programs[1], programs[0]); err != nil {
		return nil, err
	}
	if err := section.routing(g, programs[1]); err != nil {
		return nil, err
	}
	times, err := bench.Race(e.Ctx, field, demoRounds, d.seconds, progress)
	if err != nil {
		return nil, err
	}
	section.Unfused = newDemoSide(programs[0], times[0], d.memory)
	section.Fused = newDemoSide(programs[1], times[1], d.memory)
	section.Kinds = launchKinds(programs[1])
	u, f := &section.Unfused, &section.Fused
	section.Ratio = demoRatio{Time: bench.Median(bench.Ratios(times[0], times[1])), Memory: over(u.Memory.peak(), f.Memory.peak()),
		Traffic: over(u.Traffic, f.Traffic), Launches: over(int64(u.Launches), int64(f.Launches)), FLOPs: over(u.FLOPs, f.FLOPs)}
	return section, nil
}

// demoValues are random inputs and weights. The router's bias is small beside what it makes of a token, so that experts
// are in uneven use, and none in none.
func demoValues(g *graph.Graph) map[string]*graph.Tensor {
	vals := map[string]*graph.Tensor{}
	for _, n := range g.Sources() {
		t := modelio.RandomTensor(n, 1, modelio.DefaultLimit)
		if n.Name == demoBias {
			for i := range n.Type.Shape.Elems() {
				t.SetFloat(i, t.Float(i)/4)
			}
		}
		vals[n.Name] = t
	}
	return vals
}

// over is a quotient, 0 where there is none.
func over(a, b int64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}
