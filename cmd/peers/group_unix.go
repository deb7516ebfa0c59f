//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// inGroup gives a command a process group of its own, so that what it started ends with it.
func inGroup(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
}
