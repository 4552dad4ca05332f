package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"eventhub/store"
	"eventhub/store/pebble"
)

// verifyEvents and verifyBytes bound how much of a topic is read at once.
const (
	verifyEvents = 1000
	verifyBytes  = 1 << 20
)

// Stock is what VerifyStore has found in one topic.
type Stock struct {
	Topic  string `json:"topic"`
	Events uint64 `json:"events"`
	// Bytes are those of the records.
	Bytes uint64 `json:"bytes"`
	// First and Last are offsets, 0 where there is no event.
	First uint64 `json:"first_offset"`
	Last  uint64 `json:"last_offset"`
	// FirstTS and LastTS are commit times, in epoch milliseconds.
	FirstTS int64 `json:"first_ts,omitempty"`
	LastTS  int64 `json:"last_ts,omitempty"`
	Groups  int   `json:"groups"`

	lastID string
}

// VerifyStore opens the store in dir and reads all of it: each record has to be one,
// and offsets and commit times have to rise. It calls each with every topic in byte
// order, as soon as it is read. The first thing that is wrong is the error; what may be
// wrong, and leaves a whole store, as the end of a log that was cut short, goes to warn.
// Opening a store changes its files, and makes one of an older format one of the present;
// no hub may have it open. Who wants none of this gives a copy.
func VerifyStore(ctx context.Context, dir string, warn func(text string), each func(Stock) error) (err error) {
	// Open would make a store of what is none.
	if _, err := os.Stat(filepath.Join(dir, "FORMAT")); err != nil {
		return fmt.Errorf("hub: %s is no store: %w", dir, err)
	}
	broken := make(chan error, 1)
	s, err := openToVerify(pebble.Options{Dir: dir, Logger: slog.New(warnings(warn)), Fatal: func(err error) {
		select {
		case broken <- err:
		default:
		}
	}})
	if err != nil {
		return err
	}
	defer func() {
		if closeErr := s.Close(); err == nil {
			err = closeErr
		}
		select {
		case cause := <-broken:
			if err == nil {
				err = cause
			}
		default:
		}
	}()
	for t, err := range store.AllTopics(ctx, s, "") {
		if err != nil {
			return err
		}
		stock, err := verifyTopic(ctx, s, t)
		if err != nil {
			return err
		}
		if err := each(stock); err != nil {
			return err
		}
	}
	return nil
}

// openToVerify opens a store, also one that shares a journal, which is as it was then.
func openToVerify(o pebble.Options) (*pebble.Store, error) {
	s, err := pebble.Open(o)
	if !errors.Is(err, pebble.ErrReplicated) {
		return s, err
	}
	r, err := pebble.OpenReplica(o)
	if err != nil {
		return nil, err
	}
	return r.View()
}

// warnings hands the store's warnings on, each as one text. What it says of errors is
// returned as well.
type warnings func(text string)

// Enabled implements slog.Handler.
func (w warnings) Enabled(_ context.Context, level slog.Level) bool { return level == slog.LevelWarn }

// Handle implements slog.Handler.
func (w warnings) Handle(_ context.Context, r slog.Record) error {
	text := r.Message
	r.Attrs(func(a slog.Attr) bool {
		text += ", " + a.String()
		return true
	})
	w(text)
	return nil
}

// WithAttrs implements slog.Handler.
func (w warnings) WithAttrs([]slog.Attr) slog.Handler { return w }

// WithGroup implements slog.Handler.
func (w warnings) WithGroup(string) slog.Handler { return w }

func verifyTopic(ctx context.Context, s store.Store, t store.TopicInfo) (Stock, error) {
	stock := Stock{Topic: t.Name}
	groups, err := s.ListGroups(ctx, t.Name)
	if err != nil {
		return stock, fmt.Errorf("hub: the groups of topic %q: %w", t.Name, err)
	}
	stock.Groups = len(groups)
	var batch store.Batch
	for {
		batch.Reset()
		if err := s.Read(ctx, t.Name, stock.Last+1, verifyEvents, verifyBytes, &batch); err != nil {
			return stock, fmt.Errorf("hub: topic %q after offset %d: %w", t.Name, stock.Last, err)
		}
		if len(batch.Items) == 0 {
			break
		}
		for _, item := range batch.Items {
			if err := stock.add(item, t.Head); err != nil {
				return stock, err
			}
		}
	}
	return stock, stock.end(ctx, s)
}

// add counts an event, or says why it can not be one.
func (s *Stock) add(item store.Item, head uint64) error {
	e, err := item.Event()
	if err != nil {
		return fmt.Errorf("hub: topic %q: %w", s.Topic, err)
	}
	at := item.Record.CommitTime()
	switch {
	case item.Offset <= s.Last || item.Offset > head:
		return fmt.Errorf("hub: topic %q has offset %d after %d, and its head at %d", s.Topic, item.Offset, s.Last, head)
	case e.Topic != s.Topic || e.ID == "" || string(item.Record.ID()) != e.ID:
		return fmt.Errorf("hub: topic %q has at offset %d the event %q of topic %q", s.Topic, item.Offset, e.ID, e.Topic)
	case at == 0 || at < s.LastTS:
		return fmt.Errorf("hub: topic %q has at offset %d the commit time %d, and %d before it", s.Topic, item.Offset, at, s.LastTS)
	}
	if s.Events == 0 {
		s.First, s.FirstTS = item.Offset, at
	}
	s.Events++
	s.Bytes += uint64(len(item.Record))
	s.Last, s.LastTS, s.lastID = item.Offset, at, e.ID
	return nil
}

// end holds the index of ids against the last event of the topic.
func (s *Stock) end(ctx context.Context, from store.Log) error {
	if s.Events == 0 {
		return nil
	}
	offset, err := from.Find(ctx, s.Topic, s.lastID)
	if err != nil {
		return fmt.Errorf("hub: topic %q: event %q at offset %d is not found by its id: %w", s.Topic, s.lastID, s.Last, err)
	}
	if offset != s.Last {
		return fmt.Errorf("hub: topic %q: event %q at offset %d is found by its id at %d", s.Topic, s.lastID, s.Last, offset)
	}
	return nil
}
