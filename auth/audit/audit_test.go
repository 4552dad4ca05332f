package audit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a Log in a bubble, with what it has written.
type rig struct {
	t    *testing.T
	log  *Log
	text bytes.Buffer // under mu

	mu     sync.Mutex
	writes [][]admin.AuditMark
	fail   error
	hold   chan struct{} // where not nil, a write waits until it is closed, or it is given up
}

func inBubble(t *testing.T, test func(r *rig)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		r := &rig{t: t}
		r.log = New(slog.New(slog.NewTextHandler(r, nil)))
		test(r)
		r.log.Close(t.Context())
	})
}

// Write is what the log writes to.
func (r *rig) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.text.Write(line)
}

func (r *rig) write(ctx context.Context, marks []admin.AuditMark) error {
	r.mu.Lock()
	hold := r.hold
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.fail != nil {
		return r.fail
	}
	r.writes = append(r.writes, marks)
	return nil
}

// took returns what was written since the last call: a text for each write.
func (r *rig) took() (writes []string) {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, marks := range r.writes {
		var all []string
		for _, m := range marks {
			all = append(all, strings.Join(strings.Fields(fmt.Sprint(m.Action, " ", m.By, " ", m.Transport, " ", m.Remote, " ", m.Right, " ", m.Topic, " ", m.Group, " ", m.Outcome, " ", m.Count)), " "))
		}
		writes = append(writes, strings.Join(all, "; "))
	}
	r.writes = nil
	return writes
}

func (r *rig) want(what string, writes ...string) {
	r.t.Helper()
	if got := r.took(); fmt.Sprintf("%q", got) != fmt.Sprintf("%q", writes) {
		r.t.Errorf("%s: written are\n%q\nwant\n%q", what, got, writes)
	}
}

// lines returns how many lines of the log have a text.
func (r *rig) lines(text string) int {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.text.String(), text)
}

var badToken = eventhub.Errorf(eventhub.CodeBadToken, "the token s3cret is not valid here")

// TestOneWriteASecond: the first entry after a quiet second is written at once, all that comes in
// the second after it together; equal ones have a count. Refused tokens of one address, and denials
// of one principal there, are equal whatever they are about; acts are not.
func TestOneWriteASecond(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.log.Open(r.write)
		ann := r.log.Peer("ann", "ws", "192.0.2.1:5000")
		ann.Accepted()
		r.want("the first", "auth ann ws 192.0.2.1 ok 1")
		for i := range 1000 {
			r.log.Refused("http", fmt.Sprintf("192.0.2.2:%d", i), badToken)
			ann.Denied("publish", fmt.Sprint("secret.", i), "")
		}
		r.log.Refused("http", "192.0.2.3:1", badToken)
		r.log.Refused("http", "192.0.2.3:1", eventhub.Errorf(eventhub.CodeNoToken, "none"))
		r.log.Peer("ben", "ws", "192.0.2.1:7").Denied("subscribe", "secret.**", "g")
		for _, topic := range []string{"a", "b", "a"} {
			ann.did("trim", topic, "", nil)
		}
		r.want("within the second")
		time.Sleep(Every)
		r.want("after it", strings.Join([]string{
			"auth http 192.0.2.2 bad_token 1000", "denied ann ws 192.0.2.1 publish secret.0 forbidden 1000",
			"auth http 192.0.2.3 bad_token 1", "auth http 192.0.2.3 no_token 1", "denied ben ws 192.0.2.1 subscribe secret.** g forbidden 1",
			"trim ann ws 192.0.2.1 a ok 2", "trim ann ws 192.0.2.1 b ok 1",
		}, "; "))
		if n := r.lines("msg=audit"); n != 8 {
			t.Errorf("%d lines; want 8", n)
		}
		if n := r.lines("level=INFO msg=audit action=denied by=ann transport=ws remote=192.0.2.1 right=publish topic=secret.0 outcome=forbidden count=1000\n"); n != 1 {
			t.Errorf("the log is %s", r.text.String())
		}
		if r.lines("s3cret") != 0 {
			t.Error("the log has the text of an error")
		}
		time.Sleep(time.Hour)
		ann.Accepted()
		r.want("after a quiet hour", "auth ann ws 192.0.2.1 ok 1")
	})
}

// TestFlood: whoever sends refused tokens at any rate, causes one write a
// second with one entry.
func TestFlood(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.log.Open(r.write)
		const seconds, each = 100, 200
		for range seconds {
			for i := range each {
				r.log.Refused("ws", fmt.Sprintf("[2001:db8::1]:%d", i), badToken)
			}
			time.Sleep(Every)
		}
		time.Sleep(2 * Every)
		writes := r.took()
		if len(writes) > seconds+1 {
			t.Errorf("%d writes in %d seconds", len(writes), seconds)
		}
		total := 0
		for _, w := range writes {
			var n int
			if _, err := fmt.Sscanf(w, "auth ws 2001:db8::1 bad_token %d", &n); err != nil {
				t.Fatalf("%q: %v", w, err)
			}
			total += n
		}
		if total != seconds*each {
			t.Errorf("%d are counted; want %d", total, seconds*each)
		}
	})
}

