package main

import (
	"fusec/cmd/internal/clitest"
)

func init() { clitest.TestedCommands = commands() }
