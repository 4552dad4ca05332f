//go:build !linux

package main

import "github.com/rogpeppe/go-internal/testscript"

// cmdTerminal is of Linux.
func cmdTerminal(ts *testscript.TestScript, _ bool, _ []string) {
	ts.Fatalf("no terminal is made here")
}
