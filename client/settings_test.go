package client_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
)

// TestSettings: the settings of topics over HTTP are those of the engine, and so are the
// errors.
func TestSettings(t *testing.T) {
	h := startHub(t, hub.Config{})
	remote, err := client.NewAdmin("http://" + h.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	ctx := context.Background()
	set := admin.TopicSettings{Retention: admin.Retention{Age: admin.Period(36 * time.Hour), Bytes: 1 << 30, Count: 7}, KeyRequired: true}
	none := uint64(0)
	stored, err := remote.SetTopic(ctx, "orders.**", set, &none)
	if err != nil || stored != (admin.SettingsEntry{Name: "orders.**", Source: admin.SourceStored, Version: stored.Version, Settings: set}) {
		t.Errorf("SetTopic: %+v, %v", stored, err)
	}
	if _, err := remote.SetTopic(ctx, "orders.**", set, &none); !errors.Is(err, admin.ErrOtherVersion) || eventhub.ErrorCode(err) != eventhub.CodeConflict {
		t.Errorf("SetTopic of what is there: %v", err)
	}
	if _, err := remote.SetTopic(ctx, "a", admin.TopicSettings{GroupIdleExpiry: 1}, nil); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
		t.Errorf("SetTopic with a group_idle_expiry that is too short: %v", err)
	}
	compact := admin.TopicSettings{Compaction: &admin.Compaction{MinAge: admin.Period(time.Hour)}}
	if got, err := remote.SetTopic(ctx, "a", compact, nil); err != nil || !reflect.DeepEqual(got.Settings, compact) {
		t.Errorf("SetTopic with compaction: %+v, %v", got, err)
	}
	if _, err := remote.SetTopic(ctx, "**.eu", set, nil); eventhub.ErrorCode(err) != eventhub.CodeConflict || errors.Is(err, admin.ErrOtherVersion) {
		t.Errorf("SetTopic of a pattern that ties: %v", err)
	}
	if _, err := remote.SetTopic(ctx, "system.a", set, nil); eventhub.ErrorCode(err) != eventhub.CodeBadTopic {
		t.Errorf("SetTopic of a topic of system: %v", err)
	}
	second, err := remote.SetTopic(ctx, "a", admin.TopicSettings{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"orders.eu", "a", "b"} {
		got, err := remote.EffectiveSettings(ctx, topic)
		want, wantErr := h.Bus().EffectiveSettings(ctx, topic)
		if got != want || err != nil || wantErr != nil {
			t.Errorf("EffectiveSettings of %s: %+v, %v; want %+v, %v", topic, got, err, want, wantErr)
		}
	}
	if list, err := remote.SettingsEntries(ctx, "", 10); err != nil || len(list) != 2 || list[0] != second || list[1] != stored {
		t.Errorf("SettingsEntries: %+v, %v", list, err)
	}
	if list, err := remote.SettingsEntries(ctx, "b", 1); err != nil || len(list) != 1 || list[0] != stored {
		t.Errorf("SettingsEntries after b: %+v, %v", list, err)
	}
	if err := remote.UnsetTopic(ctx, "orders.**", &second.Version); !errors.Is(err, admin.ErrOtherVersion) {
		t.Errorf("UnsetTopic of another version: %v", err)
	}
	if err := remote.UnsetTopic(ctx, "orders.**", &stored.Version); err != nil {
		t.Errorf("UnsetTopic: %v", err)
	}
	if err := remote.UnsetTopic(ctx, "orders.**", nil); eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
		t.Errorf("UnsetTopic of what is gone: %v", err)
	}
}

