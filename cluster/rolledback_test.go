package cluster

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	natsjs "github.com/nats-io/nats.go/jetstream"

	"eventhub"
	sdk "eventhub/client"
	"eventhub/store/journal"
	"eventhub/store/journal/jetstream"
	store "eventhub/store/pebble"
)

var rollbacks = flag.Int("cluster.rollbacks", 3, "how many journals TestRolledBack damages")

// atOnce is how many journals are damaged beside each other: the hubs wait for half a minute until they
// believe that a journal is shorter than it was.
const atOnce = 20

// leaseOfMany is that of so many hubs: who leads matters to none of them.
const leaseOfMany = 3 * time.Second

// damage is what happens to a journal.
type damage struct {
	name     string
	restored bool                      // the stream's files are those of an earlier time
	running  bool                      // the hubs run meanwhile
	away     bool                      // the server is away while it changes
	change   func(*broken, *testing.T) // what else happens; it may set broken.bad
}

var damages = []damage{
	{name: "restored, and another hub has written", restored: true, change: (*broken).writeOn},
	{name: "an entry altered", change: (*broken).alter},
	{name: "an entry removed", change: (*broken).remove},
	{name: "restored", restored: true},
	{name: "restored while the hubs run", restored: true, running: true},
	{name: "an entry replaced by another one", change: (*broken).replace},
	{name: "entries in another order", change: (*broken).swap},
	{name: "an entry left out", change: (*broken).leaveOut},
	{name: "an entry of somebody else between them", change: (*broken).insert},
	{name: "a bit of the server's files flipped", away: true, change: (*broken).flipFile},
}

// broken is one journal, and hubs that have copies of it: one has all, one some.
type broken struct {
	damage
	server     *server
	stream     string
	random     *rand.Rand
	whole, few *hub
	other      *hub // that has written meanwhile
	// entries are what the journal had, at place 1 and so on; the copies are at the places all and some.
	entries   [][]byte
	all, some uint64
	bad       uint64 // the first place that is not what it was
	config    natsjs.StreamConfig
	js        natsjs.JetStream
}

// TestRolledBack: a journal is restored from an earlier copy, or its entries are altered, removed, replaced.
// Every hub whose copy, or whose next entry, does not fit says that it has diverged, and ends; no copy has
// anything that was not there before, and nothing comes into the journal.
func TestRolledBack(t *testing.T) {
	t.Parallel()
	seed := cmp.Or(*seedFlag, rand.Uint64())
	t.Logf("-cluster.seed=%d", seed)
	refused := 0
	for first := 0; first < *rollbacks && !t.Failed(); first += atOnce {
		s := alone(t, 0)
		var all []*broken
		for i := first; i < min(first+atOnce, *rollbacks); i++ {
			all = append(all, &broken{
				damage: damages[i%len(damages)], server: s, stream: fmt.Sprintf("BACK%d", i),
				random: rand.New(rand.NewPCG(seed, uint64(i))), js: client(t, s.url()),
			})
		}
		refused += rollBack(t, s, all)
		s.kill()
	}
	t.Logf("%d journals were damaged, and %d hubs have refused", *rollbacks, refused)
}

// rollBack damages the journals on one server. It returns how many hubs have refused.
func rollBack(t *testing.T, s *server, all []*broken) (refused int) {
	each := func(do func(*broken)) {
		var ended sync.WaitGroup
		for _, b := range all {
			ended.Go(func() { do(b) })
		}
		ended.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	for _, b := range all {
		hubs := startHubs(t, 2, leaseOfMany, func(int) string { return b.url() })
		b.whole, b.few = hubs[0], hubs[1]
	}
	each(func(b *broken) { b.await(t) })
	each(func(b *broken) { b.publish(t, 5+b.random.IntN(15)) })
	s.kill()
	earlier := t.TempDir()
	if err := os.CopyFS(earlier, os.DirFS(s.Dir)); err != nil {
		t.Fatal(err)
	}
	s.start(t)
	each(func(b *broken) { b.goOn(t) })
	s.kill()
	for _, b := range all {
		if b.restored {
			b.restore(t, earlier)
		}
		if b.away {
			b.change(b, t)
		}
	}
	s.start(t)
	var counting sync.Mutex
	each(func(b *broken) {
		if b.change != nil && !b.away {
			b.change(b, t)
		}
		n := b.refuse(t)
		counting.Lock()
		defer counting.Unlock()
		refused += n
	})
	return refused
}

func (b *broken) url() string {
	return fmt.Sprintf("nats://127.0.0.1:%d/%s?replicas=1", b.server.Port, b.stream)
}

// await waits until one hub leads, which is to have all, and the other one follows.
func (b *broken) await(t *testing.T) {
	said := ""
	for end := time.Now().Add(within); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		status, _ := b.whole.ready()
		if _, said = b.few.ready(); status == http.StatusOK && strings.Contains(said, isStandby) {
			return
		}
		b.whole, b.few = b.few, b.whole
	}
	t.Errorf("%s: no hub leads: %s", b.name, said)
}

