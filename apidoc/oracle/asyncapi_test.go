package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"

	"eventhub"
	"eventhub/admin"
	"eventhub/hub"
	"eventhub/wire"
)

// messages returns the pointers of the messages that operations with this action have,
// by name.
func messages(d *document, action string) map[string]string {
	all := make(map[string]string)
	for _, name := range d.names("/operations") {
		at := child("/operations", name)
		if d.find(at+"/action") == action {
			addMessages(d, at+"/messages", all)
		} else {
			addMessages(d, at+"/reply/messages", all)
		}
	}
	return all
}

func addMessages(d *document, list string, into map[string]string) {
	given, _ := d.find(list).([]any)
	for i := range given {
		at, _ := d.follow(child(list, strconv.Itoa(i)))
		into[at[strings.LastIndex(at, "/")+1:]] = at
	}
}

// fits returns the names of the messages that a frame is, of those given.
func fits(d *document, of map[string]string, frame any) (names []string, why error) {
	for name, at := range of {
		payload := child(at, "payload")
		if err := d.schema(payload).Validate(frame); err != nil {
			continue
		}
		var unlisted []string
		if d.walk([]string{payload}, frame, "", &unlisted); len(unlisted) > 0 {
			why = fmt.Errorf("%s does not list %q", name, unlisted)
			continue
		}
		names = append(names, name)
	}
	return names, why
}

// examples returns the payloads of a message's examples.
func examples(d *document, at string) (all []object) {
	list, _ := d.find(child(at, "examples")).([]any)
	for i := range list {
		all = append(all, d.find(child(at, "examples", strconv.Itoa(i), "payload")).(object))
	}
	return all
}

