package jetstream

import (
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// mark is in the metadata of each stream of a journal; its value is the version of the layout.
const (
	mark        = "eventhub"
	markEntries = "journal-1"
	markMembers = "journal-members-1"
)

// forgetMembers is how long a member is known that says nothing.
const forgetMembers = 7 * 24 * time.Hour

// ConfigError says what keeps a stream from being the journal.
type ConfigError struct {
	Stream  string // its name
	Setting string // as the server calls it
	Is      string
	Want    string
}

func (e *ConfigError) Error() string {
	return fmt.Sprintf("the stream %s has %s %s; as the hub's journal it has to have %s", e.Stream, e.Setting, e.Is, e.Want)
}

func entriesSubject(stream string) string { return "eventhub.journal." + stream }

func membersSubject(stream string) string { return "eventhub.members." + stream }

// entriesConfig is what a journal's stream is like.
func (j *Journal) entriesConfig() jetstream.StreamConfig {
	c := jetstream.StreamConfig{
		Name:        j.options.Stream,
		Description: "the journal of an eventhub; trimmed by the hub alone",
		Subjects:    []string{entriesSubject(j.options.Stream)},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardNew,
		Storage:     jetstream.FileStorage,
		Replicas:    j.options.Replicas,
		MaxMsgs:     -1, MaxMsgsPerSubject: -1, MaxMsgSize: -1, MaxConsumers: -1, MaxBytes: -1,
		DenyDelete: true,
		Metadata:   map[string]string{mark: markEntries},
	}
	if j.options.MostBytes > 0 {
		c.MaxBytes = j.options.MostBytes
	}
	return c
}

// membersConfig is what the stream of members is like: the last message of each.
func (j *Journal) membersConfig() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name:        j.options.Stream + "-members",
		Description: "the members of the journal " + j.options.Stream + " of an eventhub",
		Subjects:    []string{membersSubject(j.options.Stream) + ".*"},
		Retention:   jetstream.LimitsPolicy,
		Discard:     jetstream.DiscardOld,
		Storage:     jetstream.FileStorage,
		Replicas:    j.options.Replicas,
		MaxMsgs:     -1, MaxMsgsPerSubject: 1, MaxMsgSize: -1, MaxConsumers: -1, MaxBytes: -1,
		MaxAge:   forgetMembers,
		Metadata: map[string]string{mark: markMembers},
	}
}

// compare returns a *ConfigError for each setting of a stream that is not as it has to be. Whose it is comes first. How many bytes
// it may have, how it is compressed and where it is placed are the operator's.
func compare(is, want *jetstream.StreamConfig) (wrong []error) {
	const none = "none"
	for _, s := range []struct {
		setting  string
		is, want any
	}{
		{"the mark", or(is.Metadata[mark], none), want.Metadata[mark]},
		{"the subjects", fmt.Sprint(is.Subjects), fmt.Sprint(want.Subjects)},
		{"the mirror", given(is.Mirror != nil), none},
		{"the sources", given(len(is.Sources) > 0), none},
		{"the subject_transform", given(is.SubjectTransform != nil), none},
		{"the retention", is.Retention, want.Retention},
		{"the discard policy", is.Discard, want.Discard},
		{"discard_new_per_subject", is.DiscardNewPerSubject, false},
		{"the storage", is.Storage, want.Storage},
		{"num_replicas", is.Replicas, want.Replicas},
		{"max_msgs", unlimited(is.MaxMsgs), unlimited(want.MaxMsgs)},
		{"max_msgs_per_subject", unlimited(is.MaxMsgsPerSubject), unlimited(want.MaxMsgsPerSubject)},
		{"max_msg_size", unlimited(int64(is.MaxMsgSize)), unlimited(int64(want.MaxMsgSize))},
		{"max_age", is.MaxAge, want.MaxAge},
		{"first_seq", max(is.FirstSeq, 1), uint64(1)},
		{"allow_direct", is.AllowDirect, false},
		{"allow_rollup_hdrs", is.AllowRollup, false},
		{"allow_msg_ttl", is.AllowMsgTTL, false},
		{"allow_msg_counter", is.AllowMsgCounter, false},
		{"deny_delete", is.DenyDelete, want.DenyDelete},
		{"deny_purge", is.DenyPurge, false},
		{"no_ack", is.NoAck, false},
		{"sealed", is.Sealed, false},
		{"persist_mode", is.PersistMode, want.PersistMode},
	} {
		if s.is != s.want {
			wrong = append(wrong, &ConfigError{Stream: want.Name, Setting: s.setting, Is: fmt.Sprint(s.is), Want: fmt.Sprint(s.want)})
		}
	}
	return wrong
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func given(is bool) string {
	if is {
		return "given"
	}
	return "none"
}

// unlimited is the one word of the server for no limit.
func unlimited(n int64) int64 { return slices.Max([]int64{n, -1}) }
