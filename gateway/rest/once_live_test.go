package rest_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"eventhub"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/testsize"
)

// onceAnswer is any answer to a publish.
type onceAnswer struct {
	Status       int
	ID           string
	Offset       uint64
	DeliverAt    int64 `json:"deliver_at"`
	Duplicate    bool
	Duplicates   []int
	Receipts     []onceAnswer
	Code, Detail string
	Deliveries   []struct{ Ctx struct{ Lease string } }
}

// postOnce sends a request with the key, if it is not "".
func postOnce(ctx context.Context, url, key, body string, header ...string) (a onceAnswer, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return a, err
	}
	if key != "" {
		r.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return a, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil {
		err = json.Unmarshal(text, &a)
	}
	a.Status = answer.StatusCode
	return a, err
}

type poster struct {
	*testing.T
	base string
}

func (p *poster) post(path, key, body string, header ...string) onceAnswer {
	p.Helper()
	a, err := postOnce(p.Context(), p.base+path, key, body, header...)
	if err != nil {
		p.Fatal(err)
	}
	return a
}

// refused expects that a key was used for another publish.
func (p *poster) refused(path, key, body string, header ...string) {
	p.Helper()
	a := p.post(path, key, body, header...)
	if a.Status != http.StatusUnprocessableEntity || a.Code != string(eventhub.CodeConflict) || !strings.Contains(a.Detail, key) {
		p.Errorf("%s with the key %s of another publish: %+v", path, key, a)
	}
}

// again expects the answer of the first publish, with its events as duplicates.
func (p *poster) again(first onceAnswer, path, key, body string, header ...string) {
	p.Helper()
	a := p.post(path, key, body, header...)
	if a.Status != http.StatusOK && a.Status != first.Status || a.ID != first.ID || a.Offset != first.Offset || a.DeliverAt != first.DeliverAt || len(a.Receipts) != len(first.Receipts) {
		p.Errorf("%s with the key %s again: %+v\nat first: %+v", path, key, a, first)
	}
	if first.Receipts == nil && !a.Duplicate {
		p.Errorf("%s with the key %s again: %+v", path, key, a)
	}
	for i := range first.Receipts {
		if a.Receipts[i].ID != first.Receipts[i].ID || a.Receipts[i].Offset != first.Receipts[i].Offset || !a.Receipts[i].Duplicate {
			p.Errorf("%s with the key %s again: receipt %d is %+v\nat first: %+v", path, key, i, a.Receipts[i], first.Receipts[i])
		}
	}
}

