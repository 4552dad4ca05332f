package ops

import (
	"bytes"
	"net/http"
	"time"

	"eventhub/apidoc"
)

// document answers with one of the documents that describe the hub. It changes with
// the hub's version alone, so a client asks whether its copy is still good.
func document(d apidoc.Document) handler {
	return func(w http.ResponseWriter, r *http.Request, _ Access) error {
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "private, no-cache")
		h.Set("ETag", d.ETag)
		http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(d.JSON))
		return nil
	}
}
