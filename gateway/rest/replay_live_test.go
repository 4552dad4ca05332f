package rest_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"eventhub"
)

// pageReader follows a replay of topic "t" from page to page, as next or a Link says.
type pageReader struct {
	base string
	next url.Values // what the next page is asked for by; nil after the last
}

// get reads a page and returns its offsets, or the problem that came instead.
func (p *pageReader) get(t *testing.T, cloudEvents bool) (offsets []uint64, problem eventhub.Code) {
	t.Helper()
	r, err := http.NewRequest("GET", p.base+"/replay?"+p.next.Encode(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if cloudEvents {
		r.Header.Set("Accept", "application/cloudevents-batch+json")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	var page struct {
		Code   eventhub.Code              `json:"code"`
		Events []struct{ Offset uint64 }  `json:"events"`
		Next   map[string]json.RawMessage `json:"next"`
	}
	var batch []struct {
		Offset string `json:"eventhuboffset"`
	}
	asked := p.next
	p.next = nil
	if !cloudEvents || answer.StatusCode != 200 {
		err = json.Unmarshal(body, &page)
	} else if err = json.Unmarshal(body, &batch); err == nil {
		link, _, _ := strings.Cut(strings.TrimPrefix(answer.Header.Get("Link"), "<?"), ">")
		if p.next, err = url.ParseQuery(link); link == "" {
			p.next = nil
		}
	}
	if err != nil {
		t.Fatalf("%v: %s", err, body)
	}
	for _, e := range page.Events {
		offsets = append(offsets, e.Offset)
	}
	for _, e := range batch {
		offset, err := strconv.ParseUint(e.Offset, 10, 64)
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		offsets = append(offsets, offset)
	}
	if page.Next != nil {
		p.next = url.Values{"topic": asked["topic"], "limit": asked["limit"]}
		for name, value := range page.Next {
			p.next.Set(name, strings.Trim(string(value), `"`))
		}
	}
	return offsets, page.Code
}

// TestReplayPagesOfOneLife: the pages of a replay are of one life of their topic. Where it
// is deleted between two of them, the second is an error and neither the end nor a part of
// what came under the name later.
func TestReplayPagesOfOneLife(t *testing.T) {
	h := startHub(t, "memory:")
	base := "http://" + h.HTTPAddr()
	send := func(method, path, body string) {
		r, err := http.NewRequest(method, base+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode/100 != 2 {
			t.Fatalf("%s %s: %s", method, path, answer.Status)
		}
	}
	publish := func(n int) {
		for range n {
			send("POST", "/publish/t", "1")
		}
	}
	publish(5)
	for _, cloudEvents := range []bool{false, true} {
		begin := func() *pageReader {
			p := &pageReader{base: base, next: url.Values{"topic": {"t"}, "limit": {"2"}}}
			if offsets, code := p.get(t, cloudEvents); len(offsets) != 2 || code != "" || p.next == nil {
				t.Fatalf("the first page has %v, problem %q, next %v", offsets, code, p.next)
			}
			return p
		}
		whole := begin()
		seen := 2
		for whole.next != nil {
			offsets, code := whole.get(t, cloudEvents)
			if seen += len(offsets); code != "" {
				t.Fatalf("problem %q", code)
			}
		}
		if seen != 5 {
			t.Errorf("pages have %d events; want 5", seen)
		}
		gone, again := begin(), begin()
		send("DELETE", "/v1/topics/t", "")
		if offsets, code := gone.get(t, cloudEvents); code != eventhub.CodeUnknownID {
			t.Errorf("after the first page of a topic that is deleted: %v, problem %q", offsets, code)
		}
		publish(5)
		if offsets, code := again.get(t, cloudEvents); code != eventhub.CodeUnknownID {
			t.Errorf("after the first page of a topic that was made again: %v, problem %q", offsets, code)
		}
	}
}