// publish publishes events until all have an OK.
func (b *broken) publish(t *testing.T, n int) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	// On a machine that has much to do the other hub may have taken over.
	options := []sdk.Option{sdk.WithURLs(b.few.url()), sdk.WithLogger(slog.New(slog.DiscardHandler))}
	c, err := sdk.Dial(ctx, b.whole.url(), options...)
	for err != nil && ctx.Err() == nil { // the hub may have to find its server again
		time.Sleep(20 * time.Millisecond)
		c, err = sdk.Dial(ctx, b.whole.url(), options...)
	}
	if err != nil {
		t.Errorf("%s: %v", b.name, err)
		return
	}
	defer c.Close()
	for range n {
		e := eventhub.Event{Topic: "back", ID: fmt.Sprintf("%016x", b.random.Uint64()), Payload: []byte(`"event"`)}
		for {
			if _, err = c.Publish(ctx, e); err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Errorf("%s: publish: %v", b.name, err)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// goOn has one hub publish more, of which the other one has a part, and notes what the journal has. Both
// are killed, but where they are to run.
func (b *broken) goOn(t *testing.T) {
	b.publish(t, 3+b.random.IntN(10))
	for last := b.whole.place(); b.few.place() < last; {
		time.Sleep(time.Millisecond)
	}
	if !b.running {
		b.few.end(syscall.SIGKILL)
	}
	b.publish(t, 3+b.random.IntN(10))
	if !b.running {
		b.whole.end(syscall.SIGKILL)
	}
	b.entries, b.config = b.read(t)
	if !b.running {
		_, at := b.few.copied()
		b.some = at.Seq
		b.whole.complete(filepath.Join(b.whole.dir, "store"), b.open(t))
		_, at = b.whole.copied()
		b.all = at.Seq
		if b.all != uint64(len(b.entries)) || b.some >= b.all {
			t.Errorf("%s: the journal has %d entries, and the copies %d and %d", b.name, len(b.entries), b.some, b.all)
		}
		b.bad = b.some + 1 + b.random.Uint64N(b.all-b.some)
		if b.random.IntN(2) == 0 {
			b.bad = b.all
		}
		// What was killed may have nothing yet, and a journal without its first entry is one that was trimmed.
		b.bad = max(b.bad, 2)
	}
}

func (b *broken) open(t *testing.T) journal.Journal {
	return open(t, jetstream.Options{URL: b.server.url(), Stream: b.stream, Replicas: 1})
}

// end ends a hub.
func (h *hub) end(sig syscall.Signal) {
	h.signal(sig)
	<-h.ended
}

// read returns all that the stream has, nil where it has nothing at a place, and its configuration.
func (b *broken) read(t *testing.T) (entries [][]byte, config natsjs.StreamConfig) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	stream, err := b.js.Stream(ctx, b.stream)
	if err != nil {
		t.Error(err)
		return nil, config
	}
	info := stream.CachedInfo()
	for at := uint64(1); at <= info.State.LastSeq; at++ {
		msg, err := stream.GetMsg(ctx, at)
		if err != nil { // what is damaged on the server's disk is read with many errors
			entries = append(entries, nil)
			continue
		}
		entries = append(entries, msg.Data)
	}
	return entries, info.Config
}

func (b *broken) files(dir string) string {
	return filepath.Join(dir, "jetstream", "$G", "streams", b.stream)
}

// restore puts an earlier copy of the server's files in place. The server is away.
func (b *broken) restore(t *testing.T, earlier string) {
	if err := os.RemoveAll(b.files(b.server.Dir)); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(b.files(b.server.Dir), os.DirFS(b.files(earlier))); err != nil {
		t.Fatal(err)
	}
}

// writeOn has another hub lead a journal that was restored, until it is longer than it was.
func (b *broken) writeOn(t *testing.T) {
	entries, _ := b.read(t)
	b.bad = uint64(len(entries)) + 1
	hubs := startHubs(t, 1, leaseOfMany, func(int) string { return b.url() })
	b.other = hubs[0]
	b.other.name = "other"
	was := b.whole
	b.whole = (&rig{t: t, hubs: hubs}).active(nil)
	b.publish(t, len(b.entries)-len(entries)+1)
	b.whole = was
	b.other.end(syscall.SIGKILL)
}

// rewrite makes the stream anew with other entries; those that are nil are removed afterwards.
func (b *broken) rewrite(t *testing.T, entries [][]byte) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	config := b.config
	config.DenyDelete = false
	if err := b.js.DeleteStream(ctx, b.stream); err != nil {
		t.Error(err)
		return
	}
	stream, err := b.js.CreateStream(ctx, config)
	if err != nil {
		t.Error(err)
		return
	}
	for i, entry := range entries {
		if _, err = b.js.Publish(ctx, config.Subjects[0], entry); err == nil && entry == nil {
			err = stream.DeleteMsg(ctx, uint64(i+1))
		}
		if err != nil {
			t.Error(err)
			return
		}
	}
	if _, err = b.js.UpdateStream(ctx, b.config); err != nil {
		t.Error(err)
	}
}

