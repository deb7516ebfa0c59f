package fpga

import (
	"math"

	"fusec/fpga/isa"
	"fusec/graph"
)

// blob is a stretch of external memory that the host fills before a run: weights, records or a table.
type blob struct {
	addr int64
	size int // bytes
	rows int // of weights
	data []byte
}

// count is how many records a blob holds.
func (b *blob) count() int { return b.size / isa.RecordBytes }

// codes are the quantised numbers of a task that are in descriptors, in addition to its blobs.
type codes struct {
	zero     int8
	resMul   uint16
	eps      uint32
	scoreMul uint16
	scoreSh  uint8
	outMul   uint16
	outSh    uint8

	weights, records, table *blob
	fill                    *blob // of what lies outside an image
}

// scaleOf is a factor as a record has it: mul / 2^shift, to 15 bits where the shift allows it.
func scaleOf(f float64) (mul int16, shift uint8) {
	if f == 0 || !finite(f) {
		return 0, 0
	}
	_, e := math.Frexp(f) // |f| in [2^(e-1), 2^e)
	s := max(0, min(47, 15-e))
	m := math.Round(math.Ldexp(f, s))
	if math.Abs(m) > 32767 && s > 0 {
		s--
		m = math.Round(math.Ldexp(f, s))
	}
	return int16(max(-32767, min(32767, m))), uint8(s)
}

// recordOf scales sums by f and adds bias, both in 1/256 of a step of the result.
func recordOf(f, bias float64) isa.Record {
	mul, shift := scaleOf(f)
	return isa.Record{Bias: int32(max(-1<<23, min(1<<23-1, math.Round(bias)))), Mul: mul, Shift: shift}
}

// put writes records to a blob, from the first on.
func (b *blob) put(records []isa.Record) {
	b.data = b.data[:0]
	for _, r := range records {
		b.data = r.Append(b.data)
	}
	b.data = append(b.data, make([]byte, b.size-len(b.data))...)
}

// chain reads the terms of a task.
func (t *task) chain(bound []*graph.Tensor) (func(c int) (scale, bias float64), error) {
	type op struct {
		term
		at func(i, j int) float64
	}
	var ops []op
	for _, m := range t.terms {
		at, err := m.v.values(bound)
		if err != nil {
			return nil, err
		}
		ops = append(ops, op{m, at})
	}
	return func(c int) (scale, bias float64) {
		scale = 1
		for _, o := range ops {
			v := o.at(0, c)
			switch {
			case o.fn == graph.Add:
				bias += v
			case o.fn == graph.Sub && o.left:
				scale, bias = -scale, v-bias
			case o.fn == graph.Sub:
				bias -= v
			case o.fn == graph.Mul:
				scale, bias = scale*v, bias*v
			default:
				scale, bias = scale/v, bias/v
			}
		}
		return scale, bias
	}, nil
}

// symmetric is the quantisation whose zero is 0.
func symmetric(c calibre) quant {
	a := max(math.Abs(c.lo), math.Abs(c.hi))
	if !c.known || a == 0 {
		a = 1
	}
	return quant{a / 127, 0}
}

// skewed is the 8-bit quantisation for exactly a range, with a zero point other than 0 if that makes the step smaller
// by a tenth.
func skewed(c calibre) quant {
	q := symmetric(c)
	if lo, hi := min(c.lo, 0), max(c.hi, 0); c.known && (hi-lo)/255 < 0.9*q.step && hi > lo {
		step := (hi - lo) / 255
		return quant{step, int(math.Round(-128 - lo/step))}
	}
	return q
}

// wideLimit is the largest integer of a wide result, with some headroom.
const wideLimit = 32000

// logitStep is the step of a router's logits: units of log2 with 10 fraction bits.
const logitStep = math.Ln2 / (1 << isa.ScoreFrac)

// choose gives a value its quantisation.
func (v *value) choose() {
	switch {
	case v.logits:
		v.quant = quant{logitStep, 0}
	case v.wide:
		q := symmetric(v.calibre)
		v.quant = quant{q.step * 127 / wideLimit, 0}
	case v.symmetric:
		v.quant = symmetric(v.calibre)
	default:
		v.quant = skewed(v.calibre)
	}
}

// preQuant is the quantisation of a table's input: the measured range, without the ends where the function differs from
// its value at the end by less than a quarter of the result's step.
func preQuant(c calibre, act activation, out quant) quant {
	lo, hi := min(c.lo, 0), max(c.hi, 0)
	if !c.known || lo == hi {
		return quant{1.0 / 127, 0}
	}
	trim := func(end, to float64) float64 {
		last, limit := end, act.f(end)
		for k := 1; k <= 256; k++ {
			x := end + (to-end)*float64(k)/256
			if math.Abs(act.f(x)-limit) > out.step/4 {
				break
			}
			last = x
		}
		return last
	}
	lo = trim(lo, 0)
	hi = trim(hi, 0)
	if hi-lo <= 0 {
		return quant{max(math.Abs(c.lo), math.Abs(c.hi)) / 127, 0}
	}
	step := (hi - lo) / 255
	return quant{step, max(-128, min(127, int(math.Round(-128-lo/step))))}
}

