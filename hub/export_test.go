package hub

// Routes returns the methods and paths of the API and of the operations listener.
func (h *Hub) Routes() []string { return append(h.api.Routes(), h.operations.Routes()...) }
