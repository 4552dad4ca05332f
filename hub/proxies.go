package hub

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// proxies are the networks whose word counts on where a request comes from.
type proxies []netip.Prefix

// newProxies reads networks as 10.0.0.0/8, or addresses, or returns everything that is wrong.
func newProxies(networks []string) (proxies, error) {
	var p proxies
	var errs []error
	for _, text := range networks {
		network, err := netip.ParsePrefix(text)
		if addr, bad := netip.ParseAddr(text); bad == nil && addr.Zone() == "" {
			network, err = addr.Prefix(addr.BitLen())
		}
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("trusted proxy %q: want a network as 10.0.0.0/8, or an address", text))
		case network != network.Masked():
			errs = append(errs, fmt.Errorf("trusted proxy %q: the network is %s", text, network.Masked()))
		case network.Addr().Is4In6():
			errs = append(errs, fmt.Errorf("trusted proxy %q: write it as IPv4", text))
		default:
			p = append(p, network)
		}
	}
	return p, errors.Join(errs...)
}

// CheckProxy returns what is wrong with one of Config.TrustedProxies.
func CheckProxy(network string) error {
	_, err := newProxies([]string{network})
	return err
}

func (p proxies) trusted(addr netip.Addr) bool {
	for _, network := range p {
		if network.Contains(addr) {
			return true
		}
	}
	return false
}

// origin returns where the request comes from, in the form of its RemoteAddr: that, unless it
// is a trusted proxy. Each proxy adds to X-Forwarded-For whom it was called by, so that list
// is read from its end, up to the first that is no trusted proxy: that one's word on who called
// it does not count. What is no address ends the list.
func (p proxies) origin(r *http.Request) string {
	if len(p) == 0 {
		return r.RemoteAddr
	}
	peer, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil || !p.trusted(peer.Addr().Unmap()) {
		return r.RemoteAddr
	}
	from := r.RemoteAddr
	rest := strings.Join(r.Header.Values("X-Forwarded-For"), ",")
	for rest != "" {
		var hop string
		if at := strings.LastIndexByte(rest, ','); at >= 0 {
			rest, hop = rest[:at], rest[at+1:]
		} else {
			rest, hop = "", rest
		}
		addr, err := parseHop(strings.TrimSpace(hop))
		if err != nil {
			return from
		}
		from = addr.String()
		if !p.trusted(addr) {
			return from
		}
	}
	return from
}

// parseHop reads an address, with a port or not, which says nothing to anybody else.
func parseHop(text string) (netip.Addr, error) {
	if host, _, err := net.SplitHostPort(text); err == nil {
		text = host
	} else {
		text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	}
	addr, err := netip.ParseAddr(text)
	return addr.Unmap().WithZone(""), err
}
