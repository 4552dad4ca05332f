package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"os/exec"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"

	"eventhub"
)

// fullEvent has every member that a publisher may give, with tokens that a careless
// encoder would change.
const fullEvent = `{"id":"full","ts":1723140000000,"topic":"orders.eu","key":"kühl <&> \u2028","sid":"s-1",` +
	`"headers":{"x-a":"b <c>","x-correlation-id":"cart"},"tags":["#duck","ü"],"caused_by":["early","earlier"],` +
	`"payload":{"n":1.50,"big":12345678901234567890,"s":"\u0061\/<&>","e":1E5,"null":null}}`

// forms asks a hub for an event in every way there is.
type forms struct {
	t       *testing.T
	hub     *hubProcess
	url     string
	program []string // the environment of commands
}

func (f *forms) http(method, path, body string, header ...string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, f.url+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	got, err := http.DefaultClient.Do(r)
	if err != nil {
		f.t.Fatal(err)
	}
	defer got.Body.Close()
	if got.Header.Get("Content-Type") == "text/event-stream" {
		var all []byte // it does not end
		for part := make([]byte, 4096); !bytes.Contains(all, []byte("data: ")) || !bytes.HasSuffix(all, []byte("\n\n")); {
			n, err := got.Body.Read(part)
			if err != nil {
				f.t.Fatal(err)
			}
			all = append(all, part[:n]...)
		}
		return string(all)
	}
	b, err := io.ReadAll(got.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return string(b)
}

// frame returns the first frame after the OK of a SUBSCRIBE.
func (f *forms) frame(subscribe string) string {
	f.t.Helper()
	c := dial(f.t, f.hub.ws, "")
	c.sayText([]byte(subscribe))
	for {
		if err := c.SetReadDeadline(time.Now().Add(watchdog)); err != nil {
			f.t.Fatal(err)
		}
		text, err := wsutil.ReadServerText(c.Conn)
		if err != nil {
			f.t.Fatal(err)
		}
		if !bytes.HasPrefix(text, []byte(`{"op":"OK"`)) {
			return string(text)
		}
	}
}

func (f *forms) command(in string, args ...string) string {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), watchdog)
	defer cancel()
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Env, cmd.Stdin, cmd.Stderr = cleanEnv(f.program...), strings.NewReader(in), &errs
	out, err := cmd.Output()
	if err != nil {
		f.t.Fatalf("%v: %v\n%s", args, err, errs.String())
	}
	return string(out)
}

