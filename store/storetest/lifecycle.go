package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"eventhub/store"
)

var lifecycleTests = []test{
	{name: "closed store", run: testClosed},
	{name: "close while in use", run: testCloseInUse},
	{name: "context that has ended", run: testContextEnded},
	{name: "capabilities", run: testCapabilities},
	{name: "size", run: testSize},
	{name: "space", run: testSpace},
}

func testClosed(t *testing.T, s *env) {
	s.add(t, keyed("t", "a", "k"))
	s.close(t)
	for method, err := range everyMethod(t, context.Background(), s) {
		if !errors.Is(err, store.ErrClosed) {
			t.Errorf("%s after Close: %v; want store.ErrClosed", method, err)
		}
	}
	s.close(t)
	s.open(t)
	if s.Capabilities().Persistent {
		same(t, "offset of what was committed after Close", uint64(0), s.find(t, "t", "late"))
	}
}

// testCloseInUse: whoever comes too late hears ErrClosed; a Commit that returned
// nil counts.
func testCloseInUse(t *testing.T, s *env) {
	var running, ended sync.WaitGroup
	var mu sync.Mutex
	var committed []string
	for worker := range 4 {
		running.Add(1)
		ended.Go(func() {
			for i := 0; ; i++ {
				a := given("t", fmt.Sprintf("%d-%d", worker, i))
				err := s.Commit(context.Background(), []*store.Unit{unit(a)}, i%2 == 0)
				if err == nil {
					_, err = s.Head(context.Background(), "t")
					mu.Lock()
					committed = append(committed, a.ID)
					mu.Unlock()
				}
				if i == 0 {
					running.Done()
				}
				if err != nil {
					if !errors.Is(err, store.ErrClosed) {
						t.Errorf("while the store closes: %v; want store.ErrClosed", err)
					}
					return
				}
			}
		})
	}
	running.Wait()
	s.close(t)
	ended.Wait()
	s.open(t)
	if !s.Capabilities().Persistent {
		return
	}
	for _, id := range committed {
		if s.find(t, "t", id) == 0 {
			t.Errorf("id %q was committed and is not there after reopening", id)
		}
	}
}

func testContextEnded(t *testing.T, s *env) {
	s.add(t, given("t", "1"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	u := unit(given("t", "2"), given("created", "3"))
	u.Groups = []store.GroupChange{create("t", "g", store.GroupState{})}
	if err := s.Commit(ctx, []*store.Unit{u}, true); !errors.Is(err, context.Canceled) {
		t.Errorf("Commit with a context that has ended: %v; want context.Canceled", err)
	}
	for method, err := range everyMethod(t, ctx, s) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s with a context that has ended: %v; want context.Canceled", method, err)
		}
	}
	same(t, "topics", []store.TopicInfo{{Name: "t", Head: 1}}, s.listTopics(t, "", noLimit))
	same(t, "group", (*store.GroupState)(nil), s.group(t, "t", "g"))
	rising(t, 1, s.add(t, given("t", "2")))
}

func testCapabilities(t *testing.T, s *env) {
	c := s.Capabilities()
	switch c.Durability {
	case store.DurabilityNone:
	case store.DurabilitySync, store.DurabilityReplicated:
		if !c.Persistent {
			t.Error("a store that is not persistent calls itself durable")
		}
		if s.backend.HoldSync == nil {
			t.Error("a durable store needs Backend.HoldSync, or nothing shows that reads wait for durability")
		}
	default:
		t.Errorf("durability is %q", c.Durability)
	}
	s.reopen(t)
	same(t, "capabilities after reopening", c, s.Capabilities())
}

// testSize: what is committed takes its place. How much is the backend's matter:
// it may have room reserved, or squeeze what it keeps.
func testSize(t *testing.T, s *env) {
	for i := range 50 {
		s.add(t, given("t", fmt.Sprintf("id-%02d", i)))
	}
	size, err := s.Size()
	if err != nil || size < 50*20 {
		t.Errorf("Size = %d, %v; 50 events are in the store", size, err)
	}
	s.close(t)
	if _, err := s.Size(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Size after Close: %v; want store.ErrClosed", err)
	}
}

func testSpace(t *testing.T, s *env) {
	s.add(t, given("t", "1"))
	space, err := s.Space()
	if err != nil || space.Free > space.Total {
		t.Errorf("Space = %+v, %v", space, err)
	}
	s.close(t)
	if _, err := s.Space(); !errors.Is(err, store.ErrClosed) {
		t.Errorf("Space after Close: %v; want store.ErrClosed", err)
	}
}
