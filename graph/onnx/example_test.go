package onnx_test

import (
	"fmt"
	"log"

	"fusec"
	"fusec/graph"
	"fusec/graph/onnx"
)

// A model whose batch size is open, run with several: each size is compiled once.
func Example_specialise() {
	p, err := fusec.Specialise(func(in map[string]*graph.Tensor) (fusec.Specialisation, error) {
		m, err := onnx.Load("testdata/mlp.onnx", onnx.Options{Inputs: in})
		if err != nil {
			return fusec.Specialisation{}, err
		}
		return fusec.Specialisation{Graph: m.Graph, Weights: m.Weights, Fixed: m.Fixed}, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	defer p.Close()
	for _, batch := range []int{1, 4, 1} {
		y, err := p.Run(map[string]*graph.Tensor{"x": graph.Filled(graph.TypeOf(graph.F32, batch, 6), 0.5)})
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(y["class/p"].Type, "with", p.Compiled(), "compiled")
	}
	// Output:
	// f32[1,3] with 1 compiled
	// f32[4,3] with 2 compiled
	// f32[1,3] with 2 compiled
}
