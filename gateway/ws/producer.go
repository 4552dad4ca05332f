package ws

import (
	"context"

	"eventhub"
	"eventhub/wire"
)

// numbers is the producer that numbers the PUBLISHes of a session, with whom it is left.
type numbers struct {
	*eventhub.Producer
	of eventhub.Producers
}

// leave may be called for no producer.
func (n *numbers) leave() {
	if n != nil {
		n.of.LeaveProducer(n.Producer)
	}
}

// tell adds what the OK of an AUTH says of the producer that it has opened, if it has.
func (n *numbers) tell(info wire.AuthInfo) wire.AuthInfo {
	if n != nil {
		info.Producer = wire.AuthProducer{ID: n.ID, Epoch: n.Epoch, Born: n.Born, Seq: n.Last, Window: eventhub.ProducerWindow}
	}
	return info
}

var errNoProducer = eventhub.Errorf(eventhub.CodeBadRequest, "seq is given, and no AUTH of the connection has named a producer")

// openProducer opens the producer that an AUTH names; nil where it names none, or the access
// may publish nothing.
func (s *session) openProducer(ctx context.Context, access *Access, r *wire.Request) (*numbers, error) {
	if r.Producer.ID == "" {
		return nil, nil
	}
	if access.Producers == nil {
		return nil, eventhub.Errorf(eventhub.CodeUnsupportedOp, "this hub has no producers")
	}
	p, err := access.Producers.OpenProducer(ctx, eventhub.ProducerOptions{Owner: access.Name, ID: r.Producer.ID, Epoch: r.Producer.Epoch})
	if err != nil {
		return nil, err
	}
	if p == nil {
		return nil, nil
	}
	return &numbers{p, access.Producers}, nil
}

// numberBy has a producer number the PUBLISHes from now on, or nobody. Those before are
// their producer's.
func (s *session) numberBy(n *numbers) {
	s.producer.leave()
	s.producer = n
}

// refusal is why a frame is refused as the engine keeps it with the number: its text names the
// event already that it is about.
func (f *publishFrame) refusal() error {
	if f.refused == nil || f.refused.Index == nil {
		return asError(f.refused)
	}
	unnamed := *f.refused
	unnamed.Index = nil
	return &unnamed
}

// asError keeps a nil pointer from being an error.
func asError(err *eventhub.Error) error {
	if err == nil {
		return nil
	}
	return err
}

// failure is what a frame is told of an error of its publication.
func (f *publishFrame) failure(p *eventhub.Publication) *eventhub.Error {
	err := toError(p.Err, eventhub.CodePublishFailed)
	if f.refused != nil && f.refused.Message == err.Message {
		err = f.refused
	} else {
		err = ofEvent(err, "events", f.batch)
	}
	if p.SeqUsed {
		err = withSeq(err, f.seq)
	}
	return err
}

// withSeq says in a refusal which number it has used up.
func withSeq(err *eventhub.Error, seq uint64) *eventhub.Error {
	numbered := *err
	numbered.Seq = seq
	return &numbered
}
