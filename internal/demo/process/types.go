package process

import (
	"encoding/json"
	"fmt"
	"strconv"

	"eventhub"
)

// The topics that the projector reads and writes.
const (
	HeartbeatTopic = "heartbeat.received"
	StateTopic     = "process.state"
)

// Heartbeat is what an agent says of one process: the payload of
// HeartbeatTopic.
type Heartbeat struct {
	PID  int
	Name string
	Host string
	CPU  float64 // percent of one core
	Mem  float64 // MB
	SID  string  // of the agent's run; may be empty
}

// ParseHeartbeat reads a payload. All fields but sid are required, with the
// right types; host and name are not empty and pid is not negative, or else the
// error names the field. Unknown fields are ignored, so that agents can say
// more.
func ParseHeartbeat(payload []byte) (Heartbeat, error) {
	var p struct {
		PID  *int     `json:"pid"`
		Name string   `json:"name"`
		Host string   `json:"host"`
		CPU  *float64 `json:"cpu_pct"`
		Mem  *float64 `json:"mem_mb"`
		SID  string   `json:"sid"`
	}
	if err := json.Unmarshal(payload, &p); err != nil {
		return Heartbeat{}, fmt.Errorf("not a heartbeat: %w", err)
	}
	for _, f := range []struct {
		name  string
		there bool
	}{{"pid", p.PID != nil}, {"name", p.Name != ""}, {"host", p.Host != ""}, {"cpu_pct", p.CPU != nil}, {"mem_mb", p.Mem != nil}} {
		if !f.there {
			return Heartbeat{}, fmt.Errorf("not a heartbeat: %s is missing or empty", f.name)
		}
	}
	if *p.PID < 0 {
		return Heartbeat{}, fmt.Errorf("not a heartbeat: pid is %d", *p.PID)
	}
	return Heartbeat{PID: *p.PID, Name: p.Name, Host: p.Host, CPU: *p.CPU, Mem: *p.Mem, SID: p.SID}, nil
}

// Key names the process among all hosts: host:name:pid.
func (h *Heartbeat) Key() string {
	return h.Host + ":" + h.Name + ":" + strconv.Itoa(h.PID)
}

// Status says whether a process is still heard of.
type Status string

// The statuses.
const (
	Alive Status = "alive"
	Stale Status = "stale"
)

// State is what is known of one process: the payload of StateTopic, keyed by
// ProcessID.
type State struct {
	ProcessID string  `json:"processId"` // host:name:pid
	Name      string  `json:"name"`
	Host      string  `json:"host"`
	PID       int     `json:"pid"`
	SID       string  `json:"sid,omitempty"`
	CPU       float64 `json:"cpu_pct"` // percent of one core
	Mem       float64 `json:"mem_mb"`
	// LastSeenTS is the ts of the last heartbeat, in epoch milliseconds.
	LastSeenTS int64  `json:"last_seen_ts"`
	Status     Status `json:"status"`
	// Heartbeat is the offset of the last heartbeat in HeartbeatTopic: one that is not above it
	// says nothing new, however late it comes. 0 in states of earlier projectors.
	Heartbeat uint64 `json:"heartbeat_offset,omitempty"`
}

// stateOf is the state of a process at its heartbeat.
func stateOf(h *Heartbeat, ts int64, offset uint64) State {
	return State{
		ProcessID: h.Key(), Name: h.Name, Host: h.Host, PID: h.PID, SID: h.SID,
		CPU: h.CPU, Mem: h.Mem, LastSeenTS: ts, Status: Alive, Heartbeat: offset,
	}
}

// event is the state as an event without an id or causes.
func (s *State) event() (eventhub.Event, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return eventhub.Event{}, fmt.Errorf("state of process %q: %w", s.ProcessID, err)
	}
	return eventhub.Event{Topic: StateTopic, Key: s.ProcessID, SID: s.SID, Payload: payload}, nil
}
