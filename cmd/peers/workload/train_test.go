package workload

import "math"

// The backward passes, written out in float64. A layer's gradients are those of its weights and bias.

// transposed turns a of m rows around.
func transposed(a []float64, m int) []float64 {
	n := len(a) / m
	t := make([]float64, len(a))
	for i := range m {
		for j := range n {
			t[j*m+i] = a[i*n+j]
		}
	}
	return t
}

// mulBack gives the gradients of x, w and the bias of mul(x, w, bias, m) for that of its result.
func mulBack(x, w, dy []float64, m int) (dx, dw, db []float64) {
	k, n := len(x)/m, len(dy)/m
	db = make([]float64, n)
	for i, d := range dy {
		db[i%n] += d
	}
	return mul(dy, transposed(w, k), nil, m), mul(transposed(x, m), dy, nil, k), db
}

// lossBack gives the loss and its gradient for y.
func lossBack(y, target []float64) (loss float64, dy []float64) {
	dy = make([]float64, len(y))
	for i, v := range y {
		d := v - target[i]
		loss += d * d / float64(len(y))
		dy[i] = 2 * d / float64(len(y))
	}
	return loss, dy
}

// masked is dy where the activation let x through.
func masked(dy, y []float64) []float64 {
	for i, v := range y {
		if v <= 0 {
			dy[i] = 0
		}
	}
	return dy
}

// geluBack is dy·gelu'(x).
func geluBack(dy, x []float64) []float64 {
	k := math.Sqrt(2 / math.Pi)
	for i, v := range x {
		t := math.Tanh(k * (v + 0.044715*v*v*v))
		dy[i] *= 0.5*(1+t) + 0.5*v*(1-t*t)*k*(1+3*0.044715*v*v)
	}
	return dy
}

// addNormBack gives the gradients of x (and of y, which is the same), gamma and beta of addNorm.
func addNormBack(x, y, gamma, dout []float64) (dx, dgamma, dbeta []float64) {
	d := len(gamma)
	one, zero := make([]float64, d), make([]float64, d)
	for i := range one {
		one[i] = 1
	}
	xhat := addNorm(x, y, one, zero)
	dx, dgamma, dbeta = make([]float64, len(x)), make([]float64, d), make([]float64, d)
	for r := 0; r < len(x); r += d {
		var mean, variance, g, gx float64
		for i := range d {
			mean += (x[r+i] + y[r+i]) / float64(d)
		}
		for i := range d {
			v := x[r+i] + y[r+i] - mean
			variance += v * v / float64(d)
			dgamma[i] += dout[r+i] * xhat[r+i]
			dbeta[i] += dout[r+i]
			g += dout[r+i] * gamma[i] / float64(d)
			gx += dout[r+i] * gamma[i] * xhat[r+i] / float64(d)
		}
		for i := range d {
			dx[r+i] = (dout[r+i]*gamma[i] - g - xhat[r+i]*gx) / math.Sqrt(variance+Eps)
		}
	}
	return dx, dgamma, dbeta
}

// attentionBack is the gradient of qkv for that of attention(qkv).
func attentionBack(qkv, dout []float64) []float64 {
	const hd = Dim / Heads
	d := make([]float64, len(qkv))
	at := func(x []float64, b, s, part, h int) []float64 { return x[(b*Seq+s)*3*Dim+part*Dim+h*hd:][:hd] }
	for b := range Batch {
		for h := range Heads {
			for s := range Seq {
				var p, dp [Seq]float64
				top, sum, dot := math.Inf(-1), 0.0, 0.0
				do := dout[(b*Seq+s)*Dim+h*hd:][:hd]
				for t := range Seq {
					for i, q := range at(qkv, b, s, 0, h) {
						p[t] += q * at(qkv, b, t, 1, h)[i] / math.Sqrt(hd)
						dp[t] += do[i] * at(qkv, b, t, 2, h)[i]
					}
					top = max(top, p[t])
				}
				for t := range Seq {
					p[t] = math.Exp(p[t] - top)
					sum += p[t]
				}
				for t := range Seq {
					p[t] /= sum
					dot += p[t] * dp[t]
				}
				for t := range Seq {
					ds := p[t] * (dp[t] - dot) / math.Sqrt(hd)
					for i := range hd {
						at(d, b, s, 0, h)[i] += ds * at(qkv, b, t, 1, h)[i]
						at(d, b, t, 1, h)[i] += ds * at(qkv, b, s, 0, h)[i]
						at(d, b, t, 2, h)[i] += p[t] * do[i]
					}
				}
			}
		}
	}
	return d
}

func plus(x, y []float64) []float64 {
	z := make([]float64, len(x))
	for i := range x {
		z[i] = x[i] + y[i]
	}
	return z
}

// trained computes a workload that trains.
func trained(w Workload, t map[string][]float64) []float64 {
	grads := map[string][]float64{}
	var loss float64
	switch w.Base {
	case "conv-resnet18-b8":
		loss = networkBack(w, t, grads)
	case "mlp":
		h1 := each(mul(t["x"], t["w1"], t["b1"], 64), relu)
		h2 := each(mul(h1, t["w2"], t["b2"], 64), relu)
		l, d := lossBack(mul(h2, t["w3"], t["b3"], 64), t["target"])
		loss = l
		d, grads["w3"], grads["b3"] = mulBack(h2, t["w3"], d, 64)
		d, grads["w2"], grads["b2"] = mulBack(h1, t["w2"], masked(d, h2), 64)
		_, grads["w1"], grads["b1"] = mulBack(t["x"], t["w1"], masked(d, h1), 64)
	case "block":
		const rows = Batch * Seq
		qkv := mul(t["x"], t["wqkv"], t["bqkv"], rows)
		o := attention(qkv)
		p := mul(o, t["wo"], t["bo"], rows)
		y := addNorm(t["x"], p, t["gamma1"], t["beta1"])
		u := mul(y, t["w1"], t["b1"], rows)
		h := each(append([]float64(nil), u...), gelu)
		f := mul(h, t["w2"], t["b2"], rows)
		l, d := lossBack(addNorm(y, f, t["gamma2"], t["beta2"]), t["target"])
		loss = l
		var df, dh, dy, do []float64
		df, grads["gamma2"], grads["beta2"] = addNormBack(y, f, t["gamma2"], d)
		dh, grads["w2"], grads["b2"] = mulBack(h, t["w2"], df, rows)
		dy, grads["w1"], grads["b1"] = mulBack(y, t["w1"], geluBack(dh, u), rows)
		d, grads["gamma1"], grads["beta1"] = addNormBack(t["x"], p, t["gamma1"], plus(dy, df))
		do, grads["wo"], grads["bo"] = mulBack(o, t["wo"], d, rows)
		_, grads["wqkv"], grads["bqkv"] = mulBack(t["x"], t["wqkv"], attentionBack(qkv, do), rows)
	}
	out := []float64{loss}
	for _, x := range w.Weights() {
		out = append(out, grads[x.Name]...)
	}
	return out
}
