package main

import (
	"encoding/json"
	"io"
	"strconv"
	"strings"
	"time"

	"eventhub/admin"
	"eventhub/cmd/eventhub/internal/output"
)

// becameDocument is what `get --history` prints as JSON.
type becameDocument struct {
	Event  json.RawMessage    `json:"event"`
	Groups []admin.EventGroup `json:"groups"`
}

// ended is one attempt that came to nothing, and the group whose it was.
type ended struct {
	group string
	admin.Attempt
}

// describeHistory writes what became of an event below its description.
func describeHistory(w io.Writer, color bool, groups []admin.EventGroup) error {
	if len(groups) == 0 {
		_, err := io.WriteString(w, "\nNo groups in this topic\n")
		return err
	}
	now := time.Now()
	if err := section(w, color, "In "+output.Things(len(groups), "group"), becameColumns(now), groups); err != nil {
		return err
	}
	var attempts []ended
	for _, g := range groups {
		for _, a := range g.History {
			attempts = append(attempts, ended{g.Group, a})
		}
	}
	if len(attempts) == 0 {
		return nil
	}
	return section(w, color, "Attempts that came to nothing", attemptColumns(), attempts)
}

func becameColumns(now time.Time) []output.Column[admin.EventGroup] {
	return []output.Column[admin.EventGroup]{
		{Name: "GROUP", Cell: func(g admin.EventGroup) string { return g.Group }},
		{Name: "STATE", Cell: func(g admin.EventGroup) string { return strings.ReplaceAll(g.State, "_", " ") }},
		{Name: "ATTEMPTS", Right: true, Cell: func(g admin.EventGroup) string {
			if g.State == "done" {
				return "-" // nobody counts any more
			}
			return strconv.Itoa(g.Attempt)
		}},
		{Name: "WHEN", Cell: func(g admin.EventGroup) string { return inFlightWhen(now, &g.InFlight) }},
		{Name: "MEMBER", Cell: func(g admin.EventGroup) string { return peer(g.Member) }},
	}
}

func attemptColumns() []output.Column[ended] {
	return []output.Column[ended]{
		{Name: "GROUP", Cell: func(a ended) string { return a.group }},
		{Name: "ATTEMPT", Right: true, Cell: func(a ended) string { return strconv.Itoa(a.Attempt.Attempt) }},
		{Name: "MEMBER", Cell: func(a ended) string { return peer(a.Member) }},
		{Name: "SINCE", Cell: func(a ended) string { return output.Time(a.SinceTS) }},
		{Name: "FOR", Right: true, Cell: func(a ended) string {
			return output.Span(max(0, time.Duration(a.EndedTS-a.SinceTS)*time.Millisecond))
		}},
		{Name: "ENDED", Cell: func(a ended) string { return a.Why }},
		{Name: "REASON", Cell: func(a ended) string {
			if a.Reason == "" {
				return "-"
			}
			return output.Safe(a.Reason)
		}},
	}
}
