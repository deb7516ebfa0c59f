// Command outside is a program of another module that trains with fusec, as README.md says: y = 3x − 1 is learned from 64
// points. .ci/outside builds it by the README's lines and runs it.
package main

import (
	"fmt"
	"log"
	"math"

	"fusec"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

func main() {
	xs, ys := make([]float64, 64), make([]float64, 64)
	for i := range xs {
		xs[i] = float64(i)/32 - 1
		ys[i] = 3*xs[i] - 1
	}
	points := func(v []float64) gorgonia.NodeConsOpt {
		return gorgonia.WithValue(tensor.New(tensor.WithShape(64, 1), tensor.WithBacking(v)))
	}
	zero := gorgonia.WithInit(gorgonia.Zeroes())
	g := gorgonia.NewGraph()
	x := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(64, 1), gorgonia.WithName("x"), points(xs))
	y := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(64, 1), gorgonia.WithName("y"), points(ys))
	w := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(1, 1), gorgonia.WithName("w"), zero)
	b := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(1, 1), gorgonia.WithName("b"), zero)
	line := gorgonia.Must(gorgonia.BroadcastAdd(gorgonia.Must(gorgonia.Mul(x, w)), b, nil, []byte{0}))
	cost := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(gorgonia.Must(gorgonia.Sub(line, y))))))
	if _, err := gorgonia.Grad(cost, w, b); err != nil {
		log.Fatal(err)
	}

	vm := fusec.NewMachine(g, gorgonia.BindDualValues(w, b))
	defer vm.Close()
	solver := gorgonia.NewVanillaSolver(gorgonia.WithLearnRate(0.3))
	for range 200 {
		if err := vm.RunAll(); err != nil {
			log.Fatal(err)
		}
		if err := solver.Step(gorgonia.NodesToValueGrads(gorgonia.Nodes{w, b})); err != nil {
			log.Fatal(err)
		}
		vm.Reset()
	}
	slope, offset := w.Value().Data().([]float64)[0], b.Value().Data().([]float64)[0]
	fmt.Printf("y = %.4fx %+.4f, by:\n", slope, offset)
	fusions := vm.Fusions()
	for _, f := range fusions {
		fmt.Println(f)
	}
	if math.Abs(slope-3) > 1e-6 || math.Abs(offset+1) > 1e-6 || len(fusions) == 0 {
		log.Fatal("want y = 3x - 1, and fusions")
	}
}
