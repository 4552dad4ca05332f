package main

import (
	"bufio"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"eventhub/admin"
	"eventhub/cmd/eventhub/internal/output"
)

// printPages prints what a query gives a page at a time, up to the limit. page reads the next page of at most
// so many things and says how many it has; line appends one of them as it is printed. whole reports that
// there is no more than was printed; where there is, standard error says so in the words of what.
func (s *stating) printPages(cmd *cobra.Command, out *bufio.Writer, what string,
	page func(limit int) (n int, more bool, err error), line func(dst []byte, i int) ([]byte, error)) (printed int, whole bool, err error) {
	var text []byte
	for more := true; more; {
		limit := admin.MaxPage
		if !s.all {
			limit = min(limit, s.limit-printed+1) // one more says whether there are more
		}
		var n int
		if n, more, err = page(limit); err != nil {
			return printed, false, err
		}
		for i := range n {
			if printed == s.limit && !s.all {
				fmt.Fprintf(cmd.ErrOrStderr(), "There are more %s: --all shows all.\n", what)
				return printed, false, nil
			}
			if text, err = line(text[:0], i); err != nil {
				return printed, false, err
			}
			if _, err = out.Write(text); err != nil {
				return printed, false, err
			}
			printed++
		}
	}
	return printed, true, nil
}

// printRows is printPages of rows, with what comes after the last one.
func printRows[T any](cmd *cobra.Command, s *stating, rows func(output.Format, bool) *output.Rows[T], what string,
	page func(limit int) (n int, more bool, err error), row func(i int) (T, error)) (printed int, whole bool, err error) {
	out := results(cmd)
	buffered := bufio.NewWriterSize(out, pageBuffer)
	r := rows(s.format.Format, out.Color)
	printed, whole, err = s.printPages(cmd, buffered, what, page, func(dst []byte, i int) ([]byte, error) {
		of, err := row(i)
		if err != nil {
			return nil, err
		}
		return r.Append(dst, of)
	})
	if err == nil {
		_, err = buffered.Write(r.End(nil))
	}
	return printed, whole, errors.Join(err, buffered.Flush())
}

// pageBuffer is how much is printed at once.
const pageBuffer = 64 << 10
