package main

import (
	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/demo"
	"fusec/cmd/internal/hardware"
	"fusec/cmd/internal/inspect"
	"fusec/cmd/internal/launching"
	"fusec/cmd/internal/quantising"
	"fusec/cmd/internal/runner"
	"fusec/cmd/internal/training"
)

// commands lists the subcommands in the order of the help.
func commands() []*cli.Command {
	return []*cli.Command{inspect.Dump, inspect.Explain, inspect.Plan, inspect.Report, inspect.Lock, inspect.Check, runner.Command,
		compileCommand, convertCommand, quantising.Command, demo.Command, training.Command, training.Generate, launching.Command,
		bench.Command,
		bench.Tune, hardware.Command, doctorCommand, versionCommand, cli.CompletionCommand, cli.ManCommand, cli.HelpCommand}
}