// TestMessages: each message is in the channel, and in an operation; its examples are
// what its schema says, and have all of its names.
func TestMessages(t *testing.T) {
	d := asyncAPI(t)
	used := messages(d, "receive")
	sent := messages(d, "send")
	for name, at := range sent {
		used[name] = at
	}
	for _, name := range d.names("/components/messages") {
		at := child("/components/messages", name)
		if channel, _ := d.follow("/channels/hub/messages/" + name); channel != at || used[name] != at {
			t.Errorf("message %s is not in the channel, or in no operation", name)
		}
		if len(examples(d, at)) == 0 {
			t.Errorf("message %s has no example", name)
		}
		for _, e := range examples(d, at) {
			if err := d.judge(child(at, "payload"), any(e)); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		reply := d.find(child(at, "correlationId")) != nil
		if answers := name != "event" && name != "events" && name != "tailEvent" && name != "tailEvents" && name != "state"; reply != answers {
			t.Errorf("%s has a correlation id: %v", name, reply)
		}
	}
	for name, at := range ofAction(d, "receive") {
		for _, property := range d.unseen(child(at, "payload"), func(string) bool { return false }) {
			t.Errorf("no example of %s has %s", name, property)
		}
	}
}

// session is a connection whose frames from the hub are judged.
type session struct {
	t    *testing.T
	d    *document
	conn net.Conn
	had  map[string]bool // messages that came
	got  []object        // frames that were judged and not looked at
}

func connect(t *testing.T, d *document, w *world, had map[string]bool) *session {
	t.Helper()
	conn, _, _, err := ws.Dial(t.Context(), "ws://"+w.WSAddr()+d.find("/channels/hub/address").(string))
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, d: d, conn: conn, had: had}
	t.Cleanup(func() { s.conn.Close() })
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *session) say(frame object) {
	s.t.Helper()
	text, err := json.Marshal(frame)
	if err == nil {
		err = wsutil.WriteClientText(s.conn, text)
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// hear returns the next frame for which ok holds, and its message. Every frame has to
// be exactly one message that the hub sends.
func (s *session) hear(ok func(object) bool) (object, string) {
	s.t.Helper()
	for {
		text, err := wsutil.ReadServerText(s.conn)
		if err != nil {
			s.t.Fatal(err)
		}
		frame := parsed(s.t, text).(object)
		names, why := fits(s.d, messages(s.d, "send"), frame)
		if len(names) != 1 {
			s.t.Fatalf("%s is the messages %q: %v", text, names, why)
		}
		s.had[names[0]] = true
		s.got = append(s.got, frame)
		if ok(frame) {
			return frame, names[0]
		}
	}
}

// ask says a frame and returns its answer.
func (s *session) ask(frame object) (answer object, name string) {
	s.t.Helper()
	s.say(frame)
	answer, name = s.hear(func(got object) bool { return got["corr"] == frame["corr"] })
	if answer["op"] != "OK" {
		s.t.Fatalf("%v is answered %v", frame, answer)
	}
	return answer, name
}

// delivered waits until these events have come.
func (s *session) delivered(ids ...string) (lease string) {
	s.t.Helper()
	missing := slices.Clone(ids)
	take := func(frame object) bool {
		entries, _ := frame["events"].([]any)
		for _, entry := range append(entries, frame) {
			event, ok := entry.(object)["event"].(object)
			if ctx, _ := entry.(object)["ctx"].(object); ok && event["id"] == ids[0] && ctx != nil {
				lease, _ = ctx["lease"].(string)
			}
			if ok {
				missing = slices.DeleteFunc(missing, func(id string) bool { return id == event["id"] })
			}
		}
		return len(missing) == 0
	}
	if slices.ContainsFunc(s.got, take) {
		return lease
	}
	s.hear(take)
	return lease
}

// TestSession sends every example of every message, each to a hub of its own, and
// checks that it is answered by a message that its operation lists.
func TestSession(t *testing.T) {
	d := asyncAPI(t)
	had := make(map[string]bool)
	for _, name := range d.names("/operations") {
		at := child("/operations", name)
		if d.find(at+"/action") != "receive" {
			continue
		}
		said, replies := make(map[string]string), make(map[string]string)
		addMessages(d, at+"/messages", said)
		addMessages(d, at+"/reply/messages", replies)
		for message, of := range said {
			for i, example := range examples(d, of) {
				t.Run(fmt.Sprint(message, i), func(t *testing.T) {
					converse(t, d, message, example, replies, had)
				})
			}
		}
	}
	furtherFrames(t, d, had)
	for name := range messages(d, "send") {
		if !had[name] {
			t.Errorf("the hub never sent %s", name)
		}
	}
}

// converse makes what the example speaks of, sends it, and an event after it where it
// is to come.
func converse(t *testing.T, d *document, message string, example object, replies map[string]string, had map[string]bool) {
	w := begin(t, hub.MemoryStore)
	s := connect(t, d, w, had)
	lease := ""
	if message == "auth" {
		said := object{"op": "AUTH", "corr": example["corr"], "token": token}
		if producer, ok := example["producer"].(object); ok {
			said["producer"] = object{"id": producer["id"]} // which this hub does not know
		}
		example = said
	} else {
		auth := object{"op": "AUTH", "token": token}
		if example["seq"] != nil {
			auth["producer"] = object{"id": "billing-3"}
		}
		s.say(auth)
		s.hear(func(got object) bool { return got["op"] == "OK" })
		lease = s.prepare(w, message, example)
	}
	answer, name := s.ask(leased(t, example, lease))
	if replies[name] == "" {
		t.Errorf("%v is answered by %s, %v, which its operation does not list", example, name, answer)
	}
	if message != "subscribe" && message != "tail" {
		return
	}
	topic := "orders"
	if example["topic"] == "audit" {
		topic = "audit"
	}
	e := order("next")
	e.Topic = topic
	if _, err := w.Bus().Publish(t.Context(), e); err != nil {
		t.Fatal(err)
	}
	// The member may have others to do first, such as those of its key.
	delivery := func(frame object) bool { return frame["topic"] == example["topic"] }
	if !slices.ContainsFunc(s.got, delivery) {
		s.hear(delivery)
	}
}

// leased puts a real lease into a frame.
func leased(t *testing.T, frame object, lease string) object {
	t.Helper()
	text, err := json.Marshal(frame)
	if err != nil {
		t.Fatal(err)
	}
	var changed object
	if err := json.Unmarshal(bytes.ReplaceAll(text, []byte(anyLease), []byte(lease)), &changed); err != nil {
		t.Fatal(err)
	}
	return changed
}

// prepare makes the subscription that a message is about.
func (s *session) prepare(w *world, message string, example object) (lease string) {
	s.t.Helper()
	switch message {
	case "unsubscribe", "pause", "resume":
		subscribe := object{"op": "SUBSCRIBE", "corr": "prepare", "topic": example["topic"]}
		if example["group"] != nil {
			subscribe["group"] = example["group"]
		}
		s.ask(subscribe)
	case "ack", "ackAndPublish", "nack", "modack":
		// The leases that the group has already are given back first.
		if _, err := w.Bus().SeekGroup(s.t.Context(), "orders", "billing", eventhub.Earliest, true); err != nil {
			s.t.Fatal(err)
		}
		s.ask(object{"op": "SUBSCRIBE", "corr": "prepare", "topic": "orders", "group": "billing"})
		return s.delivered("order-17", "order-18")
	case "publish", "publishBatch":
		acks := connect(s.t, s.d, w, s.had)
		acks.ask(object{"op": "AUTH", "corr": "auth", "token": token})
		acks.ask(object{"op": "SUBSCRIBE", "corr": "prepare", "topic": "orders", "group": "done", "opts": object{"manual_ack": false}})
	}
	return ""
}

// furtherFrames makes the frames that no example brings about: errors, the end of a
// subscription, what a member gets after a seek and a redrive, and who makes a group again.
func furtherFrames(t *testing.T, d *document, had map[string]bool) {
	w := begin(t, hub.MemoryStore)
	s := connect(t, d, w, had)
	s.say(object{"op": "PUBLISH", "corr": "early", "topic": "orders", "payload": 1})
	if got, _ := s.hear(func(got object) bool { return got["corr"] == "early" }); got["code"] != "unauthorized" {
		t.Errorf("before AUTH: %v", got)
	}
	s.ask(object{"op": "AUTH", "corr": "auth", "token": token})
	for message, at := range messages(d, "receive") {
		for _, bad := range examples(d, at)[:1] {
			frame := leased(t, bad, anyLease)
			frame["corr"] = "bad " + message
			for name := range frame {
				if name != "op" && name != "corr" {
					frame[name] = 5 // of no name the right type
				}
			}
			if message == "publish" {
				frame["payload"], frame["opts"] = 1, 5
			}
			s.say(frame)
			if got, name := s.hear(func(got object) bool { return got["corr"] == frame["corr"] }); name != "err" {
				t.Errorf("%v is answered %v", frame, got)
			}
		}
	}
	s.ask(object{"op": "SUBSCRIBE", "corr": "1", "topic": "orders", "group": "shipping"})
	if _, err := w.Bus().SeekGroup(t.Context(), "orders", "shipping", eventhub.Start{Kind: eventhub.StartOffset, Offset: 3}, true); err != nil {
		t.Fatal(err)
	}
	got, _ := s.hear(func(got object) bool { return got["op"] == "EVENT" })
	if got["ctx"].(object)["sought"] != true {
		t.Errorf("after a seek: %v", got)
	}
	if _, err := w.Bus().Redrive(t.Context(), admin.RedriveQuery{DeadLetterQuery: admin.DeadLetterQuery{Topic: "orders", Group: "shipping", Limit: 1}, Apply: true}); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.hear(func(got object) bool { return got["op"] == "EVENT" }); got["ctx"].(object)["redriven"] == nil {
		t.Errorf("after a redrive: %v", got)
	}
	s.ask(object{"op": "SUBSCRIBE", "corr": "2", "topic": "orders", "opts": object{"from": "snapshot"}})
	isState := func(got object) bool { return got["op"] == "STATE" }
	if got, _ := s.hear(isState); got["count"] == nil {
		t.Errorf("after the state: %v", got)
	}
	if _, err := w.Bus().Trim(t.Context(), "orders", admin.TrimQuery{Before: 2}, true); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.hear(isState); fmt.Sprint(got["horizon"]) != "2" {
		t.Errorf("after a trim: %v", got)
	}
	if err := w.Bus().DeleteGroup(context.WithoutCancel(t.Context()), "orders", "shipping"); err != nil {
		t.Fatal(err)
	}
	if got, _ := s.hear(func(got object) bool { return got["op"] == "ERR" }); got["corr"] != nil || got["topic"] != "orders" || got["group"] != "shipping" {
		t.Errorf("at the end of a subscription: %v", got)
	}
	s.ask(object{"op": "SUBSCRIBE", "corr": "2", "topic": "orders", "group": "idle"})
	s.ask(object{"op": "UNSUBSCRIBE", "corr": "3", "topic": "orders", "group": "idle"})
	w.endIdle(t, "orders", "idle")
	if got, name := s.ask(object{"op": "SUBSCRIBE", "corr": "4", "topic": "orders", "group": "idle"}); name != "returned" {
		t.Errorf("to a group that had ended: %v", got)
	}
	golden(t, d, had)
	for _, at := range messages(d, "send") {
		for _, property := range d.unseen(child(at, "payload"), func(name string) bool { return name == "Headers" }) {
			t.Errorf("no frame of the hub had %s", property)
		}
	}
}

// golden judges the golden frames of package wire, which has every frame once: those of
// clients and of the hub.
func golden(t *testing.T, d *document, had map[string]bool) {
	t.Helper()
	// What the decoder takes and the publisher refuses, or what says more than there is.
	other := map[string]bool{
		"PUBLISH with names that this version does not know": true,
		"PUBLISH with a delay that the publisher will judge": true,
		"PUBLISH to a topic that the publisher will judge":   true,
		"PUBLISH of a batch with nulls, escapes and space":   true, // a header has a line break
	}
	count := 0
	for file, action := range map[string]string{"client.txt": "receive", "hub.txt": "send"} {
		text, err := os.ReadFile(filepath.Join("..", "..", "wire", "testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		title := ""
		for line := range strings.Lines(string(text)) {
			mark, rest, _ := strings.Cut(strings.TrimRight(line, "\n"), " ")
			if mark == "#" {
				title = rest
			}
			if mark != ">" && mark != "<" {
				continue
			}
			if other[title] {
				delete(other, title)
				continue
			}
			count++
			frame := withoutNull(parsed(t, []byte(rest)).(object))
			names, why := fits(d, ofAction(d, action), frame)
			if len(names) != 1 {
				t.Errorf("%s: %s: it is the messages %q: %v", file, title, names, why)
			}
		}
	}
	if count < 80 || len(other) > 0 {
		t.Errorf("there are only %d golden frames, and none of %v", count, other)
	}
}

// ofAction returns the messages that the hub receives, or that it sends.
func ofAction(d *document, action string) map[string]string {
	if action == "send" {
		return messages(d, "send")
	}
	all := make(map[string]string)
	for _, name := range d.names("/operations") {
		if at := child("/operations", name); d.find(at+"/action") == "receive" {
			addMessages(d, at+"/messages", all)
		}
	}
	return all
}

// withoutNull leaves out the members that are null, which mean absent ones, except
// payloads.
func withoutNull(v object) object {
	out := make(object)
	for name, value := range v {
		switch in := value.(type) {
		case nil:
			if name == "payload" {
				out[name] = nil
			}
			continue
		case object:
			if name != "payload" {
				value = withoutNull(in)
			}
		case []any:
			if name == "events" || name == "publish" {
				list := make([]any, len(in))
				for i := range in {
					list[i] = withoutNull(in[i].(object))
				}
				value = list
			}
		}
		out[name] = value
	}
	return out
}

// TestNoOtherOptions: the hub takes no name, in any frame, that the document does
// not list, and refuses those of options outside opts. Tried are all that are in its sources: a name that a frame reads is
// refused there with a value of the wrong type, one in opts and in events because it is
// unknown. A frame without options takes nothing in opts.
func TestNoOtherOptions(t *testing.T) {
	d := asyncAPI(t)
	receive := ofAction(d, "receive")
	// What is in one of the messages of an op is read in all of them, and judged then.
	listed, options := make(map[any]map[string]bool), make(map[any]map[string]bool)
	for _, at := range receive {
		op := d.find(child(at, "payload", "properties", "op", "const"))
		if listed[op] == nil {
			listed[op], options[op] = make(map[string]bool), make(map[string]bool)
		}
		maps.Copy(listed[op], d.properties(child(at, "payload")))
		if opts := child(at, "payload", "properties", "opts"); d.find(opts) != nil {
			maps.Copy(options[op], d.properties(opts))
		}
	}
	optionOfAny := make(map[string]bool)
	for _, of := range options {
		maps.Copy(optionOfAny, of)
	}
	all := words(t, ".", "wire")
	for message, at := range receive {
		payload := child(at, "payload")
		example := examples(d, at)[0]
		op := d.find(child(payload, "properties", "op", "const"))
		for _, word := range all {
			if !listed[op][word] && word != "opts" { // which is refused below
				frame := leased(t, example, "1-1-1")
				frame[word] = []any{object{"x": 1}}
				err := decode(t, frame)
				if misplaced := err != nil && strings.Contains(err.Error(), "belongs in"); misplaced != optionOfAny[word] {
					t.Errorf("%s has %q, which is an option of some frame: %v, and is answered: %v", message, word, optionOfAny[word], err)
				} else if err != nil && !misplaced && !strings.Contains(err.Error(), " alone takes it") {
					t.Errorf("%s reads %q, which it does not list: %v", message, word, err)
				}
			}
			if !options[op][word] {
				frame := leased(t, example, "1-1-1")
				frame["opts"] = object{word: true}
				refused(t, message, word, frame)
			}
			for _, inner := range []struct {
				schema string
				into   func(frame object, value object)
			}{
				{child(payload, "properties", "events", "items"), func(f, v object) { v["topic"], v["payload"] = "t", 1; f["events"] = []any{v} }},
				{child(payload, "properties", "publish", "items"), func(f, v object) { v["topic"], v["payload"] = "t", 1; f["publish"] = []any{v} }},
			} {
				if d.find(inner.schema) == nil || d.properties(inner.schema)[word] {
					continue
				}
				frame := leased(t, example, "1-1-1")
				inner.into(frame, object{word: true})
				refused(t, message, word, frame)
			}
		}
	}
	for _, option := range []string{"filter", "backoff", "conflate"} {
		schema := map[string]string{"filter": "/components/schemas/FilterObject", "backoff": "/components/schemas/Backoff", "conflate": "/components/schemas/TailOptions/properties/conflate"}[option]
		for _, word := range all {
			if !d.properties(schema)[word] {
				refused(t, option, word, object{"op": "SUBSCRIBE", "topic": "t", "opts": object{option: object{word: true}}})
			}
		}
	}
}

// refused checks that a frame is, because of a word that is unknown there.
func refused(t *testing.T, where, word string, frame object) {
	t.Helper()
	if err := decode(t, frame); err == nil || !strings.Contains(err.Error(), "unknown name") && !strings.Contains(err.Error(), "belongs in") &&
		!strings.Contains(err.Error(), "has no options") {
		t.Errorf("%s takes %q, which it does not list: %v", where, word, err)
	}
}

func decode(t *testing.T, frame object) error {
	t.Helper()
	text, err := json.Marshal(frame)
	if err != nil {
		t.Fatal(err)
	}
	var decoder wire.Decoder
	var req wire.Request
	return decoder.Decode(text, &req)
}
