package bus

import (
	"context"
	"reflect"
	"slices"

	"pgregory.net/rapid"

	"eventhub"
	"eventhub/admin"
)

// Lists of dead letters in the histories: the model knows which there are, and in what state.

// class says why the event of a dead letter is not put on the list, "" where it is.
func (g *modelGroup) class(d *admin.DeadLetter) string {
	if g.exists && (d.Epoch < g.firstEpoch || d.Epoch > g.epoch) {
		return skipNoGroup
	}
	offset := d.Event
	if e := g.again[offset]; e != nil {
		if e.state == modelDying || e.redrive.unsure {
			return unknowable
		}
		return skipWaiting
	}
	e := g.events[offset]
	switch {
	case !g.exists:
		return skipNoGroup
	case offset <= g.base, e == nil && g.restored[offset].state == modelDone, e != nil && e.state == modelDone:
		return ""
	case e == nil && !g.passes(offset), e != nil && e.state == modelDying:
		return unknowable // was it read, and is it dead-lettered?
	}
	return skipOpen
}

// drawDeadLetters draws a query. With a commit held up it is of one group: between two
// of them a redrive may wait for its rate.
func (w *world) drawDeadLetters() (q admin.DeadLetterQuery, ok bool) {
	var topics []string
	for _, topic := range w.topics {
		if len(w.rows[topic.name]) > 0 {
			topics = append(topics, topic.name)
		}
	}
	if len(topics) == 0 {
		return q, false
	}
	q.Topic = rapid.SampledFrom(topics).Draw(w.t, "of")
	rows := w.rows[q.Topic]
	if rapid.Bool().Draw(w.t, "by the topic") {
		q.Topic = w.topic(q.Topic).source.name
	}
	if w.commits != nil || rapid.IntRange(0, 3).Draw(w.t, "one group") == 0 {
		q.Group = rapid.SampledFrom(groupNames).Draw(w.t, "whose")
	}
	q.All = rapid.IntRange(0, 2).Draw(w.t, "all") == 0
	draw := func(what string) *admin.DeadLetter { return rows[rapid.IntRange(0, len(rows)-1).Draw(w.t, what)] }
	switch rapid.IntRange(0, 9).Draw(w.t, "which") {
	case 0, 1:
		for range rapid.IntRange(1, 3).Draw(w.t, "offsets") {
			q.Offsets = append(q.Offsets, draw("offset").Offset)
		}
	case 2, 3:
		for range rapid.IntRange(1, 3).Draw(w.t, "ids") {
			q.IDs = append(q.IDs, draw("id").ID)
		}
		if rapid.Bool().Draw(w.t, "offset too") {
			q.Offsets = append(q.Offsets, draw("offset").Offset)
		}
	case 4:
		q.After = draw("after").Offset
	case 5:
		q.Filter = &eventhub.Filter{Key: "k*"}
	case 6:
		q.FromTS = draw("from").TS
	case 7:
		q.ToTS = draw("to").TS + 1
	}
	q.Limit = rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(w.t, "limit")
	return q, true
}

// matched returns copies of the rows that a query means.
func (w *world) matched(q *admin.DeadLetterQuery) (list []admin.DeadLetter) {
	topic := q.Topic
	if !eventhub.IsDeadLetterTopic(topic) {
		topic = eventhub.DeadLetterTopic(topic)
	}
	for _, d := range w.rows[topic] {
		named := len(q.Offsets)+len(q.IDs) == 0 || slices.Contains(q.Offsets, d.Offset) || slices.Contains(q.IDs, d.ID)
		if !named || q.Group != "" && d.Group != q.Group || len(d.Marks) > 0 && !q.All || d.Offset <= q.After || d.TS < q.FromTS ||
			q.ToTS != 0 && d.TS >= q.ToTS || q.Filter != nil && (d.Key == "" || d.Key[0] != 'k') {
			continue
		}
		kept := *d
		kept.Marks = slices.Clone(d.Marks)
		kept.State, _ = w.stateOf(d)
		if list = append(list, kept); len(list) == q.Limit {
			break
		}
	}
	return list
}

