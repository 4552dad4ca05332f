package deadletter

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/bus/internal/past"
	"eventhub/store"
)

// Counts knows how many dead letters there are of each group, and what was done about
// them. It follows the logs that say so: those of dead letters, and admin.RedriveTopic with
// the marks. So commits do nothing for it, an id that comes twice counts once, and whoever
// asks pays for what came since somebody asked last; the first one after the start pays for
// all that there is. A context that ends leaves what was counted so far, and the next call
// goes on there.
//
// What is removed from below of a log of dead letters does not count any more. Where marks are
// removed from below, those that are left count again.
//
// A dead letter and its marks come in any order, since either may be imported. Of a dead
// letter that is read, the marks up to the place in the log of marks count then; later ones
// count when they are read, if their dead letter has been.
type Counts struct {
	letters *Letters
	lists   Lists
	turn    chan struct{} // has room for whoever follows, who has all below fresh

	mu    sync.Mutex
	fresh map[string]bool // topics of dead letters that were created and are not in logs
	stale map[string]bool // topics of dead letters of which something was erased

	listed bool // all topics were looked at
	logs   map[string]*Log
	marks  logPlace
	above  uint64 // the horizon of the log of marks, as of then
	batch  store.Batch
}

// logPlace is how far a log was read: up to offset, in that life of its topic.
type logPlace struct{ life, offset uint64 }

// Log is a topic of dead letters as far as it was counted.
type Log struct {
	logPlace
	Groups  map[string]*Group // by name
	letters []counted         // rising
}

// counted is a dead letter that counts.
type counted struct {
	offset             uint64
	group              *Group
	redriven, requeued bool
}

// Group counts the dead letters of a group: those without marks, those that were
// redriven, and those that were only requeued.
type Group struct {
	open, redriven, requeued uint64
	// waiting has the marks of those redrives that were not over when somebody asked last, by
	// the offset of the event. The list of the group is no measure by itself: it may have
	// events whose dead letters or marks were deleted.
	waiting map[uint64]string
}

// mostFollowed bounds what is read of a log at a time.
const (
	mostFollowed      = 1000
	mostFollowedBytes = 1 << 20
)

// NewCounts returns counts of the dead letters, which count nothing until they are asked. With
// every question they ask lists about each redrive that was not over before.
func (l *Letters) NewCounts(lists Lists) *Counts {
	return &Counts{letters: l, lists: lists, turn: make(chan struct{}, 1), fresh: make(map[string]bool), stale: make(map[string]bool), logs: make(map[string]*Log)}
}

// TopicsCreated notes the topics of dead letters among those that a commit has created.
func (c *Counts) TopicsCreated(created []store.TopicLife) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range created {
		if eventhub.IsDeadLetterTopic(t.Topic) {
			c.fresh[t.Topic] = true
		}
	}
}

// Removed notes the topics of dead letters of which single events were erased: they are read
// again. What is below a horizon is taken off without that.
func (c *Counts) Removed(changes []store.TopicChange) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range changes {
		if len(changes[i].Erase) > 0 && eventhub.IsDeadLetterTopic(changes[i].Topic) {
			c.stale[changes[i].Topic] = true
		}
	}
}

// takeStale has the topics read again of which something was erased.
func (c *Counts) takeStale() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for topic := range c.stale {
		if l := c.logs[topic]; l != nil {
			*l = Log{Groups: make(map[string]*Group)}
		}
	}
	clear(c.stale)
}

// UpToDate returns what is counted of each topic of dead letters, once all that was in the
// logs when it was called has been. The caller has it to itself until it calls release.
func (c *Counts) UpToDate(ctx context.Context) (_ map[string]*Log, release func(), _ error) {
	select {
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, nil, ctx.Err()
	}
	if err := c.follow(ctx); err != nil {
		<-c.turn
		return nil, nil, err
	}
	return c.logs, func() { <-c.turn }, nil
}

// Within is UpToDate for who does not wait longer than that: all says whether everything has been counted. The
// next call goes on. Where somebody else counts for all that time it returns nothing.
func (c *Counts) Within(ctx context.Context, most time.Duration) (_ map[string]*Log, all bool, release func(), _ error) {
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	select {
	case c.turn <- struct{}{}:
	case <-within.Done():
		return nil, false, func() {}, ctx.Err()
	}
	err := c.follow(within)
	if err != nil && (within.Err() == nil || ctx.Err() != nil) {
		<-c.turn
		return nil, false, nil, err
	}
	return c.logs, err == nil, func() { <-c.turn }, nil
}

