// Package workload holds the work that fusec and its rivals are timed on: names, shapes, numbers and the right answers.
//
// Every tensor comes from one of two formulas (Gen and Noise), written again in rivals/common.py and
// rivals/openblas_gemm.c, so that all contestants multiply the same numbers and their outputs can be compared through
// Checksum. The networks of convolutions are written again in rivals/conv_networks.py.
package workload

import (
	"fmt"
	"math"
	"slices"
)

// Tensor is one operand of a workload: the input (always the first) or a parameter.
type Tensor struct {
	Name  string
	Seed  int     // ignored where Ones is set
	Scale float32 // the values lie in [-Scale/2, Scale/2)
	Shape []int   // row-major
	Ones  bool    // all ones: the gains of layer norm
	Noise bool    // the values come from Noise, not from Gen
	// Offset is added to the values that come from Noise.
	Offset float32
}

// Workload is one piece of work. Out is the shape of its result.
//
// One that trains is the forward pass of Base and the backward pass: its result is the loss, the mean of (y − target)²,
// and then the loss's gradients for the Weights, in their order, one after another. Batch normalisations take the batch's
// own mean and biased variance.
type Workload struct {
	Name    string
	Meaning string
	Base    string   // the workload whose forward pass is trained, or ""
	Tensors []Tensor // of one that trains: those of Base, then the target
	Out     []int
	FLOPs   float64 // multiplications and additions of the contractions alone
	BF16    bool    // contractions may round their operands to bf16, as autocast does
	Net     []Layer // of a network of convolutions; its parameters are Tensors[1:]

	// Tolerance is the largest |checksum − Checksum| that passes, as a part of AbsSum; 0 is the package's Tolerance.
	Tolerance float64

	// Checksum and AbsSum are those of the result computed in float64 from the float32 operands.
	Checksum, AbsSum float64
}

// The transformer block's sizes.
const (
	Batch, Seq, Dim, Heads, FFN = 4, 128, 256, 8, 1024
	Eps                         = 1e-5
)

// Tolerance is a workload's Tolerance where it has none of its own.
const Tolerance = 1e-6

// All lists the workloads in the order in which they are measured.
func All() []Workload {
	list := append([]Workload{
		gemm("gemm-256", 256, 256, 256, 28.195848743298804, 26544.786087113265),
		gemm("gemm-512", 512, 512, 512, 129.07308556499055, 207921.37464091816),
		gemm("gemm-1024", 1024, 1024, 1024, 144.04541823762804, 1486958.9541373376),
		gemm("gemm-2048", 2048, 2048, 2048, 1129.0395823311326, 6111127.924800505),
		gemm("gemm-512x768x3072", 512, 768, 3072, 73.68662543396327, 1538131.9480684476),
		{
			Name: "linear-plain", Meaning: "x·w, w a constant",
			Tensors: []Tensor{{Name: "x", Seed: 1, Scale: 1, Shape: []int{512, 768}},
				{Name: "w", Seed: 2, Scale: 0.1, Shape: []int{768, 3072}}},
			Out: []int{512, 3072}, FLOPs: 2 * 512 * 768 * 3072,
			Checksum: 7.3686647913598895, AbsSum: 153813.19744149144,
		},
		{
			Name: "linear-gelu", Meaning: "gelu(x·w + b), tanh form",
			Tensors: []Tensor{
				{Name: "x", Seed: 1, Scale: 1, Shape: []int{512, 768}},
				{Name: "w", Seed: 2, Scale: 0.1, Shape: []int{768, 3072}}, {Name: "b", Seed: 3, Scale: 0.1, Shape: []int{3072}},
			},
			Out: []int{512, 3072}, FLOPs: 2 * 512 * 768 * 3072,
			Checksum: 4783.955796501779, AbsSum: 79010.75621593032,
		},
		{
			Name: "mlp", Meaning: "64×784 → 512 → 512 → 10, relu after the first two",
			Tensors: []Tensor{
				{Name: "x", Seed: 1, Scale: 2, Shape: []int{64, 784}},
				{Name: "w1", Seed: 2, Scale: 0.1, Shape: []int{784, 512}}, {Name: "b1", Seed: 3, Scale: 0.1, Shape: []int{512}},
				{Name: "w2", Seed: 4, Scale: 0.1, Shape: []int{512, 512}}, {Name: "b2", Seed: 5, Scale: 0.1, Shape: []int{512}},
				{Name: "w3", Seed: 6, Scale: 0.1, Shape: []int{512, 10}}, {Name: "b3", Seed: 7, Scale: 0.1, Shape: []int{10}},
			},
			Out: []int{64, 10}, FLOPs: 2 * 64 * (784*512 + 512*512 + 512*10),
			Checksum: 0.47557204557399696, AbsSum: 14.415510021553317,
		},
		{
			Name: "block", Meaning: "transformer block, post-norm: batch 4, sequence 128, width 256, 8 heads, feed-forward 1024",
			Tensors: []Tensor{
				{Name: "x", Seed: 1, Scale: 2, Shape: []int{Batch * Seq, Dim}},
				{Name: "wqkv", Seed: 2, Scale: 0.1, Shape: []int{Dim, 3 * Dim}}, {Name: "bqkv", Seed: 3, Scale: 0.1, Shape: []int{3 * Dim}},
				{Name: "wo", Seed: 4, Scale: 0.1, Shape: []int{Dim, Dim}}, {Name: "bo", Seed: 5, Scale: 0.1, Shape: []int{Dim}},
				{Name: "gamma1", Shape: []int{Dim}, Ones: true}, {Name: "beta1", Seed: 6, Scale: 0.1, Shape: []int{Dim}},
				{Name: "w1", Seed: 7, Scale: 0.1, Shape: []int{Dim, FFN}}, {Name: "b1", Seed: 8, Scale: 0.1, Shape: []int{FFN}},
				{Name: "w2", Seed: 9, Scale: 0.1, Shape: []int{FFN, Dim}}, {Name: "b2", Seed: 10, Scale: 0.1, Shape: []int{Dim}},
				{Name: "gamma2", Shape: []int{Dim}, Ones: true}, {Name: "beta2", Seed: 11, Scale: 0.1, Shape: []int{Dim}},
			},
			Out:      []int{Batch * Seq, Dim},
			FLOPs:    2*512*256*768 + 4*4*128*128*256 + 2*512*256*256 + 4*512*256*1024,
			Checksum: 36.676196341450755, AbsSum: 113497.0973677611,
		},
	}, attentions()...)
	list = append(list, convolutions()...)
	for _, w := range list {
		switch w.Name {
		case "mlp": // the input needs no gradient, so its layer has two products, not three
			list = append(list, train(w, 3*w.FLOPs-2*64*784*512, 0.43537854947647231, 170.49640054559279))
		case "block":
			t := train(w, 3*w.FLOPs-2*512*256*768, 1.4192376745223523, 633.64377647349102)
			list = append(list, t, rounded(w), rounded(t))
		case "linear-plain", "linear-gelu":
			list = append(list, rounded(w))
		case "conv-resnet18-b8":
			list = append(list, train(w, 3*w.FLOPs-8*2*112*112*64*3*7*7, -4.6985799066303908, 754.31005031602683))
		}
	}
	return list
}

