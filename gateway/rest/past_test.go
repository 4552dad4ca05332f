package rest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/transfer"
)

// past is a History, an Importer and a Backuper over what the test puts there.
type past struct {
	admin.History // what is not asked for

	events []admin.Found
	again  int   // Replay goes through the events so many times more
	err    error // what Replay ends with
	late   bool  // the topic has no life when it is asked for, and its events at a Replay

	mu      sync.Mutex
	asked   []admin.ReplayQuery
	visited int
	chunks  [][]eventhub.Event // that were imported
	refuse  map[int]error      // chunk, from 0, to what comes of it
	hold    chan struct{}      // not nil: Import waits for it

	files  map[string]string // of a backup
	keep   error
	copied string // where Backup has written
}

func (p *past) Replay(ctx context.Context, q admin.ReplayQuery, visit func(string, eventhub.Item) error) error {
	p.mu.Lock()
	asked := q
	asked.OnGap = nil // functions are not compared
	p.asked = append(p.asked, asked)
	p.mu.Unlock()
	left := q.Limit
	for range p.again + 1 {
		for _, e := range p.events {
			if err := ctx.Err(); err != nil {
				return err
			}
			p.mu.Lock()
			p.visited++
			p.mu.Unlock()
			if err := visit(e.Topic, e.Item); err != nil {
				return err
			}
			if left--; left == 0 {
				return nil
			}
		}
	}
	return p.err
}

// pastLife is the life of each topic of a past that has events.
const pastLife = 7

func (p *past) Life(context.Context, string) (uint64, error) {
	if len(p.events) == 0 || p.late {
		return 0, nil
	}
	return pastLife, nil
}

func (p *past) visits() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.visited
}

func (p *past) Import(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if p.hold != nil {
		select {
		case <-p.hold:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.refuse[len(p.chunks)]; err != nil {
		return nil, err
	}
	p.chunks = append(p.chunks, append([]eventhub.Event{}, events...))
	receipts := make([]eventhub.Receipt, len(events))
	for i, e := range events {
		receipts[i] = eventhub.Receipt{ID: e.ID, Offset: e.Offset, Duplicate: strings.HasPrefix(e.ID, "again")}
	}
	return receipts, nil
}

func (p *past) count() (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.chunks {
		n += len(c)
	}
	return n
}

func (p *past) Backup(_ context.Context, dir string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.copied = dir
	if p.keep != nil {
		return p.keep
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%s is there: %v", dir, err)
	}
	for name, content := range p.files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (p *past) access() Access {
	return Access{History: p, Importer: p, Backuper: p}
}

// record makes an event as it is stored, of the year in which bubbles begin.
func record(topic, id string, payload string) eventhub.Record {
	return eventhub.Record(fmt.Sprintf(`{"ts": 946684800000,"id":%q,"topic":%q,"payload":%s}`, id, topic, payload))
}

// chronicle is n events of topic t.
func chronicle(n int, payload string) (events []admin.Found) {
	for i := range n {
		events = append(events, admin.Found{Topic: "t", Item: eventhub.Item{
			Offset: uint64(2 * (i + 1)), Record: record("t", fmt.Sprintf("id-%d", i+1), payload)}})
	}
	return events
}

// linesOf is what an export of the events has to be.
func linesOf(events []admin.Found) string {
	var b []byte
	for _, e := range events {
		b = append(e.Record.AppendJSON(b, e.Offset), '\n')
	}
	return string(b)
}

func sumOf(text string) string {
	sum := transfer.NewSum()
	_, _ = io.WriteString(sum, text)
	return sum.String()
}

// servePipes serves the API inside of a bubble, with the bounds that a hub's server
// has, and returns a client of it.
func servePipes(t *testing.T, access Access) (*API, *http.Client) {
	api, handler := mount(t, access)
	door := &pipes{make(chan net.Conn), make(chan struct{})}
	server := &http.Server{Handler: handler, ReadTimeout: stallTime}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(door) })
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return door.dial(), nil }, DisableCompression: true}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		serving.Wait()
	})
	return api, &http.Client{Transport: transport}
}
