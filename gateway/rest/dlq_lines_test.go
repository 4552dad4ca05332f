package rest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"eventhub"
	"eventhub/admin"
	"eventhub/internal/bubble"
)

// slowRedriver redrives one event every 0.4 s, and reports every second one.
type slowRedriver struct {
	admin.Redriver
	events int
	err    error // at the end
	mute   bool  // it reports nothing

	asked  admin.RedriveQuery
	result admin.RedriveResult
	ended  error
}

func (s *slowRedriver) Redrive(ctx context.Context, q admin.RedriveQuery) (admin.RedriveResult, error) {
	s.asked = q
	s.result = admin.RedriveResult{Topic: q.Topic, Applied: q.Apply, Groups: map[string]int{"g": 0}}
	for s.result.Redriven < s.events && s.ended == nil {
		select {
		case <-time.After(400 * time.Millisecond):
		case <-ctx.Done():
			s.ended = ctx.Err()
			continue
		}
		s.result.Matched++
		s.result.Redriven++
		s.result.Groups["g"]++
		s.result.After += 10
		if s.result.Redriven%2 == 0 && !s.mute {
			q.Progress(s.result)
		}
	}
	if s.ended == nil {
		s.ended = s.err
	}
	return s.result, s.ended
}

// redriveLine is a line of the answer, of whatever kind.
type redriveLine struct {
	Progress *admin.RedriveResult
	problem
	admin.RedriveResult
}

func askForLines(t *testing.T, client *http.Client, ctx context.Context) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, "POST", "http://hub/v1/dlq/t/redrive?apply=1&rate=7", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/x-ndjson, application/problem+json")
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	return answer
}

func linesIn(t *testing.T, answer *http.Response) (lines []redriveLine) {
	t.Helper()
	defer answer.Body.Close()
	b, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != 200 || answer.Header.Get("Content-Type") != "application/x-ndjson" {
		t.Fatalf("answered %d %v %s, %v", answer.StatusCode, answer.Header, b, err)
	}
	for line := range strings.Lines(string(b)) {
		var l redriveLine
		if err := json.Unmarshal([]byte(line), &l); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		lines = append(lines, l)
	}
	return lines
}

// TestRedriveTells how far it is, when the engine does, and then what came of it; also where
// that takes longer than a server's request may. Where the engine reports nothing it gives
// a sign of life.
func TestRedriveTells(t *testing.T) {
	for _, mute := range []bool{false, true} {
		bubble.Test(t, func(t *testing.T) {
			s := &slowRedriver{events: 251, mute: mute} // 100.4 s
			_, client := servePipes(t, Access{Redriver: s, Name: "me"})
			lines := linesIn(t, askForLines(t, client, t.Context()))
			reported := 125
			if mute {
				reported = 66
			}
			if len(lines) != reported+1 || !s.asked.Apply || s.asked.Rate != 7 || !strings.HasPrefix(s.asked.By, "me at ") {
				t.Fatalf("%d lines of %+v", len(lines), s.asked)
			}
			for i, l := range lines[:reported] {
				want := 2 * (i + 1)
				if mute {
					want = 0
				}
				if l.Progress == nil || l.Progress.Redriven != want || l.Progress.After != uint64(10*want) || l.Code != "" {
					t.Errorf("line %d is %+v; want %d", i+1, l.Progress, want)
				}
			}
			if l := lines[reported]; l.Progress != nil || l.Code != "" || !l.Applied || l.Redriven != 251 || l.RedriveResult.Groups["g"] != 251 || l.After != 2510 {
				t.Errorf("the last line is %+v", l)
			}
		})
	}
}

// TestRedriveThatEndsAtOnce is answered like any request.
func TestRedriveThatEndsAtOnce(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &slowRedriver{events: 1}
		_, client := servePipes(t, Access{Redriver: s})
		lines := linesIn(t, askForLines(t, client, t.Context()))
		if len(lines) != 1 || lines[0].Progress != nil || lines[0].Redriven != 1 {
			t.Errorf("%+v", lines)
		}
		s.result, s.err = admin.RedriveResult{}, eventhub.Errorf(eventhub.CodeOverloaded, "the disk is full")
		answer := askForLines(t, client, t.Context())
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != 503 || answer.Header.Get("Content-Type") != "application/problem+json" ||
			!strings.Contains(string(b), `"code":"overloaded","topic":"t","applied":true,"matched":1,"redriven":1,"groups":{"g":1},"after":10}`) {
			t.Errorf("%d %s, %v", answer.StatusCode, b, err)
		}
	})
}

// TestRedriveThatFails says how far it went, and nothing of the cause.
func TestRedriveThatFails(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &slowRedriver{events: 7, err: errors.New("disk on fire")}
		_, client := servePipes(t, Access{Redriver: s})
		lines := linesIn(t, askForLines(t, client, t.Context()))
		if l := lines[len(lines)-1]; len(lines) != 4 || l.Code != "internal" || l.problem.Status != 500 || l.After != 70 || l.Redriven != 7 || strings.Contains(l.Detail, "fire") {
			t.Errorf("%d lines, the last is %+v", len(lines), l)
		}
	})
}

