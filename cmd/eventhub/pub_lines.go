package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"

	"eventhub"
	"eventhub/client"
	"eventhub/cmd/eventhub/internal/input"
	"eventhub/cmd/eventhub/internal/output"
)

// maxFlights bounds the chunks of lines that are read and not yet reported, and
// with it the memory.
const maxFlights = 16

// flight is one chunk of lines on its way: lines[i] came to errs[i], or became
// the publication at[i]. done is closed when every publication has its outcome.
type flight struct {
	lines []input.Line
	errs  []error
	at    []int
	pubs  []eventhub.Publication
	done  chan struct{}
}

// lineSender publishes the lines of an input. Three goroutines pass chunks on:
// one reads, one (send) makes events and enqueues them, one (report) waits for the
// outcomes in the order of the lines and reports them. Only the reader may hang, on
// an input that says nothing, and then stays.
type lineSender struct {
	*publishing
	client *client.Client
	notes  io.Writer
	bar    *progressbar.ProgressBar // nil: no progress is shown

	out  *output.Results
	rows *output.Rows[published] // nil: receipts are not printed

	flights chan *flight
	stop    context.CancelCauseFunc // nothing more is to be sent

	// Of report, until it has ended.
	tally    tally
	firstBad error
	broken   error // the results can not be written
}

// tally counts what became of the lines.
type tally struct {
	published, scheduled, duplicates, refused, open int

	last int // the last line that was reported
}

func (t *tally) String() string {
	parts := []string{"published " + output.Things(t.published, "event")}
	if t.scheduled > 0 && t.published == 0 {
		parts = []string{"scheduled " + output.Things(t.scheduled, "event")}
	} else if t.scheduled > 0 {
		parts = append(parts, output.Count(t.scheduled)+" scheduled")
	}
	if t.duplicates > 0 {
		parts = append(parts, output.Things(t.duplicates, "duplicate"))
	}
	if t.refused > 0 {
		parts = append(parts, output.Count(t.refused)+" refused")
	}
	if t.open > 0 {
		parts = append(parts, output.Count(t.open)+" without an answer, published or not")
	}
	return strings.Join(parts, ", ")
}

// add counts an event that the hub has taken.
func (t *tally) add(r eventhub.Receipt) {
	switch {
	case r.Duplicate:
		t.duplicates++
	case !r.DeliverAt.IsZero():
		t.scheduled++
	default:
		t.published++
	}
}

// errStrict is why --strict stops.
var errStrict = errors.New("--strict")

func (p *publishing) publishLines(cmd *cobra.Command) error {
	c, err := p.dial(cmd)
	if err != nil {
		return err
	}
	defer c.Close()
	s := &lineSender{publishing: p, client: c, notes: cmd.ErrOrStderr(), out: results(cmd), flights: make(chan *flight, maxFlights)}
	if p.format.Format != "" {
		s.rows = receiptRows(p.format.Format, s.out.Color)
	}
	if output.IsTerminal(s.notes) && (s.rows == nil || !s.out.Terminal) {
		s.bar = newProgress(s.notes)
	}
	ctx, stop := context.WithCancelCause(cmd.Context())
	s.stop = stop
	defer stop(nil)
	var reporting sync.WaitGroup
	reporting.Go(s.report)
	late, done := lingering(ctx)
	defer done()
	err = s.send(ctx, late, cmd.InOrStdin())
	close(s.flights)
	reporting.Wait()
	return s.conclude(ctx, err)
}

func newProgress(w io.Writer) *progressbar.ProgressBar {
	bar := progressbar.NewOptions(-1, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription("publishing"),
		progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetItsString("events"), progressbar.OptionShowTotalBytes(false),
		progressbar.OptionSetSpinnerChangeInterval(0), progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionClearOnFinish())
	bar.StartWithoutRender() // rates count from here
	return bar
}

// send reads until the input ends (nil) or ctx does, and returns why it ended
// before. What is on its way then may still arrive while late lasts.
func (s *lineSender) send(ctx, late context.Context, in io.Reader) error {
	chunks := input.Chunks(ctx, in)
	for ctx.Err() == nil {
		select {
		case chunk := <-chunks:
			s.sendChunk(ctx, late, chunk.Lines)
			if errors.Is(chunk.Err, io.EOF) {
				return nil
			}
			if chunk.Err != nil {
				return fmt.Errorf("read standard input: %w", chunk.Err)
			}
		case <-ctx.Done():
		}
	}
	return context.Cause(ctx)
}

func (s *lineSender) sendChunk(ctx, late context.Context, lines []input.Line) {
	if !s.strict {
		s.launch(late, lines)
		return
	}
	for i := range lines {
		if ctx.Err() != nil {
			return
		}
		f := s.launch(late, lines[i:i+1])
		<-f.done
		if f.failed() {
			s.stop(errStrict)
		}
	}
}

func (f *flight) failed() bool {
	for _, err := range f.errs {
		if err != nil {
			return true
		}
	}
	for i := range f.pubs {
		if f.pubs[i].Err != nil {
			return true
		}
	}
	return false
}

