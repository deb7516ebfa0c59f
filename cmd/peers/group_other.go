//go:build !unix

package main

import "os/exec"

// inGroup does nothing where there are no process groups: the command alone is ended.
func inGroup(*exec.Cmd) {}
