package main

import (
	"fmt"
	"path/filepath"
	"strings"

	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/modelio"
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
are larger than 1 GiB.`,
	Examples: []cli.Example{
		{"fusec convert model.onnx model.graph --dim batch=8", "for eight examples at a time"},
		{"fusec convert model.graph model.onnx", "for other programs"},
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
	save := graph.Save
	switch ext := filepath.Ext(to); {
	case strings.EqualFold(ext, onnx.Extension):
		save = onnx.Save
	case ext != ".graph":
		return cli.Usage("%s: want a file named like model.graph or model%s", to, onnx.Extension)
	}
	g, w, err := modelio.LoadModel(e, from, &c.shapes)
	if err != nil {
		return err
	}
	g.Name = modelio.ModelName(to)
	if err := save(to, g, w.Tensors); err != nil {
		return err
	}
	_, err = fmt.Fprintf(e.Out, "%s: %s\n", to, cli.Plural(len(g.Nodes), "node", "nodes"))
	return err
}
