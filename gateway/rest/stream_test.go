package rest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
)

// tails is a Subscriber of live tails, and knows the topics a (5 events, the first
// of them gone), a.x (empty) and b (9 events).
type tails struct {
	admin.Inspector
	eventhub.Subscriber

	deliver []eventhub.Delivery // to each tail, which ends then
	err     error

	opts     eventhub.TailOptions
	receiver eventhub.Receiver
	ready    chan struct{}
	joined   chan struct{}
	dropped  chan struct{}
}

func newTails() *tails {
	return &tails{ready: make(chan struct{}, 100), joined: make(chan struct{}, 1), dropped: make(chan struct{}, 1)}
}

var tailTopics = []admin.TopicInfo{
	{Topic: "a", FirstOffset: 2, Head: 5}, {Topic: "a.x"}, {Topic: "b", FirstOffset: 1, Head: 9},
}

func (f *tails) Topics(_ context.Context, after string, limit int) (infos []admin.TopicInfo, _ error) {
	for _, info := range tailTopics {
		if info.Topic > after && len(infos) < limit {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

func (f *tails) Topic(_ context.Context, topic string) (admin.TopicInfo, error) {
	for _, info := range tailTopics {
		if info.Topic == topic {
			return info, nil
		}
	}
	return admin.TopicInfo{}, eventhub.Errorf(eventhub.CodeUnknownID, "there is no topic %q", topic)
}

func (f *tails) Event(_ context.Context, topic, id string) (eventhub.Item, error) {
	if topic != "a" || id != "four" {
		return eventhub.Item{}, eventhub.Errorf(eventhub.CodeUnknownID, "there is no event %q", id)
	}
	return eventhub.Item{Offset: 4}, nil
}

func (f *tails) Tail(_ context.Context, opts eventhub.TailOptions, r eventhub.Receiver) (eventhub.Subscription, error) {
	if f.err != nil {
		return nil, f.err
	}
	f.opts, f.receiver = opts, r
	if opts.Topic == "gone" {
		r.(eventhub.Gapped).Gap(eventhub.Gap{Topic: "gone", After: 6, First: 9})
	}
	if f.deliver != nil {
		r.Deliver(f.deliver)
		r.Ended(errors.New("the end"))
	}
	f.joined <- struct{}{}
	return tailHandle{nil, f}, nil
}

type tailHandle struct {
	eventhub.Subscription
	f *tails
}

func (h tailHandle) Ready()   { h.f.ready <- struct{}{} }
func (h tailHandle) Drop(int) { h.f.dropped <- struct{}{} }

func tailEvent(topic string, offset uint64, payload string) eventhub.Delivery {
	return eventhub.Delivery{Topic: topic, Offset: offset,
		Record: eventhub.Record(fmt.Sprintf(`{"ts":1723140000000,"id":"e","topic":%q,"payload":%s}`, topic, payload))}
}

// TestStreamFrames: what is sent, byte for byte.
func TestStreamFrames(t *testing.T) {
	f := newTails()
	f.deliver = []eventhub.Delivery{tailEvent("a", 6, `"x"`), tailEvent("b", 10, `1`), tailEvent("a", 7, `2`)}
	f.deliver[1].Gap = &eventhub.Gap{Topic: "b", After: 4, First: 9}
	_, h := mount(t, Access{Subscriber: f, Inspector: f})
	status, answer, headers := request(h, "GET", "/v1/topics/*/stream?from=ts&ts=17", "")
	want := "retry: 1000\nid: @17\n\n" +
		"id: @17,a:6:lzll2dc0\ndata: {\"offset\":6,\"ts\":1723140000000,\"id\":\"e\",\"topic\":\"a\",\"payload\":\"x\"}\n\n" +
		"event: gap\ndata: {\"topic\":\"b\",\"after\":4,\"first\":9}\n\n" +
		"id: @17,a:6:lzll2dc0,b:10:lzll2dc0\ndata: {\"offset\":10,\"ts\":1723140000000,\"id\":\"e\",\"topic\":\"b\",\"payload\":1}\n\n" +
		"id: @17,b:10:lzll2dc0,a:7:lzll2dc0\ndata: {\"offset\":7,\"ts\":1723140000000,\"id\":\"e\",\"topic\":\"a\",\"payload\":2}\n\n"
	if diff := cmp.Diff(want, answer); status != 200 || diff != "" {
		t.Errorf("answered %d (-want +got):\n%s", status, diff)
	}
	for name, value := range map[string]string{"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"} {
		if got := headers.Get(name); got != value {
			t.Errorf("%s is %q; want %q", name, got, value)
		}
	}
	<-f.dropped
}

// TestStreamBegins: where a stream starts, and what its first id says of it.
func TestStreamBegins(t *testing.T) {
	type place = eventhub.Place
	heads := []place{{Topic: "a", Offset: 5}, {Topic: "a.x", Offset: 0}, {Topic: "b", Offset: 9}}
	now := time.Now().Add(-latestMargin).UnixMilli()
	for _, tt := range []struct {
		target, last string
		start        eventhub.Start
		places       []place
		id           string // "@now" for the time
		gaps         string
	}{
		{"a/stream", "", eventhub.Start{}, []place{{Topic: "a", Offset: 5}}, "a:5", ""},
		{"new/stream", "", eventhub.Start{}, []place{{Topic: "new", Offset: 0}}, "new:0", ""},
		{"a/stream?from=earliest", "", eventhub.Earliest, nil, "a:1", ""},
		{"a.x/stream?from=earliest", "", eventhub.Earliest, nil, "a.x:0", ""},
		{"new/stream?from=earliest", "", eventhub.Earliest, nil, "new:0", ""},
		{"a/stream?from=offset&offset=0", "", eventhub.Start{Kind: eventhub.StartOffset}, nil, "a:0", ""},
		{"a/stream?from=offset&offset=3", "", eventhub.Start{Kind: eventhub.StartOffset, Offset: 3}, nil, "a:2", ""},
		{"a/stream?from=after_id&after_id=four", "", eventhub.Start{}, []place{{Topic: "a", Offset: 4}}, "a:4", ""},
		{"a/stream?from=ts&ts=7", "", eventhub.Start{Kind: eventhub.StartTime, TS: 7}, nil, "@7", ""},
		{"a.*/stream?from=earliest", "", eventhub.Earliest, nil, "@0", ""},
		{"**/stream", "", eventhub.Start{}, heads, "@now,a:5,a.x:0,b:9", ""},
		{"a/stream?topics=b", "", eventhub.Start{}, []place{heads[0], heads[2]}, "@now,a:5,b:9", ""},

		{"a/stream", "a:3", eventhub.Start{}, []place{{Topic: "a", Offset: 3}}, "a:3", ""},
		{"a/stream?from=earliest", "a:1", eventhub.Start{}, []place{{Topic: "a", Offset: 1}}, "a:1", ""},
		{"a/stream", "@7", eventhub.Start{Kind: eventhub.StartTime, TS: 7}, nil, "@7", ""},
		{"b/stream", "@7,b:2", eventhub.Start{}, []place{{Topic: "b", Offset: 2}}, "b:2", ""},
		{"*/stream", "@7,b:2,a:5", eventhub.Start{Kind: eventhub.StartTime, TS: 7},
			[]place{{Topic: "b", Offset: 2}, {Topic: "a", Offset: 5}}, "@7,b:2,a:5", ""},
		// The first event of b that is missing is there; a had one before its first.
		{"b/stream", "b:0", eventhub.Start{}, []place{{Topic: "b", Offset: 0}}, "b:0", ""},
		{"a/stream", "a:3:lzll2dc0", eventhub.Start{}, []place{{Topic: "a", Offset: 3, TS: 1723140000000}}, "a:3:lzll2dc0", ""},
		// The gap says what the hub does not have any more.
		{"gone/stream", "gone:6", eventhub.Start{}, []place{{Topic: "gone", Offset: 6}}, "gone:6",
			"event: gap\ndata: {\"topic\":\"gone\",\"after\":6,\"first\":9}\n\n"},
	} {
		t.Run(tt.target+" "+tt.last, func(t *testing.T) {
			f := newTails()
			f.deliver = []eventhub.Delivery{}
			_, h := mount(t, Access{Subscriber: f, Inspector: f})
			var header []string
			if tt.last != "" {
				header = []string{"Last-Event-ID", tt.last}
			}
			status, answer, _ := request(h, "GET", "/v1/topics/"+tt.target, "", header...)
			_, id, _ := strings.Cut(answer, "id: ")
			id, gaps, _ := strings.Cut(id, "\n\n")
			if rest, timed := strings.CutPrefix(tt.id, "@now"); timed {
				var since int64
				var after string
				if n, _ := fmt.Sscanf(id, "@%d%s", &since, &after); n != 2 || after != rest || since < now || since > time.Now().Add(-latestMargin).UnixMilli() {
					t.Errorf("the first id is %q", id)
				}
			} else if id != tt.id {
				t.Errorf("the first id is %q; want %q", id, tt.id)
			}
			if status != 200 || gaps != tt.gaps || f.opts.Start != tt.start {
				t.Errorf("answered %d with gaps %q, began at %+v", status, gaps, f.opts.Start)
			}
			if len(f.opts.Places) != len(tt.places) || !slices.Equal(f.opts.Places, tt.places) {
				t.Errorf("places %v; want %v", f.opts.Places, tt.places)
			}
		})
	}
}

func TestStreamOptions(t *testing.T) {
	f := newTails()
	f.deliver = []eventhub.Delivery{}
	_, h := mount(t, Access{Subscriber: f, Inspector: f})
	status, answer, _ := request(h, "GET", "/v1/topics/a/stream?topics=b,c.*&filter=event.payload+%3E+1&key=k-*&tag=%23x&tag=y&header=X-A:+1&header=x-b:2:3&conflate_ms=250", "")
	want := eventhub.TailOptions{
		Topic: "a", Topics: []string{"b", "c.*"}, Conflate: 250 * time.Millisecond,
		Filter: &eventhub.Filter{CEL: "event.payload > 1", Key: "k-*", Tags: []string{"#x", "y"}, Headers: map[string]string{"x-a": "1", "x-b": "2:3"}},
		Peer:   eventhub.Peer{Transport: "http", Name: "192.0.2.1:1234"},
		Places: []eventhub.Place{{Topic: "a", Offset: 5}, {Topic: "b", Offset: 9}},
	}.WithDefaults()
	if diff := cmp.Diff(want, f.opts); status != 200 || diff != "" {
		t.Errorf("answered %d %s (-want +got):\n%s", status, answer, diff)
	}
}

func TestStreamRefusals(t *testing.T) {
	for _, tt := range []struct {
		target, last string
		status       int
		says         string
	}{
		{"a%20b/stream", "", 400, `"a b"`},
		{"a.**.**/stream", "", 400, "twice in a row"},
		{"a/stream?topics=", "", 400, "topics is empty"},
		{"a/stream?topics=b,", "", 400, "empty"},
		{"a/stream?topics=b&topics=c", "", 400, "2 times"},
		{"a/stream?group=g", "", 400, `"group"`},
		{"a/stream?from=now", "", 400, `"now"`},
		{"a/stream?ts=7", "", 400, "from is missing"},
		{"a/stream?from=after_id&after_id=none", "", 404, `"none"`},
		{"a/stream?filter=", "", 400, "filter is empty"},
		{"a/stream?key=", "", 400, "key is empty"},
		{"a/stream?tag=", "", 400, "tags[0] is empty"},
		{"a/stream?header=x", "", 400, `"x"`},
		{"a/stream?header=x:1&header=X:2", "", 400, "each name once"},
		{"a/stream?conflate_ms=9", "", 400, "is 9; 10 to"},
		{"a/stream?conflate_ms=0", "", 400, `"0"`},
		{"a/stream?conflate_ms=x", "", 400, `"x"`},
		{"a/stream", "b:7", 400, `topic "b", which this stream does not have`},
		{"a.*/stream", "@7,a.x:1,b:7", 400, `topic "b", which this stream does not have`},
		{"a/stream", "0198f2b0-0000-7000-8000-000000000000", 400, "a colon and an offset"},
		{"a/stream", "a:", 400, "a colon and an offset"},
		{"a/stream", "a:-1", 400, "a colon and an offset"},
		{"a/stream", "a:1:", 400, "a colon and an offset"},
		{"a/stream", "a:1:-1", 400, "a colon and an offset"},
		{"a/stream", "a:1:1:1", 400, "a colon and an offset"},
		{"a/stream", "a:9007199254740992", 400, "a colon and an offset"},
		{"a/stream", "a:1,a:2", 400, "twice"},
		{"a/stream", "a:1,", 400, "a colon and an offset"},
		{"*/stream", "a:1", 400, "begin with @"},
		{"*/stream", "@x,a:1", 400, `"x"`},
		{"*/stream", "@-1", 400, `"-1"`},
		{"*/stream", "@7," + strings.Repeat("a", maxPlaceBytes), 400, "at most 7168"},
	} {
		f := newTails()
		f.deliver = []eventhub.Delivery{}
		_, h := mount(t, Access{Subscriber: f, Inspector: f})
		var header []string
		if tt.last != "" {
			header = []string{"Last-Event-ID", tt.last}
		}
		status, answer, headers := request(h, "GET", "/v1/topics/"+tt.target, "", header...)
		says := strings.ReplaceAll(tt.says, `"`, `\"`)
		if status != tt.status || !strings.Contains(answer, says) || headers.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s with %.40q was answered %d %s; want %d with %s", tt.target, tt.last, status, answer, tt.status, says)
		}
		if len(f.joined) > 0 {
			t.Errorf("%s with %.40q made a tail", tt.target, tt.last)
		}
	}
	f := newTails()
	f.err = eventhub.Errorf(eventhub.CodeBadRequest, "filter.cel: no")
	_, h := mount(t, Access{Subscriber: f, Inspector: f})
	if status, answer, _ := request(h, "GET", "/v1/topics/a/stream", ""); status != 400 || !strings.Contains(answer, "filter.cel: no") {
		t.Errorf("the engine's refusal was answered %d %s", status, answer)
	}
}

// TestHeadOfStream: asks for the header and makes no tail.
func TestHeadOfStream(t *testing.T) {
	f := newTails()
	_, h := mount(t, Access{Subscriber: f, Inspector: f})
	status, answer, headers := request(h, "HEAD", "/v1/topics/a/stream", "")
	if status != 200 || answer != "" || headers.Get("Content-Type") != "text/event-stream" || len(f.joined) > 0 {
		t.Errorf("answered %d %q %v", status, answer, headers)
	}
}

// TestPlacesAreBounded: with too many topics, those that had no event for longest go
// on from the time.
func TestPlacesAreBounded(t *testing.T) {
	p := &places{since: 1723140000000, known: strings.Repeat("x", eventhub.MaxKnownBytes)}
	const topics = 1000
	name := func(i int) string { return fmt.Sprintf("sensor.%d", i) }
	for i := range topics {
		p.advance(name(i), uint64(i+1), int64(i))
	}
	p.advance(name(topics-200), 7, 1723140000000) // to the end
	text := string(p.append(nil))
	if len(text) > maxPlaceBytes || len(text) < maxPlaceBytes-100 {
		t.Fatalf("the id has %d bytes", len(text))
	}
	r, err := http.NewRequest("GET", "/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Last-Event-ID", text)
	pattern, err := eventhub.ParsePattern("sensor.*")
	if err != nil {
		t.Fatal(err)
	}
	back, err := lastEventID(r, []eventhub.Pattern{pattern})
	if err != nil {
		t.Fatal(err)
	}
	list := back.list()
	if diff := cmp.Diff(p.list(), list); diff != "" || back.since != p.since || back.known != p.known || back.bytes != p.bytes {
		t.Errorf("read back as (-want +got):\n%s", diff)
	}
	if got := list[len(list)-1]; got != (eventhub.Place{Topic: name(topics - 200), Offset: 7, TS: 1723140000000}) {
		t.Errorf("the last one is %v", got)
	}
	if got := list[len(list)-2]; got != (eventhub.Place{Topic: name(topics - 1), Offset: topics, TS: topics - 1}) {
		t.Errorf("the one before is %v", got)
	}
}

// openStream asks for a stream over a pipe.
func openStream(t *testing.T, f *tails) (api *API, conn net.Conn, server *http.Server, in *bufio.Reader) {
	api, h := mount(t, Access{Subscriber: f, Inspector: f})
	door := &pipes{make(chan net.Conn), make(chan struct{})}
	server = &http.Server{Handler: h, ReadTimeout: time.Minute, IdleTimeout: time.Minute}
	server.RegisterOnShutdown(api.Stop)
	go func() { _ = server.Serve(door) }() // until it is closed
	conn = door.dial()
	go func() {
		_, _ = conn.Write([]byte("GET /v1/topics/a/stream HTTP/1.1\r\nHost: localhost\r\n\r\n"))
	}()
	r, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.StatusCode != 200 {
		t.Fatalf("answered %d", r.StatusCode)
	}
	return api, conn, server, bufio.NewReader(r.Body)
}

func readFrame(in *bufio.Reader) (frame string, err error) {
	for {
		line, err := in.ReadString('\n')
		if frame += line; line == "\n" || err != nil {
			return frame, err
		}
	}
}

func wantFrame(t *testing.T, in *bufio.Reader, want string) {
	t.Helper()
	if frame, err := readFrame(in); frame != want || err != nil {
		t.Errorf("read %.200q, %v; want %.200q", frame, err, want)
	}
}

// TestStreamLives: it gives signs of life, and outlasts the server's deadline for
// reading requests.
func TestStreamLives(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newTails()
		_, conn, server, in := openStream(t, f)
		wantFrame(t, in, "retry: 1000\nid: a:5\n\n")
		began := time.Now()
		for range 20 {
			wantFrame(t, in, ":\n\n")
		}
		if since := time.Since(began); since != 5*time.Minute {
			t.Errorf("20 signs of life came in %v", since)
		}
		time.Sleep(10 * time.Second)
		f.receiver.Deliver([]eventhub.Delivery{tailEvent("a", 6, "1")})
		wantFrame(t, in, "id: a:6:lzll2dc0\ndata: {\"offset\":6,\"ts\":1723140000000,\"id\":\"e\",\"topic\":\"a\",\"payload\":1}\n\n")
		wantFrame(t, in, ":\n\n")
		if since := time.Since(began); since != 5*time.Minute+25*time.Second {
			t.Errorf("the next sign of life came after %v; silence begins with the last event", since)
		}
		conn.Close()
		<-f.dropped
		server.Close()
	})
}

