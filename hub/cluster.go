package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"eventhub"
	"eventhub/gateway/rest"
	"eventhub/hub/internal/member"
	"eventhub/store/journal"
	"eventhub/store/pebble"
)

// JournalNone as the Journal says that the store of a hub that shared a journal is to be one of its
// own from now on.
const JournalNone = "none"

// mostMemberID is how many bytes the name of a member has at most.
const mostMemberID = 64

// cluster is what a hub has that shares a journal.
type cluster struct {
	seat   atomic.Pointer[seat]  // nil until the journal was there, and the copy was open
	absent atomic.Pointer[error] // why it is nil
	since  time.Time             // of the start

	fetching  atomic.Pointer[fetching] // the copy that is on its way
	unfetched atomic.Pointer[error]    // why the copy that is needed could not be fetched yet

	copied *pebble.Replica // of who looks for the journal, before there is a seat
	store  *pebble.Store   // once the hub leads
	leader *journal.Leader // likewise

	projected     *projectedStore // store, where the hub writes projections; nil elsewhere
	projecting    sync.WaitGroup
	endProjection context.CancelFunc

	leading atomic.Pointer[journal.Leader] // leader, before its store is open

	stop context.CancelFunc // ends what looks for the journal and follows, and nothing once the hub leads
	led  chan struct{}      // closed when the hub leads, or never will
	held chan struct{}      // closed when the lead is over, or was never had
}

// seat is the hub's part in a journal that is open.
type seat struct {
	journal    journal.Journal
	durability journal.Durability
	replica    *pebble.Replica
	member     *member.Member
}

// shares reports whether the hub shares a journal.
func (c *Config) shares() bool {
	return c.OpenJournal != nil || c.Journal != "" && c.Journal != JournalNone
}

// validateCluster returns everything that is wrong with the journal and the member.
func (c *Config) validateCluster() (errs []error) {
	if c.Journal != "" && c.Journal != JournalNone {
		if err := CheckJournalURL(c.Journal); err != nil {
			errs = append(errs, fmt.Errorf("journal: %w%s", err, c.from("journal")))
		}
	}
	if !c.shares() {
		return errs
	}
	if c.Store == MemoryStore || c.OpenStore != nil {
		errs = append(errs, fmt.Errorf("a journal needs a store on the disk, and store is %q%s", c.Store, c.from("store", "journal")))
	}
	if c.Durability == DurabilityInterval {
		errs = append(errs, fmt.Errorf("durability is interval; with a journal an OK always comes when the journal has the event%s", c.from("durability", "journal")))
	}
	errs = append(errs, c.validateProject()...)
	// What is no UTF-8 is another text in the journal: the member would take itself for two.
	if len(c.MemberID) > mostMemberID || !utf8.ValidString(c.MemberID) { // empty: that of the machine
		errs = append(errs, fmt.Errorf("member id is %q; 1 to %d bytes of UTF-8 are allowed%s", c.MemberID, mostMemberID, c.from("member_id")))
	}
	if _, err := c.memberTrust(); err != nil {
		errs = append(errs, fmt.Errorf("%w%s", err, c.from("member_ca_file")))
	}
	if c.Lease != 0 && c.Lease < member.LeastLease {
		errs = append(errs, fmt.Errorf("lease is %s; at least %s is needed%s", c.Lease, member.LeastLease, c.from("lease")))
	}
	return errs
}

// defaultMemberID is the name of the machine.
func defaultMemberID() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name[:min(len(name), mostMemberID)]
}

// lead follows until this hub leads, makes it a hub that serves, and holds the lead.
func (h *Hub) lead(ctx context.Context) {
	c := h.cluster
	at, leader, err := h.leadSeat(ctx)
	if err == nil {
		c.leader = leader
		c.leading.Store(leader)
		err = h.openLeading()
	}
	close(c.led)
	switch {
	case err != nil && ctx.Err() != nil:
		return
	case err != nil:
		h.loseStore(err)
		return
	}
	err = at.member.Hold(context.Background(), c.leader, c.store.SyncPosition)
	if !h.stopping.Load() {
		h.loseStore(fmt.Errorf("the lead of the journal is over: %w", err))
		_ = c.leader.Close() // what waits for the journal waits no more
	}
}

