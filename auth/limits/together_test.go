package limits

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"golang.org/x/time/rate"

	"eventhub"
	"eventhub/internal/bubble"
)

// rounds is how many random limits are looked at.
const rounds = 300

// random returns numbers of a seed, which is in the log.
func random(t *testing.T) *rand.Rand {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0))
}

// randomLimit is one as in a file, which is reached now and then.
func randomLimit(r *rand.Rand) string {
	return fmt.Sprintf("{per_second: %v, burst: %d}", float64(1+r.IntN(50_000))/10, 1+r.IntN(100))
}

// TestMeterIsAsABucketAskedForEachStep: what a read brings is taken from the bucket later, and all
// the same each step passes or not as if the bucket was asked for it at once.
func TestMeterIsAsABucketAskedForEachStep(t *testing.T) {
	r := random(t)
	passed, refused := 0, 0
	for range rounds {
		file := "publish: {connection: " + randomLimit(r) + "}"
		l := limitsOf(t, file)
		c := &l.settings.Load().connection
		m, asked := l.Meter(), rate.NewLimiter(rate.Limit(c.perSecond), c.burst)
		at, hits := time.Unix(1000, 0), c.hits.Load()
		for read := range 50 {
			at = at.Add(time.Duration(r.IntN(20_000_000)))
			for step := range r.IntN(20) {
				n := 1 + r.IntN(1+r.IntN(10))
				want := asked.AllowN(at, n)
				err := m.Take(n, at)
				if (err == nil) != want {
					t.Fatalf("%s: read %d, step %d of %d: %v; want it passed: %v", file, read, step, n, err, want)
				}
				if err == nil {
					passed++
					continue
				}
				refused++
				hits++
				if after := eventhub.AsError(err).RetryAfter; n <= c.burst {
					short := func(after time.Duration) float64 { return float64(n) - asked.TokensAt(at.Add(after)) }
					if after <= 0 || short(after) > 1e-5 || short(after-time.Millisecond) <= 0 {
						t.Fatalf("%s: %v: after %v it lacks %v tokens", file, err, after, short(after))
					}
				}
			}
		}
		if c.hits.Load() != hits {
			t.Fatalf("%s: counted %d refusals; want %d", file, c.hits.Load(), hits)
		}
	}
	if passed == 0 || refused == 0 {
		t.Errorf("%d passed, %d were refused", passed, refused)
	}
}

// TestEnqueueIsAsEachByItself: publications that come together take their tokens together, and all
// the same each passes or not as if it had come alone, and in its place.
func TestEnqueueIsAsEachByItself(t *testing.T) {
	r := random(t)
	whole, parts := 0, 0
	bubble.Test(t, func(t *testing.T) {
		for range rounds {
			file := "publish: {principal: " + randomLimit(r) + ", topics: {'*': " + randomLimit(r) + ", b: " + randomLimit(r) + "}}"
			l, alone := limitsOf(t, file), limitsOf(t, file)
			for range 20 {
				who := fmt.Sprint("p", r.IntN(2))
				pubs := make([]eventhub.Publication, 1+r.IntN(8))
				want, refused := make([]string, len(pubs)), 0
				for i := range pubs {
					for range r.IntN(5) {
						pubs[i].Events = append(pubs[i].Events, eventhub.Event{Topic: []string{"a", "b", "c"}[r.IntN(3)]})
					}
					if err := alone.take(who, pubs[i].Events, time.Now()); err != nil {
						want[i] = fmt.Sprintf("%v after %v", err, eventhub.AsError(err).RetryAfter)
						refused++
					}
				}
				l.Publisher(silent{}, who).Enqueue(t.Context(), pubs, func(done []eventhub.Publication) {
					for i := range done {
						got := ""
						if err := done[i].Err; err != nil {
							got = fmt.Sprintf("%v after %v", err, eventhub.AsError(err).RetryAfter)
						}
						if got != want[i] {
							t.Fatalf("%s: publication %d: %q; alone: %q", file, i, got, want[i])
						}
					}
				})
				if refused == 0 {
					whole++
				} else {
					parts++
				}
				time.Sleep(time.Duration(r.IntN(50_000_000)))
			}
			if got, want := fmt.Sprint(l.Measure()), fmt.Sprint(alone.Measure()); got != want {
				t.Fatalf("%s: measured %s; alone: %s", file, got, want)
			}
		}
	})
	if whole == 0 || parts == 0 {
		t.Errorf("%d passed whole, %d in parts", whole, parts)
	}
}

// TestRetryAfterIsEnough: also where a whole number of milliseconds is short by less than the clock
// can say.
func TestRetryAfterIsEnough(t *testing.T) {
	file := "{per_second: 0.9999999995, burst: 1}"
	l := limitsOf(t, "publish: {connection: "+file+", principal: "+file+"}")
	at, m := time.Unix(1000, 0), l.Meter()
	wantErr(t, "a connection", m.Take(1, at), "", 0)
	wantErr(t, "a connection", m.Take(1, at), rateLimited, time.Second)
	wantErr(t, "a connection, then", m.Take(1, at.Add(time.Second)), "", 0)
	wantErr(t, "a principal", l.take("a", to("t"), at), "", 0)
	wantErr(t, "a principal", l.take("a", to("t"), at), rateLimited, time.Second)
	wantErr(t, "a principal, then", l.take("a", to("t"), at.Add(time.Second)), "", 0)
}

// TestBucketsThatAreWantedStay: those that a publication takes from are full, and are not forgotten
// while its topics get theirs.
func TestBucketsThatAreWantedStay(t *testing.T) {
	l := limitsOf(t, "publish: {principal: {per_second: 1, burst: 3000}, topics: {'**': {per_second: 1, burst: 9}}}")
	var topics []string
	for n := range 2 * fewBuckets {
		topics = append(topics, fmt.Sprint("t", n))
	}
	at := time.Unix(1000, 0)
	wantErr(t, "many topics", l.take("a", to(topics...), at), "", 0)
	wantErr(t, "more than is left", l.take("a", to(topics...), at), rateLimited, (4*fewBuckets-3000)*time.Second)
	pubs := []eventhub.Publication{{Events: to(topics...)}}
	l.Publisher(silent{}, "b").Enqueue(t.Context(), pubs, func([]eventhub.Publication) {})
	wantErr(t, "Enqueue", pubs[0].Err, "", 0)
	pubs[0].Events = to(topics...)
	l.Publisher(silent{}, "b").Enqueue(t.Context(), pubs, func([]eventhub.Publication) {})
	if eventhub.ErrorCode(pubs[0].Err) != rateLimited {
		t.Errorf("Enqueue, more than is left: %v", pubs[0].Err)
	}
}

// BenchmarkMeter is what the limit of a connection costs an event, with 32 in a read.
func BenchmarkMeter(b *testing.B) {
	l := New()
	if err := l.Take("limits.yaml", []byte("publish: {connection: {per_second: 1e9}}")); err != nil {
		b.Fatal(err)
	}
	m, at, n := l.Meter(), time.Now(), 0
	b.ReportAllocs()
	for b.Loop() {
		if n++; n%32 == 0 {
			at = at.Add(10 * time.Microsecond)
		}
		if err := m.Take(1, at); err != nil {
			b.Fatal(err)
		}
	}
}
