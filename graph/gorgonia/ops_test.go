package gorgonia

import (
	"fmt"
	"io"
	"log"
	"os"
	"testing"

	gorg "gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// opCase is one of Gorgonia's operations in a small graph. Its value is compared with what the operation's own Do
// computes, but for the operations named in wrong, which are wrong in Gorgonia.
type opCase struct {
	name  string
	build func(b *builder) *gorg.Node
	grad  []string // inputs to differentiate with respect to
	wrong []string
	// skipGrad tells why the derivative that Gorgonia wrote down is not compared with differences.
	skipGrad string
}

type unaryFunc func(*gorg.Node) (*gorg.Node, error)

func opCases() []opCase {
	var cs []opCase
	add := func(name string, build func(b *builder) *gorg.Node, grad ...string) *opCase {
		cs = append(cs, opCase{name: name, build: build, grad: grad})
		return &cs[len(cs)-1]
	}
	for _, u := range []struct {
		name  string
		f     unaryFunc
		grad  bool
		wrong string
	}{
		{"abs", gorg.Abs, true, ""}, {"sign", gorg.Sign, false, ""}, {"ceil", gorg.Ceil, false, ""},
		{"floor", gorg.Floor, false, ""}, {"sin", gorg.Sin, true, ""}, {"cos", gorg.Cos, true, ""},
		{"exp", gorg.Exp, true, ""}, {"log", gorg.Log, true, ""}, {"log2", gorg.Log2, true, "Gorgonia's rule is wrong"},
		{"neg", gorg.Neg, true, ""}, {"square", gorg.Square, true, ""}, {"sqrt", gorg.Sqrt, true, ""},
		{"inverse", gorg.Inverse, true, ""}, {"inverseSqrt", gorg.InverseSqrt, true, "Gorgonia's rule is wrong"},
		{"cube", gorg.Cube, true, ""}, {"tanh", gorg.Tanh, true, ""}, {"sigmoid", gorg.Sigmoid, true, ""},
		{"log1p", gorg.Log1p, true, ""}, {"expm1", gorg.Expm1, true, ""}, {"softplus", gorg.Softplus, true, ""},
		{"mish", gorg.Mish, true, ""}, {"rectify", gorg.Rectify, true, ""},
		{"leakyRelu", func(x *gorg.Node) (*gorg.Node, error) { return gorg.LeakyRelu(x, 0.1) }, true, ""},
	} {
		c := add("unary/"+u.name, func(b *builder) *gorg.Node { return must(u.f(b.pos("x", 3, 5))) })
		if u.grad {
			c.grad, c.skipGrad = []string{"x"}, u.wrong
		}
	}
	add("unary/scalar", func(b *builder) *gorg.Node { return must(gorg.Exp(b.in("x"))) }, "x")

	type binaryFunc func(a, b *gorg.Node) (*gorg.Node, error)
	for _, f := range []struct {
		name string
		f    binaryFunc
	}{{"add", gorg.Add}, {"sub", gorg.Sub}, {"mul", gorg.HadamardProd}, {"div", gorg.HadamardDiv}, {"pow", gorg.Pow}} {
		add("binary/"+f.name, func(b *builder) *gorg.Node { return must(f.f(b.pos("x", 3, 5), b.pos("y", 3, 5))) }, "x", "y")
		add("binary/"+f.name+"/scalar", func(b *builder) *gorg.Node {
			return must(f.f(b.pos("x", 3, 5), must(f.f(gorg.NewConstant(1.5), b.pos("y")))))
		}, "x", "y")
	}
	cs[len(cs)-1].skipGrad, cs[len(cs)-2].skipGrad = "Gorgonia's rule for a power is incomplete",
		"Gorgonia's rule for a power is incomplete"
	add("binary/shapes", func(b *builder) *gorg.Node {
		return must(gorg.Add(must(gorg.HadamardProd(b.in("x", 1, 1), b.in("y", 1))), b.in("z")))
	}).wrong = []string{"elemBinOp"} // its Do refuses the shapes that its inference allows
	for _, f := range []struct {
		name string
		f    func(a, b *gorg.Node, same bool) (*gorg.Node, error)
	}{{"lt", gorg.Lt}, {"gt", gorg.Gt}, {"le", gorg.Lte}, {"ge", gorg.Gte}, {"eq", gorg.Eq}, {"ne", gorg.Ne}} {
		for _, same := range []bool{false, true} {
			add(fmt.Sprintf("compare/%s/%v", f.name, same), func(b *builder) *gorg.Node {
				return must(f.f(b.in("x", 3, 5), b.in("y", 3, 5), same))
			})
		}
	}
	add("minBetween", func(b *builder) *gorg.Node { return must(gorg.MinBetween(b.in("x", 3, 5), b.in("y", 3, 5))) }, "x", "y")
	add("maxBetween", func(b *builder) *gorg.Node { return must(gorg.MaxBetween(b.in("x", 3, 5), b.in("y", 3, 5))) }, "x", "y")

	for _, s := range [][2][]int{{{3, 4}, {4, 5}}, {{3, 4}, {4}}, {{3}, {3, 4}}, {{4}, {4}}, {{1, 1}, {1, 1}}} {
		add(fmt.Sprintf("mul/%v%v", s[0], s[1]), func(b *builder) *gorg.Node {
			return must(gorg.Mul(b.in("x", s[0]...), b.in("y", s[1]...)))
		}, "x", "y")
	}
	add("outer", func(b *builder) *gorg.Node { return must(gorg.OuterProd(b.in("x", 3), b.in("y", 4))) })
	for _, tr := range [][2]bool{{false, false}, {true, false}, {false, true}} {
		x, y := []int{2, 3, 4}, []int{2, 4, 5}
		if tr[0] {
			x = []int{2, 4, 3}
		}
		if tr[1] {
			y = []int{2, 5, 4}
		}
		add(fmt.Sprintf("batched/%v", tr), func(b *builder) *gorg.Node {
			return must(gorg.BatchedMatMul(b.in("x", x...), b.in("y", y...), tr[0], tr[1]))
		}, "x", "y")
	}
	add("batched/4d", func(b *builder) *gorg.Node {
		return must(gorg.BatchedMatMul(b.in("x", 2, 3, 4, 5), b.in("y", 2, 3, 5, 2)))
	}, "x", "y")
	add("tensordot", func(b *builder) *gorg.Node {
		return must(gorg.Tensordot([]int{0, 2}, []int{1, 0}, b.in("x", 3, 4, 5), b.in("y", 5, 3, 2)))
	})
	add("tensordot/one", func(b *builder) *gorg.Node {
		return must(gorg.Tensordot([]int{1}, []int{0}, b.in("x", 3, 4), b.in("y", 4, 2)))
	})
	add("tensordot/all", func(b *builder) *gorg.Node {
		return must(gorg.Tensordot([]int{0}, []int{0}, b.in("x", 3), b.in("y", 3)))
	}).wrong = []string{"tensordotOp"} // gives a tensor of one element where a scalar was inferred

	for _, along := range [][]int{nil, {0}, {1}, {2}, {0, 1}, {1, 2}, {0, 2}} {
		add(fmt.Sprintf("sum/%v", along), func(b *builder) *gorg.Node { return must(gorg.Sum(b.in("x", 3, 4, 2), along...)) }, "x")
		add(fmt.Sprintf("max/%v", along), func(b *builder) *gorg.Node { return must(gorg.Max(b.in("x", 3, 4, 2), along...)) })
	}
	add("sum/4d", func(b *builder) *gorg.Node { return must(gorg.Sum(b.in("x", 2, 3, 4, 5), 2)) }, "x").wrong = []string{"sumOp"}
	add("mean", func(b *builder) *gorg.Node { return must(gorg.Mean(b.in("x", 3, 4), 1)) }, "x")
	add("norm", func(b *builder) *gorg.Node { return must(gorg.Norm(b.pos("x", 3, 4), 1, 2)) }, "x")
	for axis := range 3 {
		add(fmt.Sprintf("softmax/%d", axis), func(b *builder) *gorg.Node {
			y := must(gorg.SoftMax(b.in("x", 2, 3, 4), axis))
			return must(gorg.HadamardProd(y, b.in("w", 2, 3, 4)))
		}, "x")
		add(fmt.Sprintf("logSoftmax/%d", axis), func(b *builder) *gorg.Node {
			y := must(gorg.LogSoftMax(b.in("x", 2, 3, 4), axis))
			return must(gorg.HadamardProd(y, b.in("w", 2, 3, 4)))
		}, "x")
	}
	add("softmax/default", func(b *builder) *gorg.Node { return must(gorg.SoftMax(b.in("x", 3, 4))) })
	add("softmax/column", func(b *builder) *gorg.Node { return must(gorg.SoftMax(b.in("x", 3, 1))) })

	add("reshape", func(b *builder) *gorg.Node { return must(gorg.Reshape(b.in("x", 3, 4), tensor.Shape{2, -1})) }, "x")
	add("ravel", func(b *builder) *gorg.Node { return must(gorg.Ravel(b.in("x", 3, 4))) }, "x")
	add("transpose", func(b *builder) *gorg.Node { return must(gorg.Transpose(b.in("x", 2, 3, 4), 2, 0, 1)) }, "x")
	add("transpose/2d", func(b *builder) *gorg.Node { return must(gorg.Transpose(b.in("x", 3, 4))) }, "x")
	add("broadcast", func(b *builder) *gorg.Node {
		return must(gorg.BroadcastAdd(b.in("x", 3, 4), b.in("y", 4), nil, []byte{0}))
	}, "x", "y")
	add("broadcast/column", func(b *builder) *gorg.Node {
		return must(gorg.BroadcastHadamardProd(b.in("x", 3, 4), b.in("y", 3, 1), nil, []byte{1}))
	}, "x", "y")
	add("concat", func(b *builder) *gorg.Node {
		return must(gorg.Concat(1, b.in("x", 2, 3), b.in("y", 2, 1), b.in("z", 2, 2)))
	}, "x", "y", "z")
	add("concat/one", func(b *builder) *gorg.Node { return must(gorg.Concat(0, b.in("x", 2, 3))) }, "x")
	for name, s := range map[string][]tensor.Slice{
		"first": {gorg.S(1, 3)}, "drop": {gorg.S(1)}, "second": {nil, gorg.S(1, 3)}, "both": {gorg.S(0), gorg.S(1, 4)},
		"element": {gorg.S(1), gorg.S(2), gorg.S(0)}, "last": {nil, nil, gorg.S(1)}, "tensor": {tensor.S(0, 2), nil, tensor.S(0)},
	} {
		add("slice/"+name, func(b *builder) *gorg.Node { return must(gorg.Slice(b.in("x", 3, 5, 2), s...)) }, "x")
	}
	add("slice/step", func(b *builder) *gorg.Node { return must(gorg.Slice(b.in("x", 6, 2), gorg.S(0, 6, 2))) })
	add("slice/vector", func(b *builder) *gorg.Node { return must(gorg.Slice(b.in("x", 6), gorg.S(2))) }, "x")
	add("slice/odd step", func(b *builder) *gorg.Node { return must(gorg.Slice(b.in("x", 7, 2), gorg.S(0, 7, 2))) })
	add("at", func(b *builder) *gorg.Node { return must(gorg.At(b.in("x", 3, 4), 1, 2)) })
	add("diagFlat", func(b *builder) *gorg.Node { return must(gorg.DiagFlat(b.in("x", 4))) })
	add("byIndices", func(b *builder) *gorg.Node {
		return must(gorg.ByIndices(b.in("x", 5, 3), b.ints("ix", 4, 0, 4), 0))
	}, "x").wrong = []string{"byIndicesOpDiffOp"}
	add("byIndices/1", func(b *builder) *gorg.Node {
		return must(gorg.ByIndices(b.in("x", 2, 5, 3), b.ints("ix", 4, 0, 4), 1))
	}, "x").wrong = []string{"byIndicesOp", "byIndicesOpDiffOp"}

	add("im2col", func(b *builder) *gorg.Node {
		return must(gorg.Im2Col(b.in("x", 2, 3, 5, 6), tensor.Shape{2, 3}, tensor.Shape{1, 0}, tensor.Shape{2, 1}, tensor.Shape{1, 2}))
	}, "x")
	add("conv2d", func(b *builder) *gorg.Node {
		return must(gorg.Conv2d(b.in("x", 2, 3, 5, 4), b.in("f", 4, 3, 3, 2), tensor.Shape{3, 2}, []int{1, 1}, []int{2, 1}, []int{1, 1}))
	}, "x", "f")
	add("conv1d", func(b *builder) *gorg.Node {
		return must(gorg.Conv1d(b.in("x", 2, 3, 1, 7), b.in("f", 4, 3, 1, 3), 3, 1, 1, 1))
	}, "x", "f")
	add("maxPool", func(b *builder) *gorg.Node {
		return must(gorg.MaxPool2D(b.in("x", 2, 3, 5, 5), tensor.Shape{2, 3}, []int{0, 1}, []int{2, 1}))
	}, "x")
	add("maxPool/explicit", func(b *builder) *gorg.Node {
		return must(gorg.MaxPool2D(b.in("x", 2, 3, 5, 5), tensor.Shape{2, 2}, []int{0, 1, 0, 1}, []int{1, 1}))
	}, "x").wrong = []string{"maxPoolOp", "maxPoolDiffOp"}
	add("avgPool", func(b *builder) *gorg.Node {
		return must(gorg.AveragePool2D(b.in("x", 2, 3, 4, 4), tensor.Shape{2, 2}, []int{0, 0}, []int{2, 2}))
	}, "x").wrong = []string{"avgPoolOp", "avgPoolDiffOp"}
	add("avgPool/right", func(b *builder) *gorg.Node { // the width of the image is the size of the window
		return must(gorg.AveragePool2D(b.in("x", 2, 3, 4, 4), tensor.Shape{2, 2}, []int{1, 1}, []int{1, 1}))
	}, "x").wrong = []string{"avgPoolDiffOp"}
	add("globalAveragePool", func(b *builder) *gorg.Node { return must(gorg.GlobalAveragePool2D(b.in("x", 2, 3, 4, 5))) })
	add("upsample", func(b *builder) *gorg.Node { return must(gorg.Upsample2D(b.in("x", 1, 2, 3, 2), 3)) }, "x")
	add("batchNorm", func(b *builder) *gorg.Node {
		y, _, _, _, err := gorg.BatchNorm(b.in("x", 3, 2, 4, 5), b.in("γ", 1, 2, 1, 1), b.in("β", 1, 2, 1, 1), 0.9, 1e-5)
		return must(gorg.HadamardProd(must(y, err), b.in("w", 3, 2, 4, 5)))
	}, "x")
	add("batchNorm/2d", func(b *builder) *gorg.Node {
		y, _, _, _, err := gorg.BatchNorm(b.in("x", 4, 3), b.in("γ", 1, 3), b.in("β", 1, 3), 0.9, 1e-5)
		return must(gorg.HadamardProd(must(y, err), b.in("w", 4, 3)))
	}, "x", "γ", "β")
	add("batchNorm/eval", func(b *builder) *gorg.Node {
		y, _, _, op, err := gorg.BatchNorm(b.in("x", 3, 2, 4, 5), b.in("γ", 1, 2, 1, 1), b.in("β", 1, 2, 1, 1), 0.9, 1e-5)
		_ = op.SetTraining(true)
		_ = op.SetTraining(false)
		_ = op.SetStats(tensor.New(tensor.WithBacking([]float64{0.5, -1})), tensor.New(tensor.WithBacking([]float64{2, 3})))
		return must(gorg.HadamardProd(must(y, err), b.in("w", 3, 2, 4, 5)))
	}, "x").wrong = []string{"batchnormDiffOp"}
	add("groupNorm", func(b *builder) *gorg.Node {
		y, err := gorg.GroupNorm(b.in("x", 2, 4, 3, 5), b.in("γ", 1, 4, 1, 1), b.in("β", 1, 4, 1, 1), 2, 4, 1e-5)
		return must(gorg.HadamardProd(must(y, err), b.in("w", 2, 4, 3, 5)))
	}, "x")
	add("dropout", func(b *builder) *gorg.Node { return must(gorg.Dropout(b.in("x", 4, 5), 0.4)) }, "x").wrong = []string{"dropoutOp",
		"dropoutDiffOp"}
	add("dropout/none", func(b *builder) *gorg.Node {
		return must(gorg.Dropout(b.in("x", 4, 5), 0))
	}, "x").wrong = []string{"dropoutDiffOp"}
	add("dropout/eval", func(b *builder) *gorg.Node {
		y := must(gorg.Dropout(b.in("x", 4, 5), 0.4))
		_ = y.Op().(gorg.TrainModeOp).SetTraining(false)
		return y
	}, "x").wrong = []string{"dropoutDiffOp"}
	add("convType", func(b *builder) *gorg.Node {
		return must(gorg.ConvType(b.in("x", 3, 4), tensor.Float64, tensor.Int))
	})
	add("constants", func(b *builder) *gorg.Node {
		k := gorg.NewConstant(tensor.New(tensor.WithShape(2, 2), tensor.WithBacking([]float64{1, 2, 3, 4})))
		return must(gorg.Add(must(gorg.HadamardProd(b.in("x", 2, 2), k)), gorg.NewConstant(0.25)))
	}, "x")
	add("identity", func(b *builder) *gorg.Node { return must(gorg.ApplyOp(gorg.Iop{}, b.in("x", 2, 2))) })
	add("sparsemax", func(b *builder) *gorg.Node {
		return must(gorg.HadamardProd(must(gorg.Sparsemax(b.in("x", 3, 4))), b.in("w", 3, 4)))
	}, "x")
	add("user", func(b *builder) *gorg.Node { return must(gorg.ApplyOp(userOp{gorg.Iop{}}, b.in("x", 2, 2))) })
	add("binaryXent", func(b *builder) *gorg.Node {
		return must(gorg.BinaryXent(must(gorg.Sigmoid(b.in("x", 3, 2))), b.from("y", func() float64 { return float64(b.rng.IntN(2)) }, 3,
			2)))
	}, "x")
	return cs
}

// userOp is an operation that is not Gorgonia's.
type userOp struct{ gorg.Iop }

func (userOp) Do(v ...gorg.Value) (gorg.Value, error) {
	return tensor.Mul(v[0], 2.0, tensor.UseUnsafe()) // overwrites its operand, which must be its own
}

func (userOp) String() string { return "twice" }

func TestMain(m *testing.M) {
	log.SetOutput(io.Discard) // Gorgonia logs the gradients of group norms
	os.Exit(m.Run())
}

func TestOps(t *testing.T) {
	for _, c := range opCases() {
		t.Run(c.name, func(t *testing.T) {
			b := newBuilder()
			y := c.build(b)
			var wrt gorg.Nodes
			for _, name := range c.grad {
				wrt = append(wrt, b.ByName(name)[0])
			}
			if len(wrt) > 0 {
				cost := y
				if !cost.IsScalar() {
					cost = must(gorg.Sum(y))
				}
				if _, err := gorg.Grad(cost, wrt...); err != nil {
					t.Fatal(err)
				}
			}
			im := mustImport(t, b.ExprGraph, Options{})
			if host := c.name == "sparsemax" || c.name == "user"; host != (hostCount(im) > 0) {
				t.Errorf("%d operations run on the host: %v", hostCount(im), im.Graph.Notes)
			}
			sameAsDo(t, im, b.ExprGraph, c.wrong...)
			if len(wrt) > 0 && c.skipGrad == "" {
				rightGrads(t, im)
			}
		})
	}
}
