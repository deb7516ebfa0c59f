package bench

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"fusec"
	"fusec/graph"
	"fusec/lowering/cpu"
)

// gpuSamples is how many rows of a result are computed again in float64.
const gpuSamples = 12

// sums are the errors that rounding may make: a part of the terms' absolute sum, and of the result. Sums are in float32
// in all precisions.
const sumError = 1e-5

// operandError is how far a precision may round a contraction's operands.
func operandError(p fusec.Precision) float64 {
	if p == fusec.TF32 {
		return 1e-3
	}
	return sumError
}

// samples are some of n rows, the first and the last among them.
func samples(n int) []int {
	r := rand.New(rand.NewPCG(uint64(n), 1))
	rows := []int{0, n - 1}
	for len(rows) < gpuSamples {
		rows = append(rows, r.IntN(n))
	}
	slices.Sort(rows)
	return slices.Compact(rows)
}

// near compares element i of a result with what it should be, up to bound and the rounding of the result's own type.
func near(name string, t *graph.Tensor, i int, want, bound float64) error {
	got := t.Float(i)
	if bound += t.Type.DType.Epsilon() * math.Abs(want); !(math.Abs(got-want) <= bound) {
		return fmt.Errorf("element %d of %s is %v; want %v ± %.1e", i, name, got, want, bound)
	}
	return nil
}

