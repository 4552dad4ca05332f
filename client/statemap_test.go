package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	"eventhub"
	"eventhub/admin"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/testsize"
	"eventhub/store"
	"eventhub/store/pebble"
)

// stock is a payload.
type stock struct{ N int }

func keyed(key string, n int) eventhub.Event {
	e := eventhub.Event{Topic: "stock", Key: key, Payload: fmt.Appendf(nil, `{"N":%d}`, n)}
	if n == 0 {
		e.Payload = []byte("null")
	}
	return e
}

func publishAll(tb testing.TB, p eventhub.Publisher, events ...eventhub.Event) uint64 {
	tb.Helper()
	rs, err := p.Publish(bounded(tb), events...)
	if err != nil {
		tb.Fatal(err)
	}
	return rs[len(rs)-1].Offset
}

// TestStateMap: the map is the state once it is loaded, then follows; each change is told.
func TestStateMap(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	publishAll(t, c, keyed("a", 1), keyed("b", 2), keyed("a", 3), keyed("gone", 1), keyed("gone", 0),
		eventhub.Event{Topic: "stock", Payload: []byte(`{"N":9}`)})
	changes := make(chan client.Change[stock], 100)
	m, err := client.State(bounded(t), c, "stock", client.OnChange(func(c client.Change[stock]) { changes <- c }))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WaitLoaded(bounded(t)); err != nil {
		t.Fatal(err)
	}
	want := map[string]stock{"a": {3}, "b": {2}}
	if got := maps.Collect(m.All()); !maps.Equal(got, want) || m.Len() != 2 || m.Offset() != 6 {
		t.Errorf("the map is %v at %d", got, m.Offset())
	}
	for _, want := range []client.Change[stock]{{Key: "b", New: stock{2}, Added: true, Offset: 2}, {Key: "a", New: stock{3}, Added: true, Offset: 3}} {
		if got := await(t, "a change", changes); got != want {
			t.Errorf("a change is %+v; want %+v", got, want)
		}
	}
	for _, step := range []struct {
		e    eventhub.Event
		want client.Change[stock]
	}{
		{keyed("a", 4), client.Change[stock]{Key: "a", Old: stock{3}, New: stock{4}, Offset: 7}},
		{keyed("c", 5), client.Change[stock]{Key: "c", New: stock{5}, Added: true, Offset: 8}},
		{keyed("b", 0), client.Change[stock]{Key: "b", Old: stock{2}, Removed: true, Offset: 9}},
	} {
		offset := publishAll(t, c, step.e)
		if got := await(t, "a change", changes); got != step.want {
			t.Errorf("a change is %+v; want %+v", got, step.want)
		}
		if err := m.WaitOffset(bounded(t), offset); err != nil {
			t.Fatal(err)
		}
	}
	publishAll(t, c, eventhub.Event{Topic: "stock", Key: "a", Payload: []byte(`"no stock"`)})
	if got := await(t, "a change", changes); !got.Removed || got.Old != (stock{4}) || got.Err == nil {
		t.Errorf("a payload of another type is told as %+v", got)
	}
	if _, has := m.Get("a"); has {
		t.Error("it is in the map")
	}
	m.Close()
	if err := m.Err(); err != nil {
		t.Error(err)
	}
	if v, has := m.Get("c"); !has || v.N != 5 {
		t.Error("the values are gone with the end")
	}
}

// TestStateMapLosesWhatIsRemoved: without an event that says so, the map lets go of what a trim,
// an erasure and the end of the topic have removed.
func TestStateMapLosesWhatIsRemoved(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	publishAll(t, c, keyed("a", 1), keyed("b", 2), keyed("b", 3), keyed("c", 4), keyed("d", 5))
	changes := make(chan client.Change[stock], 100)
	m, err := client.State(bounded(t), c, "stock", client.OnChange(func(c client.Change[stock]) { changes <- c }))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	for range 4 {
		await(t, "a change", changes)
	}
	if _, err := h.Bus().Erase(bounded(t), "stock", admin.EraseQuery{Offset: 3, Apply: true, By: "test"}); err != nil {
		t.Fatal(err)
	}
	if got := await(t, "a change", changes); got != (client.Change[stock]{Key: "b", Old: stock{3}, New: stock{2}, Offset: 2}) {
		t.Errorf("after the erasure: %+v", got)
	}
	if _, err := h.Bus().Trim(bounded(t), "stock", admin.TrimQuery{Before: 4}, true); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := await(t, "a change", changes); !got.Removed || got.Key != "a" && got.Key != "b" {
			t.Errorf("after the trim: %+v", got)
		}
	}
	if err := h.Bus().DeleteTopic(bounded(t), "stock"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := await(t, "a change", changes); !got.Removed {
			t.Errorf("after the end of the topic: %+v", got)
		}
	}
	publishAll(t, c, keyed("a", 7))
	if got := await(t, "a change", changes); got.New != (stock{7}) || m.Len() != 1 {
		t.Errorf("the topic was created again: %+v", got)
	}
}

