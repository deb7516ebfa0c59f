package bench

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/graph"
	"fusec/graph/atomicfile"
	kernels "fusec/kernels/cuda"
	"fusec/lowering"
	"fusec/lowering/cuda"
)

// Tune is fusec tune.
var Tune = &cli.Command{
	Name:    "tune",
	Args:    "[flags] model.graph",
	Summary: "measure how a GPU computes a model's matrix products fastest, and keep it",
	Doc: `
fusec tune model.graph --target cuda runs the model with every way to cut its matrix products into tiles, and keeps for
each product the fastest in a text beside the compiled kernels, a line for each. Programs that are compiled for that chip
from then on take it; other products go by rules, as all do without tuning. Ways may differ in the order of sums, and so
in rounding. Nothing else measures or changes the text.`,
	Examples: []cli.Example{
		{"fusec tune model.graph --target cuda", "all products of the model, in f32"},
		{"fusec tune model.graph --target cuda --precision bf16 --random-weights", "in bf16, without weights"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		t := &tuner{}
		t.compile.Declare(f, "cuda")
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
	Product string `json:"product"`
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
	rep, err := t.keep()
	if err != nil {
		return err
	}
	if t.json {
		return cli.WriteJSON(e.Out, rep)
	}
	err = e.Print(rep.text())
	return err
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
	var err error
	if rep.File, err = cuda.TuningFile(t.chip); err != nil {
		return nil, err
	}
	if text, err := os.ReadFile(rep.File); err == nil {
		if old, err := kernels.ParseTuning(string(text)); err == nil {
			tuning.Ways = old.Ways
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
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
	if err := os.MkdirAll(filepath.Dir(rep.File), 0o777); err != nil {
		return nil, err
	}
	return rep, atomicfile.Write(rep.File, func(w io.Writer) error {
		_, err := io.WriteString(w, tuning.String())
		return err
	})
}

// text prints the report for people.
func (rep *tuneReport) text() string {
	t := cli.NewTable("product", ">ways", ">by rules", ">best", "way")
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
