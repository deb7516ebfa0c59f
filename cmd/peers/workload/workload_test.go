package workload

import (
	"flag"
	"math"
	"strings"
	"testing"
)

// f64 widens a workload's tensors, by name.
func f64(w Workload) map[string][]float64 {
	out := map[string][]float64{}
	for _, t := range w.Tensors {
		x := t.Data()
		y := make([]float64, len(x))
		for i, v := range x {
			y[i] = float64(v)
		}
		out[t.Name] = y
	}
	return out
}

// mul is a·b + bias with a of m rows; bias may be nil.
func mul(a, b, bias []float64, m int) []float64 {
	k := len(a) / m
	n := len(b) / k
	c := make([]float64, m*n)
	for i := range m {
		row := c[i*n : (i+1)*n]
		copy(row, bias)
		for p := range k {
			v := a[i*k+p]
			for j, x := range b[p*n : (p+1)*n] {
				row[j] += v * x
			}
		}
	}
	return c
}

func each(x []float64, f func(float64) float64) []float64 {
	for i, v := range x {
		x[i] = f(v)
	}
	return x
}

func relu(v float64) float64 { return max(v, 0) }

func gelu(v float64) float64 {
	return 0.5 * v * (1 + math.Tanh(math.Sqrt(2/math.Pi)*(v+0.044715*v*v*v)))
}

// addNorm is layerNorm(x + y)·gamma + beta over rows of len(gamma).
func addNorm(x, y, gamma, beta []float64) []float64 {
	d := len(gamma)
	out := make([]float64, len(x))
	for r := 0; r < len(x); r += d {
		var mean, variance float64
		for i := range d {
			out[r+i] = x[r+i] + y[r+i]
			mean += out[r+i] / float64(d)
		}
		for _, v := range out[r : r+d] {
			variance += (v - mean) * (v - mean) / float64(d)
		}
		for i := range d {
			out[r+i] = (out[r+i]-mean)/math.Sqrt(variance+Eps)*gamma[i] + beta[i]
		}
	}
	return out
}

// attention works on rows [batch·seq, 3·dim] of q, k and v, each dim split into heads.
func attention(qkv []float64) []float64 {
	const hd = Dim / Heads
	out := make([]float64, Batch*Seq*Dim)
	at := func(b, s, part, h int) []float64 {
		i := (b*Seq+s)*3*Dim + part*Dim + h*hd
		return qkv[i : i+hd]
	}
	for b := range Batch {
		for h := range Heads {
			for s := range Seq {
				var p [Seq]float64
				top, sum := math.Inf(-1), 0.0
				for t := range Seq {
					for i, q := range at(b, s, 0, h) {
						p[t] += q * at(b, t, 1, h)[i]
					}
					p[t] /= math.Sqrt(hd)
					top = max(top, p[t])
				}
				for t := range Seq {
					p[t] = math.Exp(p[t] - top)
					sum += p[t]
				}
				for t := range Seq {
					for i, v := range at(b, t, 2, h) {
						out[(b*Seq+s)*Dim+h*hd+i] += p[t] / sum * v
					}
				}
			}
		}
	}
	return out
}

// reference computes a workload in float64.
func reference(w Workload) []float64 {
	t := f64(w)
	if strings.HasPrefix(w.Name, "attention-") {
		return attend(t["q"], t["k"], t["v"], w.Out[0], strings.HasSuffix(w.Name, "-causal"))
	}
	if w.Base != "" {
		return trained(w, t)
	}
	if w.Net != nil {
		return network(w, t)
	}
	switch strings.TrimSuffix(w.Name, "-bf16") {
	case "linear-plain":
		return mul(t["x"], t["w"], nil, 512)
	case "linear-gelu":
		return each(mul(t["x"], t["w"], t["b"], 512), gelu)
	case "mlp":
		x := each(mul(t["x"], t["w1"], t["b1"], 64), relu)
		x = each(mul(x, t["w2"], t["b2"], 64), relu)
		return mul(x, t["w3"], t["b3"], 64)
	case "block":
		o := attention(mul(t["x"], t["wqkv"], t["bqkv"], Batch*Seq))
		y := addNorm(t["x"], mul(o, t["wo"], t["bo"], Batch*Seq), t["gamma1"], t["beta1"])
		h := each(mul(y, t["w1"], t["b1"], Batch*Seq), gelu)
		return addNorm(y, mul(h, t["w2"], t["b2"], Batch*Seq), t["gamma2"], t["beta2"])
	default:
		return mul(t["a"], t["b"], nil, w.Out[0])
	}
}

var answers = flag.Bool("answers", false, "compute the right answers of the large products and networks too (minutes)")

// TestAnswers computes the right answers again; those of the large products only with -answers.
func TestAnswers(t *testing.T) {
	for _, w := range All() {
		large := 1e9
		if strings.HasPrefix(w.Name, "attention-") {
			large = 1e11 // see attend
		}
		if !*answers && w.FLOPs > large {
			continue
		}
		t.Run(w.Name, func(t *testing.T) {
			y := reference(w)
			if want := elems(w.Out); len(y) != want {
				t.Errorf("%d numbers, want %d", len(y), want)
			}
			sum, abs := Checksum(y)
			if math.Abs(sum-w.Checksum) > 1e-9*abs || math.Abs(abs-w.AbsSum) > 1e-9*abs {
				t.Errorf("Checksum: %.17g, AbsSum: %.17g; the table says %.17g, %.17g", sum, abs, w.Checksum, w.AbsSum)
			}
			if !w.Right(sum) || w.Right(sum+2*w.tolerance()*abs) || w.Right(math.NaN()) {
				t.Error("Right judges wrongly")
			}
		})
	}
}

func TestGen(t *testing.T) {
	got := Gen(1, 2, 3) // 104742 mod 1000 = 742, then +7919 each
	for i, u := range []float32{742, 661, 580} {
		if want := (u/1000 - 0.5) * 2; got[i] != want {
			t.Errorf("Gen(1, 2)[%d] = %v, want %v", i, got[i], want)
		}
	}
	if x := (Tensor{Ones: true, Shape: []int{2}}).Data(); x[0] != 1 || x[1] != 1 {
		t.Errorf("ones: %v", x)
	}
}

func TestByName(t *testing.T) {
	if w, ok := ByName("block"); !ok || len(w.Tensors) != 13 {
		t.Errorf("block: %v %d", ok, len(w.Tensors))
	}
	if _, ok := ByName("nothing"); ok {
		t.Error("found a workload that is not there")
	}
}

func TestChecksumSeesPlaces(t *testing.T) {
	a, _ := Checksum([]float32{1, 2, 3})
	b, _ := Checksum([]float32{1, 3, 2})
	if a == b {
		t.Error("a permutation has the same checksum")
	}
}