// TestStateMapKeys: a map may have some of the keys, and their ends.
func TestStateMapKeys(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	publishAll(t, c, keyed("a.1", 1), keyed("b.1", 2), keyed("a.2", 3))
	m, err := client.State(bounded(t), c, "stock", client.OnlyKeys[stock]("a.*"))
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	offset := publishAll(t, c, keyed("b.2", 4), keyed("a.1", 0))
	if err := m.WaitOffset(bounded(t), offset); err != nil {
		t.Fatal(err)
	}
	if got := maps.Collect(m.All()); !maps.Equal(got, map[string]stock{"a.2": {3}}) {
		t.Errorf("the map is %v", got)
	}
}

// TestStateMapEnds: a map says why it is not kept up to date any more, to who waits too.
func TestStateMapEnds(t *testing.T) {
	h := startHub(t, hub.Config{})
	c := dial(t, h.WSAddr())
	if _, err := client.State[stock](bounded(t), c, "stock.*"); eventhub.ErrorCode(err) != eventhub.CodeBadRequest {
		t.Errorf("a pattern: %v", err)
	}
	m, err := client.State[stock](bounded(t), c, "stock")
	if err != nil {
		t.Fatal(err)
	}
	if err := m.WaitLoaded(bounded(t)); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- m.WaitOffset(context.Background(), 1) }()
	c.Close()
	if err := await(t, "the end", ended); err == nil || m.Err() == nil {
		t.Errorf("the wait ends with %v, the map with %v", err, m.Err())
	}
	m.Close()
}

var mapHistories = testsize.Int("map.histories", 3, 1, "how many TestStateMapHistories plays")

// TestStateMapHistories: maps work through a proxy that cuts in the middle of anything, with a hub
// that is stopped, or killed with an image of its disk, while keys come, change and end, and
// events are trimmed and erased and the topic is deleted. Whenever all is still, a map is what the hub says the
// state is; no key ever goes back, but where something was erased.
func TestStateMapHistories(t *testing.T) {
	s := drawSeed(t)
	for i := range *mapHistories {
		one := s + uint64(i)
		t.Run(fmt.Sprintf("seed=%d", one), func(t *testing.T) { playMaps(t, one) })
	}
}

type mapHistory struct {
	t     *testing.T
	r     *rand.Rand
	disk  *vfs.MemFS
	hub   *hub.Hub
	addr  string
	proxy *proxy

	mu     sync.Mutex
	erased int // how often something was
	newest map[string]int
}

func playMaps(t *testing.T, seed uint64) {
	h := &mapHistory{t: t, r: rand.New(rand.NewPCG(seed, 3)), disk: vfs.NewCrashableMem(), newest: make(map[string]int)}
	h.start("127.0.0.1:0")
	h.addr = h.hub.WSAddr()
	h.proxy = startProxy(t, h.addr)
	publisher := dial(t, h.proxy.addr())
	var all []*client.StateMap[stock]
	for range 3 {
		m, err := client.State(bounded(t), dial(t, h.proxy.addr()), "stock", client.OnChange(h.watch()))
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		all = append(all, m)
	}
	n := 0
	for step := range 40 {
		events := make([]eventhub.Event, 1+h.r.IntN(300))
		for i := range events {
			n++
			events[i] = keyed(fmt.Sprint("k", h.r.IntN(200)), n)
			if h.r.IntN(5) == 0 {
				events[i].Payload = []byte("null")
			}
		}
		offset := publishAll(t, publisher, events...)
		h.strike(offset)
		if step%4 == 3 {
			n++
			h.compare(all, publishAll(t, publisher, keyed("last", n)))
		}
	}
	if err := h.hub.Stop(context.Background()); err != nil {
		t.Error(err)
	}
}

