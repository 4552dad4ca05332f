package bus

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"eventhub"
)

func TestGroupSettingsAreFixed(t *testing.T) {
	inBubble(t, func(r *rig) {
		o := opts("t", "g")
		o.MaxAttempts = 3
		r.subscribe(o)
		for name, change := range map[string]func(*eventhub.GroupOptions){
			"max_attempts":   func(o *eventhub.GroupOptions) { o.MaxAttempts = 4 },
			"backoff.min_ms": func(o *eventhub.GroupOptions) { o.Backoff.Min = 2 * time.Second },
			"backoff.max_ms": func(o *eventhub.GroupOptions) { o.Backoff.Max = time.Hour },
		} {
			other := opts("t", "g")
			change(&other)
			_, err := r.bus.Subscribe(context.Background(), other, &inbox{})
			wantCode(t, err, eventhub.CodeGroupMismatch)
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("%v does not name %s", err, name)
			}
		}
		silent := opts("t", "g") // says nothing of the settings
		silent.MaxInFlight, silent.AckTimeout = 1, time.Minute
		r.subscribe(silent)
		r.restart()
		r.subscribe(o)
	})
}

// TestEverySettingIsFixed: each option that makes a setting of a new group is refused where
// the group has another one, and each setting comes from an option.
func TestEverySettingIsFixed(t *testing.T) {
	var none eventhub.GroupOptions
	usual := settingsFor(&none)
	var made []string
	eachOption(t, &none, func(name string, o *eventhub.GroupOptions) {
		s := settingsFor(o)
		if reflect.DeepEqual(s, usual) {
			return // of the member, or of the subscription
		}
		for field, v := range reflect.ValueOf(s).Fields() {
			if !reflect.DeepEqual(v.Interface(), reflect.ValueOf(usual).FieldByIndex(field.Index).Interface()) {
				made = append(made, field.Name)
			}
		}
		if err := s.match(o); err != nil {
			t.Errorf("%s as the group has it: %v", name, err)
		}
		if err := usual.match(o); eventhub.ErrorCode(err) != eventhub.CodeGroupMismatch {
			t.Errorf("%s other than the group has it: %v; want %s", name, err, eventhub.CodeGroupMismatch)
		}
	})
	for field := range reflect.TypeFor[settings]().Fields() {
		if field.Name != "FirstEpoch" && field.Name != "From" && !slices.Contains(made, field.Name) {
			t.Errorf("no option makes the setting %s", field.Name)
		}
	}
}

// eachOption calls try with options in which one field alone is set, for each field in turn.
func eachOption(t *testing.T, o *eventhub.GroupOptions, try func(name string, o *eventhub.GroupOptions)) {
	var walk func(name string, v reflect.Value)
	walk = func(name string, v reflect.Value) {
		switch v.Kind() {
		case reflect.Struct:
			for field, inner := range v.Fields() {
				if field.IsExported() {
					walk(name+"."+field.Name, inner)
				}
			}
			return
		case reflect.String:
			v.SetString(eventhub.OrderingKey)
		case reflect.Bool:
			v.SetBool(true)
		case reflect.Int, reflect.Int64:
			v.SetInt(int64(7 * time.Millisecond))
		case reflect.Uint8, reflect.Uint64:
			v.SetUint(7)
		case reflect.Slice:
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		case reflect.Pointer:
			v.Set(reflect.New(v.Type().Elem()))
			if f, ok := v.Interface().(*eventhub.Filter); ok {
				f.Key = "k"
			}
		case reflect.Func:
			v.Set(reflect.MakeFunc(v.Type(), func([]reflect.Value) []reflect.Value { return nil }))
		default:
			t.Fatalf("this test does not know how to set %s, a %s", name, v.Type())
		}
		try(name, o)
		v.SetZero()
	}
	walk("GroupOptions", reflect.ValueOf(o).Elem())
}
