package client

import (
	"context"
	"net/url"
	"strconv"

	"eventhub"
	"eventhub/admin"
)

var _ admin.Connections = (*Admin)(nil)

// Connections implements admin.Connections.
func (a *Admin) Connections(ctx context.Context, after string, limit int) ([]admin.ConnectionInfo, error) {
	query := url.Values{"limit": {strconv.Itoa(limit)}}
	setGiven(query, "after", after)
	var page struct {
		Connections []admin.ConnectionInfo `json:"connections"`
	}
	err := a.get(ctx, "/v1/connections?"+query.Encode(), &page, func() bool { return page.Connections != nil })
	return page.Connections, err
}

// CloseConnection implements admin.Connections. A client of this package that is closed so
// connects again.
func (a *Admin) CloseConnection(ctx context.Context, id string) error {
	if id == "" {
		return eventhub.Errorf(eventhub.CodeBadRequest, "the id of the connection is empty")
	}
	return a.delete(ctx, "/v1/connections/"+segment(id))
}
