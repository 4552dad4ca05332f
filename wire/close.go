package wire

// The codes of the WebSocket close frames that the hub sends, with what a client
// should make of them.
const (
	CloseNormal        = 1000 // the client said goodbye; this is the answer
	CloseGoingAway     = 1001 // the hub is shutting down, or an operator wants the client to go: reconnect
	CloseProtocolError = 1002 // the WebSocket protocol was broken: a bug in the client
	CloseUnsupported   = 1003 // a binary message came: frames are text
	CloseInvalidUTF8   = 1007 // a text message is not UTF-8
	ClosePolicy        = 1008 // AUTH failed, came too late, or the token expired: get a new one
	CloseTooBig        = 1009 // a message is longer than the limit
	CloseTryAgain      = 1013 // the client reads too slowly: reconnect after a pause
)
