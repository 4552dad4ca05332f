package limits

import (
	"strings"
	"testing"

	"eventhub"
	"eventhub/internal/measure"
)

// TestConnectionsAreCounted: by all and by address, for as long as they last, and what is gone
// leaves nothing.
func TestConnectionsAreCounted(t *testing.T) {
	l := limitsOf(t, "connections: {total: 5, address: 2}")
	var open []*Connection
	admit := func(remote string, code eventhub.Code) {
		t.Helper()
		c, err := l.Admit(remote)
		if err == nil {
			open = append(open, c)
		}
		if got := eventhub.ErrorCode(err); err == nil && code != "" || err != nil && (got != code || eventhub.AsError(err).RetryAfter == 0) {
			t.Errorf("%s: %v; want %q", remote, err, code)
		}
	}
	admit("203.0.113.9:1", "")
	admit("203.0.113.9:2", "")
	admit("203.0.113.9:3", rateLimited)
	admit("[::ffff:203.0.113.9]:4", rateLimited)
	admit("203.0.113.9", rateLimited)
	admit("[2001:db8::1]:1", "")
	admit("[2001:db8::2]:1", "")
	admit("2001:db8::3:4", rateLimited) // of the same network
	admit("[2001:db8:0:1::1]:1", "")
	admit("198.51.100.1:1", eventhub.CodeOverloaded)
	open[0].Leave()
	admit("203.0.113.9:5", "")
	admit("203.0.113.9:6", eventhub.CodeOverloaded)
	if m := l.Measure(); len(m) != 2 || m[0].Limit != "connections_address" || m[0].Connections != 2 || m[0].Refused != 4 || m[1].Connections != 5 || m[1].Refused != 2 {
		t.Errorf("measured %+v", m)
	}
	if err := l.Take("limits.yaml", []byte("connections: {address: 1}")); err != nil {
		t.Fatal(err)
	}
	admit("203.0.113.9:7", rateLimited) // those that are open count
	admit("198.51.100.1:1", "")
	for _, c := range open[1:] {
		c.Leave()
	}
	if l.open != 0 || len(l.from) != 0 {
		t.Errorf("%d connections are left, of %v", l.open, l.from)
	}
	for file, want := range map[string]string{
		"connections:\n  total: 0\n":                 `limits.yaml:2: total: "0" is not a number from 1`,
		"connections:\n  address: -3\n":              `limits.yaml:2: address: "-3" is not`,
		"connections:\n  adress: 3\n":                "did you mean address?",
		"connections:\n  total: 3\n  address: 4\n":   "limits.yaml:3: connections_address is 4, and total, which is for all connections together, 3",
		"connections:\n  address: 4\n  total: 3\n":   "limits.yaml:3: connections_address is 4",
		"connections:\n  principal: 4\n  total: 3\n": "limits.yaml:3: connections_principal is 4",
		"connections:\n  principal: 1.5\n":           `limits.yaml:2: principal: "1.5" is not`,
		"connections: many\n":                        "limits.yaml:1: ",
	} {
		if err := l.Take("limits.yaml", []byte(file)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %s", file, err, want)
		}
	}
}

// TestConnectionsOfPrincipals: one counts from its AUTH on, for whom it says last; what is refused
// changes nothing.
func TestConnectionsOfPrincipals(t *testing.T) {
	l := limitsOf(t, "connections: {principal: 2}")
	connect := func() *Connection {
		t.Helper()
		c, err := l.Admit("203.0.113.9:1")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a, b, c, stranger := connect(), connect(), connect(), connect()
	wantErr(t, "the first", a.Become("ann"), "", 0)
	wantErr(t, "again", a.Become("ann"), "", 0)
	wantErr(t, "the second", b.Become("ann"), "", 0)
	wantErr(t, "the second, which is there", b.Become("ann"), "", 0)
	wantErr(t, "the third", c.Become("ann"), rateLimited, retryConnection)
	wantErr(t, "one without a name", c.Become(""), "", 0)
	wantErr(t, "it has another", c.Become("ann"), rateLimited, retryConnection)
	if l.of["ann"] != 2 || l.of[""] != 1 {
		t.Errorf("counted %v", l.of)
	}
	wantErr(t, "one that becomes another", a.Become("ben"), "", 0)
	wantErr(t, "in its place", c.Become("ann"), "", 0)
	wantErr(t, "back", a.Become("ann"), rateLimited, retryConnection)
	if m := l.Measure(); len(m) != 1 || m[0] != (measure.Limit{Limit: "connections_principal", Connections: 2, Refused: 3}) {
		t.Errorf("measured %+v", m)
	}
	for _, c := range []*Connection{a, b, c, stranger} {
		c.Leave()
	}
	if l.open != 0 || len(l.from) != 0 || len(l.of) != 0 {
		t.Errorf("left are %d, %v, %v", l.open, l.from, l.of)
	}
}
