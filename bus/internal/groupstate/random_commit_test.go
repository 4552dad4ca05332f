package groupstate

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"pgregory.net/rapid"
)

// What the world does in commits: steps, redriven events, and what the store keeps.

// letters begins the steps of dead letters, or makes none.
func (w *world) letters() {
	list := w.g.TakeLetters(nil, w.pick(5, "letters")+1)
	for i, l := range list {
		e := w.find(l.Offset)
		if e == nil || e.state != isDying || e.inCommit || l.Reason == "" {
			w.fail("a letter of %d, %q: it is %+v", l.Offset, l.Reason, e)
		}
		entry := w.g.Find(l.Offset)
		if w.isGone(l.Offset) {
			w.settleGone(e, entry)
			continue
		}
		switch w.pick(8, "letter") {
		case 0:
			w.g.ReturnLetters(list[i : i+1])
		case 1:
			w.g.Abandon(entry, w.now)
			w.expect(settledEvent{offset: l.Offset, how: Abandoned})
			w.finish(e)
			w.endGaps(e.offset)
		case 2:
			w.letterNotMade(e)
		default:
			w.steps = append(w.steps, &modelStep{Step: w.g.BeginLetter(entry), events: []*modelEvent{e}})
		}
	}
}

func (w *world) letterNotMade(e *modelEvent) {
	if at := w.g.LetterNotMade(e.offset, w.now); at != w.now+60_000 {
		w.fail("the last attempt of %d is due at %d; it is %d", e.offset, at, w.now)
	}
	w.wait(e, w.now+60_000)
	e.attempts = max(e.attempts-1, 0)
}

func (w *world) beginAcks() {
	s := &modelStep{late: make(map[*modelEvent]bool)}
	var entries []*Entry
	for range rapid.IntRange(1, 3).Draw(w.t, "acks") {
		e, entry := w.draw()
		if e == nil || !counts(e) || slices.Contains(s.events, e) {
			continue
		}
		s.events, entries = append(s.events, e), append(entries, entry)
	}
	if len(entries) == 0 {
		return
	}
	slices.SortFunc(entries, func(a, b *Entry) int { return cmp.Compare(a.offset, b.offset) })
	for _, e := range s.events {
		if s.late[e] = e.state == isWaiting; s.late[e] {
			e.holder.room++
		}
		e.state, e.stored, e.taken = inStep, -1, false
	}
	s.Step = w.g.BeginAcks(entries)
	w.steps = append(w.steps, s)
}

// release ends a step of acks that was not submitted.
func (w *world) release() {
	for i, s := range w.steps {
		if !s.letter {
			w.steps = slices.Delete(w.steps, i, i+1)
			w.g.Release(&s.Step, w.now)
			w.releases(s)
			return
		}
	}
}

func (w *world) releases(s *modelStep) {
	if s.void {
		return
	}
	for _, e := range s.events {
		switch {
		case s.late[e]:
			w.wait(e, e.at)
		case e.at > w.now && e.holder.keeps:
			e.state, e.inCommit = isLeased, false
		default:
			e.attempts--
			w.wait(e, w.now)
		}
	}
}

