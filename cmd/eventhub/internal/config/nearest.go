package config

import (
	"fmt"
	"strings"
)

// didYouMean returns "; did you mean …?" if one of the known words is near
// enough to be meant, and nothing otherwise.
func didYouMean(word string, known []string) string {
	if near := nearest(word, known); near != "" {
		return fmt.Sprintf("; did you mean %s?", near)
	}
	return ""
}

// nearest returns the known word that differs least, in at most a third of its
// letters, or nothing. Case, and whether parts are joined by hyphens or
// underscores, make no difference.
func nearest(word string, known []string) string {
	plain := strings.NewReplacer("-", "", "_", "")
	fold := func(s string) string { return strings.ToLower(plain.Replace(s)) }
	found, least := "", max(1, len(fold(word))/3)+1
	for _, k := range known {
		if d := distance(fold(word), fold(k)); d < least {
			found, least = k, d
		}
	}
	return found
}

// distance is how many bytes have to be put in, taken out or replaced to make b
// of a (Levenshtein).
func distance(a, b string) int {
	row := make([]int, len(b)+1) // of the matrix: from a's first i bytes to b's first j
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, diagonal+1, row[j]+1)
		}
	}
	return row[len(b)]
}
