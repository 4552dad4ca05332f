package console

import (
	"context"
	"net/url"

	"eventhub"
	"eventhub/admin"
)

// maxConnections and maxEnded are how many connections a message has that are open, and that have ended.
const maxConnections, maxEnded = 50, 40

// connectionsView is a window of the connections, and those that have ended lately.
type connectionsView struct {
	Total       int                    `json:"total"`
	Connections []admin.ConnectionInfo `json:"connections"`
	Next        string                 `json:"next,omitempty"`
	Ended       []endedRow             `json:"ended"` // the newest first
}

// endedRow says who was connected, and why that is over.
type endedRow struct {
	ID        string `json:"id"`
	Remote    string `json:"remote"`
	Name      string `json:"name,omitempty"`
	Client    string `json:"client,omitempty"`
	SinceTS   int64  `json:"since_ts"`
	EndedTS   int64  `json:"ended_ts"`
	Code      int    `json:"code"` // 0: without one
	Why       string `json:"why,omitempty"`
	Delivered int64  `json:"delivered"`
}

// connections is the view of them, for those who may see all of them: those after one that a page has.
func connections(q url.Values) view {
	after := q.Get("after")
	return func(ctx context.Context, s *sample, access *Access) (any, error) {
		if access.Connections == nil {
			return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub does not show its connections")
		}
		list, err := access.Connections.Connections(ctx, after, maxConnections+1)
		if err != nil {
			return nil, err
		}
		v := &connectionsView{Total: s.gateway.Connections, Connections: []admin.ConnectionInfo{}, Ended: []endedRow{}}
		if len(list) > maxConnections {
			list = list[:maxConnections]
			v.Next = list[maxConnections-1].ID
		}
		for _, c := range list {
			c.Name, c.Client, c.Remote = clip(c.Name), clip(c.Client), clip(c.Remote)
			v.Connections = append(v.Connections, c)
		}
		for _, e := range s.gateway.Ended[:min(maxEnded, len(s.gateway.Ended))] {
			v.Ended = append(v.Ended, endedRow{
				ID: e.ID, Remote: clip(e.Remote), Name: clip(e.Name), Client: clip(e.Client), SinceTS: ms(e.Since), EndedTS: ms(e.At),
				Code: e.Code, Why: clip(e.Why), Delivered: e.Delivered,
			})
		}
		return v, nil
	}
}
