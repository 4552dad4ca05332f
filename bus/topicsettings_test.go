package bus

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
)

func (r *rig) set(name string, s admin.TopicSettings) admin.SettingsEntry {
	r.t.Helper()
	e, err := r.bus.SetTopic(context.Background(), name, s, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	return e
}

// TestKeyRequired: whatever the door, an event without a key does not enter a topic that
// requires one, nothing of what came with it does either, and the error says which topic.
func TestKeyRequired(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publishEvents(eventhub.Event{Topic: "keyed.a", Payload: []byte(`0`)}) // it stays, and becomes a dead letter without a key
		r.deadLetterAll("keyed.a", "g")
		letter := r.deadLetters(admin.DeadLetterQuery{Topic: "keyed.a"})[0]
		r.publish("in", 1, 1)
		in := r.subscribe(eventhub.GroupOptions{Topic: "in", Group: "g", Start: eventhub.Earliest})
		refs := []eventhub.Ref{byLease(in.Take()[0])}
		r.set("keyed.*", admin.TopicSettings{KeyRequired: true})

		bad := eventhub.Event{Topic: "keyed.a", Payload: []byte(`1`)}
		good := eventhub.Event{Topic: "other", Payload: []byte(`1`)}
		doors := map[string]func(...eventhub.Event) error{
			"publish": func(events ...eventhub.Event) error {
				_, err := r.bus.Publish(ctx, events...)
				return err
			},
			"delayed": func(events ...eventhub.Event) error {
				for i := range events {
					events[i].Delay = time.Hour
				}
				_, err := r.bus.Publish(ctx, events...)
				return err
			},
			"import": func(events ...eventhub.Event) error {
				for i := range events {
					events[i].ID, events[i].TS = "id-"+events[i].Topic+events[i].Key, 1
				}
				_, err := r.bus.Import(ctx, events...)
				return err
			},
			"ack-and-publish": func(events ...eventhub.Event) error {
				_, err := in.ackAndPublish(refs, events...)
				return err
			},
		}
		for name, door := range doors {
			err := door(good, bad)
			if e := eventhub.AsError(err); e == nil || e.Code != eventhub.CodeBadEvent || e.Index == nil || *e.Index != 1 ||
				e.Message != `the event has no key; the settings of topic "keyed.a" require one` {
				t.Errorf("%s: %v", name, err)
			}
		}
		_, err := r.bus.Requeue(ctx, "keyed.a", letter.Offset, []byte(`2`), "me")
		wantCode(t, err, eventhub.CodeBadEvent)
		equal(t, "dead letters that are open", len(r.deadLetters(admin.DeadLetterQuery{Topic: "keyed.a"})), 1)
		equal(t, "events of keyed.a", len(r.events("keyed.a")), 1)
		equal(t, "events of other", len(r.events("other")), 0)

		bad.Key = "k"
		for name, door := range doors {
			if err := door(good, bad); err != nil {
				t.Errorf("%s with a key: %v", name, err)
			}
		}
		synctest.Wait()
		time.Sleep(2 * time.Hour)
		synctest.Wait()
		equal(t, "events of keyed.a", len(r.events("keyed.a")), 1+len(doors))
		if err := r.bus.UnsetTopic(ctx, "keyed.*", nil); err != nil {
			t.Fatal(err)
		}
		r.publish("keyed.a", 3, 1)
		if _, err := r.bus.Requeue(ctx, "keyed.a", letter.Offset, []byte(`2`), "me"); err != nil {
			t.Errorf("requeue when no key is required: %v", err)
		}
	})
}

// TestSettingsOfATopic: the description of a topic has what counts for it and where it is
// from, and settings outlive the engine and the topic.
func TestSettingsOfATopic(t *testing.T) {
	inBubble(t, func(r *rig) {
		ctx := context.Background()
		r.publish("orders.eu", 1, 1)
		looks := func(want admin.SettingsSource, keep uint64) {
			t.Helper()
			info, err := r.bus.Topic(ctx, "orders.eu")
			if err != nil {
				t.Fatal(err)
			}
			equal(t, "source", *info.SettingsFrom, want)
			equal(t, "count", info.Settings.Retention.Count, keep)
			effective, err := r.bus.EffectiveSettings(ctx, "orders.eu")
			equal(t, "effective", words(effective.SettingsSource == want, effective.Settings.Retention.Count, err), words(true, keep, nil))
		}
		looks(admin.SettingsSource{Source: admin.SourceDefault}, 0)
		e := r.set("orders.**", admin.TopicSettings{Retention: admin.Retention{Count: 7}})
		want := admin.SettingsSource{Source: admin.SourceStored, Entry: "orders.**", Version: e.Version}
		looks(want, 7)
		r.restart()
		looks(want, 7)
		if err := r.bus.DeleteTopic(ctx, "orders.eu"); err != nil {
			t.Fatal(err)
		}
		r.publish("orders.eu", 2, 1)
		looks(want, 7)
		version := e.Version + 1
		_, err := r.bus.SetTopic(ctx, "orders.**", admin.TopicSettings{}, &version)
		wantCode(t, err, eventhub.CodeConflict)
		equal(t, "another version", errors.Is(err, admin.ErrOtherVersion), true)
		list, err := r.bus.SettingsEntries(ctx, "", 10)
		equal(t, "entries", words(len(list), list[0] == e, err), "1 true <nil>")
		_, err = r.bus.EffectiveSettings(ctx, "orders.*")
		wantCode(t, err, eventhub.CodeBadTopic)
		_, err = r.bus.SetTopic(ctx, "system.redrive", admin.TopicSettings{}, nil)
		wantCode(t, err, eventhub.CodeBadTopic)
		wantCode(t, r.bus.UnsetTopic(ctx, "other", nil), eventhub.CodeUnknownID)
	})
}

// TestSettingsOfTheFile: entries of the file count from the start, and nobody changes them.
func TestSettingsOfTheFile(t *testing.T) {
	inBubble(t, func(r *rig) {
		r.stop()
		r.start(Options{Topics: []admin.SettingsEntry{{Name: "a.*", Settings: admin.TopicSettings{KeyRequired: true}}}})
		_, err := r.bus.Publish(context.Background(), eventhub.Event{Topic: "a.b", Payload: []byte(`1`)})
		wantCode(t, err, eventhub.CodeBadEvent)
		_, err = r.bus.SetTopic(context.Background(), "a.*", admin.TopicSettings{}, nil)
		wantCode(t, err, eventhub.CodeConflict)
		e, err := r.bus.EffectiveSettings(context.Background(), "a.b")
		equal(t, "effective", words(e.Source, e.Entry, e.Settings.KeyRequired, err), "file a.* true <nil>")
	})
}
