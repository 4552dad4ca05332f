package audit

import (
	"context"

	"eventhub"
	"eventhub/admin"
)

// did records an act of the peer. A plan is none, and what is forbidden is recorded by whoever has
// denied it.
func (p Peer) did(act, topic, group string, err error) { p.record(act, topic, group, err, false) }

func (p Peer) record(act, topic, group string, err error, unsaved bool) {
	outcome := ok
	if err != nil {
		code := eventhub.ErrorCode(err)
		if code == eventhub.CodeForbidden {
			return
		}
		outcome = string(code)
	}
	m := p.mark(act, outcome)
	m.Topic, m.Group = topic, group
	p.log.record(done, m, unsaved)
}

// LogLevel records that the peer has set the level of the hub's log.
func (p Peer) LogLevel() { p.did("log_level", "", "", nil) }

// Operator returns an admin.Operator whose acts are recorded.
func (p Peer) Operator(o admin.Operator) admin.Operator { return operator{o, p} }

type operator struct {
	admin.Operator
	peer Peer
}

func (o operator) DeleteGroup(ctx context.Context, topic, group string) error {
	err := o.Operator.DeleteGroup(ctx, topic, group)
	o.peer.did("group_delete", topic, group, err)
	return err
}

func (o operator) DeleteTopic(ctx context.Context, topic string) error {
	err := o.Operator.DeleteTopic(ctx, topic)
	o.peer.did("topic_delete", topic, "", err)
	return err
}

func (o operator) SeekGroup(ctx context.Context, topic, group string, start eventhub.Start, apply bool) (admin.SeekPlan, error) {
	plan, err := o.Operator.SeekGroup(ctx, topic, group, start, apply)
	if apply {
		o.peer.did("group_seek", topic, group, err)
	}
	return plan, err
}

func (o operator) SeekGroupIf(ctx context.Context, topic, group string, start eventhub.Start, epoch uint64) (admin.SeekPlan, error) {
	plan, err := o.Operator.SeekGroupIf(ctx, topic, group, start, epoch)
	o.peer.did("group_seek", topic, group, err)
	return plan, err
}

func (o operator) PauseGroup(ctx context.Context, topic, group string) error {
	err := o.Operator.PauseGroup(ctx, topic, group)
	o.peer.did("group_pause", topic, group, err)
	return err
}

func (o operator) ResumeGroup(ctx context.Context, topic, group string) error {
	err := o.Operator.ResumeGroup(ctx, topic, group)
	o.peer.did("group_resume", topic, group, err)
	return err
}

// Importer returns an admin.Importer whose acts are recorded.
func (p Peer) Importer(i admin.Importer) admin.Importer { return importer{i, p} }

type importer struct {
	admin.Importer
	peer Peer
}

func (i importer) Import(ctx context.Context, events ...eventhub.Event) ([]eventhub.Receipt, error) {
	topic := ""
	if len(events) > 0 {
		topic = events[0].Topic
	}
	for n := range events {
		if events[n].Topic != topic {
			topic = "" // of several
			break
		}
	}
	receipts, err := i.Importer.Import(ctx, events...)
	i.peer.did("import", topic, "", err)
	return receipts, err
}

// Backuper returns an admin.Backuper whose acts are recorded.
func (p Peer) Backuper(b admin.Backuper) admin.Backuper { return backuper{b, p} }

type backuper struct {
	admin.Backuper
	peer Peer
}

func (b backuper) Backup(ctx context.Context, dir string) error {
	err := b.Backuper.Backup(ctx, dir)
	b.peer.did("backup", "", "", err)
	return err
}

// Redriver returns an admin.Redriver whose acts are recorded.
func (p Peer) Redriver(r admin.Redriver) admin.Redriver { return redriver{r, p} }

type redriver struct {
	admin.Redriver
	peer Peer
}

func (r redriver) Redrive(ctx context.Context, q admin.RedriveQuery) (admin.RedriveResult, error) {
	result, err := r.Redriver.Redrive(ctx, q)
	if q.Apply {
		r.peer.did("redrive", q.Topic, q.Group, err)
	}
	return result, err
}

func (r redriver) Requeue(ctx context.Context, topic string, offset uint64, payload []byte, by string) (eventhub.Receipt, error) {
	return r.RequeueIf(ctx, topic, offset, payload, 0, by)
}

func (r redriver) RequeueIf(ctx context.Context, topic string, offset uint64, payload []byte, marks int, by string) (eventhub.Receipt, error) {
	receipt, err := r.Redriver.RequeueIf(ctx, topic, offset, payload, marks, by)
	r.peer.did("requeue", topic, "", err)
	return receipt, err
}

// Remover returns an admin.Remover whose acts are recorded. An erasure has an admin.EraseMark
// already, in its own unit.
func (p Peer) Remover(r admin.Remover) admin.Remover { return remover{r, p} }

type remover struct {
	admin.Remover
	peer Peer
}

func (r remover) Trim(ctx context.Context, topic string, q admin.TrimQuery, apply bool) (admin.TrimPlan, error) {
	plan, err := r.Remover.Trim(ctx, topic, q, apply)
	if apply {
		r.peer.did("trim", topic, "", err)
	}
	return plan, err
}

func (r remover) Erase(ctx context.Context, topic string, q admin.EraseQuery) (admin.EraseResult, error) {
	result, err := r.Remover.Erase(ctx, topic, q)
	if q.Apply {
		r.peer.record("erase", topic, "", err, err == nil)
	}
	return result, err
}

// Settings returns admin.Settings whose acts are recorded.
func (p Peer) Settings(s admin.Settings) admin.Settings { return settings{s, p} }

type settings struct {
	admin.Settings
	peer Peer
}

func (s settings) SetTopic(ctx context.Context, name string, to admin.TopicSettings, match *uint64) (admin.SettingsEntry, error) {
	entry, err := s.Settings.SetTopic(ctx, name, to, match)
	s.peer.did("settings_set", name, "", err)
	return entry, err
}

func (s settings) UnsetTopic(ctx context.Context, name string, match *uint64) error {
	err := s.Settings.UnsetTopic(ctx, name, match)
	s.peer.did("settings_unset", name, "", err)
	return err
}

// Connections returns admin.Connections whose acts are recorded.
func (p Peer) Connections(c admin.Connections) admin.Connections { return connections{c, p} }

// all is admin.Connections, whose name is that of one of its methods.
type all = admin.Connections

type connections struct {
	all
	peer Peer
}

func (c connections) CloseConnection(ctx context.Context, id string) error {
	err := c.all.CloseConnection(ctx, id)
	c.peer.did("connection_close", "", "", err)
	return err
}
