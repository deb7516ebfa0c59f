package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"fusec/cmd/internal/cli"
	"io"
	"io/fs"
	"math"
	"os"
	"slices"
	"strings"
)

// The gate's rule. A ratio counts as lower if it fell by more than allowance, which is noiseFactor times the noise of
// both measurements, within bounds: below the least no two processes agree, since their memory is laid out in different
// ways, and a loss above the most is one however noisy the machine. Between machines with the same kernels but other processors
// ratios differ for reasons that are not fusec's. Ratios with other kernels are not compared.
const (
	noiseFactor    = 3
	leastAllowance = 0.05
	leastOfAll     = 0.15 // of fusec bench all: among many figures one is off by chance
	mostAllowance  = 0.20
	elsewhere      = 0.50
)

const baselineSchema = "fusec.baseline/1"

// baseline is the file of fusec bench --baseline.
type baseline struct {
	Schema  string  `json:"schema"`
	Entries []entry `json:"entries"`
}

// entry is how many times as fast as a rival fusec was at something.
type entry struct {
	Subject string  `json:"subject"` // such as "model digits-mlp" or "matmul 512x512x512"
	Peer    string  `json:"peer"`
	Threads int     `json:"threads"`
	Ratio   float64 `json:"ratio"` // the peer's time over fusec's, of fast runs of each; see Timing
	Noise   float64 `json:"noise"` // its standard error, as a part of it, by the rounds
	Rounds  int     `json:"rounds"`
	CPU     string  `json:"cpu"`
	Kernel  string  `json:"kernel"` // of matrix multiplication

	own, rival Timing
	factor     float64 // the ratio is that of the times, multiplied by this
}

// newEntry makes the entry of a measurement on this machine.
func newEntry(subject, peer string, threads int, own, rival Timing, factor float64) entry {
	m := cli.ThisMachine()
	e := entry{Subject: subject, Peer: peer, Threads: threads, CPU: m.CPU, Kernel: m.GEMM, own: own, rival: rival, factor: factor}
	e.settle()
	return e
}

// settle computes the ratio and its noise.
func (e *entry) settle() {
	e.Ratio, e.Noise = round(e.factor*e.rival.quiet()/e.own.quiet()), round(uncertainty(quietRatios(e.rival, e.own)))
	e.Rounds = len(e.own.fast)
}

// join adds the rounds of another measurement of the same thing.
func (e *entry) join(o entry) {
	for _, t := range []struct{ to, from *Timing }{{&e.own, &o.own}, {&e.rival, &o.rival}} {
		t.to.rounds, t.to.fast = slices.Concat(t.to.rounds, t.from.rounds), slices.Concat(t.to.fast, t.from.fast)
		t.to.Best, t.to.runs = min(t.to.Best, t.from.Best), t.to.runs+t.from.runs
	}
	e.settle()
}

// round keeps four digits, so that files differ only where it means something.
func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return v
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// same reports whether two entries are of the same thing.
func (e entry) same(o entry) bool {
	return e.Subject == o.Subject && e.Peer == o.Peer && e.Threads == o.Threads
}

// sameMachine reports whether two entries are from the same kind of machine.
func (e entry) sameMachine(o entry) bool { return e.CPU == o.CPU && e.Kernel == o.Kernel }

func (e entry) check() error {
	switch {
	case e.Subject == "" || e.Peer == "" || e.Threads < 1:
		return errors.New("an entry lacks its subject, peer or threads")
	case !(e.Ratio > 0) || math.IsInf(e.Ratio, 0):
		return fmt.Errorf("%s: the ratio is %v", e.Subject, e.Ratio)
	case !(e.Noise >= 0) || math.IsInf(e.Noise, 0):
		return fmt.Errorf("%s: the noise is %v", e.Subject, e.Noise)
	}
	return nil
}

// state is what became of a ratio.
type state uint8

const (
	added state = iota // there was none
	kept               // within the noise
	higher
	lower
	updated
)

// verdict is the judgement of one entry.
type verdict struct {
	state     state
	now, was  entry
	allowance float64
}

// String gives the verdict as a sentence.
func (v verdict) String() string {
	s := fmt.Sprintf("%s, %s: %s× %s", v.now.Subject, cli.Plural(v.now.Threads, "thread", "threads"), cli.Digits(v.now.Ratio),
		v.now.Peer)
	if v.state == added {
		return s + ", now the baseline"
	}
	change := v.now.Ratio/v.was.Ratio - 1
	s += fmt.Sprintf(" (baseline %s×, %+.1f %%, noise allows ±%.1f %%)", cli.Digits(v.was.Ratio), 100*change, 100*v.allowance)
	if !v.now.sameMachine(v.was) {
		s += " kept on another machine, " + strings.TrimSpace(v.was.CPU+" "+v.was.Kernel)
	}
	return s + map[state]string{kept: ": as before", higher: ": faster", lower: ": SLOWER",
		updated: ": the baseline is updated"}[v.state]
}

