package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub"
)

var update = flag.Bool("update", false, "rewrite the expectations in testdata")

// goldenCase is one paragraph of a golden file; testdata/README.md describes
// the format.
type goldenCase struct {
	title string
	asHex bool     // the client's frame is written as hexadecimal digits
	frame []byte   // from the client
	sent  []byte   // from the hub
	means []string // what the frame means, a line each
}

func readGolden(t testing.TB, name string) []goldenCase {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var cases []goldenCase
	titles := make(map[string]bool)
	for paragraph := range strings.SplitSeq(strings.TrimSuffix(string(text), "\n"), "\n\n") {
		c := parseGolden(t, name, paragraph)
		if titles[c.title] {
			t.Fatalf("%s: two cases are called %q", name, c.title)
		}
		titles[c.title] = true
		cases = append(cases, c)
	}
	return cases
}

func parseGolden(t testing.TB, name, paragraph string) goldenCase {
	t.Helper()
	var c goldenCase
	for line := range strings.SplitSeq(paragraph, "\n") {
		mark, rest, ok := strings.Cut(line, " ")
		if !ok || (c.title == "") != (mark == "#") {
			t.Fatalf("%s: bad line %q after title %q", name, line, c.title)
		}
		switch mark {
		case "#":
			c.title = rest
		case ">":
			c.frame = []byte(rest)
		case "x":
			frame, err := hex.DecodeString(rest)
			if err != nil {
				t.Fatalf("%s: %s: %v", name, c.title, err)
			}
			c.frame, c.asHex = frame, true
		case "<":
			c.sent = []byte(rest)
		case "=":
			c.means = append(c.means, rest)
		default:
			t.Fatalf("%s: unknown line %q", name, line)
		}
	}
	return c
}

func (c *goldenCase) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", c.title)
	switch {
	case c.asHex:
		fmt.Fprintf(&b, "x %x\n", c.frame)
	case c.frame != nil:
		fmt.Fprintf(&b, "> %s\n", c.frame)
	}
	if c.sent != nil {
		fmt.Fprintf(&b, "< %s\n", c.sent)
	}
	for _, line := range c.means {
		fmt.Fprintf(&b, "= %s\n", line)
	}
	return b.String()
}

