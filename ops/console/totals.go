package console

import (
	"math"
	"time"

	"eventhub/internal/measure"
)

// totals are the figures of the hub, of the topics that are shown. Rates are in a second, and
// absent in the first message.
type totals struct {
	Topics   int    `json:"topics"` // that were published to since the start
	Groups   int    `json:"groups"`
	Lag      uint64 `json:"lag"`
	InFlight int    `json:"in_flight"`
	Waiting  int    `json:"waiting"`
	Held     int    `json:"held"`
	Letters  uint64 `json:"letters"` // dead letters that nothing was done about
	// Counting: the hub has not counted all of them yet.
	Counting      bool `json:"letters_counting,omitempty"`
	Connections   int  `json:"connections"`
	Subscriptions int  `json:"subscriptions"`
	// Closed counts the connections that have ended since the start, by close code; 0: without one.
	Closed map[int]uint64 `json:"closed,omitempty"`

	Published    *float64 `json:"published,omitempty"`
	Delivered    *float64 `json:"delivered,omitempty"` // to groups and tails
	Acked        *float64 `json:"acked,omitempty"`
	Nacked       *float64 `json:"nacked,omitempty"`
	DeadLettered *float64 `json:"dead_lettered,omitempty"`

	// P50 and P99 are of the time from commit to ack, in milliseconds: the upper bounds of the buckets that
	// they are in. Absent where nothing was acked.
	P50 *float64 `json:"p50_ms,omitempty"`
	P99 *float64 `json:"p99_ms,omitempty"`
}

// disk is how much room there is. Needed is what publishes need to be free.
type disk struct {
	Store  uint64   `json:"store_bytes"`
	Free   uint64   `json:"free_bytes"`
	Needed uint64   `json:"needed_bytes"`
	FullIn *float64 `json:"full_in_s,omitempty"` // absent: it does not shrink, or that is not known yet
}

// cluster is the part of a hub in a cluster.
type cluster struct {
	ID      string         `json:"id"`
	Role    string         `json:"role"` // active or standby
	Active  string         `json:"active,omitempty"`
	Epoch   uint64         `json:"epoch"`
	Behind  uint64         `json:"behind_entries"`
	Members []clusterPlace `json:"members"`
	NowTS   int64          `json:"now_ts"` // the time by which the members were seen, which may not be the page's or the hub's; 0: not known
}

type clusterPlace struct {
	ID     string `json:"id"`
	Active bool   `json:"active"`
	Behind uint64 `json:"behind_entries"`
	SeenTS int64  `json:"seen_ts"`
}

func viewDisk(e *measure.Engine) *disk {
	d := &disk{Store: e.StoreBytes, Free: e.FreeBytes, Needed: e.NeededBytes}
	if e.FullIn >= 0 && e.NeededBytes > 0 && e.FullIn < math.MaxInt64 {
		s := e.FullIn.Seconds()
		d.FullIn = &s
	}
	return d
}

func viewCluster(c *measure.Cluster) *cluster {
	if c == nil {
		return nil
	}
	v := &cluster{ID: c.ID, Role: "standby", Active: c.Active, Epoch: c.Epoch, Behind: c.BehindEntries(c.Position), Members: []clusterPlace{}, NowTS: ms(c.Now)}
	if c.Leads {
		v.Role = "active"
	}
	for _, m := range c.Members {
		v.Members = append(v.Members, clusterPlace{m.ID, m.ID == c.Active, c.BehindEntries(m.Synced), m.Seen.UnixMilli()})
	}
	return v
}

// total adds up what is shown of a sample. Shows is nil for everything.
func total(s *sample, shows func(topic string) bool) totals {
	t := totals{Counting: s.engine.CountsLetters, Connections: s.gateway.Connections, Subscriptions: s.gateway.Subscriptions, Closed: s.gateway.Closed}
	var published, publishedBefore uint64
	for i := range s.engine.Topics {
		if topic := &s.engine.Topics[i]; shows == nil || shows(topic.Topic) {
			t.Topics++
			published += topic.Events
			publishedBefore += min(s.topicBefore(topic).Events, topic.Events)
		}
	}
	now, before := measure.NewGroup("", ""), measure.NewGroup("", "")
	for i := range s.engine.Groups {
		g := &s.engine.Groups[i]
		if shows != nil && !shows(g.Topic) {
			continue
		}
		now.Add(g)
		if was := s.groupBefore(g); was.Delivered <= g.Delivered {
			before.Add(was)
		}
		t.Lag += g.Lag
		t.Waiting += g.Waiting
		t.Held += g.Held
		t.Letters += g.OpenLetters
		t.InFlight += leased(g)
		if g.Group != "" {
			t.Groups++
		}
	}
	if s.before == nil {
		return t
	}
	t.Published = s.rate(published, publishedBefore)
	t.Delivered = s.rate(now.Delivered, before.Delivered)
	t.Acked = s.rate(now.Acked, before.Acked)
	t.Nacked = s.rate(now.Nacked, before.Nacked)
	t.DeadLettered = s.rate(now.DeadLettered, before.DeadLettered)
	t.P50, t.P99 = quantile(&now.Latency, &before.Latency, .5), quantile(&now.Latency, &before.Latency, .99)
	return t
}

// leased counts the events that members have of a group.
func leased(g *measure.Group) (n int) {
	for _, of := range g.InFlight {
		n += of
	}
	return n
}

// quantile returns the bound of the bucket in which a part of the values is that came since before;
// nil where none came. Values above the highest bound are said to be twice that.
func quantile(now, before *measure.Histogram, part float64) *float64 {
	came := now.Count() - min(before.Count(), now.Count())
	if came == 0 {
		return nil
	}
	had, has := before.Buckets(), now.Buckets()
	want := uint64(math.Ceil(part * float64(came)))
	for _, bound := range measure.Milliseconds {
		if has[bound]-min(had[bound], has[bound]) >= want {
			return &bound
		}
	}
	top := 2 * measure.Milliseconds[len(measure.Milliseconds)-1]
	return &top
}

// ms is a time as the page has it.
func ms(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}