func TestIdempotencyKey(t *testing.T) {
	dir := t.TempDir()
	var ones, twos, fours, later onceAnswer
	const four = `{"events":[{"topic":"d","payload":1},{"topic":"d","payload":2},{"topic":"d","payload":3},{"topic":"d","payload":4}]}`
	const batch = `{"events":[{"topic":"a","payload":1},{"topic":"b","id":"own","payload":2},{"topic":"b","key":"k","payload":{"n": 3}}]}`
	again := func(p *poster) {
		p.Helper()
		p.again(ones, "/publish/t?key=k&tags=x,y", `"one"`, `{"n":1}`, "x-attempt", "2")
		p.again(ones, "/publish/t?key=k&tags=x,y", `one`, ` { "n": 1 }`, "traceparent", "00-1")
		p.again(twos, "/v1/publish", `"two"`, batch)
		p.again(fours, "/v1/publish", `"four"`, four)
		p.again(later, "/publish/t?delay_ms=3600000", `"later"`, `5`)

		p.refused("/publish/t?key=k&tags=x,y", "one", `{"n":2}`)
		p.refused("/publish/t?key=k2&tags=x,y", "one", `{"n":1}`)
		p.refused("/publish/t?key=k&tags=x", "one", `{"n":1}`)
		p.refused("/publish/t?key=k&tags=x,y&sid=s", "one", `{"n":1}`)
		p.refused("/publish/t?key=k&tags=x,y&caused_by=c", "one", `{"n":1}`)
		p.refused("/publish/t?delay_ms=3600000", "later", `6`)
		p.refused("/v1/publish", "four", `{"events":[{"topic":"d","payload":1},{"topic":"d","payload":2}]}`)
		p.refused("/v1/publish", "two", `{"events":[{"topic":"c","payload":1},{"topic":"b","key":"k","payload":"lost"}]}`)
		p.refused("/v1/publish", "two", `{"events":[{"topic":"c","payload":1},{"topic":"b","key":"k","payload":{"n":3}}]}`)
		p.refused("/v1/publish", "two", `{"events":[{"topic":"a","payload":1},{"topic":"b","key":"k","payload":{"n":4}}]}`)
		p.refused("/v1/publish", "two", `{"events":[{"topic":"a","payload":1},{"topic":"c","key":"k","payload":{"n":3}}]}`)
		p.refused("/v1/publish", "two", `{"events":[{"topic":"a","payload":1},{"topic":"b","key":"k","payload":{"n":3}},{"topic":"a","payload":7}]}`)
	}
	on := func(h *hub.Hub) *poster { return &poster{t, "http://" + h.HTTPAddr()} }
	heads := func(h *hub.Hub) (heads string) {
		t.Helper()
		admin, err := client.NewAdmin("ws://" + h.WSAddr())
		if err != nil {
			t.Fatal(err)
		}
		topics, err := admin.Topics(t.Context(), "", 100)
		if err != nil {
			t.Fatal(err)
		}
		for _, topic := range topics {
			if !strings.HasPrefix(topic.Topic, "system.") {
				heads += fmt.Sprintf("%s=%d ", topic.Topic, topic.Head)
			}
		}
		return heads
	}
	t.Run("first", func(t *testing.T) {
		h := startHub(t, dir)
		p := on(h)
		ones = p.post("/publish/t?key=k&tags=x,y", `"one"`, `{"n":1}`)
		twos = p.post("/v1/publish", `"two"`, batch)
		fours = p.post("/v1/publish", `"four"`, four)
		later = p.post("/publish/t?delay_ms=3600000", `"later"`, `5`)
		if ones.Status != http.StatusOK || ones.Offset != 1 || twos.Status != http.StatusOK || len(twos.Receipts) != 3 || twos.Receipts[1].ID != "own" || later.Status != http.StatusAccepted {
			t.Fatalf("first answers: %+v\n%+v\n%+v", ones, twos, later)
		}
		again(p)
		// Without the key, with another one, in another topic, they are other publishes.
		for _, key := range []string{"", "other"} {
			if a := p.post("/publish/t?key=k&tags=x,y", key, `{"n":1}`); a.Duplicate || a.Status != http.StatusOK {
				t.Errorf("with the key %q: %+v", key, a)
			}
		}
		if a := p.post("/publish/u", "one", `{"n":1}`); a.Duplicate || a.Status != http.StatusOK || a.Offset != 1 {
			t.Errorf("in another topic: %+v", a)
		}
		// A key of a batch in other topics.
		one := p.post("/publish/e", "two", `1`)
		p.again(one, "/publish/e", "two", `1`)
		// What is refused has not used its key.
		if a := p.post("/publish/t", "late", `{`); a.Status != http.StatusBadRequest {
			t.Errorf("a bad payload: %+v", a)
		}
		if a := p.post("/publish/t", "late", `{}`); a.Status != http.StatusOK || a.Duplicate {
			t.Errorf("after a refusal: %+v", a)
		}
		if a := p.post("/publish/t", `"`, `{}`); a.Status != http.StatusBadRequest || a.Code != string(eventhub.CodeBadRequest) {
			t.Errorf("a bad key: %+v", a)
		}
		// An id of the publisher's own is what counts.
		for i, want := range []bool{false, true} {
			if a := p.post("/publish/t?id=mine", fmt.Sprint("key-", i), `{}`); a.ID != "mine" || a.Duplicate != want {
				t.Errorf("publish %d with an id: %+v", i, a)
			}
		}
		if got, want := heads(h), "a=1 b=2 d=4 e=1 t=5 u=1 "; got != want {
			t.Errorf("the topics have %s; want %s", got, want)
		}
	})
	t.Run("after a restart", func(t *testing.T) {
		h := startHub(t, dir)
		again(on(h))
		if got, want := heads(h), "a=1 b=2 d=4 e=1 t=5 u=1 "; got != want {
			t.Errorf("the topics have %s; want %s", got, want)
		}
	})
}

