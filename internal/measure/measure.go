// Package measure is what the rooms of a hub count and time, in plain numbers.
// The engine and the gateways keep these under locks that they hold anyway and
// hand out copies when they are asked; package ops turns the copies into metrics.
// So nothing of a metrics library is on the path of an event, and nobody but ops
// knows one.
package measure

import (
	"slices"
	"time"
)

// Milliseconds are the upper bounds of the buckets for durations of deliveries, in milliseconds. Times are kept in whole milliseconds, so finer
// ones would show nothing.
var Milliseconds = []float64{1, 2, 5, 10, 25, 50, 100, 250, 500, 1000, 2500, 5000, 10000, 30000, 60000}

// Turns are the bounds for a turn of a group, in milliseconds: most take far less
// than one.
var Turns = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25, 50, 100, 250, 1000}

// Seconds are the bounds for a commit, in seconds.
var Seconds = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5}

// Counts are the bounds for the events of a commit.
var Counts = []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384}

// maxBuckets is the largest number of bounds above.
const maxBuckets = 16

// Histogram counts values in buckets. The zero value with bounds set by
// NewHistogram is empty. It is not safe for concurrent use; copies are
// independent.
type Histogram struct {
	bounds []float64
	counts [maxBuckets]uint64 // values at or below the bound of the same index and above the one before
	count  uint64
	sum    float64
}

// NewHistogram returns an empty histogram over strictly ascending bounds, at most
// 16. It keeps the slice.
func NewHistogram(bounds []float64) Histogram {
	for i := range bounds {
		if i == maxBuckets || i > 0 && bounds[i-1] >= bounds[i] {
			panic("measure: a histogram has at most 16 strictly ascending bounds")
		}
	}
	return Histogram{bounds: bounds}
}

// Observe adds a value.
func (h *Histogram) Observe(v float64) {
	h.count++
	h.sum += v
	for i, bound := range h.bounds {
		if v <= bound {
			h.counts[i]++
			return
		}
	}
}

// Add adds the values of o, which has the same bounds.
func (h *Histogram) Add(o *Histogram) {
	if o.count > 0 && !slices.Equal(h.bounds, o.bounds) {
		panic("measure: histograms with other bounds can not be added")
	}
	h.count += o.count
	h.sum += o.sum
	for i, n := range o.counts {
		h.counts[i] += n
	}
}

// Count is the number of values.
func (h *Histogram) Count() uint64 { return h.count }

// Sum is the sum of all values.
func (h *Histogram) Sum() float64 { return h.sum }

// Buckets returns, for every bound, how many values were at or below it.
func (h *Histogram) Buckets() map[float64]uint64 {
	buckets := make(map[float64]uint64, len(h.bounds))
	total := uint64(0)
	for i, bound := range h.bounds {
		total += h.counts[i]
		buckets[bound] = total
	}
	return buckets
}

// Engine is what the bus has counted since it started, and its present state.
type Engine struct {
	Topics []Topic // that were published to, in no order
	Groups []Group // all there are, in no order

	CommitSeconds Histogram // one store.Commit
	CommitEvents  Histogram // events in one store.Commit
	// CommitWaiting is how long the store has ended no commit while one is under way.
	CommitWaiting time.Duration
	QueuedBytes   int    // records that wait for the committer
	CachedBytes   int    // records in the tail cache
	GroupBytes    int64  // events of groups that are not done, in memory, about
	StoreBytes    uint64 // see store.Maintenance
	// LastCommit is when the last commit that succeeded ended, zero before the first.
	LastCommit time.Time
	// FreeBytes is the room of the store's file system, and NeededBytes how much of it has to
	// be free for publishes; both 0 where the store is not in one.
	FreeBytes, NeededBytes uint64
	PublishRefused         map[string]uint64 // publications, by error code

	FilterFailed    uint64 // events that did not pass because a filter could not be evaluated
	FilterTooCostly uint64 // of these, those on which it cost too much

	// FullIn is how long it takes until less than NeededBytes is free, if the room goes on to
	// shrink as it did; a negative one says that it does not, or that it is not known yet.
	FullIn time.Duration
	// RetentionRounds is how often topics were looked at for events that they do not keep.
	RetentionRounds uint64
	// AgesHeld is by how much the clock of ages is behind the wall clock.
	AgesHeld time.Duration
	// Indexing is how many offsets the indexes by key have before them that are being built.
	Indexing uint64
	// Producers are those that the hub knows of numbered publishes, and ProducersUsed of them those that a
	// connection uses.
	Producers, ProducersUsed int
	// NoMaintenance: nothing is removed by itself.
	NoMaintenance bool

	// CountsLetters: not all dead letters are in the counts of the groups yet.
	CountsLetters bool

	Scheduled uint64 // events that were published with a delay
	Moved     uint64 // of these, into the log
	Cancelled uint64
}

// Topic counts what was published to one topic.
type Topic struct {
	Topic      string
	Events     uint64 // committed
	Bytes      uint64 // of their records
	Duplicates uint64 // publishes that found their id
	// Removed are events that its settings do not keep, and RemovedBytes of their records.
	Removed, RemovedBytes uint64
	// Compacted are events that compaction has removed, and CompactedBytes of their records.
	Compacted, CompactedBytes uint64
	// GroupsEnded are groups that have ended because nobody had used them.
	GroupsEnded uint64

	Horizon uint64 // the first offset that it keeps; 0 where that is not known
}

