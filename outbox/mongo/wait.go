package mongooutbox

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// Error codes of servers that have no change streams.
const (
	codeNoSuchCommand  = 59
	codeNotImplemented = 238
	codeNoReplicaSet   = 40573
)

// Wait implements [outbox.Waiter]: by a change stream, or by waiting for as long as it may
// where the server has none. The stream stays open, so that no row is missed between two
// Waits of one length; Close ends it.
func (s *Store) Wait(ctx context.Context, atMost time.Duration) error {
	s.watching.Lock()
	defer s.watching.Unlock()
	if s.await != atMost {
		s.closeStream(ctx)
	}
	if s.stream == nil && !s.noStream {
		opened, err := s.watch(ctx, atMost)
		if opened || err != nil {
			return err // rows that are older than the stream are looked for once more
		}
	}
	if s.stream == nil {
		t := time.NewTimer(atMost)
		defer t.Stop()
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		return nil
	}
	// The server ends the wait: a deadline here would cost the connection and the stream.
	if s.stream.TryNext(ctx) {
		for s.stream.RemainingBatchLength() > 0 && s.stream.TryNext(ctx) { // all of them are seen by one look
			continue
		}
	}
	err := s.stream.Err()
	if err != nil || s.stream.ID() == 0 {
		s.closeStream(ctx)
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// watch opens the stream, and reports whether it did.
func (s *Store) watch(ctx context.Context, atMost time.Duration) (bool, error) {
	stream, err := s.rows.Watch(ctx, mongo.Pipeline{
		bson.D{{Key: "$match", Value: bson.D{{Key: "operationType", Value: "insert"}}}},
		bson.D{{Key: "$project", Value: bson.D{{Key: "operationType", Value: 1}}}},
	}, options.ChangeStream().SetMaxAwaitTime(max(atMost, time.Millisecond)))
	if err == nil {
		s.stream, s.await = stream, atMost
		return true, nil
	}
	var refused mongo.ServerError
	if errors.As(err, &refused) {
		for _, code := range []int{codeNoSuchCommand, codeNotImplemented, codeNoReplicaSet} {
			if refused.HasErrorCode(code) {
				s.noStream = true
				return false, nil
			}
		}
	}
	return false, err
}

func (s *Store) closeStream(ctx context.Context) {
	if s.stream == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseAfter)
	defer cancel()
	_ = s.stream.Close(ctx) // the server ends it by itself where this fails
	s.stream = nil
}

// Close ends the change stream of Wait, where there is one. The store can be used further.
func (s *Store) Close(ctx context.Context) error {
	s.watching.Lock()
	defer s.watching.Unlock()
	s.closeStream(ctx)
	return nil
}

// The most updates in one command: the driver divides what is more than a server takes, and
// FerretDB 1.x holds one of its 100 connections to its storage for each update until the
// command ends, so that a few commands with many would wait for each other for ever.
const (
	mostUpdates           = 100_000
	mostUpdatesOfFerretDB = 10
)

// mostUpdates returns how many updates a command may have. It asks the server once.
func (s *Store) mostUpdates(ctx context.Context) (int, error) {
	if n := s.updates.Load(); n != 0 {
		return int(n), nil
	}
	var build struct {
		FerretDB string `bson:"ferretdbVersion"`
	}
	err := s.rows.Database().RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&build)
	if err != nil {
		return 0, fmt.Errorf("outbox: asking the server what it is: %w", err)
	}
	n := mostUpdates
	if build.FerretDB != "" {
		n = mostUpdatesOfFerretDB
	}
	s.updates.Store(int64(n))
	return n, nil
}
