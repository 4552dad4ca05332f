// Package limits bounds how fast events are published: by each connection, each principal,
// and to each topic; and how many connections there are, which are WebSockets and event streams
// over HTTP. It owns the buckets, the counts and the file that says how large they are; package
// hub puts it between the guard of every principal and the engine, and the gateways ask it for
// each connection, that of WebSockets for the bucket of one too. It knows neither tokens nor
// rights: what is not allowed is refused by package guard before it takes anything here.
//
// # Invariants
//
//   - What is one step takes its tokens together, or none: a batch is refused as a whole.
//   - What could never pass is refused as too large, and all else says when it would pass.
//   - The settings can change at any time; buckets are full then.
//   - Buckets are forgotten once they are full again, for a full one says nothing. There are
//     never more than maxBuckets; whoever comes then shares one with all others.
//
// All of it is safe for concurrent use.
package limits

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"eventhub"
	"eventhub/auth/guard"
	"eventhub/internal/measure"
)

const (
	// fewBuckets is how many are never looked through, and maxBuckets how many there are.
	fewBuckets = 1024
	maxBuckets = 100_000
)

// Limits holds the buckets of a hub.
type Limits struct {
	settings atomic.Pointer[settings]

	mu      sync.Mutex
	buckets map[key]*bucket
	sweepAt int       // so many buckets are looked through
	touched []*bucket // of the publication that is looked at
	last    *bucket   // of a topic, and lastWho of a principal: most are asked for again at once
	lastWho *bucket
	hits    map[measure.Limit]*atomic.Uint64
	open    int            // connections
	from    map[string]int // of them, by where they come from
	of      map[string]int // of them, by principal
}

// The kinds of limits; those of connections are this and a name of the file.
const (
	ofConnection = "publish_connection"
	ofPrincipal  = "publish_principal"
	ofTopic      = "publish_topic"

	ofConnections = "connections_"
)

// key is what a bucket is for.
type key struct{ kind, name string }

// bucket has the tokens of one principal or topic.
type bucket struct {
	key
	limit *limit
	left  *rate.Limiter // nil: no limit
	wants int           // of the publication that is looked at
}

// New returns limits that let everything pass.
func New() *Limits {
	l := &Limits{hits: make(map[measure.Limit]*atomic.Uint64), from: make(map[string]int), of: make(map[string]int)}
	l.use(&settings{})
	return l
}

// Take reads a file, and limits by it from now on. The error has one line for each fault.
func (l *Limits) Take(path string, content []byte) error {
	s, err := parse(path, content)
	if err != nil {
		return err
	}
	l.use(s)
	return nil
}

func (l *Limits) use(s *settings) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buckets, l.sweepAt, l.last, l.lastWho = make(map[key]*bucket), fewBuckets, nil, nil
	for _, limit := range s.all() {
		limit.hits = l.counter(limit.kind, limit.pattern.String())
	}
	for _, bound := range s.bounds() {
		bound.hits = l.counter(bound.kind, "")
	}
	l.settings.Store(s)
}

// counter returns that of what a limit has refused, which goes on through all settings.
func (l *Limits) counter(kind, pattern string) *atomic.Uint64 {
	id := measure.Limit{Limit: kind, Pattern: pattern}
	if l.hits[id] == nil {
		l.hits[id] = new(atomic.Uint64)
	}
	return l.hits[id]
}

// Measure returns the limits that there are, and how often each has refused something.
func (l *Limits) Measure() []measure.Limit {
	var list []measure.Limit
	for _, limit := range l.settings.Load().all() {
		list = append(list, measure.Limit{Limit: limit.kind, Pattern: limit.pattern.String(), PerSecond: limit.perSecond, Refused: limit.hits.Load()})
	}
	for _, bound := range l.settings.Load().bounds() {
		list = append(list, measure.Limit{Limit: bound.kind, Connections: bound.most, Refused: bound.hits.Load()})
	}
	slices.SortFunc(list, func(a, b measure.Limit) int {
		return cmp.Or(cmp.Compare(a.Limit, b.Limit), cmp.Compare(a.Pattern, b.Pattern))
	})
	return list
}

