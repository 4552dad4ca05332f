package storetest

import (
	"context"
	"errors"
	"reflect"

	"eventhub/store"
)

// notFound reports whether err says that the thing is not there, and fails the
// test on any other error.
func notFound(t failer, err error, what string) bool {
	t.Helper()
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		t.Fatalf("%s: %v; want store.ErrNotFound or none", what, err)
	}
	return err != nil
}

// refused fails the test unless the unit was refused for that reason and its
// results are zero.
func refused(t failer, u *store.Unit, want error) {
	t.Helper()
	if !errors.Is(u.Err, want) {
		t.Errorf("Unit.Err = %v; want %v", u.Err, want)
	}
	for _, a := range u.Appends {
		if a.Offset != 0 || a.CommitTime != 0 || a.Duplicate {
			t.Errorf("a refused append of id %q got offset %d, time %d, duplicate %v", a.ID, a.Offset, a.CommitTime, a.Duplicate)
		}
	}
	for _, p := range u.Delays {
		if p.Seq != 0 || p.Offset != 0 || p.Duplicate {
			t.Errorf("a refused delayed event of id %q got seq %d, offset %d, duplicate %v", p.ID, p.Seq, p.Offset, p.Duplicate)
		}
	}
	if len(u.Created) > 0 {
		t.Errorf("a refused unit has created %v", u.Created)
	}
}

// applied fails the test unless the unit was applied.
func applied(t failer, u *store.Unit) {
	t.Helper()
	if u.Err != nil {
		t.Errorf("Unit.Err = %v; want none", u.Err)
	}
}

// everyMethod calls each method that takes a context and returns their errors by
// name. It fails the test where the contract has such a method that it does not call.
func everyMethod(t failer, ctx context.Context, s store.Store) map[string]error {
	t.Helper()
	errs := make(map[string]error)
	errs["Commit"] = s.Commit(ctx, []*store.Unit{unit(given("t", "late"))}, true)
	errs["Read"] = s.Read(ctx, "t", 1, 1, 1, new(store.Batch))
	_, errs["Head"] = s.Head(ctx, "t")
	_, errs["Find"] = s.Find(ctx, "t", "a")
	_, errs["SeekTime"] = s.SeekTime(ctx, "t", 0)
	_, errs["Latest"] = s.Latest(ctx, "t", "k", 0)
	_, errs["State"] = s.State(ctx, store.StateQuery{Topic: "t", Limit: 1}, new(store.Batch))
	_, errs["KeyEvents"] = s.KeyEvents(ctx, "t", "k", 0, 1, 1, new(store.Batch))
	_, errs["ListTopics"] = s.ListTopics(ctx, "", 1)
	_, errs["Topic"] = s.Topic(ctx, "t")
	_, errs["Lives"] = s.Lives(ctx)
	errs["DeleteTopic"] = s.DeleteTopic(ctx, "t")
	_, errs["Group"] = s.Group(ctx, "t", "g")
	_, errs["GroupParts"] = s.GroupParts(ctx, "t", "g")
	_, errs["DeletedEpoch"] = s.DeletedEpoch(ctx)
	_, errs["ListPatterns"] = s.ListPatterns(ctx)
	_, errs["ListSettings"] = s.ListSettings(ctx)
	_, errs["ListNotes"] = s.ListNotes(ctx)
	_, errs["ListProducers"] = s.ListProducers(ctx)
	_, errs["Delayed"] = s.Delayed(ctx, 0, 0, endOfTime, 1, 1)
	_, errs["FindDelayed"] = s.FindDelayed(ctx, "t", "a")
	_, errs["Places"] = s.Places(ctx, "a", 1)
	_, errs["Effects"] = s.Effects(ctx, "a", nowhere, 1)
	_, errs["Correlated"] = s.Correlated(ctx, "a", nowhere, 1)
	_, _, _, errs["Measure"] = s.Measure(ctx, "t", 1, store.Usage{})
	_, _, errs["Compact"] = s.Compact(ctx, "t")
	_, _, errs["IndexKeys"] = s.IndexKeys(ctx, "t", nil)
	_, errs["TopicsIndexed"] = s.TopicsIndexed(ctx, store.Indexed)
	errs["Checkpoint"] = s.Checkpoint(ctx, "copy")
	_, errs["Sweep"] = s.Sweep(ctx)
	errs["Shrink"] = s.Shrink(ctx)
	_, errs["ListGroups"] = s.ListGroups(ctx, "t")
	for m := range reflect.TypeFor[store.Store]().Methods() {
		_, called := errs[m.Name]
		if takes := m.Type.NumIn() > 0 && m.Type.In(0) == reflect.TypeFor[context.Context](); takes && !called {
			t.Errorf("everyMethod does not call %s", m.Name)
		}
	}
	return errs
}
