package bus

import (
	"context"
	"errors"

	"eventhub"
	"eventhub/bus/internal/publish"
	"eventhub/store"
)

// Publish implements eventhub.Publisher.
func (b *Bus) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	for {
		if err := b.indexExpected(ctx, events); err != nil {
			return nil, err
		}
		receipts, err := b.publishNow(ctx, events)
		var n *store.NotIndexedError // of a topic that is new, or whose index was dropped meanwhile
		if !errors.As(err, &n) || eventhub.ErrorCode(err) != eventhub.CodeOverloaded {
			return receipts, err
		}
	}
}

// publishNow is Publish where nothing waits for an index.
func (b *Bus) publishNow(ctx context.Context, events []eventhub.Event) ([]eventhub.Receipt, error) {
	answered := make(chan struct{})
	pubs := []eventhub.Publication{{Events: events}}
	b.Enqueue(ctx, pubs, func([]eventhub.Publication) { close(answered) })
	select {
	case <-answered:
		return pubs[0].Receipts, pubs[0].Err
	case <-ctx.Done():
		return nil, eventhub.Wrap(eventhub.CodeShuttingDown, ctx.Err(), "gave up waiting; the events may or may not be published")
	}
}

// indexExpected returns when the topics are indexed of whose keys something is expected. Enqueue does
// not wait for that: publications of a client stay in their order.
func (b *Bus) indexExpected(ctx context.Context, events []eventhub.Event) error {
	for i := range events {
		if e := &events[i]; e.Expect.Kind == eventhub.ExpectKeyOffset && e.Key != "" {
			if err := b.indexed(ctx, e.Topic); err != nil {
				return err
			}
		}
	}
	return nil
}

// OpenProducer implements eventhub.Producers.
func (b *Bus) OpenProducer(ctx context.Context, o eventhub.ProducerOptions) (*eventhub.Producer, error) {
	return b.producers.Open(ctx, o)
}

// Load returns how much waits to be published, in percent of what may (Options.MostWait).
func (b *Bus) Load() int { return b.committer.Load() }

// LeaveProducer implements eventhub.Producers.
func (b *Bus) LeaveProducer(p *eventhub.Producer) { b.producers.Leave(p) }

// Enqueue implements eventhub.Publisher. Where there is no room for events, or more wait than the store takes in
// Options.MostWait, it has those publications refused by their units that have numbers.
func (b *Bus) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	full := b.space.Check()
	if full == nil && b.committer.IsFull() {
		full = b.committer.Refuse(publish.SizeOf(pubs))
	}
	job := publish.NewJob(pubs, b.clock.Wall(), full, b.topics, b.waits.Call(ctx, pubs), done)
	job.Refused = b.refused
	if job.IsEmpty() {
		job.Done(nil)
		return
	}
	if err := b.committer.Submit(ctx, job); err != nil {
		job.Done(err)
	}
}

// refuse counts a publication that was refused, and returns what its publisher is told. Where it
// expects something of a key in a topic without the index by key the index is begun.
func (b *Bus) refuse(err error) error {
	var n *store.NotIndexedError
	if errors.As(err, &n) {
		err = b.beginIndex(n)
	}
	b.counts.refuse(err)
	return err
}

// beginIndex returns what the publisher of a unit is told that was refused with n, which stays the cause.
func (b *Bus) beginIndex(n *store.NotIndexedError) error {
	told := eventhub.AsError(b.keyIndex.Begin(n.Topic))
	told.Err = n
	return told
}

// Import implements admin.Importer.
func (b *Bus) Import(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	job, err := publish.NewImport(events, b.clock.Wall(), b.topics)
	if err != nil {
		return nil, b.refuse(err)
	}
	return b.publishUnit(ctx, job, "the events may or may not be imported")
}

// publishUnit commits one unit of events, if there is room for them. Where ctx ends before the
// outcome is known the error says what, that it is not known.
func (b *Bus) publishUnit(ctx context.Context, job *publish.Call, what string) ([]eventhub.Receipt, error) {
	err := b.space.Check()
	if err == nil {
		err = b.committer.DoWithin(ctx, job, what)
	}
	if err != nil {
		return nil, b.refuse(err)
	}
	return job.Receipts(), nil
}
