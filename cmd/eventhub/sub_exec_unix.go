//go:build unix

package main

import (
	"os/exec"
	"syscall"
)

// setGroup gives a command a process group of its own.
func setGroup(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// endGroup asks the processes of a command to end.
func endGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGTERM) } // they may have ended
