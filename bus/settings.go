package bus

import (
	"cmp"
	"encoding/json"
	"math/rand/v2"
	"time"

	"eventhub"
	"eventhub/bus/internal/groupstate"
)

// settings are what a group keeps for life, in the form in which they are
// stored.
type settings struct {
	Ordering     string `json:"ordering"`
	MaxAttempts  int    `json:"max_attempts"`
	MinBackoffMS int64  `json:"backoff_min_ms"`
	MaxBackoffMS int64  `json:"backoff_max_ms"`

	Filter *eventhub.Filter `json:"filter,omitempty"`

	// FirstEpoch is the epoch that the group was made with, and From the cursor. Groups of
	// earlier hubs have none; patterns have none either.
	FirstEpoch uint64 `json:"born,omitempty"`
	From       uint64 `json:"from,omitempty"`
}

// settingsFor resolves the settings of a new group.
func settingsFor(o *eventhub.GroupOptions) settings {
	s := settings{
		Ordering:     cmp.Or(o.Ordering, eventhub.OrderingNone),
		MaxAttempts:  o.MaxAttempts,
		MinBackoffMS: o.Backoff.Min.Milliseconds(),
		MaxBackoffMS: o.Backoff.Max.Milliseconds(),
	}
	if !o.Filter.IsZero() {
		s.Filter = o.Filter
	}
	if s.MaxAttempts == 0 {
		s.MaxAttempts = eventhub.DefaultMaxAttempts
	}
	if s.MinBackoffMS == 0 {
		s.MinBackoffMS = eventhub.DefaultMinBackoff.Milliseconds()
		if s.MaxBackoffMS != 0 {
			s.MinBackoffMS = min(s.MinBackoffMS, s.MaxBackoffMS)
		}
	}
	if s.MaxBackoffMS == 0 {
		s.MaxBackoffMS = max(eventhub.DefaultMaxBackoff.Milliseconds(), s.MinBackoffMS)
	}
	return s
}

// match refuses options that ask for another setting than the group has.
func (s settings) match(o *eventhub.GroupOptions) error {
	if o.Ordering != "" && o.Ordering != s.Ordering {
		return eventhub.Errorf(eventhub.CodeGroupMismatch, "ordering is %q; group %q has %q since its creation", o.Ordering, o.Group, s.Ordering)
	}
	if o.Filter != nil && !o.Filter.Equal(s.Filter) {
		return eventhub.Errorf(eventhub.CodeGroupMismatch, "filter is %s; group %q has %s since its creation", o.Filter, o.Group, s.Filter)
	}
	for _, f := range []struct {
		name        string
		asked, have int64
	}{
		{"max_attempts", int64(o.MaxAttempts), int64(s.MaxAttempts)},
		{"backoff.min_ms", o.Backoff.Min.Milliseconds(), s.MinBackoffMS},
		{"backoff.max_ms", o.Backoff.Max.Milliseconds(), s.MaxBackoffMS},
	} {
		if f.asked != 0 && f.asked != f.have {
			return eventhub.Errorf(eventhub.CodeGroupMismatch, "%s is %d; group %q has %d since its creation", f.name, f.asked, o.Group, f.have)
		}
	}
	return nil
}

// config is what the settings say to the state of the group.
func (s settings) config() groupstate.Config {
	return groupstate.Config{
		MaxAttempts: s.MaxAttempts, MaxBackoff: s.MaxBackoffMS, ByKey: s.Ordering == eventhub.OrderingKey,
		Backoff: func(attempts int) int64 { return s.backoff(attempts).Milliseconds() },
	}
}

// backoff is the wait before the attempt after the given one: it doubles from
// the group's minimum up to its maximum, and jitter takes up to half of it
// away, so that events which failed together do not all come back together. An
// attempt that was given back (0) waits like the first.
func (s settings) backoff(attempt int) time.Duration {
	ms := s.MaxBackoffMS
	if shift := max(attempt, 1) - 1; shift < 32 && s.MinBackoffMS<<shift < ms {
		ms = s.MinBackoffMS << shift
	}
	return time.Duration(ms-rand.Int64N(ms/2+1)) * time.Millisecond
}

// encodeSettings returns what the options ask for in the form in which it is stored.
func encodeSettings(o *eventhub.GroupOptions) (json.RawMessage, error) {
	raw, err := json.Marshal(settingsFor(o))
	if err != nil {
		return nil, eventhub.Wrap(eventhub.CodeInternal, err, "The settings of group %q cannot be written.", o.Group)
	}
	return raw, nil
}
