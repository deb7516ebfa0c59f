// Command models makes the graphs of testdata/models: it builds each with Gorgonia, trains the one that classifies
// digits, and saves them with fusec.Save.
//
//	go run ./cmd/models -o testdata/models
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"fusec"
	"fusec/cmd/models/zoo"
	"fusec/examples"
	"fusec/graph"
	"fusec/graph/npy"
)

func main() {
	out := flag.String("o", "testdata/models", "the folder to write to")
	steps := flag.Int("steps", 0, "how many steps to train on digits; 0 for the example's")
	flag.Parse()
	if err := run(*out, *steps, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "models:", err)
		os.Exit(1)
	}
}

func run(out string, steps int, log io.Writer) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	_, test, err := examples.LoadDigits()
	if err != nil {
		return err
	}
	mlp, share, err := digitsMLP(steps, log)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "digits-mlp: %.2f %% of %d test images are classified right\n", 100*share, test.Count())
	models := []struct {
		name  string
		model *zoo.Model
	}{
		{"digits-mlp", &zoo.Model{Graph: mlp.Graph, Input: mlp.Inputs[0]}},
		{"transformer-block", zoo.TransformerBlock(4, 128, 256, 8, 1024)},
		{"moe-block", zoo.MoEBlock(64, 64, 128, 4)},
		{"moe-top2", zoo.MoETop2(64, 32, 64, 8)},
		{"lenet", zoo.LeNet(8)},
	}
	for _, m := range models {
		path := filepath.Join(out, m.name+".graph")
		if err := fusec.Save(path, m.model.Graph, m.model.Input); err != nil {
			return err
		}
		fmt.Fprintln(log, "wrote", path)
	}
	return saveImages(filepath.Join(out, "digits-mlp.pixels.npy"), test)
}

// saveImages writes the test images as the input of digits-mlp.
func saveImages(path string, d examples.Digits) error {
	t, err := graph.TensorOf(d.Images, d.Count(), examples.DigitPixels)
	if err != nil {
		return err
	}
	return npy.WriteFile(path, t)
}
