package ops

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"eventhub"
)

// patience bounds what one probe, or one scrape, waits for each room of the hub.
const patience = 5 * time.Second

// verdict is the outcome of one check.
type verdict struct {
	Name   string  `json:"name"`
	Status string  `json:"status"` // ok or failed
	TimeMS float64 `json:"time_ms"`
	Error  string  `json:"error,omitempty"`
}

const (
	statusOK     = "ok"
	statusFailed = "failed"
)

// livez answers while the process can answer at all: a probe that restarts the
// hub belongs here, since a hub that is not ready is not helped by that.
func (o *Ops) livez(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	writeText(w, http.StatusOK, "ok\n")
}

// readyz answers 200 when every check is well, else 503 and names those that are
// not. ?verbose lists all of them with their times; Accept: application/json or
// ?format=json answers with that list as JSON. ?role=standby asks whether the hub is a standby
// that can take over.
func (o *Ops) readyz(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	query := r.URL.Query()
	verdicts, ready := o.readyAs(ctx, query.Get("role"))
	code, word := http.StatusOK, statusOK
	if !ready {
		code, word = http.StatusServiceUnavailable, statusFailed
	}
	if query.Get("format") == "json" || strings.Contains(r.Header.Get("Accept"), "application/json") {
		// Strings and finite numbers can always be encoded.
		_ = writeJSON(w, code, struct {
			Status string    `json:"status"`
			Checks []verdict `json:"checks"`
		}{word, verdicts})
		return
	}
	var text strings.Builder
	for _, v := range verdicts {
		if !query.Has("verbose") && v.Status == statusOK {
			continue
		}
		fmt.Fprintf(&text, "%s %s %.1fms", v.Name, v.Status, v.TimeMS)
		if v.Error != "" {
			fmt.Fprintf(&text, ": %s", v.Error)
		}
		text.WriteByte('\n')
	}
	writeText(w, code, text.String()+word+"\n")
}

// readyAs is ready for a role that was asked for. That a hub has another one is no news for the log.
func (o *Ops) readyAs(ctx context.Context, role string) (verdicts []verdict, ready bool) {
	switch {
	case role == "":
		return o.ready(ctx)
	case role == "standby" && o.cfg.Standby != nil:
		return o.judge(ctx, o.cfg.Standby, func(string, error) {})
	}
	why := fmt.Sprintf("role %q is unknown; standby is known", role)
	if role == "standby" {
		why = "this hub shares no journal"
	}
	return []verdict{{Name: "role", Status: statusFailed, Error: why}}, false
}

// ready makes the checks of a hub that takes work.
func (o *Ops) ready(ctx context.Context) (verdicts []verdict, ready bool) {
	return o.judge(ctx, o.cfg.Ready, o.note)
}

// judge makes every check, also after one that failed: a probe is to show all
// that is wrong. verdicts is never nil.
func (o *Ops) judge(ctx context.Context, checks []Check, note func(name string, err error)) (verdicts []verdict, ready bool) {
	verdicts, ready = make([]verdict, 0, len(checks)), true
	for _, check := range checks {
		began := time.Now()
		err := check.Check(ctx)
		v := verdict{Name: check.Name, Status: statusOK, TimeMS: float64(time.Since(began).Microseconds()) / 1000}
		if err != nil {
			v.Status, v.Error, ready = statusFailed, eventhub.AsError(err).Message, false
		}
		note(check.Name, err)
		verdicts = append(verdicts, v)
	}
	return verdicts, ready
}

// note logs when a check fails and when it is well again, and not every probe in
// between.
func (o *Ops) note(name string, err error) {
	o.mu.Lock()
	changed := o.failed[name] != (err != nil)
	o.failed[name] = err != nil
	o.mu.Unlock()
	switch {
	case !changed:
	case err != nil:
		o.cfg.Logger.Warn("the hub is not ready", "check", name, "error", err)
	default:
		o.cfg.Logger.Info("a check of readiness is well again", "check", name)
	}
}