// watch returns a callback that sees whether keys go back.
func (h *mapHistory) watch() func(client.Change[stock]) {
	return func(c client.Change[stock]) {
		h.mu.Lock()
		defer h.mu.Unlock()
		if !c.Added && !c.Removed && c.New.N < c.Old.N && h.erased == 0 {
			h.t.Errorf("key %s goes back from %d to %d", c.Key, c.Old.N, c.New.N)
		}
	}
}

func (h *mapHistory) start(addr string) {
	open := func(fatal func(error)) (store.Store, error) {
		s, err := pebble.Open(pebble.Options{Dir: "store", FS: h.disk, Logger: slog.New(slog.DiscardHandler), Fatal: fatal})
		if err != nil {
			return nil, err
		}
		return s, nil
	}
	var err error
	if h.hub, err = hub.Start(hub.Config{OpenStore: open, WSAddr: addr, HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"}); err != nil {
		h.t.Fatal(err)
	}
}

// strike does something to the hub, to the connections or to the topic.
func (h *mapHistory) strike(head uint64) {
	ctx := bounded(h.t)
	switch h.r.IntN(12) {
	case 0, 1:
		h.proxy.cut(h.r.Float64(), h.r)
	case 2, 3, 4:
		h.proxy.breakOff(8<<10, h.r)
	case 5:
		if err := h.hub.Stop(ctx); err != nil {
			h.t.Fatal(err)
		}
		h.start(h.addr)
	case 6, 7: // what is on the disk is all that is left
		image := h.disk.CrashClone(vfs.CrashCloneCfg{})
		if err := h.hub.Stop(ctx); err != nil {
			h.t.Fatal(err)
		}
		h.disk = image
		h.start(h.addr)
	case 8:
		if _, err := h.hub.Bus().Trim(ctx, "stock", admin.TrimQuery{Before: head - uint64(h.r.IntN(int(min(head, 500))))}, true); err != nil {
			h.t.Fatal(err)
		}
	case 9, 10:
		h.mu.Lock()
		h.erased++
		h.mu.Unlock()
		_, err := h.hub.Bus().Erase(ctx, "stock", admin.EraseQuery{Offset: head - uint64(h.r.IntN(int(min(head, 50)))), Apply: true, By: "test"})
		if err != nil && eventhub.ErrorCode(err) != eventhub.CodeUnknownID {
			h.t.Fatal(err)
		}
	default:
		if h.r.IntN(3) == 0 {
			if err := h.hub.Bus().DeleteTopic(ctx, "stock"); err != nil {
				h.t.Fatal(err)
			}
		}
	}
}

// compare waits until the maps have an offset, and holds them against the hub.
func (h *mapHistory) compare(all []*client.StateMap[stock], offset uint64) {
	want := make(map[string]stock)
	for q := (admin.StateQuery{Topic: "stock", Limit: admin.MaxPage}); ; {
		page, err := h.hub.Bus().State(bounded(h.t), q)
		if err != nil {
			h.t.Fatal(err)
		}
		for _, item := range page.Events {
			var v struct{ Payload stock }
			d := eventhub.Delivery{Offset: item.Offset, Record: item.Record}
			if err := d.Decode(&v.Payload); err != nil {
				h.t.Fatal(err)
			}
			want[string(item.Record.Key())] = v.Payload
		}
		if q.Page = page.Next; q.Page == "" {
			break
		}
	}
	for i, m := range all {
		if err := m.WaitOffset(bounded(h.t), offset); err != nil {
			h.t.Fatal(err)
		}
		if got := maps.Collect(m.All()); !maps.Equal(got, want) {
			for key, v := range got {
				if w, has := want[key]; !has || w != v {
					h.t.Errorf("map %d has %s %v; the state %v, %v", i, key, v, w, has)
				}
			}
			h.t.Fatalf("map %d has %d keys at %d; the state has %d at %d", i, len(got), m.Offset(), len(want), offset)
		}
	}
}
