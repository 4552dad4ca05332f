package mongooutbox

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// maxDepth is how deep documents may lie in one another, which is the server's own bound.
const maxDepth = 200

// appendJSON appends a BSON value as plain JSON. The error names what JSON cannot say.
//
//   - Documents, arrays, texts, booleans and null are what they are in JSON.
//   - Numbers are written in their shortest form: the double 1 is 1, as JavaScript has it.
//     A Decimal128 keeps its digits.
//   - A date is a text in UTC with milliseconds, as JavaScript has it: 2026-01-02T03:04:05.678Z.
//   - An ObjectID is a text of 24 hexadecimal digits, a UUID one of 36 characters.
//
// NaN, infinities, other binary data, regular expressions, code, timestamps of replication
// and the like are errors.
func appendJSON(to []byte, v bson.RawValue, depth int) ([]byte, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("more than %d documents lie in one another", maxDepth)
	}
	switch v.Type {
	case bson.TypeEmbeddedDocument:
		return appendObject(to, v.Document(), depth)
	case bson.TypeArray:
		return appendArray(to, v.Array(), depth)
	case bson.TypeString:
		return appendText(to, v.StringValue())
	case bson.TypeBoolean:
		return strconv.AppendBool(to, v.Boolean()), nil
	case bson.TypeNull:
		return append(to, "null"...), nil
	case bson.TypeInt32:
		return strconv.AppendInt(to, int64(v.Int32()), 10), nil
	case bson.TypeInt64:
		return strconv.AppendInt(to, v.Int64(), 10), nil
	case bson.TypeDouble:
		text, err := json.Marshal(v.Double())
		if err != nil {
			return nil, fmt.Errorf("the number %v cannot be said in JSON", v.Double())
		}
		return append(to, text...), nil
	case bson.TypeDecimal128:
		text := v.Decimal128().String()
		if !json.Valid([]byte(text)) {
			return nil, fmt.Errorf("the number %s cannot be said in JSON", text)
		}
		return append(to, text...), nil
	case bson.TypeDateTime:
		at := v.Time().UTC()
		if year := at.Year(); year < 0 || year > 9999 {
			return nil, fmt.Errorf("a date of the year %d cannot be said in RFC 3339", year)
		}
		return append(to, at.Format(`"2006-01-02T15:04:05.000Z"`)...), nil
	case bson.TypeObjectID:
		return appendText(to, v.ObjectID().Hex())
	}
	if id, ok := uuid(v); ok {
		return appendText(to, id)
	}
	return nil, fmt.Errorf("a value of the BSON type %s cannot be said in JSON", v.Type)
}

func appendObject(to []byte, doc bson.Raw, depth int) ([]byte, error) {
	elements, err := doc.Elements()
	if err != nil {
		return nil, err
	}
	to = append(to, '{')
	for i, e := range elements {
		if i > 0 {
			to = append(to, ',')
		}
		if to, err = appendText(to, e.Key()); err != nil {
			return nil, err
		}
		if to, err = appendJSON(append(to, ':'), e.Value(), depth+1); err != nil {
			return nil, fmt.Errorf("%s: %w", e.Key(), err)
		}
	}
	return append(to, '}'), nil
}

func appendArray(to []byte, array bson.RawArray, depth int) ([]byte, error) {
	values, err := array.Values()
	if err != nil {
		return nil, err
	}
	to = append(to, '[')
	for i, v := range values {
		if i > 0 {
			to = append(to, ',')
		}
		if to, err = appendJSON(to, v, depth+1); err != nil {
			return nil, fmt.Errorf("%d: %w", i, err)
		}
	}
	return append(to, ']'), nil
}

func appendText(to []byte, text string) ([]byte, error) {
	if !utf8.ValidString(text) {
		return nil, fmt.Errorf("the text %q is not UTF-8", text)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(text); err != nil {
		return nil, err
	}
	return append(to, bytes.TrimSuffix(b.Bytes(), []byte("\n"))...), nil
}

// uuidSubtype is that of binary data that is a UUID in the order of RFC 9562.
const uuidSubtype = 4

// uuid returns the text of a value that is a UUID.
func uuid(v bson.RawValue) (string, bool) {
	subtype, data, ok := v.BinaryOK()
	if !ok || subtype != uuidSubtype || len(data) != 16 {
		return "", false
	}
	h := hex.EncodeToString(data)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:], true
}

// millis returns a number that is a time in milliseconds: JavaScript's numbers of that size
// are doubles.
func millis(v bson.RawValue) (int64, bool) {
	switch v.Type {
	case bson.TypeInt32:
		return int64(v.Int32()), true
	case bson.TypeInt64:
		return v.Int64(), true
	case bson.TypeDouble:
		const most = 1 << 53
		if f := v.Double(); f >= -most && f <= most {
			return int64(f), true
		}
	}
	return 0, false
}

func at(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}
