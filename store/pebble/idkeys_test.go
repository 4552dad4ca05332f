package pebble

import (
	"bytes"
	"context"
	"math/rand/v2"
	"testing"

	"eventhub/internal/eventid"
	"eventhub/store"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/google/uuid"
)

// idsAlike look like one UUID, and are different ids: one alone is its canonical form.
var idsAlike = []string{
	"01913325-c900-7abc-8def-0123456789ab",
	"01913325-C900-7abc-8def-0123456789ab",
	"01913325-c900-7ABC-8DEF-0123456789AB",
	"01913325c90070abc08def00123456789abc",
	"01913325-c900-7abc-8def_0123456789ab",
	"01913325-c900-7abc-8def-0123456789a",
	"01913325-c900-7abc-8def-0123456789ab0",
	"01913325-c900-7abg-8def-0123456789ab",
	"01913325--900-7abc-8def-0123456789ab",
	"urn:uuid:01913325-c900-7abc-8def-0123456789ab",
}

// TestFormOfID: what is 16 bytes in the index has exactly the text that was given, and all else is
// text; keys are ordered as forms are, and no two ids have one key.
func TestFormOfID(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	ids := append([]string{"e", "order-1", "ffffffff-ffff-ffff-ffff-ffffffffffff", "00000000-0000-0000-0000-000000000000", "-"}, idsAlike...)
	for range 1000 {
		var u uuid.UUID
		for i := range u {
			u[i] = byte(rng.Uint32())
		}
		id := []byte(u.String())
		ids = append(ids, string(id))
		id[rng.IntN(len(id))] = "0123456789abcdefABCDEF-xyz"[rng.IntN(26)]
		ids = append(ids, string(id))
	}
	keys := make(map[string]string)
	previous := idForm{}
	for i, id := range ids {
		f := formOf(id)
		u, err := uuid.Parse(id)
		if want := err == nil && u.String() == id; f.isUUID() != want {
			t.Fatalf("%q is a UUID: %v; want %v", id, f.isUUID(), want)
		}
		key := f.append(nil, 7)
		if len(key) != f.keyBytes() {
			t.Fatalf("the key of %q has %d bytes; want %d", id, len(key), f.keyBytes())
		}
		if f.isUUID() {
			var text [eventid.Size]byte
			putUUID(&text, uuid.UUID(key[2:18]))
			if string(text[:]) != id || key[1] != byte(u.Version()) {
				t.Fatalf("the key of %q reads %q of version %d", id, text, key[1])
			}
		}
		if other, ok := keys[string(key)]; ok && other != id {
			t.Fatalf("%q and %q have one key", id, other)
		}
		keys[string(key)] = id
		if i > 0 && compareForms(&previous, &f) != bytes.Compare(previous.append(nil, 7), key) {
			t.Fatalf("%q and %q are not in the order of their keys", previous.text, id)
		}
		previous = f
	}
}

// TestIDsAlike: ids that look like one UUID are found, are duplicates and are forgotten each by itself,
// in a store that may have text of UUIDs and in one that has none.
func TestIDsAlike(t *testing.T) {
	for _, former := range []bool{false, true} {
		mem := vfs.NewMem()
		s := mustOpen(t, onMem(t, mem))
		s.textIDs = former
		offsets := make(map[string]uint64)
		for _, id := range idsAlike {
			a := mustCommit(t, s, true, given("t", id))[0]
			if a.Duplicate {
				t.Errorf("%q is a duplicate of offset %d", id, a.Offset)
			}
			offsets[id] = a.Offset
		}
		mustRemove(t, s, store.TopicChange{Topic: "t", Erase: []uint64{offsets[idsAlike[0]], offsets[idsAlike[3]]}, ForgetIDs: true})
		sweepAll(t, s)
		for i, id := range idsAlike {
			places, err := s.Places(context.Background(), id, 9)
			if isGone := i == 0 || i == 3; err != nil || isGone != (len(places) == 0) || !isGone && places[0] != (store.Place{Topic: "t", Offset: offsets[id]}) {
				t.Errorf("the places of %q are %v, %v; it was at %d", id, places, err, offsets[id])
			}
			if a := mustCommit(t, s, true, given("t", id))[0]; a.Duplicate != (i != 0 && i != 3) {
				t.Errorf("%q again is at %d, duplicate: %v; it was at %d", id, a.Offset, a.Duplicate, offsets[id])
			}
		}
		checkIndexes(t, s)
		mustClose(t, s)
	}
}

// TestTextIDs: a store of a former format has its ids found in the form in which they are there, and
// forgets them with their events; what comes new is in the new form. When no text is left, the next Open
// knows it.
func TestTextIDs(t *testing.T) {
	mem, receipts := formerStore(t, "format-5-closed")
	s := mustOpen(t, onMem(t, mem))
	if !s.textIDs {
		t.Fatal("the store of format 5 is taken for one without text")
	}
	uuids, last := 0, uint64(0)
	for _, r := range receipts {
		if r.Topic != "orders" {
			continue
		}
		last = max(last, r.Offset)
		f := formOf(r.ID)
		text, err := s.has(appendTextKey(nil, r.ID, 1))
		if err != nil {
			t.Fatal(err)
		}
		if text && f.isUUID() {
			uuids++
			places, err := s.Places(context.Background(), r.ID, 9)
			if err != nil || len(places) != 1 || places[0].Offset != r.Offset {
				t.Errorf("the places of %q are %v, %v; want offset %d", r.ID, places, err, r.Offset)
			}
		}
		if a := mustCommit(t, s, true, given(r.Topic, r.ID))[0]; !a.Duplicate || a.Offset != r.Offset {
			t.Errorf("%q again is at %d; want a duplicate of %d", r.ID, a.Offset, r.Offset)
		}
	}
	if uuids < 3 {
		t.Fatalf("the store has the text of %d UUIDs", uuids)
	}
	mustRemove(t, s, store.TopicChange{Topic: "orders", Horizon: last + 1, ForgetIDs: true})
	if err := s.DeleteTopic(context.Background(), "orders.new"); err != nil {
		t.Fatal(err)
	}
	sweepAll(t, s)
	scan(t, s, tagID, func(key, _ []byte) { t.Errorf("%q is left in the index", key) })
	one := mustCommit(t, s, true, given("orders", idsAlike[0]))[0]
	mustClose(t, s)
	s = mustOpen(t, onMem(t, mem))
	defer mustClose(t, s)
	if s.textIDs {
		t.Error("a store without text is looked up for text")
	}
	if a := mustCommit(t, s, true, given("orders", one.ID))[0]; !a.Duplicate || a.Offset != one.Offset {
		t.Errorf("%q again is at %d; want a duplicate of %d", one.ID, a.Offset, one.Offset)
	}
}
