package bus

import (
	"context"

	"eventhub"
	"eventhub/bus/internal/publish"
)

// Publish implements eventhub.Publisher.
func (b *Bus) Publish(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
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

// Enqueue implements eventhub.Publisher.
func (b *Bus) Enqueue(ctx context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	job := publish.NewJob(pubs, b.clock.Wall(), b.topics, b.waits.Call(ctx, pubs), done)
	job.Refused = b.refused
	if job.IsEmpty() {
		job.Done(nil)
		return
	}
	err := b.space.Check()
	if err == nil {
		err = b.committer.Submit(ctx, job)
	}
	if err != nil {
		job.Done(err)
	}
}

// Import implements admin.Importer.
func (b *Bus) Import(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	if len(events) == 0 {
		return nil, nil
	}
	job, err := publish.NewImport(events, b.clock.Wall(), b.topics)
	if err != nil {
		b.refused(err)
		return nil, err
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
		b.refused(err)
		return nil, err
	}
	return job.Receipts(), nil
}
