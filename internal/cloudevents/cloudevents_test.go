package cloudevents

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/internal/record"
	"eventhub/internal/record/layout"
)

func header(pairs ...string) http.Header {
	h := make(http.Header)
	for i := 0; i < len(pairs); i += 2 {
		h.Add(pairs[i], pairs[i+1])
	}
	return h
}

func TestModeOf(t *testing.T) {
	for _, tt := range []struct {
		header http.Header
		want   Mode
		fails  bool
	}{
		{header("Content-Type", "application/json"), None, false},
		{header("Ce-Type", "t"), None, false},
		{header("Ce-Specversion", "1.0"), Binary, false},
		{header("Ce-Specversion", "0.3", "Content-Type", "text/plain"), Binary, false},
		{header("Content-Type", "Application/CloudEvents+JSON; charset=UTF-8"), Structured, false},
		{header("Content-Type", "application/cloudevents+json", "Ce-Specversion", "1.0"), Structured, false},
		{header("Content-Type", "application/cloudevents-batch+json"), Batched, false},
		{header("Content-Type", "application/cloudevents+json; charset=latin1"), None, true},
		{header("Content-Type", "application/cloudevents+avro"), None, true},
		{header("Content-Type", "application/cloudevents"), None, true},
	} {
		got, err := ModeOf(tt.header)
		if got != tt.want || errors.Is(err, ErrMediaType) != tt.fails || (err != nil) != tt.fails {
			t.Errorf("%v is %d, %v", tt.header, got, err)
		}
	}
}

// whole is what both ways to say it make of all that one CloudEvent can say.
var whole = eventhub.Event{
	ID: "i-1", TS: 1522949465678, Topic: "t", Key: "s é", CausedBy: []string{"a", "b"},
	Headers: map[string]string{
		"ce-source": "urn:s", "ce-type": "com.example.x", "ce-dataschema": "https://x/y", "ce-datacontenttype": "application/vnd.x+json",
		"ce-myext": "5", "ce-flag": "true", "traceparent": "00-1-2-01", "tracestate": "k=v", "x-correlation-id": "cart",
	},
	Payload: []byte(`{"n": 1.0}`),
}

func TestRead(t *testing.T) {
	base := eventhub.Event{Topic: "t"}
	structured, err := ReadStructured([]byte(`{"specversion":"1.0","id":"i-1","source":"urn:s","type":"com.example.x","time":"2018-04-05T20:31:05.678912+03:00","subject":"s é",
		"dataschema":"https://x/y","datacontenttype":"application/vnd.x+json","myext":5,"flag":true,"gone":null,"traceparent":"00-1-2-01","tracestate":"k=v",
		"correlationid":"cart","causedby":"a, b","eventhubtopic":"elsewhere","eventhuboffset":"7","data":{"n": 1.0}}`), base)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, structured); diff != "" {
		t.Errorf("structured (-want +got):\n%s", diff)
	}
	binary, err := ReadBinary(header("Ce-Specversion", "1.0", "Ce-Id", "i-1", "Ce-Source", `"urn:\s"`, "Ce-Type", "com.example.x", "Ce-Time", "2018-04-05T17:31:05.678Z",
		"Ce-Subject", "s%20%C3%a9", "Ce-Dataschema", "https://x/y", "Content-Type", "application/vnd.x+json", "Ce-Myext", "5", "Ce-Flag", "true",
		"Ce-Traceparent", "00-1-2-01", "Ce-Tracestate", "k=v", "Ce-Correlationid", "cart", "Ce-Causedby", "a,b", "Ce-Eventhubtopic", "x", "X-Other", "kept by others"),
		[]byte(" {\"n\": 1.0}\n"), base)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, binary); diff != "" {
		t.Errorf("binary (-want +got):\n%s", diff)
	}
	list, err := ReadBatch([]byte(`[{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"eyJhIjoxfQ==","causedby":"w"},{"specversion":"1.0","id":"2","source":"s","type":"t","causedby":"x"}]`),
		eventhub.Event{Topic: "t", Headers: map[string]string{"x-a": "1"}, CausedBy: make([]string, 0, 4)}, 2)
	want := []eventhub.Event{
		{ID: "1", Topic: "t", Headers: map[string]string{"x-a": "1", "ce-source": "s", "ce-type": "t"}, Payload: []byte(`{"a":1}`), CausedBy: []string{"w"}},
		{ID: "2", Topic: "t", Headers: map[string]string{"x-a": "1", "ce-source": "s", "ce-type": "t"}, Payload: []byte(`null`), CausedBy: []string{"x"}},
	}
	if diff := cmp.Diff(want, list); diff != "" || err != nil {
		t.Errorf("batch: %v (-want +got):\n%s", err, diff)
	}
	if list, err := ReadBatch([]byte(` [] `), base, 0); err != nil || len(list) != 0 {
		t.Errorf("an empty batch is %v, %v", list, err)
	}
}

