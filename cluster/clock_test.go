package cluster

import (
	"bytes"
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	inprocess "eventhub/hub"
	"eventhub/store/journal"
	"eventhub/store/journal/jetstream"
)

// stamps are the times in the answers of JetStream: of a message, and of the answer itself.
var stamps = regexp.MustCompile(`"(ts|time)":"[^"]+"`)

// ahead has the clock of a server be so far ahead. The texts keep their length, since what is shifted are whole seconds.
func ahead(by time.Duration) func([]byte) []byte {
	return func(said []byte) []byte {
		return stamps.ReplaceAllFunc(said, func(stamp []byte) []byte {
			name, text, _ := bytes.Cut(stamp, []byte(":"))
			at, err := time.Parse(`"`+time.RFC3339Nano+`"`, string(text))
			if err != nil {
				return stamp
			}
			return fmt.Appendf(nil, `%s:"%s"`, name, at.Add(by).UTC().Format(time.RFC3339Nano))
		})
	}
}

// TestServersClock: who was seen when is told by the clock of the NATS servers, however far that of the machine is from it.
func TestServersClock(t *testing.T) {
	t.Parallel()
	s := alone(t, 0)
	for i, by := range []time.Duration{-time.Hour, -40 * time.Second, 40 * time.Second, time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			p := startProxyThatSays(t, fmt.Sprintf("127.0.0.1:%d", s.Port), ahead(by))
			o := jetstream.Options{URL: p.url(), Stream: fmt.Sprintf("CLOCK%d", i), Replicas: 1}
			j := open(t, o)
			defer j.Close()
			before := time.Now()
			now, err := j.Now(context.Background())
			if off := now.Sub(before) - by; err != nil || off < 0 || off > within {
				t.Fatalf("Now is off by %s, %v", off, err)
			}
			if _, err := j.Announce(context.Background(), journal.Member{ID: "b", Synced: 1}); err != nil {
				t.Fatal(err)
			}
			tool, err := inprocess.LookAfter(context.Background(), inprocess.Config{Journal: p.url() + "/" + o.Stream + "?replicas=1"})
			if err != nil {
				t.Fatal(err)
			}
			defer tool.Close()
			members, err := tool.Members(context.Background())
			if err != nil || len(members) != 1 || members[0].Ago < 0 || members[0].Ago > within {
				t.Errorf("Members = %+v, %v", members, err)
			}
			if _, err := tool.Release(context.Background(), "b"); err == nil || !strings.Contains(err.Error(), "stop its hub first") {
				t.Errorf("Release of who has just said something: %v", err)
			}
		})
	}
}
