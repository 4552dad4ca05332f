package past

import (
	"context"
	"math"
	"slices"

	"eventhub"
	"eventhub/admin"
	"eventhub/store"
)

// foundBytes bounds the records of one page of Find, Effects or Correlated.
const foundBytes = 16 << 20

// Find implements admin.History.
func (h *History) Find(ctx context.Context, id string, limit int) ([]admin.Found, error) {
	if err := checkLook(id, limit); err != nil {
		return nil, err
	}
	places, err := h.store.Places(ctx, id, limit)
	if err != nil {
		return nil, store.Failed(err, "find event %q", id)
	}
	return h.found(ctx, places, math.MaxInt)
}

// FindAmong is Find among the topics that show alone, of which limit counts, and reports whether
// a topic that does not show has the id too.
func (h *History) FindAmong(ctx context.Context, id string, limit int, shows func(topic string) bool) (found []admin.Found, hidden bool, err error) {
	if err := checkLook(id, limit); err != nil {
		return nil, false, err
	}
	places, err := h.store.Places(ctx, id, math.MaxInt)
	if err != nil {
		return nil, false, store.Failed(err, "find event %q", id)
	}
	all := len(places)
	places = slices.DeleteFunc(places, func(p store.Place) bool { return !shows(p.Topic) })
	hidden = len(places) < all
	found, err = h.found(ctx, places[:min(limit, len(places))], math.MaxInt)
	return found, hidden, err
}

// Effects implements admin.History.
func (h *History) Effects(ctx context.Context, id string, after eventhub.Place, limit int) ([]admin.Found, error) {
	if err := checkLook(id, limit); err != nil {
		return nil, err
	}
	return h.linked(ctx, h.store.Effects, id, after, limit)
}

// Correlated implements admin.History.
func (h *History) Correlated(ctx context.Context, correlation string, after eventhub.Place, limit int) ([]admin.Found, error) {
	if n := len(correlation); n == 0 || n > eventhub.MaxCorrelationBytes {
		return nil, eventhub.Errorf(eventhub.CodeBadRequest, "the correlation id has %d bytes; 1 to %d are allowed", n, eventhub.MaxCorrelationBytes)
	}
	if err := CheckLimit(limit); err != nil {
		return nil, err
	}
	return h.linked(ctx, h.store.Correlated, correlation, after, limit)
}

// linked reads a page of what links say. Where all of it is gone before it is read, it
// goes on after that: a page without events says that there are no more.
func (h *History) linked(ctx context.Context, links func(context.Context, string, eventhub.Place, int) ([]store.Place, error),
	of string, after eventhub.Place, limit int) ([]admin.Found, error) {
	for {
		places, err := links(ctx, of, after, limit)
		if err != nil {
			return nil, store.Failed(err, "find the events that are linked to %q", of)
		}
		list, err := h.found(ctx, places, foundBytes)
		if len(places) == 0 || len(list) > 0 || err != nil {
			return list, err
		}
		after = places[len(places)-1]
	}
}

func checkLook(id string, limit int) error {
	if err := eventhub.ValidateID(id); err != nil {
		return err
	}
	return CheckLimit(limit)
}

// found reads what is at the places. It ends with the event by which the records
// come to maxBytes.
func (h *History) found(ctx context.Context, places []store.Place, maxBytes int) ([]admin.Found, error) {
	var batch store.Batch
	list := make([]admin.Found, 0, len(places))
	for _, p := range places {
		n := len(batch.Items)
		if err := h.store.Read(ctx, p.Topic, p.Offset, 1, 0, &batch); err != nil {
			return nil, store.Failed(err, "read topic %q at offset %d", p.Topic, p.Offset)
		}
		if len(batch.Items) == n || batch.Items[n].Offset != p.Offset {
			continue // the log let go of it
		}
		list = append(list, admin.Found{Topic: p.Topic, Item: batch.Items[n]})
		if maxBytes -= len(batch.Items[n].Record); maxBytes <= 0 {
			break
		}
	}
	return list, nil
}
