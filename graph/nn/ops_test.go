package nn_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"fusec/graph/graphtest"
	"fusec/graph/nn"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// example is one use of an operation: the nodes to differentiate by, its value, and what the definition says the value
// is, computed without any of fusec's code from the inputs' values.
type example struct {
	name  string
	build func(b *net) (y *gorgonia.Node, wrt gorgonia.Nodes)
	want  func(in [][]float64) []float64 // of the nodes of wrt; nil where the operation is made of others'
}

type operation = func(x ...*gorgonia.Node) (*gorgonia.Node, error)

// of is an example of an operation on new inputs x0, x1, … of the given shapes.
func of(name string, f operation, want func(in [][]float64) []float64, shapes ...[]int) example {
	return example{name, func(b *net) (*gorgonia.Node, gorgonia.Nodes) {
		var x gorgonia.Nodes
		for i, s := range shapes {
			x = append(x, b.in(fmt.Sprintf("x%d", i), s...))
		}
		return must(f(x...)), x
	}, want}
}

// elementwise is f of the elements of one input.
func elementwise(f func(float64) float64) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		y := slices.Clone(in[0])
		for i := range y {
			y[i] = f(y[i])
		}
		return y
	}
}

func silu(x float64) float64 { return x / (1 + math.Exp(-x)) }

// norm is a LayerNorm of rows of d, or, with nothing subtracted, an RMSNorm.
func norm(d int, eps float64, centred bool) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		y := slices.Clone(in[0])
		for r := 0; r < len(y); r += d {
			row, mean, sq := y[r:r+d], 0.0, 0.0
			for _, v := range row {
				if centred {
					mean += v / float64(d)
				}
			}
			for _, v := range row {
				sq += (v - mean) * (v - mean) / float64(d)
			}
			for i, v := range row {
				row[i] = (v - mean) / math.Sqrt(sq+eps) * in[1][i]
				if centred {
					row[i] += in[2][i]
				}
			}
		}
		return y
	}
}

// attend is attention over batches of h heads of queries and hk of keys; keep says which scores count.
func attend(batch, h, hk, sq, sk, d, dv int, keep func(batch, i, j int) bool) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		q, k, v := in[0], in[1], in[2]
		y := make([]float64, batch*h*sq*dv)
		for head := range batch * h {
			group := head/h*hk + head%h*hk/h
			for i := range sq {
				p, sum := make([]float64, sk), 0.0
				for j := range p {
					if keep != nil && !keep(head/h, i, j) {
						continue
					}
					for c := range d {
						p[j] += q[(head*sq+i)*d+c] * k[(group*sk+j)*d+c]
					}
					p[j] = math.Exp(p[j] / math.Sqrt(float64(d)))
					sum += p[j]
				}
				for j, w := range p {
					for c := range dv {
						if sum > 0 {
							y[(head*sq+i)*dv+c] += w / sum * v[(group*sk+j)*dv+c]
						}
					}
				}
			}
		}
		return y
	}
}

// turned is RoPE of rows of d at positions start to start+s−1, by complex numbers.
func turned(s, d, start int, interleaved bool) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		y := slices.Clone(in[0])
		for r := range len(y) / d {
			for j := range d / 2 {
				u, v := r*d+j, r*d+j+d/2
				if interleaved {
					u, v = r*d+2*j, r*d+2*j+1
				}
				sin, cos := math.Sincos(float64(start+r%s) * math.Exp(-2*float64(j)/float64(d)*math.Log(10000)))
				z := complex(in[0][u], in[0][v]) * complex(cos, sin)
				y[u], y[v] = real(z), imag(z)
			}
		}
		return y
	}
}

// affine is rows of n times a matrix [n, m] plus, if there are three inputs, a bias.
func affine(n, m int) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		y := make([]float64, len(in[0])/n*m)
		for i := range y {
			for k := range n {
				y[i] += in[0][i/m*n+k] * in[1][k*m+i%m]
			}
			if len(in) > 2 {
				y[i] += in[2][i%m]
			}
		}
		return y
	}
}

