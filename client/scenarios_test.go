package client_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub/client"
	"eventhub/internal/bubble"
)

// scenarioDir has the table that both SDKs run; docs/testing.md describes its form.
const scenarioDir = "../sdk/scenarios"

// scenarioPatience is how long a step waits, in the time of the bubble.
const scenarioPatience = 5 * time.Minute

// scenario is one entry of the table.
type scenario struct {
	Name    string          `json:"name"`
	About   string          `json:"about"`
	Options scenarioOptions `json:"options"`
	Steps   []scenarioStep  `json:"steps"`
}

// scenarioOptions are those of the client.
type scenarioOptions struct {
	Unconnected bool              `json:"unconnected"` // the steps connect
	Tokens      []json.RawMessage `json:"tokens"`      // what the source returns, the last again and again
	Token       string            `json:"token"`       // a fixed one
	Client      string            `json:"client"`      // its name
	States      bool              `json:"states"`      // the program listens to states
	MaxPending  int               `json:"max_pending"`
	Numbers     bool              `json:"numbers"` // the steps begin when the client has numbers
}

// scenarioStep is one step of the program or of the hub.
type scenarioStep struct {
	Only string `json:"only"` // the SDK that has the step
	Why  string `json:"why"`  // the reason for Only

	Do   string       `json:"do"`
	As   string       `json:"as"`
	Of   string       `json:"of"`
	With scenarioCall `json:"with"`

	Told string         `json:"told"`
	Is   map[string]any `json:"is"`

	Accept  map[string]any `json:"accept"` // what AUTH is to have
	Hello   map[string]any `json:"hello"`  // members of the answer to AUTH
	Refuse  bool           `json:"refuse"` // the connection is not taken
	Expect  map[string]any `json:"expect"`
	Answer  map[string]any `json:"answer"`
	To      string         `json:"to"` // the frame that is answered; the last by default
	Send    map[string]any `json:"send"`
	Text    string         `json:"text"` // sent as it is
	Deliver []scenarioGift `json:"deliver"`
	Cut     bool           `json:"cut"`
	Close   int            `json:"close"`
	Gone    bool           `json:"gone"`  // the client leaves the connection
	Mute    bool           `json:"mute"`  // no sign of life is given from now on
	Quiet   int            `json:"quiet"` // ms without a frame, a connection or an outcome

	Pass int `json:"pass"` // ms that pass, with whatever comes

	After []int `json:"after_ms"` // when what is waited for comes, at least and at most
}

// scenarioEvent is an event that a program publishes.
type scenarioEvent struct {
	Topic     string            `json:"topic"`
	Payload   json.RawMessage   `json:"payload"`
	ID        string            `json:"id"`
	Key       string            `json:"key"`
	Headers   map[string]string `json:"headers"`
	Tags      []string          `json:"tags"`
	DelayMs   int               `json:"delay_ms"`
	KeyOffset *uint64           `json:"key_offset"`
}

// scenarioCall has the arguments of a call.
type scenarioCall struct {
	scenarioEvent
	Events       []scenarioEvent `json:"events"`
	WaitFor      []string        `json:"wait_for"`
	WaitMs       int             `json:"wait_ms"`
	Group        string          `json:"group"`
	From         string          `json:"from"`
	AfterID      string          `json:"after_id"`
	Offset       uint64          `json:"offset"`
	TS           int64           `json:"ts"`
	Topics       []string        `json:"topics"`
	Filter       string          `json:"filter"`
	Concurrency  int             `json:"concurrency"`
	MaxInFlight  int             `json:"max_in_flight"`
	AckTimeoutMs int             `json:"ack_timeout_ms"`
	MaxAttempts  int             `json:"max_attempts"`
	Ordering     string          `json:"ordering"`
	NoCreate     bool            `json:"no_create"`
	EveryMs      int             `json:"every_ms"`
	Event        string          `json:"event"`
	Reason       string          `json:"reason"`
	ReasonTimes  int             `json:"reason_times"` // how often the reason has its text
	Terminal     bool            `json:"terminal"`
	ExtendMs     int             `json:"extend_ms"`
	Auto         string          `json:"auto"` // what handlers do by themselves
}

