// Package topicconf reads the settings of topics: from JSON, as requests and the store have
// them, and from the file that an operator writes; and it says which of two patterns is the
// more exact one. It knows nothing of what the settings do, and of no store.
//
// # Invariants
//
//   - What is not known is refused and never passed over, with the place where it is.
//   - What is read is valid: admin.TopicSettings.Validate was asked.
package topicconf

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/filter"
	"eventhub/internal/strictjson"
)

// given is an entry as somebody wrote it: it says what was given, if only 0.
type given struct {
	Retention       *givenRetention `json:"retention"`
	Days            *uint64         `json:"retention_days"`
	Compaction      jsontext.Value  `json:"compaction"`
	KeyRequired     bool            `json:"key_required"`
	GroupIdleExpiry *admin.Period   `json:"group_idle_expiry"`
	State           admin.StateMode `json:"state"`
	Snapshot        jsontext.Value  `json:"snapshot"`
	Rate            jsontext.Value  `json:"rate"`
}

type givenRetention struct {
	Age   *admin.Period `json:"age"`
	Bytes *admin.Size   `json:"bytes"`
	Count *uint64       `json:"count"`
}

type givenCompaction struct {
	MinAge *admin.Period `json:"min_age"`
	Hold   *admin.Period `json:"hold"`
	Grace  *admin.Period `json:"grace"`
}

// givenSnapshot has the names of the first clients too.
type givenSnapshot struct {
	Topic      string        `json:"topic"`
	Every      *admin.Period `json:"every"`
	IntervalMS *uint64       `json:"interval_ms"`
	Changes    *uint64       `json:"changes"`
	BatchKeys  []string      `json:"batch_keys"`
	KeySource  string        `json:"key_source"`
}

// Parse reads the settings of an entry of that name, a JSON object, and validates them. The
// error is an *eventhub.Error with CodeBadJSON, CodeBadRequest or CodeUnsupportedOp, whose
// message begins with the path of the member that it is about, such as retention.age.
func Parse(name string, src []byte) (admin.TopicSettings, error) {
	var g given
	if err := unmarshal("", src, &g); err != nil {
		return admin.TopicSettings{}, err
	}
	s, err := g.settings()
	if err == nil {
		err = s.Validate(name)
	}
	if err != nil {
		return admin.TopicSettings{}, err
	}
	return s, nil
}

func (g *given) settings() (s admin.TopicSettings, err error) {
	if isGiven(g.Rate) {
		return s, eventhub.Errorf(eventhub.CodeUnsupportedOp, "rate is not supported by this version")
	}
	if r := g.Retention; r != nil {
		s.Retention = admin.Retention{Age: value(r.Age), Bytes: value(r.Bytes), Count: value(r.Count)}
		if r.Count != nil && *r.Count == 0 {
			return s, bad("retention.count is 0; leave it out to keep everything")
		}
	}
	if err := g.days(&s.Retention); err != nil {
		return s, err
	}
	if s.Compaction, err = g.compaction(); err != nil {
		return s, err
	}
	if s.Snapshot, err = g.snapshot(); err != nil {
		return s, err
	}
	s.KeyRequired, s.State, s.GroupIdleExpiry = g.KeyRequired, g.State, value(g.GroupIdleExpiry)
	return s, nil
}

const day = admin.Period(24 * time.Hour)

// days takes the age in days, as the first clients have it.
func (g *given) days(r *admin.Retention) error {
	const most = uint64(admin.MaxPeriod / day)
	switch {
	case g.Days == nil:
		return nil
	case r.Age != 0:
		return bad("retention_days and retention.age are both given; one of them is expected")
	case *g.Days == 0 || *g.Days > most:
		return bad("retention_days is %d; 1 to %d are allowed", *g.Days, most)
	}
	r.Age = admin.Period(*g.Days) * day
	return nil
}

// compaction takes an object, or true for one that leaves everything to the hub.
func (g *given) compaction() (*admin.Compaction, error) {
	switch {
	case !isGiven(g.Compaction) || string(g.Compaction) == "false":
		return nil, nil
	case string(g.Compaction) == "true":
		return &admin.Compaction{}, nil
	}
	var c givenCompaction
	if err := unmarshal("compaction", g.Compaction, &c); err != nil {
		return nil, err
	}
	return &admin.Compaction{MinAge: value(c.MinAge), Hold: value(c.Hold), Grace: value(c.Grace)}, nil
}

// snapshot takes an object, or true for one that leaves everything to the hub.
func (g *given) snapshot() (*admin.Snapshot, error) {
	switch {
	case !isGiven(g.Snapshot) || string(g.Snapshot) == "false":
		return nil, nil
	case string(g.Snapshot) == "true":
		return &admin.Snapshot{}, nil
	}
	var given givenSnapshot
	if err := unmarshal("snapshot", g.Snapshot, &given); err != nil {
		return nil, err
	}
	s := &admin.Snapshot{Topic: given.Topic, Every: value(given.Every), Changes: value(given.Changes), BatchKeys: given.BatchKeys, KeySource: given.KeySource}
	switch {
	case given.IntervalMS != nil && given.Every != nil:
		return nil, bad("snapshot.interval_ms and snapshot.every are both given; one of them is expected")
	case given.IntervalMS != nil && (*given.IntervalMS == 0 || *given.IntervalMS > uint64(time.Duration(admin.MaxPeriod)/time.Millisecond)):
		return nil, bad("snapshot.interval_ms is %d; 1 to %d are allowed", *given.IntervalMS, time.Duration(admin.MaxPeriod)/time.Millisecond)
	case given.IntervalMS != nil:
		s.Every = admin.Period(time.Duration(*given.IntervalMS) * time.Millisecond)
	case given.Changes != nil && *given.Changes == 0:
		return nil, bad("snapshot.changes is 0; leave it out to go by the time alone")
	}
	if s.KeySource != "" {
		if _, err := filter.CompileText(s.KeySource); err != nil {
			judged := eventhub.AsError(err)
			return nil, eventhub.Errorf(judged.Code, "snapshot.key_source%s", strings.TrimPrefix(judged.Message, "filter.cel"))
		}
	}
	return s, nil
}

