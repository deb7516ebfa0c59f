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
	"fusec/graph"
	"fusec/graph/npy"
)

func main() {
	out := flag.String("o", "testdata/models", "the folder to write to")
	data := flag.String("digits", "testdata/digits/digits.csv.gz", "the images of digits")
	epochs := flag.Int("epochs", 60, "how often to train on all digits")
	flag.Parse()
	if err := run(*out, *data, *epochs, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "models:", err)
		os.Exit(1)
	}
}

func run(out, data string, epochs int, log io.Writer) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	d, err := readDigits(data)
	if err != nil {
		return err
	}
	if d.count() <= trainCount {
		return fmt.Errorf("%s holds %d images; %d are needed to train", data, d.count(), trainCount)
	}
	mlp, share, err := digitsMLP(d, epochs, log)
	if err != nil {
		return err
	}
	fmt.Fprintf(log, "digits-mlp: %.2f %% of %d test images are classified right\n", 100*share, d.count()-trainCount)
	models := []struct {
		name  string
		model *zoo.Model
	}{
		{"digits-mlp", mlp},
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
	return saveImages(filepath.Join(out, "digits-mlp.pixels.npy"), d.part(trainCount, d.count()))
}

// saveImages writes the test images as the input of digits-mlp.
func saveImages(path string, d digits) error {
	t, err := graph.TensorOf(d.images, d.count(), pixels)
	if err != nil {
		return err
	}
	return npy.WriteFile(path, t)
}
