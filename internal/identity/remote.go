// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
)

// remoteVerifier asks somebody else about each token: by introspection or by
// a TokenReview. What was answered no is kept for a while; what was answered
// yes is kept by the [Service].
type remoteVerifier struct {
	name     string
	web      *web
	ask      func(ctx context.Context, token string) (claims map[string]any, until time.Time, err error)
	check    func(ctx context.Context) error
	negative time.Duration
	now      func() time.Time
	observe  func(outcome string)
	// slots bound how many questions are open at once.
	slots   chan struct{}
	refused *lru.Cache[[sha256.Size]byte, time.Time] // until when
}

const (
	openQuestions = 32
	refusedTokens = 8192
)

func newRemoteVerifier(name string, w *web, negative time.Duration, now func() time.Time, observe func(string)) (*remoteVerifier, error) {
	refused, err := lru.New[[sha256.Size]byte, time.Time](refusedTokens)
	if err != nil {
		return nil, fmt.Errorf("cache of refused tokens: %w", err)
	}
	if negative <= 0 {
		negative = defaultNegativeTTL
	}
	return &remoteVerifier{
		name: name, web: w, negative: negative, now: now, observe: observe,
		slots: make(chan struct{}, openQuestions), refused: refused,
	}, nil
}

func (v *remoteVerifier) verify(ctx context.Context, token string) (map[string]any, time.Time, error) {
	sum := digest(token)
	if until, ok := v.refused.Get(sum); ok && v.now().Before(until) {
		return nil, time.Time{}, errors.New("the token's issuer has refused it a moment ago")
	}
	select {
	case v.slots <- struct{}{}:
		defer func() { <-v.slots }()
	case <-ctx.Done():
		return nil, time.Time{}, &unavailableError{v.name, ctx.Err()}
	}
	claims, until, err := v.ask(ctx, token)
	var away *unavailableError
	switch {
	case err == nil:
		v.observe("ok")
	case errors.As(err, &away):
		v.observe("error")
	default:
		v.observe("ok")
		v.refused.Add(sum, v.now().Add(v.negative))
	}
	return claims, until, err
}

func (v *remoteVerifier) remote() bool { return true }

func (v *remoteVerifier) epoch(time.Time) (uint64, bool) { return 0, true }

func (v *remoteVerifier) run(ctx context.Context) {
	<-ctx.Done()
	v.web.close()
}

func (v *remoteVerifier) probe(ctx context.Context) error { return v.check(ctx) }

// introspection asks by RFC 7662.
type introspection struct {
	Introspection
	issuer    string // name
	url       string // iss; "" when it is not known
	audiences []string
	web       *web
	now       func() time.Time
}

func (i *introspection) ask(ctx context.Context, token string) (map[string]any, time.Time, error) {
	claims, err := i.request(ctx, token)
	if err != nil {
		return nil, time.Time{}, &unavailableError{i.issuer, err}
	}
	now := i.now()
	if active, _ := claims["active"].(bool); !active {
		return nil, time.Time{}, errors.New("the issuer says that the token is not active")
	}
	if iss, ok := claims["iss"]; ok && i.url != "" && iss != i.url {
		return nil, time.Time{}, errors.New("the issuer says that the token is of another issuer")
	}
	if !audienceOf(claims["aud"], i.audiences) {
		return nil, time.Time{}, errors.New("the token has none of the audiences")
	}
	if kind, ok := claims["token_type"].(string); ok && !strings.EqualFold(kind, "Bearer") && !strings.EqualFold(kind, "access_token") {
		return nil, time.Time{}, errors.New("the token is not a bearer token")
	}
	if err := checkTimes(claims, now); err != nil {
		return nil, time.Time{}, err
	}
	return claims, untilOf(claims, now, i.TTL), nil
}

// untilOf is when an answer must be asked for again: after ttl, or when the
// token expires.
func untilOf(claims map[string]any, now time.Time, ttl time.Duration) time.Time {
	if ttl <= 0 {
		ttl = defaultTTL
	}
	until := now.Add(ttl)
	if exp, there, _ := secondsIn(claims, "exp"); there && exp.Before(until) {
		until = exp
	}
	return until
}

