package rest

import (
	"net/http"

	"eventhub"
	"eventhub/admin"
)

// connections returns what knows of the hub's connections.
func (a *Access) connections() (admin.Connections, error) {
	if a.Connections == nil {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub does not show its connections")
	}
	return a.Connections, nil
}

func listConnections(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	q, err := parameters(r, "after", "limit")
	if err != nil {
		return reply{}, err
	}
	limit, err := pageLimit(q["limit"])
	if err != nil {
		return reply{}, err
	}
	from, err := access.connections()
	if err != nil {
		return reply{}, err
	}
	open, err := from.Connections(r.Context(), q["after"], limit)
	if err != nil {
		return reply{}, err
	}
	page := struct {
		Connections []admin.ConnectionInfo `json:"connections"`
		Next        string                 `json:"next,omitempty"`
	}{Connections: append([]admin.ConnectionInfo{}, open...)} // never null
	last, err := lastOfMore(open, limit, func(last *admin.ConnectionInfo) ([]admin.ConnectionInfo, error) {
		return from.Connections(r.Context(), last.ID, 1)
	})
	if err != nil {
		return reply{}, err
	}
	if last != nil {
		page.Next = last.ID
	}
	return jsonReply(http.StatusOK, page)
}

// closeConnection closes one connection. As with topics, whoever may publish is not meant to.
func (a *API) closeConnection(_ http.ResponseWriter, r *http.Request, access Access) (reply, error) {
	if _, err := parameters(r); err != nil {
		return reply{}, err
	}
	of, err := access.connections()
	if err != nil {
		return reply{}, err
	}
	id := r.PathValue("id")
	if err := of.CloseConnection(r.Context(), id); err != nil {
		return reply{}, err
	}
	a.cfg.Logger.Info("a connection was closed on request", "id", id, "name", access.Name, "remote", r.RemoteAddr)
	return reply{status: http.StatusNoContent}, nil
}
