//go:build race

package bus

func init() { histories, share = "2000", 5 }