func (b *broken) alter(t *testing.T) {
	entries := slices.Clone(b.entries)
	entry := bytes.Clone(entries[b.bad-1])
	entry[b.random.IntN(len(entry))] ^= 1 << b.random.IntN(8)
	entries[b.bad-1] = entry
	b.rewrite(t, entries)
}

func (b *broken) remove(t *testing.T) {
	entries := slices.Clone(b.entries)
	entries[b.bad-1] = nil
	b.rewrite(t, entries)
}

func (b *broken) replace(t *testing.T) {
	entries := slices.Clone(b.entries)
	entries[b.bad-1] = entries[b.random.Uint64N(b.bad-1)]
	b.rewrite(t, entries)
}

func (b *broken) swap(t *testing.T) {
	if b.bad == b.some+1 {
		b.bad++
	}
	entries := slices.Clone(b.entries)
	b.bad-- // the first of two
	entries[b.bad-1], entries[b.bad] = entries[b.bad], entries[b.bad-1]
	b.rewrite(t, entries)
}

func (b *broken) leaveOut(t *testing.T) {
	b.rewrite(t, slices.Delete(slices.Clone(b.entries), int(b.bad-1), int(b.bad)))
}

func (b *broken) insert(t *testing.T) {
	b.rewrite(t, slices.Insert(slices.Clone(b.entries), int(b.bad-1), []byte("of somebody else")))
}

