package fusec_test

import (
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	"gorgonia.org/gorgonia"
	"gorgonia.org/tensor"

	"fusec"
	"fusec/graph"
	"fusec/graph/checkpoint"
	"fusec/graph/loader"
	"fusec/graph/npy"
	"fusec/graph/optim"
)

// A training run from the files of its data to a checkpoint, and on from there: a line is fitted to points. The run that
// is cut short after 25 steps and goes on from its last checkpoint, of step 20, ends with the bits of the one that never
// stopped.
func Example_training() {
	folder, err := os.MkdirTemp("", "training")
	check(err)
	defer os.RemoveAll(folder)
	x, y := graph.NewTensor(graph.TypeOf(graph.F64, 64, 1)), graph.NewTensor(graph.TypeOf(graph.F64, 64, 1))
	for i := range 64 {
		v := float64(i)/32 - 1
		x.SetFloat(i, v)
		y.SetFloat(i, 3*v-1)
	}
	check(npy.WriteFile(filepath.Join(folder, "x.npy"), x))
	check(npy.WriteFile(filepath.Join(folder, "y.npy"), y))

	// train goes on from the last checkpoint of a folder, if it has one, until so many steps are done.
	train := func(checkpoints string, steps int64) string {
		g := gorgonia.NewGraph()
		const batch = 16
		x := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(batch, 1), gorgonia.WithName("x"))
		y := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(batch, 1), gorgonia.WithName("y"))
		w := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(1, 1), gorgonia.WithName("w"), gorgonia.WithInit(gorgonia.Zeroes()))
		b := gorgonia.NewMatrix(g, tensor.Float64, gorgonia.WithShape(1, 1), gorgonia.WithName("b"), gorgonia.WithInit(gorgonia.Zeroes()))
		line := gorgonia.Must(gorgonia.BroadcastAdd(gorgonia.Must(gorgonia.Mul(x, w)), b, nil, []byte{0}))
		cost := gorgonia.Must(gorgonia.Mean(gorgonia.Must(gorgonia.Square(gorgonia.Must(gorgonia.Sub(line, y))))))
		_, err := gorgonia.Grad(cost, w, b)
		check(err)

		vm := fusec.NewMachine(g, fusec.WithOptimizer(&optim.Optimizer{Rule: optim.Momentum{Mu: 0.9}, Rate: optim.Constant(0.05)}))
		defer vm.Close()
		data, err := loader.Open(loader.Options{Batch: batch, Shuffle: true, Seed: 7, DropLast: true},
			loader.Source{Name: "x", Path: filepath.Join(folder, "x.npy")},
			loader.Source{Name: "y", Path: filepath.Join(folder, "y.npy")})
		check(err)
		defer data.Close()

		dir := checkpoint.Dir{Path: filepath.Join(folder, checkpoints), Keep: 2, Every: 10}
		step := int64(0)
		if last, err := dir.Latest(); err == nil {
			check(vm.SetWeights(last.Params))
			check(vm.SetState(last.State.State))
			check(data.SetPosition(last.Position))
			step = last.Step
			fmt.Println("on from step", step)
		} else if !errors.Is(err, checkpoint.ErrNone) {
			log.Fatal(err)
		}
		for step < steps {
			next, err := data.Next()
			check(err)
			check(vm.LetBatch(next.Tensors))
			check(vm.RunAll())
			vm.Reset()
			if step++; dir.Due(step) {
				s := &checkpoint.State{Step: step, Position: data.Position()}
				s.Params, err = vm.Weights()
				check(err)
				s.State, err = vm.State()
				check(err)
				_, err = dir.Save(s)
				check(err)
			}
		}
		fmt.Printf("after %d steps: %.3f·x %+.3f\n", step, w.Value().Data(), b.Value().Data())
		return fmt.Sprint(w.Value(), b.Value())
	}
	whole := train("whole", 200)
	train("cut", 25)
	fmt.Println("the same bits:", train("cut", 200) == whole)
	// Output:
	// after 200 steps: [3.000]·x [-1.000]
	// after 25 steps: [3.309]·x [-0.985]
	// on from step 20
	// after 200 steps: [3.000]·x [-1.000]
	// the same bits: true
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
