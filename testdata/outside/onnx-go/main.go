// A model that github.com/owulveryck/onnx-go reads as a Gorgonia graph runs on fusec's machine: only the line that makes the
// machine differs.
package main

import (
	"fmt"
	"log"
	"os"
	"slices"

	"fusec"

	"github.com/owulveryck/onnx-go"
	"github.com/owulveryck/onnx-go/backend/x/gorgonnx"
	"gorgonia.org/tensor"
)

func main() {
	data, err := os.ReadFile("mlp.onnx")
	check(err)
	backend := gorgonnx.NewGraph()
	model := onnx.NewModel(backend)
	check(model.UnmarshalBinary(data))
	x := tensor.New(tensor.WithShape(2, 6), tensor.WithBacking([]float32{1, 2, 3, 4, 5, 6, -1, 0, 1, 0, -1, 2}))
	check(model.SetInput(0, x))
	check(backend.Run()) // on Gorgonia's TapeMachine
	want, err := model.GetOutputTensors()
	check(err)

	g, err := backend.GetExprGraph()
	check(err)
	vm := fusec.NewMachine(g)
	defer vm.Close()
	check(vm.RunAll())
	y := g.Roots()[0].Value().Data().([]float32)
	if !slices.Equal(y, want[0].Data().([]float32)) { // sums of few eighths are exact
		log.Fatalf("%v, want %v", y, want[0].Data())
	}
	fmt.Println(y, "in", len(vm.Fusions()), "launches")
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
