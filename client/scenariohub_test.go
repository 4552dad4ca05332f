package client_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gws "github.com/gobwas/ws"
	"github.com/gobwas/ws/wsutil"
)

// bindings are the placeholders of a scenario: "$name" is bound where it is met first.
type bindings struct {
	mu   sync.Mutex
	vars map[string]any
}

func newBindings() *bindings { return &bindings{vars: make(map[string]any)} }

func (b *bindings) set(name string, v any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.vars[name] = v
}

// match compares what came with what is wanted: objects need the members that are named, lists
// all of their elements. "$any" is anything, "$none" an absent member.
func (b *bindings) match(at string, want, got any) error {
	switch w := want.(type) {
	case string:
		if len(w) > 1 && w[0] == '$' {
			return b.matchName(at, w[1:], got)
		}
	case map[string]any:
		if special, err := b.matchSpecial(at, w, got); special {
			return err
		}
		g, ok := got.(map[string]any)
		if !ok {
			return fmt.Errorf("%s is %v; want %v", at, got, want)
		}
		for _, name := range slices.Sorted(maps.Keys(w)) {
			v, ok := g[name]
			if w[name] == "$none" {
				if ok {
					return fmt.Errorf("%s.%s is %v; want none", at, name, v)
				}
				continue
			}
			if !ok {
				return fmt.Errorf("%s has no %s; want %v in %v", at, name, w[name], got)
			}
			if err := b.match(at+"."+name, w[name], v); err != nil {
				return err
			}
		}
		return nil
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(w) {
			return fmt.Errorf("%s is %v; want %v", at, got, want)
		}
		for i := range w {
			if err := b.match(fmt.Sprintf("%s[%d]", at, i), w[i], g[i]); err != nil {
				return err
			}
		}
		return nil
	}
	if !reflect.DeepEqual(want, got) {
		return fmt.Errorf("%s is %v; want %v", at, got, want)
	}
	return nil
}

// matchSpecial compares with what no JSON can say: a list in any order, a text that was cut.
func (b *bindings) matchSpecial(at string, w map[string]any, got any) (special bool, _ error) {
	if all, ok := w["all_of"].([]any); ok {
		list, ok := got.([]any)
		if !ok || len(list) != len(all) {
			return true, fmt.Errorf("%s is %v; want all of %v", at, got, all)
		}
		for _, one := range all {
			if !slices.ContainsFunc(list, func(g any) bool { return b.match(at, one, g) == nil }) {
				return true, fmt.Errorf("%s is %v; want %v in it", at, got, one)
			}
		}
		return true, nil
	}
	unit, ok := w["repeats"].(string)
	if !ok {
		return false, nil
	}
	most, _ := w["most_bytes"].(float64)
	text, _ := got.(string)
	if text == "" || strings.ReplaceAll(text, unit, "") != "" || len(text) > int(most) || len(text) < int(most)-8 {
		return true, fmt.Errorf("%s has %d bytes: %q", at, len(text), text)
	}
	return true, nil
}

