package mongooutbox

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"eventhub"
)

func decimal(t *testing.T, text string) bson.Decimal128 {
	t.Helper()
	d, err := bson.ParseDecimal128(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func read(t *testing.T, doc bson.D) record {
	t.Helper()
	raw, err := bson.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return recordOf(raw)
}

func with(name string, value any) bson.D {
	return bson.D{{Key: "_id", Value: "i"}, {Key: "topic", Value: "t"}, {Key: "ts", Value: 1}, {Key: name, Value: value}}
}

func TestPayloads(t *testing.T) {
	id := bson.NewObjectID()
	nested := any(1)
	for range maxDepth {
		nested = bson.A{nested}
	}
	uuid := bson.Binary{Subtype: 4, Data: []byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255}}
	for name, test := range map[string]struct {
		value any
		want  string // empty: broken
	}{
		"document":       {bson.D{{Key: "b", Value: 1}, {Key: "a", Value: bson.D{}}}, `{"b":1,"a":{}}`},
		"array":          {bson.A{bson.A{}, nil, true, false, "x"}, `[[],null,true,false,"x"]`},
		"null":           {nil, `null`},
		"text":           {"<ä> \" \\ \n \u2028 \x00 😀", `"<ä> \" \\ \n \u2028 \u0000 😀"`},
		"int32":          {int32(math.MinInt32), `-2147483648`},
		"int64":          {int64(math.MaxInt64), `9223372036854775807`},
		"double":         {0.1, `0.1`},
		"whole double":   {1.0, `1`},
		"large double":   {1e21, `1e+21`},
		"negative zero":  {math.Copysign(0, -1), `-0`},
		"decimal":        {decimal(t, "12.50"), `12.50`},
		"large decimal":  {decimal(t, "1.5E+3000"), `1.5E+3000`},
		"date":           {time.UnixMilli(1_700_000_000_120), `"2023-11-14T22:13:20.120Z"`},
		"date before":    {time.UnixMilli(-1), `"1969-12-31T23:59:59.999Z"`},
		"object id":      {id, `"` + id.Hex() + `"`},
		"uuid":           {uuid, `"00010203-0405-0607-0809-0a0b0c0d0eff"`},
		"NaN":            {bson.D{{Key: "a", Value: bson.A{math.NaN()}}}, ``},
		"infinity":       {math.Inf(-1), ``},
		"decimal NaN":    {decimal(t, "NaN"), ``},
		"binary":         {[]byte("x"), ``},
		"short uuid":     {bson.Binary{Subtype: 4, Data: []byte{1}}, ``},
		"regular":        {bson.Regex{Pattern: "a"}, ``},
		"timestamp":      {bson.Timestamp{T: 1}, ``},
		"code":           {bson.JavaScript("a"), ``},
		"min key":        {bson.MinKey{}, ``},
		"undefined":      {bson.Undefined{}, ``},
		"symbol":         {bson.Symbol("a"), ``},
		"year 10000":     {bson.DateTime(253402300800000), ``},
		"not UTF-8":      {"a\xff", ``},
		"not UTF-8 name": {bson.D{{Key: "a\xff", Value: 1}}, ``},
		"depth":          {nested, strings.Repeat("[", maxDepth) + "1" + strings.Repeat("]", maxDepth)},
		"too deep":       {bson.A{nested}, ``},
	} {
		r := read(t, with("payload", test.value))
		if test.want == "" {
			if eventhub.ErrorCode(r.Broken) != eventhub.CodeBadEvent || !strings.Contains(r.Broken.Error(), "payload") {
				t.Errorf("%s: broken is %v, payload %s", name, r.Broken, r.Event.Payload)
			}
			continue
		}
		if r.Broken != nil || string(r.Event.Payload) != test.want || !json.Valid(r.Event.Payload) {
			t.Errorf("%s: %s, %v; want %s", name, r.Event.Payload, r.Broken, test.want)
		}
	}
}

func TestPayloadText(t *testing.T) {
	both := append(with("payload", 1), bson.E{Key: "payload_json", Value: ` {"a":1.0} `})
	if r := read(t, both); r.Broken != nil || string(r.Event.Payload) != ` {"a":1.0} ` {
		t.Errorf("%s, %v: the text wins as it is", r.Event.Payload, r.Broken)
	}
	if r := read(t, append(with("payload", 1), bson.E{Key: "payload_json", Value: nil})); r.Broken != nil || string(r.Event.Payload) != `1` {
		t.Errorf("%s, %v: null is no text", r.Event.Payload, r.Broken)
	}
}

func TestBrokenFields(t *testing.T) {
	sound := bson.D{
		{Key: "_id", Value: "i"}, {Key: "topic", Value: "t"}, {Key: "payload", Value: 1}, {Key: "ts", Value: 1.7e12}, {Key: "key", Value: nil},
		{Key: "sid", Value: nil}, {Key: "headers", Value: nil}, {Key: "tags", Value: nil}, {Key: "caused_by", Value: nil}, {Key: "other", Value: 1},
	}
	if r := read(t, sound); r.Broken != nil || r.Event.TS != 1.7e12 {
		t.Fatalf("%+v", r)
	}
	for field, values := range map[string]bson.A{
		"_id":          {1, nil, bson.D{}, []byte("x"), true},
		"topic":        {1, bson.A{"t"}},
		"key":          {1, bson.D{}},
		"sid":          {true},
		"headers":      {"{}", bson.A{}, bson.D{{Key: "a", Value: 1}}, bson.D{{Key: "a", Value: nil}}},
		"tags":         {"a", bson.D{}, bson.A{1}, bson.A{"a", nil}},
		"caused_by":    {"a", bson.A{bson.NewObjectID()}},
		"ts":           {"1", time.Now(), math.NaN(), 1e300, nil},
		"payload_json": {1, bson.D{}, "", `{"a":`, "1 2"},
	} {
		for _, value := range values {
			var doc bson.D
			for _, e := range sound {
				if e.Key != field {
					doc = append(doc, e)
				}
			}
			r := read(t, append(doc, bson.E{Key: field, Value: value}))
			if eventhub.ErrorCode(r.Broken) != eventhub.CodeBadEvent || !strings.Contains(r.Broken.Error(), field) {
				t.Errorf("%s is %#v: broken is %v", field, value, r.Broken)
			}
			if r.Event.ID == "" {
				t.Errorf("%s is %#v: the row has no id to be parked by", field, value)
			}
		}
	}
	if r := read(t, sound[:2]); r.Broken == nil || !strings.Contains(r.Broken.Error(), "payload") {
		t.Errorf("no payload: broken is %v", r.Broken)
	}
}
