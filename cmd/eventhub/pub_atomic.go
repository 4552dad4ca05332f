package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"

	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

// What an atomic batch is read up to. What a hub takes in one frame is less, and
// is reported when it is sent.
const (
	maxBatchEvents = 10_000
	maxBatchBytes  = 16 << 20
)

// atomicBatch is all lines of standard input, which become one publication.
type atomicBatch struct {
	*publishing
	events []eventhub.Event
	lines  []int // their numbers
	bytes  int
	bad    int // lines that are no events
	first  error
}

// publishAtomic publishes all lines of standard input together, or none.
func (p *publishing) publishAtomic(cmd *cobra.Command) error {
	c, err := p.dial(cmd, client.WithoutReconnect())
	if err != nil {
		return err
	}
	defer c.Close()
	ctx := cmd.Context()
	b, err := p.readBatch(ctx, cmd.InOrStdin(), cmd.ErrOrStderr())
	if err != nil {
		return fmt.Errorf("nothing was published: %w", err)
	}
	if b.bad > 0 {
		return summary{fmt.Sprintf("nothing was published: %s bad", are(b.bad, "line")), b.first}
	}
	var receipts []eventhub.Receipt
	if len(b.events) > 0 {
		receipts, err = p.publish(ctx, c, b.events...)
	}
	switch {
	case err != nil && isOpen(err):
		return fmt.Errorf("it is not known whether the %s were published, all of them or none: %w", output.Things(len(b.events), "event"), err)
	case err != nil && !isLate(err):
		return summary{"nothing was published: " + b.inLines(err), err}
	}
	var t tally
	for _, r := range receipts {
		t.add(r)
	}
	if printed := b.print(cmd, receipts); printed != nil {
		return errors.Join(fmt.Errorf("%w; %s", printed, &t), err)
	}
	if err != nil {
		return fmt.Errorf("the %s are published, and not done: %w", output.Things(len(b.events), "event"), err)
	}
	fmt.Fprintln(cmd.ErrOrStderr(), &t)
	return nil
}

// are says of how many things something is true.
func are(n int, thing string) string {
	if n == 1 {
		return "1 " + thing + " is"
	}
	return output.Things(n, thing) + " are"
}

// readBatch reads to the end of the input. Bad lines are reported; an error is the end
// of it all. The reader may hang, on an input that says nothing, and then stays.
func (p *publishing) readBatch(ctx context.Context, in io.Reader, notes io.Writer) (*atomicBatch, error) {
	b := &atomicBatch{publishing: p}
	chunks := input.Chunks(ctx, in)
	for {
		select {
		case chunk := <-chunks:
			for i := range chunk.Lines {
				if err := b.add(&chunk.Lines[i], notes); err != nil {
					return nil, err
				}
			}
			if errors.Is(chunk.Err, io.EOF) {
				return b, nil
			}
			if chunk.Err != nil {
				return nil, fmt.Errorf("read standard input: %w", chunk.Err)
			}
		case <-ctx.Done():
			return nil, errors.New("interrupted")
		}
	}
}

// add takes one line. An error says that there are too many.
func (b *atomicBatch) add(line *input.Line, notes io.Writer) error {
	event, skip, err := b.eventOf(line)
	if err == nil && !skip {
		err = validate(&event)
	}
	if err == nil && eventhub.HubOnlyTopic(event.Topic) { // the hub would not say which
		err = eventhub.Errorf(eventhub.CodeForbidden, "topic %q is published by the hub alone", event.Topic)
	}
	if err != nil {
		b.bad++
		if b.first == nil {
			b.first = err
		}
		fmt.Fprintf(notes, "eventhub: line %d: %s\n", line.Number, oneLine(err.Error()))
		return nil
	}
	if skip {
		return nil
	}
	b.bytes += len(event.Payload)
	switch {
	case len(b.events) == maxBatchEvents:
		return fmt.Errorf("line %d: --atomic takes at most %d events", line.Number, maxBatchEvents)
	case b.bytes > maxBatchBytes:
		return fmt.Errorf("line %d: --atomic takes at most %d MiB", line.Number, maxBatchBytes>>20)
	}
	b.events = append(b.events, event)
	b.lines = append(b.lines, line.Number)
	return nil
}

// place is how errors of a batch name an event, from 0.
var place = regexp.MustCompile(`events\[(\d+)\]`)

// inLines writes an error with the number of the line in place of the event's.
func (b *atomicBatch) inLines(err error) string {
	return place.ReplaceAllStringFunc(oneLine(err.Error()), func(found string) string {
		at, err := strconv.Atoi(place.FindStringSubmatch(found)[1])
		if err != nil || at >= len(b.lines) {
			return found
		}
		return "line " + strconv.Itoa(b.lines[at])
	})
}

// print prints the receipts where -o asks for them.
func (b *atomicBatch) print(cmd *cobra.Command, receipts []eventhub.Receipt) error {
	if b.format.Format == "" {
		return nil
	}
	out := results(cmd)
	rows := receiptRows(b.format.Format, out.Color)
	var text []byte
	for i, r := range receipts {
		done := newPublished(b.events[i].Topic, r)
		done.Line = b.lines[i]
		text, _ = rows.Append(text, done) // plain values
	}
	_, err := out.Write(rows.End(text))
	return err
}