// TestKey: which of the things that can be a key is, and that nothing of the others
// is lost on the way out.
func TestKey(t *testing.T) {
	for _, tt := range []struct {
		name, base, members      string
		key, subject, outSubject string // subject: the header
	}{
		{"none", "", ``, "", "", ""},
		{"subject", "", `,"subject":"s"`, "s", "", "s"},
		{"partitionkey", "", `,"partitionkey":"p"`, "p", "", ""},
		{"both", "", `,"subject":"s","partitionkey":"p"`, "p", "s", "s"},
		{"both alike", "", `,"subject":"s","partitionkey":"s"`, "s", "s", "s"},
		{"given", "k", `,"subject":"s"`, "k", "s", "s"},
		{"given alone", "k", ``, "k", "", "k"},
		{"given and partitionkey", "k", `,"partitionkey":"p"`, "k", "", "k"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := ReadStructured([]byte(`{"specversion":"1.0","id":"1","source":"s","type":"t"`+tt.members+`}`), eventhub.Event{Topic: "t", Key: tt.base})
			if err != nil || e.Key != tt.key || e.Headers["ce-subject"] != tt.subject {
				t.Errorf("key %q, header %q, %v", e.Key, e.Headers["ce-subject"], err)
			}
			out := written(t, &e)
			if e, err := ReadStructured(out, eventhub.Event{}); err != nil || subjectOf(&e) != tt.outSubject {
				t.Errorf("written as %s, %v", out, err)
			}
		})
	}
}

func subjectOf(e *eventhub.Event) string {
	if s := e.Headers["ce-subject"]; s != "" || e.Headers["ce-partitionkey"] != "" {
		return s
	}
	return e.Key
}

