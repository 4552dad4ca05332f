package storetest

import "fmt"

// GivenID returns the n-th id of a kind, as publishers give them: text, a UUID of version 7, one of
// version 4, and the UUID before last in capitals, which is another id. All differ, and those of
// a kind are next to each other.
func GivenID(kind string, n int) string {
	sum := uint32(2166136261)
	for _, c := range []byte(kind) {
		sum = (sum ^ uint32(c)) * 16777619
	}
	switch n % 4 {
	case 1:
		return fmt.Sprintf("01913325-%04x-7abc-8def-%012x", n, sum)
	case 2:
		return fmt.Sprintf("c0ffee00-%04x-4abc-bdef-%012x", n, sum)
	case 3:
		return fmt.Sprintf("01913325-%04X-7ABC-8DEF-%012X", n-2, sum)
	}
	return fmt.Sprint(kind, n)
}
