//go:build race

package bus

func init() { histories = "2000" }
