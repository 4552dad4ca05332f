package budget

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
)

func TestTake(t *testing.T) {
	b := New(10)
	if !b.Take(7) || b.Take(4) || !b.Take(3) || b.Used() != 10 {
		t.Fatalf("%d of 10 are taken after 7, 4 and 3", b.Used())
	}
	b.Give(7)
	if !b.Take(4) || b.Used() != 7 {
		t.Errorf("%d are taken; want 7", b.Used())
	}
	defer func() {
		if recover() == nil {
			t.Error("more was given back than was taken")
		}
	}()
	b.Give(8)
}

// TestWait: who came first is served first, also where a later one needs less, and
// who gives up holds nobody up.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := New(10)
		b.Take(9)
		var order []string
		wait := func(ctx context.Context, name string, n int) <-chan error {
			done := make(chan error, 1)
			go func() {
				err := b.Wait(ctx, n)
				order = append(order, name)
				done <- err
			}()
			synctest.Wait()
			return done
		}
		ctx, giveUp := context.WithCancelCause(t.Context())
		large := wait(ctx, "large", 5)
		small := wait(t.Context(), "small", 1)
		if len(order) != 0 {
			t.Fatalf("%v did not wait", order)
		}
		why := errors.New("enough")
		giveUp(why)
		if err := <-large; err != why {
			t.Errorf("given up with %v", err)
		}
		if err := <-small; err != nil || b.Used() != 10 {
			t.Errorf("the small one: %v with %d taken", err, b.Used())
		}
		first, second := wait(t.Context(), "first", 5), wait(t.Context(), "second", 5)
		b.Give(10)
		<-first
		<-second
		if b.Used() != 10 {
			t.Errorf("%d are taken; want 10", b.Used())
		}
	})
}
