package eventhub

import (
	"errors"
	"testing"
)

func TestEnding(t *testing.T) {
	gone := Errorf(CodeNotSubscribed, "the topic was deleted")
	got := Ending(gone, "a.*", "g")
	if got.Topic != "a.*" || got.Group != "g" || got.Code != CodeNotSubscribed || got.Message != gone.Message || gone.Topic != "" {
		t.Errorf("%+v of %+v", got, gone)
	}
	if Ending(got, "b", "h") != got || Ending(nil, "b", "h") != nil {
		t.Error("an error with a topic, or none, was changed")
	}
}

func TestAtIndex(t *testing.T) {
	cause := errors.New("cause")
	refused := Wrap(CodeBadEvent, cause, "payload is missing")
	got := AtIndex(refused, "events", 3)
	if got.Message != "events[3]: payload is missing" || got.Index == nil || *got.Index != 3 ||
		got.Code != CodeBadEvent || !errors.Is(got, cause) {
		t.Errorf("AtIndex made %+v", got)
	}
	if refused.Index != nil || refused.Message != "payload is missing" {
		t.Errorf("AtIndex changed its argument to %+v", refused)
	}
	if again := AtIndex(got, "events", 5); again != got {
		t.Errorf("an error with an index became %+v", again)
	}
	if bare := AtIndex(refused, "", 4); bare.Message != refused.Message || *bare.Index != 4 {
		t.Errorf("without a name AtIndex made %+v", bare)
	}
	if AtIndex(nil, "events", 0) != nil {
		t.Error("AtIndex made an error of nil")
	}
	if other := AtIndex(cause, "events", 1); other.Code != CodeInternal || *other.Index != 1 || !errors.Is(other, cause) {
		t.Errorf("of another error AtIndex made %+v", other)
	}
}
