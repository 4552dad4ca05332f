package hub

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"eventhub"
	"eventhub/hub/internal/fetch"
	"eventhub/hub/internal/member"
	"eventhub/store/journal"
	"eventhub/store/pebble"
)

// fetched is where a copy of another member comes, below the directory of the store: on its file system.
const fetched = "scratch/fetched"

// sayEvery is how often the log says how far a copy is.
const sayEvery = 10 * time.Second

var (
	errNoActive = errors.New("no hub has said that it leads")
	errNoURL    = errors.New("the hub that leads has no member_url")
)

// fetching is a copy that is on its way.
type fetching struct {
	from     string
	received atomic.Int64
}

// lacks reports whether an error of following says that the journal does not have what this copy needs, so
// that one of another member is to take its place. A store that is to begin a journal is never replaced.
func lacks(r *pebble.Replica, err error) bool {
	if r.Founds() {
		return false
	}
	return errors.Is(err, journal.ErrTrimmed) || errors.Is(err, pebble.ErrFounder) && !r.IsFounded()
}

// fetch replaces the copy of this hub by one of the hub that leads, and returns the seat with it. It tries
// again, each time from the beginning, what may pass.
func (h *Hub) fetch(ctx context.Context, at *seat, why error) (*seat, error) {
	h.log.Warn("the journal does not have what this hub needs; it fetches a copy of the hub that leads", "error", why)
	var twin others
	watching, unwatch := context.WithCancel(ctx) // a copy may take long, and the journal is not silent meanwhile
	var watched sync.WaitGroup
	watched.Go(func() { at.member.Watch(watching) })
	defer watched.Wait()
	defer unwatch()
	defer func() { // what is said meanwhile goes on until the seat has the copy
		h.cluster.unfetched.Store(nil)
		h.cluster.fetching.Store(nil)
	}()
	for wait := leastLook; ; wait = min(2*wait, mostLook) {
		from, err := h.leading(ctx, at.journal, &twin)
		if err == nil {
			if err = h.fetchFrom(ctx, from); err == nil {
				return h.replaceCopy(at)
			}
		}
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if errors.Is(err, member.ErrTwin) {
			return nil, err
		}
		if errors.Is(err, errNoURL) || fetch.IsFinal(err) {
			url := "URL"
			if len(from.URLs) > 0 {
				url = from.URLs[0]
			}
			return nil, fmt.Errorf("%w; and no copy of %s can be fetched: %w. Either mend that, or move %s away and make it by hand: eventhub backup --url %s %s%s",
				why, from.ID, err, h.cfg.Store, url, h.cfg.Store, h.cfg.from("member_token"))
		}
		if from.ID != "" { // one that has no room may be that hub as well as this one
			err = fmt.Errorf("no copy of %s: %w", named(from.ID, from.URLs), err)
		}
		h.cluster.unfetched.Store(&err)
		h.log.Warn("the copy cannot be fetched; it is tried again", "in", wait, "error", err)
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// others looks for a hub that has the id of one which fetches: that one says nothing meanwhile.
type others struct {
	seen  time.Time // when somebody has last said something under the id
	again int       // how often that has changed
}

// look returns member.ErrTwin where somebody goes on speaking. Once may be a last word that was late.
func (o *others) look(said []journal.Member, id string) error {
	for _, m := range said {
		if m.ID != id || m.Released {
			continue
		}
		if !o.seen.IsZero() && m.Seen.After(o.seen) {
			o.again++
		}
		o.seen = m.Seen
	}
	if o.again > 1 {
		return fmt.Errorf("%w: %q; each hub that shares the journal needs a member_id of its own", member.ErrTwin, id)
	}
	return nil
}

// leading returns the member that has said last that it leads.
func (h *Hub) leading(ctx context.Context, j journal.Journal, twin *others) (from journal.Member, err error) {
	said, err := j.Announce(ctx, journal.Member{})
	if err == nil {
		err = twin.look(said, h.cfg.MemberID)
	}
	if err != nil {
		return from, err
	}
	for _, m := range said {
		if m.Active && !m.Released && m.ID != h.cfg.MemberID && m.Seen.After(from.Seen) {
			from = m
		}
	}
	if from.ID == "" {
		return from, errNoActive
	}
	if len(from.URLs) == 0 {
		return from, errNoURL
	}
	return from, nil
}

// memberTrust returns what a hub trusts that a copy is fetched from; nil for what the system trusts.
func (c *Config) memberTrust() (*tls.Config, error) {
	if c.MemberCAFile == "" {
		return nil, nil
	}
	text, err := os.ReadFile(c.MemberCAFile)
	if err != nil {
		return nil, fmt.Errorf("member CA file: %w", err)
	}
	trust := &tls.Config{RootCAs: x509.NewCertPool(), MinVersion: tls.VersionTLS12}
	if !trust.RootCAs.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("member CA file %s has no certificate in PEM", c.MemberCAFile)
	}
	return trust, nil
}

// fetchFrom fetches a copy, and says how far it is. One that is there is said to be on its way until it is in the
// place of this hub's.
func (h *Hub) fetchFrom(ctx context.Context, from journal.Member) (err error) {
	c := h.cluster
	f := &fetching{from: named(from.ID, from.URLs)}
	c.fetching.Store(f)
	defer func() {
		if err != nil {
			c.fetching.Store(nil)
		}
	}()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	said := make(chan struct{})
	go func() {
		defer close(said)
		ticker := time.NewTicker(sayEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				h.log.Info("a copy is being fetched", "from", f.from, "bytes", f.received.Load())
			case <-ctx.Done():
				return
			}
		}
	}()
	began := time.Now()
	token := h.cfg.MemberToken
	if token == "" {
		token = h.cfg.AuthToken
	}
	trust, err := h.cfg.memberTrust()
	if err != nil {
		return err
	}
	_, err = fetch.Copy(ctx, from.URLs, fetch.As{Token: token, Trust: trust}, filepath.Join(h.cfg.Store, filepath.FromSlash(fetched)), &f.received)
	cancel()
	<-said
	if err == nil {
		h.log.Info("a copy was fetched", "from", f.from, "bytes", f.received.Load(), "took", time.Since(began).Round(time.Millisecond))
	}
	return err
}

