package member

import (
	"context"
	"errors"
	"sync"
	"time"

	"eventhub/store/journal"
)

// Hold keeps the lead until the leader has ended, whose error it returns, another hub has this member's id:
// ErrTwin, or ctx has ended: nil. It appends a beat where nothing else was appended, suspends the hub while
// the journal does not answer, and says how the member is doing. synced makes the store durable on this
// machine, and returns up to where. The leader is the caller's to close, after Hold too.
func (m *Member) Hold(ctx context.Context, leader *journal.Leader, synced func(context.Context) (journal.Position, error)) error {
	ctx, stop := context.WithCancelCause(ctx)
	m.mu.Lock()
	m.leader, m.filled = leader, fill(leader)
	m.mu.Unlock()
	var ended sync.WaitGroup
	ended.Go(func() { m.announce(ctx, stop, synced) })
	defer ended.Wait()
	defer stop(nil)
	ticker := time.NewTicker(m.opts.Lease / Looks)
	defer ticker.Stop()
	var before uint64 // place at the last look
	grew := time.Now()
	beating, suspended := false, false
	beat := make(chan struct{}, 1)
	sendBeat := func() {
		beating = true
		go func() { // ends with the leader, which may be after Hold
			// Where much is pending, already the call waits for the journal.
			_, _ = leader.Beat()() // the leader has the error, and ends with it
			select {
			case beat <- struct{}{}:
			case <-ctx.Done():
			}
		}()
	}
	// Nobody is served where what was sent last is older than a lease, so a beat follows at once where the store took long
	// to open, and after an answer that was long in coming.
	old := func() bool { return time.Since(leader.Sent()) > m.opts.Lease/2 }
	if old() {
		sendBeat()
	}
	for {
		select {
		case <-leader.Ended():
			return leader.Err()
		case <-ctx.Done():
			if err := context.Cause(ctx); errors.Is(err, ErrTwin) {
				return err
			}
			return nil
		case <-beat:
			beating = false
		case <-ticker.C:
		}
		at := leader.Position()
		grown := at.Seq > before
		before = at.Seq
		m.mu.Lock()
		if grown {
			grew = time.Now()
			m.at, m.last, m.answered = at, at.Seq, time.Now()
		}
		m.mu.Unlock()
		if silent := time.Since(grew) > m.opts.Lease; silent != suspended {
			suspended = silent
			m.opts.Suspend(silent)
		}
		if (!grown || old()) && !beating {
			sendBeat()
		}
	}
}

// announce says at once, and then every now and then, how the member is doing, until ctx ends, and
// trims the journal. Who has not had everything yet is no member: others would wait for it. It ends with
// ErrTwin too, which it leaves to give up.
func (m *Member) announce(ctx context.Context, giveUp context.CancelCauseFunc, synced func(context.Context) (journal.Position, error)) {
	m.mu.Lock()
	active := m.role == Active
	m.mu.Unlock()
	if !active {
		select {
		case <-m.through:
		case <-ctx.Done():
			return
		}
	}
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	var said, warned time.Time
	for {
		var err error
		if time.Since(said) >= announceEvery || m.Room().isNearlyFull() {
			err = m.announceOnce(ctx, synced)
			said = time.Now()
		}
		err = errors.Join(err, m.askLimits(ctx))
		if errors.Is(err, ErrTwin) {
			giveUp(err)
			return
		}
		switch {
		case err == nil || ctx.Err() != nil:
		case errors.Is(err, journal.ErrForeign) && time.Since(warned) >= warnEvery: // it does not pass by itself
			warned = time.Now()
			m.opts.Logger.Warn("cannot say how this member is doing, and trim the journal; it is tried again", "error", err)
		default:
			m.opts.Logger.Debug("cannot say how this member is doing; it is tried again", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// askLimits asks how full the journal is.
func (m *Member) askLimits(ctx context.Context) error {
	m.mu.Lock()
	leader := m.leader
	m.mu.Unlock()
	var filled filling
	if leader != nil {
		filled = fill(leader) // before: what comes meanwhile counts twice, and not never
	}
	limits, err := m.opts.Journal.Limits(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.limits, m.filled = limits, filled
	return nil
}

func (m *Member) announceOnce(ctx context.Context, synced func(context.Context) (journal.Position, error)) error {
	at, err := synced(ctx)
	if err != nil {
		return err
	}
	m.mu.Lock()
	active := m.role == Active
	m.mu.Unlock()
	own := journal.Member{ID: m.opts.ID, URLs: m.opts.URLs, Active: active, Synced: at.Seq, Layout: m.opts.Layout, Run: m.run}
	said, err := m.opts.Journal.Announce(ctx, own)
	if err == nil {
		own.Seen, err = m.opts.Journal.Now(ctx)
	}
	if err != nil {
		return err
	}
	now := time.Now()
	if err := m.twins.look(said, &own, m.opts.Logger); err != nil {
		return err
	}
	m.mu.Lock()
	m.members, m.said, m.engine = withOwn(said, &own), now, own.Seen
	upTo := m.spare(now, own.Seen)
	due := upTo > m.trimmed
	m.mu.Unlock()
	if !due {
		return nil
	}
	if err := m.opts.Journal.Trim(ctx, upTo); err != nil {
		return err
	}
	m.mu.Lock()
	m.trimmed = upTo
	m.mu.Unlock()
	return nil
}

// mark is up to where nobody needed the journal at a time.
type mark struct {
	at   time.Time
	upTo uint64
}

// spare returns up to where the journal is to be trimmed, now, which is engine by the clock of the engine. m.mu is held.
func (m *Member) spare(now, engine time.Time) uint64 {
	members := m.twins.lowest(m.members)
	if m.room().isNearlyFull() {
		return Trimmable(members, engine, seenWithinFull)
	}
	upTo := Trimmable(members, engine, SeenWithin)
	if n := len(m.kept); n == 0 || upTo > m.kept[n-1].upTo {
		m.kept = append(m.kept, mark{now, upTo})
	}
	var spare uint64
	for len(m.kept) > 0 && now.Sub(m.kept[0].at) >= reserve {
		spare, m.kept = m.kept[0].upTo, m.kept[1:]
	}
	return spare
}

// Trimmable returns up to where nobody needs the journal: two members at least have that on their
// disks, and so does everyone who was seen within a time and not released.
func Trimmable(members []journal.Member, now time.Time, within time.Duration) (upTo uint64) {
	count := 0
	for _, other := range members {
		if other.Released || now.Sub(other.Seen) > within {
			continue
		}
		if count++; count == 1 || other.Synced < upTo {
			upTo = other.Synced
		}
	}
	if count < 2 {
		return 0
	}
	return upTo
}
