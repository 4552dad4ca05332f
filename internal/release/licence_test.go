package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestRecognise(t *testing.T) {
	const bsd = "Redistribution and use in source and binary forms, with or\nwithout modification, are permitted"
	for _, tt := range []struct {
		text string
		want []string
	}{
		{"Permission is hereby granted, free of charge, to any person\n obtaining a copy of this", []string{"MIT"}},
		{"                 Apache License\n           Version 2.0, January 2004", []string{"Apache-2.0"}},
		{bsd, []string{"BSD-2-Clause"}},
		{bsd + " ... nor the names of its contributors may be used to\n * endorse or promote products derived", []string{"BSD-3-Clause"}},
		{"Mozilla Public License Version 2.0\n====", []string{"MPL-2.0"}},
		{"Permission to use, copy, modify, and/or distribute this software for any purpose", []string{"ISC"}},
		{"Apache License, Version 2.0 ... Permission is hereby granted, free of charge, to any person obtaining a copy", []string{"Apache-2.0", "MIT"}},
		{"All rights reserved.", nil},
	} {
		if got := recognise(tt.text); !slices.Equal(got, tt.want) {
			t.Errorf("%q is taken for %q; want %q", tt.text, got, tt.want)
		}
	}
}

// TestLicences: the licences of code that a module has taken over are written with its
// own, and a module without any is refused.
func TestLicences(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"LICENSE.txt": "the licence", "NOTICE": "the notice", "license.go": "package x", "internal/taken/COPYING": "another", "testdata/LICENSE": "of a test",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var out bytes.Buffer
	if err := writeLicences(&out, []module{{path: "example.org/m", version: "v1.0.0", dir: dir}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"example.org/m v1.0.0: LICENSE.txt\n\nthe licence\n", "NOTICE\n\nthe notice\n", "internal/taken/COPYING\n\nanother\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
	if strings.Contains(out.String(), "of a test") || strings.Contains(out.String(), "package x") {
		t.Errorf("there is more than licences:\n%s", out.String())
	}
	if err := writeLicences(&out, []module{{path: "example.org/m", version: "v1.0.0", dir: t.TempDir()}}); err == nil {
		t.Error("a module without a licence is accepted")
	}
}
