package jetstream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"eventhub/store/journal"
)

// Open connects to the servers, and creates the stream where there is none. A stream that can not be
// this journal is a *ConfigError, and what the user may not do a *RightsError; journal.ErrAway says that the
// servers are not there, or have no leader yet.
func Open(ctx context.Context, o Options) (*Journal, error) {
	j, err := Look(ctx, o)
	if err != nil {
		return nil, err
	}
	if err := j.Create(ctx); err != nil {
		_ = j.Close()
		return nil, err
	}
	return j, nil
}

// Look is Open, but it creates nothing: where Exists says that there is no stream, the journal is of
// no use before Create.
func Look(ctx context.Context, o Options) (*Journal, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	j := newJournal(o)
	if err := j.connect(ctx); err != nil {
		_ = j.Close()
		return nil, away(err)
	}
	return j, nil
}

// Exists reports whether the stream was there when it was looked for.
func (j *Journal) Exists() bool { return j.stream != nil }

// Create creates what is not there, which another hub may do as well: one that was killed may have made the stream of
// the entries alone. Nothing else may be called meanwhile.
func (j *Journal) Create(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(ctx, openWithin)
	defer cancel()
	if j.stream == nil {
		j.stream, err = j.open(ctx, j.entriesConfig(), true)
	}
	if err == nil && j.members == nil {
		j.members, err = j.open(ctx, j.membersConfig(), true)
	}
	return away(err)
}

func (j *Journal) connect(ctx context.Context) error {
	err := j.dial()
	if err == nil {
		j.stream, err = j.open(ctx, j.entriesConfig(), false)
	}
	if err == nil {
		j.members, err = j.open(ctx, j.membersConfig(), false)
	}
	return err
}

// dial connects to one of the servers, whichever answers.
func (j *Journal) dial() (err error) {
	options := append([]nats.Option{
		nats.Name("eventhub journal " + j.options.Stream),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(100 * time.Millisecond),
		nats.ReconnectJitter(100*time.Millisecond, 100*time.Millisecond),
		nats.ReconnectBufSize(-1),
		nats.PingInterval(2 * time.Second),
		nats.MaxPingsOutstanding(2),
		nats.DisconnectErrHandler(func(*nats.Conn, error) { j.lost() }),
		nats.ReconnectErrHandler(func(_ *nats.Conn, err error) { j.notAgain(err) }),
		nats.ReconnectHandler(func(*nats.Conn) { j.notAgain(nil) }),
		nats.IgnoreAuthErrorAbort(), // a password that is changed is not known to all servers at once
		// What else it would print is in the errors of the calls.
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { j.denied.note(err) }),
	}, j.options.Connect...)
	if j.conn, err = nats.Connect(j.options.URL, options...); err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	if j.js, err = jetstream.New(j.conn); err != nil {
		return fmt.Errorf("connect to JetStream: %w", err)
	}
	return nil
}

