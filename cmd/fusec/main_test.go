package main

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"fusec/cmd/internal/clitest"
)

func init() { clitest.TestedCommands = commands() }

// asCommand has the test's program be fusec, for tests that start it as a process.
const asCommand = "FUSEC_TEST_AS_COMMAND"

// commandFolder is a folder with the command fusec.
func commandFolder(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	program := fmt.Sprintf("#!/bin/sh\n%s=1 exec %s \"$@\"\n", asCommand, self)
	if err := os.WriteFile(filepath.Join(dir, "fusec"), []byte(program), 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}
