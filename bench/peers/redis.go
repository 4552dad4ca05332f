package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// redis is Redis Streams with an append-only file.
type redis struct{ binary, fsync string }

func (r *redis) name() string { return "redis " + r.fsync }

func (r *redis) durability() string {
	if r.fsync == "always" {
		return "fsync before every reply"
	}
	return "fsync every second: up to that is lost with the machine"
}

func (r *redis) version(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, r.binary, "--version").Output()
	if err != nil {
		return "", fmt.Errorf("%s: %w; Debian has it in the package redis-server", r.binary, err)
	}
	for _, word := range strings.Fields(string(out)) {
		if v, ok := strings.CutPrefix(word, "v="); ok {
			return v, nil
		}
	}
	return "", fmt.Errorf("%s --version printed %q", r.binary, out)
}

func (r *redis) start(ctx context.Context, dir string) (server, error) {
	// Redis does not say which port it chose, so one is chosen for it.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &redisServer{addr: l.Addr().String()}
	l.Close()
	_, port, _ := net.SplitHostPort(s.addr) // it is a listener's
	s.process, err = launch(ctx, dir, func(line string) bool { return strings.Contains(line, "Ready to accept connections") },
		r.binary, "--port", port, "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "yes", "--appendfsync", r.fsync)
	if err != nil {
		return nil, err
	}
	return s, nil
}

type redisServer struct {
	*process
	addr string
}

const (
	stream = "bench"
	group  = "g"
)

// replies reads what Redis answers. It knows what the commands below need: simple
// strings, errors, integers, bulk strings and arrays of them.
type replies struct {
	conn net.Conn
	buf  []byte // buf[r:w] is read and not handled
	r, w int
}

func dialRedis(ctx context.Context, addr string) (*replies, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { c.Close() })
	return &replies{conn: c, buf: make([]byte, 64<<10)}, nil
}