func (c *Counts) follow(ctx context.Context) error {
	if err := c.findTopics(ctx); err != nil {
		return err
	}
	life, horizon, err := c.ends(ctx, admin.RedriveTopic)
	if err != nil {
		return err
	}
	if life != c.marks.life || horizon > c.above { // marks were deleted: all dead letters are open again
		c.marks, c.above = logPlace{life: life}, horizon
		for _, l := range c.logs {
			l.reopen()
		}
	}
	c.takeStale()
	for topic, l := range c.logs {
		there, err := c.followTopic(ctx, topic, l)
		if err != nil {
			return err
		}
		if !there {
			delete(c.logs, topic)
		}
	}
	err = c.read(ctx, admin.RedriveTopic, &c.marks, func(item store.Item) error { return c.countMark(ctx, item) })
	if err != nil {
		return err
	}
	return c.forgetOver(ctx)
}

// forgetOver forgets the redrives that are over. None of them begins again: the next one of
// the same event has another mark.
func (c *Counts) forgetOver(ctx context.Context) error {
	for dlq, l := range c.logs {
		for name, g := range l.Groups {
			for offset, mark := range g.waiting {
				on, err := c.lists.Mark(ctx, EventsOf(dlq), name, offset)
				if err != nil {
					return err
				}
				if on != mark {
					delete(g.waiting, offset)
				}
			}
		}
	}
	return nil
}

// wait notes a redrive of the event of a dead letter, unless it is over.
func (c *Counts) wait(ctx context.Context, g *Group, p *Payload, mark string) error {
	on, err := c.lists.Mark(ctx, p.Topic, p.Group, p.Offset)
	if on != mark || err != nil {
		return err
	}
	if g.waiting == nil {
		g.waiting = make(map[uint64]string)
	}
	g.waiting[p.Offset] = mark
	return nil
}

// findTopics enters the topics of dead letters that are new.
func (c *Counts) findTopics(ctx context.Context) error {
	var found []string
	if !c.listed {
		for t, err := range store.AllTopics(ctx, c.letters.store, "") {
			if err != nil {
				return store.Failed(err, "list the topics")
			}
			if eventhub.IsDeadLetterTopic(t.Name) {
				found = append(found, t.Name)
			}
		}
		c.listed = true
	}
	c.mu.Lock()
	found = slices.AppendSeq(found, maps.Keys(c.fresh))
	clear(c.fresh)
	c.mu.Unlock()
	for _, topic := range found {
		if c.logs[topic] == nil {
			c.logs[topic] = &Log{Groups: make(map[string]*Group)}
		}
	}
	return nil
}

// followTopic counts the dead letters of a topic that came since. It reports whether the
// topic is there.
func (c *Counts) followTopic(ctx context.Context, topic string, l *Log) (there bool, _ error) {
	life, horizon, err := c.ends(ctx, topic)
	if err != nil || life == 0 {
		return false, err
	}
	if life != l.life {
		*l = Log{logPlace: logPlace{life: life}, Groups: make(map[string]*Group)}
	}
	l.forget(horizon)
	return true, c.read(ctx, topic, &l.logPlace, func(item store.Item) error {
		p, id, err := payloadOf(topic, item)
		if p == nil {
			return err
		}
		redriven, requeued, err := c.marksOf(ctx, id, c.marks.offset)
		if err != nil {
			return err
		}
		g := l.Groups[p.Group]
		if g == nil {
			g = &Group{}
			l.Groups[p.Group] = g
		}
		if redriven {
			last, _, err := c.letters.LastRedrive(ctx, id)
			if err == nil {
				err = c.wait(ctx, g, p, last)
			}
			if err != nil {
				return err
			}
		}
		*g.counter(redriven, requeued)++ // nothing fails after it: it would count twice
		l.letters = append(l.letters, counted{item.Offset, g, redriven, requeued})
		return nil
	})
}

// ends returns the life of a topic and its horizon, 0 where it is not there.
func (c *Counts) ends(ctx context.Context, topic string) (life, horizon uint64, err error) {
	info, err := c.letters.store.Topic(ctx, topic)
	if errors.Is(err, store.ErrNotFound) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, store.Failed(err, "look up topic %q", topic)
	}
	return info.Life, info.Horizon, nil
}

// forget takes the dead letters below a horizon off.
func (l *Log) forget(horizon uint64) {
	for len(l.letters) > 0 && l.letters[0].offset < horizon {
		x := &l.letters[0]
		*x.group.counter(x.redriven, x.requeued)--
		l.letters = l.letters[1:]
	}
}

// reopen makes all dead letters those without marks.
func (l *Log) reopen() {
	for _, g := range l.Groups {
		*g = Group{}
	}
	for i := range l.letters {
		x := &l.letters[i]
		x.redriven, x.requeued = false, false
		x.group.open++
	}
}

