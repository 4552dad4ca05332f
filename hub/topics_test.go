package hub

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/deploy"
)

func writeTopics(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "topics.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestTopicsFile: the settings of the file count, and so does the content that a program
// gives in its place.
func TestTopicsFile(t *testing.T) {
	path := writeTopics(t, "topics:\n  \"keyed.*\": {key_required: true}\n")
	for what, cfg := range map[string]Config{
		"a file":    {TopicsFile: path},
		"a content": {Topics: []byte("topics:\n  \"keyed.*\": {key_required: true}\n")},
		"both":      {TopicsFile: path, Topics: []byte("topics:\n  \"free.*\": {key_required: true}\n")},
	} {
		cfg.Store, cfg.WSAddr, cfg.HTTPAddr, cfg.OpsAddr = MemoryStore, "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
		h, err := Start(cfg)
		if err != nil {
			t.Fatal(err)
		}
		for topic, code := range map[string]eventhub.Code{"keyed.a": eventhub.CodeBadEvent, "free.a": ""} {
			_, err := h.Bus().Publish(context.Background(), eventhub.Event{Topic: topic, Payload: []byte(`1`)})
			if eventhub.ErrorCode(err) != code {
				t.Errorf("%s: a publish to %s: %v; want %q", what, topic, err, code)
			}
		}
		if e, err := h.Bus().EffectiveSettings(context.Background(), "keyed.a"); err != nil || e.Source != admin.SourceFile || e.Entry != "keyed.*" {
			t.Errorf("%s: %+v, %v", what, e, err)
		}
		if err := h.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

// TestBadTopicsFile: all that is wrong is named with its line and where the file was named.
func TestBadTopicsFile(t *testing.T) {
	path := writeTopics(t, "topics:\n  a: {retentoin: {}}\n  system.x: {}\n")
	cfg := Config{TopicsFile: path, Sources: []Source{{"topics_file", "env EVENTHUB_TOPICS_FILE"}}}.WithDefaults()
	err := cfg.Validate()
	want := "topics file: " + path + ":2: a: retentoin is not a known name; did you mean retention? (topics_file from env EVENTHUB_TOPICS_FILE)\n" +
		"topics file: " + path + `:3: "system.x" cannot have settings: the topics of system are the hub's own (topics_file from env EVENTHUB_TOPICS_FILE)`
	if err == nil || err.Error() != want {
		t.Errorf("Validate: %v; want %s", err, want)
	}
	if _, err := Start(cfg); err == nil {
		t.Error("a hub was started")
	}
	cfg.TopicsFile = filepath.Join(t.TempDir(), "none.yaml")
	if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "none.yaml: no such file") {
		t.Errorf("Validate with a file that is not there: %v", err)
	}
}

// TestShippedTopics: the example is right, and says what it is known to say.
func TestShippedTopics(t *testing.T) {
	list, err := (&Config{Topics: deploy.Topics}).topics()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range list {
		if e.Name == "heartbeat.received" && e.Settings.Retention.Age.String() == "3d" {
			return
		}
	}
	t.Errorf("heartbeat.received does not keep 3 days: %+v", list)
}