// compare judges a new entry by an old one, with at least the given allowance.
func compare(now, was entry, least float64) verdict {
	v := verdict{state: kept, now: now, was: was, allowance: elsewhere}
	if now.sameMachine(was) {
		v.allowance = min(mostAllowance, max(least, noiseFactor*math.Hypot(now.Noise, was.Noise)))
	}
	switch change := now.Ratio/was.Ratio - 1; {
	case change < -v.allowance:
		v.state = lower
	case change > v.allowance:
		v.state = higher
	}
	return v
}

// gate is a baseline file in use.
type gate struct {
	path   string
	file   baseline
	update bool
	least  float64 // allowance
}

// maxBaseline bounds the bytes of a baseline file.
const maxBaseline = 1 << 24

// openGate reads a baseline; a file that does not exist is an empty one.
func openGate(path string, update bool) (*gate, error) {
	g := &gate{path: path, file: baseline{Schema: baselineSchema}, update: update, least: leastAllowance}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the baseline: %w", err)
	}
	defer f.Close()
	src, err := io.ReadAll(io.LimitReader(f, maxBaseline))
	if err != nil {
		return nil, fmt.Errorf("reading the baseline: %w", err)
	}
	if g.file, err = parseBaseline(src); err != nil {
		return nil, fmt.Errorf("%s is no baseline of fusec bench: %w", path, err)
	}
	return g, nil
}

func parseBaseline(src []byte) (baseline, error) {
	var b baseline
	j := json.NewDecoder(bytes.NewReader(src))
	j.DisallowUnknownFields()
	if err := j.Decode(&b); err != nil {
		return b, err
	}
	if _, err := j.Token(); err != io.EOF {
		return b, errors.New("something follows the end")
	}
	if b.Schema != baselineSchema {
		return b, fmt.Errorf("its schema is %q, not %q", b.Schema, baselineSchema)
	}
	for i, e := range b.Entries {
		if err := e.check(); err != nil {
			return b, err
		}
		if slices.ContainsFunc(b.Entries[:i], func(o entry) bool { return o.same(e) && o.sameMachine(e) }) {
			return b, fmt.Errorf("%s is there twice", e.Subject)
		}
	}
	return b, nil
}

// anyLower reports whether any entry is lower than the baseline by more than noise.
func (g *gate) anyLower(now []entry) bool {
	return !g.update && slices.ContainsFunc(now, func(e entry) bool {
		was, _ := g.find(e)
		return was >= 0 && compare(e, g.file.Entries[was], g.least).state == lower
	})
}

// find is the place of the entry that another is compared with, and whether it is from the same kind of machine; −1 if
// there is none.
func (g *gate) find(e entry) (at int, here bool) {
	at = slices.IndexFunc(g.file.Entries, func(o entry) bool { return o.same(e) && o.sameMachine(e) })
	if at >= 0 {
		return at, true
	}
	return slices.IndexFunc(g.file.Entries, func(o entry) bool { return o.same(e) && o.Kernel == e.Kernel }), false
}

// judge compares entries with the baseline and writes what is new to it: entries that it lacks, and with update all.
func (g *gate) judge(now []entry) ([]verdict, error) {
	var verdicts []verdict
	changed := false
	for _, e := range now {
		if err := e.check(); err != nil {
			return nil, err
		}
		at, here := g.find(e)
		v := verdict{state: added, now: e}
		if at >= 0 {
			v = compare(e, g.file.Entries[at], g.least)
		}
		switch {
		case here && g.update:
			g.file.Entries[at] = e
			v.state, changed = updated, true
		case at < 0 || g.update:
			g.file.Entries = append(g.file.Entries, e)
			changed = true
			if at >= 0 {
				v.state = updated
			}
		}
		verdicts = append(verdicts, v)
	}
	if !changed {
		return verdicts, nil
	}
	slices.SortStableFunc(g.file.Entries, func(a, b entry) int {
		return strings.Compare(fmt.Sprintf("%s %4d %s %s %s", a.Subject, a.Threads, a.Peer, a.CPU, a.Kernel),
			fmt.Sprintf("%s %4d %s %s %s", b.Subject, b.Threads, b.Peer, b.CPU, b.Kernel))
	})
	var b bytes.Buffer
	if err := cli.WriteJSON(&b, g.file); err != nil {
		return nil, err
	}
	return verdicts, cli.WriteFile(g.path, b.Bytes())
}