// TestStreamOfASlowReader: what it does not take waits within bounds, and it goes on
// when it reads. One that takes next to nothing in ten seconds is given up then, whenever
// its last byte was.
func TestStreamOfASlowReader(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := newTails()
		_, conn, server, in := openStream(t, f)
		wantFrame(t, in, "retry: 1000\nid: a:5\n\n")
		var batch []eventhub.Delivery
		for i := range 100 {
			batch = append(batch, tailEvent("a", uint64(6+i), `"`+strings.Repeat("x", 10_000)+`"`))
		}
		taken := 0
		for range 3 {
			taken += f.receiver.Deliver(batch[taken:])
			synctest.Wait()
		}
		if taken < 25 || taken > 60 || len(f.ready) != 1 {
			t.Fatalf("%d of 100 events were taken, and %d times more asked for", taken, len(f.ready))
		}
		for i := range 100 {
			frame, err := readFrame(in)
			if want := fmt.Sprintf("id: a:%d:lzll2dc0\n", 6+i); !strings.HasPrefix(frame, want) || err != nil {
				t.Fatalf("read %.40q, %v; want %q", frame, err, want)
			}
			synctest.Wait()
			for ; len(f.ready) > 0 && taken < 100; synctest.Wait() {
				<-f.ready
				taken += f.receiver.Deliver(batch[taken:])
			}
			time.Sleep(5 * time.Second) // slow, and it takes something
		}
		// One large event is taken alone.
		if f.receiver.Deliver([]eventhub.Delivery{tailEvent("a", 200, `"`+strings.Repeat("x", 1<<20)+`"`)}) != 1 {
			t.Error("a large event is not taken")
		}
		began := time.Now()
		time.Sleep(writeWait - time.Second)
		if _, err := io.CopyN(io.Discard, conn, stepBytes/4); err != nil {
			t.Fatal(err)
		}
		<-f.dropped
		if since := time.Since(began); since != writeWait {
			t.Errorf("a reader that takes %d bytes was given up after %v", stepBytes/4, since)
		}
		conn.Close()
		server.Close()
	})
}

// TestStreamEndsWithTheHub: at once, also where the reader takes nothing.
func TestStreamEndsWithTheHub(t *testing.T) {
	for name, stuck := range map[string]bool{"idle": false, "stuck": true} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				f := newTails()
				_, conn, server, in := openStream(t, f)
				wantFrame(t, in, "retry: 1000\nid: a:5\n\n")
				if stuck {
					f.receiver.Deliver([]eventhub.Delivery{tailEvent("a", 6, `"`+strings.Repeat("x", 1<<20)+`"`)})
				}
				synctest.Wait()
				read := make(chan error, 1)
				if !stuck {
					go func() {
						_, err := io.Copy(io.Discard, in)
						read <- err
					}()
				}
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				if err := server.Shutdown(ctx); err != nil {
					t.Error(err)
				}
				if since := time.Since(began); since > time.Second {
					t.Errorf("the server stopped after %v", since)
				}
				if !stuck {
					if err := <-read; err != nil {
						t.Errorf("the stream ended with %v; want its proper end", err)
					}
				}
				<-f.dropped
				conn.Close()
			})
		})
	}
}
