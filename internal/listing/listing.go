// Package listing walks through lists that come in pages.
package listing

import "iter"

// All returns the entries of a list, read a page at a time. page returns at most size
// entries: those that come after last, or the first where last is nil; a page with fewer is
// the end. It is not called before an entry of its page is asked for. An error ends the
// walk, and comes with an empty entry.
func All[T any](size int, page func(last *T) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var last *T
		for {
			entries, err := page(last)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for i := range entries {
				if !yield(entries[i], nil) {
					return
				}
			}
			if len(entries) < size {
				return
			}
			last = &entries[len(entries)-1]
		}
	}
}
