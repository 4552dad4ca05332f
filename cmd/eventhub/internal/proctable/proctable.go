// Package proctable shows the states of processes as they come: on a terminal
// as a live table, elsewhere as one line per state. The demo command calls
// [Run]; nothing else does.
//
// It follows process.state by a live tail that begins with the state: all processes that are known
// are there at once, and nothing of the table has to survive it. Whatever comes with an event is
// shown as text only: control characters never reach the terminal.
//
// One goroutine, the caller's, reads, keeps and shows. The hub is never kept
// waiting by a slow terminal; deliveries that do not fit stay with the hub.
package proctable

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"

	"eventhub"
	"eventhub/internal/demo/inbox"
	"eventhub/internal/demo/process"
)

const (
	// redrawEvery bounds how often the live table is drawn.
	redrawEvery = 250 * time.Millisecond
	// inboxRoom is how many deliveries wait in memory for a slow terminal.
	inboxRoom = 1024
)

// Options say what to show besides the states.
type Options struct {
	// Hubs are the addresses in the live table's first line.
	Hubs []string
}

// Run shows states on out until ctx ends, when it returns nil, or until the
// subscription ends or out fails, with the reason. A terminal is left as it was
// found either way; nothing else should write to it meanwhile. TERM=dumb asks
// for lines, NO_COLOR for a table without emphasis.
func Run(ctx context.Context, sub eventhub.Subscriber, out io.Writer, opts Options) error {
	var d display = &lines{out: out}
	if size := terminal(out); size != nil && os.Getenv("TERM") != "dumb" {
		d = newScreen(out, size, opts.Hubs, os.Getenv("NO_COLOR") == "")
	}
	return run(ctx, sub, d)
}

// terminal returns how to learn the size of the terminal at out, in columns
// and rows, or nil where there is none.
func terminal(out io.Writer) func() (width, height int) {
	file, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return nil
	}
	return func() (int, int) {
		width, height, err := term.GetSize(int(file.Fd()))
		if err != nil || width <= 0 || height <= 0 {
			return 80, 24
		}
		return width, height
	}
}

// display is a way to show states. One goroutine uses it.
type display interface {
	// begin is called once, after which end is called, whatever happens.
	begin() error
	// show takes what one batch of events said.
	show(batch []update) error
	// tick is called every redrawEvery.
	tick(now time.Time) error
	end() error
}

func run(ctx context.Context, sub eventhub.Subscriber, d display) (err error) {
	in := inbox.New(inboxRoom)
	tail, err := sub.Tail(ctx, eventhub.TailOptions{Topic: process.StateTopic, Start: eventhub.Snapshot}, in)
	if err != nil {
		return fmt.Errorf("follow %s: %w", process.StateTopic, err)
	}
	defer func() {
		// Leaving must not fail because ctx has ended: that is why we leave.
		if leaveErr := tail.Unsubscribe(context.WithoutCancel(ctx)); err == nil {
			err = leaveErr
		}
	}()
	defer func() {
		if endErr := d.end(); err == nil {
			err = endErr
		}
	}()
	if err := d.begin(); err != nil {
		return err
	}
	return follow(ctx, in, tail, d)
}

// follow shows what comes in until something ends.
func follow(ctx context.Context, in *inbox.Inbox, tail eventhub.Subscription, d display) error {
	redraw := time.NewTicker(redrawEvery)
	defer redraw.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-in.Over():
			return fmt.Errorf("follow %s: %w", process.StateTopic, err)
		case <-in.Arrived():
			batch := in.Take(tail)
			updates := make([]update, 0, len(batch))
			for i := range batch {
				updates = append(updates, read(&batch[i]))
			}
			if err := d.show(updates); err != nil {
				return err
			}
		case <-redraw.C:
			if err := d.tick(time.Now()); err != nil {
				return err
			}
		}
	}
}

// update is what one event said.
type update struct {
	kind    kind
	key     string
	at      int64         // commit time, epoch ms
	offset  uint64        // of the event; of kind trimmed: what is below was removed
	state   process.State // of kind changed
	isState bool          // the event is of the state that came first, or comes again
	begins  bool          // … and the first one of it
}

type kind uint8

const (
	unreadable kind = iota // not a state: counted, not shown
	changed
	removed // the payload is null
	// What is not of the state that has come is not there any more.
	complete
	trimmed
)

// read never fails: whoever may publish may publish anything.
func read(d *eventhub.Delivery) update {
	var u update
	if s := d.State; s != nil {
		switch {
		case s.Complete:
			return update{kind: complete, begins: s.Count == 0}
		case s.Horizon != 0:
			return update{kind: trimmed, offset: s.Horizon}
		}
		u.isState, u.begins = true, s.Snapshot != ""
	}
	none := u
	e, err := d.Event()
	if err != nil || e.Key == "" {
		return none
	}
	u.kind, u.key, u.at, u.offset = changed, e.Key, e.CommitTime().UnixMilli(), d.Offset
	if string(e.Payload) == "null" {
		u.kind = removed
		return u
	}
	if err := json.Unmarshal(e.Payload, &u.state); err != nil {
		return none
	}
	if u.state.Status != process.Alive && u.state.Status != process.Stale {
		return none
	}
	return u
}
