//go:build !unix

package backup

// notInUse can not tell: the system shows nobody's locks.
func notInUse(string) error { return nil }
