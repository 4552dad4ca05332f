package limits

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"eventhub"
	"eventhub/internal/measure"
)

func limitsOf(t *testing.T, file string) *Limits {
	t.Helper()
	l := New()
	if err := l.Take("limits.yaml", []byte(file)); err != nil {
		t.Fatal(err)
	}
	return l
}

func to(topics ...string) (events []eventhub.Event) {
	for _, topic := range topics {
		events = append(events, eventhub.Event{Topic: topic})
	}
	return events
}

// wantErr checks the code of a refusal and after how long it says to try again.
func wantErr(t *testing.T, what string, err error, code eventhub.Code, after time.Duration) {
	t.Helper()
	if code == "" && err == nil {
		return
	}
	if err == nil || eventhub.ErrorCode(err) != code || eventhub.AsError(err).RetryAfter != after {
		t.Errorf("%s: %v, retry after %v; want %q after %v", what, err, err != nil && eventhub.AsError(err).RetryAfter == after, code, after)
	}
}

const rateLimited, tooLarge = eventhub.CodeRateLimited, eventhub.CodeTooLarge

// TestBatchesTakeTheirTokensTogether: of principals and topics, each by itself; what is refused
// takes nothing from anybody.
func TestBatchesTakeTheirTokensTogether(t *testing.T) {
	l := limitsOf(t, `publish:
  principal: {per_second: 10, burst: 20}
  topics:
    "**": {per_second: 8}
    orders.**: {per_second: 4, burst: 6}
    orders.new: {per_second: 2}
`)
	at := time.Unix(1000, 0)
	take := func(who string, after time.Duration, topics ...string) error {
		return l.take(who, to(topics...), at.Add(after))
	}
	wantErr(t, "a burst", take("a", 0, "orders.x", "orders.x", "orders.x", "orders.x"), "", 0)
	wantErr(t, "more than is left", take("a", 0, "orders.x", "orders.x", "orders.x"), rateLimited, 250*time.Millisecond)
	wantErr(t, "it took nothing", take("b", 0, "orders.x", "orders.x"), "", 0)
	wantErr(t, "another topic of the pattern has its own", take("b", 0, "orders.y", "orders.y", "orders.y", "orders.y", "orders.y", "orders.y"), "", 0)
	wantErr(t, "the most exact counts", take("b", 0, "orders.new", "orders.new", "orders.new"), tooLarge, 0)
	wantErr(t, "more than ever passes", take("b", 0, "orders.x", "orders.x", "orders.x", "orders.x", "orders.x", "orders.x", "orders.x"), tooLarge, 0)
	wantErr(t, "in turns", take("c", 0, "u", "v", "u", "v", "u", "v", "u", "v", "u", "v", "u", "v", "u", "v", "u", "v", "u"), tooLarge, 0)
	wantErr(t, "in turns", take("c", 0, "u", "v", "u", "v", "u", "v", "u", "v", "u", "v", "u", "v", "u", "v"), "", 0)
	wantErr(t, "in turns, above", take("c", 0, "u", "v", "u", "v"), rateLimited, 125*time.Millisecond)
	wantErr(t, "all of a principal", take("c", 0, "w", "w", "w", "w", "w", "w"), "", 0)
	wantErr(t, "and no more", take("c", 0, "z"), rateLimited, 100*time.Millisecond)
	wantErr(t, "nobody else's matter", take("", 0, "z"), "", 0)
	wantErr(t, "too early", take("c", 99*time.Millisecond, "z"), rateLimited, time.Millisecond)
	wantErr(t, "in time", take("c", 101*time.Millisecond, "z"), "", 0)
	want := []measure.Limit{{Limit: ofPrincipal, PerSecond: 10, Refused: 2}, {Limit: ofTopic, Pattern: "**", PerSecond: 8, Refused: 2},
		{Limit: ofTopic, Pattern: "orders.**", PerSecond: 4, Refused: 2}, {Limit: ofTopic, Pattern: "orders.new", PerSecond: 2, Refused: 1}}
	if got := l.Measure(); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("measured %v; want %v", got, want)
	}
	if err := l.Take("limits.yaml", []byte("publish: {topics: {orders.x: {per_second: 1}}}")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "no limit any more", take("c", 0, "z"), "", 0)
	wantErr(t, "the new one", take("c", 0, "orders.x"), "", 0)
	wantErr(t, "the new one", take("c", 0, "orders.x"), rateLimited, time.Second)
}

