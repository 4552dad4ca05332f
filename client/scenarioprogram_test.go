package client_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"eventhub"
	"eventhub/client"
)

// program is the program of a scenario: calls of the SDK, each of which goes on by itself,
// and what they were told.
type program struct {
	options scenarioOptions
	door    *pipes
	vars    *bindings
	ctx     context.Context
	cancel  context.CancelFunc
	calls   sync.WaitGroup
	c       *client.Client

	mu       sync.Mutex
	outcomes map[string]chan map[string]any
	asked    int // how often for a token
	stops    map[string]context.CancelFunc
	subs     map[string]eventhub.Subscription
	verdicts map[string]chan verdict // by subscription and event
	held     map[string]eventhub.Delivery
}

// verdict is what a handler does.
type verdict struct {
	err     error
	publish []eventhub.Event
}

func newProgram(options scenarioOptions, door *pipes, vars *bindings) *program {
	ctx, cancel := context.WithCancel(context.Background())
	return &program{options: options, door: door, vars: vars, ctx: ctx, cancel: cancel,
		outcomes: make(map[string]chan map[string]any), stops: make(map[string]context.CancelFunc),
		subs: make(map[string]eventhub.Subscription), verdicts: make(map[string]chan verdict), held: make(map[string]eventhub.Delivery)}
}

// end closes the client and lets go of all handlers.
func (p *program) end() {
	if p.c != nil {
		p.c.Close()
	}
	p.cancel()
	p.calls.Wait()
}

func (p *program) outcome(name string) chan map[string]any {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.outcomes[name] == nil {
		p.outcomes[name] = make(chan map[string]any, 1<<12)
	}
	return p.outcomes[name]
}

// tell notes an outcome, in the form that JSON has.
func (p *program) tell(name, kind string, more map[string]any) {
	out := make(map[string]any)
	text, err := json.Marshal(more)
	if err == nil && more != nil {
		err = json.Unmarshal(text, &out)
	}
	out["kind"] = kind
	if err != nil {
		out["cause"] = err.Error()
	}
	p.outcome(name) <- out
}

// told waits for an outcome.
func (p *program) told(name string, is map[string]any) error {
	got, err := next("an outcome of "+name, p.outcome(name))
	if err != nil {
		return err
	}
	return p.vars.match("the outcome of "+name, is, got)
}

func (p *program) unread() (left []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for name, ch := range p.outcomes {
		for len(ch) > 0 {
			text, _ := json.Marshal(<-ch) // it was made of JSON
			left = append(left, "the outcome of "+name+" "+string(text))
		}
	}
	slices.Sort(left)
	return left
}

// failed describes an error as both SDKs do.
func failed(err error) map[string]any {
	out := map[string]any{"code": string(codeOf(err))}
	var e *eventhub.Error
	if errors.As(err, &e) {
		if e.Index != nil {
			out["index"] = *e.Index
		}
		if e.Present != nil {
			out["present"] = *e.Present
		}
	}
	return out
}

func codeOf(err error) eventhub.Code {
	var e *eventhub.Error
	switch {
	case errors.Is(err, context.Canceled):
		return "aborted"
	case errors.Is(err, client.ErrClosed):
		return "closed"
	case errors.Is(err, client.ErrProtocol):
		return "protocol"
	case errors.As(err, &e):
		return e.Code
	case errors.Is(err, client.ErrUnreachable):
		return "unreachable"
	}
	return eventhub.ErrorCode(err)
}

// Handle implements slog.Handler: the log is where the SDK tells of its states.
func (p *program) Handle(_ context.Context, r slog.Record) error {
	switch {
	case !p.options.States:
	case r.Message == "no connection to the hub":
		p.tell("state", "connecting", nil)
	case r.Message == "connected again":
		p.tell("state", "open", nil)
	}
	return nil
}

func (p *program) Enabled(context.Context, slog.Level) bool { return true }
func (p *program) WithAttrs([]slog.Attr) slog.Handler       { return p }
func (p *program) WithGroup(string) slog.Handler            { return p }

