package cluster

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "eventhub/client"
	"eventhub/store/journal"
	"eventhub/store/journal/jetstream"
)

var (
	rounds = flag.Int("cluster.rounds", 1, "how often each fault happens")
	outage = flag.Duration("cluster.outage", 3*time.Second, "how long a majority of the servers is away")
	// strict is for a machine that does nothing else.
	strict = flag.Bool("cluster.strict", false, "fail where a round takes longer than it may")
)

// rig is three servers of the journal, three hubs, each with proxies of its own to the servers, and a load.
type rig struct {
	t       *testing.T
	servers []*server
	stream  jetstream.Options
	journal func() journal.Journal // opens it
	hubs    []*hub
	proxies [][]*proxy // of each hub, to each server
	load    *load
	lead    *hub
	random  *rand.Rand
	stalls  []time.Duration
	settled func(lead *hub) // checks more when the load is over; or nil
	flags   []string        // of the hubs
	options []sdk.Option    // of the load
}

// newRig starts a rig; the stream has that many bytes at most, 0 for as many as there are.
func newRig(t *testing.T, lease time.Duration, mostBytes int64) *rig {
	r := &rig{t: t}
	r.start(lease, mostBytes)
	return r
}

func (r *rig) start(lease time.Duration, mostBytes int64) {
	t := r.t
	servers, urls := three(t)
	r.servers, r.stream = servers, jetstream.Options{URL: urls, Stream: "FAULTS", MostBytes: mostBytes}
	r.journal = func() journal.Journal { return open(t, r.stream) }
	for range 3 {
		var each []*proxy
		for _, s := range servers {
			each = append(each, startProxy(t, strings.TrimPrefix(s.url(), "nats://")))
		}
		r.proxies = append(r.proxies, each)
	}
	r.hubs = startHubs(t, 3, lease, func(i int) string {
		var hosts []string
		for _, p := range r.proxies[i] {
			hosts = append(hosts, p.listener.Addr().String())
		}
		return "nats://" + strings.Join(hosts, ",") + "/" + r.stream.Stream + fmt.Sprintf("?max_bytes=%d", mostBytes)
	}, r.flags...)
	r.begin()
}

// begin waits for a hub that leads and starts the load.
func (r *rig) begin() {
	t := r.t
	t.Helper()
	r.lead = r.active(nil)
	var urlsOfHubs []string
	for _, h := range r.hubs {
		urlsOfHubs = append(urlsOfHubs, h.url())
	}
	r.load = startLoad(t, urlsOfHubs, r.options...)
	t.Cleanup(r.load.end) // before the hubs are killed
	r.load.progress(20)
	for _, h := range r.hubs {
		if h != r.lead {
			h.await(isStandby)
		}
	}
	seed := cmp.Or(*seedFlag, rand.Uint64())
	t.Logf("-cluster.seed=%d", seed)
	r.random = rand.New(rand.NewPCG(seed, 0))
}

// round has a fault happen, and waits until publishes are answered after it. most is how long no
// publish may have been answered.
func (r *rig) round(most time.Duration, fault func()) {
	r.t.Helper()
	time.Sleep(time.Duration(r.random.IntN(300)) * time.Millisecond)
	r.load.fault()
	fault()
	r.load.progress(20)
	r.load.over()
	stall := r.load.stall()
	r.stalls = append(r.stalls, stall)
	if *strict && stall > most {
		r.t.Errorf("round %d: no publish was answered for %s; at most %s are allowed", len(r.stalls), stall, most)
	}
}

// finish ends the load, and checks the log, and that all hubs have the same.
func (r *rig) finish() {
	r.t.Helper()
	lead := r.active(nil)
	began := time.Now()
	r.load.finish(lead)
	r.load.end()
	r.t.Logf("everything was done after %s", time.Since(began).Round(time.Millisecond))
	r.load.check(lead)
	if r.settled != nil {
		r.settled(lead)
	}
	for _, h := range r.hubs {
		h.signal(syscall.SIGKILL)
		<-h.ended
	}
	// The last one has appended its end when the first copy is read: all have the same to follow.
	first, at := r.hubs[0].contents(r.journal)
	for _, h := range r.hubs[1:] {
		all, other := h.contents(r.journal)
		if other != at {
			r.t.Fatalf("%s is at %+v, and %s at %+v", r.hubs[0].name, at, h.name, other)
		}
		for i := range max(len(first), len(all)) {
			if i >= len(first) || i >= len(all) || first[i] != all[i] {
				r.t.Fatalf("%s has %d keys and %s %d; they differ from key %d on", r.hubs[0].name, len(first), h.name, len(all), i)
			}
		}
	}
	slices.Sort(r.stalls)
	r.t.Logf("%d copies with the same %d keys, at place %d; no publish was answered for %s in the median of %d rounds, %s at most",
		len(r.hubs), len(first), at.Seq, r.stalls[len(r.stalls)/2].Round(time.Millisecond), len(r.stalls), r.stalls[len(r.stalls)-1].Round(time.Millisecond))
}

