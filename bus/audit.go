package bus

import (
	"context"
	"encoding/json"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/publish"
)

// Note appends events to admin.AuditTopic in one unit, and returns when they are durable. On an
// error none is there, unless ctx ended first. It is for the hub alone, which notes there what was
// done over its transports.
func (b *Bus) Note(ctx context.Context, marks []admin.AuditMark) error {
	var events publish.Events
	for i := range marks {
		payload, err := json.Marshal(&marks[i])
		if err != nil {
			return err
		}
		if err := events.AddMade(&eventhub.Event{Topic: admin.AuditTopic, Payload: payload}); err != nil {
			return err
		}
	}
	err := b.space.Check()
	if err == nil {
		err = b.committer.DoWithin(ctx, publish.NewUnit(&events), "the events may or may not be noted")
	}
	if err == nil {
		b.retention.Look(admin.AuditTopic)
	}
	return err
}
