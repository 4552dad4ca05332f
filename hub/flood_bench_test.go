package hub_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gobwas/ws/wsutil"

	"eventhub/hub"
)

// BenchmarkFloodOfUnknownKids is what clients with good tokens see of others that bring tokens of
// keys that nobody knows, as fast as they are refused, by new connections and by requests: the p99
// of durable publishes without that and during it, how many were refused, and how often the keys were
// fetched because of it. It takes 10 s: -benchtime 1x.
func BenchmarkFloodOfUnknownKids(b *testing.B) {
	public, private, err := ed25519.GenerateKey(nil)
	if err != nil {
		b.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	sign := func(kid string) string {
		text := encode(fmt.Appendf(nil, `{"alg":"EdDSA","kid":%q}`, kid)) + "." +
			encode(fmt.Appendf(nil, `{"exp":%d,"scopes":["*"]}`, time.Now().Add(time.Hour).Unix()))
		return text + "." + encode(ed25519.Sign(private, []byte(text)))
	}
	var fetches atomic.Int64
	keys := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fetches.Add(1)
		fmt.Fprintf(w, `{"keys":[{"kty":"OKP","crv":"Ed25519","alg":"EdDSA","kid":"good","x":%q}]}`, encode(public))
	}))
	defer keys.Close()
	h, err := hub.Start(hub.Config{Store: b.TempDir(), JWKSURL: keys.URL, WSAddr: "127.0.0.1:0", HTTPAddr: "127.0.0.1:0", OpsAddr: "127.0.0.1:0"})
	if err != nil {
		b.Fatal(err)
	}
	defer h.Stop(context.Background())
	f := &flood{B: b, h: h, good: sign("good")}
	for range b.N {
		quiet := f.publish(5 * time.Second)
		before := fetches.Load()
		stop := f.begin(func(n int64) string { return sign(fmt.Sprint("unknown", n)) })
		loud := f.publish(5 * time.Second)
		stop()
		b.ReportMetric(quiet.Seconds()*1000, "quiet-p99-ms")
		b.ReportMetric(loud.Seconds()*1000, "flood-p99-ms")
		b.ReportMetric(float64(f.refused.Load()), "refused")
		b.ReportMetric(float64(fetches.Load()-before), "fetches")
	}
}

type flood struct {
	*testing.B
	h       *hub.Hub
	good    string
	refused atomic.Int64
}

// publish has four clients publish one event after the other, and returns the p99 of the answers.
func (f *flood) publish(d time.Duration) time.Duration {
	var mu sync.Mutex
	var all []time.Duration
	var clients sync.WaitGroup
	for range 4 {
		conn := connectAs(f, f.h.WSAddr(), f.good)
		clients.Go(func() {
			defer conn.Close()
			frame := masked([]byte(`{"op":"PUBLISH","topic":"t","payload":1}`))
			for began := time.Now(); time.Since(began) < d; {
				sent := time.Now()
				if _, err := conn.Write(frame); err != nil {
					f.Error(err)
					return
				}
				if _, err := wsutil.ReadServerText(conn); err != nil {
					f.Error(err)
					return
				}
				mu.Lock()
				all = append(all, time.Since(sent))
				mu.Unlock()
				time.Sleep(2 * time.Millisecond)
			}
		})
	}
	clients.Wait()
	slices.Sort(all)
	return all[len(all)*99/100]
}

// begin has eight bring bad tokens until stop is called.
func (f *flood) begin(token func(n int64) string) (stop func()) {
	over := make(chan struct{})
	var bad sync.WaitGroup
	var serial atomic.Int64
	for i := range 8 {
		bad.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
				}
				text := token(serial.Add(1))
				if i%2 == 0 {
					f.refuseRequest(text)
				} else {
					f.refuseConnection(text)
				}
				f.refused.Add(1)
			}
		})
	}
	return func() { close(over); bad.Wait() }
}

func (f *flood) refuseRequest(token string) {
	r, err := http.NewRequest(http.MethodGet, "http://"+f.h.HTTPAddr()+"/v1/topics", nil)
	if err != nil {
		f.Error(err)
		return
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil || answer.StatusCode != http.StatusUnauthorized {
		f.Errorf("a token of an unknown key: %+v, %v", answer, err)
		return
	}
	answer.Body.Close()
}

func (f *flood) refuseConnection(token string) {
	conn := dial(f, f.h.WSAddr())
	defer conn.Close()
	if _, err := conn.Write(masked(fmt.Appendf(nil, `{"op":"AUTH","token":%q}`, token))); err != nil {
		f.Error(err)
		return
	}
	if said, err := wsutil.ReadServerText(conn); err != nil || !bytes.Contains(said, []byte(`"jwt_invalid"`)) {
		f.Errorf("AUTH: %s, %v", said, err)
	}
}