// checkDeadLetters holds what a query is answered against the rows.
func (w *world) checkDeadLetters(q admin.DeadLetterQuery, want []admin.DeadLetter) {
	var list []admin.DeadLetter
	err := w.bus.DeadLetters(context.Background(), q, func(d *admin.DeadLetter) error {
		kept := *d
		kept.Record = nil
		list = append(list, kept)
		return nil
	})
	for i := range min(len(list), len(want)) {
		over := []string{admin.LetterRedriven, admin.LetterDone}
		if _, sure := w.stateOf(&want[i]); !sure && slices.Contains(over, list[i].State) && slices.Contains(over, want[i].State) {
			list[i].State = want[i].State
		}
	}
	if err != nil || !reflect.DeepEqual(list, want) {
		w.t.Fatalf("dead letters of %+v: %+v, %v; want %+v", q, list, err, want)
	}
}

// stateOf says in which state a dead letter is. It is not sure whether a redrive is over
// while the event is being dead-lettered, or a commit is held up that may have its ack.
func (w *world) stateOf(d *admin.DeadLetter) (state string, sure bool) {
	mark := w.lastRedrive[d.ID]
	switch {
	case len(d.Marks) == 0:
		return admin.LetterOpen, true
	case mark == "":
		return admin.LetterRequeued, true
	}
	e := w.group(d.Topic, d.Group).again[d.Event]
	if e == nil || e.redrive.mark != mark {
		return admin.LetterDone, w.commits == nil
	}
	return admin.LetterRedriven, w.commits == nil && e.state != modelDying && !e.redrive.unsure
}

// checkLetterCounts holds what is counted of dead letters against the rows.
func (w *world) checkLetterCounts() {
	if w.commits != nil || w.reads != nil || len(w.redriving) > 0 || len(w.rows) == 0 {
		return
	}
	want, unsure := make(map[string]admin.DeadLetterCounts), make(map[string]uint64)
	for dlq, rows := range w.rows {
		for _, d := range rows {
			key := dlq + "::" + d.Group
			c := want[key]
			state, sure := w.stateOf(d)
			switch state {
			case admin.LetterOpen:
				c.Open++
			case admin.LetterRequeued:
				c.Requeued++
			case admin.LetterDone:
				c.Done++
			case admin.LetterRedriven:
				c.Redriven++
			}
			if !sure {
				unsure[key]++
			}
			want[key] = c
		}
	}
	list, err := w.bus.DeadLetterTopics(context.Background(), "", admin.MaxPage)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, t := range list {
		for _, g := range t.Groups {
			key := t.DLQ + "::" + g.Group
			c := want[key]
			delete(want, key)
			if over := g.Done - c.Done; over <= unsure[key] { // of those that may be over
				c.Done, c.Redriven = c.Done+over, c.Redriven-over
			}
			if g.DeadLetterCounts != c {
				w.t.Fatalf("of %s are counted %+v; want %+v", key, g.DeadLetterCounts, c)
			}
			redrives.counted++
		}
	}
	if len(want) > 0 {
		w.t.Fatalf("not counted: %+v, of %+v", want, list)
	}
}

// times counts the redrives of a dead letter's event, with the one to come.
func times(d *admin.DeadLetter) int {
	n := d.Redriven
	for _, m := range d.Marks {
		n = max(n, m.Redriven)
	}
	return n + 1
}

// letterCame notes that an event has its dead letter.
func (w *world) letterCame(l *modelLetter) {
	if l.event == nil || l.event.redrive == nil {
		return
	}
	redrives.letters++
	r, g := l.event.redrive, l.group
	switch on := g.again[r.offset] == l.event; {
	case on && r.unsure:
		g.move(l.event, modelDone)
		g.past[r.mark] = true
	case on && l.event.state != modelDying:
		w.t.Fatalf("%s has a dead letter of %d, which goes on: %+v", g, r.offset, l.event)
	}
}