// token is the source: the tokens of the scenario, one after the other.
func (p *program) token(context.Context) (string, error) {
	p.mu.Lock()
	at := min(p.asked, len(p.options.Tokens)-1)
	p.asked++
	p.mu.Unlock()
	var text string
	if json.Unmarshal(p.options.Tokens[at], &text) == nil {
		return text, nil
	}
	var made struct {
		Fails bool `json:"fails"`
		Secs  int  `json:"jwt_s"`
	}
	if err := json.Unmarshal(p.options.Tokens[at], &made); err != nil || made.Fails {
		return "", errors.New("the issuer is away")
	}
	claims := fmt.Sprintf(`{"exp":%d,"n":%d}`, time.Now().Unix()+int64(made.Secs), at)
	text = "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	p.vars.set(fmt.Sprintf("token%d", at), text)
	return text, nil
}

func (p *program) dial() {
	opts := []client.Option{client.WithReconnect(10*time.Millisecond, 200*time.Millisecond), client.WithLogger(slog.New(p)),
		client.WithNetDial(func(context.Context, string, string) (net.Conn, error) { return p.door.dial() })}
	if len(p.options.Tokens) > 0 {
		opts = append(opts, client.WithTokenSource(p.token))
	}
	if p.options.Token != "" {
		opts = append(opts, client.WithToken(p.options.Token))
	}
	if p.options.Client != "" {
		opts = append(opts, client.WithName(p.options.Client))
	}
	if p.options.MaxPending > 0 {
		opts = append(opts, client.WithMaxPending(p.options.MaxPending))
	}
	c, err := client.Dial(p.ctx, "ws://127.0.0.1:1", opts...)
	if err != nil {
		p.tell("client", "error", failed(err))
		return
	}
	p.c = c
	p.tell("client", "ok", map[string]any{"protocol": c.Info().Protocol})
}

// begin runs a call that the steps may give up.
func (p *program) begin(name string, call func(ctx context.Context)) {
	ctx, stop := context.WithCancel(p.ctx)
	p.mu.Lock()
	p.stops[name] = stop
	p.mu.Unlock()
	p.calls.Go(func() {
		defer stop()
		call(ctx)
	})
}

// do begins a call.
func (p *program) do(s *scenarioStep) error {
	w := &s.With
	switch s.Do {
	case "connect":
		p.calls.Go(p.dial)
	case "publish", "batch":
		events := w.Events
		if s.Do == "publish" {
			events = []scenarioEvent{w.scenarioEvent}
		}
		p.begin(s.As, func(ctx context.Context) { p.publish(ctx, s, events) })
	case "cancel":
		p.begin(s.As, func(ctx context.Context) { p.report(s.As, p.c.Cancel(ctx, w.Topic, w.ID)) })
	case "give_up", "leave":
		return p.stop(s)
	case "close":
		p.calls.Go(func() { p.report(s.As, p.c.Close()) })
	case "drain":
		p.begin(s.As, func(ctx context.Context) { p.report(s.As, p.c.Drain(ctx)) })
	case "state":
		p.begin(s.As, func(ctx context.Context) { p.keepState(ctx, s) })
	case "consume", "transform", "subscribe", "tail", "follow":
		p.begin(s.As, func(ctx context.Context) { p.join(ctx, s) })
	case "return", "fail":
		return p.settle(s)
	case "ack", "nack", "extend", "ack_and_publish":
		return p.settleByHand(s)
	case "pause", "resume":
		return p.pause(s)
	default:
		return fmt.Errorf("there is no call %q", s.Do)
	}
	return nil
}

func (p *program) report(name string, err error) {
	if err != nil {
		p.tell(name, "error", failed(err))
		return
	}
	p.tell(name, "ok", nil)
}