// checkGolden compares the cases with the file, or rewrites it.
func checkGolden(t *testing.T, name string, got []goldenCase) {
	t.Helper()
	if *update {
		var b bytes.Buffer
		for i, c := range got {
			if i > 0 {
				b.WriteByte('\n')
			}
			b.WriteString(c.String())
		}
		if err := os.WriteFile(filepath.Join("testdata", name), b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := readGolden(t, name)
	for i := range min(len(got), len(want)) {
		if g, w := got[i].String(), want[i].String(); g != w {
			t.Errorf("%s, case %d\n got\n%s\nwant\n%s", name, i+1, g, w)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%s has %d cases; the test has %d", name, len(want), len(got))
	}
}

// TestGoldenClientFrames decodes every valid frame with one decoder, as a
// connection does.
func TestGoldenClientFrames(t *testing.T) {
	for _, name := range []string{"client.txt", "seeds.txt"} {
		var d Decoder
		var req Request
		cases := readGolden(t, name)
		for i := range cases {
			c := &cases[i]
			if err := d.Decode(c.frame, &req); err != nil {
				t.Errorf("%s: %s: %v", name, c.title, err)
				continue
			}
			c.means = meaning(t, &req)
		}
		checkGolden(t, name, cases)
	}
}

// TestGoldenErrors decodes every bad frame and compares the whole ERR that the
// client gets.
func TestGoldenErrors(t *testing.T) {
	var d Decoder
	var req Request
	cases := readGolden(t, "errors.txt")
	for i := range cases {
		c := &cases[i]
		err := d.Decode(c.frame, &req)
		if err == nil {
			t.Errorf("%s: %s passes", c.title, c.frame)
			continue
		}
		c.sent = AppendError(nil, req.Corr, req.HasCorr, eventhub.AsError(err))
	}
	checkGolden(t, "errors.txt", cases)
}

func TestGoldenHubFrames(t *testing.T) {
	cases := hubFrames()
	for i := range cases {
		cases[i].means = flatten(t, cases[i].sent)
	}
	checkGolden(t, "hub.txt", cases)
}

// meaning lists what the hub acts on, with the names of the protocol.
func meaning(t testing.TB, req *Request) []string {
	t.Helper()
	m := meaningLines{t: t}
	m.add("op", req.Op)
	m.addIf(req.HasCorr, "corr", req.Corr)
	m.addIf(req.HasToken, "token", req.Token)
	m.addIf(req.Name != "", "name", req.Name)
	m.addIf(req.Producer.ID != "", "producer.id", req.Producer.ID)
	m.addIf(req.Producer.Epoch != 0, "producer.epoch", req.Producer.Epoch)
	m.addIf(req.Seq != 0, "seq", req.Seq)
	m.addIf(req.Op != OpAuth && !(req.Op == OpPublish && req.Batch), "topic", req.Topic)
	m.addIf(req.Group != "", "group", req.Group)
	switch req.Op {
	case OpPublish:
		if !req.Batch {
			m.event("", &req.Event)
		}
		m.events("events", req.Events)
		m.addIf(len(req.WaitFor) > 0, "wait_for", req.WaitFor)
		m.addIf(req.WaitUpTo != 0, "wait_ms", req.WaitUpTo.Milliseconds())
	case OpCancel:
		m.add("id", req.ID)
	case OpSubscribe:
		m.subscribe(&req.Subscribe)
		m.addIf(req.Batch, "batch", true)
	case OpAck, OpNack, OpModack:
		m.settlement(&req.Settlement)
		m.events("publish", req.Events)
	}
	return m.lines
}

func (m *meaningLines) events(name string, events []eventhub.Event) {
	for i := range events {
		at := fmt.Sprintf("%s[%d].", name, i)
		m.add(at+"topic", events[i].Topic)
		m.event(at, &events[i])
	}
}

type meaningLines struct {
	t     testing.TB
	lines []string
}

func (m *meaningLines) add(name string, value any) {
	text, err := json.Marshal(value)
	if err != nil {
		m.t.Fatal(err)
	}
	m.lines = append(m.lines, name+" "+string(text))
}

func (m *meaningLines) addIf(given bool, name string, value any) {
	if given {
		m.add(name, value)
	}
}

func (m *meaningLines) event(at string, e *eventhub.Event) {
	m.lines = append(m.lines, at+"payload "+string(e.Payload))
	m.addIf(e.ID != "", at+"id", e.ID)
	m.addIf(e.TS != 0, at+"ts", e.TS)
	m.addIf(e.Key != "", at+"key", e.Key)
	m.addIf(e.SID != "", at+"sid", e.SID)
	m.addIf(len(e.Headers) > 0, at+"headers", e.Headers)
	m.addIf(len(e.Tags) > 0, at+"tags", e.Tags)
	m.addIf(len(e.CausedBy) > 0, at+"caused_by", e.CausedBy)
	m.addIf(e.Delay != 0, at+"delay_ms", e.Delay.Milliseconds())
	m.addIf(!e.DeliverAt.IsZero(), at+"deliver_at", e.DeliverAt.UnixMilli())
	m.addIf(!e.Expect.IsZero(), at+"expect."+e.Expect.String(), e.Expect.Offset)
}

func (m *meaningLines) subscribe(o *SubscribeOptions) {
	switch o.Start.Kind {
	case eventhub.StartLatest:
		m.add("from", "latest")
	case eventhub.StartEarliest:
		m.add("from", "earliest")
	case eventhub.StartTime:
		m.add("from", "ts")
		m.add("ts", o.Start.TS)
	case eventhub.StartAfterID:
		m.add("from", "after_id")
		m.add("after_id", o.Start.AfterID)
	case eventhub.StartOffset:
		m.add("from", "offset")
		m.add("offset", o.Start.Offset)
	case eventhub.StartSnapshot:
		m.add("from", "snapshot")
	}
	m.addIf(len(o.Topics) > 0, "topics", o.Topics)
	m.addIf(o.Filter != nil, "filter", o.Filter)
	m.addIf(o.Conflate != 0, "conflate.every_ms", o.Conflate.Milliseconds())
	m.addIf(o.Known != "", "known", o.Known)
	m.addIf(o.Snapshot != "", "snapshot", o.Snapshot)
	for i, p := range o.Places {
		m.add(fmt.Sprintf("places[%d]", i), fmt.Sprintf("%s:%d:%d", p.Topic, p.Offset, p.TS))
	}
	m.add("batch_size", o.BatchSize)
	m.add("max_in_flight", o.MaxInFlight)
	m.addIf(o.Group != "", "ack_timeout_ms", o.AckTimeout.Milliseconds())
	m.add("manual_ack", !o.AutoAck)
	m.addIf(o.Ordering != "", "ordering", o.Ordering)
	m.addIf(o.MaxAttempts != 0, "max_attempts", o.MaxAttempts)
	m.addIf(o.Backoff.Min != 0, "backoff.min_ms", o.Backoff.Min.Milliseconds())
	m.addIf(o.Backoff.Max != 0, "backoff.max_ms", o.Backoff.Max.Milliseconds())
}

func (m *meaningLines) settlement(s *eventhub.Settlement) {
	type ref struct {
		ID    string `json:"id,omitempty"`
		Lease string `json:"lease,omitempty"`
	}
	var refs []ref
	for _, r := range s.Refs {
		named := ref{ID: r.ID}
		if !r.Lease.IsZero() {
			named.Lease = r.Lease.String()
		}
		refs = append(refs, named)
	}
	m.add("refs", refs)
	verdicts := map[eventhub.Verdict]string{eventhub.Ack: "ACK", eventhub.Nack: "NACK", eventhub.Extend: "MODACK"}
	if op := "op " + fmt.Sprintf("%q", verdicts[s.Verdict]); m.lines[0] != op {
		m.t.Errorf("%s became the verdict %d", m.lines[0], s.Verdict)
	}
	m.addIf(s.Reason != "", "reason", s.Reason)
	m.addIf(s.Delay != 0, "delay_ms", s.Delay.Milliseconds())
	m.addIf(s.Verdict == eventhub.Nack, "terminal", s.Terminal)
	m.addIf(s.By != 0, "extend_ms", s.By.Milliseconds())
}

// flatten lists the leaves of a hub's frame, as a reader that knows nothing of
// the encoders finds them.
func flatten(t testing.TB, frame []byte) []string {
	t.Helper()
	decoder := json.NewDecoder(bytes.NewReader(frame))
	decoder.UseNumber()
	var root map[string]any
	if err := decoder.Decode(&root); err != nil {
		t.Fatalf("%s: %v", frame, err)
	}
	var lines []string
	var walk func(path string, value any)
	walk = func(path string, value any) {
		if entries, ok := value.([]any); ok && path == ".events" {
			for i, entry := range entries {
				walk(fmt.Sprintf("%s[%d]", path, i), entry)
			}
			return
		}
		if object, ok := value.(map[string]any); ok {
			for name, member := range object {
				walk(path+"."+name, member)
			}
			return
		}
		text, err := json.Marshal(value)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, strings.TrimPrefix(path, ".")+" "+string(text))
	}
	walk("", root)
	slices.Sort(lines)
	return lines
}

// hubFrames is every frame that the hub sends.
func hubFrames() []goldenCase {
	sent := func(title string, frame []byte) goldenCase { return goldenCase{title: title, sent: frame} }
	const id = "0199a6d1-7e3c-7b1a-9c55-2f6f3a1d0e11"
	info := AuthInfo{
		Hub: "hub-1", Version: "0.1.0", Protocol: ProtocolVersion, Durability: "sync",
		Limits: Limits{MaxFrameBytes: MaxFrameBytes, MaxPayloadBytes: eventhub.MaxPayloadBytes, MaxSubscriptions: 128},
	}
	withProducer := info
	withProducer.Producer = AuthProducer{ID: "billing-3", Epoch: 12, Born: 3, Seq: 4711, Window: eventhub.ProducerWindow}
	receipt := eventhub.Receipt{ID: id, Offset: 1042}
	twice := eventhub.Receipt{ID: "order-17", Offset: 17, Duplicate: true}
	later := eventhub.Receipt{ID: "mail-3", DeliverAt: time.UnixMilli(1723143600000)}
	laterAgain := eventhub.Receipt{ID: "mail-4", DeliverAt: time.UnixMilli(1723143600001), Duplicate: true}
	delivery := eventhub.Delivery{
		Topic: "process.state", Offset: 1042, Attempt: 1, MaxAttempts: 5,
		Record: eventhub.Record(`{"ts":1723140000000,"id":"` + id + `","topic":"process.state","partition":3,"key":"node-17","payload":{"state":"running"}}`),
		Lease:  eventhub.Lease{Runtime: 1 << 60, Offset: 1042, Serial: 77}, AckTimeout: 30 * time.Second,
	}
	auto := delivery
	auto.Lease, auto.AckTimeout = eventhub.Lease{}, 0
	first := delivery
	first.Epoch = 1723140000007
	sought, autoSought := first, auto
	sought.Sought, autoSought.Sought, autoSought.Epoch = true, true, 1723140000008
	again := delivery
	again.Redriven = 2
	overtaken := delivery
	overtaken.Gap = &eventhub.Gap{Topic: "process.state", After: 17, First: 1042}
	tailed := delivery
	tailed.Lease, tailed.AckTimeout, tailed.MaxAttempts = eventhub.Lease{}, 0, 0
	overtakenTail := tailed
	overtakenTail.Gap = overtaken.Gap
	firstOfState, ofState := tailed, overtakenTail
	firstOfState.State, ofState.State = &eventhub.StatePart{Snapshot: "s-3w5e11264sgsf-b4-0-sy"}, &eventhub.StatePart{}
	ofState.Offset++
	mark := func(s eventhub.StatePart) eventhub.Delivery {
		return eventhub.Delivery{Topic: "process.state", State: &s}
	}
	complete := mark(eventhub.StatePart{Complete: true, Offset: 1050, Count: 2, Snapshot: "c-3w5e11264sgsf-b4-0-t6"})
	horizon := mark(eventhub.StatePart{Horizon: 1043})
	full := delivery
	full.Offset, full.Attempt, full.Epoch, full.Sought, full.Redriven = eventhub.MaxOffset, 3, 1723140000007, true, 17
	full.Gap = &eventhub.Gap{Topic: "process.state", After: eventhub.MaxOffset - 2, First: eventhub.MaxOffset, Compacted: eventhub.MaxOffset, Tombstones: eventhub.MaxOffset}
	full.Record = eventhub.Record(`{"committed_ts":1723140000123,"id":"order-17","ts":1723140000000,"topic":"process.state","partition":0,"key":"é\n","sid":"boot-3","headers":{"x-a":"b"},"tags":["#duck"],"caused_by":["` + id + `"],"payload":null}`)
	overloaded := &eventhub.Error{Code: eventhub.CodeOverloaded, Message: "The hub is busy.", RetryAfter: 250*time.Millisecond + 1}
	late := eventhub.Errorf(eventhub.CodeWaitTimeout, "Group \"ops\" has not acked.")
	secret := eventhub.Wrap(eventhub.CodeInternal, os.ErrPermission, "Internal error; the hub's log has the cause.")

	return []goldenCase{
		sent("OK", AppendOK(nil, "c-7", true)),
		sent("OK with an empty corr", AppendOK(nil, "", true)),
		sent("OK with a corr that needs escapes", AppendOK(nil, "\"\\\n\x01é😀", true)),
		sent("OK of SUBSCRIBE, of a tail", AppendSubscribeOK(nil, "c-7", true, &Subscribed{Known: "b4-3w5e11264sgsf-lzll2ck8"})),
		sent("OK of SUBSCRIBE, of a tail that goes on elsewhere", AppendSubscribeOK(nil, "c-7", true, &Subscribed{Known: "b4-3w5e11264sgsf-lzll2ck8", Gaps: []eventhub.Gap{{Topic: "orders.eu", After: 17, First: 2000}, {Topic: "orders.us", After: 9}, {Topic: "stock", After: 41, First: 42, Compacted: 900, Tombstones: 700}}})),
		sent("OK of SUBSCRIBE, of a group that had ended", AppendSubscribeOK(nil, "c-7", true, &Subscribed{Ended: []eventhub.EndedGroup{{Topic: "orders.eu", TS: 1723140000000, Cursor: 812}, {Topic: "orders.us", TS: 1723140000001}}})),
		sent("OK of AUTH", AppendAuthOK(nil, "1", true, info)),
		sent("OK of AUTH without corr", AppendAuthOK(nil, "", false, info)),
		sent("OK of AUTH with a producer", AppendAuthOK(nil, "1", true, withProducer)),
		sent("ERR that has used a number", AppendError(nil, "3", true, &eventhub.Error{Code: eventhub.CodeConflict, Message: "no", Seq: 17})),
		sent("OK of PUBLISH", AppendPublishOK(nil, "c-7", true, receipt)),
		sent("OK of PUBLISH without corr", AppendPublishOK(nil, "", false, receipt)),
		sent("OK of PUBLISH, there already", AppendPublishOK(nil, "c-7", true, twice)),
		sent("OK of PUBLISH, scheduled", AppendPublishOK(nil, "c-7", true, later)),
		sent("OK of PUBLISH, scheduled already", AppendPublishOK(nil, "c-7", true, laterAgain)),
		sent("OK of a batch", AppendBatchOK(nil, "c-7", true, []eventhub.Receipt{receipt, {ID: "order-18", Offset: 9}})),
		sent("OK of a batch of one", AppendBatchOK(nil, "c-7", true, []eventhub.Receipt{receipt})),
		sent("OK of a batch with duplicates", AppendBatchOK(nil, "c-7", true, []eventhub.Receipt{receipt, twice, receipt, twice})),
		sent("OK of a batch with scheduled events", AppendBatchOK(nil, "c-7", true, []eventhub.Receipt{later, receipt, laterAgain})),
		sent("OK of ACK", AppendSettleOK(nil, "a1", true, []eventhub.Outcome{eventhub.Applied})),
		sent("OK of ACK that came too late", AppendSettleOK(nil, "a1", true, []eventhub.Outcome{eventhub.Stale})),
		sent("OK of ACK that came too late for a part", AppendSettleOK(nil, "a1", true, []eventhub.Outcome{eventhub.Applied, eventhub.Stale, eventhub.Applied, eventhub.Stale})),
		sent("OK of ACK that came too late for all", AppendSettleOK(nil, "a1", true, []eventhub.Outcome{eventhub.Stale, eventhub.Stale})),
		sent("ERR", AppendError(nil, "c-7", true, eventhub.Errorf(eventhub.CodeForbidden, "No right to publish to %q.", "billing.paid"))),
		sent("ERR without corr", AppendError(nil, "", false, eventhub.Errorf(eventhub.CodeBadJSON, "the frame is empty"))),
		sent("ERR with a time to wait, rounded up", AppendError(nil, "c-7", true, overloaded)),
		sent("ERR that ends a subscription", AppendError(nil, "", false, &eventhub.Error{Code: eventhub.CodeShuttingDown, Message: `the subscription of topic "process.*" as group "ops" has ended: The hub stops.`, Topic: "process.*", Group: "ops"})),
		sent("ERR that ends a live tail", AppendError(nil, "", false, &eventhub.Error{Code: eventhub.CodeShuttingDown, Message: `the live tail of topic "process.*" has ended: The hub stops.`, Topic: "process.*"})),
		sent("ERR of the first event of a batch", AppendError(nil, "c-7", true, eventhub.AtIndex(eventhub.Errorf(eventhub.CodeBadTopic, "topic is missing"), "events", 0))),
		sent("ERR of a condition that does not hold", AppendError(nil, "c-7", true, conflict(18))),
		sent("ERR of a condition in a batch, of a key without events", AppendError(nil, "", false, eventhub.AtIndex(conflict(0), "events", 0))),
		sent("ERR of a PUBLISH that is in the log", AppendPublishError(nil, "c-7", true, late, []eventhub.Receipt{receipt}, false)),
		sent("ERR of a PUBLISH that is in the log, there already", AppendPublishError(nil, "", false, late, []eventhub.Receipt{twice}, false)),
		sent("ERR of a batch that is in the log", AppendPublishError(nil, "c-7", true, late, []eventhub.Receipt{receipt, twice}, true)),
		sent("ERR keeps its cause to itself", AppendError(nil, "c-7", true, secret)),
		sent("EVENT", NewEventFrame("process.state", "ops").Append(nil, &delivery)),
		sent("EVENT of a pattern", NewEventFrame("process.*", "ops").Append(nil, &delivery)),
		sent("EVENT that counts as acked when sent", NewEventFrame("process.state", "ops").Append(nil, &auto)),
		sent("EVENT that is the first of a member", NewEventFrame("process.state", "ops").Append(nil, &first)),
		sent("EVENT that is the first after a seek", NewEventFrame("process.state", "ops").Append(nil, &sought)),
		sent("EVENT that counts as acked, the first after a seek", NewEventFrame("process.state", "ops").Append(nil, &autoSought)),
		sent("EVENT that was redriven twice", NewEventFrame("process.state", "ops").Append(nil, &again)),
		sent("EVENT after events that were removed", NewEventFrame("process.state", "ops").Append(nil, &overtaken)),
		sent("EVENT with all there can be", NewEventFrame("process.state", "ops").Append(nil, &full)),
		sent("EVENT of a live tail", NewEventFrame("process.state", "").Append(nil, &tailed)),
		sent("EVENT of a live tail after events that were removed", NewEventFrame("process.state", "").Append(nil, &overtakenTail)),
		sent("EVENT of a live tail with all there can be", NewEventFrame("process.**", "").Append(nil, &full)),
		sent("EVENTS", NewEventFrame("process.*", "ops").AppendAll(nil, []eventhub.Delivery{first, overtaken, sought, again})),
		sent("EVENTS with one event", NewEventFrame("process.state", "ops").AppendAll(nil, []eventhub.Delivery{full})),
		sent("EVENTS that count as acked when sent", NewEventFrame("process.state", "ops").AppendAll(nil, []eventhub.Delivery{auto, auto})),
		sent("EVENT of a state, the first", NewEventFrame("process.state", "").Append(nil, &firstOfState)),
		sent("EVENT of a state", NewEventFrame("process.state", "").Append(nil, &ofState)),
		sent("EVENTS of a state", NewEventFrame("process.state", "").AppendAll(nil, []eventhub.Delivery{firstOfState, ofState})),
		sent("STATE where the state is complete", NewEventFrame("process.state", "").Append(nil, &complete)),
		sent("STATE where events were removed", NewEventFrame("process.state", "").AppendAll(nil, []eventhub.Delivery{horizon})),
		sent("EVENTS of a live tail", NewEventFrame("process.**", "").AppendAll(nil, []eventhub.Delivery{overtakenTail, tailed, full})),
	}
}

// conflict is the error of a condition.
func conflict(present uint64) *eventhub.Error {
	err := eventhub.Errorf(eventhub.CodeConflict, `the newest offset of the event's key in topic "stock" is %d; 17 was expected`, present)
	err.Present = &present
	return err
}
