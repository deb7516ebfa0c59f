package main

import (
	"fmt"
	"maps"
	"path/filepath"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
	"fusec/examples"
	"fusec/examples/llama"
	"fusec/graph"
	"fusec/graph/onnx"
)

var convertCommand = &cli.Command{
	Name:    "convert",
	Args:    "[flags] model.graph other.graph",
	Summary: "write a model in another format: from .onnx to .graph, or back",
	Doc: `
Reads a model with its weights and writes it in the format that the second file's extension names: .onnx, or .graph with its
weights beside it in .safetensors. Sizes that an ONNX model leaves open are bound by --dim, or by values of its inputs. An
ONNX model is written with the forward pass alone, in opset 21; its weights are inside, or beside it in a .data file if they
are larger than 1 GiB.

A model that fusec train language has saved is written into a folder, one that is there or a name that ends in /, in the form of
Hugging Face's transformers. A folder that holds another model is refused. A folder in that form, or a GGUF file, is written as
the .graph of its decoding step, for fusec explain and others.`,
	Examples: []cli.Example{
		{"fusec convert model.onnx model.graph --dim batch=8", "for eight examples at a time"},
		{"fusec convert model.graph model.onnx", "for other programs"},
		{"fusec convert novel.graph novel/", "a language model, for transformers"},
		{"fusec convert model.gguf step.graph", "what runs for each token, to be explained or drawn"},
	},
	Setup: func(f *cli.FlagSet) cli.Action {
		c := &converter{}
		c.shapes.In = modelio.InputFiles{}
		c.shapes.Declare(f, "")
		c.shapes.In.Declare(f, "")
		return c.run
	},
}

// converter is fusec convert with its flags.
type converter struct{ shapes modelio.Shapes }

func (c *converter) run(e *cli.Env, args []string) error {
	if len(args) != 2 {
		return cli.Usage("which models? Give the file to read and the file to write")
	}
	from, to := args[0], args[1]
	if examples.IsCheckpoint(to) {
		return saveCheckpoint(e, from, to)
	}
	save := graph.Save
	switch ext := filepath.Ext(to); {
	case strings.EqualFold(ext, onnx.Extension):
		save = onnx.Save
	case ext != ".graph":
		return cli.Usage("%s: want a file named like model.graph or model%s", to, onnx.Extension)
	}
	if examples.IsCheckpoint(from) || filepath.Ext(from) == ".gguf" {
		return saveStep(e, from, to, save)
	}
	g, w, err := modelio.LoadModel(e, from, &c.shapes)
	if err != nil {
		return err
	}
	if err := modelio.CheckReplaced(from, to, w); err != nil {
		return err
	}
	g.Name = modelio.ModelName(to)
	if err := save(to, g, w.Tensors); err != nil {
		return err
	}
	return printWritten(e, to, g)
}

func printWritten(e *cli.Env, path string, g *graph.Graph) error {
	return e.Print(fmt.Sprintf("%s: %s\n", path, cli.Plural(len(g.Nodes), "node", "nodes")))
}

// saveCheckpoint writes what fusec train language has saved in the form of transformers.
func saveCheckpoint(e *cli.Env, from, dir string) error {
	g, w, err := graph.Load(from)
	if err != nil {
		return err
	}
	if file := filepath.Join(dir, "model.safetensors"); modelio.SameFile(graph.WeightsPath(from), file) {
		return fmt.Errorf("%s has the weights of %s, which would be replaced: name another folder", file, from)
	}
	size, window, err := examples.SizeOf(g)
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	if err := examples.SaveCheckpoint(dir, w.Tensors, size, window); err != nil {
		return err
	}
	return e.Print(fmt.Sprintf("%s: %s\n", dir, cli.Plural(size.Layers, "layer", "layers")))
}

// stepCapacity is how many tokens the caches of a decoding step hold that is written as a graph, if the model takes more.
const stepCapacity = 512

// saveStep writes the decoding step of a language model.
func saveStep(e *cli.Env, from, to string, save func(string, *graph.Graph, map[string]*graph.Tensor) error) error {
	c, err := llama.Open(from)
	if err != nil {
		return err
	}
	defer c.Close()
	weights := graph.WeightsPath(to)
	if modelio.SameFile(filepath.Dir(weights), from) && exists(weights) && !exists(to) {
		return fmt.Errorf("%s has weights of %s, which would be replaced: name another file", weights, from)
	}
	g, err := c.Graph(1, min(c.Config.Context, stepCapacity))
	if err != nil {
		return fmt.Errorf("%s: %w", from, err)
	}
	g.Name = modelio.ModelName(to)
	values := maps.Clone(c.Weights)
	for _, n := range g.Sources() {
		switch n.Op.(type) {
		case graph.State: // caches begin as zeros
			values[n.Name] = graph.NewTensor(n.Type)
		case graph.Param:
			if values[n.Name], err = c.Value(n.Name); err != nil {
				return fmt.Errorf("%s: %w", from, err)
			}
		}
	}
	if err := save(to, g, values); err != nil {
		return err
	}
	return printWritten(e, to, g)
}

func exists(path string) bool { return modelio.SameFile(path, path) }
