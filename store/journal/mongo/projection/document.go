package projection

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"eventhub"
	"eventhub/store"
)

const (
	// mostDocument is how many bytes a document has at most, well below the 16 MiB that MongoDB allows.
	mostDocument = 15 << 20
	// mostDepth is how deep a payload is at most; a server allows a hundred levels or two.
	mostDepth = 80
)

// eventID is the _id of an event, and cursorID that of a cursor. No topic has a colon.
func eventID(topic string, offset uint64) string {
	return topic + "::" + strconv.FormatUint(offset, 10)
}

func cursorID(topic, group string) string { return topic + "::" + group }

// document is an event as it is stored.
type document struct {
	id     string
	offset uint64
	key    string
	null   bool   // the payload is null: with a key, the end of its value
	raw    []byte // BSON
	plain  []byte // BSON too: the event as one text, where the server refuses raw; made when that happens
	item   store.Item
}

// encode makes the document of an event. What BSON has no form for makes it one with the event as a text.
func encode(topic string, item store.Item, life, epoch uint64) (*document, error) {
	record := bytes.Clone(item.Record)
	d := &document{id: eventID(topic, item.Offset), offset: item.Offset, key: string(eventhub.Record(record).Key()),
		null: eventhub.Record(record).IsTombstone(), item: store.Item{Offset: item.Offset, Record: record}}
	fields, err := fieldsOf(record)
	if err == nil {
		d.raw, err = bson.Marshal(d.framed(topic, fields, life, epoch))
	}
	if err != nil || len(d.raw) > mostDocument {
		if err := d.flatten(topic, life, epoch); err != nil {
			return nil, err
		}
		d.raw = d.plain
	}
	return d, nil
}

// encode is encode, with the form that the server takes.
func (p *Projection) encode(topic string, item store.Item, life uint64) (*document, error) {
	d, err := encode(topic, item, life, p.epoch)
	if err != nil || d.key == p.key([]byte(d.key)) {
		return d, err
	}
	d.key = p.key([]byte(d.key))
	return d, d.makePlain(p.epoch)
}

// key is the key of an event as documents have it: PostgreSQL under FerretDB takes no NUL, which is the sign for it there.
func (p *Projection) key(key []byte) string {
	if !p.opts.Ferret {
		return string(key)
	}
	return strings.ReplaceAll(string(key), "\x00", "\u2400")
}

// framed adds what the projection has besides the event's own fields.
func (d *document) framed(topic string, fields bson.D, life, epoch uint64) bson.D {
	all := bson.D{{Key: "_id", Value: d.id}, {Key: "topic", Value: topic}, {Key: "offset", Value: int64(d.offset)}}
	for _, f := range fields {
		if f.Key != "topic" && f.Key != "offset" && f.Key != "_id" {
			all = append(all, f)
		}
	}
	return append(all, bson.E{Key: "life", Value: int64(life)}, bson.E{Key: "epoch", Value: int64(epoch)})
}

// isOf reports whether a document that is there is the one of this event.
func (d *document) isOf(there bson.Raw) bool {
	offset, _ := there.Lookup("offset").AsInt64OK()
	id, _ := there.Lookup("id").StringValueOK()
	_, alive := there.Lookup("life").AsInt64OK()
	return alive && uint64(offset) == d.offset && id == string(eventhub.Record(d.item.Record).ID())
}

// makePlain makes the document one with the event as a text.
func (d *document) makePlain(epoch uint64) error {
	topic, _ := bson.Raw(d.raw).Lookup("topic").StringValueOK()
	life, _ := bson.Raw(d.raw).Lookup("life").AsInt64OK()
	if err := d.flatten(topic, uint64(life), epoch); err != nil {
		return err
	}
	d.raw = d.plain
	return nil
}

// flatten makes plain: the fields that indexes have, and the event as a text.
func (d *document) flatten(topic string, life, epoch uint64) (err error) {
	event, err := eventhub.Record(d.item.Record).Event(d.offset)
	if err != nil {
		return err
	}
	fields := bson.D{{Key: "id", Value: event.ID}, {Key: "ts", Value: event.TS}}
	if event.CommittedTS != 0 {
		fields = append(fields, bson.E{Key: "committed_ts", Value: event.CommittedTS})
	}
	if d.key != "" {
		fields = append(fields, bson.E{Key: "key", Value: d.key})
	}
	if d.null { // what looks for the ends of keys finds it
		fields = append(fields, bson.E{Key: "payload", Value: nil})
	}
	fields = append(fields, bson.E{Key: "json", Value: strings.ToValidUTF8(string(d.item.Record), "�")})
	d.plain, err = bson.Marshal(d.framed(topic, fields, life, epoch))
	return err
}

// fieldsOf returns the fields of a record as BSON, in its order.
func fieldsOf(record []byte) (bson.D, error) {
	decoder := json.NewDecoder(bytes.NewReader(record))
	decoder.UseNumber()
	value, err := decode(decoder, 0)
	if err != nil {
		return nil, err
	}
	fields, ok := value.(bson.D)
	if !ok {
		return nil, fmt.Errorf("a record is %T", value)
	}
	return fields, nil
}

// decode reads one JSON value.
func decode(decoder *json.Decoder, depth int) (any, error) {
	token, err := decoder.Token()
	if err != nil {
		return nil, err
	}
	switch v := token.(type) {
	case json.Number:
		return number(string(v))
	case json.Delim:
		if depth >= mostDepth {
			return nil, fmt.Errorf("more than %d levels", mostDepth)
		}
		if v == '{' {
			return decodeObject(decoder, depth)
		}
		return decodeArray(decoder, depth)
	}
	return token, nil // a string, a boolean or nil
}

func decodeObject(decoder *json.Decoder, depth int) (any, error) {
	object := bson.D{}
	for decoder.More() {
		name, err := decoder.Token()
		if err != nil {
			return nil, err
		}
		key, _ := name.(string)
		if strings.ContainsRune(key, 0) {
			return nil, fmt.Errorf("the name %q has a NUL", key)
		}
		value, err := decode(decoder, depth+1)
		if err != nil {
			return nil, err
		}
		object = append(object, bson.E{Key: key, Value: value})
	}
	_, err := decoder.Token()
	return object, unexpected(err)
}

func decodeArray(decoder *json.Decoder, depth int) (any, error) {
	array := bson.A{}
	for decoder.More() {
		value, err := decode(decoder, depth+1)
		if err != nil {
			return nil, err
		}
		array = append(array, value)
	}
	_, err := decoder.Token()
	return array, unexpected(err)
}

func unexpected(err error) error {
	if err == io.EOF { //nolint:errorlint // of Token
		return io.ErrUnexpectedEOF
	}
	return err
}

// number returns a whole number as an int64 where it fits, and any other one as a double.
func number(text string) (any, error) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil && text != "-0" {
		return n, nil
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return nil, fmt.Errorf("the number %.40s has no form in BSON", text)
	}
	return f, nil
}
