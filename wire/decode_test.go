package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
)

// rawMember is one member of an object as it is.
type rawMember struct{ name, value string }

func rawMembers(t testing.TB, object string) []rawMember {
	t.Helper()
	d := jsontext.NewDecoder(strings.NewReader(object))
	if _, err := d.ReadToken(); err != nil {
		t.Fatal(err)
	}
	var members []rawMember
	for d.PeekKind() != '}' {
		name, err := d.ReadValue()
		if err != nil {
			t.Fatal(err)
		}
		m := rawMember{name: string(name)}
		value, err := d.ReadValue()
		if err != nil {
			t.Fatal(err)
		}
		m.value = string(value)
		members = append(members, m)
	}
	return members
}

func joinMembers(members []rawMember) string {
	var parts []string
	for _, m := range members {
		parts = append(parts, m.name+":"+m.value)
	}
	return "{" + strings.Join(parts, ",") + "}"
}

// validCases are the frames of all golden files that decode.
func validCases(t testing.TB) []goldenCase {
	return append(readGolden(t, "client.txt"), readGolden(t, "seeds.txt")...)
}

func newRand(t testing.TB) *rand.Rand {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

func decode(t testing.TB, frame string) (Request, error) {
	t.Helper()
	var d Decoder
	var req Request
	err := d.Decode([]byte(frame), &req)
	return req, err
}

func mustDecode(t testing.TB, frame string) Request {
	t.Helper()
	req, err := decode(t, frame)
	if err != nil {
		t.Fatalf("%s: %v", frame, err)
	}
	return req
}

func TestOrderOfMembersIsFree(t *testing.T) {
	rng := newRand(t)
	for _, c := range validCases(t) {
		for range 20 {
			members := rawMembers(t, string(c.frame))
			for i, m := range members {
				if m.name == `"opts"` && m.value[0] == '{' {
					opts := rawMembers(t, m.value)
					rng.Shuffle(len(opts), func(i, j int) { opts[i], opts[j] = opts[j], opts[i] })
					members[i].value = joinMembers(opts)
				}
			}
			rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			frame := joinMembers(members)
			req := mustDecode(t, frame)
			if got := meaning(t, &req); !slices.Equal(got, c.means) {
				t.Fatalf("%s means\n%q\nas %s it means\n%q", c.frame, c.means, frame, got)
			}
		}
	}
}

// TestErrorsDoNotDependOnOrder moves corr and everything else around in frames
// that are refused: the ERR stays the same, corr included.
func TestErrorsDoNotDependOnOrder(t *testing.T) {
	rng := newRand(t)
	for _, c := range readGolden(t, "errors.txt") {
		if bytes.Contains(c.sent, []byte(`"bad_json"`)) {
			continue
		}
		for range 20 {
			members := rawMembers(t, string(c.frame))
			rng.Shuffle(len(members), func(i, j int) { members[i], members[j] = members[j], members[i] })
			frame := joinMembers(members)
			req, err := decode(t, frame)
			if err == nil {
				t.Fatalf("%s passes", frame)
			}
			if got := AppendError(nil, req.Corr, req.HasCorr, eventhub.AsError(err)); !bytes.Equal(got, c.sent) {
				t.Fatalf("%s\n got %s\nwant %s", frame, got, c.sent)
			}
		}
	}
}

// TestOpIsKnownOnErrors: the gateway must know what it refuses, to distinguish a frame
// before AUTH from a bad AUTH.
func TestOpIsKnownOnErrors(t *testing.T) {
	for _, c := range readGolden(t, "errors.txt") {
		var said struct{ Op any }
		if json.Unmarshal(c.frame, &said) != nil || bytes.Contains(c.sent, []byte(`"bad_json"`)) {
			continue
		}
		req, _ := decode(t, string(c.frame))
		if op, _ := said.Op.(string); string(req.Op) != op {
			t.Errorf("%s: op %q became %q", c.title, op, req.Op)
		}
	}
}

// topLevel are the names that frames have besides payload.
var topLevel = []string{"op", "corr", "token", "name", "topic", "group", "opts", "id", "ids", "lease", "reason",
	"delay_ms", "terminal", "extend_ms", "events", "publish"}

// TestNullIsAbsent adds every member that a frame does not have, as null, and
// some that nobody knows.
func TestNullIsAbsent(t *testing.T) {
	for _, c := range validCases(t) {
		members := rawMembers(t, string(c.frame))
		for _, name := range topLevel {
			quoted := strconv.Quote(name)
			escaped := slices.ContainsFunc(members, func(m rawMember) bool { return strings.Contains(m.name, `\`) })
			if !escaped && !slices.ContainsFunc(members, func(m rawMember) bool { return m.name == quoted }) {
				members = append(members, rawMember{quoted, "null"})
			}
		}
		members = append(members, rawMember{`"later"`, `{"x":[1]}`}, rawMember{`""`, "true"})
		req := mustDecode(t, joinMembers(members))
		if got := meaning(t, &req); !slices.Equal(got, c.means) {
			t.Errorf("%s means\n%q\nwith nulls it means\n%q", c.frame, c.means, got)
		}
	}
}

// TestBrokenOffFrames cuts every frame at every place: what was read before the
// cut is kept, nothing is made up.
func TestBrokenOffFrames(t *testing.T) {
	var d Decoder
	for _, c := range validCases(t) {
		whole := mustDecode(t, string(c.frame))
		members := rawMembers(t, string(c.frame))
		last := members[len(members)-1]
		for cut := range len(bytes.TrimRight(c.frame, " ")) {
			var req Request
			err := d.Decode(c.frame[:cut], &req)
			if eventhub.ErrorCode(err) != eventhub.CodeBadJSON {
				t.Fatalf("%s: error %v", c.frame[:cut], err)
			}
			if req.HasCorr && req.Corr != whole.Corr || req.Op != "" && req.Op != whole.Op {
				t.Fatalf("%s was read as op %q, corr %q", c.frame[:cut], req.Op, req.Corr)
			}
		}
		if last.name == `"op"` || last.name == `"corr"` {
			continue
		}
		end := bytes.LastIndexByte(c.frame, '}')
		var req Request
		if err := d.Decode(c.frame[:end], &req); err == nil {
			t.Fatalf("%s passes", c.frame[:end])
		}
		if req.Op != whole.Op || req.Corr != whole.Corr || req.HasCorr != whole.HasCorr {
			t.Errorf("%s lost op or corr: %q, %q", c.frame[:end], req.Op, req.Corr)
		}
	}
}

// TestRequestsAreIndependent decodes frames one after another, out of one
// buffer into one Request, as a session does. What was taken out of the Request
// before must stay as it was; the payload alone is the buffer's.
func TestRequestsAreIndependent(t *testing.T) {
	var d Decoder
	var req Request
	var buffer []byte
	var kept []Request
	cases := validCases(t)
	for _, c := range cases {
		buffer = append(buffer[:0], c.frame...)
		if err := d.Decode(buffer, &req); err != nil {
			t.Fatal(err)
		}
		req.Event.Payload = bytes.Clone(req.Event.Payload)
		for i := range req.Events {
			req.Events[i].Payload = bytes.Clone(req.Events[i].Payload)
		}
		kept = append(kept, req)
		req.Events = nil                                              // kept
		_ = append(req.Settlement.Refs, eventhub.Ref{ID: "appended"}) // into nobody's memory
		for i := range buffer {
			buffer[i] = '?'
		}
	}
	for i := range kept {
		if got := meaning(t, &kept[i]); !slices.Equal(got, cases[i].means) {
			t.Errorf("%s: became\n%q\nwant\n%q", cases[i].title, got, cases[i].means)
		}
	}
}

func TestPayloadIsPartOfFrame(t *testing.T) {
	frame := []byte(`{"op":"PUBLISH","topic":"t","payload": {"a":1} ,"corr":"x"}`)
	var d Decoder
	var req Request
	if err := d.Decode(frame, &req); err != nil {
		t.Fatal(err)
	}
	frame[bytes.IndexByte(frame, '1')] = '2'
	if got := string(req.Event.Payload); got != `{"a":2}` {
		t.Errorf("payload is %s after its frame changed; want a part of the frame", got)
	}
	if cap(req.Event.Payload) != len(req.Event.Payload) {
		t.Error("appending to the payload would write into the frame")
	}
}

// repeat joins n values made by format, which has one %d.
func repeat(n int, format string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(parts, ",")
}

func TestLimits(t *testing.T) {
	for _, tt := range []struct {
		name  string
		frame string // with one %s
		value func(n int) string
		most  int
		code  eventhub.Code
	}{
		{"corr", `{"op":"AUTH","corr":"%s"}`, func(n int) string { return strings.Repeat("c", n) }, MaxCorrBytes, eventhub.CodeBadRequest},
		{"corr in runes", `{"op":"AUTH","corr":"x%s"}`, func(n int) string { return strings.Repeat("é", n) }, (MaxCorrBytes - 1) / 2, eventhub.CodeBadRequest},
		{"ids", `{"op":"ACK","topic":"t","group":"g","ids":[%s]}`, func(n int) string { return repeat(n, `"id-%d"`) }, MaxRefs, eventhub.CodeBadRequest},
		{"leases", `{"op":"ACK","topic":"t","group":"g","lease":[%s]}`, func(n int) string { return repeat(n, `"1-%d-1"`) }, MaxRefs, eventhub.CodeBadRequest},
		{"events", `{"op":"PUBLISH","events":[%s]}`, func(n int) string { return repeat(n, `{"topic":"t","payload":%d}`) }, MaxEvents, eventhub.CodeBadRequest},
		{"publish", `{"op":"ACK","topic":"t","group":"g","id":"x","publish":[%s]}`, func(n int) string { return repeat(n, `{"topic":"t","payload":%d}`) }, MaxEvents, eventhub.CodeBadRequest},
		{"wait_for", `{"op":"PUBLISH","topic":"t","payload":1,"opts":{"wait_for":[%s]}}`, func(n int) string { return repeat(n, `"g%d"`) }, eventhub.MaxWaitFor, eventhub.CodeBadRequest},
		{"wait_ms", `{"op":"PUBLISH","topic":"t","payload":1,"opts":{"wait_for":["g"],"wait_ms":%s}}`, strconv.Itoa, 300_000, eventhub.CodeBadRequest},
		{"topics", `{"op":"SUBSCRIBE","topic":"t","opts":{"topics":[%s]}}`, func(n int) string { return repeat(n, `"t%d.*"`) }, eventhub.MaxPatterns, eventhub.CodeBadRequest},
		{"filter", `{"op":"SUBSCRIBE","topic":"t","opts":{"filter":"%s"}}`, func(n int) string { return strings.Repeat("x", n) }, eventhub.MaxFilterBytes, eventhub.CodeBadRequest},
		{"filter.tags", `{"op":"SUBSCRIBE","topic":"t","opts":{"filter":{"tags":[%s]}}}`, func(n int) string { return repeat(n, `"t%d"`) }, eventhub.MaxTags, eventhub.CodeBadRequest},
		{"filter.headers", `{"op":"SUBSCRIBE","topic":"t","opts":{"filter":{"headers":{%s}}}}`, func(n int) string { return repeat(n, `"x-%d":"v"`) }, eventhub.MaxHeaders, eventhub.CodeBadRequest},
		{"conflate.every_ms", `{"op":"SUBSCRIBE","topic":"t","opts":{"conflate":{"every_ms":%s}}}`, strconv.Itoa, 3_600_000, eventhub.CodeBadRequest},
		{"pattern", `{"op":"UNSUBSCRIBE","topic":"*.%s","group":"g"}`, func(n int) string { return strings.Repeat("t", n) }, eventhub.MaxTopicBytes - 2, eventhub.CodeBadTopic},
		{"tags", `{"op":"PUBLISH","topic":"t","payload":1,"opts":{"tags":[%s]}}`, func(n int) string { return repeat(n, `"t%d"`) }, eventhub.MaxTags, eventhub.CodeBadEvent},
		{"caused_by", `{"op":"PUBLISH","topic":"t","payload":1,"opts":{"caused_by":[%s]}}`, func(n int) string { return repeat(n, `"t%d"`) }, eventhub.MaxCausedBy, eventhub.CodeBadEvent},
		{"headers", `{"op":"PUBLISH","topic":"t","payload":1,"opts":{"headers":{%s}}}`, func(n int) string { return repeat(n, `"x-%d":"v"`) }, eventhub.MaxHeaders, eventhub.CodeBadEvent},
		{"reason", `{"op":"NACK","topic":"t","group":"g","id":"x","reason":"%s"}`, func(n int) string { return strings.Repeat("r", n) }, 1 << 10, eventhub.CodeBadRequest},
		{"topic", `{"op":"UNSUBSCRIBE","topic":"%s","group":"g"}`, func(n int) string { return strings.Repeat("t", n) }, eventhub.MaxTopicBytes, eventhub.CodeBadTopic},
		{"group", `{"op":"UNSUBSCRIBE","topic":"t","group":"%s"}`, func(n int) string { return strings.Repeat("g", n) }, eventhub.MaxGroupBytes, eventhub.CodeBadRequest},
	} {
		if _, err := decode(t, fmt.Sprintf(tt.frame, tt.value(tt.most))); err != nil {
			t.Errorf("%s at its limit: %v", tt.name, err)
		}
		_, err := decode(t, fmt.Sprintf(tt.frame, tt.value(tt.most+1)))
		if eventhub.ErrorCode(err) != tt.code {
			t.Errorf("%s above its limit: error %v; want one with %s", tt.name, err, tt.code)
		}
	}
}

// TestManyOptionsAreRefused has more members in opts than are looked at: the
// unknown one is found whether it is among those or not.
func TestManyOptionsAreRefused(t *testing.T) {
	for _, opts := range []string{
		repeat(10*maxOptions, `"x%d":null`),
		`"key":"k",` + repeat(maxOptions, `"x%d":1`),
	} {
		_, err := decode(t, `{"op":"PUBLISH","topic":"t","payload":1,"opts":{`+opts+`}}`)
		if eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
			t.Errorf("error %v; want one with bad_request", err)
		}
	}
}

// TestDecoderKeepsLittle: a connection that once sent something monstrous does
// not hold its memory for ever.
func TestDecoderKeepsLittle(t *testing.T) {
	var d Decoder
	var req Request
	for _, frame := range []string{
		`{"op":"PUBLISH","topic":"t","payload":1,"opts":{` + repeat(10_000, `"x%d":1`) + `}}`,
		`{"op":"PUBLISH","topic":"` + strings.Repeat(`\u0041`, 100_000) + `","payload":1}`,
		`{"op":"PUBLISH","events":[` + repeat(1_000, `{"topic":"t","payload":%d}`) + `]}`,
		`{"op":"AUTH"}`,
	} {
		err := d.Decode([]byte(frame), &req)
		t.Logf("%d bytes: %v", len(frame), err)
	}
	if cap(d.opts) > 2*maxOptions || cap(d.text) > maxKeptText {
		t.Errorf("the decoder keeps %d options and %d bytes of text", cap(d.opts), cap(d.text))
	}
	if cap(req.Events) > keptEvents {
		t.Errorf("the request keeps %d events", cap(req.Events))
	}
	for _, topic := range d.topics {
		if len(topic) > eventhub.MaxTopicBytes {
			t.Errorf("the decoder keeps a topic of %d bytes", len(topic))
		}
	}
}

// TestDeepPayload nests as deep as the JSON reader goes and beyond.
func TestDeepPayload(t *testing.T) {
	for _, tt := range []struct {
		depth int
		ok    bool
	}{{1_000, true}, {100_000, false}} {
		payload := strings.Repeat("[", tt.depth) + strings.Repeat("]", tt.depth)
		req, err := decode(t, `{"op":"PUBLISH","corr":"deep","topic":"t","payload":`+payload+`}`)
		if (err == nil) != tt.ok {
			t.Errorf("%d levels: error %v", tt.depth, err)
		}
		if !tt.ok && (eventhub.ErrorCode(err) != eventhub.CodeBadJSON || req.Corr != "deep") {
			t.Errorf("%d levels: error %v, corr %q", tt.depth, err, req.Corr)
		}
	}
	for depth := 9_990; depth < 10_010; depth++ {
		payload := strings.Repeat("[", depth) + strings.Repeat("]", depth)
		checkPlain(t, []byte(`{"op":"PUBLISH","topic":"t","payload":`+payload+`}`))
	}
}

// TestSecretsStayOutOfErrors has tokens where they do not belong.
func TestSecretsStayOutOfErrors(t *testing.T) {
	for _, frame := range []string{
		`{"op":"AUTH","token":["s3cret"]}`,
		`{"op":"AUTH","token":{"s3cret":1}}`,
		`{"op":"AUTH","token":"s3cret"`,
		`{"op":"LOGIN","token":"s3cret"}`,
	} {
		_, err := decode(t, frame)
		if err == nil || strings.Contains(eventhub.AsError(err).Message, "s3cret") {
			t.Errorf("%s: error %v; want one without the token", frame, err)
		}
	}
}

// TestDecodeAllocations holds the frames of the hot path to the copies that
// must be: the strings of a Request, not what leads to them.
func TestDecodeAllocations(t *testing.T) {
	for _, tt := range []struct {
		name, frame string
		most        float64
	}{
		{"PUBLISH", `{"op":"PUBLISH","topic":"process.state","payload":{"a":[1,2,{"b":"c"}]},"corr":"c-000123"}`, 1},                                     // corr
		{"ACK", `{"op":"ACK","topic":"process.state","group":"ops","id":"0199a6d1-7e3c-7b1a-9c55-2f6f3a1d0e11"}`, 1.2},                                   // id
		{"ACK by lease", `{"op":"ACK","topic":"process.state","group":"ops","lease":"1k3f9zq0x8w2a-rs-5"}`, 0.2},                                         // a chunk of refs now and then
		{"ACK of many", `{"op":"ACK","topic":"process.state","group":"ops","ids":[` + repeat(100, `"order-%d"`) + `]}`, 101},                             // ids and refs
		{"PUBLISH of a batch", `{"op":"PUBLISH","corr":"7","events":[` + repeat(64, `{"topic":"process.state","payload":{"n":%d,"a":["b"]}}`) + `]}`, 1}, // corr
		{"ACK by pattern", `{"op":"ACK","topic":"process.*","group":"ops","lease":"1k3f9zq0x8w2a-rs-5"}`, 0.2},
	} {
		var d Decoder
		var req Request
		frame := []byte(tt.frame)
		got := testing.AllocsPerRun(1_000, func() {
			if err := d.Decode(frame, &req); err != nil {
				t.Fatal(err)
			}
		})
		if got > tt.most {
			t.Errorf("%s takes %v allocations; want at most %v", tt.name, got, tt.most)
		}
	}
}