// scenarioGift is an event that the hub delivers.
type scenarioGift struct {
	To      string          `json:"to"`    // topic of the subscription; that of the event by default
	Group   string          `json:"group"` // empty for a tail
	Topic   string          `json:"topic"`
	ID      string          `json:"id"`
	Offset  uint64          `json:"offset"`
	Key     string          `json:"key"`
	Payload json.RawMessage `json:"payload"`
	Ctx     json.RawMessage `json:"ctx"`
}

// frame is the EVENT, laid out as the hub does.
func (g *scenarioGift) frame() string {
	var b strings.Builder
	to := g.To
	if to == "" {
		to = g.Topic
	}
	fmt.Fprintf(&b, `{"op":"EVENT","topic":%q`, to)
	if g.Group != "" {
		fmt.Fprintf(&b, `,"group":%q`, g.Group)
	}
	fmt.Fprintf(&b, `,"event":{"offset":%d,"ts":%d,"id":%q,"topic":%q,"partition":0`, g.Offset, 1_800_000_000_000+g.Offset, g.ID, g.Topic)
	if g.Key != "" {
		fmt.Fprintf(&b, `,"key":%q`, g.Key)
	}
	payload := g.Payload
	if payload == nil {
		payload = json.RawMessage("1")
	}
	fmt.Fprintf(&b, `,"payload":%s}`, payload)
	if g.Ctx != nil {
		fmt.Fprintf(&b, `,"ctx":%s`, g.Ctx)
	}
	return b.String() + "}"
}

// readTable reads one file of the table. A name that the form does not have is an error.
func readTable(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(scenarioDir, name))
	if err != nil {
		t.Fatal(err)
	}
	d := json.NewDecoder(strings.NewReader(string(text)))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// scenarioParts are the files with steps of the hub.
var scenarioParts = []string{"publish.json", "groups.json", "tails.json", "connections.json"}

// TestScenariosAreCounted: the pages state how many there are.
func TestScenariosAreCounted(t *testing.T) {
	n := 0
	for _, part := range scenarioParts {
		var some []scenario
		readTable(t, part, &some)
		n += len(some)
	}
	var cuts []cutScenario
	readTable(t, "cuts.json", &cuts)
	for _, page := range []string{"testing.md", "go-sdk.md", "js-sdk.md"} {
		text, err := os.ReadFile(filepath.Join("../docs", page))
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range []string{fmt.Sprintf("%d scenarios", n), fmt.Sprintf("%d more that are cut at every frame", len(cuts))} {
			if page != "testing.md" {
				part = strings.Replace(part, " more", "", 1)
			}
			if !strings.Contains(string(text), part) {
				t.Errorf("%s does not say %q", page, part)
			}
		}
	}
}

// TestScenarios runs the steps of the table: what the program is told and what the hub gets
// are what the table says, and nothing else.
func TestScenarios(t *testing.T) {
	var table []scenario
	for _, part := range scenarioParts {
		var some []scenario
		readTable(t, part, &some)
		table = append(table, some...)
	}
	seen := make(map[string]bool)
	for i := range table {
		s := &table[i]
		if seen[s.Name] || s.About == "" {
			t.Errorf("the scenario %q is there twice, or says nothing about itself", s.Name)
		}
		seen[s.Name] = true
		t.Run(s.Name, func(t *testing.T) {
			client.EmptyPools()
			defer client.EmptyPools()
			bubble.Test(t, func(t *testing.T) { playScenario(t, s) })
		})
	}
}