// entropies is the cross-entropy of rows of c, of labels that are classes.
func entropies(c int, labels []int) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		y := make([]float64, len(labels))
		for i, l := range labels {
			sum := 0.0
			for _, x := range in[0][i*c:][:c] {
				sum += math.Exp(x)
			}
			if l >= 0 {
				y[i] = math.Log(sum) - in[0][i*c+l]
			}
		}
		return y
	}
}

// A graph of five vertices, of which the last has no edges.
var (
	sources = []int{0, 1, 1, 2, 3, 0, 2, 2}
	targets = []int{1, 0, 2, 1, 3, 3, 0, 0}
)

// scattered sums or averages rows of d by target, into five rows.
func scattered(d int, mean bool) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		y := make([]float64, 5*d)
		for e, t := range targets {
			n := 1.0
			if mean {
				n = 0
				for _, u := range targets {
					if u == t {
						n++
					}
				}
			}
			for c := range d {
				y[t*d+c] += in[0][e*d+c] / n
			}
		}
		return y
	}
}

// convolved multiplies by the dense D^−½·(A+I)·D^−½.
func convolved(d int) func([][]float64) []float64 {
	return func(in [][]float64) []float64 {
		var a [5][5]float64
		degree := [5]float64{1, 1, 1, 1, 1}
		for i := range a {
			a[i][i] = 1
		}
		for e, t := range targets {
			a[t][sources[e]]++
			degree[t]++
		}
		y := make([]float64, 5*d)
		for i := range a {
			for j := range a {
				for c := range d {
					y[i*d+c] += a[i][j] / math.Sqrt(degree[i]*degree[j]) * in[0][j*d+c]
				}
			}
		}
		return y
	}
}

