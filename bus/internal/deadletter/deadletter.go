// Package deadletter has what a dead letter is: its id and its payload, the marks that say
// what was done about it, and the reading of both. A dead letter is an event of
// <topic>.dlq that holds the original and why the group gave it up; its marks are events of
// admin.RedriveTopic that it has caused. Nothing else is stored about it.
//
// # Invariants
//
//   - The id of a dead letter is derived from the event, the group, the epoch and the
//     redrive. So one that is made again, because the process died after the commit and
//     before the cursor was there, is the same event.
//   - The ids of a requeued event and of its mark are derived from the dead letter and the
//     payload, so the same again adds nothing.
//   - What is no dead letter of the topic, or no mark, is passed over: others may have
//     imported it.
//
// When a group gives an event up, and when it has one again, is decided in package bus, in
// one commit with the state of the group. This package makes events for it, which
// bus/internal/publish encodes, and reads the store. Letters keeps nothing between two calls
// and takes no lock. Counts keeps how far it has read, for one caller at a time. No goroutine
// is started. The package imports the contract of the store, the types of administration and
// bus/internal/past, and asks its caller for filters and for the lists of groups.
package deadletter

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/strictjson"
)

// Topic returns the dead-letter topic that a query's topic means.
func Topic(topic string) string {
	if eventhub.IsDeadLetterTopic(topic) {
		return topic
	}
	return eventhub.DeadLetterTopic(topic)
}

// EventsOf returns the topic whose events a topic of dead letters has.
func EventsOf(letters string) string {
	return strings.TrimSuffix(letters, eventhub.DeadLetterTopic(""))
}

// ID names the dead letter of one event in one group and epoch, and of one redrive where it
// has a mark.
func ID(topic string, offset uint64, group string, epoch uint64, mark string) string {
	text := fmt.Appendf(nil, "%s\x00%d\x00%s\x00%d", topic, offset, group, epoch)
	if mark != "" {
		text = append(append(text, 0), mark...)
	}
	sum := sha256.Sum256(text)
	return "dl-" + hex.EncodeToString(sum[:16])
}

// Letter is a dead letter that is to be made.
type Letter struct {
	Topic, Group string
	Epoch        uint64
	Offset       uint64
	Record       eventhub.Record // the original
	Attempts     int
	Mark         string // the id of the mark of its last redrive, "" for none
	Redriven     int    // how often it was redriven, where it has a mark
	Reason       string
	History      []admin.Attempt
}

// Event returns the dead letter. Its payload carries the original event with its tokens
// untouched.
func (l *Letter) Event() (eventhub.Event, error) {
	original, err := l.Record.Event(l.Offset)
	if err != nil {
		return eventhub.Event{}, err
	}
	payload := strictjson.AppendString([]byte(`{"topic":`), l.Topic)
	payload = strictjson.AppendString(append(payload, `,"group":`...), l.Group)
	payload = fmt.Appendf(payload, `,"offset":%d,"epoch":%d,"attempts":%d,`, l.Offset, l.Epoch, l.Attempts)
	if l.Mark != "" {
		payload = fmt.Appendf(payload, `"redriven":%d,`, l.Redriven)
	}
	payload = append(payload, `"reason":`...)
	payload = strictjson.AppendString(payload, l.Reason)
	if history, err := json.Marshal(l.History); err == nil && len(l.History) > 0 {
		payload = append(append(payload, `,"history":`...), history...)
	}
	payload = l.Record.AppendJSON(append(payload, `,"event":`...), l.Offset)
	payload = append(payload, '}')
	return eventhub.Event{
		ID:    ID(l.Topic, l.Offset, l.Group, l.Epoch, l.Mark),
		Topic: eventhub.DeadLetterTopic(l.Topic),
		Key:   original.Key, CausedBy: []string{original.ID}, Payload: payload,
	}, nil
}

// Payload is the payload of a dead letter, as Letter.Event writes it, without its history.
type Payload struct {
	Topic    string `json:"topic"`
	Group    string `json:"group"`
	Offset   uint64 `json:"offset"`
	Epoch    uint64 `json:"epoch"`
	Attempts int    `json:"attempts"`
	Redriven int    `json:"redriven"`
	Reason   string `json:"reason"`
	Event    struct {
		ID      string            `json:"id"`
		Key     string            `json:"key"`
		SID     string            `json:"sid"`
		Headers map[string]string `json:"headers"`
		Tags    []string          `json:"tags"`
	} `json:"event"`
}

// Mark returns a mark as an event of its topic.
func Mark(id string, m *admin.RedriveMark) (eventhub.Event, error) {
	payload, err := json.Marshal(m)
	return eventhub.Event{ID: id, Topic: admin.RedriveTopic, CausedBy: []string{m.DeadLetterID}, Payload: payload}, err
}

// Requeue returns the event of a dead letter with another payload, for its topic, and the
// mark of that. Their ids follow from the dead letter and the number of marks that it has.
func Requeue(d *admin.DeadLetter, payload []byte, marks int, by string) (e, mark eventhub.Event, _ error) {
	letter, err := d.Record.Event(d.Offset)
	if err != nil {
		return e, mark, err
	}
	var p Payload
	if err := json.Unmarshal(letter.Payload, &p); err != nil {
		return e, mark, err
	}
	sum := sha256.Sum256(strconv.AppendInt([]byte(d.ID+"\x00"), int64(marks), 10))
	name := hex.EncodeToString(sum[:16])
	e = eventhub.Event{
		ID: "rq-" + name, Topic: d.Topic, Key: p.Event.Key, SID: p.Event.SID, Headers: p.Event.Headers, Tags: p.Event.Tags,
		CausedBy: []string{d.EventID}, Payload: payload,
	}
	mark, err = Mark("rm-"+name, &admin.RedriveMark{
		By: by, Topic: d.Topic, Group: d.Group, Offset: d.Event, RequeuedAs: e.ID,
		DeadLetter: eventhub.Place{Topic: letter.Topic, Offset: d.Offset}, DeadLetterID: d.ID,
	})
	return e, mark, err
}
