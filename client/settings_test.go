package client_test

import (
	"context"
	"errors"
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
	if _, err := remote.SetTopic(ctx, "a", admin.TopicSettings{Compaction: &admin.Compaction{}}, nil); eventhub.ErrorCode(err) != eventhub.CodeUnsupportedOp {
		t.Errorf("SetTopic with compaction: %v", err)
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
