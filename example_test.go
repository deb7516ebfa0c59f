package fusec_test

import (
	"fmt"
	"log"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/optim"
)

// A graph built without Gorgonia: two rows through a linear layer with ReLU.
func ExampleCompile() {
	b := graph.NewBuilder("layer")
	x := b.Input("x", graph.TypeOf(graph.F32, 2, 3))
	w := b.Param("w", graph.TypeOf(graph.F32, 3, 2))
	bias := b.Param("bias", graph.TypeOf(graph.F32, 2))
	y := b.MatMul(x, w, false, false)
	y = b.Unary(graph.Relu, b.Binary(graph.Add, y, b.Broadcast(bias, y.Type.Shape)))
	b.Output("y", y)
	g, err := b.Graph()
	if err != nil {
		log.Fatal(err)
	}

	p, err := fusec.Compile(g)
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	value := func(dims []int, v ...float32) *graph.Tensor {
		t, err := graph.TensorOf(v, dims...)
		if err != nil {
			log.Fatal(err)
		}
		return t
	}
	out, err := p.Run(map[string]*graph.Tensor{
		"x":    value([]int{2, 3}, 1, 2, 3, -1, 0, 1),
		"w":    value([]int{3, 2}, 1, 0, 0, 1, 1, -1),
		"bias": value([]int{2}, 0.5, 0),
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(out["y"].Data, "in", len(p.Fusions()), "launch:", p.Fusions()[0].Kind)
	// Output: [4.5 0 0.5 0] in 1 launch: linear
}

// A Gorgonia graph: only the line that makes the machine differs.
func ExampleNewMachine() {
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(1, 2), gorgonia.WithName("x"),
		gorgonia.WithValue(tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]float64{3, 4}))))
	w := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(2, 1), gorgonia.WithName("w"),
		gorgonia.WithValue(tensor.New(tensor.WithShape(2, 1), tensor.WithBacking([]float64{1, -1}))))
	cost := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(gorgonia.Must(gorgonia.Mul(x, w))))))
	if _, err := gorgonia.Grad(cost, w); err != nil {
		log.Fatal(err)
	}

	vm := fusec.NewMachine(g, gorgonia.BindDualValues(w))
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		log.Fatal(err)
	}
	gradient, err := w.Grad()
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(cost.Value(), gradient.Data())
	// Output: 1 [-6 -8]
}

// The optimiser's step as part of every run: the weight goes to where 3w₀ + 4w₁ is 0.
func ExampleWithOptimizer() {
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(1, 2), gorgonia.WithName("x"),
		gorgonia.WithValue(tensor.New(tensor.WithShape(1, 2), tensor.WithBacking([]float64{3, 4}))))
	w := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(2, 1), gorgonia.WithName("w"),
		gorgonia.WithValue(tensor.New(tensor.WithShape(2, 1), tensor.WithBacking([]float64{1, -1}))))
	cost := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(gorgonia.Must(gorgonia.Mul(x, w))))))
	if _, err := gorgonia.Grad(cost, w); err != nil {
		log.Fatal(err)
	}

	vm := fusec.NewMachine(g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.SGD{}, Rate: optim.Constant(0.01)}))
	defer vm.Close()
	for range 50 {
		if err := vm.RunAll(); err != nil {
			log.Fatal(err)
		}
		vm.Reset()
	}
	s := vm.StepStats()
	fmt.Printf("%.3f after %d steps, %d skipped\n", w.Value().Data(), s.Steps, s.Skipped)
	// Output: [1.120 -0.840] after 50 steps, 0 skipped
}

// A run in two halves: while a GPU computes the one batch, the next is read into the same memory and copied ahead.
func ExampleMachine_Start() {
	g := gorgonia.NewGraph()
	batch := []float64{1, 2}
	x := gorgonia.NewVector(g, tensor.Float64, gorgonia.WithShape(2), gorgonia.WithName("x"),
		gorgonia.WithValue(tensor.New(tensor.WithBacking(batch))))
	sum := gorgonia.Must(gorgonia.Sum(gorgonia.Must(gorgonia.Square(x))))

	vm := fusec.NewMachine(g) // fusec.WithTarget("cuda") where there is one
	defer vm.Close()
	for step := range 3 {
		if err := vm.Start(); err != nil {
			log.Fatal(err)
		}
		batch[0], batch[1] = float64(step), 3
		if err := vm.Prefetch(x); err != nil {
			log.Fatal(err)
		}
		if err := vm.Wait(); err != nil {
			log.Fatal(err)
		}
		fmt.Println(sum.Value())
		vm.Reset()
	}
	// Output:
	// 5
	// 9
	// 10
}
