package wire

import (
	"slices"
	"strconv"
	"time"

	"eventhub"
	"eventhub/internal/strictjson"
)

// The encoders append one frame of the hub each. A frame without corr is the
// answer to one without.

// AppendOK appends the plain OK.
func AppendOK(dst []byte, corr string, hasCorr bool) []byte {
	return append(openOK(dst, corr, hasCorr), '}')
}

// Subscribed is what the OK of a SUBSCRIBE says: for a live tail which topics it knows, and of
// its gaps; for a group where it had ended, and is made again.
type Subscribed struct {
	Known string
	Gaps  []eventhub.Gap
	Ended []eventhub.EndedGroup // the first MaxEnded of them are said
}

// MaxEnded bounds the topics of which an answer says that a group had ended there.
const MaxEnded = 100

// AppendSubscribeOK appends the OK of a SUBSCRIBE.
func AppendSubscribeOK(dst []byte, corr string, hasCorr bool, s *Subscribed) []byte {
	dst = openOK(dst, corr, hasCorr)
	if s.Known != "" {
		dst = strictjson.AppendString(append(dst, `,"known":`...), s.Known)
	}
	gaps := s.Gaps
	for i := range gaps {
		if i == 0 {
			dst = append(dst, `,"gaps":[`...)
		} else {
			dst = append(dst, ',')
		}
		g := &gaps[i]
		dst = append(dst, `{"topic":`...)
		dst = strictjson.AppendString(dst, g.Topic)
		dst = append(dst, `,"after":`...)
		dst = strconv.AppendUint(dst, g.After, 10)
		dst = append(dst, `,"first":`...)
		dst = append(appendGapEnd(dst, g), '}')
	}
	if len(gaps) > 0 {
		dst = append(dst, ']')
	}
	return append(AppendEnded(dst, s.Ended), '}')
}

// AppendEnded appends the member of an answer that says where a group had ended, if it had.
func AppendEnded(dst []byte, ended []eventhub.EndedGroup) []byte {
	if len(ended) == 0 {
		return dst
	}
	dst = append(dst, `,"ended":[`...)
	for i := range ended[:min(len(ended), MaxEnded)] {
		e := &ended[i]
		dst = strictjson.AppendString(append(comma(dst, i), `{"topic":`...), e.Topic)
		dst = strconv.AppendInt(append(dst, `,"ts":`...), e.TS, 10)
		dst = strconv.AppendUint(append(dst, `,"cursor":`...), e.Cursor, 10)
		dst = append(dst, '}')
	}
	return append(dst, ']')
}

// AppendAuthOK appends the OK of an AUTH.
func AppendAuthOK(dst []byte, corr string, hasCorr bool, info AuthInfo) []byte {
	dst = openOK(dst, corr, hasCorr)
	dst = append(dst, `,"hub":`...)
	dst = strictjson.AppendString(dst, info.Hub)
	dst = append(dst, `,"version":`...)
	dst = strictjson.AppendString(dst, info.Version)
	dst = append(dst, `,"protocol":`...)
	dst = strconv.AppendInt(dst, int64(info.Protocol), 10)
	dst = append(dst, `,"durability":`...)
	dst = strictjson.AppendString(dst, info.Durability)
	dst = append(dst, `,"limits":{"max_frame_bytes":`...)
	dst = strconv.AppendInt(dst, int64(info.Limits.MaxFrameBytes), 10)
	dst = append(dst, `,"max_payload_bytes":`...)
	dst = strconv.AppendInt(dst, int64(info.Limits.MaxPayloadBytes), 10)
	dst = append(dst, `,"max_subscriptions":`...)
	dst = strconv.AppendInt(dst, int64(info.Limits.MaxSubscriptions), 10)
	dst = append(dst, '}')
	if info.Producer.ID != "" {
		dst = appendProducer(dst, &info.Producer)
	}
	return append(dst, '}')
}

// AppendPublishOK appends the OK of a PUBLISH of one event. A scheduled one has
// deliver_at instead of an offset.
func AppendPublishOK(dst []byte, corr string, hasCorr bool, r eventhub.Receipt) []byte {
	return append(appendReceipt(openOK(dst, corr, hasCorr), r), '}')
}

// appendReceipt appends the members of an OK that are about one event.
func appendReceipt(dst []byte, r eventhub.Receipt) []byte {
	dst = append(dst, `,"id":`...)
	dst = strictjson.AppendString(dst, r.ID)
	if !r.DeliverAt.IsZero() {
		dst = append(dst, `,"deliver_at":`...)
		dst = strconv.AppendInt(dst, r.DeliverAt.UnixMilli(), 10)
	} else {
		dst = append(dst, `,"offset":`...)
		dst = strconv.AppendUint(dst, r.Offset, 10)
	}
	if r.Duplicate {
		dst = append(dst, `,"duplicate":true`...)
	}
	return dst
}

// AppendBatchOK appends the OK of a PUBLISH with events, or of an ACK that
// published some: ids and offsets in the order of the events, and the indexes of
// those that are duplicates, where some are. Where some are scheduled there is
// deliver_at too, as long as ids: of each event either offset or deliver_at is 0.
func AppendBatchOK(dst []byte, corr string, hasCorr bool, receipts []eventhub.Receipt) []byte {
	return append(appendReceipts(openOK(dst, corr, hasCorr), receipts), '}')
}