// Publisher returns next as a principal may use it.
func (l *Limits) Publisher(next eventhub.Publisher, principal string) eventhub.Publisher {
	return &publisher{next, l, principal}
}

type publisher struct {
	next      eventhub.Publisher
	limits    *Limits
	principal string
}

// Publish implements eventhub.Publisher.
func (p *publisher) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if err := p.limits.take(p.principal, events, time.Now()); err != nil {
		return nil, err
	}
	return p.next.Publish(ctx, events...)
}

// Enqueue implements eventhub.Publisher.
func (p *publisher) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	if p.limits.settings.Load().letsAll() {
		p.next.Enqueue(ctx, pubs, done)
		return
	}
	now := time.Now()
	if p.limits.takeAll(p.principal, pubs, now) {
		p.next.Enqueue(ctx, pubs, done)
		return
	}
	guard.HandOver(pubs,
		func(pub *eventhub.Publication) error {
			if pub.Refused != nil {
				return nil // the engine has its number alone
			}
			return pub.Refuse(p.limits.take(p.principal, pub.Events, now))
		},
		func(pub *eventhub.Publication, err error) { pub.Err = err },
		func(rest []eventhub.Publication, done func([]eventhub.Publication)) { p.next.Enqueue(ctx, rest, done) },
		done)
}