func (b *bindings) matchName(at, name string, got any) error {
	if name == "any" {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	bound, ok := b.vars[name]
	if !ok {
		b.vars[name] = got
		return nil
	}
	if !reflect.DeepEqual(bound, got) {
		return fmt.Errorf("%s is %v; want %v, which is $%s", at, got, bound, name)
	}
	return nil
}

// fill puts what is bound in the place of names.
func (b *bindings) fill(v any) any {
	switch v := v.(type) {
	case string:
		if len(v) > 1 && v[0] == '$' {
			b.mu.Lock()
			defer b.mu.Unlock()
			return b.vars[v[1:]]
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, member := range v {
			out[name] = b.fill(member)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = b.fill(v[i])
		}
		return out
	}
	return v
}

// scriptHub is the hub of a scenario: it does what the steps say.
type scriptHub struct {
	t        *testing.T
	vars     *bindings
	door     *pipes
	arrivals chan net.Conn
	conn     *scriptConn
	frames   map[string]map[string]any // that have a name
	last     map[string]any
	serving  sync.WaitGroup
}

// scriptConn is one connection to it.
type scriptConn struct {
	net  net.Conn
	in   chan map[string]any // closed when the client is gone
	mu   sync.Mutex
	mute bool
}

func newScriptHub(t *testing.T, vars *bindings) *scriptHub {
	h := &scriptHub{t: t, vars: vars, door: newPipes(), arrivals: make(chan net.Conn, 64), frames: make(map[string]map[string]any)}
	h.serving.Go(func() {
		for {
			c, err := h.door.Accept()
			if err != nil {
				return
			}
			h.arrivals <- c
		}
	})
	return h
}

func (h *scriptHub) end() {
	h.door.Close()
	if h.conn != nil {
		h.conn.net.Close()
	}
	h.serving.Wait()
	for len(h.arrivals) > 0 {
		(<-h.arrivals).Close()
	}
}

// serve makes a connection of an arrival.
func (h *scriptHub) serve(conn net.Conn) (*scriptConn, error) {
	if _, err := gws.Upgrade(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("upgrade: %w", err)
	}
	c := &scriptConn{net: conn, in: make(chan map[string]any, 1<<12)}
	h.serving.Go(func() {
		defer close(c.in)
		defer conn.Close()
		for {
			f, err := c.read()
			if err != nil {
				return
			}
			c.in <- f
		}
	})
	return c, nil
}

// read returns the next frame. Signs of life are given here, and are no frames of a scenario.
func (c *scriptConn) read() (map[string]any, error) {
	message, op, err := wsutil.ReadClientData(muted{c})
	if err != nil {
		return nil, err
	}
	if op != gws.OpText {
		return nil, errors.New("a message is not text")
	}
	var f map[string]any
	if err := json.Unmarshal(message, &f); err != nil {
		return nil, err
	}
	for _, name := range []string{"lease", "ids"} { // a list of one means the same as the one
		if list, ok := f[name].([]any); ok && len(list) == 1 {
			f[name] = list[0]
		}
	}
	return f, nil
}

// muted is the connection, of which a mute hub writes nothing.
type muted struct{ c *scriptConn }

func (m muted) Read(p []byte) (int, error) { return m.c.net.Read(p) }

func (m muted) Write(p []byte) (int, error) {
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if m.c.mute {
		return len(p), nil
	}
	return m.c.net.Write(p)
}

func (c *scriptConn) write(text string) error {
	var out bytes.Buffer
	_ = wsutil.WriteServerText(&out, []byte(text)) // fails as the writer does
	_, err := muted{c}.Write(out.Bytes())
	return err
}

// next waits for what comes; what says what that is.
func next[T any](what string, ch <-chan T) (v T, err error) {
	select {
	case v, ok := <-ch:
		if !ok {
			return v, fmt.Errorf("%s did not come: the client has left the connection", what)
		}
		return v, nil
	case <-time.After(scenarioPatience):
		return v, fmt.Errorf("%s did not come", what)
	}
}

// play does a step of the hub.
func (h *scriptHub) play(s *scenarioStep) error {
	switch {
	case s.Accept != nil:
		return h.accept(s)
	case s.Refuse:
		conn, err := next("a connection", h.arrivals)
		if err == nil {
			err = conn.Close()
		}
		return err
	case h.conn == nil:
		return errors.New("there is no connection")
	case s.Expect != nil:
		f, err := next("a frame", h.conn.in)
		if err != nil {
			return err
		}
		h.last = f
		if s.As != "" {
			h.frames[s.As] = f
		}
		return h.vars.match("the frame", s.Expect, f)
	case s.Answer != nil:
		return h.answer(s)
	case s.Send != nil:
		return h.send(h.vars.fill(s.Send))
	case s.Text != "":
		return h.conn.write(s.Text)
	case s.Deliver != nil:
		for i := range s.Deliver {
			if err := h.conn.write(s.Deliver[i].frame()); err != nil {
				return err
			}
		}
		return nil
	}
	return h.playEnd(s)
}

// playEnd does a step that is about the end of a connection.
func (h *scriptHub) playEnd(s *scenarioStep) error {
	switch {
	case s.Mute:
		h.conn.mu.Lock()
		h.conn.mute = true
		h.conn.mu.Unlock()
		return nil
	case s.Cut:
		return h.conn.net.Close()
	case s.Close != 0:
		body := gws.NewCloseFrameBody(gws.StatusCode(s.Close), "so it is")
		if err := wsutil.WriteServerMessage(muted{h.conn}, gws.OpClose, body); err != nil {
			return err
		}
		return h.conn.net.Close()
	case s.Gone:
		f, err := next("the end", h.conn.in)
		if err == nil {
			return fmt.Errorf("a frame came: %v", f)
		}
		if f == nil && len(h.conn.in) == 0 {
			return nil
		}
		return err
	}
	return errors.New("the step says nothing")
}

func (h *scriptHub) accept(s *scenarioStep) error {
	conn, err := next("a connection", h.arrivals)
	if err != nil {
		return err
	}
	if h.conn != nil {
		h.conn.net.Close()
		if left := h.unreadFrames(); len(left) > 0 {
			return fmt.Errorf("the connection before had more:\n%s", strings.Join(left, "\n"))
		}
	}
	if h.conn, err = h.serve(conn); err != nil {
		return err
	}
	f, err := next("AUTH", h.conn.in)
	if err != nil {
		return err
	}
	if err := h.vars.match("AUTH", map[string]any{"op": "AUTH"}, f); err != nil {
		return err
	}
	if err := h.vars.match("AUTH", s.Accept, f); err != nil {
		return err
	}
	return h.send(helloWith(h.vars.fill(s.Hello)))
}

// helloWith is the answer to AUTH with other members.
func helloWith(more any) map[string]any {
	hello := map[string]any{"op": "OK", "hub": "scripted", "version": "9.9", "protocol": 1.0, "durability": "sync",
		"limits": map[string]any{"max_frame_bytes": 1310720.0, "max_payload_bytes": 1048576.0, "max_subscriptions": 128.0}}
	if m, ok := more.(map[string]any); ok {
		maps.Copy(hello, m)
	}
	return hello
}

// answer answers a frame. One without corr gets its errors alone.
func (h *scriptHub) answer(s *scenarioStep) error {
	to := h.last
	if s.To != "" {
		to = h.frames[s.To]
	}
	if to == nil {
		return errors.New("there is no frame to answer")
	}
	answer := h.vars.fill(s.Answer).(map[string]any)
	if corr, ok := to["corr"]; ok {
		answer["corr"] = corr
	} else if answer["op"] == "OK" {
		return nil
	}
	return h.send(answer)
}

func (h *scriptHub) send(frame any) error {
	text, err := json.Marshal(frame)
	if err != nil {
		return err
	}
	return h.conn.write(string(text))
}

// unread lists what came and no step has taken.
func (h *scriptHub) unread() (left []string) {
	if n := len(h.arrivals); n > 0 {
		left = append(left, fmt.Sprintf("%d connections", n))
	}
	return append(left, h.unreadFrames()...)
}

func (h *scriptHub) unreadFrames() (left []string) {
	for h.conn != nil {
		select {
		case f, ok := <-h.conn.in:
			if !ok {
				return left
			}
			text, _ := json.Marshal(f) // it came as JSON
			left = append(left, "the frame "+string(text))
		default:
			return left
		}
	}
	return left
}