// Group counts what one group did in one topic; without a name, what the tails of
// the topic did together.
type Group struct {
	Topic, Group string

	Delivered    uint64 // attempts handed to a member
	Redelivered  uint64 // of these, second and later attempts
	Acked        uint64
	Nacked       uint64
	Expired      uint64 // leases that ran out
	DeadLettered uint64
	Gaps         uint64 // times that events were found to be removed before they were done
	GapOffsets   uint64 // offsets of these

	Lag     uint64
	Waiting int
	Held    int // wait for an earlier event of their key
	Members int
	Paused  bool
	// OpenLetters are dead letters that nothing was done about, Redriven those whose events
	// were given back to the group and are not done. A group that was deleted has some too.
	OpenLetters uint64
	Redriven    uint64
	// InFlight counts leased events by the transport of the member that holds
	// them; in process the transport is "".
	InFlight map[string]int

	Poll    Histogram // ms: one turn of the group
	Handler Histogram // ms: handed over → acked
	Latency Histogram // ms: committed → acked
}

// NewGroup returns a group that has counted nothing.
func NewGroup(topic, group string) Group {
	return Group{
		Topic: topic, Group: group,
		InFlight: make(map[string]int),
		Poll:     NewHistogram(Turns),
		Handler:  NewHistogram(Milliseconds),
		Latency:  NewHistogram(Milliseconds),
	}
}

// Add adds what o has counted, and nothing of its present state.
func (g *Group) Add(o *Group) {
	g.Delivered += o.Delivered
	g.Redelivered += o.Redelivered
	g.Acked += o.Acked
	g.Nacked += o.Nacked
	g.Expired += o.Expired
	g.DeadLettered += o.DeadLettered
	g.Gaps += o.Gaps
	g.GapOffsets += o.GapOffsets
	g.Poll.Add(&o.Poll)
	g.Handler.Add(&o.Handler)
	g.Latency.Add(&o.Latency)
}

// Gateway is what the WebSocket gateway has counted since it started.
type Gateway struct {
	Connections   int // open now
	Opened        uint64
	Closed        map[int]uint64 // by close code; 0: without one
	Refused       uint64         // for lack of room, or while stopping
	BytesReceived uint64
	BytesSent     uint64
	Errors        map[string]uint64 // ERR frames by code
	Subscriptions int               // open now
	// Ended are the last connections that had signed in and have ended, the newest first, at most MaxEnded. The slice
	// is the caller's.
	Ended []Ended
}

// MaxEnded is how many of the connections that have ended are remembered.
const MaxEnded = 40

// Ended is one connection that has ended.
type Ended struct {
	ID, Remote, Name, Client string
	Since, At                time.Time
	Code                     int    // the close code; 0: without one
	Why                      string // what the hub has said, or how it was lost; empty where the peer closed
	Delivered                int64  // events
}

// AuthRefused counts peers that were not let in at one transport for one reason.
type AuthRefused struct {
	Transport string // ws, http or ops
	Reason    string // an error code
	Count     uint64
}

// Source is what a setting names and is read again and again: files, or a URL.
type Source struct {
	Setting  string // its key in the configuration
	Failures uint64 // how often what is new there could not be read
	Stale    bool   // the last time, so that what was read before still counts
	// Expires is when what was read is not good any more; zero: never, or not known.
	Expires time.Time
}

// Limit is a limit of what is published, or of connections.
type Limit struct {
	Limit       string  // publish_connection, publish_principal, publish_topic, connections_total, connections_address or connections_principal
	Pattern     string  // of topics; empty for the others
	PerSecond   float64 // events; 0 of connections
	Connections int
	Refused     uint64 // publications, or connections
}

// Cluster is how a hub is doing that shares a journal, and what it knows of the others.
type Cluster struct {
	ID     string
	Leads  bool
	Epoch  uint64
	Active string // who leads, or led last; empty where nobody has yet
	// Position is the last place that the hub has, Last that of the journal.
	Position, Last uint64
	Behind         time.Duration // for how long a standby has not had all of Last
	Silent         time.Duration // for how long the journal has not answered
	Full           time.Duration // for how long it has answered that it takes nothing
	Durability     string        // what an OK means
	// Used and Most are the bytes that the journal has and may have; Most is 0 where it has no limit.
	Used, Most    uint64
	Failovers     uint64    // how often this process took the lead
	AppendSeconds Histogram // of the lead: one entry, until the journal has it
	Members       []Member  // by id, this one too
	// Now is what the clock of the journal's engine says, by which Members were seen; zero where it is not known.
	Now time.Time
	// Projection is what a hub that leads writes beside a journal in MongoDB; zero where it writes
	// nothing.
	Projection Projection
	// StoreBytes, FreeBytes and NeededBytes are of the copy of a standby, as those of an Engine; 0 of a hub that
	// leads, and where they are not known.
	StoreBytes, FreeBytes, NeededBytes uint64
}

// Projection is how the documents are doing that a hub makes of its log.
type Projection struct {
	Entries uint64        // of the journal that are not projected
	Lag     time.Duration // for how long the oldest of them has waited
	Events  uint64        // written since the start
	Errors  uint64        // attempts that failed since the start
}

// BehindEntries is how many entries a copy does not have that is at a place.
func (c *Cluster) BehindEntries(at uint64) uint64 { return c.Last - min(at, c.Last) }

// Member is a hub that shares a journal, as it said itself.
type Member struct {
	ID     string
	URLs   []string
	Synced uint64    // the place up to which its copy is on its disk
	Layout uint32    // the highest layout of entries that it reads
	Seen   time.Time // when it said so, by the engine's clock
	// Released: somebody has said in its place that it does not come back.
	Released bool
}

// API is what the HTTP API has counted since it started.
type API struct {
	Requests []Requests
}

// Requests counts the requests that one route answered with one status.
type Requests struct {
	Route  string // the pattern, as in "POST /publish/{topic}"
	Status int
	Count  uint64
}
