// Package jetstream keeps a journal in a stream of NATS JetStream. Each entry is one message, its place
// is the sequence of the message, and Nats-Expected-Last-Sequence is the fence.
//
// # What it relies on
//
//   - The leader of the stream judges appends one after the other, and answers when a majority of the
//     replicas has the message. Reads go to the leader too (the message API without direct
//     gets), so that what is there is not missed because a replica is behind.
//   - No message goes but by Trim: limits retention, discard new, no age, no limit of messages, no
//     deletes. Open refuses a stream that is otherwise (ConfigError).
//   - The connection keeps nothing to send while it is lost: what could come out of such a buffer
//     after a minute would still be legal, but nobody waits for it.
//   - The window for duplicates is not used; messages have no ids.
//
// A server answers before its disk has the message, unless it has sync_interval: always. Only
// the operator knows that of all servers, so it is an option.
//
// Members say how they are in a stream next to it, NAME-members, with one message for each, which
// the server forgets after a week: that costs the entries no places, and reads of the last message of
// a subject go to the leader as well.
package jetstream

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"eventhub/store/journal"
)

const (
	// mostEntry is how large an entry may be, below the usual max_payload of 1 MiB.
	mostEntry = 960 << 10
	// headers is the room that is left in max_payload for subjects and headers.
	headers = 4 << 10
	// openWithin is how long Open waits for answers at most.
	openWithin = 30 * time.Second
	// answerWithin is how long one request waits that is made again then: servers that elect
	// a leader give no answer, also later.
	answerWithin = 2 * time.Second
)

// Options say where the stream is, and what it is like where Open creates it.
type Options struct {
	URL       string // of the servers, with commas between them
	Stream    string // letters, digits, - and _
	Replicas  int    // 3 where 0; a stream that is there has to have as many
	MostBytes int64  // the stream's max_bytes where it is created; no limit where 0
	// Synced is the operator's word that all servers have sync_interval: always.
	Synced bool
	// Connect are options of the connection: credentials, TLS.
	Connect []nats.Option
}

var streamName = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

// check fills in what was left out.
func (o *Options) check() error {
	if o.Replicas == 0 {
		o.Replicas = 3
	}
	switch {
	case o.URL == "":
		return errors.New("the URL of the NATS servers is missing")
	case !streamName.MatchString(o.Stream):
		return fmt.Errorf("the name of the stream is %q; it has to be 1 to 64 letters, digits, - and _", o.Stream)
	case o.Replicas < 1 || o.Replicas > 5:
		return fmt.Errorf("%d replicas: a stream has 1 to 5", o.Replicas)
	case o.MostBytes < 0:
		return fmt.Errorf("a stream of at most %d bytes", o.MostBytes)
	}
	return nil
}

// Journal is a journal in a stream.
type Journal struct {
	options Options
	conn    *nats.Conn
	js      jetstream.JetStream
	stream  jetstream.Stream // nil where Look has found none, and likewise members
	members jetstream.Stream
	denied  denials

	closed context.Context // done when Close was called
	close  context.CancelFunc
	once   sync.Once

	mu        sync.Mutex
	connected context.Context // done when the present connection is lost
	lose      context.CancelFunc
	again     error // why there is no other one yet
}

// newJournal returns a journal without a connection.
func newJournal(o Options) *Journal {
	j := &Journal{options: o}
	j.closed, j.close = context.WithCancel(context.Background())
	j.connected, j.lose = context.WithCancel(j.closed)
	return j
}

// errLost: the connection to the server was lost. Nothing more comes as an answer to what was asked over it.
var errLost = errors.New("the connection to the NATS server was lost")

var _ journal.Journal = (*Journal)(nil)

// Close implements journal.Journal.
func (j *Journal) Close() error {
	j.once.Do(func() {
		j.close() // and with it j.connected
		if j.conn != nil {
			j.conn.Close()
		}
	})
	return nil
}

// lost ends what waits for answers over the connection that was lost.
func (j *Journal) lost() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lose()
	j.connected, j.lose = context.WithCancel(j.closed)
}

