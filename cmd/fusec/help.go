package main

import (
	"fmt"
	"io"
)

func helpCommand() *command {
	return &command{
		name:    "help",
		args:    "[command]",
		summary: "explain fusec or one of its commands",
		doc:     "Without a command it lists them all.",
		examples: []example{
			{"fusec help bench", "all about fusec bench"},
		},
		setup: func(*flagSet) action {
			return func(e *env, args []string) error {
				switch len(args) {
				case 0:
					return helpAll(e.out)
				case 1:
					c, err := find(args[0])
					if err != nil {
						return err
					}
					return c.help(e.out)
				}
				return usage("help takes one command, not %d", len(args))
			}
		},
	}
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
func helpAll(w io.Writer) error {
	fmt.Fprint(w, helpHead)
	for _, c := range commands() {
		fmt.Fprintf(w, "  %-8s  %s\n", c.name, c.summary)
	}
	fmt.Fprint(w, helpTail)
	return nil
}
