package runner

import (
	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/cmd/internal/inspect"
)

func init() {
	clitest.TestedCommands = []*cli.Command{Command, inspect.Dump, inspect.Explain, bench.Command}
}
