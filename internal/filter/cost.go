package filter

import (
	"fmt"
	"math"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/cost"
	"cel.dev/cel-go/common/types"

	"eventhub"
)

// supposed is how many members, elements or characters a part of a payload is
// supposed to have when an expression is judged, since nothing is known of it.
const supposed = 256

// judgeCost refuses an expression that may cost more than allowed on an event
// with the largest members there may be and a payload as supposed. bounded returns
// that it cannot on any event, so that nobody has to count.
func judgeCost(env *cel.Env, checked *cel.Ast) (bounded bool, err error) {
	usual, err := env.EstimateCost(checked, sizes{supposed})
	if err != nil {
		return false, refuse(nil, oneLine(err.Error()))
	}
	if usual.Max == math.MaxUint64 {
		return false, refuse(nil, fmt.Sprintf("the expression has no bound to what it may cost; at most %d is allowed", costLimit))
	}
	if usual.Max > costLimit {
		return false, refuse(nil, fmt.Sprintf("the expression may cost %d; at most %d is allowed", usual.Max, costLimit))
	}
	worst, err := env.EstimateCost(checked, sizes{eventhub.MaxPayloadBytes})
	return err == nil && worst.Max <= costLimit, nil
}

// sizes returns how large the members of an event can be. It implements
// cost.Estimator.
type sizes struct {
	payload uint64 // of any part of the payload, and of what else is not known
}

// EstimateCallCost implements cost.Estimator: calls cost what the library says.
func (sizes) EstimateCallCost(string, string, *cost.AstNode, []cost.AstNode) *cost.CallEstimate {
	return nil
}

// EstimateSize implements cost.Estimator.
func (s sizes) EstimateSize(node cost.AstNode) *cost.SizeEstimate {
	path := node.Path()
	if len(path) < 2 || path[0] != variableName {
		switch node.Type().Kind() {
		case types.StringKind, types.BytesKind, types.ListKind, types.MapKind, types.DynKind, types.AnyKind, types.TypeParamKind:
			return upTo(s.payload)
		}
		return nil // numbers and the like
	}
	inner := len(path) > 2
	switch path[1] {
	case "id":
		return upTo(eventhub.MaxIDBytes)
	case "topic":
		return upTo(eventhub.MaxTopicBytes + 16) // the hub's own have a suffix
	case "key":
		return upTo(eventhub.MaxKeyBytes)
	case "sid":
		return upTo(eventhub.MaxSIDBytes)
	case "headers":
		if inner {
			return upTo(eventhub.MaxHeaderBytes)
		}
		return upTo(eventhub.MaxHeaders)
	case "tags":
		if inner {
			return upTo(eventhub.MaxTagBytes)
		}
		return upTo(eventhub.MaxTags)
	case "caused_by":
		if inner {
			return upTo(eventhub.MaxIDBytes)
		}
		return upTo(eventhub.MaxCausedBy)
	case "payload":
		return upTo(s.payload)
	}
	return nil
}

func upTo(n uint64) *cost.SizeEstimate {
	size := cost.RangedSizeEstimate(0, n)
	return &size
}