// appendReceipts appends the members of an OK that are about a list of events.
func appendReceipts(dst []byte, receipts []eventhub.Receipt) []byte {
	dst = append(dst, `,"ids":[`...)
	duplicate, scheduled := false, false
	for i := range receipts {
		dst = strictjson.AppendString(comma(dst, i), receipts[i].ID)
		duplicate = duplicate || receipts[i].Duplicate
		scheduled = scheduled || !receipts[i].DeliverAt.IsZero()
	}
	dst = append(dst, `],"offsets":[`...)
	for i := range receipts {
		dst = strconv.AppendUint(comma(dst, i), receipts[i].Offset, 10)
	}
	dst = append(dst, ']')
	if scheduled {
		dst = append(dst, `,"deliver_at":[`...)
		for i := range receipts {
			dst = strconv.AppendInt(comma(dst, i), eventhub.Millis(receipts[i].DeliverAt), 10)
		}
		dst = append(dst, ']')
	}
	if duplicate {
		dst = append(dst, `,"duplicates":[`...)
		n := 0
		for i := range receipts {
			if receipts[i].Duplicate {
				dst = strconv.AppendInt(comma(dst, n), int64(i), 10)
				n++
			}
		}
		dst = append(dst, ']')
	}
	return dst
}

// AppendSettleOK appends the OK of an ACK, NACK or MODACK. It says stale where
// any of the outcomes is Stale, and stale_at, their indexes, where not all are;
// what is Unknown is an error and not for here.
func AppendSettleOK(dst []byte, corr string, hasCorr bool, outcomes []eventhub.Outcome) []byte {
	dst = openOK(dst, corr, hasCorr)
	if !slices.Contains(outcomes, eventhub.Stale) {
		return append(dst, '}')
	}
	dst = append(dst, `,"stale":true`...)
	if !slices.ContainsFunc(outcomes, func(o eventhub.Outcome) bool { return o != eventhub.Stale }) {
		return append(dst, '}')
	}
	dst = append(dst, `,"stale_at":[`...)
	n := 0
	for i, o := range outcomes {
		if o == eventhub.Stale {
			dst = strconv.AppendInt(comma(dst, n), int64(i), 10)
			n++
		}
	}
	return append(dst, "]}"...)
}

// comma goes in front of entry n of a list.
func comma(dst []byte, n int) []byte {
	if n == 0 {
		return dst
	}
	return append(dst, ',')
}

// AppendError appends an ERR: code, message, what it is about and when to try
// again, and nothing of err's cause.
func AppendError(dst []byte, corr string, hasCorr bool, err *eventhub.Error) []byte {
	return append(openError(dst, corr, hasCorr, err), '}')
}

// AppendPublishError appends the ERR of a PUBLISH whose events are in the log, although
// something else has failed: it says what they got, as AppendPublishOK or, of a batch,
// AppendBatchOK does.
func AppendPublishError(dst []byte, corr string, hasCorr bool, err *eventhub.Error, receipts []eventhub.Receipt, batch bool) []byte {
	dst = openError(dst, corr, hasCorr, err)
	if batch {
		dst = appendReceipts(dst, receipts)
	} else {
		dst = appendReceipt(dst, receipts[0])
	}
	return append(dst, '}')
}

func openError(dst []byte, corr string, hasCorr bool, err *eventhub.Error) []byte {
	dst = append(dst, `{"op":"ERR","code":`...)
	dst = strictjson.AppendString(dst, string(err.Code))
	dst = append(dst, `,"msg":`...)
	dst = strictjson.AppendString(dst, err.Message)
	if err.Topic != "" {
		dst = strictjson.AppendString(append(dst, `,"topic":`...), err.Topic)
	}
	if err.Group != "" {
		dst = strictjson.AppendString(append(dst, `,"group":`...), err.Group)
	}
	if err.Index != nil {
		dst = strconv.AppendInt(append(dst, `,"index":`...), int64(*err.Index), 10)
	}
	if err.Present != nil {
		dst = strconv.AppendUint(append(dst, `,"present":`...), *err.Present, 10)
	}
	if err.Seq != 0 {
		dst = strconv.AppendUint(append(dst, `,"seq":`...), err.Seq, 10)
	}
	dst = appendCorr(dst, corr, hasCorr)
	if err.RetryAfter > 0 {
		// Rounded up: who comes back in time must not be too early.
		ms := (err.RetryAfter + time.Millisecond - 1).Milliseconds()
		dst = append(dst, `,"retry_after_ms":`...)
		dst = strconv.AppendInt(dst, ms, 10)
	}
	return dst
}

func openOK(dst []byte, corr string, hasCorr bool) []byte {
	return appendCorr(append(dst, `{"op":"OK"`...), corr, hasCorr)
}

func appendCorr(dst []byte, corr string, hasCorr bool) []byte {
	if !hasCorr {
		return dst
	}
	return strictjson.AppendString(append(dst, `,"corr":`...), corr)
}
