package jetstream

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"eventhub/store/journal"
)

// Announce implements journal.Journal. The id of a member may be any text, and a subject may
// not, so it is in hexadecimal there.
func (j *Journal) Announce(ctx context.Context, m journal.Member) ([]journal.Member, error) {
	const what = "announce a member"
	ctx, done := j.call(ctx)
	defer done()
	all, err := j.said(ctx)
	isLost := errors.Is(err, jetstream.ErrStreamNotFound)
	if isLost {
		err = nil // nobody has said anything
	}
	if err != nil || m.ID == "" {
		return all, err
	}
	if isLost {
		if _, err := j.js.CreateStream(ctx, j.membersConfig()); err != nil {
			return nil, j.failed(ctx, what+": create the stream of the members", err)
		}
	}
	value, err := json.Marshal(m)
	if err != nil {
		return nil, j.failed(ctx, what, err)
	}
	subject := membersSubject(j.options.Stream) + "." + hex.EncodeToString([]byte(m.ID))
	if _, err := j.js.PublishMsg(ctx, &nats.Msg{Subject: subject, Data: value}); err != nil {
		return nil, j.failed(ctx, what, err)
	}
	return all, nil
}

// Now implements journal.Journal. It asks who leads the stream of the members, whose clock stamps what they say.
func (j *Journal) Now(ctx context.Context) (time.Time, error) {
	const what = "ask for the time"
	ctx, done := j.call(ctx)
	defer done()
	err := error(jetstream.ErrStreamNotFound)
	for _, stream := range []jetstream.Stream{j.members, j.stream} { // nobody may have said anything yet
		if stream == nil {
			continue
		}
		var info *jetstream.StreamInfo
		if info, err = stream.Info(ctx); err == nil {
			if info.TimeStamp.IsZero() {
				return time.Time{}, j.failed(ctx, what, errors.New("the server says none; it has to be of version 2.10 or later"))
			}
			return info.TimeStamp, nil
		}
		if !errors.Is(err, jetstream.ErrStreamNotFound) {
			break
		}
	}
	return time.Time{}, j.failed(ctx, what, err)
}

// said returns what all members last said of themselves.
func (j *Journal) said(ctx context.Context) (all []journal.Member, err error) {
	const what = "ask for the members"
	if j.members == nil { // Look has found none
		return nil, nil
	}
	info, err := j.members.Info(ctx, jetstream.WithSubjectFilter(membersSubject(j.options.Stream)+".*"))
	if err != nil {
		return nil, j.failed(ctx, what, err)
	}
	for subject := range info.State.Subjects {
		msg, err := j.members.GetLastMsgForSubject(ctx, subject)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue // forgotten in between
		}
		if err != nil {
			return nil, j.failed(ctx, what, err)
		}
		var m journal.Member
		if err := json.Unmarshal(msg.Data, &m); err != nil {
			return nil, j.failed(ctx, what+": read "+subject, err)
		}
		m.Seen = msg.Time
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b journal.Member) int { return strings.Compare(a.ID, b.ID) })
	return all, nil
}
