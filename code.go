package eventhub

// about is what a refusal is about, and with it who can do something.
type about byte

const (
	aboutRequest about = iota // what was asked: the same request fails again
	aboutCaller               // who asks, and with what right
	aboutHub                  // the hub's state: the same request may succeed later
)

// codes has every code of the protocol. A code that is missing here does not reach
// clients.
var codes = map[Code]about{
	CodeBadJSON:           aboutRequest,
	CodeBadRequest:        aboutRequest,
	CodeBadTopic:          aboutRequest,
	CodeBadEvent:          aboutRequest,
	CodeTooLarge:          aboutRequest,
	CodeUnauthorized:      aboutCaller,
	CodeNoToken:           aboutCaller,
	CodeBadToken:          aboutCaller,
	CodeJWTInvalid:        aboutCaller,
	CodeForbidden:         aboutCaller,
	CodeRateLimited:       aboutHub,
	CodePublishFailed:     aboutRequest,
	CodeAckFailed:         aboutRequest,
	CodeLeaseLost:         aboutRequest,
	CodeWaitTimeout:       aboutRequest,
	CodeAlreadySubscribed: aboutRequest,
	CodeNotSubscribed:     aboutRequest,
	CodeGroupMismatch:     aboutRequest,
	CodeUnknownID:         aboutRequest,
	CodeGone:              aboutRequest,
	CodeUnsupportedOp:     aboutRequest,
	CodeConflict:          aboutRequest,
	CodeBadSequence:       aboutRequest,
	CodeUnknownProducer:   aboutRequest,
	CodeFenced:            aboutRequest,
	CodeOverloaded:        aboutHub,
	CodeShuttingDown:      aboutHub,
	CodeNotActive:         aboutHub,
	CodeInternal:          aboutHub,
}

// Known reports whether the protocol has the code.
func (c Code) Known() bool {
	_, known := codes[c]
	return known
}

// Denied reports whether a refusal with this code is final for the caller: the hub has
// understood who asks and does not accept it, or not for this. The same request does not
// succeed without another token or another right.
func (c Code) Denied() bool { return codes[c] == aboutCaller }

// Passing reports whether a refusal with this code is about the hub's state and not
// about what was asked: the same request may succeed later.
func (c Code) Passing() bool { return codes[c] == aboutHub }
