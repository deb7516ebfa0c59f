package bench

import (
	"fmt"
	"strings"
	"time"

	"fusec"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/ladders"
	"fusec/graph"
	"fusec/lowering/cuda"
)

// gpuVariant is a way to compute something on a GPU, of a ladder.
type gpuVariant struct {
	name, doc string
	works     []*gpuWork // what it does, one after another
	precision fusec.Precision
}

// gpuVariantReport is what was found about a variant, and its JSON form.
type gpuVariantReport struct {
	Subject   string    `json:"subject"`
	Variant   string    `json:"variant"`
	Precision string    `json:"precision"`
	MedianNS  int64     `json:"median_ns"` // by the GPU's clock
	TFLOPs    float64   `json:"tflops"`    // per second
	Bytes     int64     `json:"bytes"`     // that have to be moved: operands, results, and what is put aside in between
	GBs       float64   `json:"gbs"`
	Kernels   []useLine `json:"kernels"` // the launch is the number of the work
	Error     string    `json:"error,omitempty"`
}

// gpuLadderReport is a ladder's JSON form.
type gpuLadderReport struct {
	Schema   string             `json:"schema"` // fusec.ladder/2
	Target   string             `json:"target"`
	Variants []gpuVariantReport `json:"variants"`
}

// matmulLadderGPU measures the product, a linear layer, and its gradient, by every variant.
func (b *bencher) matmulLadderGPU(e *cli.Env) (*outcome, error) {
	sizes := b.sizes
	if sizes == nil {
		sizes = []size{{4096, 4096, 4096}}
	}
	var list []gpuVariant
	for _, s := range sizes {
		for _, p := range []fusec.Precision{fusec.F32, fusec.TF32, fusec.BF16} {
			for i, r := range ladders.CUDAMatMul {
				if p != fusec.F32 && i < 3 {
					continue // these know no tensor cores
				}
				list = append(list, gpuVariant{r.Name, r.Doc, []*gpuWork{linearWork(s, p, true).by(r.Compile)}, p})
			}
		}
		list = append(list, linearVariants(s, b.compile.Precision)...)
		backward, err := backwardVariants(s)
		if err != nil {
			return nil, err
		}
		list = append(list, backward...)
	}
	return b.ladderGPU(e, list)
}

// linearVariants are a linear layer with GELU: launch by launch, in one launch, and in one by blocks that stay.
func linearVariants(s size, p fusec.Precision) []gpuVariant {
	y := graph.TypeOf(graph.F32, s.m, s.n)
	bytes := float64(y.Bytes())
	name := fmt.Sprintf("linear %v %v ", p, s)
	bias := &gpuWork{name: name + "bias", work: 2 * bytes, unit: gigabytes, check: func(v *gpuValues) error {
		return checkEach(v, func(i int) float64 { return v.in["x"].Float(i) + v.in["b"].Float(i%s.n) })
	}}
	bias.build = func(b *graph.Builder) {
		x, add := b.Input("x", y), b.Input("b", graph.TypeOf(graph.F32, s.n))
		b.Output("y", b.Binary(graph.Add, x, b.Broadcast(add, y.Shape)))
	}
	activation := &gpuWork{name: name + "GELU", work: 2 * bytes, unit: gigabytes, check: func(v *gpuValues) error {
		return checkEach(v, func(i int) float64 { return gelu(graph.GeluTanh, v.in["x"].Float(i)) })
	}}
	activation.build = func(b *graph.Builder) { b.Output("y", b.Unary(graph.GeluTanh, b.Input("x", y))) }
	return []gpuVariant{
		{"linear naive", "The product, then the bias, then GELU: a launch each, values between them in memory.",
			[]*gpuWork{linearWork(s, p, true).by(ladders.Portably), bias, activation}, p},
		{"linear fused", "One launch: bias and GELU on the product's sums while they are in registers.",
			[]*gpuWork{linearWork(s, p, false).by(ladders.Portably)}, p},
		{"linear persistent", "The same by as many blocks as fit, each taking tile after tile, where the chip has the means.",
			[]*gpuWork{linearWork(s, p, false)}, p},
	}
}

// backwardVariants are the gradient of a linear layer.
func backwardVariants(s size) (list []gpuVariant, err error) {
	op, err := ladders.LinearBackward(s.m, s.k, s.n)
	if err != nil {
		return nil, err
	}
	for _, r := range ladders.CUDABackward {
		w := &gpuWork{name: fmt.Sprintf("linear backward %v %v", fusec.F32, s), unit: teraFLOPs, check: checkLinearGrad,
			work: 4 * float64(s.m) * float64(s.k) * float64(s.n)}
		w.build = func(b *graph.Builder) {
			x := b.Input("x", graph.TypeOf(graph.F32, s.m, s.k))
			weight := b.Param("w", graph.TypeOf(graph.F32, s.k, s.n))
			n := b.Add(op, x, weight, b.Input("dy", graph.TypeOf(graph.F32, s.m, s.n)))
			b.Output("dx", n)
			b.Output("dw", b.Add(graph.Result{Index: 1}, n))
			b.Output("db", b.Add(graph.Result{Index: 2}, n))
		}
		list = append(list, gpuVariant{r.Name, r.Doc, []*gpuWork{w.by(r.Compile)}, fusec.F32})
	}
	return list, nil
}

