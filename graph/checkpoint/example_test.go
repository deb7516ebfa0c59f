package checkpoint_test

import (
	"errors"
	"fmt"
	"log"
	"os"

	"fusec/graph"
	"fusec/graph/checkpoint"
)

// A run that is started again resumes from its last checkpoint.
func Example() {
	folder, err := os.MkdirTemp("", "run")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	dir := checkpoint.Dir{Path: folder, Keep: 3, Every: 100}

	train := func(steps int64) {
		weights := map[string]*graph.Tensor{"w": graph.NewTensor(graph.TypeOf(graph.F32, 2))}
		begin := int64(0)
		switch last, err := dir.Latest(); {
		case err == nil:
			for _, note := range last.Skipped {
				fmt.Println(note)
			}
			if err := last.Restore(weights, nil); err != nil {
				log.Fatal(err)
			}
			begin = last.Step
		case !errors.Is(err, checkpoint.ErrNone):
			log.Fatal(err)
		}
		fmt.Printf("from step %d, w[0] = %v\n", begin, weights["w"].Float(0))
		for step := begin + 1; step <= steps; step++ {
			weights["w"].SetFloat(0, float64(step)) // where a model would learn
			if dir.Due(step) {
				if _, err := dir.Save(&checkpoint.State{Params: weights, Step: step}); err != nil {
					log.Fatal(err)
				}
			}
		}
	}
	train(250)
	train(300)
	// Output:
	// from step 0, w[0] = 0
	// from step 200, w[0] = 200
}
