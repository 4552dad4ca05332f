package pebble

import (
	"context"
	"errors"
	"fmt"

	"eventhub/store"

	pdb "github.com/cockroachdb/pebble/v2"
)

// Measure implements store.Retention.
func (s *Store) Measure(ctx context.Context, topic string, from uint64, until store.Usage) (u store.Usage, next uint64, done bool, err error) {
	if err := s.enter(ctx); err != nil {
		return u, 0, false, err
	}
	defer s.leave()
	t, err := s.published(topic)
	if t == nil || err != nil {
		return u, from, true, err
	}
	t.measured.Store(true)
	m := measurement{s: s, topic: t, until: until}
	if done, err = m.run(from); err == nil {
		err = s.keepSegments(&m)
	}
	if err != nil {
		return u, 0, false, fmt.Errorf("store/pebble: measure topic %q from offset %d: %w", topic, from, err)
	}
	return m.Usage, m.next, done, nil
}

// measurement is one Measure under way.
type measurement struct {
	s     *Store
	topic *topic
	view  view
	voids uint64 // how many there were before
	until store.Usage
	head  uint64

	events, segments *pdb.Iterator
	read             uint64 // bytes of records

	store.Usage
	next uint64 // the offset after the last one that is counted
	at   uint64 // where to go on

	made []segment // of what was read
}

// run counts from an offset on, and reports whether that is all: segments, where they fit, and
// otherwise event by event.
func (m *measurement) run(from uint64) (done bool, err error) {
	m.head = m.topic.head.Load()
	m.voids = m.topic.voids.count.Load()
	m.view = m.topic.look()
	bounds := numberBounds(tagSegment, m.topic.id)
	if m.segments, err = m.s.db.NewIter(&bounds); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, m.segments.Close()) }()
	if m.events, err = m.s.events(m.topic, max(from, m.view.before.from()), m.head); err != nil {
		return false, err
	}
	defer func() { err = errors.Join(err, m.events.Close()) }()
	m.next = max(from, m.view.again(m.topic))
	m.at = m.next
	for n := 0; m.at <= m.head; n++ {
		if n == measureSegments {
			return false, nil
		}
		g, ok, err := m.segment()
		isPart := ok && (g.first < m.at || m.fills(g.Usage))
		stop := false
		switch {
		case err != nil:
			return false, err
		case !ok && g.last == 0:
			stop, err = m.walk(m.head, keepFull)
		case !ok: // there is one that ends above the head
			stop, err = m.walk(m.head, keepNone)
		case g.first > m.at:
			stop, err = m.walk(g.first-1, keepAll)
		case isPart:
			stop, err = m.walk(g.last, keepNone)
		default:
			m.Events += g.Events
			m.Bytes += g.Bytes
			m.next, m.at = g.last+1, g.last+1
		}
		if stop || err != nil {
			return m.isFull(), err
		}
	}
	return true, nil
}

// segment returns the first segment that is not below the place. ok is false where there is
// none, or where it ends above the head.
func (m *measurement) segment() (g segment, ok bool, err error) {
	if !m.segments.SeekGE(appendSegmentKey(nil, m.topic.id, m.at)) {
		return g, false, m.segments.Error()
	}
	value, err := m.segments.ValueAndErr()
	if err != nil {
		return g, false, err
	}
	g, err = decodeSegment(m.segments.Key(), value)
	return g, err == nil && g.last <= m.head, err
}

// isFull reports whether so much is counted as was asked for.
func (m *measurement) isFull() bool { return m.fills(store.Usage{}) }

// fills reports whether it is with more.
func (m *measurement) fills(more store.Usage) bool {
	return m.until.Events > 0 && m.Events+more.Events >= m.until.Events || m.until.Bytes > 0 && m.Bytes+more.Bytes >= m.until.Bytes
}

// What segments are made of that is read: none, those of segmentBytes, or also one of the rest.
const (
	keepNone = iota
	keepFull
	keepAll
)

// walk counts the events up to an offset. It reports whether it ended before, because enough is
// counted or read.
func (m *measurement) walk(to uint64, keep int) (stop bool, err error) {
	g := segment{first: m.at}
	for valid := m.events.SeekGE(appendEventKey(nil, m.topic.id, m.at)); valid; valid = m.events.Next() {
		offset := eventOffset(m.events.Key())
		if offset > to {
			break
		}
		if m.view.hides(offset) {
			continue
		}
		if m.isFull() || m.read >= measureBytes && (keep == keepNone || g.Events == 0) {
			return true, nil
		}
		value := m.events.LazyValue()
		bytes := uint64(value.Len())
		m.read += bytes
		m.Events++
		m.Bytes += bytes
		m.next, m.at = offset+1, offset+1
		g.last = offset
		g.Events++
		if g.Bytes += bytes; keep != keepNone && g.Bytes >= m.s.segmentBytes {
			m.made = append(m.made, g)
			g = segment{first: offset + 1}
		}
	}
	if keep == keepAll && g.Events > 0 {
		m.made = append(m.made, g)
	}
	m.at = to + 1
	return false, m.events.Error()
}
