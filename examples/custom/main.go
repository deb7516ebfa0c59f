// Custom trains a layer whose activation is a function of the program's own: mish, of Misra (arXiv 1908.08681), which fusec
// does not have. Registered with a body in Go, a body in CUDA C++ and a gradient, it becomes part of the layer's launch.
//
//	go run ./examples/custom
//	go run ./examples/custom --target emulator     # the CUDA body, without a GPU
//	go run -tags gpu ./examples/custom --target cuda
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/nn"
	"fusec/graph/optim"
	"fusec/lowering/cuda"
	"fusec/lowering/cuda/driver"
	"fusec/lowering/cuda/emulator"
)

func init() {
	err := graph.RegisterCustom(graph.CustomInfo{
		Name: "mish", Doc: "x·tanh(log(1+e^x))", Operands: 1, FLOPs: 6,
		// The value of one element. It is what the function means: kernels and the gradient are compared with it.
		Eval: func(x []float64) float64 { return x[0] * math.Tanh(math.Log1p(math.Exp(x[0]))) },
		// A strip of a tile, on the CPU. With n = e^x(e^x + 2) mish is x·n/(n + 2), which needs one exponential.
		F32: func(dst []float32, x [][]float32) {
			for i, v := range x[0] {
				e := math.Exp(math.Min(float64(v), 30))
				n := e * (e + 2)
				dst[i] = v * float32(n/(n+2))
			}
		},
		// T is float or double.
		Bodies: map[string]string{cuda.Target.Name: `
			const T e = op::exp(op::min(x0, T(20)));
			const T n = e * (e + T(2));
			return x0 * (n / (n + T(2)));`},
		// d/dx x·t = t + x·(1 − t²)·sigmoid(x) for t = tanh(softplus(x)). These are operations of the graph, which fuse, too.
		Grad: func(b *graph.Builder, x []*graph.Node, _, dy *graph.Node) []*graph.Node {
			t := b.Unary(graph.Tanh, b.Unary(graph.Softplus, x[0]))
			inner := b.Binary(graph.Sub, b.Scalar(dy.Type.DType, 1), b.Unary(graph.Square, t))
			inner = b.Binary(graph.Mul, b.Binary(graph.Mul, x[0], inner), b.Unary(graph.Sigmoid, x[0]))
			return []*graph.Node{b.Binary(graph.Mul, dy, b.Binary(graph.Add, t, inner))}
		},
	})
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	target := flag.String("target", "cpu", "cpu, ref, cuda, or emulator: CUDA without a GPU")
	flag.Parse()
	if err := train(os.Stdout, *target); err != nil {
		log.Fatal(err)
	}
}

// machineFor is the target's option. The emulator is the target cuda with another driver.
func machineFor(target string) fusec.Option {
	if target != "emulator" {
		return fusec.WithTarget(target)
	}
	return fusec.WithTarget(cuda.Target.Name,
		cuda.Driver(func(int) (driver.GPU, driver.Compiler, error) { return emulator.Open(emulator.Options{}) }))
}

// matrix is a node with values that follow from their places.
func matrix(g *gorgonia.ExprGraph, name string, rows, columns int) *gorgonia.Node {
	v := make([]float32, rows*columns)
	for i := range v {
		v[i] = float32(math.Sin(float64(i*i + len(name))))
	}
	return gorgonia.NewMatrix(g, tensor.Float32, gorgonia.WithShape(rows, columns), gorgonia.WithName(name),
		gorgonia.WithValue(tensor.New(tensor.WithShape(rows, columns), tensor.WithBacking(v))))
}

// train fits mish(x·w) to y, and writes the launches with mish in them and the cost of some steps.
func train(to io.Writer, target string) (err error) {
	g := gorgonia.NewGraph()
	x, w, y := matrix(g, "x", 32, 6), matrix(g, "w", 6, 4), matrix(g, "target", 32, 4)
	product, err := gorgonia.Mul(x, w)
	if err != nil {
		return err
	}
	h, err := nn.Custom("mish", product)
	if err != nil {
		return err
	}
	gorgonia.WithName("hidden")(h)
	cost := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(gorgonia.Must(gorgonia.Sub(h, y))))))
	var read gorgonia.Value
	gorgonia.Read(cost, &read)
	if _, err := gorgonia.Grad(cost, w); err != nil {
		return err
	}

	vm := fusec.NewMachine(g, machineFor(target),
		fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.5)}))
	defer vm.Close()
	for step := range 31 {
		if err := vm.RunAll(); err != nil {
			return err
		}
		if step%10 == 0 {
			fmt.Fprintf(to, "step %2d: cost %.3f\n", step, read.Data())
		}
		vm.Reset()
	}
	for _, f := range vm.Fusions() {
		for _, n := range f.Nodes {
			if n.Name == "hidden" {
				fmt.Fprintln(to, "mish runs in a launch of kind", f.Kind)
			}
		}
	}
	return nil
}
