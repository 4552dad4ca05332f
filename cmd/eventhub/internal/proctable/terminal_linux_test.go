package proctable

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"eventhub/internal/demo/process"
)

// pseudoTerminal returns both ends of a new terminal of 60 columns and 5 rows.
func pseudoTerminal(t *testing.T) (outside, inside *os.File) {
	t.Helper()
	outside, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { outside.Close() })
	fd := int(outside.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 5, Col: 60}); err != nil {
		t.Fatal(err)
	}
	inside, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return outside, inside
}

func TestRunOnATerminal(t *testing.T) {
	for _, tt := range []struct {
		name, term, noColor string
		live, color         bool
	}{
		{"usual", "xterm", "", true, true},
		{"no color", "xterm", "1", true, false},
		{"dumb", "dumb", "", false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("TERM", tt.term)
			t.Setenv("NO_COLOR", tt.noColor)
			outside, inside := pseudoTerminal(t)
			g := &group{joined: make(chan struct{})}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				ended <- Run(ctx, g, inside, Options{Hubs: []string{strings.Repeat("long", 30)}})
				inside.Close()
			}()
			<-g.joined
			g.append("h:p:77", payload(77, process.Stale))
			// Until the other end is closed, and read to the end of what it held.
			var seen strings.Builder
			buf := make([]byte, 4096)
			for {
				n, err := outside.Read(buf)
				seen.Write(buf[:n])
				if strings.Contains(seen.String(), "77") {
					cancel()
				}
				if err != nil {
					break
				}
			}
			if err := <-ended; err != nil {
				t.Fatalf("Run: %v", err)
			}
			got := seen.String()
			if live := strings.HasPrefix(got, enterScreen) && strings.HasSuffix(got, leaveScreen); live != tt.live {
				t.Errorf("live %v, want %v: %q", live, tt.live, got)
			}
			if color := strings.Contains(got, dim); color != tt.color {
				t.Errorf("color %v, want %v: %q", color, tt.color, got)
			}
			if tt.live && !strings.Contains(got, "0.0/s  0 alive  0 stale  longlonglonglo…") {
				t.Errorf("not cut to 60 columns: %q", got)
			}
		})
	}
}
