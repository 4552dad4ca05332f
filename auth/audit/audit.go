// Package audit keeps who was let in, what was denied, and what administrators did: a line of
// the log and an event of admin.AuditTopic for each. It owns when these are written, and how many
// they are at most; it knows neither policies nor tokens. Package hub makes the Log, reports the
// refused tokens of all transports to it, has guards report what they deny by a Peer, and puts the
// roles of Peer (acts.go) before those of administrators.
//
// # Invariants
//
//   - Recording takes a lock and a place in a map, and waits for nothing: no file, no commit.
//   - What is equal within a second is one entry with a count. Of one address all refused
//     tokens of one reason are equal, and so are all denials of one principal: the entry has the
//     topic and the action of the first.
//   - At most one write of the log and one commit a second, whatever comes; the first entry after
//     a quiet second is written at once.
//   - Memory is bounded: of what is refused, accepted and done each has so many entries a second;
//     those beyond are counted together.
//   - An entry has names, addresses and codes; never a token, a payload or the text of an error.
//   - An act never fails because it cannot be noted. What admin.AuditTopic does not get is in the
//     log all the same, and is counted.
package audit

import (
	"context"
	"log/slog"
	"net"
	"sync"
	"time"

	"eventhub"
	"eventhub/admin"
)

const (
	// Every is the time between two writes.
	Every = time.Second
	// maxEntries bounds the entries of a kind that are kept apart at a time; all further ones
	// count as from others.
	maxEntries = 256
	others     = "others"
	// writeWait bounds one commit of entries, and what Close waits for the last one.
	writeWait = 10 * time.Second
)

// The actions of entries that are no acts of administrators.
const (
	actionAuth   = "auth"
	actionDenied = "denied"
)

// ok is the outcome of what did not fail.
const ok = "ok"

// kind is what an entry shares the bound of its number with.
type kind int

const (
	refused kind = iota
	accepted
	done
	kinds
)

// Write appends entries to admin.AuditTopic, in one commit.
type Write func(ctx context.Context, marks []admin.AuditMark) error

// Log is the audit of a hub. It is safe for concurrent use; its owner ends it with Close.
type Log struct {
	log *slog.Logger

	mu      sync.Mutex
	write   Write // nil: the store is not open yet, so entries wait
	entries [kinds]map[admin.AuditMark]*entry
	order   []*entry
	writing bool // a goroutine writes, or waits for the next time to
	closed  bool
	ended   chan struct{} // closed by Close
	ctx     context.Context
	cancel  context.CancelFunc // ends a write
	idle    sync.Cond          // on mu: writing has ended
	lost    uint64
	failing bool
}

// entry is what comes of equal marks.
type entry struct {
	mark    admin.AuditMark // the first one
	unsaved bool            // it has an event already
	count   int
}

// New returns a Log whose entries wait for Open.
func New(log *slog.Logger) *Log {
	l := &Log{log: log, ended: make(chan struct{})}
	l.idle.L = &l.mu
	l.ctx, l.cancel = context.WithCancel(context.Background())
	for k := range l.entries {
		l.entries[k] = make(map[admin.AuditMark]*entry)
	}
	return l
}

// Open has entries written, those that wait too.
func (l *Log) Open(write Write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write = write
	l.start()
}

// Close writes what there is, as far as ctx allows it. After that nothing is recorded.
func (l *Log) Close(ctx context.Context) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	l.closed = true
	close(l.ended)
	defer l.cancel()
	defer context.AfterFunc(ctx, l.cancel)()
	for l.writing {
		l.idle.Wait()
	}
	l.flush()
}

// Measure returns how many entries admin.AuditTopic did not get.
func (l *Log) Measure() (lost uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}

// Refused records that a peer at a remote address (host and port) brought no token that counts.
func (l *Log) Refused(transport, remote string, err error) {
	code := string(eventhub.ErrorCode(err))
	l.record(refused, admin.AuditMark{Action: actionAuth, Transport: transport, Remote: host(remote), Outcome: code}, false)
}

// Peer is a principal at an address, about whom a Log records.
type Peer struct {
	log                     *Log
	name, transport, remote string
}

// Peer returns the principal of a name at a remote address (host and port).
func (l *Log) Peer(name, transport, remote string) Peer {
	return Peer{log: l, name: name, transport: transport, remote: host(remote)}
}

// mark returns an entry about the peer.
func (p Peer) mark(action, outcome string) admin.AuditMark {
	return admin.AuditMark{Action: action, By: p.name, Transport: p.transport, Remote: p.remote, Outcome: outcome}
}

