package ws

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	gws "github.com/gobwas/ws"
	"go.uber.org/goleak"

	"eventhub"
	"eventhub/admin"
	"eventhub/wire"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; it passes long before.
const patience = 20 * time.Second

const goodToken = "s3cret-token"

// journal is what the fakes were asked to do, in order.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) add(format string, args ...any) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, fmt.Sprintf(format, args...))
}

// take returns the lines so far and forgets them.
func (j *journal) take() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	lines := j.lines
	j.lines = nil
	return lines
}

// fakePublisher answers at once, or when the test says so.
type fakePublisher struct {
	*journal
	name string
	// hold, where set, keeps answers back: the test calls the functions it gets.
	hold chan func()
	fail func(e *eventhub.Event) error
	late error // of what is published and waits

	mu   sync.Mutex
	ctx  context.Context // of the last call
	next uint64
	open int // publications that are not answered
	most int // the most there were
}

func (p *fakePublisher) Publish(context.Context, ...eventhub.Event) ([]eventhub.Receipt, error) {
	panic("the gateway enqueues")
}

func (p *fakePublisher) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	var payloads []string
	for i := range pubs {
		payloads = append(payloads, publicationText(&pubs[i]))
	}
	p.add("%s %s", p.name, strings.Join(payloads, " "))
	p.mu.Lock()
	p.ctx = ctx
	for i := range pubs {
		p.publish(&pubs[i])
	}
	p.open += len(pubs)
	p.most = max(p.most, p.open)
	p.mu.Unlock()
	finish := func() {
		p.mu.Lock()
		p.open -= len(pubs)
		p.mu.Unlock()
		done(pubs)
	}
	if p.hold != nil {
		p.hold <- finish
		return
	}
	finish()
}

// publish fills in the outcome.
func (p *fakePublisher) publish(pub *eventhub.Publication) {
	for k := range pub.Events {
		e := &pub.Events[k]
		if p.fail != nil {
			if pub.Err = p.fail(e); pub.Err != nil {
				return
			}
		}
		if due := e.Due(time.UnixMilli(0)); due > 0 {
			pub.Receipts = append(pub.Receipts, eventhub.Receipt{ID: e.ID, DeliverAt: time.UnixMilli(due)})
			continue
		}
		p.next++
		id := e.ID
		if id == "" {
			id = fmt.Sprintf("id-%d", p.next)
		}
		pub.Receipts = append(pub.Receipts, eventhub.Receipt{ID: id, Offset: p.next, Duplicate: strings.HasPrefix(id, "again")})
	}
	if len(pub.WaitFor) > 0 {
		pub.Err = p.late
	}
}

// publicationText writes the payloads of a publication as "1" or "[1 2]", and whom
// it waits for.
func publicationText(p *eventhub.Publication) string {
	var payloads []string
	for i := range p.Events {
		payloads = append(payloads, string(p.Events[i].Payload))
	}
	said := strings.Join(payloads, " ")
	if len(payloads) > 1 {
		said = "[" + said + "]"
	}
	if len(p.WaitFor) > 0 {
		said += fmt.Sprintf(" for %s within %s", strings.Join(p.WaitFor, ","), p.WaitUpTo)
	}
	return said
}

// fakeScheduler knows one event.
type fakeScheduler struct {
	*journal
	admin.Scheduler
	known string
}

func (f *fakeScheduler) Cancel(_ context.Context, topic, id string) error {
	f.add("cancel %s %s", topic, id)
	if id != f.known {
		return eventhub.Errorf(eventhub.CodeUnknownID, "nothing with the id %q is scheduled", id)
	}
	return nil
}

// fakeSubscriber hands every subscription to the test.
type fakeSubscriber struct {
	*journal
	joined chan *fakeSubscription
	// onSubscribe runs inside Subscribe.
	onSubscribe func(ctx context.Context, sub *fakeSubscription) error
	settleErr   error
}

func (f *fakeSubscriber) Subscribe(ctx context.Context, opts eventhub.GroupOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	return f.begin(ctx, wire.SubscribeOptions{GroupOptions: opts}, r)
}

func (f *fakeSubscriber) Tail(ctx context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	return f.begin(ctx, wire.OfTail(opts), r)
}

func (f *fakeSubscriber) begin(ctx context.Context, opts wire.SubscribeOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	sub := &fakeSubscription{
		journal: f.journal, opts: opts, receiver: r,
		ready: make(chan struct{}, 1), left: make(chan string, 4),
	}
	f.add("subscribe %s::%s", opts.Topic, opts.Group)
	if f.onSubscribe != nil {
		if err := f.onSubscribe(ctx, sub); err != nil {
			return nil, err
		}
	}
	f.joined <- sub
	return sub, nil
}

