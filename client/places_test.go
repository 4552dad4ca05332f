package client_test

import (
	"testing"

	"eventhub"
	"eventhub/hub"
)

// TestPlacesAreRefused: they do not go over the wire, and are not passed over.
func TestPlacesAreRefused(t *testing.T) {
	c := dial(t, startHub(t, hub.Config{}).WSAddr())
	_, err := c.Tail(t.Context(), eventhub.TailOptions{Topic: "t", Places: []eventhub.Place{{Topic: "t", Offset: 1}}}, nil)
	if eventhub.ErrorCode(err) != eventhub.CodeUnsupportedOp {
		t.Errorf("subscribed with places: %v", err)
	}
}
