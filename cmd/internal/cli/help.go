package cli

import (
	"fmt"
	"io"
)

// HelpCommand is fusec help.
var HelpCommand = &Command{
	Name:    "help",
	Args:    "[command]",
	Summary: "explain fusec or one of its commands",
	Doc:     "Without a command it lists them all.",
	Examples: []Example{
		{"fusec help bench", "all about fusec bench"},
	},
	Setup: func(*FlagSet) Action {
		return func(e *Env, args []string) error {
			switch len(args) {
			case 0:
				return helpAll(e.Out, e.commands)
			case 1:
				c, err := e.find(args[0])
				if err != nil {
					return err
				}
				return c.help(e.Out)
			}
			return Usage("help takes one command, not %d", len(args))
		}
	},
}

const helpHead = `fusec compiles computation graphs into few fused launches, and shows what it did.

usage:
  fusec <command> [arguments]

commands:
`

const helpTail = `
A model is a file model.graph with its weights beside it in model.safetensors; training code writes both with
fusec.Save. A graph named - is read from standard input.

examples:
  # the compiled graph as a picture
  fusec dump testdata/models/transformer-block.graph -o block.svg
  # what was fused, what it saves, and what stood in the way of more
  fusec explain testdata/models/transformer-block.graph
  # run it on an input of your own
  fusec run testdata/models/digits-mlp.graph --in pixels=testdata/models/digits-mlp.pixels.npy --out results
  # what fusion is worth, on this machine
  fusec demo
  # train a small network, as one compiled program
  fusec train karate --curve karate.svg
  # how much faster than Gorgonia's TapeMachine
  fusec bench testdata/models/digits-mlp.graph

Exit codes: 0 all well, 1 a failure, 2 wrong usage. More on each command: fusec help <command>.
`

// helpAll prints the overview.
func helpAll(w io.Writer, commands []*Command) error {
	fmt.Fprint(w, helpHead)
	for _, c := range commands {
		fmt.Fprintf(w, "  %-8s  %s\n", c.Name, c.Summary)
	}
	fmt.Fprint(w, helpTail)
	return nil
}
