package cluster

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"eventhub"
	"eventhub/admin"
	sdk "eventhub/client"
)

var (
	eventCount = flag.Int("cluster.events", 800, "how many events the publishers publish over a journal in MongoDB")
	cutCount   = flag.Int("cluster.cuts", 8, "how often the answers of MongoDB are lost meanwhile")
)

const publishers = 16

// TestDocumentsUnderLoad: sixteen publishers, and a journal in MongoDB whose answers are lost again and again, and the documents
// are made anew meanwhile: each event is in the log once, and the documents are what the log is.
func TestDocumentsUnderLoad(t *testing.T) {
	t.Parallel()
	r, server := startMongoRig(t)
	r.lead = r.active(nil)
	var urls []string
	for _, h := range r.hubs {
		urls = append(urls, h.url())
	}
	lag := watchLag(t, r.hubs)
	began := time.Now()
	p := &publishing{t: t, urls: urls, left: int64(*eventCount)}
	p.start()
	for i := range *cutCount {
		p.await(int64(*eventCount) * int64(i+1) / int64(*cutCount+1))
		if i == *cutCount/2 {
			p.ended.Go(func() { r.hubs[0].runs("journal", "project", "--rebuild", "--journal", server.url(nil)) })
		}
		for _, each := range r.proxies {
			for _, one := range each {
				one.loseReplies()
			}
		}
		time.Sleep(time.Duration(i%10) * 10 * time.Millisecond)
		for _, each := range r.proxies {
			for _, one := range each {
				one.cut()
			}
		}
	}
	p.ended.Wait()
	published := time.Since(began)
	lead := r.active(nil)
	at := (&load{t: t}).log(lead, events)
	for i := range *eventCount {
		if at[fmt.Sprintf(`"%d"`, i)] == 0 {
			t.Errorf("event %d has an OK, and is not in the log", i)
		}
	}
	if len(at) != *eventCount {
		t.Errorf("%d events in the log; want %d", len(at), *eventCount)
	}
	awaitSame(t, lead, server.db(t))
	most := lag()
	t.Logf("%d events of %d publishers, %d times without answers: %s (%.0f/s); the documents are the log %s after; they were behind for %s at most",
		len(at), publishers, *cutCount, published.Round(time.Millisecond), float64(len(at))/published.Seconds(), (time.Since(began) - published).Round(time.Millisecond), most.Round(time.Millisecond))
}

// publishing is what publishers do: each publishes one event after the other until there is an OK.
type publishing struct {
	t     *testing.T
	urls  []string
	left  int64
	next  atomic.Int64
	oked  atomic.Int64
	ended sync.WaitGroup
}

func (p *publishing) start() {
	ctx, cancel := context.WithCancel(context.Background())
	p.t.Cleanup(func() {
		cancel()
		p.ended.Wait()
	})
	for range publishers {
		p.ended.Go(func() { p.run(ctx) })
	}
}

