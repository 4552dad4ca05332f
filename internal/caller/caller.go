// Package caller hands the address of a client from the transports, which know it, to whoever lets
// the client in, who notes it. The gateways and ops set it in the context that they authenticate
// with; package hub reads it.
package caller

import "context"

type key struct{}

// With returns a context that has the address of the client that is to be let in.
func With(ctx context.Context, addr string) context.Context {
	return context.WithValue(ctx, key{}, addr)
}

// Addr returns the address that the context has, "" for none.
func Addr(ctx context.Context) string {
	addr, _ := ctx.Value(key{}).(string)
	return addr
}