// take takes a token for each event, of its topic's bucket and of the principal's, or refuses
// all of them.
func (l *Limits) take(principal string, events []eventhub.Event, now time.Time) error {
	if l.settings.Load().letsAll() {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.forget()
	l.wantOf(principal, len(events), now)
	l.wantTo(events, now)
	for _, b := range l.touched {
		if err := b.check(now); err != nil {
			return err
		}
	}
	l.spend(now)
	return nil
}

// takeAll is take for publications that come together, or takes nothing and reports false where
// not all of them pass.
func (l *Limits) takeAll(principal string, pubs []eventhub.Publication, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	defer l.forget()
	n := 0
	for i := range pubs {
		if pubs[i].Refused != nil {
			continue // the engine has its number alone
		}
		n += len(pubs[i].Events)
		l.wantTo(pubs[i].Events, now)
	}
	l.wantOf(principal, n, now)
	for _, b := range l.touched {
		if !b.limit.lets(b.wants, b.left.TokensAt(now)) {
			return false
		}
	}
	l.spend(now)
	return true
}

// wantOf notes that n events are a principal's.
func (l *Limits) wantOf(principal string, n int, now time.Time) {
	s := l.settings.Load() // the buckets are of these
	if s.principal.isOff() || n == 0 {
		return
	}
	if b := l.lastWho; b == nil || b.name != principal || b.kind != ofPrincipal {
		l.lastWho = l.bucket(key{ofPrincipal, principal}, now, func() *limit { return &s.principal })
	}
	l.touch(l.lastWho, n)
}

// wantTo notes to which topics events go.
func (l *Limits) wantTo(events []eventhub.Event, now time.Time) {
	for i := range events {
		if b, topic := l.last, events[i].Topic; b == nil || b.name != topic {
			if l.last = l.bucketOf(topic, now); l.last == nil {
				return
			}
		}
		l.touch(l.last, 1)
	}
}

// bucketOf returns the bucket of a topic, or nil where topics have no limits.
func (l *Limits) bucketOf(topic string, now time.Time) *bucket {
	s := l.settings.Load() // the buckets are of these
	if len(s.topics) == 0 {
		return nil
	}
	return l.bucket(key{ofTopic, topic}, now, func() *limit { return s.topic(topic) })
}

// spend takes what is wanted, which the buckets have.
func (l *Limits) spend(now time.Time) {
	for _, b := range l.touched {
		b.left.ReserveN(now, b.wants)
	}
}

// forget ends what is wanted.
func (l *Limits) forget() {
	for _, b := range l.touched {
		b.wants = 0
	}
	l.touched = l.touched[:0]
}

// touch notes that a publication wants n tokens of a bucket.
func (l *Limits) touch(b *bucket, n int) {
	if b.left == nil {
		return
	}
	if b.wants == 0 {
		l.touched = append(l.touched, b)
	}
	b.wants += n
}

// check refuses what the bucket has not.
func (b *bucket) check(now time.Time) error {
	has := b.left.TokensAt(now)
	if b.limit.lets(b.wants, has) {
		return nil
	}
	err := b.limit.refuse(b.wants, has)
	if b.kind == ofTopic {
		err.Message += " to topic " + b.name
	}
	return err
}

// bucket returns that of a key, whose name may be of memory that is used again.
func (l *Limits) bucket(k key, now time.Time, limitOf func() *limit) *bucket {
	if b := l.buckets[k]; b != nil {
		return b
	}
	if len(l.buckets) >= l.sweepAt {
		for k, b := range l.buckets {
			if b.wants == 0 && (b.left == nil || b.left.TokensAt(now) >= float64(b.limit.burst)) {
				delete(l.buckets, k)
			}
		}
		l.sweepAt, l.last, l.lastWho = max(fewBuckets, 2*len(l.buckets)), nil, nil
	}
	found := limitOf()
	if len(l.buckets) >= maxBuckets {
		k.name = "" // that of no principal with a name, and of no topic
		if found != nil {
			k.kind = found.kind + " " + found.pattern.String()
		}
		if b := l.buckets[k]; b != nil {
			return b
		}
	}
	k.name = strings.Clone(k.name)
	b := &bucket{key: k, limit: found}
	if found != nil {
		b.left = found.limiter()
	}
	l.buckets[k] = b
	return b
}

// Meter is the bucket of one connection. It is its connection's own: not safe for concurrent use.
//
// What one read of the connection brings takes its tokens one step after the other, all at the
// time of the read. The bucket is asked once for that time, and given what was taken when another
// time comes: nobody else takes from it, so that it is the same as to ask it for each step.
type Meter struct {
	limits   *Limits
	settings *settings // that left is of
	left     *rate.Limiter
	at       time.Time // of what follows
	has      float64   // what left had then
	taken    int       // of that, since
}

// Meter returns the bucket of a connection that begins.
func (l *Limits) Meter() *Meter { return &Meter{limits: l} }

// Take takes n tokens, or says why there are none.
func (m *Meter) Take(n int, now time.Time) error {
	s := m.limits.settings.Load()
	if s != m.settings || now != m.at {
		if s.connection.isOff() {
			return nil
		}
		m.turn(s, now)
	}
	if has := m.has - float64(m.taken); !s.connection.lets(n, has) {
		return s.connection.refuse(n, has)
	}
	m.taken += n
	return nil
}

// turn gives the bucket what was taken, and asks what it has now.
func (m *Meter) turn(s *settings, now time.Time) {
	if s != m.settings {
		m.settings, m.left = s, s.connection.limiter()
	} else {
		m.left.ReserveN(m.at, m.taken)
	}
	m.at, m.has, m.taken = now, m.left.TokensAt(now), 0
}

// limiter returns a full bucket.
func (l *limit) limiter() *rate.Limiter { return rate.NewLimiter(rate.Limit(l.perSecond), l.burst) }

// lets reports whether n tokens are to be had where a bucket has so many, or will have within
// less than the clock can say.
func (l *limit) lets(n int, has float64) bool {
	return has >= float64(n) || (float64(n)-has)/l.perSecond < time.Nanosecond.Seconds()
}

// refuse says why n tokens are not to be had where a bucket has fewer.
func (l *limit) refuse(n int, has float64) *eventhub.Error {
	l.hits.Add(1)
	if n > l.burst {
		return eventhub.Errorf(eventhub.CodeTooLarge, "%d events are one step; the limit %s takes at most %d at once: publish less together", n, l.kind, l.burst)
	}
	e := eventhub.Errorf(eventhub.CodeRateLimited, "more than %v events a second (limit %s)", l.perSecond, l.kind)
	wait := min((float64(n)-has)/l.perSecond, float64(math.MaxInt32))
	e.RetryAfter = time.Duration(math.Ceil(wait*1000-1e-6)) * time.Millisecond
	return e
}