// flipFile flips a bit of an entry where the server keeps it. The server is away.
func (b *broken) flipFile(t *testing.T) {
	blocks, err := filepath.Glob(filepath.Join(b.files(b.server.Dir), "msgs", "*.blk"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range blocks {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		entry := b.entries[b.bad-1]
		if i := bytes.Index(text, entry); i >= 0 {
			text[i+b.random.IntN(len(entry))] ^= 1 << b.random.IntN(8)
			if err := os.WriteFile(path, text, 0o600); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("%s: no file of %v has the entry %d", b.name, blocks, b.bad)
}

// refuse starts the hubs again, with one that has nothing, and waits until all have refused that are to.
// It returns how many.
func (b *broken) refuse(t *testing.T) (refused int) {
	before, _ := b.read(t)
	// What a server does with a file that is damaged, and a journal without its last entry, is the same.
	n := len(before)
	b.restored = b.restored || n < len(b.entries) && slices.EqualFunc(before, b.entries[:n], bytes.Equal)
	if b.restored && b.other == nil {
		b.bad = uint64(n) + 1
	}
	hubs := map[*hub][][2]string{}
	place := map[*hub]uint64{}
	if b.running {
		hubs[b.whole], hubs[b.few] = nil, nil
	} else {
		for _, h := range []*hub{b.whole, b.few} {
			all, at := h.copied()
			if b.isToRefuse(before, h, at.Seq) {
				hubs[h], place[h] = all, at.Seq
			}
		}
		if !b.restored {
			hubs[b.empty(t)] = nil
		}
		for h := range hubs {
			_ = os.Remove(filepath.Join(h.dir, "log")) // that of a new hub is not there
			h.start()
		}
	}
	for h := range hubs {
		select {
		case <-h.ended:
		case <-time.After(2 * within):
			t.Errorf("%s, at %d of %d: %s goes on", b.name, b.bad, b.all, h.name)
			continue
		}
		said := h.logged()
		if code := h.cmd.ProcessState.ExitCode(); code != 1 || !strings.Contains(said, journal.ErrDiverged.Error()) {
			t.Errorf("%s, at %d of %d: %s ended with code %d, and said\n%s", b.name, b.bad, b.all, h.name, code, said)
		}
		b.compare(t, h, hubs[h], place[h])
		refused++
	}
	if after, _ := b.read(t); !slices.EqualFunc(before, after, bytes.Equal) {
		t.Errorf("%s, at %d of %d: the journal had %d entries, and has %d; or other ones", b.name, b.bad, b.all, len(before), len(after))
	}
	return refused
}

// isToRefuse reports whether a copy at a place does not fit, or an entry that comes next does not. One that
// ends before all that is bad, or whose last entry is there, is what the journal was.
func (b *broken) isToRefuse(entries [][]byte, h *hub, place uint64) bool {
	switch {
	case b.restored:
		return place >= b.bad
	case h == b.few:
		return true
	}
	return place > uint64(len(entries)) || !bytes.Equal(entries[place-1], b.entries[place-1])
}

// empty returns a hub that has nothing.
func (b *broken) empty(t *testing.T) *hub {
	h := *b.few
	h.name, h.dir = "new", t.TempDir()
	free := ports(t, 3)
	h.ws, h.http, h.ops = free[0], free[1], free[2]
	return &h
}

// compare holds what a hub has after it has refused against what it had at a place: the same, or what the
// journal says up to where it is bad. Hubs that ran had more to write than what was noted.
func (b *broken) compare(t *testing.T, h *hub, before [][2]string, place uint64) {
	after, at := h.copied()
	switch {
	case at.Seq < place || at.Seq > place && at.Seq >= b.bad && !b.running:
		t.Errorf("%s, at %d of %d: %s was at place %d, and is at %d", b.name, b.bad, b.all, h.name, place, at.Seq)
	case at.Seq == place && !slices.Equal(before, after):
		t.Errorf("%s, at %d of %d: %s has other keys than before", b.name, b.bad, b.all, h.name)
	case at.Seq > place && !b.running && !slices.Equal(after, b.upTo(t, at)):
		t.Errorf("%s, at %d of %d: %s is at place %d, and has not what the journal said up to there", b.name, b.bad, b.all, h.name, at.Seq)
	}
}

// upTo returns what a copy has that gets the entries up to a position.
func (b *broken) upTo(t *testing.T, at journal.Position) [][2]string {
	dir := t.TempDir()
	r, err := store.OpenReplica(store.Options{Dir: dir})
	if err != nil {
		t.Error(err)
		return nil
	}
	var chain journal.Position
	for i, entry := range b.entries[:min(at.Seq, uint64(len(b.entries)))] {
		header, data, err := journal.ParseEntry(entry)
		chain = journal.Position{Seq: uint64(i + 1), Epoch: header.Epoch, Chain: journal.Hash(entry)}
		if err = errors.Join(err, r.Apply(data, chain)); err != nil {
			t.Error(err)
		}
	}
	if chain != at {
		t.Errorf("a copy is at %+v, and that place was %+v", at, chain)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	return keysOf(t, dir)
}
