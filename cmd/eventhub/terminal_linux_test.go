package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"
)

// cmdTerminal runs a program that ends well, and whose variable TERMINAL is the path of a new terminal. What was
// written there, all of it, is stdout then: terminal PROGRAM ARG... testscript's own ttyout has what was read until
// the program ended, which on a busy machine may be nothing.
func cmdTerminal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: terminal program [arg...]")
	}
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	ts.Check(err)
	defer outside.Close()
	fd := int(outside.Fd())
	ts.Check(unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	ts.Check(err)
	name := fmt.Sprintf("/dev/pts/%d", n)
	inside, err := os.OpenFile(name, os.O_RDWR|unix.O_NOCTTY, 0)
	ts.Check(err)
	var said strings.Builder
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&said, outside) // fails when nobody has the other end any more, and all was read
	}()
	ts.Setenv("TERMINAL", name)
	err = ts.Exec(args[0], args[1:]...)
	inside.Close()
	<-read
	_, _ = io.WriteString(ts.Stdout(), said.String()) // a strings.Builder
	ts.Check(err)
}
