package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
)

// oracleMember takes what its worker publishes, as the one member of a group over all
// topics of that worker. Some of it it acks with an event that follows, in one step.
type oracleMember struct {
	n      int
	rng    *rand.Rand
	counts *oracleCounts
	topics map[string]*oracleTopic
	done   string // where the events go that follow

	settled map[oraclePlace]bool // acked with an event, and OKed
	got     map[oraclePlace]bool
}

type oraclePlace struct {
	Topic  string `json:"topic"`
	Offset uint64 `json:"offset"`
}

func newOracleMember(w *oracleWorker, seed uint64) *oracleMember {
	m := &oracleMember{
		n: w.n, rng: rand.New(rand.NewPCG(seed, uint64(1000+w.n))), counts: w.counts, topics: make(map[string]*oracleTopic),
		done: fmt.Sprintf("oracle.done.%d", w.n), settled: make(map[oraclePlace]bool), got: make(map[oraclePlace]bool),
	}
	for _, o := range w.topics {
		m.topics[o.name] = o
	}
	return m
}

func (m *oracleMember) pattern() string { return fmt.Sprintf("oracle.%d.*", m.n) }

const oracleGroup = "oracle"

// follow runs until the connection is lost.
func (m *oracleMember) follow(t *testing.T, hub *hubProcess) {
	gone := make(map[string]uint64)
	for name, o := range m.topics {
		gone[name] = o.deletedUpTo()
	}
	c, err := join(t, hub, m.pattern(), oracleGroup, map[string]any{"from": "earliest", "max_attempts": 1000, "ack_timeout_ms": 600_000, "max_in_flight": 500})
	if err != nil {
		return
	}
	defer c.Close()
	asked := make(map[string]oraclePlace) // by corr
	for serial := 0; ; serial++ {
		f, err := c.next()
		if err != nil {
			return
		}
		place := oraclePlace{f.Event.Topic, f.Event.Offset}
		switch f.Op {
		case "OK":
			m.settled[asked[f.Corr]] = true
			m.counts.oks.Add(1)
			continue
		case "ERR":
			if f.Code != string(eventhub.CodeLeaseLost) && f.Code != string(eventhub.CodeShuttingDown) && f.Code != string(eventhub.CodeOverloaded) {
				t.Errorf("member %d got %+v", m.n, f) // of a topic that was deleted meanwhile the lease is lost
			}
			continue
		}
		if m.settled[place] {
			t.Errorf("offset %d of %s was delivered again; it was acked with an event, and answered", place.Offset, place.Topic)
		}
		if place.Offset <= gone[place.Topic] {
			t.Errorf("offset %d of %s was delivered; the topic was deleted up to %d before", place.Offset, place.Topic, gone[place.Topic])
		}
		m.got[place] = true
		if m.rng.IntN(3) > 0 {
			// By its own topic: the same id may be in several.
			if c.trySay(map[string]any{"op": "ACK", "topic": f.Event.Topic, "group": f.Group, "id": f.Event.ID}) != nil {
				return
			}
			continue
		}
		corr := fmt.Sprint(serial)
		asked[corr] = place
		if c.trySay(map[string]any{"op": "ACK", "topic": f.Topic, "group": f.Group, "lease": f.Ctx.Lease, "id": f.Event.ID, "corr": corr,
			"publish": []map[string]any{{"topic": m.done, "payload": place}}}) != nil {
			return
		}
	}
}

// finish takes what is left, and holds the group against the log.
func (m *oracleMember) finish(t *testing.T, hub *hubProcess) {
	t.Helper()
	ended := make(chan struct{})
	adm := hub.admin(t)
	go func() {
		defer close(ended)
		m.follow(t, hub)
	}()
	for name := range m.topics {
		awaitDue(t, adm, name)
		m.await(t, adm, name)
	}
	hub.stop()
	<-ended
}

// awaitDue waits until all that is due within the run is in the log. No hub says when it
// is so.
func awaitDue(t *testing.T, adm *client.Admin, topic string) {
	t.Helper()
	began := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		next, err := adm.Scheduled(context.Background(), admin.ScheduleQuery{Topic: topic, Limit: 1})
		switch {
		case err == nil && (len(next) == 0 || next[0].DeliverAt > time.Now().Add(longDue/2).UnixMilli()):
			return
		case time.Since(began) > watchdog:
			t.Fatalf("what is due in %s does not come: %+v, %v", topic, next, err)
		}
		<-time.After(wait)
	}
}

// await waits until the group has done all of a topic. No hub says when it is so.
func (m *oracleMember) await(t *testing.T, adm *client.Admin, topic string) {
	t.Helper()
	lag, moved := uint64(0), time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		info, err := adm.Topic(context.Background(), topic)
		if eventhub.ErrorCode(err) == eventhub.CodeUnknownID || err == nil && info.Head == 0 {
			return
		}
		g, err := adm.Group(context.Background(), topic, oracleGroup)
		switch {
		case err == nil && g.Lag == 0:
			return
		case err == nil && g.Lag != lag:
			lag, moved = g.Lag, time.Now()
		case time.Since(moved) > watchdog:
			t.Fatalf("group %s of %s does not move: %+v, %v", oracleGroup, topic, g, err)
		}
		<-time.After(wait)
	}
}

// check holds what was delivered, and what followed, against the log.
func (m *oracleMember) check(t *testing.T, adm *client.Admin) {
	t.Helper()
	for _, o := range m.topics {
		for _, it := range o.items {
			if it.fate == stored && it.offset != 0 && !m.got[oraclePlace{o.name, it.offset}] {
				t.Errorf("%s, offset %d of %s, was never delivered", it.mark, it.offset, o.name)
			}
		}
	}
	followed := make(map[oraclePlace]bool)
	err := adm.Replay(context.Background(), admin.ReplayQuery{Topic: m.done}, func(_ string, item eventhub.Item) error {
		var place oraclePlace
		event, err := item.Event()
		if err == nil {
			err = json.Unmarshal(event.Payload, &place)
		}
		if followed[place] {
			t.Errorf("offset %d of %s was acked with an event twice", place.Offset, place.Topic)
		}
		followed[place] = true
		return err
	})
	if err != nil {
		t.Error(err)
	}
	for place := range m.settled {
		if !followed[place] {
			t.Errorf("what followed from offset %d of %s got its OK and is gone", place.Offset, place.Topic)
		}
	}
	topics, err := adm.Topics(context.Background(), "oracle", admin.MaxPage)
	if err != nil {
		t.Error(err)
	}
	for _, topic := range topics {
		if strings.HasSuffix(topic.Topic, ".dlq") {
			t.Errorf("events were given up: %+v", topic)
		}
	}
}
