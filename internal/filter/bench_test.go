package filter

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"eventhub"
)

// BenchmarkMatch is the cost of one event, by what is asked and by the size of
// its payload.
func BenchmarkMatch(b *testing.B) {
	for _, size := range []int{256, 4 << 10} {
		r := encode(b, event{
			ID: "01989c3e-0000-7000-8000-000000000000", Key: "host-1:nginx:4711", SID: "session-1",
			Headers: headers{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "x-region": "eu-1", "x-tenant": "acme"},
			Tags:    []string{"#duck", "urgent"},
			Payload: fmt.Appendf(nil, `{"data":"%s","cpu":91.5,"state":"up"}`, bytes.Repeat([]byte("x"), size-40)),
		})
		for _, bench := range []struct {
			name   string
			filter filter
		}{
			{"key", filter{Key: "host-1:*"}},
			{"header", filter{Headers: headers{"x-region": "eu-1"}}},
			{"tag", filter{Tags: []string{"urgent"}}},
			{"all", filter{Key: "host-1:*", Headers: headers{"x-region": "eu-1"}, Tags: []string{"urgent"}}},
			{"cel-key", filter{CEL: `event.key.startsWith("host-1:")`}},
			{"cel-header", filter{CEL: `event.headers["x-region"] == "eu-1"`}},
			{"cel-tag", filter{CEL: `"urgent" in event.tags`}},
			{"cel-payload", filter{CEL: `event.payload.cpu > 90`}},
			{"cel-payload-2", filter{CEL: `event.payload.cpu > 90 && event.payload.state == "up"`}},
		} {
			b.Run(fmt.Sprintf("%s/payload=%d", bench.name, size), func(b *testing.B) {
				p := mustCompile(b, bench.filter)
				b.ReportAllocs()
				for b.Loop() {
					if !p.Match(r, 1) {
						b.Fatal("does not pass")
					}
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

// BenchmarkMatchLargest is the worst that members can be.
func BenchmarkMatchLargest(b *testing.B) {
	e, f := event{Key: "k", Headers: headers{}}, filter{Headers: headers{}}
	for i := range eventhub.MaxHeaders {
		name := fmt.Sprintf("x-header-number-%02d", i)
		e.Headers[name] = strings.Repeat("v", 200)
		f.Headers[name] = strings.Repeat("v", 100) + "*"
	}
	for i := range eventhub.MaxTags {
		tag := fmt.Sprintf("%0128d", i)
		e.Tags, f.Tags = append(e.Tags, tag), append(f.Tags, tag)
	}
	r, p := encode(b, e), mustCompile(b, f)
	b.ReportAllocs()
	for b.Loop() {
		if !p.Match(r, 1) {
			b.Fatal("does not pass")
		}
	}
}

func BenchmarkCompile(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		mustCompile(b, filter{CEL: `event.payload.cpu > 90 && "urgent" in event.tags`})
	}
}
