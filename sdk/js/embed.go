// Package js has the build of the JavaScript SDK that pages without a build step load, for
// programs in Go that serve such pages.
package js

import _ "embed"

// OneFile is dist/eventhub.min.js: one ES module without dependencies. It must not be changed.
//
//go:embed dist/eventhub.min.js
var OneFile []byte

// HTTPFile is dist/eventhub-http.min.js, which gives clients of OneFile the HTTP API. A page has it beside
// that file, under this name. It must not be changed.
//
//go:embed dist/eventhub-http.min.js
var HTTPFile []byte