func written(t *testing.T, e *eventhub.Event) []byte {
	t.Helper()
	r, err := record.Append(nil, e)
	if err != nil {
		t.Fatal(err)
	}
	layout.SetCommitTime(r, 1723140000001)
	out, err := AppendStructured(nil, e.Topic, 7, r)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestRefusals(t *testing.T) {
	const whole = `{"specversion":"1.0","id":"1","source":"s","type":"t"`
	for _, tt := range []struct {
		body, says string
		code       eventhub.Code
	}{
		{`{"specversion":"0.3","id":"1","source":"s","type":"t"}`, `specversion is "0.3"; 1.0`, eventhub.CodeBadEvent},
		{`{"id":"1","source":"s","type":"t"}`, "specversion is missing", eventhub.CodeBadEvent},
		{`{"specversion":"1.0","id":"","source":"s","type":"t"}`, "id is missing or empty", eventhub.CodeBadEvent},
		{`{"specversion":"1.0","id":"1","type":"t"}`, "source is missing", eventhub.CodeBadEvent},
		{`{"specversion":"1.0","id":"1","source":"s","type":null}`, "type is missing", eventhub.CodeBadEvent},
		{`{"specversion":"1.0","id":"1","source":":%","type":"t"}`, `source is ":%"`, eventhub.CodeBadEvent},
		{whole + `,"subject":""}`, "subject is empty", eventhub.CodeBadEvent},
		{whole + `,"time":"yesterday"}`, `time is "yesterday"`, eventhub.CodeBadEvent},
		{whole + `,"time":"1969-12-31T23:59:59Z"}`, "time is", eventhub.CodeBadEvent},
		{whole + `,"x-y":"1"}`, `"x-y" can not be`, eventhub.CodeBadEvent},
		{whole + `,"Data":"1"}`, `"Data" can not be`, eventhub.CodeBadEvent},
		{whole + `,"ext":{"a":1}}`, `"ext" is {"a":1}`, eventhub.CodeBadEvent},
		{whole + `,"ext":1.5}`, `"ext" is 1.5`, eventhub.CodeBadEvent},
		{whole + `,"ext":2147483648}`, `2147483648`, eventhub.CodeBadEvent},
		{whole + `,"data":1,"data_base64":"MQ=="}`, "both data and data_base64", eventhub.CodeBadEvent},
		{whole + `,"data_base64":"?"}`, "data_base64 is not base64", eventhub.CodeBadEvent},
		{whole + `,"data_base64":1}`, "data_base64 is not a string", eventhub.CodeBadEvent},
		{whole + `,"datacontenttype":"text/plain","data":"x"}`, `the data is "text/plain"`, eventhub.CodeBadRequest},
		{whole + `,"datacontenttype":"application/json; charset=utf-16","data":"x"}`, "utf-16", eventhub.CodeBadRequest},
		{`{"specversion":"1.0","specversion":"1.0"}`, "duplicate name", eventhub.CodeBadJSON},
		{`{"specversion"`, "invalid JSON at byte", eventhub.CodeBadJSON},
		{`[]`, "array", eventhub.CodeBadRequest},
	} {
		_, err := ReadStructured([]byte(tt.body), eventhub.Event{})
		if eventhub.ErrorCode(err) != tt.code || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: %v", tt.body, err)
		}
	}
	for _, tt := range []struct {
		header http.Header
		says   string
	}{
		{header("Ce-Id", "2"), "ce-id is given 2 times"},
		{header("Ce-My-Ext", "2"), `"my-ext" can not be`},
		{header("Ce-Data", "2"), `"data" can not be`},
		{header("Ce-Datacontenttype", "application/json"), "Content-Type says it"},
		{header("Ce-Ext", "%ff"), "ce-ext is not UTF-8"},
		{header("Content-Type", "application/x-www-form-urlencoded"), "x-www-form-urlencoded"},
	} {
		for name, values := range header("Ce-Specversion", "1.0", "Ce-Id", "1", "Ce-Source", "s", "Ce-Type", "t") {
			tt.header[name] = append(tt.header[name], values...)
		}
		if _, err := ReadBinary(tt.header, []byte("1"), eventhub.Event{}); err == nil || !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%v: %v", tt.header, err)
		}
	}
	if _, err := ReadBatch([]byte(`[`+whole+`},{"id":"x"}]`), eventhub.Event{}, 9); err == nil || !strings.Contains(err.Error(), "events[1]: CloudEvent: specversion is missing") {
		t.Errorf("a bad event in a batch: %v", err)
	}
	if _, err := ReadBatch([]byte(`[`+whole+`,"datacontenttype":"a/b"}]`), eventhub.Event{}, 9); !errors.Is(err, ErrMediaType) {
		t.Errorf("data of another type in a batch: %v", err)
	}
	for body, says := range map[string]string{
		`[` + whole + `},` + whole + `},` + whole + `}]`:                       "more than 2 events",
		`[` + whole + `,"data":"` + strings.Repeat("x", MaxEventBytes) + `"}]`: "events[0]: the CloudEvent has",
		`null`:                                  "bad_request: the batch is null",
		`[1]`:                                   "bad_request: events[0]: CloudEvent: the value can not be such a number",
		`[` + whole + `},]`:                     "bad_json: CloudEvent: invalid JSON at byte",
		`[` + whole + `}] x`:                    "bad_json: CloudEvent: invalid JSON at byte",
		`[` + whole + `,"data":{"a":1,"a":1}}]`: "bad_json: CloudEvent: duplicate name",
	} {
		if events, err := ReadBatch([]byte(body), eventhub.Event{}, 2); err == nil || events != nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%.100s: %v", body, err)
		}
	}
}