// stop ends the context of a call.
func (p *program) stop(s *scenarioStep) error {
	p.mu.Lock()
	stop, sub := p.stops[s.Of], p.subs[s.Of]
	p.mu.Unlock()
	if stop == nil {
		return fmt.Errorf("there is no call %q", s.Of)
	}
	if s.Do == "leave" && sub != nil {
		p.calls.Go(func() {
			if err := sub.Unsubscribe(p.ctx); err != nil {
				p.tell(s.Of, "ended", failed(err))
				return
			}
			p.tell(s.Of, "ended", nil)
		})
		return nil
	}
	stop()
	return nil
}

func eventsOf(list []scenarioEvent) []eventhub.Event {
	events := make([]eventhub.Event, len(list))
	for i, e := range list {
		events[i] = eventhub.Event{Topic: e.Topic, Payload: e.Payload, ID: e.ID, Key: e.Key, Headers: e.Headers, Tags: e.Tags,
			Delay: time.Duration(e.DelayMs) * time.Millisecond}
		if e.Payload == nil {
			events[i].Payload = json.RawMessage("1")
		}
		if e.KeyOffset != nil {
			events[i].Expect = eventhub.IfKeyOffset(*e.KeyOffset)
		}
	}
	return events
}

func (p *program) publish(ctx context.Context, s *scenarioStep, list []scenarioEvent) {
	events := eventsOf(list)
	var receipts []eventhub.Receipt
	var err error
	if len(s.With.WaitFor) > 0 {
		receipts, err = p.c.PublishAndWait(ctx, s.With.WaitFor, time.Duration(s.With.WaitMs)*time.Millisecond, events...)
	} else {
		receipts, err = p.c.Publish(ctx, events...)
	}
	if err != nil {
		p.tell(s.As, "error", failed(err))
		return
	}
	if s.Do == "publish" {
		p.tell(s.As, "ok", receiptOf(receipts[0]))
		return
	}
	list2 := make([]map[string]any, len(receipts))
	for i, r := range receipts {
		list2[i] = receiptOf(r)
	}
	p.tell(s.As, "ok", map[string]any{"receipts": list2})
}

func receiptOf(r eventhub.Receipt) map[string]any {
	out := map[string]any{"id": r.ID, "offset": r.Offset, "duplicate": r.Duplicate}
	if !r.DeliverAt.IsZero() {
		out["deliver_at"] = r.DeliverAt.UnixMilli()
	}
	return out
}

func startOf(w *scenarioCall) eventhub.Start {
	switch w.From {
	case "earliest":
		return eventhub.Earliest
	case "after_id":
		return eventhub.AfterID(w.AfterID)
	case "offset":
		return eventhub.FromOffset(w.Offset)
	case "snapshot":
		return eventhub.Snapshot
	case "ts":
		return eventhub.At(time.UnixMilli(w.TS))
	}
	return eventhub.Latest
}

func filterOf(w *scenarioCall) *eventhub.Filter {
	if w.Filter == "" {
		return nil
	}
	return &eventhub.Filter{CEL: w.Filter}
}