// each calls check for all rows, several at a time, and returns an error.
func each(rows []int, check func(row int) error) error {
	errs := make([]error, len(rows))
	var wait sync.WaitGroup
	for i, row := range rows {
		wait.Add(1)
		go func() {
			defer wait.Done()
			errs[i] = check(row)
		}()
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// checkNorm compares rows of a norm.
func checkNorm(v *gpuValues) error {
	x, r, gain, bias, y := v.in["x"], v.in["r"], v.in["gain"], v.in["bias"], v.out["y"]
	width := gain.Type.Shape.At(0)
	return each(samples(x.Type.Shape.At(0)), func(row int) error {
		h := make([]float64, width)
		mean, square, eps := 0.0, 0.0, rmsEps
		for i := range h {
			h[i] = x.Float(row*width + i)
			if r != nil {
				h[i] = gelu(graph.GeluErf, h[i]+r.Float(row*width+i))
				mean += h[i] / float64(width)
			}
		}
		for _, u := range h {
			square += (u - mean) * (u - mean) / float64(width)
		}
		if r != nil {
			eps = normEps
		}
		scale := 1 / math.Sqrt(square+eps)
		for i, u := range h {
			want := (u - mean) * scale * gain.Float(i)
			bound := sumError * (math.Abs(u) + math.Abs(mean) + 1) * scale * math.Abs(gain.Float(i))
			if bias != nil {
				want += bias.Float(i)
				bound += sumError * math.Abs(bias.Float(i))
			}
			if err := near("y", y, row*width+i, want, bound); err != nil {
				return err
			}
		}
		return nil
	})
}

// gelu is the function as the graph's unary operation has it.
func gelu(f graph.UnaryFn, x float64) float64 { return f.Eval(x, 0) }

// checkLinear compares rows of a product, with its bias and GELU if it has them.
func checkLinear(v *gpuValues) error {
	x, w, bias, y := v.in["x"], v.in["w"], v.in["b"], v.out["y"]
	k, n := w.Type.Shape.At(0), w.Type.Shape.At(1)
	eps := operandError(v.work.precision)
	return each(samples(x.Type.Shape.At(0)), func(row int) error {
		for _, j := range samples(n) {
			sum, terms := 0.0, 0.0
			for i := range k {
				t := x.Float(row*k+i) * w.Float(i*n+j)
				sum += t
				terms += math.Abs(t)
			}
			if bias != nil {
				sum += bias.Float(j)
				terms += math.Abs(bias.Float(j))
				sum = gelu(graph.GeluTanh, sum)
				terms *= 1.2 // the steepest slope of GELU
			}
			if err := near("y", y, row*n+j, sum, eps*terms); err != nil {
				return err
			}
		}
		return nil
	})
}

// checkLinearGrad compares samples of a linear layer's gradients.
func checkLinearGrad(v *gpuValues) error {
	x, w, dy := v.in["x"], v.in["w"], v.in["dy"]
	m, k, n := x.Type.Shape.At(0), x.Type.Shape.At(1), w.Type.Shape.At(1)
	// compare takes the terms of an element's sum.
	compare := func(name string, at, terms int, term func(i int) float64) error {
		sum, size := 0.0, 0.0
		for i := range terms {
			t := term(i)
			sum += t
			size += math.Abs(t)
		}
		return near(name, v.out[name], at, sum, sumError*size)
	}
	for _, j := range samples(k) {
		for _, i := range samples(m) {
			if err := compare("dx", i*k+j, n, func(c int) float64 { return dy.Float(i*n+c) * w.Float(j*n+c) }); err != nil {
				return err
			}
		}
		for _, c := range samples(n) {
			if err := compare("dw", j*n+c, m, func(i int) float64 { return x.Float(i*k+j) * dy.Float(i*n+c) }); err != nil {
				return err
			}
		}
	}
	for _, c := range samples(n) {
		if err := compare("db", c, m, func(i int) float64 { return dy.Float(i*n + c) }); err != nil {
			return err
		}
	}
	return nil
}

// halfError is how far probabilities, or gradients of scores, are off where a product takes them in 16 bits: rounded
// once, of sums and exponentials in float32.
func halfError(d graph.DType) float64 { return 2*d.Epsilon() + 1e-4 }

// dotRows is the product of rows i of x and j of y, and the sum of its terms' absolute values.
func dotRows(x *graph.Tensor, i int, y *graph.Tensor, j, n int) (sum, terms float64) {
	for k := range n {
		t := x.Float(i*n+k) * y.Float(j*n+k)
		sum += t
		terms += math.Abs(t)
	}
	return sum, terms
}

// attentionError is how far an attention may be off in a precision.
func attentionError(p fusec.Precision) float64 {
	if p == fusec.BF16 {
		return halfError(graph.BF16)
	}
	return operandError(p)
}

// checkForward compares rows of an attention, and their logarithms of sums.
func (c attentionCase) checkForward(v *gpuValues, precision fusec.Precision) error {
	q, k, val, out, lse := v.in["q"], v.in["k"], v.in["v"], v.out["out"], v.out["lse"]
	scale, eps := c.op().Scale, attentionError(precision)
	return each(samples(c.batch*c.heads*c.seq), func(row int) error {
		head := row / c.seq * c.seq // the first key's row
		p := make([]float64, c.seq)
		top := math.Inf(-1)
		for j := range p {
			if p[j] = math.Inf(-1); !c.attends(v, row, j) {
				continue
			}
			p[j], _ = dotRows(q, row, k, head+j, c.dim)
			p[j] *= scale
			top = max(top, p[j])
		}
		sum := 0.0
		for j := range p {
			p[j] = math.Exp(p[j] - top)
			sum += p[j]
		}
		if want := top + math.Log(sum); lse != nil {
			if err := near("lse", lse, row, want, 1e-4*(1+math.Abs(want))); err != nil {
				return err
			}
		}
		for i := range c.dim {
			y, terms := 0.0, 0.0
			for j := range p {
				t := p[j] / sum * c.kept(v, row, j) * val.Float((head+j)*c.dim+i)
				y += t
				terms += math.Abs(t)
			}
			if err := near("out", out, row*c.dim+i, y, eps*terms); err != nil {
				return err
			}
		}
		return nil
	})
}

// attends reports whether a row of all heads' queries attends to key j of its head.
func (c attentionCase) attends(v *gpuValues, row, j int) bool {
	at := row % c.seq
	switch {
	case c.causal && j > at:
		return false
	case c.with == withMask:
		return v.in["mask"].Int(at*c.seq+j) != 0
	case c.with == withLengths:
		return int64(j) < v.in["lengths"].Int(row/(c.heads*c.seq))
	}
	return true
}

// kept is what dropout multiplies a weight by.
func (c attentionCase) kept(v *gpuValues, row, j int) float64 {
	p := c.op().Dropout
	if p > 0 && !graph.DropoutKeep(uint64(v.in["seed"].Int(0)), uint64(row*c.seq+j), p) {
		return 0
	}
	return 1 / (1 - p)
}

// checkBackward compares rows of the gradients with the formula, for the out and lse that were given.
func (c attentionCase) checkBackward(v *gpuValues) error {
	q, k, val, out, lse, dout := v.in["q"], v.in["k"], v.in["v"], v.in["out"], v.in["lse"], v.in["dout"]
	scale, eps := c.op().Scale, halfError(graph.BF16)
	// pair is the weight of query i and key j after dropout, the gradient of their score, and how large its terms are.
	pair := func(i, j int, delta float64) (w, ds, size float64) {
		s, _ := dotRows(q, i, k, j, c.dim)
		p, kept := math.Exp(s*scale-lse.Float(i)), c.kept(v, i, j%c.seq)
		dp, _ := dotRows(dout, i, val, j, c.dim)
		dp *= kept
		return p * kept, p * (dp - delta), p * (math.Abs(dp) + math.Abs(delta))
	}
	compare := func(name string, row int, sum, terms []float64) error {
		for i := range sum {
			if err := near(name, v.out[name], row*c.dim+i, sum[i], eps*terms[i]); err != nil {
				return err
			}
		}
		return nil
	}
	add := func(sum, terms []float64, f, size float64, x *graph.Tensor, row int) {
		for i := range sum {
			u := x.Float(row*c.dim + i)
			sum[i] += f * u
			terms[i] += size * math.Abs(u)
		}
	}
	return each(samples(c.batch*c.heads*c.seq), func(row int) error {
		head, at := row/c.seq*c.seq, row%c.seq
		dq, dqTerms := make([]float64, c.dim), make([]float64, c.dim)
		dk, dkTerms := make([]float64, c.dim), make([]float64, c.dim)
		dv, dvTerms := make([]float64, c.dim), make([]float64, c.dim)
		delta, _ := dotRows(dout, row, out, row, c.dim)
		for j := range c.seq {
			if !c.attends(v, row, j) {
				continue
			}
			_, ds, size := pair(row, head+j, delta)
			add(dq, dqTerms, scale*ds, scale*size, k, head+j)
		}
		for i := range c.seq {
			if !c.attends(v, head+i, at) {
				continue
			}
			delta, _ := dotRows(dout, head+i, out, head+i, c.dim)
			w, ds, size := pair(head+i, row, delta)
			add(dk, dkTerms, scale*ds, scale*size, q, head+i)
			add(dv, dvTerms, w, w, dout, head+i)
		}
		if err := compare("dq", row, dq, dqTerms); err != nil {
			return err
		}
		if err := compare("dk", row, dk, dkTerms); err != nil {
			return err
		}
		return compare("dv", row, dv, dvTerms)
	})
}

// closeCall is how much less likely than the last chosen expert the next must be for a token to be compared: in float32
// the choice may fall the other way.
const closeCall = 1e-4

// check compares tokens of a mixture.
func (c mixtureCase) check(v *gpuValues) error {
	x, router, up, down, y := v.in["x"], v.in["router"], v.in["up"], v.in["down"], v.out["y"]
	return each(samples(c.tokens)[:min(6, c.tokens)], func(row int) error {
		p := make([]float64, c.experts)
		sum := 0.0
		for e := range p {
			for i := range c.width {
				p[e] += x.Float(row*c.width+i) * router.Float(i*c.experts+e)
			}
			p[e] = math.Exp(p[e])
			sum += p[e]
		}
		order := make([]int, c.experts)
		for e := range p {
			p[e] /= sum
			order[e] = e
		}
		slices.SortFunc(order, func(a, b int) int { return cmp.Compare(p[b], p[a]) })
		if c.topK < c.experts && p[order[c.topK-1]]-p[order[c.topK]] < closeCall {
			return nil
		}
		want, terms := make([]float64, c.width), make([]float64, c.width)
		for _, e := range order[:c.topK] {
			hidden := make([]float64, c.hidden)
			for i := range c.width {
				u := x.Float(row*c.width + i)
				at := (e*c.width + i) * c.hidden
				for j := range hidden {
					hidden[j] += u * up.Float(at+j)
				}
			}
			for j, h := range hidden {
				h = p[e] * gelu(graph.GeluErf, h)
				at := (e*c.hidden + j) * c.width
				for i := range want {
					t := h * down.Float(at+i)
					want[i] += t
					terms[i] += math.Abs(t)
				}
			}
		}
		for i := range want {
			if err := near("y", y, row*c.width+i, want[i], halfError(graph.BF16)*terms[i]); err != nil {
				return err
			}
		}
		return nil
	})
}

// lossError is how far the loss may be from that of the CPU, which computes in float32.
func lossError(p fusec.Precision) float64 {
	switch p {
	case fusec.F32:
		return sumError
	case fusec.TF32:
		return 1e-3
	}
	return 2e-2
}

// checkLoss compares the loss of the first step with that of the forward pass on the CPU.
func checkLoss(v *gpuValues) error { return checkLossOf(v, v.graph) }

// checkLossOf is checkLoss for a work with another graph of the same sources for the CPU.
func checkLossOf(v *gpuValues, g *graph.Graph) error {
	got := v.out["loss"].Float(0)
	want, err := firstLoss(v, g)
	if err != nil {
		return err
	}
	if !(math.Abs(got-want) <= lossError(v.work.precision)*math.Abs(want)) {
		return fmt.Errorf("the loss of the first step is %v; on the CPU it is %v", got, want)
	}
	return nil
}

// firstLoss is the first loss on the CPU.
func firstLoss(v *gpuValues, g *graph.Graph) (_ float64, err error) {
	w := *v.work
	w.optimizer = nil
	u := &gpuValues{work: &w, graph: g, in: v.in}
	p, err := u.compile(cpu.Target.Name, fusec.F32)
	if err != nil {
		return 0, err
	}
	defer func() {
		if e := p.Close(); err == nil {
			err = e
		}
	}()
	if err := u.run(p); err != nil {
		return 0, err
	}
	return u.out["loss"].Float(0), nil
}