func (f *fakeSubscriber) Settle(_ context.Context, topic, group string, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	f.add("settle by lease %s::%s %s", topic, group, settlementText(s))
	return make([]eventhub.Outcome, len(s.Refs)), f.settleErr
}

func (f *fakeSubscriber) AckAndPublish(_ context.Context, topic, group string, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	ackAndPublish(f.journal, "hand over by lease "+topic+"::"+group, hs, nil)
	done(hs)
}

// ackAndPublish writes down what is handed over and fills in the outcome.
func ackAndPublish(j *journal, what string, hs []eventhub.AckPublish, fail func(*eventhub.AckPublish) error) {
	for i := range hs {
		h := &hs[i]
		refs := settlementText(eventhub.Settlement{Refs: h.Refs})
		for _, e := range h.Events {
			refs += fmt.Sprintf(" %s=%s", e.Topic, e.Payload)
		}
		j.add("%s %s", what, refs)
		if fail != nil {
			if h.Err = fail(h); h.Err != nil {
				continue
			}
		}
		for k := range h.Events {
			h.Receipts = append(h.Receipts, eventhub.Receipt{ID: fmt.Sprintf("r-%s", h.Events[k].Payload), Offset: uint64(k + 1)})
		}
	}
}

type fakeSubscription struct {
	*journal
	opts      wire.SubscribeOptions
	receiver  eventhub.Receiver
	outcome   func(eventhub.Ref) eventhub.Outcome
	settleErr error
	ready     chan struct{} // a hint, as Ready is
	left      chan string   // "unsubscribe" or "drop"
	unsent    int           // what drop was called with
	sent      atomic.Int64  // what Sent was called with, in all
	pauseErr  error
	// holdOver, where set, keeps the answers of ack-and-publishes back: the test calls the
	// functions it gets.
	holdOver chan func()
	failOver func(*eventhub.AckPublish) error
}

func (f *fakeSubscription) AckAndPublish(_ context.Context, hs []eventhub.AckPublish, done func([]eventhub.AckPublish)) {
	ackAndPublish(f.journal, fmt.Sprintf("hand over %s::%s", f.opts.Topic, f.opts.Group), hs, f.failOver)
	if f.holdOver != nil {
		f.holdOver <- func() { done(hs) }
		return
	}
	done(hs)
}

func (f *fakeSubscription) Settle(_ context.Context, s eventhub.Settlement) ([]eventhub.Outcome, error) {
	f.add("settle %s::%s %s", f.opts.Topic, f.opts.Group, settlementText(s))
	outcomes := make([]eventhub.Outcome, len(s.Refs))
	for i, r := range s.Refs {
		if f.outcome != nil {
			outcomes[i] = f.outcome(r)
		}
	}
	return outcomes, f.settleErr
}

// settlementText writes a settlement as "ack a b c".
func settlementText(s eventhub.Settlement) string {
	words := []string{[]string{"ack", "nack", "extend"}[s.Verdict]}
	if s.Reason != "" {
		words = append(words, "because "+s.Reason)
	}
	if s.By != 0 {
		words = append(words, "by "+s.By.String())
	}
	for i := range s.Refs {
		words = append(words, refName(&s.Refs[i]))
	}
	return strings.Join(words, " ")
}

func (f *fakeSubscription) Sent(n int) { f.sent.Add(int64(n)) }

func (f *fakeSubscription) Ready() {
	select {
	case f.ready <- struct{}{}:
	default:
	}
}

func (f *fakeSubscription) Unsubscribe(context.Context) error {
	f.left <- "unsubscribe"
	return nil
}

func (f *fakeSubscription) Drop(unsent int) {
	f.unsent = unsent
	f.left <- "drop"
}

func (f *fakeSubscription) Pause(context.Context) error {
	f.add("pause %s::%s", f.opts.Topic, f.opts.Group)
	return f.pauseErr
}

func (f *fakeSubscription) Resume(context.Context) error {
	f.add("resume %s::%s", f.opts.Topic, f.opts.Group)
	return f.pauseErr
}

// delivery makes one of a payload of n bytes.
func delivery(offset uint64, n int) eventhub.Delivery {
	record := fmt.Sprintf(`{"ts":1723140000000,"id":"ev-%d","topic":"t","payload":"%s"}`, offset, strings.Repeat("x", n))
	return eventhub.Delivery{
		Topic: "t", Offset: offset, Record: eventhub.Record(record), Attempt: 1, MaxAttempts: 5,
		Lease: eventhub.Lease{Runtime: 7, Offset: offset, Serial: offset}, AckTimeout: 30 * time.Second,
	}
}