// join begins a subscription and reports its end.
func (p *program) join(ctx context.Context, s *scenarioStep) {
	w := &s.With
	onGap := func(g eventhub.Gap) {
		p.tell(s.As, "gap", map[string]any{"topic": g.Topic, "after": g.After, "first": g.First})
	}
	group := eventhub.GroupOptions{Topic: w.Topic, Topics: w.Topics, Group: w.Group, Start: startOf(w), Concurrency: w.Concurrency, MaxInFlight: w.MaxInFlight,
		AckTimeout: time.Duration(w.AckTimeoutMs) * time.Millisecond, MaxAttempts: w.MaxAttempts, Ordering: w.Ordering, NoCreate: w.NoCreate, Filter: filterOf(w), OnGap: onGap,
		OnEnded: func(e eventhub.EndedGroup) {
			p.tell(s.As, "began_anew", map[string]any{"topic": e.Topic, "cursor": e.Cursor})
		}}
	tail := eventhub.TailOptions{Topic: w.Topic, Topics: w.Topics, Start: startOf(w), NoCreate: w.NoCreate, Filter: filterOf(w), OnGap: onGap,
		Conflate: time.Duration(w.EveryMs) * time.Millisecond}
	var err error
	switch s.Do {
	case "consume":
		err = p.c.Consume(ctx, group, func(ctx context.Context, d eventhub.Delivery) error { return p.handle(ctx, s, d).err })
	case "transform":
		err = p.c.Transform(ctx, group, func(ctx context.Context, d eventhub.Delivery) ([]eventhub.Event, error) {
			v := p.handle(ctx, s, d)
			return v.publish, v.err
		})
	case "follow":
		err = p.c.Follow(ctx, tail, func(_ context.Context, d eventhub.Delivery) error {
			p.tellTail(s.As, d)
			return nil
		})
	default:
		var sub eventhub.Subscription
		r := &scenarioReceiver{p, s.As}
		if s.Do == "tail" {
			sub, err = p.c.Tail(ctx, tail, r)
		} else {
			sub, err = p.c.Subscribe(ctx, group, r)
		}
		if err == nil {
			p.mu.Lock()
			p.subs[s.As] = sub
			p.mu.Unlock()
			return
		}
	}
	if err != nil {
		p.tell(s.As, "ended", failed(err))
		return
	}
	p.tell(s.As, "ended", nil)
}

func deliveryOf(d eventhub.Delivery) map[string]any {
	out := map[string]any{"id": d.ID(), "topic": d.Topic, "offset": d.Offset}
	if e, err := d.Event(); err == nil {
		out["payload"] = e.Payload
	}
	if !d.Lease.IsZero() {
		out["attempt"] = d.Attempt
	}
	if d.Sought {
		out["sought"] = true
	}
	if d.State != nil {
		out["state"] = true
	}
	if d.Redriven > 0 {
		out["redriven"] = d.Redriven
	}
	return out
}

// tellTail tells of what came to a live tail.
func (p *program) tellTail(name string, d eventhub.Delivery) {
	switch s := d.State; {
	case !s.IsMark():
		p.tell(name, "delivery", deliveryOf(d))
	case s.Complete:
		p.tell(name, "mark", map[string]any{"offset": s.Offset, "count": s.Count})
	default:
		p.tell(name, "mark", map[string]any{"horizon": s.Horizon})
	}
}

// keepState keeps the state of a topic as a map; that it is loaded is an outcome of its own.
func (p *program) keepState(ctx context.Context, s *scenarioStep) {
	opts := []client.StateOption[any]{client.OnChange(func(c client.Change[any]) {
		out := map[string]any{"key": c.Key, "offset": c.Offset}
		if c.Added {
			out["added"] = true
		} else {
			out["old"] = c.Old
		}
		if c.Removed {
			out["removed"] = true
		} else {
			out["new"] = c.New
		}
		p.tell(s.As, "change", out)
	})}
	if s.With.Key != "" {
		opts = append(opts, client.OnlyKeys[any](s.With.Key))
	}
	m, err := client.State(ctx, p.c, s.With.Topic, opts...)
	if err == nil {
		p.calls.Go(func() { // it is closed with the program
			<-p.ctx.Done()
			m.Close()
		})
		err = m.WaitLoaded(ctx)
	}
	if err != nil {
		p.tell(s.As+" loaded", "error", failed(err))
		return
	}
	p.tell(s.As+" loaded", "ok", map[string]any{"offset": m.Offset(), "size": m.Len()})
}

// handle tells of a delivery and waits for the step that is its verdict, if handlers have none of
// their own.
func (p *program) handle(ctx context.Context, s *scenarioStep, d eventhub.Delivery) verdict {
	name := s.As
	if s.With.Auto != "" {
		p.tell(name, "delivery", deliveryOf(d))
		return p.auto(ctx, s, d)
	}
	ch := make(chan verdict, 1)
	p.mu.Lock()
	p.verdicts[name+"/"+d.ID()] = ch
	p.held[name+"/"+d.ID()] = d
	p.mu.Unlock()
	p.tell(name, "delivery", deliveryOf(d))
	select {
	case v := <-ch:
		return v
	case <-p.ctx.Done():
		return verdict{}
	}
}

