package ws

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/wire"
)

// TestCloseConnection: a connection that is closed on request has left its groups when the
// call returns, also if its peer says nothing any more, and the attempts do not count.
func TestCloseConnection(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		a, b := e.login(), e.login()
		e.publish("t", 1, 2)
		const subscribe = `{"op":"SUBSCRIBE","topic":"t","group":"g","opts":{"from":"earliest"},"corr":"1"}`
		a.ok(subscribe)
		a.wantAttempts("e1#1", "e2#1")
		b.ok(subscribe)
		synctest.Wait()
		open, err := e.gw.Connections(t.Context(), "", 10)
		if err != nil || len(open) != 2 {
			t.Fatalf("%+v, %v", open, err)
		}
		first := open[0]
		if first.Name != "tester" || first.Subscriptions != 1 || first.InFlight != 2 || first.Delivered != 2 || first.QueuedBytes != 0 || open[1].InFlight != 0 {
			t.Errorf("the connections are %+v", open)
		}
		if rest, err := e.gw.Connections(t.Context(), first.ID, 10); err != nil || len(rest) != 1 || rest[0].ID != open[1].ID {
			t.Errorf("after the first there are %+v, %v", rest, err)
		}
		if rest, err := e.gw.Connections(t.Context(), "0-99", 1); err != nil || len(rest) != 1 || rest[0].ID != first.ID {
			t.Errorf("after one of another run there are %+v, %v", rest, err)
		}
		begun := time.Now()
		if err := e.gw.CloseConnection(t.Context(), first.ID); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("it took %s: the peer was waited for", took)
		}
		b.wantAttempts("e1#1", "e2#1")
		a.expectClose(wire.CloseGoingAway)
		synctest.Wait()
		for id, want := range map[string]eventhub.Code{first.ID: eventhub.CodeUnknownID, "0-1": eventhub.CodeUnknownID, "1": eventhub.CodeBadRequest, "": eventhub.CodeBadRequest, "x-y": eventhub.CodeBadRequest, e.gw.run + "-02": eventhub.CodeBadRequest, e.gw.run + "-0": eventhub.CodeBadRequest, "!-1": eventhub.CodeBadRequest, "0-00": eventhub.CodeBadRequest} {
			if err := e.gw.CloseConnection(t.Context(), id); eventhub.ErrorCode(err) != want {
				t.Errorf("close %q: %v", id, err)
			}
		}
	})
}

// TestCloseConnectionGivesUp: who asks may stop waiting.
func TestCloseConnectionGivesUp(t *testing.T) {
	withEngine(t, func(t *testing.T, e *engine) {
		e.login()
		open, err := e.gw.Connections(t.Context(), "", 1)
		if err != nil || len(open) != 1 {
			t.Fatalf("%+v, %v", open, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := e.gw.CloseConnection(ctx, open[0].ID); err != nil && eventhub.ErrorCode(err) != eventhub.CodeShuttingDown {
			t.Error(err)
		}
	})
}
