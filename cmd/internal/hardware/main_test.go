package hardware

import (
	"fusec/cmd/internal/bench"
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
)

func init() { clitest.TestedCommands = []*cli.Command{Command, bench.Command} }
