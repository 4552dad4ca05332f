package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestGenerated: the documents are those of the sources.
func TestGenerated(t *testing.T) {
	for _, name := range []string{"openapi", "asyncapi"} {
		want, err := build(filepath.Join("..", "source"), name+".yaml")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := os.ReadFile(filepath.Join("..", name+".json"))
		if err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s.json is not what its source says (%v): go generate ./apidoc", name, err)
		}
	}
}
