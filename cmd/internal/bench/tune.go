package bench

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cpu"
	"fusec/lowering/cuda"
	"fusec/lowering/local"
)

// Tune is fusec tune.
var Tune = &cli.Command{
	Name:    "tune",
	Args:    "[flags] model.graph",
	Summary: "measure how a model's products on a GPU, or its convolutions on the CPU, are computed fastest, and keep it",
	Doc: `
fusec tune model.graph --target cuda runs the model with every way to cut its matrix products into tiles, and keeps for
each product the fastest in a text beside the compiled kernels, a line for each. Programs that are compiled for that chip
from then on take it; other products go by rules, as all do without tuning. Ways may differ in the order of sums, and so
in rounding. Nothing else measures or changes the text.

With --target cpu it times each convolution of the model alone, by every algorithm and size of blocks: as a product of
filters and patches in NCHW (im2col); directly, or channel by channel (depthwise), in NHWC; and by Winograd's algorithm, unless
--no-winograd forbids it. The fastest of each algorithm, with its time, is kept for the processor and that number of threads
in $FUSEC_CACHE or, if that is not set, in fusec/cpu in the user's cache folder. Programs that are compiled for them from then
on choose algorithms, blocks and the layout of images by these times; fusec explain shows "tuned" beside the kinds of launches.`,
	Examples: []cli.Example{
		{"fusec tune model.graph --target cuda", "all products of the model, in f32"},
		{"fusec tune model.graph --target cuda --precision bf16 --random-weights", "in bf16, without weights"},
		{"fusec tune model.graph --target cpu --threads 2", "all convolutions of the model, on two cores"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		t := &tuner{}
		t.compile.Declare(f, cuda.Target.Name, cpu.Target.Name)
		t.values.Declare(f)
		f.BoolVar(&t.json, "json", false, "print the report as JSON")
		return t.run
	},
}

// tuner is fusec tune with its flags, and what it knows so far.
type tuner struct {
	compile modelio.CompileFlags
	values  modelio.ValueFlags
	json    bool

	chip  string
	trial int // the number of the way that is tried; −1 for the rules
	ways  map[kernels.Product][]string
	of    map[graph.Op]kernels.Product
	times map[kernels.Product][]float64 // seconds of all launches, by the rules and then in each way
}

// tuneReport is what fusec tune found, and its JSON form.
type tuneReport struct {
	Schema   string        `json:"schema"` // fusec.tune/1
	Chip     string        `json:"chip"`
	File     string        `json:"file"`
	Products []tunedResult `json:"products"`
}

type tunedResult struct {
	Product string `json:"product"` // or convolution
	Ways    int    `json:"ways"`
	RulesNS int64  `json:"rules_ns"` // of all launches, as the rules choose
	BestNS  int64  `json:"best_ns"`
	Way     string `json:"way,omitempty"` // the fastest; absent if the rules are as good
}

// worthTuning is how much faster than the rules' choice a way has to be to be kept.
const worthTuning = 0.02

func (t *tuner) run(e *cli.Env, args []string) error {
	path, err := modelio.ModelArgument(args)
	if err != nil {
		return err
	}
	if !t.compile.OnGPU() {
		return t.convolutions(e, path)
	}
	g, vals, err := t.values.Load(e, path, &t.compile.Shapes, false)
	if err != nil {
		return err
	}
	t.ways, t.times = map[kernels.Product][]string{}, map[kernels.Product][]float64{}
	t.of = map[graph.Op]kernels.Product{}
	show := cli.NewProgress(e.Stderr)
	defer show.Done()
	most := 0
	for t.trial = -1; t.trial < most; t.trial++ {
		show.Show("%s: way %d of %d", modelio.ModelName(path), t.trial+1, most)
		if err := t.try(e, g, vals); err != nil {
			return err
		}
		for _, list := range t.ways {
			most = max(most, len(list))
		}
	}
	show.Done()
	if len(t.times) == 0 {
		return fmt.Errorf("%s has no products that could be computed in several ways on the GPU", modelio.ModelName(path))
	}
	rep, err := t.keep()
	if err != nil {
		return err
	}
	return t.print(e, rep)
}

// print prints a report.
func (t *tuner) print(e *cli.Env, rep *tuneReport) error {
	if t.json {
		return cli.WriteJSON(e.Out, rep)
	}
	return e.Print(rep.text())
}

// try measures the launches of the products with the way that is tried.
func (t *tuner) try(e *cli.Env, g *graph.Graph, vals *modelio.Values) (err error) {
	p, err := t.compile.Compile(g, vals, []lowering.TargetOption{cuda.By(t.kernel)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	times, _, err := Profile(e.Ctx, p, ProfileSeconds)
	if err != nil {
		return err
	}
	sums := map[kernels.Product]float64{}
	for i, l := range p.Lowered().Launches {
		if product, ok := t.of[l.Op]; ok && l.Device == "" && t.trial < len(t.ways[product]) {
			sums[product] += times[i].Seconds()
		}
	}
	for product, s := range sums {
		t.times[product] = append(t.times[product], s)
	}
	return nil
}

// kernel makes a kernel in the way that is tried.
func (t *tuner) kernel(op graph.Op, args, results []kernels.Operand, cfg kernels.Config) (*kernels.Kernel, error) {
	t.chip, cfg.Tuning = cfg.Chip.Name, nil
	if product, ways := kernels.MatMulWays(op, args, results, cfg); len(ways) > 1 {
		t.of[op], t.ways[product] = product, ways
		if t.trial >= 0 && t.trial < len(ways) {
			cfg.Tuning = &kernels.Tuning{Chip: t.chip, Ways: map[kernels.Product]string{product: ways[t.trial]}}
		}
	}
	return kernels.Compile(op, args, results, cfg)
}

// keep brings the chip's tuning up to date.
func (t *tuner) keep() (*tuneReport, error) {
	rep := &tuneReport{Schema: "fusec.tune/1", Chip: t.chip, Products: []tunedResult{}}
	tuning := &kernels.Tuning{Chip: t.chip, Ways: map[kernels.Product]string{}}
	if old, err := local.ReadTuning(cuda.Target.Name, t.chip, kernels.ParseTuning); err == nil && old != nil {
		tuning.Ways = old.Ways
	}
	for product, times := range t.times {
		r := tunedResult{Product: product.String(), Ways: len(t.ways[product]), RulesNS: int64(times[0] * 1e9)}
		best, at := math.Inf(1), 0
		for i, s := range times[1:] {
			if s < best {
				best, at = s, i
			}
		}
		r.BestNS = int64(best * 1e9)
		delete(tuning.Ways, product)
		if best < times[0]*(1-worthTuning) {
			r.Way = t.ways[product][at]
			tuning.Ways[product] = r.Way
		}
		rep.Products = append(rep.Products, r)
	}
	slices.SortFunc(rep.Products, func(a, b tunedResult) int { return strings.Compare(a.Product, b.Product) })
	var err error
	rep.File, err = local.WriteTuning(cuda.Target.Name, t.chip, tuning.String())
	return rep, err
}

// text prints the report for people.
func (rep *tuneReport) text() string {
	t := cli.NewTable("product or convolution", ">ways", ">by rules", ">best", "way")
	for _, r := range rep.Products {
		way := r.Way
		if way == "" {
			way = "as the rules choose"
		}
		ns := func(n int64) string { return cli.HumanTime(time.Duration(n)) }
		t.Row(r.Product, fmt.Sprint(r.Ways), ns(r.RulesNS), ns(r.BestNS), way)
	}
	return fmt.Sprintf("%s; kept in %s\n\n%s", rep.Chip, rep.File, t)
}