// checkEach compares samples of an elementwise result.
func checkEach(v *gpuValues, want func(i int) float64) error {
	y := v.out["y"]
	for _, i := range samples(y.Type.Shape.Elems()) {
		if err := near("y", y, i, want(i), sumError*(1+2*max(want(i), -want(i)))); err != nil {
			return err
		}
	}
	return nil
}

// by makes the work's kernels by another function.
func (w *gpuWork) by(compile cuda.KernelCompiler) *gpuWork {
	w.options = append(w.options, cuda.By(compile))
	return w
}

// attentionLadderGPU measures attention by every variant.
func (b *bencher) attentionLadderGPU(e *cli.Env) (*outcome, error) {
	a := b.attends
	if a.seqs == nil {
		a.seqs = []int{2048}
	}
	a, err := a.withDefaults()
	if err != nil {
		return nil, err
	}
	var list []gpuVariant
	for _, seq := range a.seqs {
		c := attentionCase{1, a.heads, seq, a.dim, a.causal, ""}
		for i, r := range ladders.CUDAAttention {
			of := ladders.AttentionTypes
			if i == len(ladders.CUDAAttention)-1 {
				of = ladders.PagedTypes
			}
			op, args := of(a.heads, seq, seq, a.dim, a.causal)
			list = append(list, gpuVariant{r.Name, r.Doc, []*gpuWork{c.variant(op, args).by(r.Compile)}, fusec.F32})
		}
	}
	return b.ladderGPU(e, list)
}

// variant is a variant's work: operands of the given types, in the order of the attention's.
func (c attentionCase) variant(op graph.Attention, args []graph.Type) *gpuWork {
	w := c.work(fusec.F32, "fwd", 4)
	w.build = func(b *graph.Builder) {
		var in []*graph.Node
		for j, name := range []string{"q", "k", "v", "lengths", "table"}[:len(args)] {
			in = append(in, b.Input(name, args[j]))
		}
		b.Output("out", b.Add(op, in...))
	}
	w.fill = map[string]func(t *graph.Tensor){
		"lengths": func(t *graph.Tensor) { *t = *graph.Filled(t.Type, float64(c.seq)) },
		"table": func(t *graph.Tensor) { // pages in their order
			for e := range t.Type.Shape.Elems() {
				t.SetFloat(e, float64(e))
			}
		},
	}
	w.check = func(v *gpuValues) error { return c.checkForward(v, fusec.F32) }
	return w
}

// ladderGPU measures variants and prints the report.
func (b *bencher) ladderGPU(e *cli.Env, list []gpuVariant) (*outcome, error) {
	if err := opens(b.compile.Target); err != nil {
		return nil, err
	}
	show := b.progress(e)
	defer show.Done()
	rep := &gpuLadderReport{Schema: "fusec.ladder/2", Target: b.compile.Target}
	for i, r := range list {
		if e.Ctx.Err() != nil {
			return nil, e.Ctx.Err()
		}
		show.Show("%d of %d: %s", i+1, len(list), r.name)
		found := gpuVariantReport{Subject: r.works[0].name, Variant: r.name, Precision: r.precision.String()}
		if err := found.measure(r.works, b.compile.Target); err != nil {
			found.Error = err.Error()
		}
		rep.Variants = append(rep.Variants, found)
	}
	return &outcome{report: rep, text: rep.text(list)}, nil
}

// measure runs the works of a variant one after another; the first one's arithmetic counts.
func (r *gpuVariantReport) measure(works []*gpuWork, target string) error {
	seconds := 0.0
	for n, w := range works {
		line, err := w.measure(target, false)
		if err != nil {
			return err
		}
		seconds += line.MS / 1e3
		r.Bytes += line.bytes
		for _, u := range line.kernels {
			r.Kernels = append(r.Kernels, useLineOf(n, u))
		}
	}
	r.MedianNS = int64(seconds * 1e9)
	r.TFLOPs, r.GBs = works[0].work/seconds/1e12, float64(r.Bytes)/seconds/1e9
	return nil
}

// text prints the report for people.
func (rep *gpuLadderReport) text(list []gpuVariant) string {
	t := cli.NewTable("variant", "precision", "of", ">time", ">TFLOP/s", ">moved", ">GB/s", ">registers", ">local bytes",
		">shared memory", ">occupancy", "what it does")
	for i, r := range rep.Variants {
		if r.Error != "" {
			why := "failed: " + strings.ReplaceAll(r.Error, "\n", "; ")
			t.Row(r.Variant, r.Precision, r.Subject, "", "", "", "", "", "", "", "", why)
			continue
		}
		var registers, local, shared, occupancy []string
		for _, k := range r.Kernels {
			registers, local = append(registers, fmt.Sprint(k.Registers)), append(local, fmt.Sprint(k.LocalBytes))
			shared = append(shared, cli.HumanBytes(int64(k.Shared)))
			occupancy = append(occupancy, fmt.Sprintf("%.0f %%", 100*k.Occupancy))
		}
		all := func(s []string) string { return strings.Join(s, ", ") }
		t.Row(r.Variant, r.Precision, r.Subject, cli.HumanTime(time.Duration(r.MedianNS)), cli.Digits(r.TFLOPs),
			cli.HumanBytes(r.Bytes), cli.Digits(r.GBs), all(registers), all(local), all(shared), all(occupancy), list[i].doc)
	}
	return t.String()
}
