package console

import (
	"strings"

	"eventhub"
	"eventhub/admin"
)

// maxText bounds what a message has of a text that clients chose, in bytes.
const maxText = 120

// clip returns the beginning of a text.
func clip(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + "…"
}

func clipPeer(p *eventhub.Peer) *eventhub.Peer {
	if p == nil {
		return nil
	}
	c := *p
	c.Name, c.Client = clip(c.Name), clip(c.Client)
	return &c
}

func clipBlocked(b *admin.Blocked) *admin.Blocked {
	if b == nil {
		return nil
	}
	c := *b
	c.Key, c.Reason, c.Member = clip(c.Key), clip(c.Reason), clipPeer(c.Member)
	return &c
}

// clipEvent keeps the last attempt of the history, which says why.
func clipEvent(e *admin.InFlight) *admin.InFlight {
	if e == nil {
		return nil
	}
	c := *e
	c.Member = clipPeer(c.Member)
	if n := len(c.History); n > 0 {
		last := c.History[n-1]
		last.Reason, last.Member = clip(last.Reason), clipPeer(last.Member)
		c.History = []admin.Attempt{last}
	}
	return &c
}

// clipMembers keeps the first so many members of a group.
func clipMembers(members []admin.MemberInfo, n int) []admin.MemberInfo {
	list := make([]admin.MemberInfo, 0, min(n, len(members)))
	for _, m := range members[:min(n, len(members))] {
		m.Peer = *clipPeer(&m.Peer)
		list = append(list, m)
	}
	return list
}
