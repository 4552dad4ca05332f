package client_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/auth"
	"eventhub/client"
	"eventhub/hub"
	"eventhub/internal/bubble"
	"eventhub/internal/testsize"
)

const hubSecret = "0123456789abcdef0123456789abcdef"

// issued makes a token that lasts so long.
func issued(ttl time.Duration) (string, error) {
	now := time.Now()
	return auth.SecretSigner(hubSecret).Mint(auth.Claims{Subject: "ann", Scopes: []string{"*"}, Issued: now.Unix(), Expires: now.Add(ttl).Unix()})
}

// renewing is a hub with short tokens and a client of it, in a bubble.
type renewing struct {
	t      *testing.T
	client *client.Client
	dials  atomic.Int64
	asked  atomic.Int64 // for a token

	mu  sync.Mutex
	log strings.Builder // of the hub and the client
}

// Write is what the loggers write to.
func (r *renewing) Write(line []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.log.Write(line)
}

// lines returns how many lines of the logs have a text.
func (r *renewing) lines(text string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Count(r.log.String(), text)
}

func withTokens(t *testing.T, source func(context.Context) (string, error), test func(*renewing)) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) {
		client.EmptyPools()
		defer client.EmptyPools()
		r := &renewing{t: t}
		logger := slog.New(slog.NewTextHandler(r, nil))
		h, network := pipedHub(t, hub.Config{Logger: logger, JWTSecret: hubSecret})
		var err error
		r.client, err = client.Dial(t.Context(), "ws://"+h.WSAddr(), client.WithLogger(logger),
			client.WithNetDial(func(ctx context.Context, kind, addr string) (net.Conn, error) {
				r.dials.Add(1)
				return network.Dial(ctx, kind, addr)
			}),
			client.WithTokenSource(func(ctx context.Context) (string, error) {
				r.asked.Add(1)
				return source(ctx)
			}))
		if err != nil {
			t.Fatal(err)
		}
		test(r)
		if err := errors.Join(r.client.Close(), h.Stop(context.Background())); err != nil {
			t.Error(err)
		}
	})
}

// traffic publishes an event each 200 ms for so long and has a group ack all of them; each is
// in the topic once, and comes once where the connection is never lost.
func (r *renewing) traffic(lasts time.Duration) {
	r.t.Helper()
	total := int(lasts / (200 * time.Millisecond))
	ctx, stop := context.WithCancel(r.t.Context())
	var mu sync.Mutex
	came := make(map[string]int)
	var consuming sync.WaitGroup
	consuming.Go(func() {
		if err := r.client.Consume(ctx, eventhub.GroupOptions{Topic: "a", Group: "g", Start: eventhub.Earliest}, func(_ context.Context, d eventhub.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			came[string(d.Record.ID())]++
			return nil
		}); err != nil {
			r.t.Error(err)
		}
	})
	offsets := make(map[uint64]bool)
	for n := range total {
		receipts, err := r.client.Publish(ctx, eventhub.Event{Topic: "a", ID: fmt.Sprint(n), Payload: []byte("1")})
		if err != nil || receipts[0].Duplicate && r.dials.Load() == 1 || offsets[receipts[0].Offset] {
			r.t.Fatalf("event %d: %+v, %v", n, receipts, err)
		}
		offsets[receipts[0].Offset] = true
		time.Sleep(200 * time.Millisecond)
	}
	time.Sleep(time.Minute)
	synctest.Wait()
	stop()
	consuming.Wait()
	if len(offsets) != total || len(came) != total {
		r.t.Errorf("%d of %d are in the topic, and %d came", len(offsets), total, len(came))
	}
	for id, n := range came {
		if n != 1 && r.dials.Load() == 1 {
			r.t.Errorf("%s came %d times", id, n)
		}
	}
}

// TestTokensAreRenewed: a client whose tokens last 20 s keeps one connection for minutes.
func TestTokensAreRenewed(t *testing.T) {
	withTokens(t, func(context.Context) (string, error) { return issued(20 * time.Second) }, func(r *renewing) {
		r.traffic(4 * time.Minute)
		if n := r.dials.Load(); n != 1 {
			t.Errorf("%d connections; want 1", n)
		}
		if n := r.asked.Load(); n < 20 || n > 24 { // every 15 s in 5 min
			t.Errorf("the source was asked %d times", n)
		}
	})
}

// TestShortTokensAreRenewed: also such as last not much longer than a question takes.
func TestShortTokensAreRenewed(t *testing.T) {
	withTokens(t, func(context.Context) (string, error) {
		time.Sleep(time.Second)
		return issued(3 * time.Second)
	}, func(r *renewing) {
		time.Sleep(4 * time.Second) // a token is not asked for again sooner than this, however short it is
		if n := r.asked.Load(); n != 1 {
			t.Errorf("the source was asked %d times in 4 s; want 1", n)
		}
		r.traffic(time.Minute)
		if n := r.dials.Load(); n != 1 {
			t.Errorf("%d connections; want 1", n)
		}
	})
}

