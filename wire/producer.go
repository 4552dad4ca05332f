package wire

import (
	"strconv"

	"eventhub"
	"eventhub/internal/naming"
	"eventhub/internal/strictjson"
)

// AuthProducer is what an AUTH, and its OK, say of the producer that numbers the PUBLISHes of the
// connection.
type AuthProducer struct {
	ID string
	// Epoch is, in an AUTH, the one that the producer is known to have, or 0; in an OK the one
	// that it has now.
	Epoch uint64
	// Of an OK: the epoch in which the producer was made, another one where the hub had forgotten
	// it; the number that was used last, and how many publishes may be without an answer.
	Born   uint64
	Seq    uint64
	Window int
}

// MaxSeq is the highest number of a PUBLISH: what all JSON readers read exactly.
const MaxSeq = 1<<53 - 1

var producerMembers = []string{"id", "epoch"}

// readSeq reads the number of a PUBLISH. It is read before anything else of the frame is judged,
// so that a refusal can use it up.
func (d *Decoder) readSeq(req *Request) error {
	if absent(d.m.seq) {
		return nil
	}
	if req.Op != OpPublish {
		return eventhub.Errorf(eventhub.CodeBadRequest, "seq is given; a %s alone takes it", OpPublish)
	}
	var n int64
	if err := readInteger("seq", d.m.seq, &n); err != nil {
		return err
	}
	if n < 1 || n > MaxSeq {
		return outOfRange("seq", n, 1, MaxSeq)
	}
	req.Seq = uint64(n)
	return nil
}

// readProducer reads the producer of an AUTH.
func (d *Decoder) readProducer(req *Request) error {
	object := d.m.producer
	if absent(object) {
		return nil
	}
	if req.Op != OpAuth {
		return eventhub.Errorf(eventhub.CodeBadRequest, "producer is given; an %s alone takes it", OpAuth)
	}
	if object[0] != '{' {
		return wrongType("producer", object, "an object")
	}
	for name, value := range eachMember(object) {
		var err error
		switch string(name) {
		case "id":
			err = d.readText("producer.id", value, &req.Producer.ID)
		case "epoch":
			var n int64
			if err = readInteger("producer.epoch", value, &n); err == nil && (n < 1 || n > MaxSeq) && !absent(value) {
				err = outOfRange("producer.epoch", n, 1, MaxSeq)
			}
			req.Producer.Epoch = uint64(n)
		default:
			err = eventhub.Errorf(eventhub.CodeBadRequest, "producer has the unknown name %.48q%s", name, naming.DidYouMean(string(name), producerMembers))
		}
		if err != nil {
			return err
		}
	}
	return eventhub.ValidateProducer(req.Producer.ID)
}

// WithSeq gives a PUBLISH that was just appended, without corr or with, its number.
func WithSeq(frame []byte, seq uint64) []byte {
	frame = append(frame[:len(frame)-1], `,"seq":`...)
	return append(strconv.AppendUint(frame, seq, 10), '}')
}

// WithProducer gives an AUTH that was just appended its producer. Of p ID and Epoch count.
func WithProducer(frame []byte, p AuthProducer) []byte {
	frame = strictjson.AppendString(append(frame[:len(frame)-1], `,"producer":{"id":`...), p.ID)
	if p.Epoch != 0 {
		frame = strconv.AppendUint(append(frame, `,"epoch":`...), p.Epoch, 10)
	}
	return append(frame, "}}"...)
}

// appendProducer appends what the OK of an AUTH says of its producer.
func appendProducer(dst []byte, p *AuthProducer) []byte {
	dst = strictjson.AppendString(append(dst, `,"producer":{"id":`...), p.ID)
	dst = strconv.AppendUint(append(dst, `,"epoch":`...), p.Epoch, 10)
	dst = strconv.AppendUint(append(dst, `,"born":`...), p.Born, 10)
	dst = strconv.AppendUint(append(dst, `,"seq":`...), p.Seq, 10)
	dst = strconv.AppendInt(append(dst, `,"window":`...), int64(p.Window), 10)
	return append(dst, '}')
}

// readProducer reads what the OK of an AUTH says of its producer.
func (d *HubDecoder) readProducer(into *AuthProducer) error {
	object := d.m.producer
	if absent(object) {
		return nil
	}
	if object[0] != '{' {
		return wrongType("producer", object, "an object")
	}
	for name, value := range eachMember(object) {
		var err error
		switch string(name) {
		case "id":
			err = d.values.readText("producer.id", value, &into.ID)
		case "epoch":
			err = readCardinal("producer.epoch", value, &into.Epoch)
		case "born":
			err = readCardinal("producer.born", value, &into.Born)
		case "seq":
			err = readCardinal("producer.seq", value, &into.Seq)
		case "window":
			err = readCount("producer.window", value, &into.Window)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
