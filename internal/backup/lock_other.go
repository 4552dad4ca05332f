//go:build !unix

package backup

// notInUse cannot know: the system shows nobody's locks.
func notInUse(string) error { return nil }
