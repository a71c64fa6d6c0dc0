// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"runtime/debug"
	"sync/atomic"
	"time"
)

// MaxSecrets is how many secrets of an account may be valid at once.
const MaxSecrets = 2

// hashWait is how long a request waits for its turn to check a secret.
const hashWait = 5 * time.Second

var (
	errWrongSecret = errors.New("unknown client or wrong secret")
	errBusy        = errors.New("too many secrets are being checked")
)

// clientIDForm leaves out the colon, which ends the id in HTTP Basic, and
// what would have to be escaped there or in a log.
var clientIDForm = regexp.MustCompile(`^[A-Za-z0-9._~@-]{1,128}$`)

// CheckClientID reports what is wrong with a client id.
func CheckClientID(id string) error {
	if !clientIDForm.MatchString(id) {
		return fmt.Errorf("client id %q must be 1 to 128 of the characters A-Z a-z 0-9 . _ ~ @ -", clip(id))
	}
	return nil
}

// accounts checks client secrets.
type accounts struct {
	byID map[string]*Account
	// dummy is what an unknown client's secret is compared with; as costly as
	// the costliest hash in use.
	dummy Hash
	// lookup finds accounts that are not in byID; nil finds none.
	lookup func(ctx context.Context, clientID string) (*Account, error)
	// rounds is how many hashes every failing attempt computes.
	rounds int
	slots  chan struct{}
	// released is when memory was last given back, in Unix seconds.
	released atomic.Int64
}

// releaseEvery is how often the memory of hashes is given back, at most, in
// seconds: it costs a garbage collection.
const releaseEvery = 10

func newAccounts(list []Account, concurrency int) (*accounts, error) {
	a := &accounts{
		byID:   make(map[string]*Account, len(list)),
		dummy:  unmatchedHash(),
		rounds: 1,
		slots:  make(chan struct{}, concurrency),
	}
	for i := range list {
		account := &list[i]
		if err := CheckClientID(account.ClientID); err != nil {
			return nil, err
		}
		if a.byID[account.ClientID] != nil {
			return nil, fmt.Errorf("client id %q is given twice", account.ClientID)
		}
		if n := len(account.Secrets); n > MaxSecrets {
			return nil, fmt.Errorf("client %q has %d secrets; at most %d can be valid at once", account.ClientID, n, MaxSecrets)
		}
		a.byID[account.ClientID] = account
		a.rounds = max(a.rounds, len(account.Secrets))
		for _, h := range account.Secrets {
			if h.cost() > a.dummy.cost() {
				a.dummy.memory, a.dummy.time, a.dummy.threads = h.memory, h.time, h.threads
			}
		}
	}
	return a, nil
}

// check returns the account whose id and secret were given. candidates are
// the readings of what was sent (see basicCredentials); any may be right. It
// returns errWrongSecret, errBusy, or the context's error.
func (a *accounts) check(ctx context.Context, clientID string, candidates []string) (*Account, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, hashWait, errBusy)
	defer cancel()
	select {
	case a.slots <- struct{}{}:
		defer a.leave()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	account := a.find(ctx, clientID)
	for _, candidate := range candidates {
		for i := range a.rounds {
			if account != nil && i < len(account.Secrets) {
				if account.Secrets[i].matches(candidate) {
					return account, nil
				}
				continue
			}
			a.dummy.matches(candidate)
		}
	}
	return nil, errWrongSecret
}

// lookupWait bounds how long a look-up of an account may take.
const lookupWait = 5 * time.Second

// find returns an account, nil when there is none or it cannot be looked up.
func (a *accounts) find(ctx context.Context, clientID string) *Account {
	if account := a.byID[clientID]; account != nil || a.lookup == nil || CheckClientID(clientID) != nil {
		return account
	}
	ctx, cancel := context.WithTimeout(ctx, lookupWait)
	defer cancel()
	account, err := a.lookup(ctx, clientID)
	if err != nil || account == nil || account.ClientID != clientID {
		return nil
	}
	account.Secrets = account.Secrets[:min(len(account.Secrets), MaxSecrets)]
	return account
}

// leave ends a check. A hash takes 19 MiB, which the runtime would keep for
// many minutes; the last of several checks gives it back.
func (a *accounts) leave() {
	last := len(a.slots) == 1
	<-a.slots
	now, before := time.Now().Unix(), a.released.Load()
	if last && now-before >= releaseEvery && a.released.CompareAndSwap(before, now) {
		debug.FreeOSMemory()
	}
}
