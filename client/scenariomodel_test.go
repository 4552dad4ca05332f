package client_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// modelHub is what a hub does for one client, as far as the end of a scenario depends on it: a
// log in which ids are once, numbers of producers, groups with leases that end with their
// connection, and tails that go on at their places. It is told frames and returns frames.
type modelHub struct {
	log       map[string][]*modelEvent // by topic
	acked     map[string]bool          // by topic, group and id
	leases    map[string]*modelLease   // likewise
	subs      []*modelSub              // of the present connection
	scheduled map[string]bool          // by topic and id
	producers map[string]*modelProducer
	producer  *modelProducer // of the present connection
	serial    int
}

type modelEvent struct {
	topic, id string
	offset    int
	key       string
	payload   any
}

type modelLease struct {
	serial, attempt int
	held            bool
}

type modelSub struct {
	topic, group string
	paused       bool
	cursor       int // of a tail
}

type modelProducer struct {
	epoch, seq int
	answers    map[int]map[string]any
}

func newModelHub(seed []scenarioEvent) *modelHub {
	m := &modelHub{log: make(map[string][]*modelEvent), acked: make(map[string]bool), leases: make(map[string]*modelLease),
		scheduled: make(map[string]bool), producers: make(map[string]*modelProducer)}
	for _, e := range seed {
		var payload any
		_ = json.Unmarshal(e.Payload, &payload) // readTable has read it
		m.log[e.Topic] = append(m.log[e.Topic], &modelEvent{topic: e.Topic, id: e.ID, offset: len(m.log[e.Topic]) + 1, key: e.Key, payload: payload})
	}
	return m
}

// lost ends the connection: leases go back, subscriptions are forgotten.
func (m *modelHub) lost() {
	m.subs, m.producer = nil, nil
	for _, l := range m.leases {
		l.held = false
	}
}

// take acts on a frame and returns what is sent, the answer first.
func (m *modelHub) take(f map[string]any) (frames []map[string]any) {
	answer := m.act(f)
	if corr, ok := f["corr"]; ok {
		answer["corr"] = corr
	}
	if _, ok := f["corr"]; ok || answer["op"] == "ERR" || f["op"] == "AUTH" {
		frames = append(frames, answer)
	}
	return append(frames, m.pump()...)
}

func (m *modelHub) act(f map[string]any) map[string]any {
	topic, _ := f["topic"].(string)
	group, _ := f["group"].(string)
	switch f["op"] {
	case "AUTH":
		return m.auth(f)
	case "PUBLISH":
		return m.publishNumbered(f)
	case "SUBSCRIBE":
		return m.subscribe(f, topic, group)
	case "UNSUBSCRIBE", "PAUSE", "RESUME":
		return m.change(f["op"].(string), topic, group)
	case "ACK", "NACK", "MODACK":
		return m.settle(f, topic, group)
	case "CANCEL":
		id := topic + "/" + f["id"].(string)
		if !m.scheduled[id] {
			return refused("unknown_id")
		}
		delete(m.scheduled, id)
		return map[string]any{"op": "OK"}
	}
	return refused("unsupported_op")
}

func refused(code string) map[string]any {
	return map[string]any{"op": "ERR", "code": code, "msg": "so it is"}
}

func (m *modelHub) auth(f map[string]any) map[string]any {
	answer := helloWith(nil)
	asked, ok := f["producer"].(map[string]any)
	if !ok {
		return answer
	}
	id := asked["id"].(string)
	p := m.producers[id]
	if p == nil {
		p = &modelProducer{answers: make(map[int]map[string]any)}
		m.producers[id] = p
	}
	p.epoch++
	m.producer = p
	answer["producer"] = map[string]any{"id": id, "epoch": p.epoch, "born": 1, "seq": p.seq, "window": 4096}
	return answer
}

