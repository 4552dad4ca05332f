package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"eventhub"
)

// writeWait is how long a page may take nothing of a message. The next one is newer anyway.
const writeWait = 10 * time.Second

// message is one message of a stream.
type message struct {
	TS      int64    `json:"ts"`
	Run     int64    `json:"run"` // when this run of the hub began: another one may have another store
	Version string   `json:"version"`
	Name    string   `json:"name,omitempty"`
	Closed  bool     `json:"closed,omitempty"` // the store is not open; of a standby it never is
	Checks  []Check  `json:"checks"`
	Totals  *totals  `json:"totals,omitempty"`
	Disk    *disk    `json:"disk,omitempty"`
	Cluster *cluster `json:"cluster,omitempty"`
	// Wrong is what is wrong, the worst first, and WrongN how much there is; of the overview alone.
	Wrong  []wrong `json:"wrong,omitempty"`
	WrongN int     `json:"wrong_count"`
	// View is what the open page asked for; Problem why it has none.
	View    any      `json:"view,omitempty"`
	Problem *problem `json:"problem,omitempty"`
}

type problem struct {
	Code   eventhub.Code `json:"code"`
	Detail string        `json:"detail"`
}

func problemOf(err error) *problem {
	e := eventhub.AsError(err)
	return &problem{e.Code, e.Message}
}

// live answers GET /console/live?view&…: a stream of messages, see message. It ends when the access
// ends, with the event ended, and when the hub stops.
func (c *Console) live(w http.ResponseWriter, r *http.Request) {
	access, err := c.cfg.Admit(r)
	var show view
	var over func()
	if err == nil {
		show, over, err = viewOf(r.URL.Query())
	}
	if err == nil {
		select {
		case c.streams <- struct{}{}:
			defer func() { <-c.streams }()
		default:
			err = &eventhub.Error{Code: eventhub.CodeOverloaded, Message: "the hub serves " + strconv.Itoa(MaxStreams) + " pages of the console; it takes no more", RetryAfter: time.Second}
		}
	}
	if err != nil {
		c.cfg.Refuse(w, err)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Accel-Buffering", "no") // or nginx waits for more
	h.Set("Connection", "close")     // its end is that of the connection
	out := &stream{w: w, control: http.NewResponseController(w)}
	defer out.end()
	defer over()
	c.pump(r, access, show, out)
}

// pump sends a message at once and then one with each tick, until the page goes away, the access
// ends or the hub stops.
func (c *Console) pump(r *http.Request, access Access, show view, out *stream) {
	tick := time.NewTicker(Tick)
	defer tick.Stop()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	var ends <-chan time.Time
	if !access.Expires.IsZero() {
		timer := time.NewTimer(time.Until(access.Expires))
		defer timer.Stop()
		ends = timer.C
	}
	var revoked <-chan struct{}
	if access.Revoked != nil {
		revoked = access.Revoked.Done()
	}
	for {
		if access.Inspector == nil && !c.cfg.Closed() {
			// The rooms have opened since the page came: at a start, or where a standby takes the lead.
			again, err := c.cfg.Admit(r)
			if err != nil {
				return // the page comes back, and is told why not
			}
			access = again
		}
		if err := out.write("live", c.message(ctx, &access, show).fit()); err != nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		case <-c.stopping.Done():
			return
		case <-ends:
			_ = out.send("ended", problem{eventhub.CodeJWTInvalid, "the token has expired"}) // or the page is gone
			return
		case <-revoked:
			_ = out.send("ended", problem{eventhub.CodeBadToken, "the token, or what it allows, was taken back"})
			return
		}
	}
}

// message makes the next message.
func (c *Console) message(ctx context.Context, access *Access, show view) *message {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s := c.sampler.take()
	m := &message{
		TS: s.at.UnixMilli(), Run: c.began.UnixMilli(), Version: c.cfg.Version, Name: clip(access.Name), Closed: s.closed,
		Checks: s.checks, Cluster: viewCluster(s.cluster),
	}
	if show == nil {
		m.Wrong, m.WrongN = whatIsWrong(ctx, s, access)
	}
	if s.closed || s.err != nil || access.Inspector == nil {
		return m
	}
	t := total(s, access.Shows)
	m.Totals, m.Disk = &t, viewDisk(&s.engine)
	if show != nil {
		v, err := show(ctx, s, access)
		if err != nil {
			m.Problem = problemOf(err)
		} else {
			m.View = v
		}
	}
	return m
}

// fit returns the message as it is sent, in at most MaxMessage bytes: of what is wrong the worst stays.
func (m *message) fit() []byte {
	for {
		text := encode(m)
		switch {
		case len(text) <= MaxMessage-64: // the rest is for the lines around it
			return text
		case len(m.Wrong) > 0:
			m.Wrong = m.Wrong[:len(m.Wrong)/2]
		default:
			m.View, m.Problem = nil, &problem{eventhub.CodeTooLarge, "what this page shows is too large for a message"}
		}
	}
}

// encode writes JSON as short as it can be: nobody puts it into a page as it is.
func encode(v any) []byte {
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // strings, numbers and what JSON is made of
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n"))
}

// rights answers GET /console/rights?topic: who it is, and what is allowed on a topic, or without
// one on the hub as a whole.
func (c *Console) rights(w http.ResponseWriter, r *http.Request) {
	access, err := c.cfg.Admit(r)
	topic := ""
	if err == nil {
		topic, err = onlyTopic(r.URL.Query())
	}
	if err != nil {
		c.cfg.Refuse(w, err)
		return
	}
	may := Permitted{Publish: true, Subscribe: true, Read: true, Admin: true}
	if access.May != nil {
		may = access.May(topic)
	}
	answer := struct {
		Name    string `json:"name"`
		Version string `json:"version"`
		Expires int64  `json:"expires_ts,omitempty"`
		Permitted
	}{access.Name, c.cfg.Version, ms(access.Expires), may}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	_, _ = w.Write(append(encode(answer), '\n')) // an error means that the client is gone
}

func onlyTopic(q url.Values) (string, error) {
	topic := q.Get("topic")
	if topic == "" {
		return "", nil
	}
	return topic, eventhub.ValidateStoredTopic(topic)
}

// stream writes Server-Sent Events.
type stream struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

func (s *stream) send(event string, v any) error { return s.write(event, encode(v)) }

// write sends an event with data of one line.
func (s *stream) write(event string, data []byte) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeWait)) // a test's recorder has none
	if _, err := fmt.Fprintf(s.w, "event: %s\ndata: %s\n\n", event, data); err != nil {
		return err
	}
	return s.control.Flush()
}

// end leaves the server some time for the end of the answer.
func (s *stream) end() { _ = s.control.SetWriteDeadline(time.Now().Add(time.Second)) }
