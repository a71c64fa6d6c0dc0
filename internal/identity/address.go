// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"net/http"
	"net/netip"
	"strings"
)

// ClientAddress returns where a request comes from: the peer's address or,
// when the peer is a trusted proxy, the nearest address in X-Forwarded-For
// that is not one. Whatever stands left of that was written by the client and
// is not believed. The zero Addr means unknown.
func ClientAddress(r *http.Request, trusted []netip.Prefix) netip.Addr {
	addr := peerAddress(r)
	if len(trusted) == 0 || !contains(trusted, addr) {
		return addr
	}
	// Several header lines are one list (RFC 9110 section 5.3).
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		hop, err := netip.ParseAddr(strings.TrimSpace(hops[i]))
		if err != nil {
			return addr
		}
		addr = hop.Unmap().WithZone("")
		if !contains(trusted, addr) {
			return addr
		}
	}
	return addr
}

func peerAddress(r *http.Request) netip.Addr {
	ap, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}
	}
	return ap.Addr().Unmap().WithZone("")
}

func contains(prefixes []netip.Prefix, a netip.Addr) bool {
	for _, p := range prefixes {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// throttleAddress is the key under which failures of an address are counted.
// Whoever has one IPv6 address usually has its whole /64.
func throttleAddress(a netip.Addr) string {
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.Addr().String()
		}
	}
	return a.String()
}
