package bus

// The groups that have a runtime, by topic and name, and those that use one.

// acquire returns the runtime of a group, made on first use and perhaps not
// loaded yet. The caller releases it.
func (b *Bus) acquire(key groupKey) (*group, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return nil, errShuttingDown
	}
	g := b.groups[key]
	if g == nil {
		g = newGroup(b, b.logs.Use(key.topic), key)
		b.groups[key] = g
	}
	g.users++
	return g, nil
}

// release undoes acquire; a group that was never loaded is forgotten with its
// last user, so that nothing of refused subscriptions stays.
func (b *Bus) release(g *group) {
	g.noteUse()
	b.releaseUnused(g)
}

// releaseUnused is release by who has looked, and did not use the group.
func (b *Bus) releaseUnused(g *group) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g.users--
	if g.users > 0 || g.loaded.Load() {
		return
	}
	b.forget(g)
}

// forget takes the runtime of a group off; its topic's goes with the last. b.mu
// is held.
func (b *Bus) forget(g *group) {
	if b.groups[g.key] != g {
		return
	}
	delete(b.groups, g.key)
	b.runtimes.forget(g)
	b.logs.Leave(g.log)
}

// loaded lists the groups that have a runtime.
func (b *Bus) loaded() []*group {
	b.mu.RLock()
	defer b.mu.RUnlock()
	loaded := make([]*group, 0, len(b.groups))
	for _, g := range b.groups {
		if g.loaded.Load() {
			loaded = append(loaded, g)
		}
	}
	return loaded
}

// running returns the runtime of a group, or nil where it was not loaded yet.
func (b *Bus) running(topic, name string) *group {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if g := b.groups[groupKey{topic: topic, group: name}]; g != nil && g.loaded.Load() {
		return g
	}
	return nil
}
