package nn_test

import (
	"fmt"
	"log"

	"fusec"
	"fusec/graph/nn"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"
)

// A layer of causal attention with rotary positions, after an RMSNorm and beside a residual: what fusec makes of it.
func ExampleMultiHeadAttention() {
	g := gorgonia.NewGraph()
	x := gorgonia.NewTensor(g, tensor.Float32, 3, gorgonia.WithShape(4, 16, 64), gorgonia.WithName("x"),
		gorgonia.WithInit(gorgonia.Gaussian(0, 1)))
	gain := gorgonia.NewVector(g, tensor.Float32, gorgonia.WithShape(64), gorgonia.WithName("gain"),
		gorgonia.WithInit(gorgonia.Ones()))
	layer, err := nn.NewMultiHeadAttention(g, tensor.Float32, "attn", 64, 8, 2)
	if err != nil {
		log.Fatal(err)
	}
	layer.Options.Causal = true
	layer.Rotary = &nn.RoPEOptions{}

	h, err := nn.RMSNorm(x, gain, 1e-6)
	if err != nil {
		log.Fatal(err)
	}
	if h, err = layer.Forward(h); err != nil {
		log.Fatal(err)
	}
	y, err := gorgonia.Add(x, h)
	if err != nil {
		log.Fatal(err)
	}

	vm := fusec.NewMachine(g)
	defer vm.Close()
	if err := vm.RunAll(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(y.Value().Shape())
	for _, f := range vm.Fusions() {
		fmt.Println(f.Kind)
	}
	// Output:
	// (4, 16, 64)
	// norm
	// linear
	// rope
	// linear
	// rope
	// linear
	// attention
	// linear
}

// Dropout from a seed draws anew in each run, and the same on fusec's machine and on Gorgonia's.
func ExampleSeeds() {
	for _, fused := range []bool{false, true} {
		g := gorgonia.NewGraph()
		x := gorgonia.NewVector(g, tensor.Float64, gorgonia.WithShape(8), gorgonia.WithName("x"),
			gorgonia.WithInit(gorgonia.Ones()))
		seeds := nn.NewSeeds(g, 2026)
		y, err := nn.Dropout(x, 0.5, seeds.Next())
		if err != nil {
			log.Fatal(err)
		}
		var vm gorgonia.VM = gorgonia.NewTapeMachine(g)
		if fused {
			vm = fusec.NewMachine(g)
		}
		for range 2 {
			if err := vm.RunAll(); err != nil {
				log.Fatal(err)
			}
			fmt.Println(y.Value())
			vm.Reset()
		}
		vm.Close()
	}
	// Output:
	// [2  2  0  2  2  0  0  2]
	// [0  2  0  2  2  0  2  0]
	// [2  2  0  2  2  0  0  2]
	// [0  2  0  2  2  0  2  0]
}