// train is the workload that trains base.
func train(base Workload, flops, sum, abs float64) Workload {
	w := Workload{Name: base.Name + "-train", Meaning: "forward and backward of " + base.Name, Base: base.Name,
		Tensors: append(slices.Clone(base.Tensors), Tensor{Name: "target", Seed: 99, Scale: 2, Shape: base.Out}), Net: base.Net,
		Out: []int{1}, FLOPs: flops, Tolerance: base.Tolerance, Checksum: sum, AbsSum: abs}
	for _, t := range w.Weights() {
		w.Out[0] += t.elems()
	}
	return w
}

// roundedTolerance is that of workloads whose contractions round to bf16, with 8 bits: the errors of a result's elements differ in
// sign, and most of their sum cancels.
const roundedTolerance = 1e-4

// rounded is w with contractions that may round to bf16.
func rounded(w Workload) Workload {
	w.Name, w.Meaning, w.BF16, w.Tolerance = w.Name+"-bf16", w.Meaning+", in bf16", true, roundedTolerance
	return w
}

// Weights are the tensors that a workload that trains has gradients for: all but the input, the target and the running
// statistics of batch normalisations.
func (w Workload) Weights() []Tensor {
	still := map[string]bool{}
	for _, l := range w.Net {
		if l.Kind == LayerNorm {
			still[l.Tensors[2]], still[l.Tensors[3]] = true, true
		}
	}
	return slices.DeleteFunc(slices.Clone(w.Tensors[1:len(w.Tensors)-1]), func(t Tensor) bool { return still[t.Name] })
}

func gemm(name string, m, k, n int, sum, abs float64) Workload {
	return Workload{
		Name: name, Meaning: fmt.Sprintf("a·b, %d×%d×%d", m, k, n),
		Tensors: []Tensor{{Name: "a", Seed: 1, Scale: 1, Shape: []int{m, k}}, {Name: "b", Seed: 2, Scale: 1, Shape: []int{k, n}}},
		Out:     []int{m, n}, FLOPs: 2 * float64(m) * float64(k) * float64(n), Checksum: sum, AbsSum: abs,
	}
}

// ByName finds a workload.
func ByName(name string) (Workload, bool) {
	for _, w := range All() {
		if w.Name == name {
			return w, true
		}
	}
	return Workload{}, false
}

func (t Tensor) elems() int { return elems(t.Shape) }

func elems(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Data makes the tensor's numbers.
func (t Tensor) Data() []float32 {
	n := t.elems()
	if t.Noise {
		return Noise(t.Seed, t.Offset, t.Scale, n)
	}
	if !t.Ones {
		return Gen(t.Seed, t.Scale, n)
	}
	x := make([]float32, n)
	for i := range x {
		x[i] = 1
	}
	return x
}

// Gen makes n numbers: ((i·7919 + seed·104729 + 13) mod 1000)/1000 − 1/2, times scale, each step rounded to float32.
func Gen(seed int, scale float32, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		u := float32((int64(i)*7919+int64(seed)*104729+13)%1000) / 1000
		c := float32(u - 0.5)
		x[i] = float32(c * scale)
	}
	return x
}

// Checksum is Σ y[i]·((31i + 7) mod 101)/101 and Σ |y[i]|, in float64. The weights make a permuted output differ.
func Checksum[F float32 | float64](y []F) (sum, abs float64) {
	for i, v := range y {
		sum += float64(v) * (float64((int64(i)*31+7)%101) / 101)
		abs += math.Abs(float64(v))
	}
	return sum, abs
}

// Right reports whether a checksum is that of the right answer, up to the rounding of float32 arithmetic.
func (w Workload) Right(sum float64) bool {
	return math.Abs(sum-w.Checksum) <= w.tolerance()*w.AbsSum // false for NaN
}

func (w Workload) tolerance() float64 {
	if w.Tolerance != 0 {
		return w.Tolerance
	}
	return Tolerance
}
