package strictjson

import (
	"errors"
	"reflect"
	"slices"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"eventhub/internal/naming"
)

// unknownName is the second try of an Unmarshal that met an unknown name: with names in
// place of their aliases. Only who uses an alias, or an unknown name, pays for it.
func unknownName(src []byte, v any, err error) error {
	named, bad := renamed(src, v)
	if bad != nil {
		return bad
	}
	if named != nil {
		if err = json.Unmarshal(named, v, json.RejectUnknownMembers(true)); err == nil {
			return nil
		}
	}
	described := describe(err)
	var meaning *MeaningError
	if errors.As(described, &meaning) && errors.Is(err, json.ErrUnknownName) {
		meaning.text = suggestion(meaning.Where, v)
	}
	return described
}

// renamed returns the object src with the names of v in place of their aliases, nil if it
// has none.
func renamed(src []byte, v any) ([]byte, error) {
	known := namesOf(reflect.TypeOf(v))
	aliases := slices.DeleteFunc(slices.Clone(naming.Aliases), func(a naming.Alias) bool { return !slices.Contains(known, a.Name) })
	if len(aliases) == 0 {
		return nil, nil
	}
	members := make(map[string]jsontext.Value)
	if err := json.Unmarshal(src, &members); err != nil {
		return nil, describe(err)
	}
	changed := false
	for i := range aliases {
		a := &aliases[i]
		value, given := members[a.Alias]
		if !given {
			continue
		}
		if _, twice := members[a.Name]; twice {
			return nil, &MeaningError{text: a.Both()}
		}
		delete(members, a.Alias)
		members[a.Name], changed = value, true
	}
	if !changed {
		return nil, nil
	}
	return json.Marshal(members, jsontext.PreserveRawStrings(true)) // no token of a value changes
}

// suggestion is the message for the unknown name that a JSON pointer leads to.
func suggestion(pointer string, v any) string {
	parent := reflect.TypeOf(v)
	name := ""
	for token := range jsontext.Pointer(pointer).Tokens() {
		if name != "" {
			parent = memberType(parent, name)
		}
		name = token
	}
	return shown(pointer) + " is not a known name" + naming.DidYouMean(name, namesOf(parent))
}

// namesOf returns the names that a struct has in JSON.
func namesOf(t reflect.Type) (names []string) {
	for name := range fieldsOf(t) {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

func memberType(t reflect.Type, token string) reflect.Type {
	if t = pointedTo(t); t != nil && (t.Kind() == reflect.Slice || t.Kind() == reflect.Array || t.Kind() == reflect.Map) {
		return t.Elem()
	}
	return fieldsOf(t)[token]
}

func fieldsOf(t reflect.Type) map[string]reflect.Type {
	fields := make(map[string]reflect.Type)
	if t = pointedTo(t); t == nil || t.Kind() != reflect.Struct {
		return fields
	}
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			fields[name] = f.Type
		}
	}
	return fields
}

func pointedTo(t reflect.Type) reflect.Type {
	for t != nil && t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}