// TestMeter: a connection has its own bucket, and new settings count at once.
func TestMeter(t *testing.T) {
	l := limitsOf(t, "publish: {connection: {per_second: 10}}")
	at := time.Unix(1000, 0)
	a, b := l.Meter(), l.Meter()
	wantErr(t, "a", a.Take(10, at), "", 0)
	wantErr(t, "a", a.Take(1, at), rateLimited, 100*time.Millisecond)
	wantErr(t, "a", a.Take(11, at), tooLarge, 0)
	wantErr(t, "b", b.Take(4, at), "", 0)
	wantErr(t, "b", b.Take(7, at), rateLimited, 100*time.Millisecond)
	wantErr(t, "b took nothing then", b.Take(6, at), "", 0)
	if err := l.Take("limits.yaml", []byte("publish: {connection: {per_second: 1}}")); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "a", a.Take(1, at), "", 0)
	wantErr(t, "a", a.Take(1, at), rateLimited, time.Second)
	if err := l.Take("limits.yaml", nil); err != nil {
		t.Fatal(err)
	}
	wantErr(t, "a", a.Take(1000, at), "", 0)
	if l.Measure() != nil {
		t.Error("there is a limit")
	}
}

// TestBucketsAreBounded: however many principals and topics come by; those that have taken
// something lately stay.
func TestBucketsAreBounded(t *testing.T) {
	l := limitsOf(t, "publish: {principal: {per_second: 1, burst: 2}, topics: {a.**: {per_second: 1000}}}")
	at := time.Unix(1000, 0)
	for n := range 20_000 {
		now := at.Add(time.Duration(n) * time.Millisecond)
		if n%100 == 0 {
			_ = l.take("busy", to("t", "t"), now)
		}
		if err := l.take(fmt.Sprint("p", n), to(fmt.Sprint("a.t", n)), now); err != nil {
			t.Fatal(err)
		}
		if n%100 == 1 && l.take("busy", to("t", "t"), now) == nil {
			t.Fatal("a bucket was forgotten that is not full")
		}
		if len(l.buckets) > 5000 {
			t.Fatalf("%d buckets after %d", len(l.buckets), n)
		}
	}
	for n := range maxBuckets + 10 {
		_ = l.take(fmt.Sprint("q", n), to("t"), at.Add(time.Hour))
	}
	if len(l.buckets) > maxBuckets+3 {
		t.Errorf("%d buckets", len(l.buckets))
	}
	wantErr(t, "who comes then shares one", l.take("late", to("t"), at.Add(time.Hour)), rateLimited, time.Second)
}

// TestFileOfLimits: what is wrong has its line.
func TestFileOfLimits(t *testing.T) {
	for file, want := range map[string]string{
		"":            "",
		"# nothing\n": "",
		"publish: {principal: {per_second: 0.5}}":                                           "",
		"publish:\n  connection: {per_second: 5}\n  principal: {per_second: 5, burst: 9}\n": "",
		"publish:\n  connection: {per_second: -5}\n":                                        `limits.yaml:2: per_second: "-5" is not a number above 0, up to 1000000000`,
		"publish:\n  connection:\n    per_second: 0\n":                                      `limits.yaml:3: per_second: "0" is not`,
		"publish:\n  connection: {per_second: .nan}\n":                                      `limits.yaml:2: per_second: ".nan" is not`,
		"publish:\n  connection: {per_second: NaN}\n":                                       `limits.yaml:2: per_second: "NaN" is not`,
		"publish:\n  connection: {per_second: 1e99}\n":                                      `limits.yaml:2: per_second: "1e99" is not`,
		"publish:\n  connection: {per_second: many}\n":                                      `limits.yaml:2: per_second: "many" is not`,
		"publish:\n  connection: {per_second: 5, burst: 0}\n":                               `limits.yaml:2: burst: "0" is not a number from 1`,
		"publish:\n  connection: {burst: 5}\n":                                              `limits.yaml:2: there is no per_second`,
		"publish:\n  conection: {per_second: 5}\n":                                          `limits.yaml:2: unknown name "conection"; did you mean connection?`,
		"publish:\n  connection: {persecond: 5}\n":                                          `did you mean per_second?`,
		"publsh: {}\n": `limits.yaml:1: unknown name "publsh"; did you mean publish?`,
		"publish:\n  principal: {per_second: 5}\n  connection: {per_second: 6}\n":           "limits.yaml:3: a connection may have more than its principal",
		"publish:\n  connection: {per_second: 5, burst: 7}\n  principal: {per_second: 5}\n": "limits.yaml:3: a connection may have more than its principal",
		"publish:\n  principal: {per_second: 5}\n  connection: {per_second: 6, burst: 1}\n": "limits.yaml:3: a connection may have more than its principal",
		"publish:\n  topics:\n    a.**: {per_second: 5}\n    a..b: {per_second: 5}\n":       "limits.yaml:4: ",
		"publish:\n  topics:\n    a.*: {per_second: 5}\n    '*.a': {per_second: 5}\n":       `limits.yaml:4: patterns "*.a" and "a.*" tie`,
		"publish:\n  topics:\n    a.*: {per_second: 5}\n    a.*: {per_second: 5}\n":         "limits.yaml:4: ",
		"publish: 5\n":                        "limits.yaml:1: ",
		"publish: {connection: 5}\n":          "limits.yaml:1: ",
		"publish:\n  connection: {per_second": "limits.yaml:",
	} {
		l := limitsOf(t, "publish: {principal: {per_second: 3}}")
		err := l.Take("limits.yaml", []byte(file))
		if want == "" && err == nil {
			continue
		}
		if err == nil || want == "" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %v; want %s", file, err, want)
		}
		if m := l.Measure(); len(m) != 1 || m[0].PerSecond != 3 {
			t.Errorf("%q: what was before is gone: %v", file, m)
		}
	}
}