// logTap is a slog.Handler that keeps all text and reports closed connections.
type logTap struct {
	slog.Handler
	text   *lockedBuffer
	closed chan map[string]any
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newLogTap() *logTap {
	text := new(lockedBuffer)
	return &logTap{
		Handler: slog.NewTextHandler(text, &slog.HandlerOptions{Level: slog.LevelDebug}),
		text:    text, closed: make(chan map[string]any, 4096),
	}
}

func (l *logTap) Handle(ctx context.Context, r slog.Record) error {
	if r.Message == "connection closed" {
		attrs := make(map[string]any)
		r.Attrs(func(a slog.Attr) bool { attrs[a.Key] = a.Value.Any(); return true })
		l.closed <- attrs
	}
	return l.Handler.Handle(ctx, r)
}

// fixture is a gateway with everything around it faked.
type fixture struct {
	*journal
	gw     *Gateway
	pub    *fakePublisher
	sub    *fakeSubscriber
	log    *logTap
	addr   string       // of a real server, where there is one
	writes atomic.Int64 // system calls that wrote to sockets of the server
}

func newFixture(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	j := new(journal)
	f := &fixture{
		journal: j,
		pub:     &fakePublisher{journal: j, name: "publish"},
		sub:     &fakeSubscriber{journal: j, joined: make(chan *fakeSubscription, 16)},
		log:     newLogTap(),
	}
	cfg := Config{
		Authenticate: func(_ context.Context, token string, has bool) (Access, error) {
			if !has {
				return Access{}, eventhub.Errorf(eventhub.CodeNoToken, "a token is needed")
			}
			if token != goodToken {
				return Access{}, eventhub.Errorf(eventhub.CodeBadToken, "the token is not valid")
			}
			return Access{Publisher: f.pub, Subscriber: f.sub, Name: "tester"}, nil
		},
		Info:   wire.AuthInfo{Hub: "eventhub", Version: "test", Durability: "none"},
		Logger: slog.New(f.log),
	}
	if change != nil {
		change(&cfg)
	}
	gw, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	f.gw = gw
	return f
}

// serve puts a real server on a loopback socket before the gateway.
func serve(t testing.TB, change func(*Config)) *fixture {
	t.Helper()
	f := newFixture(t, change)
	srv := httptest.NewUnstartedServer(f.gw)
	srv.Listener = &countingListener{Listener: srv.Listener, writes: &f.writes}
	srv.Start()
	f.addr = srv.Listener.Addr().String()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := f.gw.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		srv.Close()
	})
	return f
}

// countingRaw counts what is sent inline.
type countingRaw struct {
	syscall.RawConn
	writes *atomic.Int64
}

func (c countingRaw) Write(f func(fd uintptr) bool) error {
	c.writes.Add(1)
	return c.RawConn.Write(f)
}

func (c *countingConn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.TCPConn.SyscallConn()
	return countingRaw{raw, c.writes}, err
}

// countingListener counts writes.
type countingListener struct {
	net.Listener
	writes *atomic.Int64
}

func (l *countingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countingConn{c.(*net.TCPConn), l.writes}, nil
}

type countingConn struct {
	*net.TCPConn
	writes *atomic.Int64
}

func (c *countingConn) Write(p []byte) (int, error) {
	c.writes.Add(1)
	return c.TCPConn.Write(p)
}

// client is a WebSocket client that can do everything wrong.
type client struct {
	t    testing.TB
	conn net.Conn
	r    *bufio.Reader
}

func handshake(addr string, headers ...string) string {
	return "GET / HTTP/1.1\r\nHost: " + addr + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n" +
		strings.Join(append(headers, ""), "\r\n") + "\r\n"
}

// request sends a handshake, with early bytes right after it, and returns the
// answer's status.
func (f *fixture) request(t testing.TB, early string, headers ...string) (*client, *http.Response) {
	t.Helper()
	conn, err := net.Dial("tcp", f.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	c := newClient(t, conn)
	c.write([]byte(handshake(f.addr, headers...) + early))
	resp, err := http.ReadResponse(c.r, &http.Request{Method: http.MethodGet})
	if err != nil {
		t.Fatal(err)
	}
	return c, resp
}

func newClient(t testing.TB, conn net.Conn) *client {
	return &client{t: t, conn: conn, r: bufio.NewReader(conn)}
}

// pipe starts a session over a connection without any buffer: what the client
// does not read, the hub can not write. For bubbles of synctest, where a hang is
// found by itself and time passes at once.
func (f *fixture) pipe(t testing.TB) *client {
	t.Helper()
	ours, theirs := net.Pipe()
	if why := f.gw.take(); why != "" {
		t.Fatal(why)
	}
	f.gw.start(ours, bufio.NewReader(strings.NewReader("")), ours.RemoteAddr().String(), noPlace{}, time.Time{})
	return newClient(t, theirs)
}

// dial connects without AUTH.
func (f *fixture) dial(t testing.TB) *client {
	t.Helper()
	c, resp := f.request(t, "")
	if resp.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("handshake: %s", resp.Status)
	}
	return c
}