func isGiven(v jsontext.Value) bool { return v != nil && string(v) != "null" }

// value returns what p points to, or the zero value.
func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

func bad(format string, args ...any) error {
	return eventhub.Errorf(eventhub.CodeBadRequest, format, args...)
}

// unmarshal decodes an object that is at a path of the settings, "" for the settings.
func unmarshal(path string, src []byte, v any) error {
	err := strictjson.Unmarshal(src, v)
	if err == nil && bytes.Equal(bytes.TrimSpace(src), []byte("null")) {
		return bad("the settings are null; an object such as {\"retention\":{\"age\":\"3d\"}} is expected")
	}
	var meaning *strictjson.MeaningError
	if err == nil || !errors.As(err, &meaning) {
		if err != nil {
			err = eventhub.Errorf(eventhub.CodeBadJSON, "%v", err)
		}
		return err
	}
	member := strings.TrimPrefix(path+strings.ReplaceAll(meaning.Where, "/", "."), ".")
	var judged *eventhub.Error
	switch {
	case errors.As(err, &judged): // by Period or Size
		return eventhub.Errorf(judged.Code, "%s: %s", member, judged.Message)
	case member == "" && strings.HasPrefix(meaning.Error(), "the value"):
		return bad("the settings are expected to be an object such as {\"retention\":{\"age\":\"3d\"}}: %v", err)
	}
	where := meaning.Where
	if where == "" {
		where = "the value"
	}
	what := strings.Replace(meaning.Error(), where, member, 1)
	if v := scalarAt(src, meaning.Where); v != "" && wanted(member) != "" {
		what = fmt.Sprintf("%s is %s", member, v)
	}
	return bad("%s%s", what, wanted(member))
}

// mostShown bounds, in bytes, a value that a message has.
const mostShown = 64

// scalarAt returns a number or a string of an object as it was written, "" where there is none: it
// is of another kind, too long, or was written under an alias.
func scalarAt(src []byte, pointer string) string {
	at := jsontext.Value(src)
	for _, name := range strings.Split(pointer, "/")[1:] {
		var members map[string]jsontext.Value
		if strictjson.Unmarshal(at, &members) != nil {
			return ""
		}
		at = members[name]
	}
	if k := at.Kind(); k != '0' && k != '"' || len(at) > mostShown {
		return ""
	}
	return string(at)
}

// wanted says what a member takes.
func wanted(member string) string {
	switch member {
	case "retention.age", "group_idle_expiry", "compaction.min_age", "compaction.hold", "compaction.grace", "snapshot.every":
		return "; a duration such as \"30s\", \"1h30m\" or \"3d\" is expected"
	case "retention.count", "retention_days", "snapshot.changes", "snapshot.interval_ms":
		return "; a number above 0 is expected"
	case "key_required":
		return "; true or false is expected"
	case "state":
		return "; auto, on or off is expected"
	case "retention":
		return "; an object with age, bytes or count is expected"
	case "compaction":
		return "; true or an object with min_age, hold or grace is expected"
	case "snapshot":
		return "; true or an object with every, changes, batch_keys or key_source is expected"
	}
	return ""
}

// Place returns where in a list of patterns another one belongs, so that each comes before
// those that are less exact: of the patterns that match a topic the first one counts. More
// exact is the one that spells out more segments; of two that spell out as many, the one
// whose topics all match the other one too. The error, with CodeConflict and an
// admin.PatternConflict, names the pattern with which it ties: some topic matches both, and
// neither is more exact.
func Place(list []eventhub.Pattern, p eventhub.Pattern) (int, error) {
	named := spelled(p)
	at := len(list)
	for i, other := range list {
		if n := spelled(other); n != named {
			if n < named {
				at = min(at, i)
			}
			continue
		}
		switch Relate(p, other) {
		case Inside:
			at = min(at, i)
		case Same:
			return 0, eventhub.Wrap(eventhub.CodeConflict, &admin.PatternConflict{Other: other.String()}, "patterns %q and %q match the same topics; keep one of them", p, other)
		case Crossing:
			return 0, eventhub.Wrap(eventhub.CodeConflict, &admin.PatternConflict{Other: other.String()},
				"patterns %q and %q tie: some topics match both, and neither is the more exact one", p, other)
		}
	}
	return at, nil
}

// spelled counts the segments that a pattern spells out.
func spelled(p eventhub.Pattern) (n int) {
	for segment := range strings.SplitSeq(p.String(), ".") {
		if !isWildcard(segment) {
			n++
		}
	}
	return n
}