// TestManyAddresses: entries are bounded, and so is the memory; beyond that the rest is counted
// together. What is refused takes no place from what is accepted or done.
func TestManyAddresses(t *testing.T) {
	inBubble(t, func(r *rig) {
		const addresses = 20 * maxEntries
		for i := range addresses {
			remote := fmt.Sprintf("[2001:db8::%x]:443", i)
			r.log.Refused("http", remote, badToken)
			r.log.Peer(fmt.Sprint("p", i), "http", remote).Denied("read", fmt.Sprint("t", i), "")
			r.log.Peer("ann", "http", remote).did("trim", fmt.Sprint("t", i), "", nil)
		}
		r.log.Peer("ann", "ws", "192.0.2.1:1").Accepted()
		if n, most := len(r.log.order), 3*maxEntries+10; n > most {
			t.Errorf("%d entries are kept; want at most %d", n, most)
		}
		r.log.Open(r.write)
		got := r.took()
		if len(got) != 1 {
			t.Fatalf("%d writes; want 1", len(got))
		}
		marks := strings.Split(got[0], "; ")
		for _, want := range []string{"auth ann ws 192.0.2.1 ok 1", "auth others http others bad_token ", "denied others http others forbidden ", "trim others http others ok "} {
			found := false
			for _, m := range marks {
				found = found || strings.HasPrefix(m, want)
			}
			if !found {
				t.Errorf("no entry begins with %q", want)
			}
		}
		total := 0
		for _, m := range marks {
			var n int
			fmt.Sscan(m[strings.LastIndex(m, " ")+1:], &n)
			total += n
		}
		if total != 3*addresses+1 {
			t.Errorf("%d are counted; want %d", total, 3*addresses+1)
		}
	})
}

// TestNothingWaits: while a write hangs everything is recorded, and comes with the next one. A
// write that fails is lost from the topic, which is counted, and in the log.
func TestNothingWaits(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.log.Open(r.write)
		hold := make(chan struct{})
		r.hold = hold
		ann := r.log.Peer("ann", "http", "192.0.2.1:1")
		began := time.Now()
		ann.did("backup", "", "", nil)
		synctest.Wait()
		for range 1000 {
			ann.did("trim", "a", "", nil)
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("recording took %s", took)
		}
		r.mu.Lock()
		r.hold = nil
		r.mu.Unlock()
		close(hold)
		time.Sleep(Every)
		r.want("what hung, and then the rest", "backup ann http 192.0.2.1 ok 1", "trim ann http 192.0.2.1 a ok 1000")

		r.mu.Lock()
		r.fail = errors.New("the disk is full")
		r.mu.Unlock()
		time.Sleep(Every)
		for range 3 {
			ann.did("trim", "b", "", nil)
			time.Sleep(Every)
		}
		if lost, warned := r.log.Measure(), r.lines("level=WARN"); lost != 3 || warned != 1 || r.lines("action=trim by=ann transport=http remote=192.0.2.1 topic=b") != 3 {
			t.Errorf("%d are lost, with %d warnings; want 3 with 1\n%s", lost, warned, r.text.String())
		}
		r.mu.Lock()
		r.fail = nil
		r.mu.Unlock()
		time.Sleep(Every)
		ann.did("trim", "c", "", nil)
		r.want("the next one", "trim ann http 192.0.2.1 c ok 1")
		if n := r.lines("the audit is written again\" topic=system.audit lost=3"); n != 1 {
			t.Errorf("%d lines say so", n)
		}
	})
}

// TestWriteThatHangs is given up after a while, and at once when the hub may not wait for it.
func TestWriteThatHangs(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.log.Open(r.write)
		r.hold = make(chan struct{})
		ann := r.log.Peer("ann", "http", "192.0.2.1:1")
		ann.Accepted()
		time.Sleep(writeWait + Every)
		if lost := r.log.Measure(); lost != 1 {
			t.Errorf("%d are lost; want 1", lost)
		}
		ann.Accepted()
		ctx, cancel := context.WithTimeout(r.t.Context(), 3*time.Second)
		defer cancel()
		began := time.Now()
		r.log.Close(ctx)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("Close took %s", took)
		}
	})
}

// TestCloseWrites what waits, at once, and nothing is recorded after it.
func TestCloseWrites(t *testing.T) {
	inBubble(t, func(r *rig) {
		ann := r.log.Peer("ann", "http", "192.0.2.1")
		ann.Accepted()
		r.want("before Open")
		r.log.Open(r.write)
		r.want("after Open", "auth ann http 192.0.2.1 ok 1")
		ann.did("trim", "a", "", badToken)
		began := time.Now()
		r.log.Close(r.t.Context())
		if took := time.Since(began); took != 0 {
			t.Errorf("Close took %s", took)
		}
		ann.did("trim", "b", "", nil)
		time.Sleep(time.Minute)
		r.want("at the end", "trim ann http 192.0.2.1 a bad_token 1")
	})
}

// TestNamesAreNames: what a peer has written in place of a topic or a group is not repeated.
func TestNamesAreNames(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.log.Open(r.write)
		ann := r.log.Peer("ann", "http", "192.0.2.1:1")
		bad := eventhub.Errorf(eventhub.CodeBadRequest, "no")
		ann.did("group_delete", "a\nb c", "x\ny", bad)
		r.want("an act", "group_delete ann http 192.0.2.1 bad_request 1")
		time.Sleep(Every)
		ann.did("group_delete", "a.**", "g", nil)
		r.want("of a pattern", "group_delete ann http 192.0.2.1 a.** g ok 1")
		time.Sleep(Every)
		ann.Denied("subscribe", "a", "x\ny")
		r.want("a denial", "denied ann http 192.0.2.1 subscribe a forbidden 1")
	})
}