// TestIdempotencyKeysUnderWay has clients that give up early, at random moments, and come again
// with the same key, each in several requests at once. Every key is in the log once.
func TestIdempotencyKeysUnderWay(t *testing.T) {
	h := startHub(t, t.TempDir())
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	const requests = 3
	keys := testsize.Of(60, 15)
	var all sync.WaitGroup
	var mu sync.Mutex
	offsets := map[string]map[uint64]bool{}
	var underWay int
	for k := range keys {
		key, n := fmt.Sprint("key-", k), k%4+1
		body := `{"events":[` + strings.TrimSuffix(strings.Repeat(fmt.Sprintf(`{"topic":"t","payload":%d},`, k), n), ",") + `]}`
		for i := range requests {
			all.Go(func() {
				random := rand.New(rand.NewPCG(seed, uint64(k*requests+i)))
				for patient := time.Duration(1); ; patient++ {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(random.Int64N(int64(patient)*int64(time.Millisecond))))
					a, err := postOnce(ctx, "http://"+h.HTTPAddr()+"/v1/publish", key, body)
					gaveUp := ctx.Err() != nil
					cancel()
					switch {
					case err != nil && gaveUp:
						continue
					case err != nil:
						t.Error(err)
						return
					case a.Status == http.StatusConflict && strings.Contains(a.Detail, "under way"):
						mu.Lock()
						underWay++
						mu.Unlock()
						continue
					case a.Status != http.StatusOK || len(a.Receipts) != n:
						t.Errorf("key %s: %+v", key, a)
						return
					}
					mu.Lock()
					if offsets[key] == nil {
						offsets[key] = map[uint64]bool{}
					}
					for _, r := range a.Receipts {
						offsets[key][r.Offset] = true
					}
					mu.Unlock()
					return
				}
			})
		}
	}
	all.Wait()
	var want uint64
	for k := range keys {
		n := k%4 + 1
		want += uint64(n)
		if got := len(offsets[fmt.Sprint("key-", k)]); got != n {
			t.Errorf("key %d of %d events is at %d offsets", k, n, got)
		}
	}
	admin, err := client.NewAdmin("ws://" + h.WSAddr())
	if err != nil {
		t.Fatal(err)
	}
	topic, err := admin.Topic(t.Context(), "t")
	if err != nil || topic.Head != want {
		t.Errorf("the topic has %d events, %v; want %d", topic.Head, err, want)
	}
	t.Logf("%d requests came while another one with their key was under way", underWay)
}

// TestIdempotencyKeyThatWaits: a publish that waits for a group holds its key until it is answered,
// and after that waits again.
func TestIdempotencyKeyThatWaits(t *testing.T) {
	h := startHub(t, t.TempDir())
	p := &poster{t, "http://" + h.HTTPAddr()}
	const group = "/v1/topics/t/groups/g/"
	p.post(group+"pull?wait_ms=0", "", `{"from":"earliest"}`)
	first := make(chan onceAnswer)
	go func() { first <- p.post("/publish/t?wait_for=g&wait_ms=300000", "w", `1`) }()
	leased := p.post(group+"pull?wait_ms=60000", "", `{}`)
	if len(leased.Deliveries) != 1 {
		t.Fatalf("pulled: %+v", leased)
	}
	if a := p.post("/publish/t?wait_for=g&wait_ms=300000", "w", `1`); a.Status != http.StatusConflict || !strings.Contains(a.Detail, "under way") {
		t.Errorf("while the first waits: %+v", a)
	}
	p.post(group+"ack", "", fmt.Sprintf(`{"leases":[%q]}`, leased.Deliveries[0].Ctx.Lease))
	a := <-first
	if a.Status != http.StatusOK || a.Offset != 1 || a.Duplicate {
		t.Fatalf("the first: %+v", a)
	}
	p.again(a, "/publish/t?wait_for=g&wait_ms=300000", "w", `1`)
}