// auto is the verdict of a handler that has one of its own.
func (p *program) auto(ctx context.Context, s *scenarioStep, d eventhub.Delivery) verdict {
	switch s.With.Auto {
	case "fail_once":
		p.mu.Lock()
		defer p.mu.Unlock()
		if _, again := p.held[s.As+"/"+d.ID()]; !again {
			p.held[s.As+"/"+d.ID()] = d
			return verdict{err: errors.New("the first time")}
		}
	case "slow":
		select {
		case <-time.After(10 * time.Second):
		case <-ctx.Done():
		}
	case "results":
		e, err := d.Event()
		return verdict{err, []eventhub.Event{{Topic: "made", Payload: e.Payload}}}
	}
	return verdict{}
}

// settle gives a handler its verdict.
func (p *program) settle(s *scenarioStep) error {
	p.mu.Lock()
	ch := p.verdicts[s.Of+"/"+s.With.Event]
	delete(p.verdicts, s.Of+"/"+s.With.Event)
	p.mu.Unlock()
	if ch == nil {
		return fmt.Errorf("no handler of %s has %s", s.Of, s.With.Event)
	}
	ch <- verdict{reasonOf(s), eventsOf(s.With.Events)}
	return nil
}

// reasonOf is the error of a handler that fails.
func reasonOf(s *scenarioStep) error {
	if s.Do != "fail" && s.Do != "nack" {
		return nil
	}
	err := errors.New(strings.Repeat(s.With.Reason, max(1, s.With.ReasonTimes)))
	if s.With.Terminal {
		return eventhub.Terminal(err)
	}
	return eventhub.RetryAfter(time.Duration(s.With.DelayMs)*time.Millisecond, err)
}

// settleByHand gives the verdict on a delivery of a subscription without handlers.
func (p *program) settleByHand(s *scenarioStep) error {
	p.mu.Lock()
	d, ok := p.held[s.Of+"/"+s.With.Event]
	sub := p.subs[s.Of]
	p.mu.Unlock()
	if !ok {
		return fmt.Errorf("%s has no %s", s.Of, s.With.Event)
	}
	p.begin(s.As, func(ctx context.Context) {
		switch s.Do {
		case "ack":
			p.report(s.As, d.Ack(ctx))
		case "nack":
			p.report(s.As, d.Nack(ctx, reasonOf(s)))
		case "extend":
			p.report(s.As, d.Extend(ctx, time.Duration(s.With.ExtendMs)*time.Millisecond))
		case "ack_and_publish":
			_, err := eventhub.AckAndPublish(ctx, sub, []eventhub.Ref{{Lease: d.Lease}}, eventsOf(s.With.Events)...)
			p.report(s.As, err)
		}
	})
	return nil
}

func (p *program) pause(s *scenarioStep) error {
	p.mu.Lock()
	sub := p.subs[s.Of]
	p.mu.Unlock()
	if sub == nil {
		return fmt.Errorf("there is no subscription %q", s.Of)
	}
	p.begin(s.As, func(ctx context.Context) {
		if s.Do == "pause" {
			p.report(s.As, sub.Pause(ctx))
		} else {
			p.report(s.As, sub.Resume(ctx))
		}
	})
	return nil
}

// scenarioReceiver takes all deliveries; the steps settle them.
type scenarioReceiver struct {
	p    *program
	name string
}

func (r *scenarioReceiver) Deliver(batch []eventhub.Delivery) int {
	for _, d := range batch {
		d.Record = slices.Clone(d.Record)
		r.p.mu.Lock()
		r.p.held[r.name+"/"+strings.Clone(d.ID())] = d
		r.p.mu.Unlock()
		r.p.tell(r.name, "delivery", deliveryOf(d))
	}
	return len(batch)
}

func (r *scenarioReceiver) Ended(err error) { r.p.tell(r.name, "ended", failed(err)) }