// publishNumbered gives a number that was used the answer that it had.
func (m *modelHub) publishNumbered(f map[string]any) map[string]any {
	number, ok := f["seq"].(float64)
	if !ok {
		return m.publish(f)
	}
	seq, p := int(number), m.producer
	switch {
	case p == nil || seq > p.seq+1:
		return refused("bad_sequence")
	case seq <= p.seq:
		return maps.Clone(p.answers[seq])
	}
	p.seq = seq
	p.answers[seq] = m.publish(f)
	return maps.Clone(p.answers[seq])
}

func (m *modelHub) publish(f map[string]any) map[string]any {
	list, isBatch := f["events"].([]any)
	if !isBatch {
		list = []any{f}
	}
	return m.add(list, isBatch)
}

// add publishes events as one step.
func (m *modelHub) add(list []any, isBatch bool) map[string]any {
	ids, offsets, duplicates := []any{}, []any{}, []any{}
	for i, one := range list {
		e := one.(map[string]any)
		opts, _ := e["opts"].(map[string]any)
		topic := e["topic"].(string)
		id, _ := opts["id"].(string)
		key, _ := opts["key"].(string)
		if id == "" {
			id = fmt.Sprintf("hub-%s-%d", topic, len(m.log[topic])+1)
		}
		if delay, ok := opts["delay_ms"].(float64); ok && delay > 0 {
			m.scheduled[topic+"/"+id] = true
			return map[string]any{"op": "OK", "id": id, "deliver_at": 1_800_003_600_000}
		}
		at := slices.IndexFunc(m.log[topic], func(e *modelEvent) bool { return e.id == id })
		if at >= 0 {
			duplicates = append(duplicates, i)
		} else {
			if newest, ok := m.holds(topic, key, opts["expect"]); !ok {
				answer := refused("conflict")
				answer["present"] = newest
				return answer
			}
			at = len(m.log[topic])
			m.log[topic] = append(m.log[topic], &modelEvent{topic: topic, id: id, offset: at + 1, key: key, payload: e["payload"]})
		}
		ids, offsets = append(ids, id), append(offsets, at+1)
	}
	if isBatch {
		answer := map[string]any{"op": "OK", "ids": ids, "offsets": offsets}
		if len(duplicates) > 0 {
			answer["duplicates"] = duplicates
		}
		return answer
	}
	answer := map[string]any{"op": "OK", "id": ids[0], "offset": offsets[0]}
	if len(duplicates) > 0 {
		answer["duplicate"] = true
	}
	return answer
}

// holds says whether the condition on the newest event of a key holds.
func (m *modelHub) holds(topic, key string, expect any) (newest int, ok bool) {
	x, isGiven := expect.(map[string]any)
	if !isGiven {
		return 0, true
	}
	for _, e := range m.log[topic] {
		if e.key == key {
			newest = e.offset
		}
	}
	return newest, x["key_offset"] == float64(newest)
}

func (m *modelHub) find(topic, group string) int {
	return slices.IndexFunc(m.subs, func(s *modelSub) bool { return s.topic == topic && s.group == group })
}

func (m *modelHub) subscribe(f map[string]any, topic, group string) map[string]any {
	if m.find(topic, group) >= 0 {
		return refused("already_subscribed")
	}
	s := &modelSub{topic: topic, group: group}
	m.subs = append(m.subs, s)
	if group != "" {
		return map[string]any{"op": "OK"}
	}
	opts, _ := f["opts"].(map[string]any)
	head := len(m.log[topic])
	known, ok := opts["known"].(string)
	if !ok {
		known = "k" + strconv.Itoa(head)
	}
	if opts["from"] != "earliest" {
		s.cursor, _ = strconv.Atoi(known[1:])
	}
	if places, ok := opts["places"].([]any); ok && len(places) > 0 {
		s.cursor = int(places[0].(map[string]any)["offset"].(float64))
	}
	return map[string]any{"op": "OK", "known": known}
}