func examples() []example {
	type (
		node  = *gorgonia.Node
		nodes = gorgonia.Nodes
		s     = []int
	)
	attention := func(o nn.AttentionOptions) operation {
		return func(x ...node) (node, error) { return nn.Attention(x[0], x[1], x[2], o) }
	}
	layerNorm := func(x ...node) (node, error) { return nn.LayerNorm(x[0], x[1], x[2], 1e-2) }
	list := []example{
		of("GELU", func(x ...node) (node, error) { return nn.GELU(x[0]) },
			elementwise(func(x float64) float64 { return x / 2 * (1 + math.Erf(x/math.Sqrt2)) }), s{3, 5}),
		of("GELUTanh", func(x ...node) (node, error) { return nn.GELUTanh(x[0]) },
			elementwise(func(x float64) float64 {
				return x * silu(2*math.Sqrt(2/math.Pi)*(x+0.044715*x*x*x)) / (2 * math.Sqrt(2/math.Pi) * (x + 0.044715*x*x*x))
			}), s{2, 1, 3}),
		of("SiLU", func(x ...node) (node, error) { return nn.SiLU(x[0]) }, elementwise(silu), s{7}),
		of("Custom", func(x ...node) (node, error) { return nn.Custom(graphtest.Softsign, x[0]) },
			elementwise(func(x float64) float64 { return x / (1 + math.Abs(x)) }), s{3, 4}),
		of("Custom of three", func(x ...node) (node, error) { return nn.Custom(graphtest.Blend, x...) }, func(in [][]float64) []float64 {
			y := slices.Clone(in[0])
			for i := range y {
				s := 1 / (1 + math.Exp(-in[2][i]))
				y[i] = s*in[0][i] + (1-s)*in[1][i]
			}
			return y
		}, s{3, 4}, s{3, 4}, s{3, 4}),
		of("SwiGLU", func(x ...node) (node, error) { return nn.SwiGLU(x[0], x[1]) }, func(in [][]float64) []float64 {
			y := slices.Clone(in[1])
			for i, g := range in[0] {
				y[i] *= silu(g)
			}
			return y
		}, s{3, 4}, s{3, 4}),
		of("LayerNorm", layerNorm, norm(5, 1e-2, true), s{3, 5}, s{5}, s{5}),
		of("LayerNorm of 3 axes", layerNorm, norm(6, 1e-2, true), s{2, 1, 6}, s{6}, s{6}),
		of("RMSNorm", func(x ...node) (node, error) { return nn.RMSNorm(x[0], x[1], 1e-6) },
			norm(4, 1e-6, false), s{2, 3, 4}, s{4}),
		of("Linear", func(x ...node) (node, error) { return nn.Linear(x[0], x[1], x[2]) },
			affine(4, 2), s{3, 4}, s{4, 2}, s{2}),
		of("Linear of 3 axes", func(x ...node) (node, error) { return nn.Linear(x[0], x[1], nil) },
			affine(4, 3), s{2, 5, 4}, s{4, 3}),
		of("Linear of a vector", func(x ...node) (node, error) { return nn.Linear(x[0], x[1], x[2]) },
			affine(4, 3), s{4}, s{4, 3}, s{3}),
		of("RoPE", func(x ...node) (node, error) { return nn.RoPE(x[0], nn.RoPEOptions{}) },
			turned(5, 6, 0, false), s{2, 5, 6}),
		of("RoPE interleaved", func(x ...node) (node, error) { return nn.RoPE(x[0], nn.RoPEOptions{Interleaved: true}) },
			turned(3, 4, 0, true), s{2, 1, 3, 4}),
		{"RoPE later", func(b *net) (node, nodes) {
			x := b.in("x", 3, 4)
			return must(nn.RoPE(x, nn.RoPEOptions{Start: b.int("start", 17)})), nodes{x}
		}, turned(3, 4, 17, false)},
		of("heads", func(x ...node) (node, error) { return nn.MergeHeads(must(nn.SplitHeads(x[0], 3))) },
			func(in [][]float64) []float64 { return in[0] }, s{2, 4, 6}),
		of("SplitHeads", func(x ...node) (node, error) { return nn.SplitHeads(x[0], 2) }, func(in [][]float64) []float64 {
			x := in[0] // [3, 2·2]
			return []float64{x[0], x[1], x[4], x[5], x[8], x[9], x[2], x[3], x[6], x[7], x[10], x[11]}
		}, s{3, 4}),

		of("Attention 2D", attention(nn.AttentionOptions{}), attend(1, 1, 1, 3, 5, 4, 2, nil), s{3, 4}, s{5, 4}, s{5, 2}),
		of("Attention scaled", attention(nn.AttentionOptions{Scale: 0.5}),
			attend(1, 2, 2, 3, 5, 4, 4, nil), s{2, 3, 4}, s{2, 5, 4}, s{2, 5, 4}),
		of("Attention causal", attention(nn.AttentionOptions{Causal: true}), attend(2, 2, 2, 4, 4, 3, 3,
			func(_, i, j int) bool { return j <= i }), s{2, 2, 4, 3}, s{2, 2, 4, 3}, s{2, 2, 4, 3}),
		of("Attention window", attention(nn.AttentionOptions{Causal: true, Window: 2}), attend(1, 2, 2, 3, 5, 4, 2,
			func(_, i, j int) bool { return j <= i+2 && j > i }), s{2, 3, 4}, s{2, 5, 4}, s{2, 5, 2}),
		of("Attention grouped", attention(nn.AttentionOptions{}),
			attend(2, 4, 2, 3, 4, 3, 2, nil), s{2, 4, 3, 3}, s{2, 2, 4, 3}, s{2, 2, 4, 2}),
		{"Attention mask", func(b *net) (node, nodes) {
			q, k, v := b.in("q", 2, 3, 4), b.in("k", 2, 4, 4), b.in("v", 2, 4, 3)
			m := b.in("m", 3, 4)
			return must(nn.Attention(q, k, v, nn.AttentionOptions{Mask: m})), nodes{q, k, v, m}
		}, nil},
		{"Attention mask of bools", func(b *net) (node, nodes) {
			q, k, v := b.in("q", 2, 3, 4), b.in("k", 2, 4, 4), b.in("v", 2, 4, 3)
			keep := []bool{true, false, true, true, false, false, false, false, true, true, false, true}
			mask := gorgonia.NewMatrix(b.g, tensor.Bool, gorgonia.WithShape(3, 4), gorgonia.WithName("mask"),
				gorgonia.WithValue(tensor.New(tensor.WithShape(3, 4), tensor.WithBacking(keep))))
			return must(nn.Attention(q, k, v, nn.AttentionOptions{Mask: mask})), nodes{q, k, v}
		}, attend(1, 2, 2, 3, 4, 4, 3, func(_, i, j int) bool { return i == 0 && j != 1 || i == 2 && j != 2 })},
		{"Attention lengths", func(b *net) (node, nodes) {
			q, k, v := b.in("q", 2, 1, 3, 4), b.in("k", 2, 1, 4, 4), b.in("v", 2, 1, 4, 3)
			return must(nn.Attention(q, k, v, nn.AttentionOptions{Lengths: b.ints("n", 2, 3)})), nodes{q, k, v}
		}, attend(2, 1, 1, 3, 4, 4, 3, func(batch, _, j int) bool { return j < 2+batch })},
		{"Attention tail", func(b *net) (node, nodes) {
			q, k, v := b.in("q", 2, 1, 2, 4), b.in("k", 2, 1, 5, 4), b.in("v", 2, 1, 5, 3)
			o := nn.AttentionOptions{Lengths: b.ints("n", 3, 4), Tail: true, Causal: true}
			return must(nn.Attention(q, k, v, o)), nodes{q, k, v}
		}, attend(2, 1, 1, 2, 5, 4, 3, func(batch, i, j int) bool { return j <= i+1+batch })},
		{"Attention of one node", func(b *net) (node, nodes) {
			x := b.in("x", 2, 4, 3)
			return must(nn.Attention(x, x, x, nn.AttentionOptions{Causal: true})), nodes{x}
		}, nil},
		{"Attention dropout", func(b *net) (node, nodes) {
			q, k, v := b.in("q", 2, 3, 4), b.in("k", 2, 5, 4), b.in("v", 2, 5, 4)
			o := nn.AttentionOptions{Dropout: 0.3, Seed: nn.NewSeeds(b.g, 9).Next()}
			return must(nn.Attention(q, k, v, o)), nodes{q, k, v}
		}, nil},
		{"Dropout", func(b *net) (node, nodes) {
			x := b.in("x", 4, 5)
			return must(nn.Dropout(x, 0.4, nn.NewSeeds(b.g, 9).Next())), nodes{x}
		}, nil},

		{"Embedding", func(b *net) (node, nodes) {
			x := b.in("x", 4, 3)
			return must(nn.Embedding(x, b.ints("i", 1, 3, 1, 0, 1))), nodes{x}
		}, func(in [][]float64) []float64 {
			x := in[0]
			return slices.Concat(x[3:6], x[9:12], x[3:6], x[0:3], x[3:6])
		}},
		{"CrossEntropyRows", func(b *net) (node, nodes) {
			x := b.in("x", 4, 5)
			return must(nn.CrossEntropyRows(x, b.ints("l", 4, 0, -1, 2))), nodes{x}
		}, entropies(5, []int{4, 0, -1, 2})},
		{"CrossEntropyRows of float labels", func(b *net) (node, nodes) {
			x := b.in("x", 2, 2, 3)
			return must(nn.CrossEntropyRows(x, b.floats("l", []float64{2, 0.5, -100, 1}, 2, 2))), nodes{x}
		}, entropies(3, []int{2, 0, -1, 1})},
		{"CrossEntropy", func(b *net) (node, nodes) {
			x := b.in("x", 4, 5)
			return must(nn.CrossEntropy(x, b.ints("l", 4, 0, -1, 2))), nodes{x}
		}, func(in [][]float64) []float64 {
			sum := 0.0
			for _, l := range entropies(5, []int{4, 0, -1, 2})(in) {
				sum += l / 3
			}
			return []float64{sum}
		}},
		{"CrossEntropy without labels", func(b *net) (node, nodes) {
			x := b.in("x", 2, 5)
			return must(nn.CrossEntropy(x, b.ints("l", -1, -1))), nodes{x}
		}, func([][]float64) []float64 { return []float64{0} }},

		{"GatherRows", func(b *net) (node, nodes) {
			x := b.in("x", 5, 2)
			return must(nn.GatherRows(x, b.ints("source", sources...))), nodes{x}
		}, func(in [][]float64) (y []float64) {
			for _, i := range sources {
				y = append(y, in[0][2*i:][:2]...)
			}
			return y
		}},
		{"ScatterAdd", func(b *net) (node, nodes) {
			x := b.in("x", 8, 3)
			return must(nn.ScatterAdd(x, b.ints("target", targets...), 5)), nodes{x}
		}, scattered(3, false)},
		{"ScatterMean", func(b *net) (node, nodes) {
			x := b.in("x", 8, 3)
			return must(nn.ScatterMean(x, b.ints("target", targets...), 5)), nodes{x}
		}, scattered(3, true)},
		{"ScatterMean of numbers", func(b *net) (node, nodes) {
			x := b.in("x", 8)
			return must(nn.ScatterMean(x, b.ints("target", targets...), 5)), nodes{x}
		}, scattered(1, true)},
		{"Propagate", func(b *net) (node, nodes) {
			x := b.in("x", 5, 3)
			return must(nn.Propagate(x, b.ints("source", sources...), b.ints("target", targets...))), nodes{x}
		}, convolved(3)},
		{"GraphConv", func(b *net) (node, nodes) {
			x, c := b.in("x", 5, 3), nn.GraphConv{W: b.in("w", 3, 2), Bias: b.in("bias", 2)}
			y := must(c.Forward(x, b.ints("source", sources...), b.ints("target", targets...)))
			return y, append(c.Params(), x)
		}, func(in [][]float64) []float64 {
			y := convolved(2)([][]float64{affine(3, 2)([][]float64{in[2], in[0]})})
			for i := range y {
				y[i] += in[1][i%2]
			}
			return y
		}},
	}
	return slices.Concat(list, convExamples(), routingExamples())
}

