package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// legalFile matches the names of files that have to accompany a binary. NOTICE is what
// the Apache licence asks for, PATENTS what the Go project adds.
var legalFile = regexp.MustCompile(`(?i)^(licen[sc]e|copying|notice|patents)([-._].*)?$`)

// A marker is a phrase that only one licence has, in lower case and with one space
// between words; unless is a phrase of another licence that has the marker too.
var markers = []struct{ id, phrase, and, unless string }{
	{id: "Apache-2.0", phrase: "apache license version 2.0"},
	{id: "MIT", phrase: "permission is hereby granted free of charge to any person obtaining a copy"},
	{id: "BSD-3-Clause", phrase: "redistribution and use in source and binary forms", and: "endorse or promote products"},
	{id: "BSD-2-Clause", phrase: "redistribution and use in source and binary forms", unless: "endorse or promote products"},
	{id: "MPL-2.0", phrase: "mozilla public license version 2.0"},
	{id: "ISC", phrase: "permission to use copy modify and/or distribute this software for any purpose"},
	{id: "ISC", phrase: "permission to use copy modify and distribute this software for any purpose"},
	{id: "Unlicense", phrase: "this is free and unencumbered software released into the public domain"},
}

// recognise returns the SPDX identifiers of the licences in a text, each once, in the
// order of the table. Punctuation and line breaks do not count.
func recognise(text string) []string {
	words := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return strings.ContainsRune(" \t\r\n,;:()\"'*#", r)
	})
	text = strings.Join(words, " ")
	var ids []string
	for _, m := range markers {
		if strings.Contains(text, m.phrase) && strings.Contains(text, m.and) &&
			(m.unless == "" || !strings.Contains(text, m.unless)) && !slices.Contains(ids, m.id) {
			ids = append(ids, m.id)
		}
	}
	return ids
}

// licencesOf returns the identifiers of the licences at the top of a module.
func licencesOf(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, e := range entries {
		name := strings.ToLower(e.Name())
		if e.IsDir() || !legalFile.MatchString(name) || strings.HasPrefix(name, "notice") || strings.HasPrefix(name, "patents") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		for _, id := range recognise(string(text)) {
			if !slices.Contains(ids, id) {
				ids = append(ids, id)
			}
		}
	}
	return ids, nil
}

// legalFiles returns the paths in a module of all its licences and notices, those of
// code that it has taken over among them. The standard library has its own at the top.
func (m module) legalFiles() ([]string, error) {
	var paths []string
	err := filepath.WalkDir(m.dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != m.dir && (m.path == "std" || d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")) {
				return filepath.SkipDir
			}
			return nil
		}
		if legalFile.MatchString(d.Name()) && filepath.Ext(d.Name()) != ".go" {
			paths = append(paths, strings.TrimPrefix(path, m.dir+string(filepath.Separator)))
		}
		return nil
	})
	return paths, err
}

// writeLicences writes the licences and notices of all modules, one after another.
func writeLicences(out io.Writer, modules []module) error {
	for _, m := range modules {
		paths, err := m.legalFiles()
		if err != nil {
			return err
		}
		if len(paths) == 0 {
			return fmt.Errorf("%s %s has no licence file", m.path, m.version)
		}
		for _, path := range paths {
			text, err := os.ReadFile(filepath.Join(m.dir, path))
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(out, "==== %s %s: %s\n\n%s\n\n", m.path, m.version, filepath.ToSlash(path), strings.TrimSpace(string(text)))
			if err != nil {
				return err
			}
		}
	}
	return nil
}