// TestStopEndsRedrives in order: the last line says so, and how far it went. So does
// the problem of an answer without lines.
func TestStopEndsRedrives(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		s := &slowRedriver{events: 1000}
		api, client := servePipes(t, Access{Redriver: s})
		time.AfterFunc(2500*time.Millisecond, api.Stop)
		lines := linesIn(t, askForLines(t, client, t.Context()))
		if l := lines[len(lines)-1]; len(lines) != 4 || l.Code != "shutting_down" || l.After != 60 || l.Redriven != 6 {
			t.Errorf("%d lines, the last is %+v", len(lines), l)
		}
	})
	bubble.Test(t, func(t *testing.T) {
		s := &slowRedriver{events: 1000, mute: true}
		api, client := servePipes(t, Access{Redriver: s})
		time.AfterFunc(150*time.Second+1, api.Stop) // later than the server's bound on a request
		answer, err := client.Post("http://hub/v1/dlq/t/redrive", "application/json", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		b, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != 503 || !strings.Contains(string(b), `"code":"shutting_down","topic":"t","applied":false,"matched":375,`) {
			t.Errorf("%d %s, %v", answer.StatusCode, b, err)
		}
	})
}

// TestRedriveEndsInOrder: the last line says why, and how far it went, however it ends before it is
// through; and the connection is as it was. A client that takes nothing is not waited for.
func TestRedriveEndsInOrder(t *testing.T) {
	for code, ending := range endings {
		bubble.Test(t, func(t *testing.T) {
			s := &slowRedriver{events: 1000}
			access := Access{Redriver: s}
			stop := ending(&access, 2500*time.Millisecond)
			api, client := servePipes(t, access)
			stop(api)
			lines := linesIn(t, askForLines(t, client, t.Context()))
			if l := lines[len(lines)-1]; len(lines) != 4 || l.Code != code || l.After != 60 || l.Redriven != 6 {
				t.Errorf("%s: %d lines, the last is %+v", code, len(lines), l)
			}
			s.ended = nil
			answer := askForLines(t, client, t.Context()) // ended before it begins
			defer answer.Body.Close()
			if b, err := io.ReadAll(answer.Body); err != nil || code != eventhub.CodeShuttingDown && answer.StatusCode != 401 {
				t.Errorf("%s, and then: %d %s, %v", code, answer.StatusCode, b, err)
			}
		})
		bubble.Test(t, func(t *testing.T) {
			s := &slowRedriver{events: 1000}
			access := Access{Redriver: s}
			stop := ending(&access, 2500*time.Millisecond)
			api, client := servePipes(t, access)
			stop(api)
			answer := askForLines(t, client, t.Context())
			defer answer.Body.Close()
			time.Sleep(2500*time.Millisecond + endWait)
			synctest.Wait()
			if len(api.Measure().Requests) != 1 {
				t.Errorf("%s: it goes on for a client that takes nothing", code)
			}
		})
	}
}

// TestALostClientEndsItsRedrive, whether it has heard something or not.
func TestALostClientEndsItsRedrive(t *testing.T) {
	for _, wait := range []time.Duration{500 * time.Millisecond, 5 * time.Second} {
		bubble.Test(t, func(t *testing.T) {
			s := &slowRedriver{events: 1000}
			_, client := servePipes(t, Access{Redriver: s})
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(wait, cancel)
			r, err := http.NewRequestWithContext(ctx, "POST", "http://hub/v1/dlq/t/redrive?apply=1", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept", "application/x-ndjson")
			if answer, err := client.Do(r); err == nil {
				for in := bufio.NewScanner(answer.Body); in.Scan(); {
				}
				answer.Body.Close()
			}
			synctest.Wait()
			if want := int(wait / (400 * time.Millisecond)); !errors.Is(s.ended, context.Canceled) || s.result.Redriven != want {
				t.Errorf("gone after %s, it ended by %v with %+v; want %d", wait, s.ended, s.result, want)
			}
		})
	}
}

// TestAccessWithoutRedriver: another embedder's hub may have none.
func TestAccessWithoutRedriver(t *testing.T) {
	_, h := mount(t, Access{})
	for _, r := range [][3]string{{"GET", "/v1/dlq/t"}, {"GET", "/v1/dlq/t/1"}, {"POST", "/v1/dlq/t/redrive"}, {"POST", "/v1/dlq/t/1/requeue", "1"}} {
		if status, answer, _ := request(h, r[0], r[1], r[2]); status != 501 || !strings.Contains(answer, `"code":"unsupported_op"`) {
			t.Errorf("%v was answered %d %s", r, status, answer)
		}
	}
}

// TestPulledAgain: a delivery says how often its event was redriven.
func TestPulledAgain(t *testing.T) {
	d := tailEvent("a", 6, `"x"`)
	add := deliveredAs(&http.Request{})
	once := string(appendDelivery(nil, &d, add))
	d.Redriven = 12
	if got, want := string(appendDelivery(nil, &d, add)), strings.TrimSuffix(once, "}}")+`,"redriven":12}}`; got != want || strings.Contains(once, "redriven") {
		t.Errorf("%s\nand %s", once, got)
	}
}

// TestThePageOnDeadLetters: its examples have the fields that the answers have.
func TestThePageOnDeadLetters(t *testing.T) {
	file, err := os.ReadFile("../../docs/http.md")
	if err != nil {
		t.Fatal(err)
	}
	for title, into := range map[string]any{"A dead letter, as it comes:": &admin.DeadLetter{}, "and gives them back with `?apply=1`": &admin.RedriveResult{}} {
		_, example, _ := strings.Cut(string(file), title)
		_, example, _ = strings.Cut(example, "```json\n")
		decoder := json.NewDecoder(strings.NewReader(example))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(into); err != nil {
			t.Errorf("the example of a %T: %v", into, err)
		}
	}
}