// TestTokenSourceFails: a source that fails is asked again until the token ends; then the hub
// closes the connection, and the next one begins when the source works. Nothing is lost or
// doubled.
func TestTokenSourceFails(t *testing.T) {
	var mu sync.Mutex
	var began time.Time
	withTokens(t, func(context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		if began.IsZero() {
			began = time.Now()
		}
		if since := time.Since(began); since > 10*time.Second && since < 50*time.Second {
			return "", errors.New("the issuer is away")
		}
		return issued(20 * time.Second)
	}, func(r *renewing) {
		r.traffic(2 * time.Minute)
		if n := r.dials.Load(); n != 2 {
			t.Errorf("%d connections; want 2", n)
		}
		// After 15 s, 18.75 s, and from then on once a second until the hub closes after 25 s.
		if n := r.lines("the token was not renewed"); n != 8 {
			t.Errorf("%d warnings; want 8:\n%s", n, r.log.String())
		}
	})
}

// TestTokenIsLate: a source whose token has ended is asked again until it has another one, however
// late, and also where the hub does not know the key of that yet. A token that was given for good
// ends the client.
func TestTokenIsLate(t *testing.T) {
	const late = 3 * time.Minute
	var mu sync.Mutex
	var began time.Time
	var first string
	withTokens(t, func(context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		var err error
		if began.IsZero() {
			began = time.Now()
			first, err = issued(20 * time.Second)
		}
		switch since := time.Since(began); {
		case since < late:
			return first, err
		case since < late+30*time.Second:
			now := time.Now()
			return auth.SecretSigner(strings.Repeat("new", 20)).Mint(auth.Claims{Subject: "ann", Scopes: []string{"*"}, Issued: now.Unix(), Expires: now.Add(time.Hour).Unix()})
		}
		return issued(20 * time.Second)
	}, func(r *renewing) {
		r.traffic(5 * time.Minute)
		if r.lines("The token has expired.") == 0 || r.lines("connected again") != 1 {
			t.Errorf("the logs are\n%s", r.log.String())
		}
	})
	bubble.Test(t, func(t *testing.T) {
		h, network := pipedHub(t, hub.Config{JWTSecret: hubSecret})
		token, err := issued(20 * time.Second)
		if err != nil {
			t.Fatal(err)
		}
		c, err := client.Dial(t.Context(), "ws://"+h.WSAddr(), client.WithNetDial(network.Dial), client.WithToken(token))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if _, err := c.Publish(t.Context(), event("a", "1")); eventhub.ErrorCode(err) != eventhub.CodeJWTInvalid {
			t.Errorf("published with a fixed token that has ended: %v", err)
		}
		if err := errors.Join(c.Close(), h.Stop(context.Background())); err != nil {
			t.Error(err)
		}
	})
}

// TestRandomTokens: whatever a source does and for how long, fresh tokens, the same one again, none,
// no answer, one of another key and one that is no token, a client goes on once there are good
// ones; everything is published once and comes. Only a hub that refuses for another reason ends it.
func TestRandomTokens(t *testing.T) {
	seed := drawSeed(t)
	for i := range testsize.Of(100, 5) {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		var mu sync.Mutex
		var until time.Time // for so long it does what it does
		var over time.Time
		var last string
		does := 0
		ok := t.Run(fmt.Sprintf("history=%d", i), func(t *testing.T) {
			withTokens(t, func(ctx context.Context) (string, error) {
				mu.Lock()
				defer mu.Unlock()
				now := time.Now()
				if over.IsZero() {
					over = now.Add(3 * time.Minute)
					until = now.Add(time.Second)
				}
				if now.After(until) {
					until, does = now.Add(time.Duration(1+r.IntN(60))*time.Second), r.IntN(7)
				}
				if now.After(over) {
					does = 0
				}
				switch does {
				case 1, 2:
					return last, nil
				case 3:
					return "", errors.New("the issuer is away")
				case 4:
					mu.Unlock()
					<-ctx.Done()
					mu.Lock()
					return "", ctx.Err()
				case 5:
					return auth.SecretSigner(strings.Repeat("other", 10)).Mint(auth.Claims{Subject: "ann", Scopes: []string{"*"}, Issued: now.Unix(), Expires: now.Add(time.Hour).Unix()})
				case 6:
					return "half.a.toke", nil
				}
				var err error
				last, err = issued(time.Duration(2+r.IntN(30)) * time.Second)
				return last, err
			}, func(r *renewing) { r.traffic(2 * time.Minute) })
		})
		if !ok {
			t.Fatalf("history %d of -seed=%d", i, seed)
		}
	}
}

