package inspect

import (
	"context"
	"math"
	"time"

	"fusec"
	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/trace"
)

// traceOf compiles a model, and runs it if times are wanted.
func traceOf(e *cli.Env, compile *modelio.CompileFlags, values *modelio.ValueFlags, path string, measured bool) (*trace.Trace,
	error) {
	if !measured {
		g, err := compile.Load(e, path)
		if err != nil {
			return nil, err
		}
		tr, _, err := compile.Plan(g)
		return tr, err
	}
	g, vals, err := values.Load(e, path, &compile.Shapes, true)
	if err != nil {
		return nil, err
	}
	show := cli.NewProgress(e.Stderr)
	p, err := compile.Compile(g, vals, modelio.Opening(e, show))
	show.Done()
	if err != nil {
		return nil, err
	}
	defer p.Close()
	times, _, err := bench.Profile(e.Ctx, p, bench.ProfileSeconds)
	if err != nil {
		return nil, err
	}
	tr := p.Trace()
	for i, t := range times {
		tr.Program.Launches[i].Measured = t
	}
	for i, c := range p.Counts().Launches {
		tr.Program.Launches[i].Counts = c
	}
	run, err := p.PipelineRun()
	if run != nil {
		tr.Stages[len(tr.Stages)-1].Pipeline.Measured = run
	}
	return tr, err
}

// Sizes of what the ceilings of a machine are measured by: the elements of a copy, which no cache holds, and the side of
// a matrix product.
const (
	copied, side       = 1 << 24, 1024
	copiedGPU, sideGPU = 1 << 27, 8192
)

// ceilings measures how much arithmetic and memory traffic the target does in a second: with a large matrix product and
// a large copy. Both are 0 on targets whose time is not that of this machine.
func ceilings(e *cli.Env, compile *modelio.CompileFlags) (flops, bytes float64, err error) {
	n, m := copied, side
	switch {
	case compile.OnGPU():
		n, m = copiedGPU, sideGPU
	case compile.Target != fusec.Targets()[0]:
		return 0, 0, nil
	}
	show := cli.NewProgress(e.Stderr)
	defer show.Done()
	show.Show("measuring what the machine can do")
	rate := func(work float64, build func(b *graph.Builder)) (float64, error) {
		b := graph.NewBuilder("ceiling")
		build(b)
		g, err := b.Graph()
		if err != nil {
			return 0, err
		}
		t, err := fastest(e.Ctx, g, compile.Options(modelio.Opening(e, show)...))
		return work / t.Seconds(), err
	}
	square := graph.TypeOf(graph.F32, m, m)
	flops, err = rate(2*float64(m)*float64(m)*float64(m), func(b *graph.Builder) {
		b.Output("y", b.MatMul(b.Input("x", square), b.Param("w", square), false, false))
	})
	if err != nil {
		return 0, 0, err
	}
	values := graph.TypeOf(graph.F32, n)
	bytes, err = rate(2*float64(values.Bytes()), func(b *graph.Builder) {
		b.Output("y", b.Unary(graph.Neg, b.Input("x", values))) // a copy with a change of sign, so that it is not left out
	})
	return flops, bytes, err
}

// ceilingTime is how long each part of the ceilings is measured, after a first run.
const ceilingTime = 300 * time.Millisecond

// fastest is the time of a graph's launches in the fastest of several runs.
func fastest(ctx context.Context, g *graph.Graph, opts []fusec.CompileOption) (time.Duration, error) {
	p, err := fusec.Compile(g, opts...)
	if err != nil {
		return 0, err
	}
	defer p.Close()
	for _, n := range g.Sources() {
		if err := p.Set(n.Name, modelio.RandomTensor(n, modelio.DefaultSeed, modelio.DefaultLimit)); err != nil {
			return 0, err
		}
	}
	p.Profile(true)
	best := time.Duration(math.MaxInt64)
	for start, n := time.Now(), 0; n < 3 || time.Since(start) < ceilingTime; n++ {
		if err := ctx.Err(); err != nil {
			return 0, err
		}
		if err := p.Exec(); err != nil {
			return 0, err
		}
		var t time.Duration
		for _, each := range p.Times() {
			t += each
		}
		best = min(best, t)
	}
	return max(best, 1), nil
}