// TestValues compares the values on both machines with the definitions.
func TestValues(t *testing.T) {
	for d, tol := range tolerances {
		for _, e := range examples() {
			t.Run(fmt.Sprintf("%s %v", e.name, d), func(t *testing.T) {
				var first []float64
				for name, machine := range machines {
					b := newNet(d)
					y, wrt := e.build(b)
					vm := machine(b.g)
					run(t, vm)
					got := values(t, y.Value())
					if first == nil {
						first = got
					}
					agree(t, "the machines' values", got, first, tol)
					if e.want != nil {
						in := make([][]float64, len(wrt))
						for i, n := range wrt {
							in[i] = values(t, n.Value())
						}
						agree(t, name, got, e.want(in), tol)
					}
					if err := vm.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}

// tolerances are by how much both machines may be off.
var tolerances = map[tensor.Dtype]float64{tensor.Float32: 1e-5, tensor.Float64: 1e-10}

// TestGradients compares the gradients on both machines, and with differences.
func TestGradients(t *testing.T) {
	for d, tol := range tolerances {
		for _, e := range examples() {
			t.Run(fmt.Sprintf("%s %v", e.name, d), func(t *testing.T) {
				first := map[string][]float64{}
				for name, machine := range machines {
					b := newNet(d)
					y, wrt := e.build(b)
					cost := b.cost(y)
					if _, err := gorgonia.Grad(cost, wrt...); err != nil {
						t.Fatal(err)
					}
					var by map[string][]float64
					if d == tensor.Float64 && name == "fusec" {
						by = map[string][]float64{}
						for _, n := range wrt {
							by[n.Name()] = differences(t, b.g, cost, n)
						}
					}
					vm := machine(b.g, gorgonia.BindDualValues(wrt...))
					run(t, vm)
					for _, n := range wrt {
						g, err := n.Grad()
						if err != nil {
							t.Fatal(err)
						}
						got := values(t, g)
						if first[n.Name()] == nil {
							first[n.Name()] = got
						}
						agree(t, "the machines' gradients of "+n.Name(), got, first[n.Name()], tol)
						if by != nil {
							agree(t, "by differences, of "+n.Name(), got, by[n.Name()], 1e-6)
						}
					}
					if err := vm.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
	}
}
