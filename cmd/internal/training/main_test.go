package training

import (
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/cmd/internal/inspect"
	"fusec/cmd/internal/runner"
)

func init() { clitest.TestedCommands = []*cli.Command{Command, Generate, runner.Command, inspect.Dump} }
