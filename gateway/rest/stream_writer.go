package rest

import (
	"context"
	"net/http"
	"sync"
	"time"
)

const (
	// writeWait is how long a peer may take nothing while there is something to
	// write.
	writeWait = 10 * time.Second
	// stepBytes is what it has to take in that time: as little as can be noticed, and
	// as much as the server writes at once anyway.
	stepBytes = 4 << 10
	// endWait is for the few bytes that the server writes after an answer.
	endWait = time.Second
)

// patientWriter writes answers that are long, or have no end, to peers that may be
// slow: as long as they take something they may take their time.
type patientWriter struct {
	w       http.ResponseWriter
	control *http.ResponseController
	release func() bool

	broken bool // a write failed

	mu       sync.Mutex
	hurry    bool // the hub stops
	finished bool
}

// patient returns a writer that a stopping hub does not wait for. done or last has
// to be called.
func (a *API) patient(w http.ResponseWriter) *patientWriter {
	p := &patientWriter{w: w, control: http.NewResponseController(w)}
	p.release = context.AfterFunc(a.stopping, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if !p.finished {
			p.hurry = true
			_ = p.control.SetWriteDeadline(time.Now()) // for the write under way
		}
	})
	return p
}

// allow lets the next write have its time.
func (p *patientWriter) allow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.hurry {
		_ = p.control.SetWriteDeadline(time.Now().Add(writeWait)) // a test's recorder has none
	}
}

func (p *patientWriter) write(b []byte) error {
	for len(b) > 0 {
		n := min(stepBytes, len(b))
		p.allow()
		if _, err := p.w.Write(b[:n]); err != nil {
			p.broken = true
			return err
		}
		b = b[n:]
	}
	return nil
}

func (p *patientWriter) flush() error {
	p.allow()
	err := p.control.Flush()
	p.broken = p.broken || err != nil
	return err
}

// done gives the connection back as it was.
func (p *patientWriter) done() { p.finish(time.Time{}) }

// last leaves the server some time for the end of an answer that is the
// connection's last.
func (p *patientWriter) last() { p.finish(time.Now().Add(endWait)) }

func (p *patientWriter) finish(deadline time.Time) {
	p.release()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = true
	if !p.broken {
		_ = p.control.SetWriteDeadline(deadline)
	}
}
