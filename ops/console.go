package ops

import (
	"context"
	"net/http"

	"eventhub"
	"eventhub/ops/console"
)

// newConsole makes the console over what this listener has.
func (o *Ops) newConsole() (*console.Console, error) {
	engine := o.cfg.Glance
	if engine == nil {
		engine = o.cfg.Engine
	}
	return console.New(console.Config{
		Engine: engine, Gateway: o.cfg.Gateway, Closed: o.cfg.Closed, WhyClosed: o.cfg.WhyClosed, Cluster: o.cfg.Cluster, Sources: o.cfg.Sources,
		Ready: func(ctx context.Context) []console.Check {
			verdicts, _ := o.ready(ctx)
			checks := make([]console.Check, len(verdicts))
			for i, v := range verdicts {
				checks[i] = console.Check{Name: v.Name, Error: v.Error}
			}
			return checks
		},
		Admit:   o.admitToConsole,
		Refuse:  refuse,
		Version: o.cfg.Version,
		Logger:  o.cfg.Logger,
	})
}

// admitToConsole lets in who may see something of the hub, as with the metrics.
func (o *Ops) admitToConsole(r *http.Request) (console.Access, error) {
	access, err := o.admit(r)
	if err != nil {
		return console.Access{}, err
	}
	to := console.Access{Name: access.Name, Inspector: access.Inspector, History: access.History, Tailer: access.Tailer, Connections: access.Connections, May: access.May, Expires: access.Expires, Revoked: access.Revoked}
	if access.Shows != nil {
		to.Shows, err = access.Shows()
	}
	return to, err
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	w.Header().Set("Cache-Control", "no-store")
	writeProblem(w, eventhub.AsError(err))
}
