package hub

import (
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"eventhub/internal/bubble"
)

// TestAnswersHaveATime: a peer may take an answer as slowly as a step in answerWait,
// and one that takes less is cut off, unless the one who writes has set a time of its
// own.
func TestAnswersHaveATime(t *testing.T) {
	const size = 3*stepBytes + 100
	for name, tt := range map[string]struct {
		read  int           // bytes that the peer takes at once
		every time.Duration // and how often
		own   time.Duration // the writer's own time
		want  time.Duration // when the write fails, 0 where it does not
		new   bool          // the peer has shown no right
	}{
		"steady":           {stepBytes, answerWait - time.Second, 0, 0, false},
		"nothing":          {0, time.Hour, 0, answerWait, false},
		"too slow":         {100, time.Second, 0, answerWait, false},
		"one step":         {stepBytes, answerWait + time.Second, 0, answerWait, false},
		"a time of my own": {stepBytes, answerWait + time.Second, 5 * time.Minute, 0, false},
		"a shorter one":    {stepBytes, 10 * time.Second, 15 * time.Second, 15 * time.Second, false},
		"a stranger":       {0, time.Hour, 0, strangerWait, true},
	} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				ours, theirs := net.Pipe()
				c := &conn{Conn: ours}
				c.known.Store(!tt.new)
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					for left := make([]byte, size); len(left) > 0; {
						time.Sleep(tt.every)
						n, err := theirs.Read(left[:min(max(tt.read, 1), len(left))])
						if err != nil {
							return
						}
						left = left[n:]
					}
				}()
				start := time.Now()
				if tt.own > 0 {
					_ = c.SetWriteDeadline(start.Add(tt.own))
				}
				n, err := c.Write(make([]byte, size))
				switch waited := time.Since(start); {
				case tt.want == 0 && (err != nil || n != size):
					t.Errorf("%d of %d bytes were written, after %s: %v", n, size, waited, err)
				case tt.want != 0 && (!errors.Is(err, os.ErrDeadlineExceeded) || waited != tt.want):
					t.Errorf("the write ended after %s with %v; want %s", waited, err, tt.want)
				}
				ours.Close()
				theirs.Close()
				<-ended
			})
		})
	}
}
