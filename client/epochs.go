package client

import "eventhub"

// maxEpochs bounds the topics that a subscription keeps an epoch of.
const maxEpochs = 1 << 16

// epochs has, over all connections of a subscription and by topic, the last epoch that a
// delivery had. A hub says it with the first delivery over each connection; so a seek
// shows that happened while there was none. 0: the topic's next epoch is to be announced,
// whichever it is.
type epochs map[string]uint64

// note sets Sought on a delivery whose epoch is not the last one of its topic.
func (e *epochs) note(d *eventhub.Delivery) {
	last, known := (*e)[d.Topic]
	switch {
	case last == d.Epoch:
		return
	case known:
		d.Sought = true
	case *e == nil:
		*e = make(epochs)
	case len(*e) >= maxEpochs:
		for topic := range *e {
			delete(*e, topic)
			break
		}
	}
	(*e)[d.Topic] = d.Epoch
}

// owe has what comes next say again what deliveries say that nobody will get.
func (e epochs) owe(lost []eventhub.Delivery) {
	for i := range lost {
		if lost[i].Sought && e != nil { // nil: a hub that does not say epochs
			e[lost[i].Topic] = 0
		}
	}
}
