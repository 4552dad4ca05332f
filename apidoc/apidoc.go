// Package apidoc holds what the hub says of itself to programs: an OpenAPI 3.1
// document of its HTTP API and of its operations listener, and an AsyncAPI 3
// document of its WebSocket. The operations listener serves both.
//
// They are written in source/, as YAML with the schemas that both have in one place,
// and gen makes the JSON out of that. Tests here and in oracle, a module of its own,
// read the JSON and hold it against a running hub, so that neither can say what the
// other does not.
package apidoc

import (
	"crypto/sha256"
	_ "embed" // the documents
	"encoding/hex"
)

//go:generate go run ./gen

//go:embed openapi.json
var openAPI []byte

//go:embed asyncapi.json
var asyncAPI []byte

// Document is one of the documents, as it is served. It is read-only.
type Document struct {
	// JSON is the whole of it.
	JSON []byte
	// ETag is a strong entity tag of JSON (RFC 9110, 8.8.3), quotes and all.
	ETag string
}

// OpenAPI describes the HTTP API and the operations listener, AsyncAPI the
// WebSocket.
var (
	OpenAPI  = document(openAPI)
	AsyncAPI = document(asyncAPI)
)

func document(text []byte) Document {
	sum := sha256.Sum256(text)
	return Document{JSON: text, ETag: `"` + hex.EncodeToString(sum[:12]) + `"`}
}