// open returns a stream that is as it has to be, or nil where there is none and none is to be created.
// It waits for servers that have no leader yet.
func (j *Journal) open(ctx context.Context, want jetstream.StreamConfig, create bool) (jetstream.Stream, error) {
	for {
		stream, err := j.tryOpen(ctx, want, create)
		if err == nil || !passing(err) {
			return stream, err
		}
		select {
		case <-time.After(again):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// tryOpen creates the stream where there is none. Another hub may do the same.
func (j *Journal) tryOpen(ctx context.Context, want jetstream.StreamConfig, create bool) (jetstream.Stream, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	stream, err := j.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		if !create {
			return nil, nil
		}
		stream, err = j.js.CreateStream(ctx, want)
		if errors.Is(err, jetstream.ErrStreamNameAlreadyInUse) {
			stream, err = j.js.Stream(ctx, want.Name)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("open the stream %s: %w", want.Name, j.denied.explain(err))
	}
	info, err := stream.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("ask for the stream %s: %w", want.Name, err)
	}
	if wrong := compare(&info.Config, &want); len(wrong) > 0 {
		return nil, wrong[0]
	}
	return stream, nil
}

// codeNoPeers: there are not enough servers for the replicas, now.
const codeNoPeers = 10005

// passing reports whether an error may be another one in a moment: there is no answer, the server
// says that it is not available, or the stream that another hub has just created has not come to
// the server that was asked.
func passing(err error) bool {
	var refused *ConfigError
	var rights *RightsError
	var untrusted *tls.CertificateVerificationError
	var api *jetstream.APIError
	switch {
	case errors.As(err, &refused), errors.As(err, &rights), errors.As(err, &untrusted):
		return false
	case errors.Is(err, nats.ErrAuthorization), errors.Is(err, nats.ErrAuthExpired), errors.Is(err, nats.ErrAuthRevoked), errors.Is(err, nats.ErrAccountAuthExpired):
		return false
	case errors.Is(err, nats.ErrSecureConnRequired), errors.Is(err, nats.ErrSecureConnWanted):
		return false
	}
	return !errors.As(err, &api) || api.Code == http.StatusServiceUnavailable || api.ErrorCode == codeNoPeers || errors.Is(err, jetstream.ErrStreamNotFound)
}

// away adds what an error of Look or Create means that may pass.
func away(err error) error {
	if err == nil || !passing(err) {
		return err
	}
	return fmt.Errorf("%w: %w", journal.ErrAway, err)
}

// denials are what the servers have said that the user may not do. They say it beside the answers, which
// do not come.
type denials struct {
	mu   sync.Mutex
	said error // the last one
}

// RightsError says what the user of the journal may not do.
type RightsError struct{ Err error }

func (e *RightsError) Error() string {
	return "the user has too few rights: " + e.Err.Error()
}

// Unwrap returns what the server has said.
func (e *RightsError) Unwrap() error { return e.Err }

func (d *denials) note(err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.said = err
}

// take returns what was said since the last time.
func (d *denials) take() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	said := d.said
	d.said = nil
	if said == nil {
		return nil
	}
	return &RightsError{said}
}

// explain returns why there is no answer, where the server has said so.
func (d *denials) explain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) {
		if denied := d.take(); denied != nil {
			return denied
		}
	}
	return err
}

// noPurge is a request for a purge that the servers refuse, for it has both a place and a number of messages to
// keep, and that would remove nothing: no message has the subject. They take what is no JSON for a
// request without a body, and remove all messages.
const noPurge = `{"filter":"eventhub.none","seq":1,"keep":1}`

// Probe returns a *RightsError for each thing that a hub does and this user may not do. It asks for
// everything in a way that the servers refuse, so nothing is changed: bodies that are no JSON,
// messages that expect another stream, and noPurge.
func (j *Journal) Probe(ctx context.Context) (all []error) {
	entries, members := j.options.Stream, j.options.Stream+"-members"
	inbox := nats.NewInbox()
	said := j.conn.LastError()
	probed := func(err error) {
		if err == nil {
			said, err = j.probed(ctx, said)
		}
		if err != nil {
			all = append(all, err)
		}
	}
	sub, err := j.conn.SubscribeSync(inbox)
	probed(err)
	if err == nil {
		defer func() { _ = sub.Unsubscribe() }() // it ends with the connection at the latest
	}
	for _, subject := range []string{
		"$JS.API.STREAM.CREATE." + entries, "$JS.API.STREAM.INFO." + entries, "$JS.API.STREAM.MSG.GET." + entries, "$JS.API.STREAM.PURGE." + entries,
		"$JS.API.CONSUMER.CREATE." + entries + ".probe", "$JS.API.CONSUMER.MSG.NEXT." + entries + ".probe", "$JS.API.CONSUMER.DELETE." + entries + ".probe",
		"$JS.API.STREAM.CREATE." + members, "$JS.API.STREAM.INFO." + members, "$JS.API.STREAM.MSG.GET." + members,
		entriesSubject(entries), membersSubject(entries) + ".probe",
	} {
		m := &nats.Msg{Subject: subject, Reply: inbox, Data: []byte("?"), Header: nats.Header{jetstream.ExpectedStreamHeader: {"not-" + entries}}}
		if strings.HasPrefix(subject, "$JS.") {
			m.Header = nil
		}
		if strings.HasPrefix(subject, "$JS.API.STREAM.PURGE.") {
			m.Data = []byte(noPurge)
		}
		probed(j.conn.PublishMsg(m))
		if ctx.Err() != nil {
			break
		}
	}
	return all
}

// probed waits until the server has read what was sent, and returns what it has said of that: its last
// error, other than the one before.
func (j *Journal) probed(ctx context.Context, before error) (said, denied error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	if err := j.conn.FlushWithContext(ctx); err != nil {
		return before, j.failed(ctx, "ask for the rights", err)
	}
	said = j.conn.LastError()
	if said != before && errors.Is(said, nats.ErrPermissionViolation) {
		denied = &RightsError{said}
	}
	return said, denied
}