// TestOneFormOfAnEvent: every way to get an event shows the same bytes, around which
// there may be more; and what a command or an export writes can be published and
// imported again.
func TestOneFormOfAnEvent(t *testing.T) {
	a, b := newForms(t), newForms(t)
	a.http("POST", "/v1/publish", fullEvent, "Content-Type", "application/x-ndjson")
	want := strings.TrimSuffix(a.http("GET", "/v1/topics/orders.eu/events/full", ""), "\n")
	checkFull(t, want)
	const subscribe = `{"op":"SUBSCRIBE","topic":"orders.eu",%s"opts":{"from":"earliest"%s}}`
	ways := map[string]string{
		"EVENT":               a.frame(fmt.Sprintf(subscribe, `"group":"g1",`, "")),
		"EVENT of a tail":     a.frame(fmt.Sprintf(subscribe, "", "")),
		"EVENTS":              a.frame(fmt.Sprintf(subscribe, `"group":"g2",`, `,"batch":true`)),
		"replay":              a.http("GET", "/replay?topic=orders.eu", ""),
		"export of lines":     a.http("GET", "/export?topic=orders.eu&ndjson=1", ""),
		"export of an array":  a.http("GET", "/export?topic=orders.eu", ""),
		"stream":              a.http("GET", "/v1/topics/orders.eu/stream?from=earliest", ""),
		"find":                a.http("GET", "/v1/events/full", ""),
		"correlated":          a.http("GET", "/v1/events?correlation_id=cart", ""),
		"caused":              a.http("GET", "/v1/events?caused_by=early", ""),
		"pull":                a.http("POST", "/v1/topics/orders.eu/groups/g3/pull", `{"from":"earliest"}`),
		"get":                 a.command("", "get", "orders.eu", "full", "-o", "json"),
		"get by id":           a.command("", "get", "full", "-o", "json"),
		"sub -o json":         a.command("", "sub", "orders.eu", "-g", "g4", "--from", "earliest", "-c", "1", "-o", "json"),
		"sub -o ndjson":       a.command("", "sub", "orders.eu", "-g", "g5", "--from", "earliest", "-c", "1", "-o", "ndjson"),
		"replay by command":   a.command("", "replay", "orders.eu", "-o", "json"),
		"export by command":   a.command("", "export", "orders.eu"),
		"the dead letter":     a.deadLetter("dlq"),
		"its event":           a.http("GET", "/replay?topic=orders.eu.dlq", ""),
		"its event, by group": a.http("GET", "/v1/dlq/orders.eu/1", ""),
	}
	for name, got := range ways {
		if strings.Count(got, want) != 1 {
			t.Errorf("%s is\n%s\nand has not\n%s", name, got, want)
		}
	}
	b.http("POST", "/v1/import", ways["export of lines"], "Content-Type", "application/x-ndjson")
	if got := strings.TrimSuffix(b.http("GET", "/v1/topics/orders.eu/events/full", ""), "\n"); got != want {
		t.Errorf("imported it is\n%s; it was\n%s", got, want)
	}
	for i, name := range []string{"get", "sub -o json", "sub -o ndjson", "replay by command", "export by command", "export of lines"} {
		topic := fmt.Sprint("copy.", i)
		b.command(ways[name], "pub", topic, "--events")
		again := b.http("GET", "/v1/topics/"+topic+"/events/full", "")
		if got, want := publishers(t, again), publishers(t, want); got != want {
			t.Errorf("what %s wrote was published as\n%s; it was\n%s", name, got, want)
		}
	}
}

func newForms(t *testing.T) *forms {
	hub := startHub(t, "--store", "memory:")
	return &forms{t: t, hub: hub, url: "http://" + hub.http, program: []string{"EVENTHUB_URL=http://" + hub.http}}
}

// deadLetter lets a group give the event up, and returns the letter as a command shows it.
func (f *forms) deadLetter(group string) string {
	f.t.Helper()
	var pulled struct {
		Deliveries []struct{ Ctx struct{ Lease string } }
	}
	path := "/v1/topics/orders.eu/groups/" + group
	if err := json.Unmarshal([]byte(f.http("POST", path+"/pull", `{"from":"earliest"}`)), &pulled); err != nil || len(pulled.Deliveries) != 1 {
		f.t.Fatalf("%+v, %v", pulled, err)
	}
	f.http("POST", path+"/nack", fmt.Sprintf(`{"leases":[%q],"terminal":true}`, pulled.Deliveries[0].Ctx.Lease))
	f.command("", "sub", "orders.eu.dlq", "-g", "look", "--from", "earliest", "-c", "1") // it is there then
	return f.command("", "dlq", "show", "orders.eu", "1", "-o", "ndjson")
}

// checkFull checks that the event has every member that an event may have.
func checkFull(t *testing.T, event string) {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(event), &members); err != nil {
		t.Fatal(err)
	}
	for _, f := range reflect.VisibleFields(reflect.TypeFor[eventhub.Event]()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if _, has := members[name]; name != "" && name != "-" && !has {
			t.Errorf("the event has no %s: %s", name, event)
		}
	}
	_, payload, _ := strings.Cut(fullEvent, `"payload":`)
	if got := string(members["payload"]); got != strings.TrimSuffix(payload, "}") {
		t.Errorf("the payload is %s", got)
	}
}

// publishers returns what a publisher says of an event: all but what is the hub's.
func publishers(t *testing.T, event string) string {
	t.Helper()
	var members map[string]json.RawMessage
	if err := json.Unmarshal([]byte(event), &members); err != nil {
		t.Fatalf("%s: %v", event, err)
	}
	for _, name := range []string{"offset", "committed_ts", "topic", "partition"} {
		delete(members, name)
	}
	var all []string
	for name, value := range members {
		all = append(all, name+" "+string(value))
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
