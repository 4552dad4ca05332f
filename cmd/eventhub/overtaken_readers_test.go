package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"eventhub"
)

// overtakenReader reads the topic as one kind of client does.
type overtakenReader interface {
	// follow reads until the hub is gone, or all of it.
	follow(t *testing.T, hub *hubProcess)
	check(t *testing.T)
}

func newOvertakenReaders(l *removedLog, seed uint64) []overtakenReader {
	rng := func(n uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, n)) }
	return []overtakenReader{
		&overtakenMember{overtakenGroup: newOvertakenGroup(l, "member"), rng: rng(10)},
		&overtakenPuller{overtakenGroup: newOvertakenGroup(l, "puller"), rng: rng(11)},
		&overtakenTail{overtakenPlace: overtakenPlace{log: l, name: "tail", rng: rng(12)}},
		&overtakenStream{overtakenPlace: overtakenPlace{log: l, name: "stream", rng: rng(13)}},
	}
}

// overtakenMember is a group's member over WebSocket.
type overtakenMember struct {
	*overtakenGroup
	rng *rand.Rand
}

func (m *overtakenMember) follow(t *testing.T, hub *hubProcess) {
	for m.log.lag(m.rng.IntN(2)*m.rng.IntN(300)) && m.serve(t, hub) {
	}
}

// serve is one connection. It reports whether there is to be another one.
func (m *overtakenMember) serve(t *testing.T, hub *hubProcess) bool {
	c, err := join(t, hub, overtakenTopic, "member", map[string]any{"from": "offset", "offset": 1, "max_in_flight": 20, "max_attempts": 1000, "ack_timeout_ms": 600_000})
	if err != nil {
		return false
	}
	defer c.Close()
	var ended sync.WaitGroup
	defer ended.Wait()
	for held := 0; ; {
		f, err := c.next()
		if err != nil {
			return false
		}
		if f.Op != "EVENT" {
			t.Errorf("the member got %+v", f)
			return false
		}
		if !m.take(f.Event.ID, f.Event.Offset, f.Ctx.Gap) {
			return false
		}
		if m.log.isEnding() {
			m.ack(f.Event.Offset)
			if c.settle("ACK", f) != nil {
				return false
			}
			if m.log.isLast(f.Event.Offset) {
				// Events that were given back can come after the last one, when their backoff is
				// over: the member takes them until the group has all.
				ended.Go(func() {
					defer c.Close()
					awaitGroup(t, hub, overtakenTopic, "member", f.Event.Offset)
				})
			}
			continue
		}
		switch k := m.rng.IntN(100); {
		case k < 2 || held > 10:
			return true // with all that it holds
		case k < 6:
			if !m.log.lag(m.rng.IntN(300)) {
				return false
			}
			held++
		case k < 10:
			held++
		case k < 16:
			if c.trySay(map[string]any{"op": "NACK", "topic": f.Topic, "group": f.Group, "id": f.Event.ID, "delay_ms": m.rng.IntN(2)}) != nil {
				return false
			}
		default:
			m.ack(f.Event.Offset)
			if c.settle("ACK", f) != nil {
				return false
			}
		}
	}
}

// overtakenPuller is a group that pulls.
type overtakenPuller struct {
	*overtakenGroup
	rng *rand.Rand
}

func (p *overtakenPuller) follow(t *testing.T, hub *hubProcess) {
	for {
		if !p.log.isEnding() && p.rng.IntN(8) == 0 && !p.log.lag(p.rng.IntN(600)) {
			return
		}
		var got struct {
			Deliveries []struct {
				Event struct {
					ID     string
					Offset uint64
				}
				Ctx struct {
					Lease string
					Gap   *eventhub.Gap
				}
			}
		}
		p.log.at("pull")
		if !p.post(t, hub, fmt.Sprintf("pull?max=%d&wait_ms=500", 1+p.rng.IntN(30)), `{"from":"offset","offset":1,"max_attempts":1000,"ack_timeout_ms":1000}`, &got) {
			return
		}
		var acks, nacks []string
		last := false
		for _, d := range got.Deliveries {
			if !p.take(d.Event.ID, d.Event.Offset, d.Ctx.Gap) {
				return
			}
			switch k := p.rng.IntN(20); {
			case k > 3 || p.log.isEnding():
				p.ack(d.Event.Offset)
				acks = append(acks, d.Ctx.Lease)
				last = last || p.log.isLast(d.Event.Offset)
			case k > 0:
				nacks = append(nacks, d.Ctx.Lease)
			} // or its lease ends
		}
		if !p.settle(t, hub, "ack", acks) || !p.settle(t, hub, "nack", nacks) {
			return
		}
		if p.log.isEnding() && (last || len(got.Deliveries) == 0) {
			g, err := p.log.adm.Group(p.log.ctx, overtakenTopic, "puller")
			if err != nil || g.Lag == 0 {
				if err != nil {
					t.Error(err)
				}
				return
			}
		}
	}
}

