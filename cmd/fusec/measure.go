package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"time"

	"fusec"
	"fusec/lowering"
)

// contestant is something to be timed.
type contestant struct {
	name string
	run  func() error
}

// How a turn of a race is measured.
const (
	warmRuns  = 3
	warmTime  = 50 * time.Millisecond
	leastRuns = 3
	slowRun   = 0.2 // seconds of a run of which one a turn must do
	mostRuns  = 20000
)

// timing is what a race found about one contestant.
type timing struct {
	rounds []float64 // the median of each round, in seconds
	best   float64   // of all runs
	runs   int
}

// median is the median of the rounds.
func (t timing) median() float64 { return median(t.rounds) }

// duration is the median as a duration.
func (t timing) duration() time.Duration { return time.Duration(t.median() * 1e9) }

// spread is how far the rounds lie apart, as a part of their median.
func (t timing) spread() float64 {
	return (slices.Max(t.rounds) - slices.Min(t.rounds)) / t.median()
}

// race times contestants in turn (A, B, A, B, …), so that a machine that drifts hurts all alike. Each has the given
// seconds in all, spread over the rounds, and at least three runs in each, or one if it is slow.
func race(ctx context.Context, list []contestant, rounds int, seconds float64, progress func(round int)) ([]timing, error) {
	result := make([]timing, len(list))
	least := make([]int, len(list))
	for i, c := range list {
		result[i].best, least[i] = math.Inf(1), leastRuns
		times, err := runs(ctx, c, warmRuns, warmTime)
		if err != nil {
			return nil, err
		}
		if median(times) > slowRun {
			least[i] = 1
		}
	}
	turn := time.Duration(seconds / float64(rounds) * 1e9)
	for round := range rounds {
		progress(round)
		for i, c := range list {
			runtime.GC() // one's garbage is not the other's burden
			times, err := runs(ctx, c, least[i], turn)
			if err != nil {
				return nil, err
			}
			r := &result[i]
			r.rounds = append(r.rounds, median(times))
			r.best = min(r.best, slices.Min(times))
			r.runs += len(times)
		}
	}
	return result, nil
}

// runs times single runs: at least n and for at least d.
func runs(ctx context.Context, c contestant, n int, d time.Duration) ([]float64, error) {
	var times []float64
	begin := time.Now()
	for len(times) < n || time.Since(begin) < d && len(times) < mostRuns {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		start := time.Now()
		if err := c.run(); err != nil {
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
		times = append(times, time.Since(start).Seconds())
	}
	return times, nil
}

// profileSeconds is how long a program is profiled.
const profileSeconds = 0.3

// profile runs a program and gives the median time of each launch, and the timelines of all runs.
func profile(ctx context.Context, p *fusec.Program, seconds float64) (times []time.Duration, lines [][]lowering.Span, err error) {
	c := contestant{"fusec", p.Exec}
	warm, least := warmRuns, leastRuns
	if p.Counts() != nil { // cycles are the same in each run, and a simulator takes its time
		warm, least, seconds = 0, 1, 0
	}
	if _, err := runs(ctx, c, warm, 0); err != nil {
		return nil, nil, err
	}
	p.Profile(true)
	defer p.Profile(false)
	samples := make([][]float64, len(p.Fusions()))
	c.run = func() error {
		err := p.Exec()
		for i, t := range p.Times() {
			samples[i] = append(samples[i], t.Seconds())
		}
		lines = append(lines, slices.Clone(p.Timeline()))
		return err
	}
	if _, err := runs(ctx, c, least, time.Duration(seconds*1e9)); err != nil {
		return nil, nil, err
	}
	times = make([]time.Duration, len(samples))
	for i, s := range samples {
		times[i] = time.Duration(median(s) * 1e9)
	}
	return times, lines, nil
}

// allocated is how many bytes one run allocates.
func allocated(c contestant) (int64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := c.run()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), err
}

// median is the middle of the values, the mean of the middle two if their number is even; NaN of none.
func median(x []float64) float64 {
	n := len(x)
	if n == 0 {
		return math.NaN()
	}
	x = slices.Sorted(slices.Values(x))
	return (x[(n-1)/2] + x[n/2]) / 2
}

// uncertainty estimates the standard error of the values' median, as a part of it. The values' standard deviation is
// taken from their median distance to the median, so that a few disturbed rounds do not count.
func uncertainty(x []float64) float64 {
	const (
		normal = 1.4826 // makes the median distance the standard deviation of a normal distribution
		middle = 1.2533 // √(π/2): how much wider the median scatters than the mean
	)
	m := median(x)
	far := make([]float64, len(x))
	for i, v := range x {
		far[i] = math.Abs(v - m)
	}
	return middle * normal * median(far) / (m * math.Sqrt(float64(len(x))))
}

// ratios are how many times as long slow took as fast, round by round.
func ratios(slow, fast timing) []float64 {
	r := make([]float64, len(fast.rounds))
	for i := range r {
		r[i] = slow.rounds[i] / fast.rounds[i]
	}
	return r
}

// progress shows on a terminal how far a measurement has come.
type progress struct {
	w  io.Writer
	on bool
}

func newProgress(w io.Writer) *progress { return &progress{w, isTerminal(w)} }

// show replaces the line.
func (p *progress) show(format string, args ...any) {
	if p.on {
		fmt.Fprintf(p.w, "\r\x1b[K"+format, args...)
	}
}

// ticking shows what text says, each second, until the function that it returns is called: that one clears the line.
func (p *progress) ticking(text func() string) (stop func()) {
	if !p.on {
		return func() {}
	}
	ended, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		ticker := time.NewTicker(time.Second)
		defer ticker.Stop()
		for {
			p.show("%s", text())
			select {
			case <-ended:
				return
			case <-ticker.C:
			}
		}
	}()
	return func() {
		close(ended)
		<-gone
		p.done()
	}
}

// done clears the line.
func (p *progress) done() { p.show("") }