// TestKeyRequired: over WebSocket and HTTP, whatever the door, an event without a key does not
// enter a topic that requires one, and the refusal names the topic.
func TestKeyRequired(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	ctx, bus := bounded(t), h.Bus()
	// Three leases of one group, and a dead letter whose event has no key.
	if _, err := bus.Publish(ctx, event("in", `1`), event("in", `2`), event("in", `3`), event("keyed.t", `1`)); err != nil {
		t.Fatal(err)
	}
	pull := func(topic string) []eventhub.Delivery {
		o := earliest(topic, "g").WithDefaults()
		got, err := bus.Pull(ctx, o, time.Second)
		if err != nil || len(got) == 0 {
			t.Fatalf("pulled %v, %v", got, err)
		}
		return got
	}
	nack := eventhub.Settlement{Verdict: eventhub.Nack, Terminal: true, Refs: []eventhub.Ref{{Lease: pull("keyed.t")[0].Lease}}}
	if _, err := bus.Settle(ctx, "keyed.t", "g", nack); err != nil {
		t.Fatal(err)
	}
	letters := newCollector(1)
	if _, err := c.Tail(ctx, tailFrom("keyed.t.dlq"), letters); err != nil {
		t.Fatal(err)
	}
	await(t, "the dead letter", letters.came)
	leases := pull("in")
	adm := c.Admin()
	if _, err := adm.SetTopic(ctx, "keyed.**", admin.TopicSettings{KeyRequired: true}, nil); err != nil {
		t.Fatal(err)
	}

	post := func(path, body string) error {
		r, err := http.Post("http://"+h.HTTPAddr()+path, "application/json", strings.NewReader(body))
		if err != nil {
			return err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if r.StatusCode != http.StatusBadRequest || !bytes.Contains(text, []byte(`"code":"bad_event"`)) {
			return fmt.Errorf("status %d, %s, %w", r.StatusCode, text, err)
		}
		return eventhub.Errorf(eventhub.CodeBadEvent, "%s", text)
	}
	for door, publish := range map[string]func() error{
		"PUBLISH": func() error {
			_, err := c.Publish(ctx, event("keyed.t", `1`))
			return err
		},
		"PUBLISH of a batch": func() error {
			_, err := c.Publish(ctx, event("other", `1`), event("keyed.t", `1`))
			return err
		},
		"ACK with publish": func() error {
			done := make(chan error, 1)
			hs := []eventhub.AckPublish{{Refs: []eventhub.Ref{{Lease: leases[0].Lease}}, Events: []eventhub.Event{event("keyed.t", `1`)}}}
			c.AckAndPublish(ctx, "in", "g", hs, func(hs []eventhub.AckPublish) { done <- hs[0].Err })
			return await(t, "the answer", done)
		},
		"POST /publish":    func() error { return post("/publish/keyed.t", `1`) },
		"POST /v1/publish": func() error { return post("/v1/publish", `{"events":[{"topic":"keyed.t","payload":1}]}`) },
		"POST /v1/publish, delayed": func() error {
			return post("/v1/publish", `{"events":[{"topic":"keyed.t","payload":1,"delay_ms":1000}]}`)
		},
		"POST …/ack": func() error {
			return post("/v1/topics/in/groups/g/ack", `{"leases":["`+leases[1].Lease.String()+`"],"publish":[{"topic":"keyed.t","payload":1}]}`)
		},
		"import": func() error {
			_, err := adm.ImportFrom(ctx, strings.NewReader(`{"offset":9,"ts":1723140000000,"id":"x","topic":"keyed.t","payload":1}`+"\n"))
			return err
		},
		"requeue": func() error {
			_, err := adm.Requeue(ctx, "keyed.t", 1, []byte(`2`), "")
			return err
		},
	} {
		err := publish()
		if eventhub.ErrorCode(err) != eventhub.CodeBadEvent || !strings.Contains(err.Error(), "the event has no key; the settings of topic") || !strings.Contains(err.Error(), "keyed.t") {
			t.Errorf("%s: %v", door, err)
		}
	}
	for topic, want := range map[string]uint64{"keyed.t": 1, "other": 0} {
		if info, err := adm.Topic(ctx, topic); info.Head != want || err != nil && want > 0 {
			t.Errorf("%s ends at %d, %v; want %d", topic, info.Head, err, want)
		}
	}
	// The acks were not made either: the events are still leased.
	if list, err := adm.InFlight(ctx, "in", "g", 10); err != nil || len(list) != 3 {
		t.Errorf("in flight: %+v, %v; want 3", list, err)
	}
}