// Accepted records that the peer was let in.
func (p Peer) Accepted() { p.log.record(accepted, p.mark(actionAuth, ok), false) }

// Refused records that the peer was not let in, although its token counts.
func (p Peer) Refused(err error) {
	p.log.record(refused, p.mark(actionAuth, string(eventhub.ErrorCode(err))), false)
}

// Denied records that the peer has no right to an action on what it named: a topic or a pattern,
// "" for the hub as a whole, and perhaps a group.
func (p Peer) Denied(right, name, group string) {
	m := p.mark(actionDenied, string(eventhub.CodeForbidden))
	m.Right, m.Topic, m.Group = right, name, group
	p.log.record(refused, m, false)
}

// host returns the host of an address, all of it where it has no port.
func host(remote string) string {
	host, _, err := net.SplitHostPort(remote)
	if err != nil {
		return remote
	}
	return host
}

// record notes one mark. unsaved: it has an event already, and gets a line alone.
func (l *Log) record(k kind, m admin.AuditMark, unsaved bool) {
	// They may be anything at all, as the peer has written it.
	if m.Topic != "" && eventhub.ValidateStoredTopic(m.Topic) != nil {
		if _, err := eventhub.ParsePattern(m.Topic); err != nil {
			m.Topic = ""
		}
	}
	if m.Group != "" && eventhub.ValidateGroup(m.Group) != nil {
		m.Group = ""
	}
	key := m
	if k == refused {
		key.Right, key.Topic, key.Group = "", "", ""
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return
	}
	e := l.entries[k][key]
	if e == nil {
		if len(l.entries[k]) >= maxEntries {
			m = admin.AuditMark{Action: m.Action, By: others, Transport: m.Transport, Remote: others, Outcome: m.Outcome}
			key = m
		}
		if e = l.entries[k][key]; e == nil {
			e = &entry{mark: m, unsaved: unsaved}
			l.entries[k][key] = e
			l.order = append(l.order, e)
		}
	}
	e.count++
	l.start()
}

// start has a goroutine write, unless there is one, nothing to write or no place for it. l.mu is
// held.
func (l *Log) start() {
	if !l.writing && !l.closed && l.write != nil && len(l.order) > 0 {
		l.writing = true
		go l.run()
	}
}

// run writes once in Every until there was nothing to write for so long.
func (l *Log) run() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && len(l.order) > 0 {
		l.flush()
		l.mu.Unlock()
		timer := time.NewTimer(Every)
		select {
		case <-timer.C:
		case <-l.ended:
			timer.Stop()
		}
		l.mu.Lock()
	}
	l.writing = false
	l.idle.Broadcast()
}

// flush writes what there is. l.mu is held, but not meanwhile.
func (l *Log) flush() {
	order, write := l.order, l.write
	l.order = nil
	for k := range l.entries {
		clear(l.entries[k])
	}
	if len(order) == 0 {
		return
	}
	l.mu.Unlock()
	marks := make([]admin.AuditMark, 0, len(order))
	for _, e := range order {
		e.mark.Count = e.count
		l.log.LogAttrs(l.ctx, slog.LevelInfo, "audit", attributes(&e.mark)...)
		if !e.unsaved {
			marks = append(marks, e.mark)
		}
	}
	var err error
	if len(marks) > 0 && write != nil {
		ctx, cancel := context.WithTimeout(l.ctx, writeWait)
		err = write(ctx, marks)
		cancel()
	}
	l.mu.Lock()
	l.note(err, len(marks))
}

// note logs when writing begins to fail, and when it works again. l.mu is held.
func (l *Log) note(err error, n int) {
	if err != nil {
		l.lost += uint64(n)
	}
	switch failing := err != nil; {
	case failing == l.failing:
	case failing:
		l.failing = true
		l.log.Warn("the audit could not be written; until it can be, the log alone has it", "topic", admin.AuditTopic, "error", err)
	case n > 0:
		l.failing = false
		l.log.Info("the audit is written again", "topic", admin.AuditTopic, "lost", l.lost)
	}
}

// attributes are those of the line of a mark: the fields of its event.
func attributes(m *admin.AuditMark) []slog.Attr {
	attrs := []slog.Attr{slog.String("action", m.Action)}
	for _, f := range []struct{ name, value string }{
		{"by", m.By}, {"transport", m.Transport}, {"remote", m.Remote}, {"right", m.Right}, {"topic", m.Topic}, {"group", m.Group},
		{"outcome", m.Outcome},
	} {
		if f.value != "" {
			attrs = append(attrs, slog.String(f.name, f.value))
		}
	}
	return append(attrs, slog.Int("count", m.Count))
}