// fill makes the 256 entries of the table that follows a quantisation.
func (b *blob) fill(act activation, pre, out quant) {
	b.data = make([]byte, 256)
	for i := range b.data {
		b.data[i] = byte(out.of(act.f(pre.real(int(int8(i)))), 8))
	}
}

// target is the quantisation that EXEC's sums are scaled to, before a table if there is one. Its step is at least
// least, and such that the residual's factor, which has 16 bits, holds.
func (t *task) target(least float64) quant {
	out := &t.out.v.quant
	if t.res != nil {
		least = max(least, t.share*t.res.v.quant.step/15.99)
	}
	switch {
	case out.step == logitStep && t.out.v.logits:
	case !t.act.table():
		out.step = max(out.step, least)
	case t.kind == taskAffine && len(t.terms) == 0 && t.res == nil:
		return t.x.v.quant
	default:
		q := preQuant(t.preCalibre, t.act, *out)
		q.step = max(q.step, least)
		return q
	}
	return *out
}

// scale fills a task's records, n of them, and what else follows from where its sums are scaled to: the real result
// of column c is line's factor times the sum, and its offset.
func (t *task) scale(n int, line func(c int) (factor, offset float64)) {
	factor, offset := 0.0, 0.0
	for c := range n {
		f, b := line(c)
		factor, offset = max(factor, math.Abs(f)), max(offset, math.Abs(b))
	}
	if v := t.out.v; v.wide && !v.logits {
		// Sums have to fit before the offset subtracts the contribution of x's zero point.
		v.quant.step += offset / wideLimit
	}
	to := t.target(max(256*factor/math.MaxInt16, offset/(1<<15))) // a record's factor and bias have to hold
	t.codes.zero = int8(to.zero)
	bias := 0.0
	if t.res != nil {
		r := t.res.v.quant
		t.codes.resMul = uint16(min(math.Round(4096*t.share*r.step/to.step), math.MaxUint16))
		bias = -float64(r.zero) * float64(t.codes.resMul) / 16
	}
	if t.act.table() {
		t.codes.table.fill(t.act, to, t.out.v.quant)
	}
	records := make([]isa.Record, t.codes.records.count())
	for c := range n {
		f, b := line(c)
		records[c] = recordOf(256*f/to.step, 256*b/to.step+bias)
	}
	t.codes.records.put(records)
}

// quantise fills a task's codes and blobs, the quantisations of its values being chosen.
func (t *task) quantise(bound []*graph.Tensor, c isa.Config) error {
	switch t.kind {
	case taskAttention:
		t.quantiseAttention()
		return nil
	case taskMoE:
		return t.quantiseMoE(bound)
	case taskTranspose:
		t.quantiseTranspose()
		return nil
	case taskMax:
		t.quantiseMax()
		return nil
	}
	chain, err := t.chain(bound)
	if err != nil {
		return err
	}
	x := t.x.v.quant
	switch t.kind {
	case taskGemm:
		return t.quantiseGemm(bound, chain)
	case taskConv:
		return t.quantiseConv(bound, c, chain)
	case taskNorm:
		n := float64(t.x.cols)
		_, eps := t.norm()
		t.codes.eps = uint32(min(math.Round(n*n*eps/(x.step*x.step)), math.MaxUint32))
		t.scale(t.x.cols, func(c int) (float64, float64) {
			f, b := chain(c)
			return f / (1 << isa.NormShift), b
		})
	default:
		n, step := 1, x.step
		if len(t.terms) > 0 {
			n = t.out.cols
		}
		if t.kind == taskMul {
			step *= t.y.v.quant.step
		}
		t.scale(n, func(c int) (float64, float64) {
			f, b := chain(c)
			return f * step, b - f*step*float64(x.zero)
		})
	}
	return nil
}

// weights writes a matrix of weights, n rows of k, to a blob, each row with its own step, and returns the steps and the
// rows' sums.
func (b *blob) weights(at func(n, k int) float64, n, k int) (step, sum []float64) {
	stride := b.size / b.rows
	b.data = make([]byte, b.size)
	step, sum = make([]float64, n), make([]float64, n)
	for i := range n {
		most := 0.0
		for j := range k {
			most = max(most, math.Abs(at(i, j)))
		}
		if most == 0 || !finite(most) {
			most = 1
		}
		q := quant{most / 127, 0}
		total := 0
		for j := range k {
			v := max(-127, q.of(at(i, j), 8)) // −128 is reserved for NaN
			b.data[i*stride+j] = byte(v)
			total += v
		}
		step[i], sum[i] = q.step, float64(total)
	}
	return step, sum
}

