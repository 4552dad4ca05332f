package eventhub_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/internal/bubble"
)

var errCause = errors.New("the cause")

func TestVerdictOfAnError(t *testing.T) {
	day := 24 * time.Hour
	tests := []struct {
		name     string
		err      error
		reason   string
		terminal bool
		delay    time.Duration
	}{
		{"no reason", nil, "", false, 0},
		{"a plain error", errCause, "the cause", false, 0},
		{"terminal", eventhub.Terminal(errCause), "the cause", true, 0},
		{"terminal, wrapped", fmt.Errorf("pay: %w", eventhub.Terminal(errCause)), "pay: the cause", true, 0},
		{"terminal among several", errors.Join(errors.New("a"), eventhub.Terminal(errCause)), "a\nthe cause", true, 0},
		{"later", eventhub.RetryAfter(time.Minute, errCause), "the cause", false, time.Minute},
		{"later, wrapped", fmt.Errorf("pay: %w", eventhub.RetryAfter(time.Minute, errCause)), "pay: the cause", false, time.Minute},
		{"a fraction of a millisecond", eventhub.RetryAfter(1, errCause), "the cause", false, time.Millisecond},
		{"a millisecond and a bit", eventhub.RetryAfter(time.Millisecond+1, errCause), "the cause", false, 2 * time.Millisecond},
		{"at once", eventhub.RetryAfter(0, errCause), "the cause", false, 0},
		{"before now", eventhub.RetryAfter(-time.Hour, errCause), "the cause", false, 0},
		{"a week", eventhub.RetryAfter(7*day, errCause), "the cause", false, day},
		{"the longest there is", eventhub.RetryAfter(1<<63-1, errCause), "the cause", false, day},
		{"the outer one counts", eventhub.RetryAfter(time.Second, eventhub.Terminal(errCause)), "the cause", false, time.Second},
		{"too long a reason", errors.New("n\xff" + strings.Repeat("o", 2000)), "n" + strings.Repeat("o", 1022), false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := eventhub.NackOf(tt.err)
			if v.Verdict != eventhub.Nack || v.Reason != tt.reason || v.Terminal != tt.terminal || v.Delay != tt.delay {
				t.Errorf("the verdict is %+v", v)
			}
			if err := v.Validate(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, err := range []error{eventhub.Terminal(errCause), eventhub.RetryAfter(time.Second, errCause)} {
		if !errors.Is(err, errCause) {
			t.Errorf("%v hides its cause", err)
		}
	}
	refused := eventhub.Terminal(eventhub.Errorf(eventhub.CodeForbidden, "no"))
	if eventhub.ErrorCode(refused) != eventhub.CodeForbidden {
		t.Errorf("the code of %v is %s", refused, eventhub.ErrorCode(refused))
	}
	if eventhub.Terminal(nil) != nil || eventhub.RetryAfter(time.Second, nil) != nil {
		t.Error("nil became an error")
	}
}

// settlements notes verdicts and answers with its outcome.
type settlements struct {
	given   []eventhub.Settlement
	outcome eventhub.Outcome
	err     error
}

func (s *settlements) Settle(_ context.Context, v eventhub.Settlement) ([]eventhub.Outcome, error) {
	s.given = append(s.given, v)
	return []eventhub.Outcome{s.outcome}, s.err
}

func TestDeliverySettles(t *testing.T) {
	ctx := t.Context()
	s := &settlements{}
	lease := eventhub.Lease{Runtime: 1, Offset: 7, Serial: 3}
	d := eventhub.Delivery{Topic: "t", Offset: 7, Lease: lease, AckTimeout: time.Minute}
	d.Bind(s)
	given := d // a copy settles the same
	for _, err := range []error{given.Ack(ctx), given.Nack(ctx, eventhub.Terminal(errCause)), given.Extend(ctx, time.Hour), given.Extend(ctx, 0)} {
		if err != nil {
			t.Error(err)
		}
	}
	for i, want := range []eventhub.Settlement{
		{Verdict: eventhub.Ack},
		{Verdict: eventhub.Nack, Reason: "the cause", Terminal: true},
		{Verdict: eventhub.Extend, By: time.Hour},
		{Verdict: eventhub.Extend, By: time.Minute},
	} {
		got := s.given[i]
		if len(got.Refs) != 1 || got.Refs[0] != (eventhub.Ref{Lease: lease}) {
			t.Errorf("verdict %d is on %+v", i, got.Refs)
		}
		if got.Verdict != want.Verdict || got.Reason != want.Reason || got.Terminal != want.Terminal || got.By != want.By {
			t.Errorf("verdict %d is %+v; want %+v", i, got, want)
		}
	}
	for _, o := range []eventhub.Outcome{eventhub.Stale, eventhub.Unknown} {
		s.outcome = o
		if err := d.Ack(ctx); eventhub.ErrorCode(err) != eventhub.CodeLeaseLost || !strings.Contains(err.Error(), `offset 7 of topic "t"`) {
			t.Errorf("of outcome %d Ack says %v", o, err)
		}
	}
	s.err = errCause
	if err := d.Ack(ctx); !errors.Is(err, errCause) {
		t.Errorf("Ack = %v", err)
	}
}

// TestDeliveryWithoutLease: what cannot be settled says so and reaches nobody.
func TestDeliveryWithoutLease(t *testing.T) {
	s := &settlements{}
	tailed := eventhub.Delivery{Topic: "t", Offset: 7}
	tailed.Bind(s)
	pulled := eventhub.Delivery{Topic: "t", Offset: 7, Lease: eventhub.Lease{Runtime: 1, Offset: 7, Serial: 3}}
	for d, says := range map[*eventhub.Delivery]string{&tailed: "live tail", &pulled: "by its lease"} {
		for _, err := range []error{d.Ack(t.Context()), d.Nack(t.Context(), nil), d.Extend(t.Context(), time.Minute)} {
			if eventhub.ErrorCode(err) != eventhub.CodeBadRequest || !strings.Contains(err.Error(), says) {
				t.Errorf("the error is %v; it should say %q", err, says)
			}
		}
	}
	if len(s.given) != 0 {
		t.Errorf("verdicts were given: %+v", s.given)
	}
}

// TestHandlerDecides: what a handler returns decides about the delivery, and so does
// what it says itself.
func TestHandlerDecides(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		f := &fakeGroup{}
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan error, 1)
		go func() {
			ended <- eventhub.Consume(ctx, f, eventhub.GroupOptions{Group: "g"}, func(ctx context.Context, d eventhub.Delivery) error {
				switch d.Offset {
				case 1:
					return fmt.Errorf("handle: %w", eventhub.Terminal(errCause))
				case 2:
					return eventhub.RetryAfter(time.Minute, errCause)
				}
				return d.Nack(ctx, errors.New("by hand"))
			})
		}()
		synctest.Wait()
		f.feed(1, 3)
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		first, second, third := f.verdicts[0], f.verdicts[1], f.verdicts[2]
		if !first.Terminal || first.Reason != "handle: the cause" {
			t.Errorf("the first verdict is %+v", first)
		}
		if second.Delay != time.Minute || second.Terminal {
			t.Errorf("the second verdict is %+v", second)
		}
		if third.Verdict != eventhub.Nack || third.Reason != "by hand" || third.Refs[0].Lease.Offset != 3 {
			t.Errorf("the third verdict is %+v", third)
		}
	})
}