// fill reads once.
func (p *replies) fill() error {
	if p.r > 0 {
		p.w = copy(p.buf, p.buf[p.r:p.w])
		p.r = 0
	}
	if p.w == len(p.buf) {
		p.buf = append(p.buf, make([]byte, len(p.buf))...)
	}
	n, err := p.conn.Read(p.buf[p.w:])
	p.w += n
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

// next returns the next whole reply; ok is false when it is not all there. It is
// valid until fill.
func (p *replies) next() (reply []byte, ok bool, err error) {
	n, ok := replySize(p.buf[p.r:p.w])
	if !ok {
		return nil, false, nil
	}
	reply = p.buf[p.r : p.r+n]
	p.r += n
	if reply[0] == '-' {
		return nil, false, fmt.Errorf("redis says %s", bytes.TrimSpace(reply[1:]))
	}
	return reply, true, nil
}

// replySize returns the bytes of the reply at the front of b, if it is all there.
func replySize(b []byte) (int, bool) {
	end := bytes.IndexByte(b, '\n') + 1
	if end == 0 {
		return 0, false
	}
	if b[0] != '$' && b[0] != '*' {
		return end, true
	}
	n, err := strconv.Atoi(string(b[1 : end-2]))
	if err != nil || n < 0 {
		return end, true // nil
	}
	if b[0] == '$' {
		return end + n + 2, len(b) >= end+n+2
	}
	for range n {
		size, ok := replySize(b[end:])
		if !ok {
			return 0, false
		}
		end += size
	}
	return end, true
}

// do sends one command and waits for its reply.
func (p *replies) do(args ...string) (string, error) {
	if _, err := p.conn.Write(command(args...)); err != nil {
		return "", err
	}
	for {
		reply, ok, err := p.next()
		if err != nil || ok {
			return string(reply), err
		}
		if err := p.fill(); err != nil {
			return "", err
		}
	}
}

func command(args ...string) []byte {
	b := fmt.Appendf(nil, "*%d\r\n", len(args))
	for _, a := range args {
		b = fmt.Appendf(b, "$%d\r\n%s\r\n", len(a), a)
	}
	return b
}

func xadd(payload []byte) []byte { return command("XADD", stream, "*", "d", string(payload)) }

// adder is one connection that adds to the stream. Replies come in the order of the
// commands, so the times of those under way are a queue.
type adder struct {
	*replies
	commands [][]byte // one for each place in the queue
	// fresh, where not nil, changes the command of a place before it is sent again.
	fresh   func(command []byte)
	since   []time.Duration
	head, n int // the queue: n times from head on
	out     []byte
	rec     *recorder
}

func (s *redisServer) adders(ctx context.Context, n, depth int, payload func(*rand.Rand) []byte) ([]*adder, error) {
	var all []*adder
	for i := range n {
		c, err := dialRedis(ctx, s.addr)
		if err != nil {
			return nil, err
		}
		a := &adder{replies: c, since: make([]time.Duration, depth), rec: newRecorder()}
		random := rand.New(rand.NewPCG(1, uint64(i)))
		for range depth {
			a.commands = append(a.commands, xadd(payload(random)))
		}
		all = append(all, a)
	}
	return all, nil
}

// send puts one more event under way. The caller writes out.
func (a *adder) send(since time.Duration) {
	at := (a.head + a.n) % len(a.since)
	a.since[at] = since
	a.n++
	if a.fresh != nil {
		a.fresh(a.commands[at])
	}
	a.out = append(a.out, a.commands[at]...)
}

// receive reads once and takes the replies that are there.
func (a *adder) receive(began time.Time) (answered int64, err error) {
	if err := a.fill(); err != nil {
		return 0, err
	}
	now := time.Since(began)
	a.rec.Lock()
	defer a.rec.Unlock()
	for {
		_, ok, err := a.next()
		if err != nil || !ok {
			return answered, err
		}
		a.rec.add(now - a.since[a.head])
		a.head, a.n = (a.head+1)%len(a.since), a.n-1
		answered++
	}
}

// flood keeps the queue full until the time is over, or the count is used up, and
// waits for all replies.
func (a *adder) flood(began time.Time, until time.Duration, left *atomic.Int64) (answered int64, err error) {
	for {
		a.out = a.out[:0]
		now := time.Since(began)
		for a.n < len(a.since) && now < until && left.Add(-1) >= 0 {
			a.send(now)
		}
		if len(a.out) > 0 {
			if _, err := a.conn.Write(a.out); err != nil {
				return answered, err
			}
		}
		if a.n == 0 {
			return answered, nil
		}
		n, err := a.receive(began)
		answered += n
		if err != nil {
			return answered, err
		}
	}
}

// unlimited is a count that no run uses up.
const unlimited = 1 << 60

// floodAll floods over all connections and returns what was answered.
func floodAll(ctx context.Context, all []*adder, d time.Duration, count int64) (int64, time.Duration, error) {
	var answered, left atomic.Int64
	left.Store(count)
	began := time.Now()
	err := gather(ctx, len(all), func(_ context.Context, i int) error {
		n, err := all[i].flood(began, d, &left)
		answered.Add(n)
		return err
	})
	return answered.Load(), time.Since(began), err
}

func (s *redisServer) publish(ctx context.Context, l publishLoad) (*outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, err := s.adders(ctx, l.connections, l.depth, func(r *rand.Rand) []byte { return noise(l.payload, r) })
	if err != nil {
		return nil, err
	}
	if l.programs {
		if err := s.deduplicate(ctx, all); err != nil {
			return nil, err
		}
	}
	recorders := make([]*recorder, len(all))
	for i, a := range all {
		recorders[i] = a.rec
	}
	return measured(l, recorders,
		func(d time.Duration) (int64, time.Duration, error) { return floodAll(ctx, all, d, unlimited) },
		func(n int64) error { return s.holds(ctx, n) })
}

// holds checks that the stream has so many events, which were all that came.
func (s *redisServer) holds(ctx context.Context, n int64) error {
	c, err := dialRedis(ctx, s.addr)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	reply, err := c.do("XLEN", stream)
	if err == nil && reply != fmt.Sprintf(":%d\r\n", n) {
		err = fmt.Errorf("XLEN is %q; %d events were answered", reply, n)
	}
	return err
}

// done checks that the group has read everything and has acked it.
func (s *redisServer) done(ctx context.Context) error {
	c, err := dialRedis(ctx, s.addr)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	reply, err := c.do("XPENDING", stream, group)
	if err == nil && !strings.HasPrefix(reply, "*4\r\n:0\r\n") {
		err = fmt.Errorf("XPENDING is %.60q; nothing should be pending", reply)
	}
	return err
}

func (s *redisServer) consume(ctx context.Context, l consumeLoad) (*outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, err := s.adders(ctx, 8, 512, func(r *rand.Rand) []byte { return noise(l.payload, r) })
	if err != nil {
		return nil, err
	}
	count, _, err := floodAll(ctx, all, l.fill, int64(l.count))
	if err != nil {
		return nil, err
	}
	if err := s.holds(ctx, count); err != nil {
		return nil, err
	}
	c, err := s.member(ctx)
	if err != nil {
		return nil, err
	}
	return load(func() (*outcome, error) {
		var warm, n int64
		began := time.Now()
		err := c.read(0, func(entries []entry) bool {
			n += int64(len(entries))
			if warm == 0 && n >= count/10 { // the first tenth is warm-up
				warm, began = n, time.Now()
			}
			return n < count
		})
		took := time.Since(began)
		if err != nil {
			return nil, err
		}
		if n != count {
			return nil, fmt.Errorf("%d events came of %d", n, count)
		}
		o := &outcome{Value: float64(n-warm) / took.Seconds(), Count: n - warm, Seconds: took.Seconds()}
		return o, s.done(ctx)
	})
}

// groupMember reads as one consumer of a group.
type groupMember struct {
	*replies
	out     []byte
	entries []entry
}

// entry is one event of a reply.
type entry struct{ id, payload []byte }

func (s *redisServer) member(ctx context.Context) (*groupMember, error) {
	c, err := dialRedis(ctx, s.addr)
	if err != nil {
		return nil, err
	}
	if _, err := c.do("XGROUP", "CREATE", stream, group, "0", "MKSTREAM"); err != nil {
		return nil, err
	}
	return &groupMember{replies: c}, nil
}

// read hands over what comes until take has enough. The XACK of one reply goes out
// in one write with the next XREADGROUP.
func (m *groupMember) read(block time.Duration, take func([]entry) bool) error {
	args := []string{"XREADGROUP", "GROUP", group, "c", "COUNT", "100"}
	if block > 0 {
		args = append(args, "BLOCK", strconv.FormatInt(block.Milliseconds(), 10))
	}
	next := command(append(args, "STREAMS", stream, ">")...)
	for more := true; more; {
		if more = take(m.entries); more {
			m.out = append(m.out, next...)
		}
		if len(m.out) == 0 {
			return nil
		}
		if _, err := m.conn.Write(m.out); err != nil {
			return err
		}
		acked := len(m.entries) > 0
		m.out, m.entries = m.out[:0], m.entries[:0]
		if acked {
			if _, err := m.reply(); err != nil { // of the XACK
				return err
			}
		}
		if !more {
			return nil
		}
		reply, err := m.reply()
		if err != nil {
			return err
		}
		if err := m.parse(reply); err != nil {
			return err
		}
	}
	return nil
}

func (m *groupMember) reply() ([]byte, error) {
	for {
		reply, ok, err := m.next()
		if err != nil || ok {
			return reply, err
		}
		if err := m.fill(); err != nil {
			return nil, err
		}
	}
}

// parse takes the entries out of a reply of XREADGROUP and makes their XACK:
// [[stream, [[id, [d, payload]], …]]], or nil where nothing came.
func (m *groupMember) parse(reply []byte) error {
	if reply[0] == '*' && reply[1] == '-' {
		return nil
	}
	s := scanner{b: reply}
	s.array() // of streams
	s.array()
	s.bulk() // its name
	n := s.array()
	m.out = fmt.Appendf(m.out, "*%d\r\n$4\r\nXACK\r\n$%d\r\n%s\r\n$%d\r\n%s\r\n", n+3, len(stream), stream, len(group), group)
	for range n {
		s.array()
		id := s.bulk()
		s.array()
		s.bulk() // the field's name
		m.entries = append(m.entries, entry{id, s.bulk()})
		m.out = strconv.AppendInt(append(m.out, '$'), int64(len(id)), 10)
		m.out = append(append(append(m.out, "\r\n"...), id...), "\r\n"...)
	}
	if s.bad || len(s.b) != 0 {
		return fmt.Errorf("a reply of XREADGROUP is not understood: %.80q", reply)
	}
	return nil
}

// scanner walks through a whole reply.
type scanner struct {
	b   []byte
	bad bool
}

func (s *scanner) header(kind byte) int {
	end := bytes.IndexByte(s.b, '\n')
	if end < 2 || s.b[0] != kind {
		s.b, s.bad = nil, true
		return 0
	}
	n := 0
	for _, c := range s.b[1 : end-1] {
		n = n*10 + int(c-'0')
	}
	s.b = s.b[end+1:]
	return n
}

func (s *scanner) array() int { return s.header('*') }

func (s *scanner) bulk() []byte {
	n := s.header('$')
	if s.bad || n < 0 || len(s.b) < n+2 {
		s.b, s.bad = nil, true
		return nil
	}
	text := s.b[:n]
	s.b = s.b[n+2:]
	return text
}

func (s *redisServer) latency(ctx context.Context, l latencyLoad) (*outcome, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	all, err := s.adders(ctx, l.publishers, openSlots, func(r *rand.Rand) []byte { return stamped(l.payload, r) })
	if err != nil {
		return nil, err
	}
	c, err := s.member(ctx)
	if err != nil {
		return nil, err
	}
	f := newFlow(l)
	return load(func() (*outcome, error) {
		o, err := f.run(ctx, func(ctx context.Context) error {
			return c.read(100*time.Millisecond, func(entries []entry) bool {
				for _, e := range entries {
					f.arrived(e.payload)
				}
				return !f.complete()
			})
		}, s.stampedAdders(all, f))
		if err == nil {
			err = errors.Join(s.holds(ctx, f.total()), s.done(ctx))
		}
		return o, err
	})
}

// stampedAdders returns what publishes one event of an open load, and starts the
// readers of the replies.
func (s *redisServer) stampedAdders(all []*adder, f *flow) sender {
	locks := make([]sync.Mutex, len(all))
	return sender{
		send: func(i int64, due time.Duration) error {
			a, lock := all[int(i)%len(all)], &locks[int(i)%len(all)]
			lock.Lock()
			defer lock.Unlock()
			if a.n == len(a.since) {
				return fmt.Errorf("%d events of one connection are not answered", a.n)
			}
			at := (a.head + a.n) % len(a.since)
			stamp(a.commands[at][bytes.Index(a.commands[at], []byte(stampBegin)):], due)
			a.out = a.out[:0]
			a.send(due)
			_, err := a.conn.Write(a.out)
			return err
		},
		serve: func(ctx context.Context, i int) error {
			for {
				if err := all[i].fill(); err != nil {
					return err
				}
				locks[i].Lock()
				n, err := all[i].discard()
				locks[i].Unlock()
				if err != nil {
					return err
				}
				f.answered(n)
			}
		},
		n:     len(all),
		close: func() { closeAll(all) },
	}
}

func closeAll(all []*adder) {
	for _, a := range all {
		a.conn.Close()
	}
}

// discard takes the replies that were read.
func (a *adder) discard() (answered int64, err error) {
	for {
		_, ok, err := a.next()
		if err != nil || !ok {
			return answered, err
		}
		a.head, a.n = (a.head+1)%len(a.since), a.n-1
		answered++
	}
}