func (p *overtakenPuller) settle(t *testing.T, hub *hubProcess, verdict string, leases []string) bool {
	if len(leases) == 0 {
		return true
	}
	body := map[string]any{"leases": leases}
	if verdict == "nack" {
		body["delay_ms"] = p.rng.IntN(2)
	}
	b, err := json.Marshal(body)
	if err != nil {
		t.Error(err)
	}
	return p.post(t, hub, verdict, string(b), &struct{}{})
}

// post asks about the group. It reports whether the hub answered.
func (p *overtakenPuller) post(t *testing.T, hub *hubProcess, what, body string, into any) bool {
	r, err := http.NewRequestWithContext(p.log.ctx, "POST", "http://"+hub.http+"/v1/topics/"+overtakenTopic+"/groups/puller/"+what, strings.NewReader(body))
	if err != nil {
		t.Error(err)
		return false
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil {
		return false
	}
	if answer.StatusCode != http.StatusOK || json.Unmarshal(b, into) != nil {
		t.Errorf("%s was answered %d %s", what, answer.StatusCode, b)
		return false
	}
	return true
}

// overtakenPlace is what a reader without a group was given and told, in one connection after
// the other, each of which goes on at its last event.
type overtakenPlace struct {
	log    *removedLog
	name   string
	rng    *rand.Rand
	offset uint64 // of its last event
	ts     int64
	events int
	gaps   int
	midway int // in the middle of a connection
	again  int

	untaken *eventhub.Gap // told since its last event, in some connection

	// Of one connection.
	next  uint64 // what it is to be given or told next
	least uint64 // the horizon before
}

// come is called before a connection is made.
func (p *overtakenPlace) come() bool {
	p.log.at(p.name + " comes back")
	p.next = p.offset + 1
	p.least = p.log.look()
	return p.least > 0
}

// told checks a gap that the connection says. It reports false where the hub is being killed
// before anything else comes.
func (p *overtakenPlace) told(gap eventhub.Gap, atStart bool) (more bool) {
	l := p.log
	if p.gaps++; !atStart {
		p.midway++
	}
	if gap.After < p.next-1 || l.wereErased(p.next-1, gap.After+1) > 0 {
		l.t.Errorf("the %s is told of %+v; it has had all before %d", p.name, gap, p.next)
	}
	l.holdGone(p.name, gap)
	if atStart && gap.First < p.least {
		l.t.Errorf("the %s is told of %+v as it begins; the horizon was %d already", p.name, gap, p.least)
	}
	if u := p.untaken; u != nil && atStart {
		p.again++
		if gap.After != u.After || gap.First < u.First || gap.First != u.First && l.look() == u.First {
			l.t.Errorf("the %s is told of %+v; it was told of %+v before", p.name, gap, *u)
		}
	}
	p.untaken = &gap
	p.next = gap.First
	return !l.at(p.name + " is told")
}

// had notes an event. Of those between what it had, or was told, and this one there never was
// anything but what was erased.
func (p *overtakenPlace) had(id string, offset uint64, ts int64) {
	l := p.log
	l.given(p.name, id, offset)
	if offset < p.next {
		l.t.Errorf("the %s got offset %d; it has had, or was told, all before %d", p.name, offset, p.next)
	} else if missed := l.wereErased(p.next-1, offset); missed > 0 {
		l.t.Errorf("the %s got offset %d, and was neither given nor told of %d", p.name, offset, missed)
	}
	p.offset, p.ts, p.next, p.untaken = offset, ts, offset+1, nil
	p.events++
}

func (p *overtakenPlace) check(t *testing.T) {
	t.Helper()
	if p.offset != p.log.last {
		t.Errorf("the %s came to %d; the last event is at %d", p.name, p.offset, p.log.last)
	}
	t.Logf("%s: %d events given, %d ranges told, %d of them midway, %d again", p.name, p.events, p.gaps, p.midway, p.again)
	if p.gaps == 0 && *overtakenKills >= 20 {
		t.Errorf("the %s was never overtaken", p.name)
	}
}

// overtakenTail is a live tail.
type overtakenTail struct{ overtakenPlace }

func (p *overtakenTail) follow(t *testing.T, hub *hubProcess) {
	for p.log.lag(p.rng.IntN(2)*p.rng.IntN(600)) && p.come() && p.serve(t, hub) {
	}
}

// serve is one connection. It reports whether there is to be another one.
func (p *overtakenTail) serve(t *testing.T, hub *hubProcess) bool {
	c, err := connectAs(t, hub, map[string]any{"op": "AUTH", "corr": "auth"})
	if err != nil {
		return false
	}
	defer c.Close()
	opts := map[string]any{"from": "offset", "offset": p.next}
	if p.offset > 0 {
		opts = map[string]any{"from": "latest", "places": []any{map[string]any{"topic": overtakenTopic, "offset": p.offset, "ts": p.ts}}}
	}
	if c.trySay(map[string]any{"op": "SUBSCRIBE", "topic": overtakenTopic, "corr": "tail", "opts": opts}) != nil {
		return false
	}
	paused := false
	for {
		f, err := c.next()
		switch {
		case err != nil:
			return false
		case f.Op == "OK":
			if len(f.Gaps) > 0 && !p.told(f.Gaps[0], true) {
				return false
			}
			continue
		case f.Op != "EVENT":
			t.Errorf("the tail got %+v", f)
			return false
		}
		if f.Ctx.Gap != nil && !p.told(*f.Ctx.Gap, false) {
			return false
		}
		p.had(f.Event.ID, f.Event.Offset, f.Event.TS)
		if p.log.isLast(f.Event.Offset) {
			return false
		}
		switch k := p.rng.IntN(300); {
		case k == 0 && !p.log.isEnding():
			return true
		case k < 4: // what is under way comes before it pauses
			op := "PAUSE"
			if paused {
				op = "RESUME"
			}
			if paused = !paused; c.trySay(map[string]any{"op": op, "topic": overtakenTopic}) != nil {
				return false
			}
			if paused && (!p.log.lag(p.rng.IntN(600)) || c.trySay(map[string]any{"op": "RESUME", "topic": overtakenTopic}) != nil) {
				return false
			}
			paused = false
		}
	}
}

// overtakenStream is an event stream.
type overtakenStream struct {
	overtakenPlace
	last string // Last-Event-ID
}

// narrow is a client whose socket takes little, so that the hub waits for it.
var narrow = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err == nil {
		err = c.(*net.TCPConn).SetReadBuffer(32 << 10)
	}
	return c, err
}}}

