package hubtest

import "time"

// SetPatience is WithPatience for what comes from now on.
func (h *Hub) SetPatience(d time.Duration) { h.patience = d }