// openLeading opens the store, the engine and the gateways of a hub that leads.
func (h *Hub) openLeading() error {
	c := h.cluster
	began := time.Now()
	var err error
	if c.store, err = c.seat.Load().replica.Lead(c.leader); err != nil {
		return err
	}
	if p := h.project(c.seat.Load().journal); p != nil {
		c.projected = &projectedStore{c.store, p}
	}
	if err = h.open(); err == nil {
		err = h.openOutbox()
	}
	if err != nil {
		return err
	}
	h.runProjection()
	h.route()
	h.log.Info("this hub serves", "took", time.Since(began).Round(time.Millisecond))
	h.drainOutbox()
	return nil
}

// journalRoom returns what says why the journal has no room for events; nil for a hub without one.
func (h *Hub) journalRoom() func() error {
	c := h.cluster
	if c == nil {
		return nil
	}
	return func() error {
		room := c.seat.Load().member.Room()
		if !room.IsLow() {
			return nil
		}
		return &eventhub.Error{
			Code: eventhub.CodeOverloaded,
			Message: fmt.Sprintf("the hub's journal is nearly full: %d of %d KiB are free, publishing needs %d; nothing was published",
				room.Free>>10, room.Most>>10, room.Least>>10),
			RetryAfter: announcedWithin,
		}
	}
}

// announcedWithin is how long a journal that is nearly full takes to be trimmed, where it can be.
const announcedWithin = 2 * time.Second

// IsSucceeded reports whether a hub cannot go on because another one leads their journal: started
// again, it is a standby.
func IsSucceeded(err error) bool {
	return errors.Is(err, journal.ErrFenced) || errors.Is(err, journal.ErrOvertaken)
}

// succeededAnswer returns the Answer of the engine; nil where the hub shares no journal.
func (h *Hub) succeededAnswer() func(cause error, inDoubt bool) *eventhub.Error {
	if h.cluster == nil {
		return nil
	}
	return h.cluster.answer
}

// answer says what a request is answered that came too late to a hub which leads no more; nil where that
// is not why it failed. With journal.ErrFenced nothing of it is in the journal, ever. With
// journal.ErrUnknown that is only so of what was not given to the store.
func (c *cluster) answer(cause error, inDoubt bool) *eventhub.Error {
	var by *journal.FencedError
	switch {
	case errors.As(cause, &by):
		return eventhub.Wrap(eventhub.CodeNotActive, cause, "%s leads in place of this hub, in epoch %d; nothing was done", named(by.Hub, c.seat.Load().member.URLs(by.Hub)), by.Epoch)
	case errors.Is(cause, journal.ErrFenced):
		return eventhub.Wrap(eventhub.CodeNotActive, cause, "another hub leads in place of this one; nothing was done")
	case !isOver(cause):
		return nil
	case inDoubt:
		return eventhub.Wrap(eventhub.CodeInternal, cause, "This hub leads no more; the events may or may not be published.")
	}
	return eventhub.Wrap(eventhub.CodeNotActive, cause, "this hub leads no more, and another one may; nothing was done")
}

// isOver reports whether a lead is over in order to go on elsewhere.
func isOver(err error) bool {
	return IsSucceeded(err) || errors.Is(err, journal.ErrUnknown) || errors.Is(err, journal.ErrClosed)
}

// named is a member with its URLs, where they are known.
func named(id string, urls []string) string {
	if len(urls) > 0 {
		id += " (" + strings.Join(urls, ", ") + ")"
	}
	return id
}

