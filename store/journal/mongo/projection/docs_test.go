package projection

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"eventhub"
	"eventhub/internal/mongotest"
	"eventhub/store/memory"
)

// query is one of the page: a call of a collection in JSON, and what it returns.
type query struct {
	info, text, want string
}

var queryBlock = regexp.MustCompile("(?s)```js([^\n]*)\n(.*?)\n```\n```json\n(.*?)\n```")

// TestDocumentedQueries: each query of docs/mongodb.md returns what the page says.
func TestDocumentedQueries(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/mongodb.md")
	if err != nil {
		t.Fatal(err)
	}
	var all []query
	for _, m := range queryBlock.FindAllStringSubmatch(string(page), -1) {
		all = append(all, query{strings.TrimSpace(m[1]), m[2], m[3]})
	}
	if n := strings.Count(string(page), "```js\n") + strings.Count(string(page), "```js "); len(all) != n || n < 10 {
		t.Fatalf("%d queries with an answer of %d", len(all), n)
	}
	r := documented(t)
	for _, q := range all {
		got, err := r.query(q.text)
		if q.info == "only-mongodb" && !mongotest.Real() {
			if err == nil {
				t.Errorf("FerretDB can do %s", q.text)
			}
			continue
		}
		if err != nil || q.info != "" && q.info != "only-mongodb" {
			t.Errorf("%s %s: %v", q.info, q.text, err)
		} else if got != compacted(t, q.want) {
			t.Errorf("%s\nreturns\n%s; the page has\n%s", q.text, got, compacted(t, q.want))
		}
	}
}

// documented has the events of the page.
func documented(t *testing.T) *rig {
	r := newRig(t, "process.state")
	_ = r.store.Close()
	now := time.UnixMilli(1767225600000)
	r.store = memory.Open(memory.Options{Now: func() time.Time { return now }})
	r.lead()
	c7 := map[string]string{"correlationId": "c7"}
	for _, e := range []eventhub.Event{
		{Topic: "orders", ID: "o-1", Key: "customer-1", Payload: []byte(`{"total":12.5}`)},
		{Topic: "orders", ID: "o-2", Key: "customer-2", Payload: []byte(`{"total":300}`)},
		{Topic: "orders", ID: "o-3", Key: "customer-1", Payload: []byte(`{"total":99}`), Headers: c7},
		{Topic: "process.state", ID: "p-1", Key: "host1:web:7", Payload: []byte(`{"state":"running"}`)},
		{Topic: "process.state", ID: "p-2", Key: "host1:worker:8", Payload: []byte(`{"state":"running"}`)},
		{Topic: "process.state", ID: "p-3", Key: "host1:web:7", Payload: []byte(`{"state":"stopped"}`), Headers: c7},
		{Topic: "orders", ID: "o-4", Key: "customer-3", Payload: []byte(`{"total":7}`)},
	} {
		if now = now.Add(time.Second); e.ID == "o-4" {
			now = now.Add(24 * time.Hour)
		}
		r.publish(e)
	}
	r.cursor("orders", "billing", 3, true)
	r.cursor("orders", "reports", 1, true)
	r.settle()
	r.same()
	return r
}

var calls = regexp.MustCompile(`\.(find|aggregate|countDocuments|sort|limit)\(`)

// query runs db.COLLECTION.find(FILTER, PROJECTION).sort(ORDER).limit(N), aggregate(PIPELINE) or countDocuments(FILTER), and
// returns a line for each document.
func (r *rig) query(text string) (string, error) {
	r.t.Helper()
	at := calls.FindAllStringSubmatchIndex(text, -1)
	collection := r.db.Collection(strings.TrimPrefix(text[:at[0][0]], "db."))
	find := options.Find()
	var filter any
	for i := len(at) - 1; i >= 0; i-- {
		end := len(text)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		args := r.arguments(strings.TrimSuffix(text[at[i][1]:end], ")"))
		switch name := text[at[i][2]:at[i][3]]; name {
		case "sort":
			find.SetSort(args[0])
		case "limit":
			find.SetLimit(int64(args[0].(int32)))
		case "countDocuments":
			n, err := collection.CountDocuments(limited(r.t), args[0])
			return string(mustJSON(r.t, n)) + "\n", err
		case "aggregate":
			found, err := collection.Aggregate(limited(r.t), args[0])
			if err != nil {
				return "", err
			}
			return r.lines(found)
		case "find":
			if filter = args[0]; len(args) > 1 {
				find.SetProjection(args[1])
			}
		}
	}
	found, err := collection.Find(limited(r.t), filter, find)
	if err != nil {
		return "", err
	}
	return r.lines(found)
}

func (r *rig) lines(found *mongo.Cursor) (string, error) {
	var all []bson.D
	if err := found.All(limited(r.t), &all); err != nil {
		return "", err
	}
	var b strings.Builder
	for _, d := range all {
		text, err := bson.MarshalExtJSON(d, false, false)
		if err != nil {
			return "", err
		}
		b.WriteString(compacted(r.t, string(text)))
	}
	return b.String(), nil
}

// arguments reads the arguments of a call.
func (r *rig) arguments(text string) []any {
	r.t.Helper()
	var d struct {
		Args []any `bson:"args"`
	}
	if err := bson.UnmarshalExtJSON([]byte(`{"args":[`+text+`]}`), false, &d); err != nil {
		r.t.Fatalf("%s: %v", text, err)
	}
	return d.Args
}

func mustJSON(t testing.TB, v any) []byte {
	t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// compacted returns each line of JSON without spaces, and with its names in order.
func compacted(t testing.TB, text string) string {
	t.Helper()
	var b bytes.Buffer
	for line := range strings.SplitSeq(text, "\n") {
		var v any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		b.Write(mustJSON(t, v))
		b.WriteByte('\n')
	}
	return b.String()
}
