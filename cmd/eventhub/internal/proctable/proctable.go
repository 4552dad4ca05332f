// Package proctable shows the states of processes as they come: on a terminal
// as a live table, elsewhere as one line per state. The demo command calls
// [Run]; nothing else does.
//
// It follows process.state in a group of its own, acking on delivery: what it
// shows is for the eye and need not survive it. Whatever comes with an event is
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

// DefaultGroup is the consumer group of a table that does not say. Two tables
// in one group would get half of the states each.
const DefaultGroup = "process-table"

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
	// Group is the consumer group; DefaultGroup if empty. It begins with the
	// states published from now on, and goes on where it was afterwards.
	Group string
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
	return run(ctx, sub, opts.Group, d)
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

func run(ctx context.Context, sub eventhub.Subscriber, group string, d display) (err error) {
	if group == "" {
		group = DefaultGroup
	}
	in := inbox.New(inboxRoom)
	membership, err := sub.Subscribe(ctx, eventhub.GroupOptions{
		Topic: process.StateTopic, Group: group, AutoAck: true,
	}, in)
	if err != nil {
		return fmt.Errorf("follow %s: %w", process.StateTopic, err)
	}
	defer func() {
		// Leaving must not fail because ctx has ended: that is why we leave.
		if leaveErr := membership.Unsubscribe(context.WithoutCancel(ctx)); err == nil {
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
	return follow(ctx, in, membership, d)
}

// follow shows what comes in until something ends.
func follow(ctx context.Context, in *inbox.Inbox, membership eventhub.Subscription, d display) error {
	redraw := time.NewTicker(redrawEvery)
	defer redraw.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-in.Over():
			return fmt.Errorf("follow %s: %w", process.StateTopic, err)
		case <-in.Arrived():
			batch := in.Take(membership)
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
	kind  kind
	key   string
	at    int64         // commit time, epoch ms
	state process.State // of kind changed
}

type kind uint8

const (
	unreadable kind = iota // not a state: counted, not shown
	changed
	removed // the payload is null
)

// read never fails: whoever may publish may publish anything.
func read(d *eventhub.Delivery) update {
	e, err := d.Event()
	if err != nil || e.Key == "" {
		return update{}
	}
	u := update{kind: changed, key: e.Key, at: e.CommitTime().UnixMilli()}
	if string(e.Payload) == "null" {
		u.kind = removed
		return u
	}
	if err := json.Unmarshal(e.Payload, &u.state); err != nil {
		return update{}
	}
	if u.state.Status != process.Alive && u.state.Status != process.Stale {
		return update{}
	}
	return u
}