// letter returns the dead letter at an offset, nil where none counts.
func (l *Log) letter(offset uint64) *counted {
	i, ok := slices.BinarySearchFunc(l.letters, offset, func(x counted, offset uint64) int { return cmp.Compare(x.offset, offset) })
	if !ok {
		return nil
	}
	return &l.letters[i]
}

// read calls count for each event of a topic after the place, in the life of the place, and
// moves the place on. What is of another life is left to the next call.
func (c *Counts) read(ctx context.Context, topic string, at *logPlace, count func(store.Item) error) error {
	head, err := c.letters.store.Head(ctx, topic)
	if err != nil {
		return store.Failed(err, "read the head of topic %q", topic)
	}
	for at.offset < head {
		if err := ctx.Err(); err != nil {
			return err
		}
		c.batch.Reset()
		if err := c.letters.store.Read(ctx, topic, at.offset+1, mostFollowed, mostFollowedBytes, &c.batch); err != nil {
			return store.Failed(err, "read topic %q at offset %d", topic, at.offset+1)
		}
		life, err := past.Life(ctx, c.letters.store, topic)
		if err != nil {
			return err
		}
		if life != at.life || len(c.batch.Items) == 0 {
			return nil
		}
		for _, item := range c.batch.Items {
			if err := count(item); err != nil {
				return err
			}
			at.offset = item.Offset
		}
	}
	return nil
}

// countMark counts the mark at a place of the log of marks, if its dead letter is counted.
func (c *Counts) countMark(ctx context.Context, item store.Item) error {
	e, err := item.Record.Event(item.Offset)
	if err != nil {
		return err
	}
	var mark admin.RedriveMark
	if json.Unmarshal(e.Payload, &mark) != nil || !slices.Contains(e.CausedBy, mark.DeadLetterID) {
		return nil // of an import
	}
	l := c.logs[mark.DeadLetter.Topic]
	if l == nil {
		return nil
	}
	offset, err := c.letters.store.Find(ctx, mark.DeadLetter.Topic, mark.DeadLetterID)
	switch {
	case errors.Is(err, store.ErrNotFound):
		return nil
	case err != nil:
		return store.Failed(err, "find event %q", mark.DeadLetterID)
	case offset > l.offset:
		return nil // it counts when its dead letter is read
	}
	letter, err := past.First(ctx, c.letters.store, mark.DeadLetter.Topic, offset)
	if err != nil {
		return err
	}
	p, _, err := payloadOf(mark.DeadLetter.Topic, letter)
	if p == nil || letter.Offset != offset || l.Groups[p.Group] == nil {
		return err
	}
	x := l.letter(offset)
	if x == nil {
		return nil
	}
	g, again := x.group, mark.RequeuedAs == ""
	if again {
		if err := c.wait(ctx, g, p, e.ID); err != nil {
			return err
		}
	}
	*g.counter(x.redriven, x.requeued)--
	x.redriven, x.requeued = x.redriven || again, x.requeued || !again
	*g.counter(x.redriven, x.requeued)++
	return nil
}

// marksOf reports which marks a dead letter has up to a place of their log.
func (c *Counts) marksOf(ctx context.Context, letter string, until uint64) (redriven, requeued bool, _ error) {
	if until == 0 {
		return false, false, nil
	}
	after := store.Place{}
	for {
		places, err := c.letters.markPlaces(ctx, letter, after, admin.MaxRedriveMarks)
		if err != nil {
			return false, false, err
		}
		for _, after = range places {
			if after.Offset > until {
				return redriven, requeued, nil
			}
			_, mark, err := c.letters.mark(ctx, letter, after)
			switch {
			case err != nil:
				return false, false, err
			case mark == nil:
			case mark.RequeuedAs == "":
				return true, requeued, nil // nothing else counts then
			default:
				requeued = true
			}
		}
		if len(places) < admin.MaxRedriveMarks {
			return redriven, requeued, nil
		}
	}
}

// counter is where a dead letter with such marks counts.
func (g *Group) counter(redriven, requeued bool) *uint64 {
	switch {
	case redriven:
		return &g.redriven
	case requeued:
		return &g.requeued
	}
	return &g.open
}

// States says in which states they are.
func (g *Group) States() admin.DeadLetterCounts {
	waiting := min(uint64(len(g.waiting)), g.redriven) // some of their dead letters may have been removed
	return admin.DeadLetterCounts{Open: g.open, Redriven: waiting, Done: g.redriven - waiting, Requeued: g.requeued}
}
