package ref

import (
	"fmt"
	"math"
	"math/rand/v2"

	"fusec/graph"
)

// customPoints is how many points [CheckCustom] looks at.
const customPoints = 256

// CheckCustom compares the parts of a custom function with each other, at operands drawn evenly from lo to hi, between which it
// has no kinks, jumps and poles. The body for strips is compared with the value of each element, within the bound of f32, and the
// gradient with central differences of that value. The error names the part and the point. The CUDA body is not run: `--against
// ref` and fusec.WithShadow compare what a GPU computes.
func CheckCustom(f graph.CustomFn, lo, hi float64) error {
	info := f.Info()
	if info == nil {
		return fmt.Errorf("no custom function %q is registered", string(f))
	}
	r := rand.New(rand.NewPCG(1, 2))
	x := make([][]float64, info.Operands)
	for k := range x {
		x[k] = make([]float64, customPoints)
		for i := range x[k] {
			x[k][i] = float64(float32(lo + (hi-lo)*r.Float64())) // the same in f32
		}
	}
	if info.F32 != nil {
		if err := checkStrip(info, x); err != nil {
			return err
		}
	}
	if info.Grad == nil {
		return nil
	}
	return checkGradient(info, x)
}

// point is element i of each operand.
func point(x [][]float64, i int) []float64 {
	at := make([]float64, len(x))
	for k := range x {
		at[k] = x[k][i]
	}
	return at
}

func checkStrip(info *graph.CustomInfo, x [][]float64) error {
	in, dst := make([][]float32, len(x)), make([]float32, customPoints)
	for k := range x {
		for _, v := range x[k] {
			in[k] = append(in[k], float32(v))
		}
	}
	info.F32(dst, in)
	for i, got := range dst {
		at := point(x, i)
		want := info.Eval(at)
		terms := size(want)
		for _, v := range at {
			terms += size(v)
		}
		if off := deviation(want, float64(got)); off > graph.F32.Tolerance()*terms+least(graph.F32) {
			return fmt.Errorf("the custom function %s: F32 gives %v at %v, and Eval %v", info.Name, got, at, want)
		}
	}
	return nil
}

// differenceStep is the step of central differences, relative to an operand of 1 and more.
const differenceStep = 1e-5

func checkGradient(info *graph.CustomInfo, x [][]float64) error {
	b := graph.NewBuilder(string(info.Name))
	in, given := make([]*graph.Node, len(x)), map[string]*graph.Tensor{}
	for k := range x {
		in[k] = b.Input(fmt.Sprint("x", k), graph.TypeOf(graph.F64, customPoints))
		t, err := graph.TensorOf(x[k], customPoints)
		if err != nil {
			return err
		}
		given[in[k].Name] = t
	}
	cost := b.Reduce(graph.Sum, b.Custom(info.Name, in...), false, 0)
	b.Output("cost", cost)
	g, err := b.Graph()
	if err != nil {
		return err
	}
	dx, err := graph.Gradients(g, cost, in)
	if err != nil {
		return err
	}
	values, err := Nodes(g, given, false)
	if err != nil {
		return err
	}
	for k := range x {
		got := values[dx[k]][0].F
		for i := range customPoints {
			at := point(x, i)
			h := differenceStep * max(1, math.Abs(at[k]))
			value := func(step float64) float64 {
				moved := point(x, i)
				moved[k] += step
				return info.Eval(moved)
			}
			want := (value(h) - value(-h)) / (2 * h)
			if off := deviation(want, got[i]); off > differenceStep*(1+size(want)+size(info.Eval(at))) {
				return fmt.Errorf("the custom function %s: Grad gives %v for operand %d at %v, and differences of Eval %v", info.Name,
					got[i], k, at, want)
			}
		}
	}
	return nil
}
