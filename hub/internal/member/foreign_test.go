package member

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"eventhub/internal/bubble"
	"eventhub/store/journal"
	"eventhub/store/journal/memory"
)

// strangers is a journal with a document of somebody else among its members.
type strangers struct{ *memory.Handle }

func (strangers) Announce(context.Context, journal.Member) ([]journal.Member, error) {
	return nil, fmt.Errorf("read the members: %w", journal.ErrForeign)
}

// TestForeignMember: what keeps a member from trimming the journal, and does not pass by itself, is told once a minute.
func TestForeignMember(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		j := strangers{memory.New(memory.Options{}).Open()}
		m := New(Options{Journal: j, Replica: new(copied), ID: "a", Lease: lease, Layout: 1, Founds: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			leader, err := m.Lead(ctx)
			if err != nil {
				t.Error(err)
				return
			}
			_ = m.Hold(ctx, leader, func(context.Context) (journal.Position, error) { return leader.Position(), nil })
			_ = leader.Close()
		}()
		time.Sleep(150 * time.Second)
		stop()
		<-ended
		if n := strings.Count(log.String(), "cannot say how this member is doing, and trim the journal"); n < 2 || n > 4 {
			t.Errorf("it was told %d times: %s", n, log.String())
		}
		if err := j.Close(); err != nil {
			t.Error(err)
		}
	})
}