// TestSlowTokenSource: a source that does not answer holds up nothing, and Close ends it.
func TestSlowTokenSource(t *testing.T) {
	var asked atomic.Bool
	withTokens(t, func(ctx context.Context) (string, error) {
		if asked.CompareAndSwap(false, true) {
			return issued(time.Minute)
		}
		<-ctx.Done()
		return "", ctx.Err()
	}, func(r *renewing) {
		time.Sleep(46 * time.Second)
		synctest.Wait()
		time.Sleep(14 * time.Second) // it is given up after 10 s, and asked again
		synctest.Wait()
		if n := r.asked.Load(); n != 3 {
			t.Errorf("the source was asked %d times in a minute; want 3", n)
		}
		before := time.Now()
		if _, err := r.client.Publish(r.t.Context(), event("a", `1`)); err != nil || r.asked.Load() != 3 {
			t.Errorf("%v, asked %d times", err, r.asked.Load())
		}
		r.client.Close()
		if took := time.Since(before); took != 0 {
			t.Errorf("it took %s", took)
		}
	})
}

// TestRefusedRenewal leaves the token that there is.
func TestRefusedRenewal(t *testing.T) {
	var asked atomic.Int64
	withTokens(t, func(context.Context) (string, error) {
		if asked.Add(1) == 2 {
			return "wrong.wrong.wrong", nil
		}
		return issued(time.Minute)
	}, func(r *renewing) {
		r.traffic(2 * time.Minute)
		if n := r.dials.Load(); n != 1 {
			t.Errorf("%d connections; want 1", n)
		}
		if r.lines("the token was not renewed") != 1 || r.lines("jwt_invalid") == 0 || r.lines("wrong.wrong") != 0 {
			t.Errorf("the logs are\n%s", r.log.String())
		}
	})
}

// TestSameToken is not presented again, however often the source returns it.
func TestSameToken(t *testing.T) {
	var once sync.Once
	var token string
	var err error
	withTokens(t, func(context.Context) (string, error) {
		once.Do(func() { token, err = issued(time.Minute) })
		return token, err
	}, func(r *renewing) {
		time.Sleep(time.Minute)
		synctest.Wait()
		if asked, auths := r.asked.Load(), r.lines("msg=audit action=auth by=ann"); asked < 4 || auths != 1 || r.dials.Load() != 1 {
			t.Errorf("asked %d times, with %d AUTHs over %d connections; want one AUTH", asked, auths, r.dials.Load())
		}
	})
}

// TestEndOf: what is no time of a token's end does not count as one.
func TestEndOf(t *testing.T) {
	of := func(claims string) string {
		return "e30." + base64.RawURLEncoding.EncodeToString([]byte(claims)) + ".c2ln"
	}
	for _, token := range []string{
		"", "s3cret", "a.b", of(`{}`), of(`{"exp":0}`), of(`{"exp":-5}`), of(`{"exp":1e300}`), of(`{"exp":"1"}`), of(`[`), "e30.!.c2ln", of(`{"exp":1900000000}`) + ".more",
	} {
		if end, ok := client.EndOf(token); ok {
			t.Errorf("%q ends at %s", token, end)
		}
	}
	if end, ok := client.EndOf(of(`{"exp":1900000000.9}`)); !ok || end.Unix() != 1900000000 {
		t.Errorf("it ends at %s, %v", end, ok)
	}
}

// TestLongTokens are asked for again once a day.
func TestLongTokens(t *testing.T) {
	withTokens(t, func(context.Context) (string, error) { return issued(10 * 365 * 24 * time.Hour) }, func(r *renewing) {
		time.Sleep(23 * time.Hour)
		if n := r.asked.Load(); n != 1 {
			t.Errorf("the source was asked %d times; want 1", n)
		}
		time.Sleep(2 * time.Hour)
		if n := r.asked.Load(); n != 2 {
			t.Errorf("the source was asked %d times in a day; want 2", n)
		}
	})
}

// TestTokenFile: it is read anew, and what is wrong with it is said without its content.
func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	h := startHub(t, hub.Config{AuthToken: "s3cret"})
	put("s3cret\n")
	c, err := client.Dial(bounded(t), "ws://"+h.WSAddr(), client.WithTokenFile(path))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Admin().Topics(bounded(t), "", 1); err != nil {
		t.Error(err)
	}
	put("s3cret\r\n")
	if _, err := c.Admin().Topics(bounded(t), "", 1); err != nil {
		t.Error(err)
	}
	for content, want := range map[string]string{"": "is empty", strings.Repeat("s3cret", 4000): "more than", "wr0ng": "bad_token"} {
		put(content)
		if _, err := c.Admin().Topics(bounded(t), "", 1); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%.10q: %v; want %q", content, err, want)
		}
	}
}
