package client_test

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gws "github.com/gobwas/ws"

	"eventhub/client"
	"eventhub/internal/bubble"
)

// cutScenario is run against a hub that answers by itself, once without a loss and then with
// one at each frame.
type cutScenario struct {
	Name          string          `json:"name"`
	About         string          `json:"about"`
	Options       scenarioOptions `json:"options"`
	Seed          []scenarioEvent `json:"seed"` // what the log has
	CutEverywhere bool            `json:"cutEverywhere"`
	Steps         []scenarioStep  `json:"steps"` // of the program
	End           cutEnd          `json:"end"`
}

// cutEnd is what has to be so in the end, whatever was lost.
type cutEnd struct {
	Hub      map[string]any   `json:"hub"`
	Handled  map[string][]any `json:"handled"`  // by subscription: payloads, each at least once
	Followed map[string][]any `json:"followed"` // by tail: payloads, each once, in order
}

// loss is where a connection is lost: at a point, which is a frame of the client before the hub
// acts on it, the same frame after that, or a frame of the hub after it has arrived. again is how many points
// later that of the next connection is, 0 for none. code is that of a close frame, 0 for none.
type loss struct{ point, again, code int }

// TestScenariosThroughCuts: wherever a connection is lost, everything is published once, every
// event of a group is handled and acked, and a tail has each event once.
func TestScenariosThroughCuts(t *testing.T) {
	var table []cutScenario
	readTable(t, "cuts.json", &table)
	for i := range table {
		s := &table[i]
		t.Run(s.Name, func(t *testing.T) {
			if !s.CutEverywhere || s.About == "" {
				t.Fatal("the scenario is not cut everywhere, or says nothing about itself")
			}
			runs := 0
			for _, kind := range []loss{{}, {code: 1001}, {again: 1}, {again: 4}} {
				for kind.point = 0; ; kind.point++ {
					if kind.point == 0 && kind != (loss{}) {
						continue
					}
					runs++
					at, ok := kind, false
					passed := t.Run(fmt.Sprintf("at=%d,again=%d,code=%d", at.point, at.again, at.code), func(t *testing.T) {
						client.EmptyPools()
						defer client.EmptyPools()
						bubble.Test(t, func(t *testing.T) { ok = playCuts(t, s, at) })
					})
					if !passed || kind.point > 0 && !ok {
						break
					}
				}
			}
			t.Logf("%d runs", runs)
		})
	}
}

// cutter is the hub of such a scenario, and cuts.
type cutter struct {
	door     *pipes
	serving  sync.WaitGroup
	at       loss
	mu       sync.Mutex
	model    *modelHub
	counting bool // the first sign-in is over
	points   int
	cuts     int
	conn     net.Conn
}

func newCutter(s *cutScenario, at loss) *cutter {
	c := &cutter{door: newPipes(), at: at, model: newModelHub(s.Seed)}
	c.serving.Go(func() {
		for {
			conn, err := c.door.Accept()
			if err != nil {
				return
			}
			c.serve(conn)
		}
	})
	return c
}

// cut counts a point and says whether the connection is lost here.
func (c *cutter) cut() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.counting {
		return false
	}
	c.points++
	next := c.at.point
	if c.cuts == 1 && c.at.again > 0 {
		next += c.at.again
	}
	if next == 0 || c.points != next {
		return false
	}
	c.cuts++
	return true
}

// serve is one connection, to its end.
func (c *cutter) serve(netConn net.Conn) {
	defer func() {
		netConn.Close()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.model.lost()
	}()
	if _, err := gws.Upgrade(netConn); err != nil {
		return
	}
	c.mu.Lock()
	c.conn = netConn
	c.mu.Unlock()
	conn := &scriptConn{net: netConn}
	for {
		f, err := conn.read()
		if err != nil {
			return
		}
		if c.cut() {
			c.lose(conn)
			return
		}
		c.mu.Lock()
		frames := c.model.take(f)
		c.mu.Unlock()
		if c.cut() {
			c.lose(conn)
			return
		}
		for _, frame := range frames {
			if conn.write(textOf(frame)) != nil {
				return
			}
			if c.cut() {
				c.lose(conn)
				return
			}
		}
		c.mu.Lock()
		c.counting = true
		c.mu.Unlock()
	}
}

