package ops

import (
	"net/http"
	"time"

	"eventhub"
	"eventhub/internal/measure"
)

// clusterView is what /cluster answers. Times are epoch milliseconds, places those of the journal.
type clusterView struct {
	Member  ownView      `json:"member"` // this hub
	Journal journalView  `json:"journal"`
	Members []memberView `json:"members"` // all, as each has said last
}

type ownView struct {
	ID            string `json:"id"`
	Role          string `json:"role"` // active or standby
	Epoch         uint64 `json:"epoch"`
	Active        string `json:"active,omitempty"` // who leads, or led last
	Position      uint64 `json:"position"`
	Last          uint64 `json:"last"`
	BehindEntries uint64 `json:"behind_entries"`
	BehindMS      int64  `json:"behind_ms"`
	SilentMS      int64  `json:"silent_ms"`
	FullMS        int64  `json:"full_ms"`
}

type journalView struct {
	Durability string `json:"durability"`
	UsedBytes  uint64 `json:"used_bytes"`
	MostBytes  uint64 `json:"most_bytes"` // 0: no limit
	// NowTS is the time by which the members were seen: the clocks of the servers and of the hubs may differ.
	NowTS int64 `json:"now_ts,omitempty"`
}

type memberView struct {
	ID            string   `json:"id"`
	URLs          []string `json:"urls"`
	Active        bool     `json:"active"`
	Synced        uint64   `json:"synced"`
	BehindEntries uint64   `json:"behind_entries"`
	Layout        uint32   `json:"layout"`
	SeenTS        int64    `json:"seen_ts"`
	Released      bool     `json:"released,omitempty"`
}

// cluster answers GET /cluster, in a standby too.
func (o *Ops) cluster(w http.ResponseWriter, _ *http.Request, _ Access) error {
	c := o.cfg.Cluster()
	if c == nil {
		return eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub shares no journal; there is no cluster")
	}
	return writeJSON(w, http.StatusOK, viewCluster(c))
}

func inMS(d time.Duration) int64 { return d.Round(time.Millisecond).Milliseconds() }

func viewCluster(c *measure.Cluster) *clusterView {
	role := "standby"
	if c.Leads {
		role = "active"
	}
	v := &clusterView{
		Member: ownView{
			ID: c.ID, Role: role, Epoch: c.Epoch, Active: c.Active, Position: c.Position, Last: c.Last,
			BehindEntries: c.BehindEntries(c.Position), BehindMS: inMS(c.Behind), SilentMS: inMS(c.Silent), FullMS: inMS(c.Full),
		},
		Journal: journalView{Durability: c.Durability, UsedBytes: c.Used, MostBytes: c.Most},
		Members: make([]memberView, len(c.Members)),
	}
	if !c.Now.IsZero() {
		v.Journal.NowTS = c.Now.UnixMilli()
	}
	for i, m := range c.Members {
		urls := m.URLs
		if urls == nil {
			urls = []string{}
		}
		v.Members[i] = memberView{
			ID: m.ID, URLs: urls, Active: m.ID == c.Active, Synced: m.Synced, BehindEntries: c.BehindEntries(m.Synced),
			Layout: m.Layout, SeenTS: m.Seen.UnixMilli(), Released: m.Released,
		}
	}
	return v
}