// launch makes events of the lines and enqueues them; it waits while too many are
// under way.
func (s *lineSender) launch(ctx context.Context, lines []input.Line) *flight {
	f := &flight{lines: lines, errs: make([]error, len(lines)), at: make([]int, len(lines)), done: make(chan struct{})}
	events := make([]eventhub.Event, 0, len(lines))
	for i := range lines {
		event, skip, err := s.eventOf(&lines[i])
		f.at[i], f.errs[i] = -1, err
		if err == nil && !skip {
			f.at[i] = len(events)
			events = append(events, event)
		}
	}
	receipts := make([]eventhub.Receipt, len(events))
	f.pubs = make([]eventhub.Publication, len(events))
	for i := range events {
		f.pubs[i] = eventhub.Publication{Events: events[i : i+1], Receipts: receipts[i : i : i+1]}
	}
	s.flights <- f
	s.client.Enqueue(ctx, f.pubs, func([]eventhub.Publication) { close(f.done) })
	return f
}

// eventOf makes the event of a line. skip is true for a line that means nothing.
func (p *publishing) eventOf(line *input.Line) (event eventhub.Event, skip bool, err error) {
	if line.TooLong {
		return event, false, fmt.Errorf("longer than %d MiB", input.MaxLine>>20)
	}
	if !p.asString && len(strings.TrimSpace(string(line.Text))) == 0 {
		return event, true, nil
	}
	if p.events {
		if event, err = input.Event(line.Text); err != nil {
			return event, false, err
		}
		if p.topic != "" {
			event.Topic = p.topic
		}
		if event.Topic == "" {
			return event, false, errors.New("no topic: neither in the line nor as TOPIC")
		}
		return event, false, nil
	}
	event = p.event
	event.Payload, err = input.Payload(line.Text, p.asString)
	if err != nil && !p.asString {
		err = fmt.Errorf("%w; --string sends lines as text", err)
	}
	return event, false, err
}

// report says what became of the lines, in their order, until flights is closed.
// Where nobody takes the receipts the publishing goes on: that is the work.
func (s *lineSender) report() {
	for f := range s.flights {
		<-f.done
		var out []byte
		for i := range f.lines {
			out = s.tellLine(out, f, i)
		}
		if s.bar != nil {
			_ = s.bar.Add(len(f.pubs)) // a terminal that is gone shows elsewhere
		}
		if len(out) == 0 || s.broken != nil {
			continue
		}
		_, s.broken = s.out.Write(out)
	}
	if s.bar != nil {
		_ = s.bar.Finish()
	}
	if s.rows != nil && s.broken == nil {
		_, s.broken = s.out.Write(s.rows.End(nil))
	}
}

func (s *lineSender) tellLine(out []byte, f *flight, i int) []byte {
	number := f.lines[i].Number
	s.tally.last = number
	if f.errs[i] != nil {
		s.tally.refused++
		s.complain(number, f.errs[i])
		return out
	}
	if f.at[i] < 0 {
		return out
	}
	pub := &f.pubs[f.at[i]]
	if pub.Err != nil {
		if isOpen(pub.Err) {
			s.tally.open++
		} else {
			s.tally.refused++
		}
		s.complain(number, pub.Err)
		return out
	}
	r := pub.Receipts[0]
	s.tally.add(r)
	if s.rows != nil {
		done := newPublished(pub.Events[0].Topic, r)
		done.Line = number
		out, _ = s.rows.Append(out, done) // plain values
	}
	return out
}

// complain reports a line that was not published. Where the client itself has
// ended there is no sense in going on.
func (s *lineSender) complain(number int, err error) {
	if s.firstBad == nil {
		s.firstBad = err
	}
	code := eventhub.ErrorCode(err)
	if errors.Is(err, client.ErrClosed) || code.Denied() && code != eventhub.CodeForbidden {
		s.stop(err)
	}
	if s.bar != nil {
		_ = s.bar.Clear()
	}
	fmt.Fprintf(s.notes, "eventhub: line %d: %s\n", number, strings.TrimPrefix(oneLine(err.Error()), "publish: "))
}

// conclude sums up, on standard error where all went well and as an error
// otherwise.
func (s *lineSender) conclude(ctx context.Context, err error) error {
	switch {
	case s.broken != nil && !errors.Is(s.broken, output.ErrClosed):
		return fmt.Errorf("%w; %s", s.broken, &s.tally)
	case errors.Is(context.Cause(ctx), errStrict): // also in the last line
		return summary{fmt.Sprintf("stopped at line %d: %s", s.tally.last, &s.tally), s.firstBad}
	case errors.Is(err, context.Canceled):
		return summary{fmt.Sprintf("interrupted after line %d: %s", s.tally.last, &s.tally), s.firstBad}
	case s.firstBad != nil:
		return summary{s.tally.String(), s.firstBad}
	case err != nil:
		return fmt.Errorf("%w; %s", err, &s.tally)
	}
	fmt.Fprintln(s.notes, &s.tally)
	return nil
}

// summary is an error that sums up others, which were reported before. The first of
// them, if any, decides the exit code.
type summary struct {
	text  string
	first error
}

func (s summary) Error() string { return s.text }
func (s summary) Unwrap() error { return s.first }