// beginCommit builds a commit of some steps and some redriven events.
func (w *world) beginCommit() {
	if w.commit != nil {
		return
	}
	c := &modelCommit{}
	n := w.pick(len(w.steps)+1, "steps of the commit")
	for _, s := range w.steps[:n] {
		if ok := w.g.Enter(&s.Step); ok == s.void {
			w.fail("Enter of %v: %t", s.Offsets(), ok)
		} else if !ok {
			continue
		}
		for _, e := range s.events {
			e.inCommit = true
		}
		c.steps = append(c.steps, s)
	}
	w.steps = w.steps[n:]
	if len(c.steps) == 0 && w.pick(2, "redrive") == 0 {
		for offset, l := range w.sortedLog() {
			isDone := offset < w.next && w.window[offset] == nil || w.done[offset]
			if w.g.IsDone(offset) != isDone || w.g.IsSettled(offset) != (isDone && w.list[offset] == nil) {
				w.fail("IsDone(%d) is %t", offset, w.g.IsDone(offset))
			}
			if isDone && w.list[offset] == nil && l.passes && rapid.IntRange(0, 3).Draw(w.t, "redrive it") == 0 {
				e := &modelEvent{offset: offset, state: isBeingAdded, times: rapid.IntRange(1, 300).Draw(w.t, "times"), mark: fmt.Sprint("m", w.serial, offset), stored: -1}
				key := ""
				if w.byKey {
					key = l.key
				}
				c.listed = append(c.listed, w.g.List(offset, e.times, e.mark, key))
				e.times = min(e.times, MaxRedrives)
				w.list[offset] = e
				c.added = append(c.added, e)
			}
		}
	}
	c.state = w.durable()
	cursor := w.g.Cursor()
	if len(c.steps) > 0 {
		cursor = w.g.CursorAfterCommit()
	}
	if cursor != c.state.cursor {
		w.fail("the cursor of the commit is %d; want %d", cursor, c.state.cursor)
	}
	w.dirty = false
	var more bool
	if c.parts, c.reset, more = w.g.Parts(cursor); more {
		w.fail("there are more parts")
	}
	w.commit, w.wrote = c, c.state
}

func (w *world) sortedLog() func(yield func(uint64, *logged) bool) {
	return func(yield func(uint64, *logged) bool) {
		for _, offset := range slices.Sorted(maps.Keys(w.log)) {
			if !yield(offset, w.log[offset]) {
				return
			}
		}
	}
}

// endCommit says what became of the commit.
func (w *world) endCommit() {
	c := w.commit
	if c == nil {
		return
	}
	w.commit = nil
	if len(c.steps)+len(c.listed) > 0 && w.pick(3, "refused") == 0 {
		w.refuse(c)
		return
	}
	w.apply(c)
	for _, s := range c.steps {
		how := Acked
		if s.letter {
			how = DeadLettered
		}
		w.g.Committed(&s.Step, w.now)
		for _, e := range s.events {
			switch {
			case !s.void && how == Acked:
				w.expectAck(e)
				w.finish(e)
				w.endGaps(e.offset)
			case !s.void:
				w.expect(settledEvent{offset: e.offset, how: how})
				w.finish(e)
				w.endGaps(e.offset)
			case w.list[e.offset] == e && e.state == isBeingAdded:
				w.expect(settledEvent{offset: e.offset, how: map[bool]Ending{true: LateLetter, false: Passed}[s.letter]})
				w.finish(e)
			}
		}
	}
	w.g.ListCommitted(c.listed, true)
	for _, e := range c.added {
		if w.list[e.offset] == e && e.state == isBeingAdded {
			w.revive(e)
		}
	}
}

// apply makes a commit durable.
func (w *world) apply(c *modelCommit) {
	if c.reset {
		clear(w.parts)
	}
	for _, p := range c.parts {
		if key := [2]uint64{uint64(p.Kind), p.Offset}; len(p.Value) == 0 {
			delete(w.parts, key)
		} else {
			w.parts[key] = p
		}
	}
	w.stored = c.state
	w.known(c.state)
}

func (w *world) refuse(c *modelCommit) {
	for _, s := range c.steps {
		if ok := w.g.Withdraw(&s.Step, w.now); ok == s.void {
			w.fail("Withdraw of %v: %t", s.Offsets(), ok)
		}
		for _, e := range s.events {
			switch {
			case !s.void:
				e.inCommit = false
			case w.list[e.offset] == e && e.state == isBeingAdded:
				w.revive(e)
			}
		}
		switch {
		case s.void:
		case rapid.Bool().Draw(w.t, "alone"): // it is tried again
			w.steps = append(w.steps, s)
		case s.letter:
			w.letterNotMade(s.events[0])
		default:
			w.g.Release(&s.Step, w.now)
			w.releases(s)
		}
	}
	if len(c.listed) > 0 {
		w.g.ListCommitted(c.listed, false)
		w.g.Rewrite()
		for _, e := range c.added {
			if w.list[e.offset] == e && e.state == isBeingAdded {
				delete(w.list, e.offset)
			}
		}
	}
	w.wrote = nil // all is to be written again
}
