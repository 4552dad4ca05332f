package console

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/measure"
)

const (
	// maxWrong is how many things a message says that are wrong, and maxCandidates how many groups
	// are looked at for it in detail.
	maxWrong      = 40
	maxCandidates = 40
	// lookAt is how many events in flight of a group are looked at.
	lookAt = 20

	// stuckAfter is how long an event may be with a member, or keep others waiting, before that
	// counts as a reason; slowAfter where the others go on.
	stuckAfter = 10 * time.Second
	slowAfter  = time.Minute
	// longRetry is how long a wait for the next attempt is that is worth saying.
	longRetry = 3 * time.Second

	soonFull    = 24 * time.Hour
	veryFull    = time.Hour
	stalled     = 5 * time.Second
	silent      = 5 * time.Second
	certificate = 14 * 24 * time.Hour
	clockAhead  = time.Minute
)

// The severities, the worst first.
const (
	critical = "critical" // something stands still
	warning  = "warning"
)

// wrong is one thing that is not as it should be. Kind says what; the page has a sentence for
// each. The other members are the figures of that sentence.
type wrong struct {
	Kind     string `json:"kind"`
	Severity string `json:"severity"`

	Topic    string          `json:"topic,omitempty"`
	Group    string          `json:"group,omitempty"`
	Lag      uint64          `json:"lag,omitempty"`
	OldestTS int64           `json:"oldest_ts,omitempty"`
	Members  int             `json:"members,omitempty"`
	Letters  uint64          `json:"letters,omitempty"`
	Blocked  *admin.Blocked  `json:"blocked_by,omitempty"`
	Event    *admin.InFlight `json:"event,omitempty"` // the one that holds the group up
	Max      int             `json:"max_attempts,omitempty"`

	Name    string  `json:"name,omitempty"` // of a check, a setting, a member of the cluster
	Text    string  `json:"text,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
	Bytes   uint64  `json:"bytes,omitempty"`
	Needed  uint64  `json:"needed_bytes,omitempty"`
}

// whatIsWrong returns what is wrong now, the worst first, at most maxWrong, and how much there is.
// Groups are asked for one by one, and only those that do not move.
func whatIsWrong(ctx context.Context, s *sample, access *Access) (list []wrong, all int) {
	list = append(list, wrongHub(s)...)
	if !s.closed && s.err == nil && access.Inspector != nil {
		groups, more := wrongGroups(ctx, s, access)
		list = append(list, groups...)
		list = append(list, wrongLetters(s, access.Shows)...)
		all = more
	}
	slices.SortStableFunc(list, func(a, b wrong) int {
		return cmp.Or(
			strings.Compare(a.Severity, b.Severity), // critical is before warning
			cmp.Compare(rank(&a), rank(&b)),
			cmp.Compare(b.Lag, a.Lag),
			cmp.Compare(b.Letters, a.Letters),
			strings.Compare(a.Topic, b.Topic), strings.Compare(a.Group, b.Group), strings.Compare(a.Name, b.Name))
	})
	all += len(list)
	return list[:min(len(list), maxWrong)], all
}

// rank puts what concerns the whole hub before what concerns groups, and dead letters last.
func rank(w *wrong) int {
	switch {
	case w.Group == "":
		return 0
	case w.Kind == "dead_letters":
		return 2
	}
	return 1
}

// wrongHub says what is wrong with the hub as a whole.
func wrongHub(s *sample) (list []wrong) {
	for _, c := range s.checks {
		// A standby is not ready, and nothing is wrong with that.
		if c.Error != "" && (s.cluster == nil || s.cluster.Leads) {
			list = append(list, wrong{Kind: "not_ready", Severity: critical, Name: c.Name, Text: clip(c.Error)})
		}
	}
	list = append(list, wrongCluster(s)...)
	for _, source := range s.sources {
		left := source.Expires.Sub(s.at)
		switch {
		case source.Stale:
			list = append(list, wrong{Kind: "setting_stale", Severity: warning, Name: source.Setting})
		case !source.Expires.IsZero() && left < certificate:
			list = append(list, wrong{Kind: "certificate", Severity: warning, Name: source.Setting, Seconds: left.Seconds()})
		}
	}
	if s.closed {
		return list
	}
	if s.err != nil {
		return append(list, wrong{Kind: "not_measured", Severity: critical, Text: clip(eventhub.AsError(s.err).Message)})
	}
	return append(list, wrongStore(&s.engine)...)
}

func wrongStore(e *measure.Engine) (list []wrong) {
	if e.CommitWaiting >= stalled {
		list = append(list, wrong{Kind: "commit_stalled", Severity: critical, Seconds: e.CommitWaiting.Seconds()})
	}
	switch {
	case e.NeededBytes == 0: // the store is in no file system
	case e.FreeBytes < e.NeededBytes:
		list = append(list, wrong{Kind: "disk_full", Severity: critical, Bytes: e.FreeBytes, Needed: e.NeededBytes})
	case e.FullIn >= 0 && e.FullIn < veryFull:
		list = append(list, wrong{Kind: "disk_soon", Severity: critical, Seconds: e.FullIn.Seconds(), Bytes: e.FreeBytes})
	case e.FullIn >= 0 && e.FullIn < soonFull:
		list = append(list, wrong{Kind: "disk_soon", Severity: warning, Seconds: e.FullIn.Seconds(), Bytes: e.FreeBytes})
	}
	if e.AgesHeld >= clockAhead {
		list = append(list, wrong{Kind: "clock_ahead", Severity: warning, Seconds: e.AgesHeld.Seconds()})
	}
	return list
}

func wrongCluster(s *sample) (list []wrong) {
	c := s.cluster
	if c == nil {
		return nil
	}
	if c.Silent >= silent {
		list = append(list, wrong{Kind: "journal_silent", Severity: critical, Seconds: c.Silent.Seconds()})
	}
	if c.Full >= silent {
		list = append(list, wrong{Kind: "journal_full", Severity: critical, Seconds: c.Full.Seconds()})
	}
	if c.Behind >= stuckAfter {
		list = append(list, wrong{Kind: "standby_behind", Severity: warning, Name: c.ID, Seconds: c.Behind.Seconds()})
	}
	if len(c.Members) == 1 {
		list = append(list, wrong{Kind: "no_standby", Severity: warning, Name: c.ID})
	}
	return list
}

// wrongLetters says which groups have dead letters that nothing was done about.
func wrongLetters(s *sample, shows func(string) bool) (list []wrong) {
	for i := range s.engine.Groups {
		g := &s.engine.Groups[i]
		if g.OpenLetters > 0 && (shows == nil || shows(g.Topic)) {
			list = append(list, wrong{Kind: "dead_letters", Severity: warning, Topic: g.Topic, Group: g.Group, Letters: g.OpenLetters})
		}
	}
	return list
}

// wrongGroups says which groups stand still, and how many more there are that were not looked at.
func wrongGroups(ctx context.Context, s *sample, access *Access) (list []wrong, more int) {
	var candidates []*measure.Group
	for i := range s.engine.Groups {
		g := &s.engine.Groups[i]
		if g.Group == "" || g.Lag == 0 || access.Shows != nil && !access.Shows(g.Topic) {
			continue
		}
		if g.Paused || g.Members == 0 || g.Waiting > 0 || g.Held > 0 || !moves(s, g) {
			candidates = append(candidates, g)
		}
	}
	slices.SortFunc(candidates, func(a, b *measure.Group) int {
		return cmp.Or(cmp.Compare(b.Lag, a.Lag), strings.Compare(a.Topic, b.Topic), strings.Compare(a.Group, b.Group))
	})
	if len(candidates) > maxCandidates {
		more, candidates = len(candidates)-maxCandidates, candidates[:maxCandidates]
	}
	for _, g := range candidates {
		info, err := access.Inspector.Group(ctx, g.Topic, g.Group)
		if err != nil {
			continue // it was deleted meanwhile
		}
		flying, err := access.Inspector.InFlight(ctx, g.Topic, g.Group, lookAt)
		if err != nil {
			continue
		}
		if w := judge(&info, flying, moves(s, g), s.at); w != nil {
			list = append(list, *w)
		}
	}
	return list, more
}

// moves reports whether a group has acked something since the sample before. Without one nobody
// knows, and it does not count as moving.
func moves(s *sample, g *measure.Group) bool {
	return s.before != nil && g.Acked != s.groupBefore(g).Acked
}

// judge says why a group stands still, nil where nothing is wrong with it. flying are its events in
// flight with the lowest offsets.
func judge(g *admin.GroupInfo, flying []admin.InFlight, moves bool, now time.Time) *wrong {
	if g.Lag == 0 {
		return nil
	}
	w := &wrong{
		Severity: critical, Topic: g.Topic, Group: g.Group, Lag: g.Lag, OldestTS: g.OldestTS, Members: len(g.Members),
		Blocked: clipBlocked(g.BlockedBy), Max: g.MaxAttempts,
	}
	kind := ""
	if g.BlockedBy != nil {
		kind = g.BlockedBy.Kind
	}
	failing, oldest := failing(flying), oldest(flying)
	since := func(ts int64) time.Duration { return now.Sub(time.UnixMilli(ts)) }
	switch {
	case kind == "paused":
		w.Severity = warning // somebody wanted that
	case kind == "filter" || kind == "no_members" || kind == "members_paused" || kind == "window":
	case failing != nil:
		kind, w.Event = "poison", failing
		if moves {
			w.Severity = warning
		}
	case kind == "key" && (g.BlockedBy.State == "waiting" || since(g.BlockedBy.SinceTS) >= stuckAfter):
	case kind == "members_full" && !moves && oldest != nil && since(oldest.SinceTS) >= stuckAfter:
		w.Event = oldest
	case g.Waiting > 0 && !moves && retries(flying, now) != nil:
		kind, w.Event, w.Severity = "retry", retries(flying, now), warning
	case oldest != nil && since(oldest.SinceTS) >= slowAfter:
		kind, w.Event, w.Severity = "slow", oldest, warning
	default:
		return nil
	}
	w.Kind, w.Event = kind, clipEvent(w.Event)
	return w
}

// failing returns the event that has failed most often, if that is more than once.
func failing(flying []admin.InFlight) (worst *admin.InFlight) {
	for i := range flying {
		if e := &flying[i]; len(e.History) >= 2 && (worst == nil || len(e.History) > len(worst.History)) {
			worst = e
		}
	}
	return worst
}

// oldest returns the event that a member has had for longest.
func oldest(flying []admin.InFlight) (first *admin.InFlight) {
	for i := range flying {
		if e := &flying[i]; e.State == "leased" && (first == nil || e.SinceTS < first.SinceTS) {
			first = e
		}
	}
	return first
}

// retries returns the event with the lowest offset, where it waits long for another attempt.
func retries(flying []admin.InFlight, now time.Time) *admin.InFlight {
	if len(flying) > 0 && flying[0].State == "waiting" && flying[0].DueTS >= now.Add(longRetry).UnixMilli() {
		return &flying[0]
	}
	return nil
}