func TestUnescape(t *testing.T) {
	for value, want := range map[string]string{
		"plain":                           "plain",
		"50%":                             "50%",
		"50%2":                            "50%2",
		"%zz%41":                          "%zzA",
		"%2541":                           "%41", // one round
		`"a \"b\" \\"`:                    `a "b" \`,
		`"`:                               `"`,
		"Euro%20%E2%82%AC%20%F0%9F%98%80": "Euro € 😀",
	} {
		if got := unescape(value); got != want {
			t.Errorf("%q is %q; want %q", value, got, want)
		}
	}
}

func TestAppendStructured(t *testing.T) {
	plain := eventhub.Event{ID: "1", Topic: "a.b", Payload: []byte(`"<é"`), Headers: map[string]string{
		"ce-datacontenttype": "text/plain", "ce-id": "x", "ce-time": "x", "ce-specversion": "9", "ce-a-b": "x", "ce-empty": "", "x-a": "1", "Ce-Up": "é",
	}}
	const want = `{"specversion":"1.0","id":"1","source":"/eventhub/a.b","type":"a.b","time":"2024-08-08T18:00:00.001Z","datacontenttype":"application/json",` +
		`"eventhuboffset":"7","eventhubtopic":"a.b","up":"é","data":"<é"}`
	if got := written(t, &plain); string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	const wholeWant = `{"specversion":"1.0","id":"i-1","source":"urn:s","type":"com.example.x","time":"2018-04-05T17:31:05.678Z","subject":"s é","datacontenttype":"application/vnd.x+json",` +
		`"dataschema":"https://x/y","causedby":"a,b","correlationid":"cart","eventhuboffset":"7","eventhubtopic":"t","flag":"true","myext":"5","traceparent":"00-1-2-01","tracestate":"k=v","data":{"n":1.0}}`
	if got := written(t, &whole); string(got) != wholeWant {
		t.Errorf("got  %s\nwant %s", got, wholeWant)
	}
	back, err := ReadStructured([]byte(wholeWant), eventhub.Event{Topic: "t"})
	again := whole
	again.Payload = []byte(`{"n":1.0}`)
	if diff := cmp.Diff(again, back); diff != "" || err != nil {
		t.Errorf("read again: %v (-want +got):\n%s", err, diff)
	}
	if dst, err := AppendStructured([]byte("x"), "t", 1, eventhub.Record("{")); err == nil || string(dst) != "x" {
		t.Errorf("a broken record is %s, %v", dst, err)
	}
}

// TestHeadersThatDifferInCase: which of them is the attribute is always the same.
func TestHeadersThatDifferInCase(t *testing.T) {
	e := eventhub.Event{ID: "1", Topic: "t", Payload: []byte(`1`), Headers: map[string]string{
		"CE-SOURCE": "/a", "Ce-Source": "/b", "ce-source": "/c", "CE-TYPE": "a", "Ce-Type": "b", "ce-subject": "", "CE-Subject": "s",
		"X-CORRELATION-ID": "a", "X-Correlation-Id": "b", "Traceparent": "00-1-2-01",
	}}
	const want = `{"specversion":"1.0","id":"1","source":"/c","type":"b","time":"2024-08-08T18:00:00.001Z","subject":"s",` +
		`"datacontenttype":"application/json","correlationid":"b","eventhuboffset":"7","eventhubtopic":"t","traceparent":"00-1-2-01","data":1}`
	for range 20 { // maps have no order
		if diff := cmp.Diff(want, string(written(t, &e))); diff != "" {
			t.Fatalf("-want +got:\n%s", diff)
		}
	}
}
