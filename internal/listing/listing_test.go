package listing

import (
	"errors"
	"slices"
	"testing"
)

// TestAll: every entry comes once, in as few pages as there are, and none is read that
// nobody asks for.
func TestAll(t *testing.T) {
	const size = 3
	failed := errors.New("no page")
	for _, n := range []int{0, 1, 2, 3, 4, 6, 7} {
		for _, stop := range []int{-1, 0, 2, 3, 5} {
			for _, fail := range []int{-1, 0, 1} {
				var asked []int // the last entry before each page
				page := func(last *int) (entries []int, _ error) {
					from := 0
					if last != nil {
						from = *last + 1
					}
					asked = append(asked, from)
					if len(asked)-1 == fail {
						return nil, failed
					}
					for i := from; i < min(n, from+size); i++ {
						entries = append(entries, i)
					}
					return entries, nil
				}
				var got []int
				var ended error
				for entry, err := range All(size, page) {
					if ended = err; err != nil {
						continue
					}
					got = append(got, entry)
					if len(got) == stop {
						break
					}
				}
				want := n
				if fail >= 0 {
					want = min(want, fail*size)
				}
				if stop > 0 {
					want = min(want, stop)
				}
				fails := fail >= 0 && n >= fail*size && (stop <= 0 || stop > fail*size)
				if len(got) != want || !slices.IsSorted(got) || (ended != nil) != fails {
					t.Errorf("%d entries, stopped at %d, failing page %d: got %v, %v", n, stop, fail, got, ended)
				}
				if most := want/size + 1; len(asked) > most {
					t.Errorf("%d entries, stopped at %d: pages %v; at most %d are needed", n, stop, asked, most)
				}
			}
		}
	}
}