// silent is a publisher that takes publications and does nothing.
type silent struct{ eventhub.Publisher }

func (silent) Enqueue(_ context.Context, pubs []eventhub.Publication, done func([]eventhub.Publication)) {
	done(pubs)
}

// TestEnqueueRefusesEachByItself: the others go on.
func TestEnqueueRefusesEachByItself(t *testing.T) {
	p := limitsOf(t, "publish: {topics: {a: {per_second: 1}}}").Publisher(silent{}, "")
	pubs := []eventhub.Publication{{Events: to("a")}, {Events: to("a")}, {Events: to("b")}, {Events: to("b", "a")}}
	var got []string
	p.Enqueue(t.Context(), pubs, func(pubs []eventhub.Publication) {
		for _, p := range pubs {
			code := ""
			if p.Err != nil {
				code = string(eventhub.ErrorCode(p.Err))
			}
			got = append(got, code)
		}
	})
	if fmt.Sprint(got) != "[ rate_limited  rate_limited]" {
		t.Errorf("refused: %q", got)
	}
	if _, err := p.Publish(t.Context(), to("a")...); eventhub.ErrorCode(err) != rateLimited {
		t.Errorf("Publish: %v", err)
	}
}

// BenchmarkEnqueue is what limits add to 64 publications of one event.
func BenchmarkEnqueue(b *testing.B) {
	l := New()
	if err := l.Take("limits.yaml", []byte("publish: {principal: {per_second: 1e9}, topics: {'**': {per_second: 1e9}}}")); err != nil {
		b.Fatal(err)
	}
	p := l.Publisher(silent{}, "billing")
	pubs := make([]eventhub.Publication, 64)
	for i := range pubs {
		pubs[i].Events = to("bench.t")
	}
	done := func(pubs []eventhub.Publication) {
		if pubs[0].Err != nil {
			b.Fatal(pubs[0].Err)
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		p.Enqueue(b.Context(), pubs, done)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(pubs)), "ns/event")
}

// What was refused before, and goes on to the engine for its number alone, takes nothing; what is
// refused here goes on with why.
func TestRefusedNumbersTakeNothing(t *testing.T) {
	l := limitsOf(t, "publish:\n  principal: {per_second: 1, burst: 3}\n")
	p := l.Publisher(silent{}, "a")
	producer := &eventhub.Producer{}
	refused := eventhub.Publication{Producer: producer, Seq: 1, Events: to("t", "t", "t")}
	if err := refused.Refuse(eventhub.Errorf(eventhub.CodeForbidden, "no")); err != nil {
		t.Fatal(err)
	}
	enqueue := func(pubs ...eventhub.Publication) []eventhub.Publication {
		p.Enqueue(t.Context(), pubs, func([]eventhub.Publication) {})
		return pubs
	}
	enqueue(refused, refused)
	got := enqueue(refused, eventhub.Publication{Producer: producer, Seq: 2, Events: to("t", "t", "t")}, eventhub.Publication{Producer: producer, Seq: 3, Events: to("t")})
	if got[0].Refused == nil || got[1].Refused != nil || eventhub.ErrorCode(got[2].Refused) != rateLimited || got[2].Err != nil {
		t.Errorf("%v, %v, %v, %v", got[0].Refused, got[1].Refused, got[2].Refused, got[2].Err)
	}
}