func (i *introspection) request(ctx context.Context, token string) (map[string]any, error) {
	form := url.Values{"token": {token}, "token_type_hint": {"access_token"}}
	if i.InForm {
		form.Set("client_id", i.ClientID)
		form.Set("client_secret", i.ClientSecret.Reveal())
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, i.Endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return nil, errors.New("the introspection request cannot be made")
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if !i.InForm {
		// RFC 6749 section 2.3.1 has both form-encoded first.
		r.SetBasicAuth(url.QueryEscape(i.ClientID), url.QueryEscape(i.ClientSecret.Reveal()))
	}
	status, body, err := i.web.do(r)
	if err != nil {
		return nil, err
	}
	if status != http.StatusOK {
		return nil, fmt.Errorf("the introspection endpoint answers %d; with 401, the client's id or secret is wrong", status)
	}
	claims, ok := object(body)
	if !ok {
		return nil, errors.New("the introspection endpoint's answer is not a JSON object")
	}
	if _, ok := claims["active"].(bool); !ok {
		return nil, errors.New("the introspection endpoint's answer lacks active (RFC 7662 section 2.2)")
	}
	return claims, nil
}

// probe asks about a token that there is not, which shows that the client's
// credentials are accepted.
func (i *introspection) probe(ctx context.Context) error {
	if _, err := i.request(ctx, i.TokenPrefix+"not-a-token-but-a-check"); err != nil {
		return &unavailableError{i.issuer, err}
	}
	return nil
}

// review asks a cluster's API server (authentication.k8s.io/v1 TokenReview).
type review struct {
	Kubernetes
	issuer    string
	url       string
	audiences []string
	web       *web
	now       func() time.Time
}

// reviewed is the status of a TokenReview.
type reviewed struct {
	Authenticated bool     `json:"authenticated"`
	Audiences     []string `json:"audiences"`
	User          struct {
		Username string   `json:"username"`
		Groups   []string `json:"groups"`
	} `json:"user"`
}

func (v *review) ask(ctx context.Context, token string) (map[string]any, time.Time, error) {
	status, err := v.request(ctx, token)
	if err != nil {
		return nil, time.Time{}, &unavailableError{v.issuer, err}
	}
	claims, ok := payload(token)
	now := v.now()
	switch {
	case !status.Authenticated:
		return nil, time.Time{}, errors.New("the cluster does not know the token, or not for our audiences")
	case !audienceOf(status.Audiences, v.audiences):
		// An API server that knows nothing of audiences names none.
		return nil, time.Time{}, errors.New("the cluster confirms none of our audiences")
	case !ok || claims["iss"] != v.url:
		return nil, time.Time{}, errors.New("the token is not one of the cluster's issuer")
	case status.User.Username == "" || claims["sub"] != status.User.Username:
		return nil, time.Time{}, errors.New("the cluster says that the token is somebody else's than it says itself")
	}
	if err := checkTimes(claims, now); err != nil {
		return nil, time.Time{}, err
	}
	if _, there, _ := secondsIn(claims, "exp"); !there {
		return nil, time.Time{}, errors.New("the token does not expire; use projected service-account tokens")
	}
	if _, there := claims["groups"]; !there {
		claims["groups"] = status.User.Groups
	}
	return claims, untilOf(claims, now, v.TTL), nil
}

func (v *review) request(ctx context.Context, token string) (reviewed, error) {
	bearer, err := readToken(v.TokenFile)
	if err != nil {
		return reviewed{}, err
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
		"spec": map[string]any{"token": token, "audiences": v.audiences},
	})
	if err != nil {
		return reviewed{}, errors.New("the TokenReview cannot be encoded")
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, strings.TrimSuffix(v.API, "/")+"/apis/authentication.k8s.io/v1/tokenreviews", bytes.NewReader(body))
	if err != nil {
		return reviewed{}, errors.New("the TokenReview cannot be sent")
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Authorization", "Bearer "+bearer)
	status, raw, err := v.web.do(r)
	if err != nil {
		return reviewed{}, err
	}
	if status != http.StatusCreated && status != http.StatusOK {
		return reviewed{}, fmt.Errorf("the API server answers %d to a TokenReview; with 401 or 403, token_file is not allowed to create one", status)
	}
	var answer struct {
		Kind   string   `json:"kind"`
		Status reviewed `json:"status"`
	}
	if json.Unmarshal(raw, &answer) != nil || answer.Kind != "TokenReview" {
		return reviewed{}, errors.New("the API server's answer is not a TokenReview")
	}
	return answer.Status, nil
}

func (v *review) probe(ctx context.Context) error {
	if _, err := v.request(ctx, "not-a-token-but-a-check"); err != nil {
		return &unavailableError{v.issuer, err}
	}
	return nil
}
