package bench

import (
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
	"fusec/cmd/internal/runner"
)

func init() { clitest.TestedCommands = []*cli.Command{Command, Tune, runner.Command} }
