package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/cobra"
)

// TestExportToAPipeThatNobodyReads: to wait for the reader of a named pipe ends with an interrupt.
func TestExportToAPipeThatNobodyReads(t *testing.T) {
	name := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, interrupt := context.WithCancel(context.Background())
	interrupt()
	cmd := new(cobra.Command)
	cmd.SetContext(ctx)
	to := &destination{name: name}
	if err := to.open(cmd); err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("opened with %v", err)
	}
	// What waits goes on now, and ends.
	reader, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := reader.Close(); err != nil {
		t.Error(err)
	}
}
