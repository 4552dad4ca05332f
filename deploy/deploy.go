// Package deploy has the files that are shipped for those who run a hub, as far as a program
// needs one of them.
package deploy

import _ "embed"

// Topics is the example of a file of settings of topics.
//
//go:embed topics.yaml
var Topics []byte
