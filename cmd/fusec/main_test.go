package main

import (
	"os"
	"testing"

	"fusec/cmd/internal/clitest"
)

func init() { clitest.TestedCommands = commands() }

// asCommand has the test's program be fusec, for tests that start it as a process.
const asCommand = "FUSEC_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}
