package bench

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"slices"
	"time"

	"fusec"
	"fusec/lowering"
)

// Contestant is something to be timed.
type Contestant struct {
	Name string
	Run  func() error
}

// How a turn of a race is measured.
const (
	warmRuns  = 3
	warmTime  = 50 * time.Millisecond
	leastRuns = 3
	slowRun   = 0.2 // seconds of a run of which one a turn must do
	mostRuns  = 20000
)

// Timing is what a race found about one contestant.
type Timing struct {
	rounds []float64 // the median of each round, in seconds
	fast   []float64 // a fast run of each round: that of which a tenth are faster
	Best   float64   // of all runs
	runs   int
}

// median is the median of the rounds.
func (t Timing) median() float64 { return Median(t.rounds) }

// Duration is the median as a duration.
func (t Timing) Duration() time.Duration { return time.Duration(t.median() * 1e9) }

// Spread is how far the rounds lie apart, as a part of their median.
func (t Timing) Spread() float64 {
	return (slices.Max(t.rounds) - slices.Min(t.rounds)) / t.median()
}

// Race times contestants in turn (A, B, A, B, …), so that a machine that drifts hurts all alike. Each has the given
// seconds in all, spread over the rounds, and at least three runs in each, or one if it is slow.
func Race(ctx context.Context, list []Contestant, rounds int, seconds float64, progress func(round int)) ([]Timing, error) {
	result := make([]Timing, len(list))
	least := make([]int, len(list))
	for i, c := range list {
		result[i].Best, least[i] = math.Inf(1), leastRuns
		times, err := runs(ctx, c, warmRuns, warmTime)
		if err != nil {
			return nil, err
		}
		if Median(times) > slowRun {
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
			r.rounds = append(r.rounds, Median(times))
			r.fast = append(r.fast, slices.Sorted(slices.Values(times))[len(times)/10])
			r.Best = min(r.Best, slices.Min(times))
			r.runs += len(times)
		}
	}
	return result, nil
}

// clock is what runs are timed by: elapsed time, or with --cpu-time the processors'.
var clock = elapsed

// began is the origin of elapsed.
var began = time.Now()

func elapsed() time.Duration { return time.Since(began) }

// byProcessors has runs timed by the processors' time, until the function that it returns is called.
func byProcessors() (restore func(), err error) {
	if _, err := processorTime(); err != nil {
		return nil, err
	}
	clock = func() time.Duration {
		t, _ := processorTime() // it did not fail before
		return t
	}
	return func() { clock = elapsed }, nil
}

// runs times single runs: at least n and for at least d.
func runs(ctx context.Context, c Contestant, n int, d time.Duration) ([]float64, error) {
	var times []float64
	begin := time.Now()
	for len(times) < n || time.Since(begin) < d && len(times) < mostRuns {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		start := clock()
		if err := c.Run(); err != nil {
			return nil, fmt.Errorf("%s: %w", c.Name, err)
		}
		times = append(times, (clock() - start).Seconds())
	}
	return times, nil
}

// ProfileSeconds is how long a program is profiled.
const ProfileSeconds = 0.3

// Profile runs a program and gives the median time of each launch, and the timelines of all runs.
func Profile(ctx context.Context, p *fusec.Program, seconds float64) (times []time.Duration, lines [][]lowering.Span, err error) {
	c := Contestant{"fusec", p.Exec}
	warm, least := warmRuns, leastRuns
	if p.Counts().Launches != nil { // which is the same in each run, and a simulator takes its time
		warm, least, seconds = 0, 1, 0
	}
	if _, err := runs(ctx, c, warm, 0); err != nil {
		return nil, nil, err
	}
	p.Profile(true)
	defer p.Profile(false)
	samples := make([][]float64, len(p.Fusions()))
	c.Run = func() error {
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
		times[i] = time.Duration(Median(s) * 1e9)
	}
	return times, lines, nil
}

// allocated is how many bytes one run allocates.
func allocated(c Contestant) (int64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := c.Run()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), err
}

// Median is the middle of the values, the mean of the middle two if their number is even; NaN of none.
func Median(x []float64) float64 {
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
	m := Median(x)
	far := make([]float64, len(x))
	for i, v := range x {
		far[i] = math.Abs(v - m)
	}
	return middle * normal * Median(far) / (m * math.Sqrt(float64(len(x))))
}

// quiet is the fastest of the rounds' fast runs. Other programs only ever make a run slower, so that is where they disturb
// least. It is not Best: processors' clocks may be wrong for once.
func (t Timing) quiet() float64 { return slices.Min(t.fast) }

// quietRatios are Ratios of the fast runs of each round.
func quietRatios(slow, fast Timing) []float64 {
	return Ratios(Timing{rounds: slow.fast}, Timing{rounds: fast.fast})
}

// Ratios are how many times as long slow took as fast, round by round.
func Ratios(slow, fast Timing) []float64 {
	r := make([]float64, len(fast.rounds))
	for i := range r {
		r[i] = slow.rounds[i] / fast.rounds[i]
	}
	return r
}
