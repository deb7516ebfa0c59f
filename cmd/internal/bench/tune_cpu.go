package bench

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	kernels "fusec/kernels/cpu"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/local"
)

// How long the ways of a convolution are timed, in turn.
const (
	tuneRounds  = 12
	tuneSeconds = 0.06 // for each way
)

// convolutions is fusec tune on the CPU.
func (t *tuner) convolutions(e *cli.Env, path string) error {
	g, err := t.compile.Load(e, path)
	if err != nil {
		return err
	}
	if err := t.compile.Check(); err != nil {
		return err
	}
	device, p, err := modelio.PlanFor[*cpu.Device](g, t.compile.Options(cpu.Tuned(&kernels.Tuning{}))...)
	if err != nil {
		return err
	}
	tuning, err := local.ReadTuning(cpu.Target.Name, device.Chip(), kernels.ParseTuning)
	if tuning == nil || err != nil { // what is not readable is replaced
		tuning = &kernels.Tuning{Chip: device.Chip(), Times: map[kernels.Convolution]map[kernels.Way]time.Duration{}}
	}
	rep := &tuneReport{Schema: "fusec.tune/1", Chip: device.Chip(), Products: []tunedResult{}}
	show := cli.NewProgress(e.Stderr)
	defer show.Done()
	list, rules := cpu.Convolutions(p)
	if len(list) == 0 {
		return fmt.Errorf("%s has no convolutions, and nothing else is tuned for target cpu", modelio.ModelName(path))
	}
	for i, c := range list {
		show.Show("%s: convolution %d of %d", modelio.ModelName(path), i+1, len(list))
		r, err := t.convolution(e, c, rules[c], tuning)
		if err != nil {
			return fmt.Errorf("convolution %v: %w", c, err)
		}
		rep.Products = append(rep.Products, r)
	}
	show.Done()
	slices.SortFunc(rep.Products, func(a, b tunedResult) int { return strings.Compare(a.Product, b.Product) })
	if rep.File, err = local.WriteTuning(cpu.Target.Name, tuning.Chip, tuning.String()); err != nil {
		return err
	}
	return t.print(e, rep)
}

// convolution times the ways of a convolution, and brings the tuning up to date: it has one way by each algorithm that was timed.
func (t *tuner) convolution(e *cli.Env, c kernels.Convolution, rules kernels.Way,
	tuning *kernels.Tuning) (r tunedResult, err error) {
	ways := cpu.Ways(c, !t.compile.Without("winograd"))
	var field []Contestant
	for _, w := range ways {
		p, failed := t.alone(c, w)
		if failed != nil {
			return r, fmt.Errorf("%s: %w", w.Text(), failed)
		}
		defer func() { err = errors.Join(err, p.Close()) }()
		field = append(field, Contestant{w.String(), p.Exec})
	}
	times, err := Race(e.Ctx, field, tuneRounds, tuneSeconds, func(int) {})
	if err != nil {
		return r, err
	}
	if tuning.Times[c] == nil {
		tuning.Times[c] = map[kernels.Way]time.Duration{}
	}
	best := map[kernels.Algorithm]kernels.Way{}
	took := map[kernels.Way]time.Duration{}
	for i, w := range ways { // of each algorithm, blocks as the rules cut them come first
		took[w] = max(time.Duration(times[i].Best*1e9), 1)
		if b, ok := best[w.Algorithm]; !ok || float64(took[w]) < (1-worthTuning)*float64(took[b]) {
			best[w.Algorithm] = w
		}
	}
	for w := range tuning.Times[c] {
		if _, ok := best[w.Algorithm]; ok {
			delete(tuning.Times[c], w)
		}
	}
	for _, w := range best {
		tuning.Times[c][w] = took[w]
	}
	r = tunedResult{Product: c.String(), Ways: len(ways), RulesNS: took[rules].Nanoseconds()}
	way, least := tuning.Fastest(c, graph.NHWC)
	if w, d := tuning.Fastest(c, graph.NCHW); d > 0 && (d < least || least == 0) {
		way, least = w, d
	}
	r.BestNS = least.Nanoseconds()
	if way != rules {
		r.Way = way.Text()
	}
	return r, nil
}

// alone compiles a convolution alone, computed in a way.
func (t *tuner) alone(c kernels.Convolution, w kernels.Way) (*fusec.Program, error) {
	op, images, filters := w.Op(c)
	b := graph.NewBuilder(c.String())
	x, f := b.Input("x", images), b.Param("w", filters)
	b.Output("y", b.Add(op, x, f))
	g, err := b.Graph()
	if err != nil {
		return nil, err
	}
	one := &kernels.Tuning{Times: map[kernels.Convolution]map[kernels.Way]time.Duration{c: {w: 1}}}
	vals := &modelio.Values{Inputs: map[string]*graph.Tensor{"x": modelio.RandomTensor(x, 1, 1)},
		Weights: map[string]*graph.Tensor{"w": modelio.RandomTensor(f, 2, 1)}}
	return t.compile.Compile(g, vals, []lowering.TargetOption{cpu.Tuned(one)}, fusec.WithoutPass("layout"),
		fusec.WithoutPass("winograd"))
}