// view is what a hub says of itself.
type view struct{ Epoch, Position uint64 }

func (h *hub) view() view {
	h.t.Helper()
	c := http.Client{Timeout: within}
	defer c.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodGet, fmt.Sprintf("http://127.0.0.1:%d/cluster", h.ops), nil)
	if err != nil {
		h.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+tokenOfAll)
	resp, err := c.Do(req)
	if err != nil {
		h.t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		h.t.Fatal(err)
	}
	var all struct{ Member view }
	if err := json.Unmarshal(body, &all); err != nil || resp.StatusCode != http.StatusOK {
		h.t.Fatalf("GET /cluster: %s, %v", body, err)
	}
	return all.Member
}

// epoch returns that of the hub's journal.
func (h *hub) epoch() uint64 { return h.view().Epoch }

// resident returns how much memory the hub has.
func (h *hub) resident() (bytes int) {
	h.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", h.cmd.Process.Pid))
	if err != nil {
		h.t.Fatal(err)
	}
	var size, pages int
	if _, err := fmt.Sscan(string(text), &size, &pages); err != nil {
		h.t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// replace ends the hub that leads, waits for another one, and starts it again.
func (r *rig) replace(sig syscall.Signal) {
	r.t.Helper()
	r.lead.signal(sig)
	<-r.lead.ended
	next := r.active(r.lead)
	r.lead.start()
	r.lead.await(isStandby)
	r.lead = next
}

func TestKilledHubs(t *testing.T) {
	t.Parallel()
	r := newRig(t, time.Second, 0)
	for range *rounds {
		r.round(4*time.Second, func() { r.replace(syscall.SIGKILL) })
	}
	r.finish()
}

// TestStoppedHubs: what a hub gives back is no attempt. Another one leads at once, whatever the lease is.
func TestStoppedHubs(t *testing.T) {
	t.Parallel()
	r := newRig(t, 5*time.Second, 0)
	for range *rounds {
		r.round(time.Second, func() { r.replace(syscall.SIGTERM) })
	}
	r.finish()
	if r.load.attempts > 0 {
		t.Errorf("%d deliveries were not the first attempt", r.load.attempts)
	}
}

// TestFrozenHubs: a hub that wakes after another one has led says no OK, and becomes a standby.
func TestFrozenHubs(t *testing.T) {
	t.Parallel()
	r := newRig(t, time.Second, 0)
	var longest time.Duration
	for range *rounds {
		r.round(4*time.Second, func() {
			r.lead.signal(syscall.SIGSTOP)
			next := r.active(r.lead)
			r.lead.signal(syscall.SIGCONT)
			woke := time.Now()
			r.lead.await(isStandby)
			longest = max(longest, time.Since(woke))
			r.lead = next
		})
	}
	r.finish()
	t.Logf("a hub that woke was a standby after %s at most", longest.Round(time.Millisecond))
}

// TestKilledServers: servers of the journal are killed, those that lead the stream and others; the same
// hub leads on.
func TestKilledServers(t *testing.T) {
	t.Parallel()
	for _, leads := range []bool{false, true} {
		t.Run(map[bool]string{false: "Follower", true: "Leader"}[leads], func(t *testing.T) {
			r := newRig(t, 5*time.Second, 0)
			f := faults{servers: r.servers, o: r.stream}
			epoch := r.lead.epoch()
			for range *rounds {
				r.round(map[bool]time.Duration{false: 2 * time.Second, true: 15 * time.Second}[leads], func() {
					s := f.serverOf(t, leads)
					s.kill()
					r.load.progress(20)
					s.start(t)
				})
			}
			if now := r.active(nil).epoch(); now != epoch {
				t.Errorf("another hub has led: epoch %d before, %d after", epoch, now)
			}
			r.finish()
		})
	}
}

// TestMajorityAway: without a majority of the servers nothing is answered, the hubs wait without
// growing, and go on by themselves.
func TestMajorityAway(t *testing.T) {
	t.Parallel()
	r := newRig(t, time.Second, 0)
	for range *rounds {
		r.round(*outage+20*time.Second, func() {
			before := r.lead.resident()
			for _, s := range r.servers[:2] {
				s.kill()
			}
			time.Sleep(time.Second) // an answer may be on its way
			oks := r.load.oks()
			time.Sleep(*outage)
			if now := r.load.oks(); now != oks {
				t.Errorf("%d publishes were answered without a majority", now-oks)
			}
			if grown := r.lead.resident() - before; grown > 64<<20 {
				t.Errorf("the hub has %d MiB more", grown>>20)
			}
			for _, s := range r.servers[:2] {
				s.start(t)
			}
		})
		r.lead = r.active(nil)
	}
	r.finish()
}

// hasLed is what the log of a hub has for each time that it led.
const hasLed = "this hub leads the journal"

func (r *rig) hold(h *hub, held bool) {
	for _, p := range r.proxies[slices.Index(r.hubs, h)] {
		p.hold(held)
	}
}

// TestPartitions: a hub that leads and is cut off from the journal is replaced; one that is no leader, or all
// of them, takes nothing over.
func TestPartitions(t *testing.T) {
	t.Parallel()
	r := newRig(t, time.Second, 0)
	for range *rounds {
		r.round(4*time.Second, func() {
			r.hold(r.lead, true)
			next := r.active(r.lead)
			r.load.progress(20)
			r.hold(r.lead, false)
			r.lead.await(isStandby)
			r.lead = next
		})
		r.round(time.Second, func() {
			standby := r.hubs[(slices.Index(r.hubs, r.lead)+1)%len(r.hubs)]
			led := strings.Count(standby.logged(), hasLed)
			r.hold(standby, true)
			time.Sleep(2 * time.Second)
			r.load.progress(20)
			if strings.Count(standby.logged(), hasLed) > led {
				t.Errorf("%s was cut off, and has led", standby.name)
			}
			r.hold(standby, false)
			standby.await(isStandby)
			standby.await(" 0 entries behind")
		})
		r.lead = r.active(nil)
	}
	r.finish()
}

// TestLostReplies: the journal takes what the hub that leads appends, whose answers are lost.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	r := newRig(t, time.Second, 0)
	for range 10 * *rounds {
		r.round(4*time.Second, func() {
			mine := r.proxies[slices.Index(r.hubs, r.lead)]
			for _, p := range mine {
				p.loseReplies()
			}
			time.Sleep(time.Duration(r.random.IntN(100)) * time.Millisecond)
			for _, p := range mine {
				p.cut()
			}
		})
		r.lead = r.active(nil)
	}
	r.finish()
}

func (r *rig) signalStandbys(sig syscall.Signal) {
	for _, h := range r.hubs {
		if h != r.lead {
			h.signal(sig)
		}
	}
}

// TestFullJournal: where the journal is nearly full publishes are refused, and nothing else is: the
// members trim it, publishes go on, and no other hub leads.
func TestFullJournal(t *testing.T) {
	t.Parallel()
	const lease = 15 * time.Second // the disk of a busy machine has stood still for 9 s
	r := newRig(t, lease, 16<<20)
	epoch := r.lead.epoch()
	for range *rounds {
		r.round(lease+10*time.Second, func() {
			// What one member alone has is not trimmed, so the journal does fill, however slowly, and stays full.
			r.signalStandbys(syscall.SIGSTOP)
			r.load.fill()
			time.Sleep(lease + lease/3) // a hub that can append nothing would be suspended
			r.signalStandbys(syscall.SIGCONT)
			acked := r.load.ackedCount()
			r.load.progress(1) // it is trimmed
			if r.load.ackedCount() == acked {
				t.Log("no ack came while it was full")
			}
		})
	}
	if now := r.lead.epoch(); now != epoch {
		t.Errorf("another hub has led: epoch %d before, %d after", epoch, now)
	}
	if strings.Contains(r.lead.logged(), "serves nobody") {
		t.Error("the hub was suspended")
	}
	r.finish()
}
