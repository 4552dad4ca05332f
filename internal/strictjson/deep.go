package strictjson

// TooDeep reports whether a value, which is sound JSON, is nested more than MaxDepth
// deep, so that AppendCompact would refuse it.
func TooDeep(value []byte) bool { return tooDeep(value, MaxDepth) }
