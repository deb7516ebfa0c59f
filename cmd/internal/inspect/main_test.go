package inspect

import (
	"fusec/cmd/internal/cli"
	"fusec/cmd/internal/clitest"
)

func init() { clitest.TestedCommands = []*cli.Command{Dump, Explain, Plan, Report, Lock, Check} }