// replaceCopy puts the copy that was fetched in the place of this hub's, and returns the seat with it.
func (h *Hub) replaceCopy(at *seat) (*seat, error) {
	if err := at.replica.Close(); err != nil {
		return nil, err
	}
	if err := pebble.Replace(h.storeOptions(), fetched+"/"+fetch.Name); err != nil {
		return nil, fmt.Errorf("%w%s", err, h.cfg.from("store"))
	}
	r, err := pebble.OpenReplica(h.storeOptions())
	if err != nil {
		return nil, fmt.Errorf("%w%s", err, h.cfg.from("store"))
	}
	h.log.Info("this hub follows from the copy that it fetched", "place", r.Position().Seq)
	return h.take(at.journal, at.durability, r), nil
}

// take makes the seat of a copy that is open.
func (h *Hub) take(j journal.Journal, d journal.Durability, r *pebble.Replica) *seat {
	at := &seat{journal: j, durability: d, replica: r, member: member.New(member.Options{
		Journal: j, Replica: r, ID: h.cfg.MemberID, URLs: h.cfg.MemberURLs,
		Lease: h.cfg.Lease, Layout: pebble.Layout, Founds: r.Founds(),
		Suspend: h.suspend, Logger: h.log,
	})}
	h.cluster.seat.Store(at)
	return at
}

// leadSeat follows until this hub leads. A copy that is too far behind is replaced on the way.
func (h *Hub) leadSeat(ctx context.Context) (at *seat, leader *journal.Leader, err error) {
	for at, err = h.sit(ctx); err == nil; {
		leader, err = at.member.Lead(ctx)
		if err == nil || !lacks(at.replica, err) {
			return at, leader, err
		}
		at, err = h.fetch(ctx, at, err)
	}
	return at, nil, err
}

// isFetching says that a copy is on its way, or why none could be fetched yet; nil where none is needed.
func (c *cluster) isFetching() *eventhub.Error {
	f := c.fetching.Load()
	if f == nil {
		if why := c.unfetched.Load(); why != nil {
			return eventhub.Errorf(eventhub.CodeNotActive, "this hub needs a copy of the hub that leads, which could not be fetched yet: %v", *why)
		}
		return nil
	}
	return eventhub.Errorf(eventhub.CodeNotActive, "this hub fetches a copy of %s, %d bytes so far", f.from, f.received.Load())
}