// ask returns a context that also ends when the connection is lost, or the journal closed.
func (j *Journal) ask(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, done := j.call(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	j.mu.Lock()
	connected := j.connected
	j.mu.Unlock()
	stop := context.AfterFunc(connected, func() { cancel(errLost) })
	return ctx, func() {
		stop()
		cancel(nil)
		done()
	}
}

// call returns a context that also ends when the journal is closed.
func (j *Journal) call(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(j.closed, func() { cancel(journal.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// failed says what was to be done when a call failed, with errLost where its context ended by that, and
// ErrClosed where the journal is closed.
func (j *Journal) failed(ctx context.Context, what string, err error) error {
	if j.closed.Err() != nil {
		return fmt.Errorf("%s: %w", what, journal.ErrClosed)
	}
	if errors.Is(context.Cause(ctx), errLost) {
		err = errLost
	}
	if why := j.unconnected(); why != nil && !errors.Is(err, why) {
		return fmt.Errorf("%s: %w; connecting again fails: %w", what, err, why)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// notAgain notes why the connection that was lost is not there again.
func (j *Journal) notAgain(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.again = err
}

// unconnected returns why the connection that was lost is not there again; nil where it is, or is not tried yet.
func (j *Journal) unconnected() error {
	if j.conn == nil || j.conn.IsConnected() {
		return nil
	}
	if err := j.conn.LastError(); err != nil { // of a server that was reached
		return err
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.again
}

// Last implements journal.Journal.
func (j *Journal) Last(ctx context.Context) (uint64, error) {
	info, err := j.info(ctx)
	if err != nil {
		return 0, err
	}
	return info.State.LastSeq, nil
}

func (j *Journal) info(ctx context.Context) (*jetstream.StreamInfo, error) {
	ctx, done := j.ask(ctx)
	defer done()
	info, err := j.stream.Info(ctx)
	if err != nil {
		return nil, j.failed(ctx, "ask for the stream "+j.options.Stream, err)
	}
	return info, nil
}

// entryBytes is how large an entry may be at the server that is connected.
func (j *Journal) entryBytes() int {
	return min(mostEntry, int(j.conn.MaxPayload())-headers)
}

// Append implements journal.Journal.
func (j *Journal) Append(ctx context.Context, after uint64, entry []byte) error {
	if most := j.entryBytes(); len(entry) > most && j.closed.Err() == nil {
		return fmt.Errorf("an entry of %d bytes, and %d are allowed: %w", len(entry), most, journal.ErrTooLarge)
	}
	ctx, done := j.ask(ctx)
	defer done()
	ack, err := j.js.PublishMsg(ctx, &nats.Msg{Subject: entriesSubject(j.options.Stream), Data: entry},
		jetstream.WithExpectStream(j.options.Stream), jetstream.WithExpectLastSequence(after), jetstream.WithRetryAttempts(0))
	what := fmt.Sprintf("append to the stream %s after %d", j.options.Stream, after)
	switch {
	case err != nil:
		return j.failed(ctx, what, refusal(err))
	case ack.Sequence != after+1 || ack.Duplicate:
		return fmt.Errorf("%s: the server says that it is at %d (a duplicate: %t)", what, ack.Sequence, ack.Duplicate)
	}
	return nil
}

// Codes of the server for a refusal, which the client has no names for.
const (
	codeAccountResources = 10002
	codeInsufficient     = 10023
	codeMemoryResources  = 10028
	codeStorageResources = 10047
	codeStoreFailed      = 10077 // of several reasons, which are in its text
	codeThrottled        = 10167
)

// refusal adds what a definite refusal means; any other error says nothing about the outcome.
func refusal(err error) error {
	var api *jetstream.APIError
	if errors.Is(err, nats.ErrMaxPayload) {
		return fmt.Errorf("%w: %w", journal.ErrTooLarge, err)
	}
	if !errors.As(err, &api) {
		return err
	}
	switch api.ErrorCode {
	case jetstream.JSErrCodeStreamWrongLastSequence, jetstream.JSErrCodeStreamWrongLastSequenceConstant:
		return fmt.Errorf("%w: %w", journal.ErrConflict, err)
	case jetstream.JSErrCodeStreamMessageExceedsMaximum:
		return fmt.Errorf("%w: %w", journal.ErrTooLarge, err)
	case codeAccountResources, codeInsufficient, codeMemoryResources, codeStorageResources, codeThrottled:
		return fmt.Errorf("%w: %w", journal.ErrFull, err)
	case codeStoreFailed:
		if strings.HasPrefix(api.Description, "maximum ") { // bytes, messages
			return fmt.Errorf("%w: %w", journal.ErrFull, err)
		}
	}
	return err
}

// Read implements journal.Journal.
func (j *Journal) Read(ctx context.Context, at uint64) ([]byte, error) {
	if at == 0 {
		return nil, journal.ErrTrimmed
	}
	for range 2 {
		entry, err := j.get(ctx, at)
		if !errors.Is(err, jetstream.ErrMsgNotFound) {
			return entry, err
		}
		info, err := j.info(ctx)
		switch {
		case err != nil:
			return nil, err
		case at < info.State.FirstSeq:
			return nil, journal.ErrTrimmed
		case at > info.State.LastSeq:
			return nil, journal.ErrAbsent
		}
		// It came in between.
	}
	return nil, fmt.Errorf("read the stream %s at %d: %w", j.options.Stream, at, journal.ErrHole)
}

func (j *Journal) get(ctx context.Context, at uint64) ([]byte, error) {
	ctx, done := j.ask(ctx)
	defer done()
	msg, err := j.stream.GetMsg(ctx, at)
	if err != nil {
		return nil, j.failed(ctx, fmt.Sprintf("read the stream %s at %d", j.options.Stream, at), err)
	}
	return msg.Data, nil
}

// Trim implements journal.Journal.
func (j *Journal) Trim(ctx context.Context, upTo uint64) error {
	last, err := j.Last(ctx)
	if err != nil {
		return err
	}
	keep := last // and what comes after it; others only append meanwhile
	if upTo < last {
		keep = upTo + 1
	}
	if keep <= 1 {
		return nil
	}
	ctx, done := j.ask(ctx)
	defer done()
	if err := j.stream.Purge(ctx, jetstream.WithPurgeSequence(keep)); err != nil {
		return j.failed(ctx, "trim the stream "+j.options.Stream, err)
	}
	return nil
}

// Limits implements journal.Journal.
func (j *Journal) Limits(ctx context.Context) (journal.Limits, error) {
	info, err := j.info(ctx)
	if err != nil {
		return journal.Limits{}, err
	}
	l := journal.Limits{EntryBytes: j.entryBytes(), Durability: journal.DurabilityReplicated, Used: info.State.Bytes, First: max(info.State.FirstSeq, 1)}
	if j.options.Synced {
		l.Durability = journal.DurabilitySync
	}
	if info.Config.MaxBytes > 0 {
		l.Most = uint64(info.Config.MaxBytes)
	}
	return l, nil
}
