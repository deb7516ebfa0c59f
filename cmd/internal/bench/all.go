package bench

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
)

// allName is the argument that asks for all suites.
const allName = "all"

// suite is a part of fusec bench all.
type suite struct {
	name string
	run  func(b *bencher, e *cli.Env) (*outcome, error)
}

// suites are those of a machine without GPU, in order.
var suites = []suite{
	{"networks", (*bencher).networks},
	{"training", (*bencher).training},
	{"matmul", (*bencher).matmul},
	{"attention", (*bencher).attention},
	{"causal", func(b *bencher, e *cli.Env) (*outcome, error) {
		c := *b
		c.attends.causal = true
		return c.attention(e)
	}},
	{"moe", (*bencher).moe},
	{"loader", func(b *bencher, e *cli.Env) (*outcome, error) { return b.loader(e, "") }},
}

// gpuSuite is the one of a machine with a GPU.
var gpuSuite = suite{gpuName, func(b *bencher, e *cli.Env) (*outcome, error) { return b.gpuSuite(e) }}

// suiteNames are the names that --only takes.
func suiteNames() []string {
	names := []string{gpuName}
	for _, s := range suites {
		names = append(names, s.name)
	}
	return names
}

// How long all suites measure each contestant, and in how many rounds.
const (
	allSeconds, allRounds     = 10, 15 // about ten minutes together
	quickSeconds, quickRounds = 0.7, 5 // about one
)

// allReport is what fusec bench all found, and its JSON form.
type allReport struct {
	Schema  string        `json:"schema"` // fusec.bench.all/1
	Machine cli.Machine   `json:"machine"`
	Version string        `json:"version"`
	Load    float64       `json:"load"` // before; see record
	Threads int           `json:"threads"`
	Rounds  int           `json:"rounds"`
	Seconds float64       `json:"seconds"` // all together
	Suites  []suiteReport `json:"suites"`
	Figures []figure      `json:"figures"`
}

type suiteReport struct {
	Name    string  `json:"name"`
	Seconds float64 `json:"seconds"`
	Report  any     `json:"report,omitempty"` // as the benchmark by itself prints it
	Error   string  `json:"error,omitempty"`
}

// all runs the suites one after another, and the models that are named. A suite that fails does not end the others.
func (b *bencher) all(e *cli.Env, models []string, gate *gate, kept *historian) (*outcome, error) {
	if b.quick {
		b.sizes = []size{{256, 256, 256}, {512, 512, 512}}
		b.attends.seqs, b.mixes.experts, b.mixes.tokens, b.size = []int{512, 1024}, []int{8, 32}, 1024, 64<<20
	}
	if gate != nil {
		gate.least = leastOfAll
	}
	list := slices.Clone(suites)
	if modelio.GPU().There() {
		list = append(list, gpuSuite)
	}
	for _, path := range models {
		list = append(list, suite{path, func(b *bencher, e *cli.Env) (*outcome, error) { return b.model(e, path) }})
	}
	if b.only != nil {
		list = slices.DeleteFunc(list, func(s suite) bool {
			return !slices.Contains(b.only, s.name) &&
				!slices.Contains(models, s.name)
		})
		if len(list) == 0 {
			return nil, fmt.Errorf("nothing to measure: this machine has no %s", strings.Join(b.only, ", "))
		}
	}
	rep := &allReport{Schema: "fusec.bench.all/1", Machine: cli.ThisMachine(), Version: cli.Version(), Load: load(),
		Threads: b.compile.Threads, Rounds: b.rounds}
	if busy := rep.Load / float64(rep.Machine.Cores); busy > 0.5 {
		e.Note("the machine is busy: %s processes ran or waited on %s in the last minute; figures scatter more",
			cli.Digits(rep.Load), cli.Plural(rep.Machine.Cores, "core", "cores"))
	}
	found := &outcome{report: rep}
	begin := time.Now()
	for i, s := range list {
		b.suite = fmt.Sprintf("%d of %d, ", i+1, len(list))
		start := time.Now()
		o, err := b.sure(e, s, gate)
		if e.Ctx.Err() != nil {
			return nil, e.Ctx.Err()
		}
		r := suiteReport{Name: s.name, Seconds: time.Since(start).Seconds()}
		if err != nil {
			found.wrong = errors.Join(found.wrong, fmt.Errorf("%s: %w", s.name, err))
			r.Error = err.Error()
		} else {
			r.Report = o.report
			found.entries, found.figures = append(found.entries, o.entries...), append(found.figures, o.figures...)
			if !b.json {
				if err := errors.Join(e.Print(o.text+"\n"), e.Out.Flush()); err != nil {
					return nil, err
				}
			}
			// A history has what was measured, also if the rest is interrupted.
			if kept != nil {
				if err := kept.add(o.gpu, o.all()); err != nil {
					found.wrong, kept = errors.Join(found.wrong, err), nil
				}
			}
		}
		rep.Suites = append(rep.Suites, r)
	}
	rep.Seconds, rep.Figures = time.Since(begin).Seconds(), found.all()
	found.text = fmt.Sprintf("%s in %.0f s\n", cli.Plural(len(rep.Figures), "figure", "figures"), rep.Seconds)
	return found, nil
}

// tries is how often a suite is measured whose ratios are lower than the baseline: what the machine did meanwhile passes,
// a loss stays.
const tries = 3

// sure runs a suite, again if ratios are lower than a baseline, with the rounds of all tries together.
func (b *bencher) sure(e *cli.Env, s suite, g *gate) (*outcome, error) {
	best, err := s.run(b, e)
	for try := 1; try < tries && err == nil && g != nil && g.anyLower(best.entries); try++ {
		var o *outcome
		if o, err = s.run(b, e); err != nil {
			return nil, err
		}
		for i := range best.entries {
			best.entries[i].join(o.entries[i])
		}
	}
	return best, err
}

// gpuSuite times the workloads on the GPU.
func (b *bencher) gpuSuite(e *cli.Env) (*outcome, error) {
	list, err := gpuWorks(nil, b.small)
	if err != nil {
		return nil, err
	}
	var lines []gpuLine
	failed, err := b.gpuLines(e, list, modelio.GPU().Name, func(l gpuLine) error { lines = append(lines, l); return nil })
	if err != nil {
		return nil, err
	}
	o := &outcome{report: lines, text: gpuTable(lines)}
	for _, l := range lines {
		if l.Error == "" {
			o.gpu = l.device
			o.figures = append(o.figures, newFigure(l.Workload, unitTime, l.MS, l.times))
		}
	}
	if failed > 0 {
		err = unmeasured(failed, len(list))
	}
	return o, err
}

// haveModels reports a model that is not there, before minutes of measuring.
func haveModels(paths []string) error {
	for _, p := range paths {
		if _, err := os.Stat(p); err != nil {
			return err
		}
	}
	return nil
}
