// Package depshold keeps modules in go.mod until the code that needs them is there.
package depshold

import (
	_ "cel.dev/cel-go/cel"
	_ "github.com/HdrHistogram/hdrhistogram-go"
)