func (p *overtakenStream) follow(t *testing.T, hub *hubProcess) {
	for p.log.lag(p.rng.IntN(2)*p.rng.IntN(600)) && p.come() && p.serve(t, hub) {
	}
}

func (p *overtakenStream) serve(t *testing.T, hub *hubProcess) bool {
	r, err := http.NewRequestWithContext(p.log.ctx, "GET", "http://"+hub.http+"/v1/topics/"+overtakenTopic+"/stream?from=offset&offset=1", nil)
	if err != nil {
		t.Error(err)
		return false
	}
	if p.last != "" {
		r.Header.Set("Last-Event-ID", p.last)
	}
	answer, err := narrow.Do(r)
	if err != nil {
		return false
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(answer.Body)
		t.Errorf("the stream was answered %d %s", answer.StatusCode, b)
		return false
	}
	var kind, data, id string
	had := false // an event, in this connection
	for lines := bufio.NewReader(answer.Body); ; {
		line, err := lines.ReadString('\n')
		if err != nil {
			return false
		}
		name, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		switch value = strings.TrimPrefix(value, " "); name {
		case "id":
			id = value
			continue
		case "event":
			kind = value
			continue
		case "data":
			data += value
			continue
		case "":
			if line != "\n" {
				continue // a comment
			}
		}
		if p.last = id; data == "" {
			continue
		}
		if kind == "gap" {
			var gap eventhub.Gap
			if err := json.Unmarshal([]byte(data), &gap); err != nil {
				t.Errorf("the stream said %s: %v", data, err)
			}
			if !p.told(gap, !had) {
				return false
			}
		} else {
			var e struct {
				ID     string
				Offset uint64
			}
			if err := json.Unmarshal([]byte(data), &e); err != nil {
				t.Errorf("the stream said %s: %v", data, err)
			}
			p.had(e.ID, e.Offset, 0)
			if had = true; p.log.isLast(e.Offset) {
				return false
			}
		}
		kind, data = "", ""
		if k := p.rng.IntN(300); k == 0 && !p.log.isEnding() {
			return true
		} else if k == 1 && !p.log.stall(p.rng.IntN(300)) {
			return false
		}
	}
}