func (m *modelHub) change(op, topic, group string) map[string]any {
	at := m.find(topic, group)
	if at < 0 {
		return refused("not_subscribed")
	}
	switch op {
	case "PAUSE":
		m.subs[at].paused = true
	case "RESUME":
		m.subs[at].paused = false
	default:
		m.subs = slices.Delete(m.subs, at, at+1)
		for name, l := range m.leases {
			if strings.HasPrefix(name, topic+"/"+group+"/") {
				l.held = false
			}
		}
	}
	return map[string]any{"op": "OK"}
}

// settle applies a verdict. One on a lease that was followed by another has no effect.
func (m *modelHub) settle(f map[string]any, topic, group string) map[string]any {
	list, isList := f["lease"].([]any)
	if !isList {
		list = []any{f["lease"]}
	}
	stale := []any{}
	for i, text := range list {
		parts := strings.Split(text.(string), "-")
		offset, _ := strconv.ParseInt(parts[1], 36, 64)
		serial, _ := strconv.ParseInt(parts[2], 36, 64)
		name := topic + "/" + group + "/" + m.log[topic][offset-1].id
		l := m.leases[name]
		if l == nil || l.serial != int(serial) || m.acked[name] {
			stale = append(stale, i)
			continue
		}
		switch f["op"] {
		case "ACK":
			if events, ok := f["publish"].([]any); ok {
				m.acked[name] = true
				return m.add(events, true)
			}
			m.acked[name] = true
		case "NACK":
			l.held = false
		}
	}
	switch {
	case len(stale) == 0:
		return map[string]any{"op": "OK"}
	case f["publish"] != nil:
		return refused("lease_lost")
	case f["op"] == "MODACK":
		return refused("unknown_id")
	}
	return map[string]any{"op": "OK", "stale": true, "stale_at": stale}
}

// pump returns the deliveries that are due.
func (m *modelHub) pump() (frames []map[string]any) {
	for _, s := range m.subs {
		for _, e := range m.log[s.topic] {
			if s.paused {
				continue
			}
			if s.group == "" {
				if e.offset > s.cursor {
					s.cursor = e.offset
					frames = append(frames, map[string]any{"deliver": m.gift(s, e, "")})
				}
				continue
			}
			name := s.topic + "/" + s.group + "/" + e.id
			l := m.leases[name]
			if m.acked[name] || l != nil && l.held {
				continue
			}
			if l == nil {
				l = &modelLease{}
				m.leases[name] = l
			}
			m.serial++
			l.serial, l.held = m.serial, true
			l.attempt++
			ctx := fmt.Sprintf(`{"attempt":%d,"max_attempts":99,"ack_deadline_ms":30000,"lease":"a-%s-%s","epoch":5}`,
				l.attempt, strconv.FormatInt(int64(e.offset), 36), strconv.FormatInt(int64(l.serial), 36))
			frames = append(frames, map[string]any{"deliver": m.gift(s, e, ctx)})
		}
	}
	return frames
}

func (m *modelHub) gift(s *modelSub, e *modelEvent, ctx string) *scenarioGift {
	payload, _ := json.Marshal(e.payload) // it came as JSON
	g := &scenarioGift{Group: s.group, Topic: e.topic, ID: e.id, Offset: uint64(e.offset), Key: e.key, Payload: payload}
	if ctx != "" {
		g.Ctx = json.RawMessage(ctx)
	}
	return g
}

// state is what the end of a scenario is compared with.
func (m *modelHub) state() map[string]any {
	log, acked := make(map[string]any), make(map[string]any)
	for topic, events := range m.log {
		payloads := []any{}
		for _, e := range events {
			payloads = append(payloads, e.payload)
			for name := range m.acked {
				if parts := strings.SplitN(name, "/", 3); parts[0] == topic && parts[2] == e.id {
					list, _ := acked[parts[0]+"/"+parts[1]].([]any)
					acked[parts[0]+"/"+parts[1]] = append(list, e.payload)
				}
			}
		}
		log[topic] = payloads
	}
	return map[string]any{"log": log, "acked": acked, "scheduled": float64(len(m.scheduled))}
}
