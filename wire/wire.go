// Package wire is the hub's language: the JSON frames that go over a WebSocket,
// their limits, and the close codes. It turns bytes into domain values and back
// and knows nothing of connections: the WebSocket gateway and the clients call
// it. Golden files in testdata hold every frame once; other clients test against
// the same files.
//
// A client's frame is one JSON object in one text message. Duplicate names, at
// any depth, and invalid UTF-8 are refused. Unknown names at the top level are
// ignored, so that newer clients can say more; names of options there, and
// unknown names in opts, are refused, because an option that is not obeyed changes what the client gets.
// null stands for an absent member, except for payload, where it is a value.
package wire

import (
	"time"

	"eventhub"
)

// Op is the name of a frame.
type Op string

// The frames of clients.
const (
	OpAuth        Op = "AUTH"
	OpPublish     Op = "PUBLISH"
	OpSubscribe   Op = "SUBSCRIBE"
	OpUnsubscribe Op = "UNSUBSCRIBE"
	OpPause       Op = "PAUSE"
	OpResume      Op = "RESUME"
	OpAck         Op = "ACK"
	OpNack        Op = "NACK"
	OpModack      Op = "MODACK"
	OpCancel      Op = "CANCEL"
)

// ProtocolVersion is the version of the conversation that this package speaks. A
// hub sends its own in the OK of an AUTH. It is raised when frames come to mean
// something else, not when more can be said.
const ProtocolVersion = 1

// Limits of the protocol, in bytes.
const (
	MaxFrameBytes       = 1_310_720 // 1.25 MiB
	MaxUnauthFrameBytes = 16 << 10  // before AUTH
	MaxCorrBytes        = 128
	MaxRefs             = 1_000     // ids in one ACK, NACK or MODACK
	MaxEvents           = 10_000    // events in one PUBLISH or ACK
	MaxEventsBytes      = 256 << 10 // of an EVENTS with more than one event
)

// Request is one frame of a client, decoded. Which fields count depends on Op.
type Request struct {
	Op Op
	// Corr comes back in the answer; HasCorr distinguishes an empty one from none.
	Corr    string
	HasCorr bool

	// AUTH.
	Token    string
	HasToken bool
	Name     string       // how the client calls itself; empty where it does not say
	Producer AuthProducer // without ID where there is none

	// All but AUTH and a PUBLISH with Batch. Group is empty in a PUBLISH, in a
	// CANCEL, and for a live tail. Topic may be a pattern except in those two.
	Topic, Group string

	// Batch says of a PUBLISH that it has Events, even if only one, and of a
	// SUBSCRIBE that EVENTS are wanted instead of EVENT.
	Batch bool

	// PUBLISH without Batch. Event.Topic is Topic; Event.Payload points into the
	// frame.
	Event eventhub.Event

	// PUBLISH with Batch; and what an ACK publishes, which is atomic with it where
	// there is any. Payloads point into the frame. The slice is the Request's: the
	// next Decode uses its memory again, except where Events was set to nil to keep it.
	Events []eventhub.Event

	// PUBLISH: see eventhub.Publication. Seq, 0 where there is none, is filled also where Decode
	// returns an error, if it could be read.
	Seq      uint64
	WaitFor  []string
	WaitUpTo time.Duration

	// CANCEL.
	ID string

	// SUBSCRIBE. Its Topic and Group are those above.
	Subscribe SubscribeOptions

	// ACK, NACK, MODACK.
	Settlement eventhub.Settlement
}

// AuthInfo is what the OK of an AUTH says.
type AuthInfo struct {
	Hub        string // name of the hub
	Version    string
	Protocol   int    // see ProtocolVersion; 0 where the hub sends none
	Durability string // "sync", "interval" or "none"
	Limits     Limits
	// Producer, where it has an ID, is that of the AUTH.
	Producer AuthProducer
}

// Limits are the bounds that a client may want to know.
type Limits struct {
	MaxFrameBytes    int `json:"max_frame_bytes"`
	MaxPayloadBytes  int `json:"max_payload_bytes"`
	MaxSubscriptions int `json:"max_subscriptions"`
}