// login connects and says AUTH.
func (f *fixture) login(t testing.TB) *client {
	t.Helper()
	c := f.dial(t)
	c.auth()
	return c
}

func (c *client) auth() {
	c.t.Helper()
	c.send(`{"op":"AUTH","token":"` + goodToken + `","corr":"auth"}`)
	c.expect(map[string]any{"op": "OK", "corr": "auth"})
}

// subscribe joins t::g and returns the hub's end.
func (c *client) subscribe(f *fixture) *fakeSubscription {
	c.t.Helper()
	c.send(`{"op":"SUBSCRIBE","topic":"t","group":"g","corr":"sub"}`)
	c.expect(map[string]any{"op": "OK", "corr": "sub"})
	return <-f.sub.joined
}

func (c *client) write(b []byte) {
	c.t.Helper()
	if _, err := c.conn.Write(b); err != nil {
		c.t.Fatalf("client write: %v", err)
	}
}

// send sends text messages in one write.
func (c *client) send(messages ...string) {
	c.t.Helper()
	c.write(text(messages...))
}

var testMask = [4]byte{0x12, 0xf3, 0x00, 0x5a}

// frame makes one masked frame.
func frame(op gws.OpCode, fin bool, payload string) []byte {
	return gws.MustCompileFrame(gws.MaskFrameWith(gws.NewFrame(op, fin, []byte(payload)), testMask))
}

func text(messages ...string) []byte {
	var b []byte
	for _, m := range messages {
		b = append(b, frame(gws.OpText, true, m)...)
	}
	return b
}

// closing makes a close frame.
func closing(code gws.StatusCode, reason string) []byte {
	return frame(gws.OpClose, true, string(gws.NewCloseFrameBody(code, reason)))
}

// read returns the next frame of the hub, whatever it is.
func (c *client) read() (gws.OpCode, []byte) {
	c.t.Helper()
	op, payload, err := c.tryRead()
	if err != nil {
		c.t.Fatalf("client read: %v", err)
	}
	return op, payload
}

func (c *client) tryRead() (gws.OpCode, []byte, error) {
	h, err := gws.ReadHeader(c.r)
	if err != nil {
		return 0, nil, err
	}
	if err := gws.CheckHeader(h, gws.StateClientSide); err != nil {
		return 0, nil, err
	}
	payload := make([]byte, h.Length)
	_, err = io.ReadFull(c.r, payload)
	return h.OpCode, payload, err
}

// message returns the next frame of the hub, which must be text.
func (c *client) message() map[string]any {
	c.t.Helper()
	op, payload := c.read()
	if op != gws.OpText {
		c.t.Fatalf("got opcode %x with %q; want text", op, payload)
	}
	var m map[string]any
	if err := json.Unmarshal(payload, &m); err != nil {
		c.t.Fatalf("%q: %v", payload, err)
	}
	return m
}

// expect reads one message that has at least the members of want; nil there
// means absent.
func (c *client) expect(want map[string]any) map[string]any {
	c.t.Helper()
	got := c.message()
	for name, value := range want {
		if got[name] != value {
			c.t.Fatalf("%s is %v; want %v in %v", name, got[name], value, got)
		}
	}
	return got
}

// expectClose reads a close frame with that code, 0 for an empty one, and then
// the end.
func (c *client) expectClose(code gws.StatusCode) {
	c.t.Helper()
	op, payload := c.read()
	if op != gws.OpClose {
		c.t.Fatalf("got opcode %x with %q; want a close frame", op, payload)
	}
	got, _ := gws.ParseCloseFrameData(payload)
	if got != code {
		c.t.Fatalf("closed with %d %q; want %d", got, payload, code)
	}
	if _, _, err := c.tryRead(); err != io.EOF {
		c.t.Fatalf("after the close frame: %v; want EOF", err)
	}
}

func receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s", what)
		panic("unreachable")
	}
}
