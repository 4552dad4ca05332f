package budget

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"eventhub/internal/bubble"
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

// TestTakeOvertakesNobody: who takes what is there at once does not go past those who wait.
// They would wait for ever otherwise, for each byte that is given back would be taken.
func TestTakeOvertakesNobody(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := New(10)
		b.Take(8)
		done := make(chan error, 1)
		go func() { done <- b.Wait(t.Context(), 5) }()
		synctest.Wait()
		for n := range 3 { // somebody would take each that is given back
			b.Give(1)
			synctest.Wait()
			if n < 2 && b.Take(1) {
				t.Error("one was taken past somebody who waits for 5")
			}
		}
		if len(done) == 0 {
			t.Fatal("5 were there, and who waits for them was overtaken")
		}
		if err := <-done; err != nil || b.Used() != 10 {
			t.Errorf("%v, with %d taken; want 10", err, b.Used())
		}
		b.Give(1)
		if !b.Take(1) {
			t.Error("the last one cannot be taken, and nobody waits")
		}
	})
}

// TestWait: who came first is served first, also where a later one needs less, and
// who gives up holds nobody up.
func TestWait(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := New(10)
		b.Take(9)
		wait := func(ctx context.Context, n int) <-chan error {
			done := make(chan error, 1)
			go func() { done <- b.Wait(ctx, n) }()
			synctest.Wait()
			return done
		}
		ctx, giveUp := context.WithCancelCause(t.Context())
		large := wait(ctx, 5)
		small := wait(t.Context(), 1)
		if len(large) != 0 || len(small) != 0 {
			t.Fatal("not everybody waited")
		}
		why := errors.New("enough")
		giveUp(why)
		if err := <-large; err != why {
			t.Errorf("given up with %v", err)
		}
		if err := <-small; err != nil || b.Used() != 10 {
			t.Errorf("the small one: %v with %d taken", err, b.Used())
		}
		first, second := wait(t.Context(), 5), wait(t.Context(), 5)
		b.Give(10)
		<-first
		<-second
		if b.Used() != 10 {
			t.Errorf("%d are taken; want 10", b.Used())
		}
	})
}

// TestGrow: those who keep some while they wait are not refused as long as somebody else
// may give some back; then the last of them is, and only so many that another is served.
func TestGrow(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		b := New(10)
		grow := func(kept, n int) <-chan error {
			done := make(chan error, 1)
			go func() { done <- b.Grow(t.Context(), kept, n) }()
			synctest.Wait()
			return done
		}
		b.Take(3 + 3 + 2 + 2)
		nothing := grow(0, 4) // it came first, and keeps nothing
		first, second, third := grow(3, 1), grow(3, 2), grow(2, 2)
		if len(nothing)+len(first)+len(second)+len(third) > 0 {
			t.Fatal("somebody did not wait for the one that has not asked for more")
		}
		last := grow(2, 1)
		if len(last) != 1 || len(nothing)+len(first)+len(second)+len(third) > 0 {
			t.Fatal("it is not the last one that is refused")
		}
		b.Give(2)
		synctest.Wait()
		if len(third) != 1 || len(nothing)+len(first)+len(second) > 0 {
			t.Fatal("with 2 of 4 there the next is not refused")
		}
		if one, other := <-last, <-third; one != ErrStuck || other != ErrStuck {
			t.Errorf("refused with %v and %v", one, other)
		}
		b.Give(2)
		synctest.Wait()
		if len(nothing) != 1 || len(first)+len(second) > 0 {
			t.Fatal("who came first is not served when there is enough")
		}
		b.Give(4)
		synctest.Wait()
		for i, done := range []<-chan error{nothing, first, second} {
			if err := <-done; err != nil {
				t.Errorf("number %d: %v", i, err)
			}
		}
		b.Give(b.Used())
		if !b.Take(10) {
			t.Error("not all are there in the end")
		}
	})
}
