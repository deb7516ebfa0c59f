package bench

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"fusec"
	"fusec/graph"
)

// gpuSamples is how many rows of a result are computed again in float64.
const gpuSamples = 12

// sumError is the error that rounding may make, as a part of the terms' absolute sum or of the result. Sums are in float32 in all
// precisions.
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
			}
			if bias != nil {
				mean += h[i] / float64(width)
			}
		}
		for _, u := range h {
			square += (u - mean) * (u - mean) / float64(width)
		}
		if bias != nil {
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

// checkSoftmax compares rows of a softmax.
func checkSoftmax(v *gpuValues) error {
	x, y := v.in["x"], v.out["y"]
	width := x.Type.Shape.At(1)
	return each(samples(x.Type.Shape.At(0)), func(row int) error {
		sum := 0.0
		for i := range width {
			sum += math.Exp(x.Float(row*width + i))
		}
		for i := range width {
			want := math.Exp(x.Float(row*width+i)) / sum
			if err := near("y", y, row*width+i, want, sumError*want); err != nil {
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
	x, w, bias := v.in["x"], v.in["w"], v.in["b"]
	k, n := w.Type.Shape.At(0), w.Type.Shape.At(1)
	eps := operandError(v.work.precision)
	return each(samples(x.Type.Shape.At(0)), func(row int) error {
		for _, j := range samples(n) {
			s := termSum{}
			for i := range k {
				s.add(x.Float(row*k+i) * w.Float(i*n+j))
			}
			if bias != nil {
				s.add(bias.Float(j))
				s = termSum{gelu(graph.GeluTanh, s.sum), 1.2 * s.size} // the steepest slope of GELU
			}
			if err := s.compare("y", v, row*n+j, eps); err != nil {
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
		s := termSum{}
		for i := range terms {
			s.add(term(i))
		}
		return s.compare(name, v, at, sumError)
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

// dotRows is the product of rows i of x and j of y.
func dotRows(x *graph.Tensor, i int, y *graph.Tensor, j, n int) (sum float64) {
	for k := range n {
		sum += x.Float(i*n+k) * y.Float(j*n+k)
	}
	return sum
}

// attentionError is how far an attention may be off in a precision: in TF32 the weights between its products are rounded, too.
func attentionError(p fusec.Precision) float64 {
	switch p {
	case fusec.BF16:
		return halfError(graph.BF16)
	case fusec.TF32:
		return 2 * operandError(p)
	}
	return operandError(p)
}

// checkForward compares rows of an attention, and their logarithms of sums.
func (c attentionCase) checkForward(v *gpuValues, precision fusec.Precision) error {
	q, k, val, lse := v.in["q"], v.in["k"], v.in["v"], v.out["lse"]
	scale, eps := c.op().Scale, attentionError(precision)
	return each(samples(c.batch*c.heads*c.seq), func(row int) error {
		head := row / c.seq * c.seq // the first key's row
		p := make([]float64, c.seq)
		top := math.Inf(-1)
		for j := range p {
			if p[j] = math.Inf(-1); !c.attends(v, row, j) {
				continue
			}
			p[j] = scale * dotRows(q, row, k, head+j, c.dim)
			top = max(top, p[j])
		}
		sum := 0.0
		for j := range p {
			p[j] = math.Exp(p[j] - top)
			sum += p[j]
		}
		if want := top + math.Log(sum); lse != nil {
			if err := near("lse", lse, row, want, max(1e-4, eps)*(1+math.Abs(want))); err != nil {
				return err
			}
		}
		for i := range c.dim {
			y := termSum{}
			for j := range p {
				y.add(p[j] / sum * c.kept(v, row, j) * val.Float((head+j)*c.dim+i))
			}
			if err := y.compare("out", v, row*c.dim+i, eps); err != nil {
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
	return 1 / graph.DropoutRuleOf(p).Kept()
}

// checkBackward compares rows of the gradients with the formula, for the out and lse that were given.
func (c attentionCase) checkBackward(v *gpuValues, precision fusec.Precision) error {
	q, k, val, out, lse, dout := v.in["q"], v.in["k"], v.in["v"], v.in["out"], v.in["lse"], v.in["dout"]
	scale, eps := c.op().Scale, attentionError(precision)
	// pair is the weight of query i and key j after dropout, the gradient of their score, and how large its terms are: in TF32
	// those of the product of rounded numbers, too, whose sum may be much smaller.
	pair := func(i, j int, delta float64) (w, ds, size float64) {
		p, kept := math.Exp(scale*dotRows(q, i, k, j, c.dim)-lse.Float(i)), c.kept(v, i, j%c.seq)
		dp := kept * dotRows(dout, i, val, j, c.dim)
		size = math.Abs(dp)
		if precision == fusec.TF32 {
			size = 0
			for n := range c.dim {
				size += kept * math.Abs(dout.Float(i*c.dim+n)*val.Float(j*c.dim+n))
			}
		}
		return p * kept, p * (dp - delta), p * (size + math.Abs(delta))
	}
	add := func(s sums, f, size float64, x *graph.Tensor, row int) {
		for i := range s {
			u := x.Float(row*c.dim + i)
			s[i].sum += f * u
			s[i].size += size * math.Abs(u)
		}
	}
	return each(samples(c.batch*c.heads*c.seq), func(row int) error {
		head, at := row/c.seq*c.seq, row%c.seq
		dq, dk, dv := make(sums, c.dim), make(sums, c.dim), make(sums, c.dim)
		delta := dotRows(dout, row, out, row, c.dim)
		for j := range c.seq {
			if !c.attends(v, row, j) {
				continue
			}
			_, ds, size := pair(row, head+j, delta)
			add(dq, scale*ds, scale*size, k, head+j)
		}
		for i := range c.seq {
			if !c.attends(v, head+i, at) {
				continue
			}
			delta := dotRows(dout, head+i, out, head+i, c.dim)
			w, ds, size := pair(head+i, row, delta)
			add(dk, scale*ds, scale*size, q, head+i)
			add(dv, w, w, dout, head+i)
		}
		if err := dq.compare("dq", v, row, eps); err != nil {
			return err
		}
		if err := dk.compare("dk", v, row, eps); err != nil {
			return err
		}
		return dv.compare("dv", v, row, eps)
	})
}

// closeCall is how much less likely than the last chosen expert the next must be for a token to be compared: in float32
// the choice may fall the other way.
const closeCall = 1e-4

// route is the softmax of a token's scores, and the experts in the order of these.
func (c mixtureCase) route(v *gpuValues, row int) (p []float64, order []int) {
	x, router := v.in["x"], v.in["router"]
	p, order = make([]float64, c.experts), make([]int, c.experts)
	p[0] = c.skew
	sum := 0.0
	for e := range p {
		for i := range c.width {
			p[e] += x.Float(row*c.width+i) * router.Float(i*c.experts+e)
		}
		p[e] = math.Exp(p[e])
		sum += p[e]
	}
	for e := range p {
		p[e] /= sum
		order[e] = e
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(p[b], p[a]) })
	return p, order
}

// clear reports whether rounding cannot change which experts a token goes to.
func (c mixtureCase) clear(p []float64, order []int) bool {
	return c.topK >= c.experts || p[order[c.topK-1]]-p[order[c.topK]] >= closeCall
}

// samples are the tokens that are compared.
func (c mixtureCase) samples() []int { return samples(c.tokens)[:min(6, c.tokens)] }

// A termSum is a sum of terms, and that of their absolute values.
type termSum struct{ sum, size float64 }

func (s *termSum) add(x float64) { s.sum += x; s.size += math.Abs(x) }

// compare compares element i of a value, which may be off by a part of the terms.
func (s termSum) compare(name string, v *gpuValues, i int, part float64) error {
	return near(name, v.out[name], i, s.sum, part*s.size)
}

// sums are those of a row.
type sums []termSum

// compare compares row row of a value, which may be off by a part of the terms.
func (s sums) compare(name string, v *gpuValues, row int, part float64) error {
	for i, t := range s {
		if err := t.compare(name, v, row*len(s)+i, part); err != nil {
			return err
		}
	}
	return nil
}

// linear is what an expert's first product makes of a token.
func (c mixtureCase) linear(v *gpuValues, e, row int) []float64 {
	x, up := v.in["x"], v.in["up"]
	u := make([]float64, c.hidden)
	for i := range c.width {
		f := x.Float(row*c.width + i)
		at := (e*c.width + i) * c.hidden
		for j := range u {
			u[j] += f * up.Float(at+j)
		}
	}
	return u
}

// check compares tokens of a mixture.
func (c mixtureCase) check(v *gpuValues) error {
	down := v.in["down"]
	return each(c.samples(), func(row int) error {
		p, order := c.route(v, row)
		if !c.clear(p, order) {
			return nil
		}
		y := make(sums, c.width)
		for _, e := range order[:c.topK] {
			for j, u := range c.linear(v, e, row) {
				h := p[e] * gelu(graph.GeluErf, u)
				at := (e*c.hidden + j) * c.width
				for i := range c.width {
					y[i].add(h * down.Float(at+i))
				}
			}
		}
		return y.compare("y", v, row, halfError(graph.BF16))
	})
}

// geluSlope is the derivative of x·Φ(x).
func geluSlope(x float64) float64 {
	return 0.5*math.Erfc(-x/math.Sqrt2) + x*math.Exp(-x*x/2)/math.Sqrt(2*math.Pi)
}

// checkTraining compares tokens of a mixture and of the gradient of x, and elements of the gradients of the experts' weights,
// for the gates that were computed.
func (c mixtureCase) checkTraining(v *gpuValues) error {
	if err := c.check(v); err != nil {
		return err
	}
	x, router, up, down, dy, gates := v.in["x"], v.in["router"], v.in["up"], v.in["down"], v.in["dy"], v.out["gates"]
	// back is element j of dy·downᵀ for a token.
	back := func(e, row, j int) (sum float64) {
		for i := range c.width {
			sum += dy.Float(row*c.width+i) * down.Float((e*c.hidden+j)*c.width+i)
		}
		return sum
	}
	err := each(c.samples(), func(row int) error {
		p, order := c.route(v, row)
		if !c.clear(p, order) {
			return nil
		}
		dx := make(sums, c.width)
		dp, mean := make([]float64, c.experts), 0.0
		for _, e := range order[:c.topK] {
			for j, u := range c.linear(v, e, row) {
				da := back(e, row, j)
				dp[e] += gelu(graph.GeluErf, u) * da
				du := p[e] * geluSlope(u) * da
				for i := range c.width {
					dx[i].add(du * up.Float((e*c.width+i)*c.hidden+j))
				}
			}
			mean += p[e] * dp[e]
		}
		for e := range p {
			ds := p[e] * (dp[e] - mean)
			for i := range c.width {
				dx[i].add(ds * router.Float(i*c.experts+e))
			}
		}
		return dx.compare("dx", v, row, halfError(graph.BF16))
	})
	if err != nil {
		return err
	}
	return each(samples(c.experts * c.hidden)[:min(4, c.experts*c.hidden)], func(at int) error {
		e, j := at/c.hidden, at%c.hidden
		i := at % c.width
		dup, ddown := termSum{}, termSum{}
		for row := range c.tokens {
			gate := gates.Float(row*c.experts + e)
			if gate == 0 {
				continue
			}
			u := 0.0
			for k := range c.width {
				u += x.Float(row*c.width+k) * up.Float((e*c.width+k)*c.hidden+j)
			}
			dup.add(x.Float(row*c.width+i) * gate * geluSlope(u) * back(e, row, j))
			ddown.add(gate * gelu(graph.GeluErf, u) * dy.Float(row*c.width+i))
		}
		if err := dup.compare("dup", v, (e*c.width+i)*c.hidden+j, halfError(graph.BF16)); err != nil {
			return err
		}
		return ddown.compare("ddown", v, at*c.width+i, halfError(graph.BF16))
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
	want, err := v.onCPU(g)
	if err != nil {
		return err
	}
	loss := want["loss"].Float(0)
	if got := v.out["loss"].Float(0); !(math.Abs(got-loss) <= lossError(v.work.precision)*math.Abs(loss)) {
		return fmt.Errorf("the loss of the first step is %v; on the CPU it is %v", got, loss)
	}
	return nil
}

// onCPU gives the outputs of a graph of the work's sources on the CPU, in f32. A source may be of another type there, or be the
// first images of a batch.
func (v *gpuValues) onCPU(g *graph.Graph) (_ map[string]*graph.Tensor, err error) {
	w := *v.work
	w.optimizer, w.options = nil, nil
	u := &gpuValues{work: &w, graph: g, in: map[string]*graph.Tensor{}}
	made := map[*graph.Tensor]*graph.Tensor{} // of sources that have the same values there is one
	for _, s := range g.Sources() {
		t := v.in[s.Name]
		if t.Type != s.Type && made[t] == nil {
			made[t] = graph.NewTensor(s.Type)
			for i := range s.Type.Shape.Elems() {
				made[t].SetFloat(i, t.Float(i))
			}
		}
		u.in[s.Name] = t
		if t.Type != s.Type {
			u.in[s.Name] = made[t]
		}
	}
	p, err := u.compile(fusec.Targets()[0], fusec.F32)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := u.run(p); err != nil {
		return nil, err
	}
	for name, t := range u.out {
		u.out[name] = t.Clone()
	}
	return u.out, nil
}

// checkOnCPU compares all outputs with those of a graph on the CPU. Elements may be off by a part of the size of their row, which
// is the last axes of a value.
func checkOnCPU(v *gpuValues, g *graph.Graph, axes int, part float64, size func(row []float64) float64) error {
	outputs, err := v.onCPU(g)
	if err != nil {
		return err
	}
	for _, o := range g.Outputs {
		want := outputs[o.Name]
		s := want.Type.Shape
		row := graph.ShapeOf(s.Slice()[s.Rank()-axes:]...).Elems()
		for at := 0; at < s.Elems(); at += row {
			x := floats(want, at, row)
			bound := part * size(x)
			for i, u := range x {
				if err := near(o.Name, v.out[o.Name], at+i, u, bound); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// halfRowError is how far an element of a decoder may be off, as a part of the root of its row's mean square: keys, values and
// operands of products are rounded to 16 bits.
const halfRowError = 0.05

// checkDecoder compares the rows of a decoder's results.
func checkDecoder(v *gpuValues) error { return checkOnCPU(v, v.graph, 1, halfRowError, rms) }

// rms is the root of the mean square.
func rms(x []float64) float64 {
	sum := 0.0
	for _, u := range x {
		sum += u * u
	}
	return math.Sqrt(sum / float64(len(x)))
}

// largest is the largest absolute value.
func largest(x []float64) (most float64) {
	for _, u := range x {
		most = max(most, math.Abs(u))
	}
	return most
}