// quantiseGemm fills the weights and records of a product.
func (t *task) quantiseGemm(bound []*graph.Tensor, chain func(int) (float64, float64)) error {
	x := t.x.v.quant
	if t.weight == nil {
		t.scale(t.w.rows, func(c int) (float64, float64) {
			f, b := chain(c)
			return f * x.step * t.w.v.quant.step, b
		})
		return nil
	}
	w, err := t.weight.from.values(bound)
	if err != nil {
		return err
	}
	step, sum := t.codes.weights.weights(func(n, k int) float64 { return w(k, n) }, t.weight.n, t.weight.k)
	t.scale(t.weight.n, func(c int) (float64, float64) {
		f, b := chain(c)
		f *= x.step * step[c]
		return f, b - f*float64(x.zero)*sum[c]
	})
	return nil
}

// quantiseTranspose makes the unit matrix, by which a product is its second operand's transpose, to the bit.
func (t *task) quantiseTranspose() {
	b := t.codes.weights
	b.data = make([]byte, b.size)
	for i := range t.x.cols {
		b.data[i*(b.size/b.rows)+i] = 1
	}
	records := make([]isa.Record, t.codes.records.count())
	for i := range records {
		records[i] = recordOf(256, 0)
	}
	t.codes.records.put(records)
}

// quantiseAttention finds the factors of the scores, in units of log2 with ScoreFrac fraction bits, and of the result.
func (t *task) quantiseAttention() {
	h := t.heads
	f := h.op.Scale * h.q.v.quant.step * h.k.v.quant.step * math.Log2E * (1 << isa.ScoreFrac)
	_, e := math.Frexp(f)
	s := max(0, min(63, 15-e))
	m := math.Round(math.Ldexp(f, s))
	if m > 32767 && s > 0 {
		s--
		m = math.Round(math.Ldexp(f, s))
	}
	t.codes.scoreMul, t.codes.scoreSh = uint16(max(0, min(32767, m))), uint8(s)
	// The mean of V's integers times mul·2^(19−shift) is the result in 1/256 of its step.
	f = 256 * h.v.v.quant.step / h.out.v.quant.step
	_, e = math.Frexp(f)
	m = math.Round(math.Ldexp(f, 16-e))
	s = 19 + 16 - e
	for m > 65535 || s > 63 {
		m, s = math.Round(m/2), s-1
	}
	t.codes.outMul, t.codes.outSh = uint16(m), uint8(max(0, s))
}

// quantiseMoE fills the weights and records of all experts and their tables.
func (t *task) quantiseMoE(bound []*graph.Tensor) error {
	e := t.experts
	x, out := t.x.v.quant, &t.out.v.quant
	up := symmetric(e.up)
	hidden := skewed(e.hidden)
	act := hidden // of w1's product behind the activation
	if e.op.Gated {
		act = symmetric(e.acted)
	}
	pre := act
	if e.act.table() {
		pre = preQuant(e.pre, e.act, act)
		e.codes.table.fill(e.act, pre, act)
	}
	e.codes.preZero, e.codes.hiddenZero = int8(pre.zero), int8(hidden.zero)
	product := func(w, b graph.MoEWeight, k int, from, to quant) error {
		at, err := e.weights[w][k].values(bound)
		if err != nil {
			return err
		}
		bias := func(int, int) float64 { return 0 }
		if e.weights[b] != nil {
			if bias, err = e.weights[b][k].values(bound); err != nil {
				return err
			}
		}
		shape := e.weights[w][k].layout.Shape
		c := &e.codes.of[w][k]
		step, sum := c.weights.weights(func(n, k int) float64 { return at(k, n) }, shape.At(1), shape.At(0))
		records := make([]isa.Record, c.records.count())
		for n := range shape.At(1) {
			f := from.step * step[n]
			records[n] = recordOf(256*f/to.step, 256*(bias(0, n)-f*float64(from.zero)*sum[n])/to.step)
		}
		c.records.put(records)
		return nil
	}
	for k := range e.op.Experts {
		if err := product(graph.MoEW1, graph.MoEB1, k, x, pre); err != nil {
			return err
		}
		if e.op.Gated {
			if err := product(graph.MoEW3, graph.MoEB3, k, x, up); err != nil {
				return err
			}
		}
		if err := product(graph.MoEW2, graph.MoEB2, k, hidden, e.slots.quant); err != nil {
			return err
		}
	}
	if e.op.Gated {
		e.codes.product.put([]isa.Record{recordOf(256*act.step*up.step/hidden.step, 0)})
	}
	// Gates have 16 fraction bits.
	e.codes.combine.put([]isa.Record{recordOf(256*e.slots.quant.step/65536/out.step, 0)})
	t.codes.zero = int8(out.zero)
	return nil
}