// brokenBy is what a hub says of itself that cannot go on.
func (h *Hub) brokenBy(cause error) *eventhub.Error {
	if IsSucceeded(cause) {
		return eventhub.Wrap(eventhub.CodeNotActive, cause, "this hub leads no more, and another one may; it becomes a standby")
	}
	return eventhub.Wrap(eventhub.CodeInternal, cause, "the hub can not go on; its log has the cause")
}

// storeOptions are those of the embedded store.
func (h *Hub) storeOptions() pebble.Options {
	return pebble.Options{Dir: h.cfg.Store, MaxTopics: h.cfg.MaxTopics, Memory: h.cfg.memoryShares().store, Logger: h.log, Fatal: h.loseStore}
}

// endFollowing ends the following of a hub that does not lead, and waits until it is known whether it
// does. One that is about to waits for the journal, at most for the grace period.
func (h *Hub) endFollowing() {
	c := h.cluster
	if c == nil {
		return
	}
	c.stop()
	select {
	case <-c.led:
		return
	case <-time.After(h.cfg.Grace):
	}
	if leader := c.leading.Load(); leader != nil {
		_ = leader.Close()
	}
	<-c.led
}

// stopStandby takes a hub down that does not lead.
func (h *Hub) stopStandby(ctx context.Context) error {
	h.log.Info("standby is stopping")
	h.operations.Stop()
	var errs []error
	for _, d := range h.doors {
		errs = append(errs, d.close())
	}
	for _, d := range h.doors {
		errs = append(errs, d.shut(ctx))
	}
	h.serving.Wait()
	h.closeAuth()
	h.audit.Close(ctx)
	if h.bus != nil { // it failed while it was opened
		errs = append(errs, h.bus.Close())
	}
	h.cluster.stopProjection()
	if h.store != nil {
		errs = append(errs, h.store.Close())
	}
	errs = append(errs, h.leave(ctx))
	if cause := h.broken.Load(); cause != nil {
		errs = append(errs, *cause)
	}
	return errors.Join(errs...)
}

// leave gives the lead back, closes the copy of the store where nobody else has, and the journal.
func (h *Hub) leave(ctx context.Context) error {
	c := h.cluster
	if c == nil {
		return nil
	}
	if c.leader != nil {
		release := c.leader.Release()
		released := make(chan error, 1)
		go func() {
			_, err := release()
			released <- err
		}()
		select {
		case err := <-released:
			if err != nil {
				h.log.Warn("cannot give the lead back; another hub takes it after the lease", "error", err)
			}
		case <-ctx.Done():
			h.log.Warn("the journal does not take that the lead is given back; another hub takes it after the lease")
		}
		_ = c.leader.Close() // its end is what is asked for
	}
	<-c.held
	return c.close()
}

// standby answers the requests that a hub gets which does not lead.
func (h *Hub) standby(d *door) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, pattern := d.mux.Handler(r); pattern != "" { // of the operations listener
			d.mux.ServeHTTP(w, r)
			return
		}
		err := h.cluster.leads()
		if err == nil {
			err = eventhub.Errorf(eventhub.CodeNotActive, "this hub has just taken the lead, and opens its store")
		}
		rest.Refuse(w, err)
	})
}

// leads returns nil where the hub leads, and else that it is a standby, of whom, and how far.
func (c *cluster) leads() *eventhub.Error {
	at := c.seat.Load()
	if at == nil {
		return c.notSeated()
	}
	if e := c.isFetching(); e != nil {
		return e
	}
	s := at.member.Status()
	if s.Role == member.Active {
		return nil
	}
	if s.Active == "" {
		return eventhub.Errorf(eventhub.CodeNotActive, "this hub does not lead, and nobody has led the journal yet")
	}
	return eventhub.Errorf(eventhub.CodeNotActive, "this hub is a standby of %s, epoch %d, %d entries behind",
		named(s.Active, at.member.ActiveURLs()), s.Epoch, s.Last-s.Position)
}