func (p *publishing) run(ctx context.Context) {
	var c *sdk.Client
	for c == nil && ctx.Err() == nil {
		var err error
		if c, err = sdk.Dial(ctx, p.urls[0], sdk.WithURLs(p.urls[1:]...), sdk.WithLogger(slog.New(slog.DiscardHandler))); err != nil {
			time.Sleep(50 * time.Millisecond)
		}
	}
	if c == nil {
		return
	}
	defer c.Close()
	for n := p.next.Add(1) - 1; n < p.left; n = p.next.Add(1) - 1 {
		e := eventhub.Event{Topic: events, ID: fmt.Sprintf("e-%d", n), Key: fmt.Sprint("key-", n%100), Payload: fmt.Appendf(nil, `"%d"`, n)}
		for {
			_, err := c.Publish(ctx, e)
			if ctx.Err() != nil {
				return
			}
			if err == nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		p.oked.Add(1)
	}
}

// await waits until so many publishes were answered.
func (p *publishing) await(n int64) {
	p.t.Helper()
	last, moved := p.oked.Load(), time.Now()
	for p.oked.Load() < n {
		if now := p.oked.Load(); now > last {
			last, moved = now, time.Now()
		}
		if time.Since(moved) > 5*within { // FerretDB over SQLite is slow where the machine has more to do
			p.t.Fatalf("%d publishes were answered; want %d", last, n)
		}
		time.Sleep(2 * time.Millisecond)
	}
}

var behindSeconds = regexp.MustCompile(`(?m)^eventhub_projection_behind_seconds (\S+)$`)

// watchLag asks hubs each half second for how long their documents are behind; the result ends that, and returns the most.
func watchLag(t *testing.T, hubs []*hub) func() time.Duration {
	stop := make(chan struct{})
	var ended sync.WaitGroup
	var most float64
	ended.Go(func() {
		ticker := time.NewTicker(500 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			for _, h := range hubs {
				if m := behindSeconds.FindStringSubmatch(h.metrics()); m != nil {
					if s, err := strconv.ParseFloat(m[1], 64); err == nil {
						most = max(most, s)
					}
				}
			}
		}
	})
	end := sync.OnceFunc(func() {
		close(stop)
		ended.Wait()
	})
	t.Cleanup(end)
	return func() time.Duration {
		end()
		return time.Duration(most * float64(time.Second))
	}
}

// metrics returns what the hub exposes, nothing where it does not answer.
func (h *hub) metrics() string {
	c := http.Client{Timeout: 5 * time.Second}
	defer c.CloseIdleConnections()
	resp, err := c.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", h.ops))
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	return string(text)
}

// awaitSame waits until the documents in a database are what the log of a hub shows, and its cursors.
func awaitSame(t *testing.T, h *hub, db *mongo.Database) {
	t.Helper()
	a, err := sdk.NewAdmin(fmt.Sprintf("http://127.0.0.1:%d", h.http))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*within)
	defer cancel()
	for {
		want, err := logOf(ctx, a)
		var got map[string]string
		if err == nil {
			got, err = documentsOf(ctx, db)
		}
		differs := differences(want, got)
		if err == nil && differs == nil {
			return
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("the documents are not the log: %v, %d differences, as %.2000s", err, len(differs), strings.Join(differs, "; "))
		}
	}
}

func differences(want, got map[string]string) (all []string) {
	for id, text := range want {
		if got[id] != text {
			all = append(all, fmt.Sprintf("%s is %q; want %q", id, got[id], text))
		}
	}
	for id, text := range got {
		if _, ok := want[id]; !ok {
			all = append(all, fmt.Sprintf("%s is %q, and not in the log", id, text))
		}
	}
	return all
}

// logOf returns all events and cursors by the _ids that their documents have.
func logOf(ctx context.Context, a *sdk.Admin) (map[string]string, error) {
	all := make(map[string]string)
	topics, err := a.Topics(ctx, "", 1000)
	if err != nil {
		return nil, err
	}
	for _, topic := range topics {
		err := a.Replay(ctx, admin.ReplayQuery{Topic: topic.Topic}, func(_ string, item eventhub.Item) error {
			e, err := item.Record.Event(item.Offset)
			all[fmt.Sprintf("%s::%d", topic.Topic, item.Offset)] = e.ID + " " + e.Key + " " + string(e.Payload)
			if e.Payload[0] != '"' { // numbers have another form
				all[fmt.Sprintf("%s::%d", topic.Topic, item.Offset)] = e.ID + " " + e.Key + " "
			}
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	groups, err := a.Groups(ctx, admin.GroupQuery{Limit: 1000})
	for _, g := range groups {
		all["cursor "+g.Topic+"::"+g.Group] = fmt.Sprint(g.Cursor)
	}
	return all, err
}

func documentsOf(ctx context.Context, db *mongo.Database) (map[string]string, error) {
	all := make(map[string]string)
	found, err := db.Collection("events").Find(ctx, bson.D{})
	if err != nil {
		return nil, err
	}
	defer found.Close(ctx)
	text := func(field string) string {
		s, _ := found.Current.Lookup(field).StringValueOK()
		return s
	}
	for found.Next(ctx) {
		all[text("_id")] = text("id") + " " + text("key") + " "
		if payload, is := found.Current.Lookup("payload").StringValueOK(); is {
			all[text("_id")] += strconv.Quote(payload)
		}
	}
	if err := found.Err(); err != nil {
		return nil, err
	}
	if found, err = db.Collection("cursors").Find(ctx, bson.D{}); err != nil {
		return nil, err
	}
	defer found.Close(ctx)
	for found.Next(ctx) {
		all["cursor "+text("_id")] = fmt.Sprint(found.Current.Lookup("offset").AsInt64())
	}
	return all, found.Err()
}