func (c *cutter) lose(conn *scriptConn) {
	if c.at.code != 0 {
		_, _ = muted{conn}.Write(gws.MustCompileFrame(gws.NewCloseFrame(gws.NewCloseFrameBody(gws.StatusCode(c.at.code), "")))) // the client may be gone
	}
}

func textOf(frame map[string]any) string {
	if g, ok := frame["deliver"].(*scenarioGift); ok {
		return g.frame()
	}
	text, _ := json.Marshal(frame) // it is made of JSON
	return string(text)
}

// playCuts is one run. It reports whether all its losses happened.
func playCuts(t *testing.T, s *cutScenario, at loss) bool {
	hub := newCutter(s, at)
	vars := newBindings()
	p := newProgram(s.Options, hub.door, vars)
	defer func() {
		p.end()
		hub.door.Close()
		hub.serving.Wait()
	}()
	steps := append([]scenarioStep{{Do: "connect", As: "client"}, {Told: "client", Is: map[string]any{"kind": "ok"}}}, s.Steps...)
	for i := range steps {
		step := &steps[i]
		var err error
		switch {
		case step.Do != "":
			err = p.do(step)
		case step.Told != "":
			err = p.told(step.Told, step.Is)
		default:
			time.Sleep(time.Duration(step.Pass) * time.Millisecond)
		}
		synctest.Wait()
		if err != nil {
			t.Fatalf("step %d: %v", i-2, err)
		}
	}
	var err error
	for waited := time.Duration(0); waited < scenarioPatience; waited += time.Second {
		synctest.Wait()
		hub.mu.Lock()
		state := hub.model.state()
		hub.mu.Unlock()
		if err = vars.match("the hub", s.End.Hub, state); err == nil {
			break
		}
		time.Sleep(time.Second)
	}
	time.Sleep(time.Minute) // nothing more comes of it
	synctest.Wait()
	if err == nil {
		hub.mu.Lock()
		err = vars.match("the hub", s.End.Hub, hub.model.state())
		hub.mu.Unlock()
	}
	if err != nil {
		t.Error(err)
	}
	compareCuts(t, s, p)
	hub.mu.Lock()
	defer hub.mu.Unlock()
	return hub.cuts > 0
}

// compareCuts looks at what the program was given.
func compareCuts(t *testing.T, s *cutScenario, p *program) {
	for name, want := range s.End.Handled {
		got := make(map[string]bool)
		for _, one := range p.payloads(name) {
			got[fmt.Sprint(one)] = true
		}
		for _, w := range want {
			if !got[fmt.Sprint(w)] {
				t.Errorf("%s has not handled %v: %v", name, w, got)
			}
			delete(got, fmt.Sprint(w))
		}
		if len(got) > 0 {
			t.Errorf("%s has handled %v too", name, got)
		}
	}
	for name, want := range s.End.Followed {
		if got := p.payloads(name); !slices.EqualFunc(got, want, func(g, w any) bool { return fmt.Sprint(g) == fmt.Sprint(w) }) {
			t.Errorf("the tail %s had %v; want %v", name, got, want)
		}
	}
	if left := p.unread(); len(left) > 0 {
		t.Errorf("there is more:\n%s", strings.Join(left, "\n"))
	}
}

// payloads takes the deliveries of a subscription.
func (p *program) payloads(name string) (list []any) {
	ch := p.outcome(name)
	for len(ch) > 0 {
		got := <-ch
		if got["kind"] != "delivery" {
			list = append(list, got)
			continue
		}
		list = append(list, got["payload"])
	}
	return list
}