// numberedSteps are the publishes after which a client has numbers.
func numberedSteps() (steps []scenarioStep) {
	for n := range 16 {
		i := float64(n)               // as JSON has it
		payload, _ := json.Marshal(i) // a number
		steps = append(steps, scenarioStep{Do: "publish", As: "warm", With: scenarioCall{scenarioEvent: scenarioEvent{Topic: "warm", Payload: payload}}})
		if i == 15 {
			steps = append(steps, scenarioStep{Expect: map[string]any{"op": "AUTH", "producer": map[string]any{"id": "$producer"}}, As: "auth"})
		}
		steps = append(steps, scenarioStep{Expect: map[string]any{"op": "PUBLISH", "payload": i, "seq": "$none"}},
			scenarioStep{Answer: map[string]any{"op": "OK", "id": "x", "offset": i + 1}}, scenarioStep{Told: "warm", Is: map[string]any{"kind": "ok"}})
	}
	return append(steps, scenarioStep{To: "auth", Answer: map[string]any{"op": "OK",
		"producer": map[string]any{"id": "$producer", "epoch": 5.0, "born": 5.0, "seq": 0.0, "window": 4096.0}}})
}

func playScenario(t *testing.T, s *scenario) {
	vars := newBindings()
	hub := newScriptHub(t, vars)
	p := newProgram(s.Options, hub.door, vars)
	defer func() {
		p.end()
		hub.end()
	}()
	steps := s.Steps
	if !s.Options.Unconnected {
		steps = append([]scenarioStep{{Do: "connect", As: "client"}, {Accept: map[string]any{}}, {Told: "client", Is: map[string]any{"kind": "ok"}}}, steps...)
	}
	if s.Options.Numbers {
		steps = slices.Insert(steps, 3, numberedSteps()...)
	}
	for i := range steps {
		step := &steps[i]
		if (step.Only != "") != (step.Why != "") || step.Only != "" && step.Only != "go" && step.Only != "ts" {
			t.Fatalf("step %d: only is %q and why %q", i, step.Only, step.Why)
		}
		if step.Only == "ts" {
			continue
		}
		began := time.Now()
		if err := playStep(step, hub, p); err != nil {
			text, _ := json.Marshal(step) // it was read from JSON
			t.Fatalf("step %d %s: %v", i-len(steps)+len(s.Steps), compactStep(text), err)
		}
		if passed := time.Since(began).Milliseconds(); len(step.After) == 2 && (passed < int64(step.After[0]) || passed > int64(step.After[1])) {
			t.Fatalf("step %d: it came after %d ms; want %v", i-len(steps)+len(s.Steps), passed, step.After)
		}
	}
	synctest.Wait()
	if left := append(hub.unread(), p.unread()...); len(left) > 0 {
		t.Errorf("after the last step there is more:\n%s", strings.Join(left, "\n"))
	}
}

// compactStep leaves out what is empty.
func compactStep(text []byte) string {
	var m map[string]any
	if json.Unmarshal(text, &m) != nil {
		return string(text)
	}
	for name, v := range m {
		switch v := v.(type) {
		case string:
			if v == "" {
				delete(m, name)
			}
		case nil:
			delete(m, name)
		case bool:
			if !v {
				delete(m, name)
			}
		case float64:
			if v == 0 {
				delete(m, name)
			}
		}
	}
	if m["do"] == nil {
		delete(m, "with")
	}
	out, _ := json.Marshal(m) // it came from JSON
	return string(out)
}

// playStep does one step; each begins when all that can happen without time has happened.
func playStep(s *scenarioStep, hub *scriptHub, p *program) error {
	defer synctest.Wait()
	switch {
	case s.Do != "":
		return p.do(s)
	case s.Told != "":
		return p.told(s.Told, s.Is)
	case s.Quiet > 0:
		time.Sleep(time.Duration(s.Quiet) * time.Millisecond)
		synctest.Wait()
		if left := append(hub.unread(), p.unread()...); len(left) > 0 {
			return fmt.Errorf("it is not quiet:\n%s", strings.Join(left, "\n"))
		}
		return nil
	}
	return hub.play(s)
}
