// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package identity

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// The grant and token types of the token endpoint.
const (
	grantClientCredentials = "client_credentials"
	grantTokenExchange     = "urn:ietf:params:oauth:grant-type:token-exchange"
	typeAccessToken        = "urn:ietf:params:oauth:token-type:access_token"
	typeJWT                = "urn:ietf:params:oauth:token-type:jwt"
)

const maxFormBytes = 64 << 10

// oauthError is an error answer of RFC 6749 section 5.2. Description is
// written for the caller, in the characters that the RFC allows.
type oauthError struct {
	status      int
	code        string
	description string
	challenge   string
	retryAfter  time.Duration
	cause       error // for logs
	// denied is set when the caller may not have what it asks for, not when
	// it asks in the wrong way or at the wrong time.
	denied bool
}

func (e *oauthError) Error() string {
	if e.cause != nil {
		return e.code + ": " + e.description + ": " + e.cause.Error()
	}
	return e.code + ": " + e.description
}

func invalidRequest(format string, args ...any) *oauthError {
	return &oauthError{status: http.StatusBadRequest, code: "invalid_request", description: fmt.Sprintf(format, args...)}
}

// TokenRequest is what the audit log hears of a request for a token.
type TokenRequest struct {
	// Principal and Actor are the ids that the token is, or would have been,
	// for; "" as far as they were not proved.
	Principal, Actor string
	Address          netip.Addr
	// Grant is the grant type, "" for one that is not known.
	Grant  string
	Status int // of the answer
	// Denied is set when the caller may not have the token.
	Denied bool
}

// tokenResponse is RFC 6749 section 5.1 and RFC 8693 section 2.2.1.
type tokenResponse struct {
	AccessToken     string `json:"access_token"`
	TokenType       string `json:"token_type"`
	ExpiresIn       int64  `json:"expires_in"` // seconds
	IssuedTokenType string `json:"issued_token_type"`
	Scope           string `json:"scope"`
}

// TokenEndpoint serves POST oauth/tokens of the Iceberg REST protocol: client
// credentials (RFC 6749 section 4.4) in the form body or by HTTP Basic, and
// token exchange (RFC 8693) to renew a token or to act for its subject.
func (s *Service) TokenEndpoint() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heard := &TokenRequest{Address: ClientAddress(r, s.cfg.TrustedProxies), Status: http.StatusOK}
		answer, err := s.token(w, r, heard)
		if recordErr := s.record(r.Context(), heard, err); recordErr != nil {
			// What is not recorded does not happen: the token is thrown away.
			err = recordErr
		}
		h := w.Header()
		h.Set("Content-Type", "application/json")
		h.Set("Cache-Control", "no-store")
		h.Set("Pragma", "no-cache")
		if err != nil {
			s.writeOAuthError(w, r, err)
			return
		}
		writeJSON(w, http.StatusOK, answer)
	})
}

// record tells the audit log of a request for a token, before it is answered.
func (s *Service) record(ctx context.Context, heard *TokenRequest, err error) error {
	if s.cfg.Record == nil {
		return nil
	}
	if err != nil {
		e := asOAuthError(err)
		heard.Status, heard.Denied = e.status, e.denied
	}
	if err := s.cfg.Record(ctx, *heard); err != nil {
		return &oauthError{
			status: http.StatusServiceUnavailable, code: "temporarily_unavailable", retryAfter: time.Second,
			description: "the request cannot be recorded in the audit log now; try again", cause: err,
		}
	}
	return nil
}

func asOAuthError(err error) *oauthError {
	var e *oauthError
	if !errors.As(err, &e) {
		e = &oauthError{status: http.StatusInternalServerError, code: "server_error", description: "Internal error", cause: err}
	}
	return e
}

func (s *Service) writeOAuthError(w http.ResponseWriter, r *http.Request, err error) {
	e := asOAuthError(err)
	level := slog.LevelWarn
	if e.status >= http.StatusInternalServerError {
		level = slog.LevelError
	}
	s.cfg.Logger.Log(r.Context(), level, "token refused", "status", e.status, "error", e.Error(), "address", ClientAddress(r, s.cfg.TrustedProxies))
	if e.challenge != "" {
		w.Header().Set("WWW-Authenticate", e.challenge)
	}
	if e.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64(e.retryAfter/time.Second)+1, 10))
	}
	writeJSON(w, e.status, struct {
		Error       string `json:"error"`
		Description string `json:"error_description"`
	}{e.code, e.description})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		// Only structs of strings and numbers come here.
		http.Error(w, `{"error":"server_error"}`, http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // the client is gone if this fails
}

// token does one request, and says in heard what becomes known of it.
func (s *Service) token(w http.ResponseWriter, r *http.Request, heard *TokenRequest) (*tokenResponse, error) {
	form, err := readForm(w, r)
	if err != nil {
		return nil, err
	}
	if s.tokens == nil {
		return nil, invalidRequest("the catalog signs no tokens; get one from its issuer")
	}
	client, err := clientCredentials(r, form)
	if err != nil {
		return nil, err
	}
	switch grant := form["grant_type"]; grant {
	case "":
		return nil, invalidRequest("grant_type is missing")
	case grantClientCredentials:
		heard.Grant = grant
		return s.clientCredentialsGrant(r, form, client, heard)
	case grantTokenExchange:
		heard.Grant = grant
		return s.exchangeGrant(r, form, client, heard)
	}
	return nil, &oauthError{
		status: http.StatusBadRequest, code: "unsupported_grant_type",
		description: "use client_credentials or " + grantTokenExchange,
	}
}

// readForm reads a request's parameters: form-encoded, in the body only, none
// twice (RFC 6749 section 3.2). Empty ones count as absent.
func readForm(w http.ResponseWriter, r *http.Request) (map[string]string, error) {
	if r.Method != http.MethodPost {
		w.Header().Set("Allow", http.MethodPost)
		e := invalidRequest("use POST")
		e.status = http.StatusMethodNotAllowed
		return nil, e
	}
	if r.URL.RawQuery != "" {
		return nil, invalidRequest("parameters belong into the body, not into the URI, where they end up in logs")
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/x-www-form-urlencoded" {
		return nil, invalidRequest("Content-Type must be application/x-www-form-urlencoded")
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxFormBytes))
	var tooLarge *http.MaxBytesError
	switch {
	case errors.As(err, &tooLarge):
		e := invalidRequest("the body is larger than %d bytes", maxFormBytes)
		e.status = http.StatusRequestEntityTooLarge
		return nil, e
	case err != nil:
		e := invalidRequest("the body could not be read")
		e.cause = err
		return nil, e
	}
	values, err := url.ParseQuery(string(body))
	if err != nil {
		return nil, invalidRequest("the body is not valid form data")
	}
	form := make(map[string]string, len(values))
	for name, list := range values {
		if len(list) != 1 {
			return nil, invalidRequest("a parameter is given more than once")
		}
		if list[0] != "" {
			form[name] = list[0]
		}
	}
	return form, nil
}

// client is what a request says about the client that makes it.
type client struct {
	id      string
	secrets []string // the readings of the secret; nil when none was sent
	basic   bool
	bearer  string // a token in the Authorization header; "" when none
}

// clientCredentials finds a client's id and secret in the Authorization header
// or the form. A bearer token beside them is a client that renews its session
// (Java, Trino) and is looked at by token exchange only.
func clientCredentials(r *http.Request, form map[string]string) (client, error) {
	var c client
	if values := r.Header.Values("Authorization"); len(values) > 0 {
		scheme, _, _ := strings.Cut(values[0], " ")
		token, isBearer := bearerToken(values)
		switch {
		case len(values) > 1:
			return client{}, invalidRequest("more than one Authorization header")
		case isBearer:
			c.bearer = token
		case strings.EqualFold(scheme, "Basic"):
			id, candidates, err := basicCredentials(values[0])
			if err != nil {
				return client{}, err
			}
			c.id, c.secrets, c.basic = id, candidates, true
		default:
			return client{}, invalidClient(true, "use HTTP Basic or the form body to send client_id and client_secret", nil)
		}
	}
	id, secret := form["client_id"], form["client_secret"]
	switch {
	case c.basic && secret != "":
		return client{}, invalidRequest("client credentials are in the Authorization header and in the body; send them once")
	case c.basic && id != "" && id != c.id:
		return client{}, invalidRequest("client_id differs from that of the Authorization header")
	case c.basic:
		return c, nil
	}
	c.id = id
	if secret != "" {
		c.secrets = []string{secret}
	}
	return c, nil
}

// basicCredentials reads HTTP Basic. RFC 6749 section 2.3.1 has id and secret
// form-encoded first; HTTP libraries (DuckDB, PyIceberg) send them as they
// are. Both readings are tried when they differ.
func basicCredentials(header string) (id string, secrets []string, err error) {
	_, encoded, _ := strings.Cut(header, " ")
	raw, err := base64.StdEncoding.DecodeString(strings.TrimSpace(encoded))
	if err != nil {
		return "", nil, invalidClient(true, "the Authorization header is not valid HTTP Basic", nil)
	}
	id, secret, ok := strings.Cut(string(raw), ":")
	if !ok {
		return "", nil, invalidClient(true, "the Authorization header is not valid HTTP Basic", nil)
	}
	if secret == "" {
		return id, nil, nil
	}
	if decoded, err := url.QueryUnescape(id); err == nil {
		id = decoded // no client id holds a character that this changes
	}
	secrets = []string{secret}
	if decoded, err := url.QueryUnescape(secret); err == nil && decoded != secret {
		secrets = append(secrets, decoded)
	}
	return id, secrets, nil
}

func invalidClient(basic bool, description string, cause error) *oauthError {
	e := &oauthError{status: http.StatusUnauthorized, code: "invalid_client", description: description, cause: cause, denied: true}
	// RFC 9110 wants a challenge in every 401.
	e.challenge = `Basic ` + realm + `, charset="UTF-8"`
	if !basic {
		e.challenge = "Bearer " + realm
	}
	return e
}

// authenticate checks a client's secret, within the bounds on failures.
func (s *Service) authenticate(r *http.Request, c client) (*Account, error) {
	switch {
	case c.id == "":
		return nil, invalidClient(c.basic, "client_id is missing", nil)
	case c.secrets == nil:
		return nil, invalidClient(c.basic, "client_secret is missing", nil)
	case CheckClientID(c.id) != nil:
		// It cannot exist, and nobody's log or throttle should hold it. The
		// work is that of any other wrong client.
		c.id = "-"
	}
	address := throttleAddress(ClientAddress(r, s.cfg.TrustedProxies))
	pair := c.id + " " + address
	wait := s.perAddress.take(address)
	if wait == 0 {
		if wait = s.perClient.take(pair); wait > 0 {
			s.perAddress.refund(address)
		}
	}
	if wait > 0 {
		s.cfg.Observe("client", "throttled")
		return nil, &oauthError{
			status: http.StatusTooManyRequests, code: "invalid_client", retryAfter: wait, denied: true,
			description: "too many failed attempts; try again later",
		}
	}
	account, err := s.accounts.check(r.Context(), c.id, c.secrets)
	switch {
	case err == nil:
		s.perAddress.refund(address)
		s.perClient.refund(pair)
		s.cfg.Observe("client", "ok")
		return account, nil
	case errors.Is(err, errWrongSecret):
		s.cfg.Observe("client", "refused")
		return nil, invalidClient(c.basic, "unknown client or wrong secret", s.failedClient(c.id))
	}
	// Nothing was found out about the secret.
	s.perAddress.refund(address)
	s.perClient.refund(pair)
	if errors.Is(err, errBusy) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return nil, &oauthError{
			status: http.StatusServiceUnavailable, code: "temporarily_unavailable", retryAfter: 2 * time.Second,
			description: "too many clients ask for tokens at once; try again", cause: err,
		}
	}
	return nil, err
}

// failedClient says for the log which client failed. An id that does not exist
// is not written: people put the secret where the id belongs.
func (s *Service) failedClient(id string) error {
	if s.accounts.find(context.Background(), id) == nil {
		return errors.New("unknown client")
	}
	return fmt.Errorf("client %s", id)
}

func (s *Service) clientCredentialsGrant(r *http.Request, form map[string]string, c client, heard *TokenRequest) (*tokenResponse, error) {
	account, err := s.authenticate(r, c)
	if err != nil {
		return nil, err
	}
	heard.Principal = principalID(account.ClientID)
	granted, text, err := requestedScope(form)
	if err != nil {
		return nil, err
	}
	if granted == scopeNone {
		text = "catalog"
	}
	return s.issue(r, claims{Subject: account.ClientID, Scope: text, NotAfter: s.sessionEnd()}, grantClientCredentials)
}

// sessionEnd is when a session that begins now ends; 0 means never.
func (s *Service) sessionEnd() int64 {
	if s.cfg.MaxSession <= 0 {
		return 0
	}
	return s.cfg.Now().Add(s.cfg.MaxSession).Unix()
}

// exchangeGrant renews the subject token, or makes one with which an actor
// calls for the subject.
func (s *Service) exchangeGrant(r *http.Request, form map[string]string, c client, heard *TokenRequest) (*tokenResponse, error) {
	if form["subject_token"] == "" {
		return nil, invalidRequest("subject_token is missing")
	}
	if err := checkTokenTypes(form); err != nil {
		return nil, err
	}
	// Whatever the request carries besides must be genuine.
	var account *Account
	var err error
	if c.secrets != nil {
		if account, err = s.authenticate(r, c); err != nil {
			return nil, err
		}
	}
	if c.bearer != "" && c.bearer != form["subject_token"] && c.bearer != form["actor_token"] {
		if _, err := s.checkedClaims(r, c.bearer); err != nil {
			if away := issuerAway(err); away != nil {
				return nil, away
			}
			return nil, invalidClient(false, "the bearer token is not valid or has expired", err)
		}
	}
	subject, err := s.checkedClaims(r, form["subject_token"])
	// Java renews an expired token so, with its client secret: as good as the
	// client credentials grant, and the start of a new session.
	renewed := account != nil && subject != nil && subject.Actor == nil && subject.Subject == account.ClientID
	if err != nil && !(errors.Is(err, errExpired) && renewed) {
		return nil, s.invalidToken(r, "subject_token", err)
	}
	heard.Principal, heard.Actor = subject.subjectID(), subject.actorID()
	if renewed {
		subject.NotAfter = s.sessionEnd()
	}
	if account != nil && account.ClientID != subject.Subject {
		return nil, &oauthError{
			status: http.StatusBadRequest, code: "unauthorized_client", denied: true,
			description: "the client is not the subject of subject_token; send the client's own token as actor_token",
		}
	}
	issued := claims{Subject: subject.Subject, Scope: subject.Scope, Actor: subject.Actor, NotAfter: subject.NotAfter, External: subject.External}
	if form["actor_token"] != "" {
		acting, err := s.checkedClaims(r, form["actor_token"])
		if err != nil {
			return nil, s.invalidToken(r, "actor_token", err)
		}
		if id := acting.subjectID(); id != heard.Principal {
			heard.Actor = id
		}
		if issued.Actor, err = s.delegate(subject, acting); err != nil {
			return nil, err
		}
		issued.NotAfter = earliest(issued.NotAfter, acting.NotAfter)
	}
	if err := narrowScope(&issued, form); err != nil {
		return nil, err
	}
	return s.issue(r, issued, grantTokenExchange)
}

func checkTokenTypes(form map[string]string) error {
	known := func(t string) bool { return t == typeAccessToken || t == typeJWT }
	if !known(form["subject_token_type"]) {
		return invalidRequest("subject_token_type must be %s or %s", typeAccessToken, typeJWT)
	}
	if t := form["requested_token_type"]; t != "" && !known(t) {
		return invalidRequest("requested_token_type must be %s or %s", typeAccessToken, typeJWT)
	}
	// RFC 8693 section 2.1: the type is there exactly when the token is.
	if token, t := form["actor_token"], form["actor_token_type"]; (token == "") != (t == "") || t != "" && !known(t) {
		return invalidRequest("actor_token and actor_token_type belong together, of type %s or %s", typeAccessToken, typeJWT)
	}
	return nil
}

// checkedClaims returns the claims of a token whose account and actor exist.
// With errExpired the claims are valid too. A static token has the claims of
// its account, and a token of an issuer those with which one of ours can stand
// for it.
func (s *Service) checkedClaims(r *http.Request, token string) (*claims, error) {
	if p, ok := s.staticPrincipal(token); ok {
		return &claims{Subject: p.Subject, Scope: "catalog"}, nil
	}
	i, own, err := s.issuerOf(token)
	if err != nil {
		return nil, err
	}
	if !own {
		return s.externalClaims(r, token, i)
	}
	c, err := s.tokens.verify(token)
	if err != nil && !errors.Is(err, errExpired) {
		return nil, err
	}
	if _, accountErr := s.principalOf(c); accountErr != nil {
		return nil, accountErr
	}
	return c, err
}

// externalClaims makes claims of an issuer's token. What is issued for it
// lasts no longer than the verification of the token may be believed, and is
// not renewed beyond: after that the issuer has a say again.
func (s *Service) externalClaims(r *http.Request, token string, i *issuer) (*claims, error) {
	sum := digest(token)
	v, ok := s.known(sum)
	if !ok {
		var err error
		if v, err = s.verifyFor(r, token, sum); err != nil {
			return nil, err
		}
	}
	switch {
	case v.bound != nil:
		return nil, errors.New("the token is bound to a certificate; one that is not cannot be had for it")
	case v.principal.Actor != "":
		return nil, errors.New("the token has an actor; chains of actors are not supported")
	}
	ends := v.expires
	if !i.verifier.remote() {
		ends = ends.Add(-Skew) // the allowance for clocks is for whoever checks
	}
	if most := s.cfg.Now().Add(s.cfg.TokenLifetime); ends.After(most) {
		ends = most
	}
	return &claims{
		Subject: i.id(v.of.subject), Scope: "catalog", NotAfter: ends.Unix(),
		External: &external{v.of.organisation, v.of.groups, v.of.attributes},
	}, nil
}

// issuerAway is the answer when a token's issuer cannot be asked, or the
// attempts of the address are used up; nil for other errors.
func issuerAway(err error) error {
	var refusal *Refusal
	if !errors.As(err, &refusal) || refusal.Status == http.StatusUnauthorized {
		return nil
	}
	e := &oauthError{
		status: refusal.Status, code: "temporarily_unavailable", retryAfter: refusal.RetryAfter, cause: refusal.Cause,
		description: "the issuer of a token cannot be asked now; try again",
	}
	if refusal.Status == http.StatusTooManyRequests {
		e.denied = true
		e.code, e.description = "invalid_request", "too many requests with invalid tokens come from this address; try again later"
	}
	return e
}

// invalidToken answers for a token that is not good: RFC 8693 section 2.2.2
// wants invalid_request, whatever the reason. Such attempts count as failures.
func (s *Service) invalidToken(r *http.Request, parameter string, cause error) error {
	if away := issuerAway(cause); away != nil {
		return away
	}
	var counted *Refusal
	if errors.As(cause, &counted) {
		e := invalidRequest("%s is not valid or has expired", parameter)
		e.cause, e.denied = cause, true
		return e
	}
	address := throttleAddress(ClientAddress(r, s.cfg.TrustedProxies))
	if wait := s.perTokenAddress.take(address); wait > 0 {
		s.cfg.Observe("bearer", "throttled")
		return &oauthError{
			status: http.StatusTooManyRequests, code: "invalid_request", retryAfter: wait, cause: cause, denied: true,
			description: "too many requests with invalid tokens come from this address; try again later",
		}
	}
	s.cfg.Observe("bearer", "refused")
	e := invalidRequest("%s is not valid or has expired", parameter)
	e.cause, e.denied = cause, true
	return e
}

// delegate returns the actor of a token with which acting calls for subject.
func (s *Service) delegate(subject, acting *claims) (*actor, error) {
	switch {
	case acting.External != nil:
		return nil, &oauthError{
			status: http.StatusBadRequest, code: "unauthorized_client", denied: true,
			description: "the actor must be an account of the catalog",
		}
	case acting.Actor != nil || subject.Actor != nil && subject.Actor.Subject != acting.Subject:
		return nil, &oauthError{
			status: http.StatusBadRequest, code: "unauthorized_client", denied: true,
			description: "chains of actors are not supported",
		}
	case acting.Subject == subject.Subject:
		return nil, nil // a client that acts for itself
	case !s.accounts.find(context.Background(), acting.Subject).mayActFor(subject.Subject):
		return nil, &oauthError{
			status: http.StatusBadRequest, code: "unauthorized_client", denied: true,
			description: "the actor may not act for this subject; its account needs it in act_for",
		}
	}
	return &actor{Subject: acting.Subject}, nil
}

// narrowScope applies the requested scope, which may not be wider than the
// subject's.
func narrowScope(issued *claims, form map[string]string) error {
	held, err := parseScope(issued.Scope)
	if err != nil {
		return err
	}
	wanted, text, err := requestedScope(form)
	if err != nil {
		return err
	}
	if wanted > held {
		return &oauthError{status: http.StatusBadRequest, code: "invalid_scope", description: "the scope is wider than that of subject_token", denied: true}
	}
	if wanted != scopeNone {
		issued.Scope = text
	}
	return nil
}

func requestedScope(form map[string]string) (scope, string, error) {
	text := strings.Join(strings.Fields(form["scope"]), " ")
	wanted, err := parseScope(text)
	if err != nil {
		return scopeNone, "", &oauthError{status: http.StatusBadRequest, code: "invalid_scope", description: err.Error()}
	}
	return wanted, text, nil
}

// issue signs a token and answers with it.
func (s *Service) issue(r *http.Request, c claims, grant string) (*tokenResponse, error) {
	now := s.cfg.Now()
	c.IssuedAt = now.Unix()
	c.Expires = earliest(now.Add(s.cfg.TokenLifetime).Unix(), c.NotAfter)
	if c.Expires <= c.IssuedAt {
		e := invalidRequest("the session has lasted as long as it may; use the client secret again")
		e.denied = true
		return nil, e
	}
	token, err := s.tokens.sign(c)
	if err != nil {
		return nil, err
	}
	if len(token) > maxTokenBytes {
		return nil, invalidRequest("the subject has too many groups and attributes for a token of the catalog; use its own token")
	}
	attrs := []any{"client", c.Subject, "grant", grant, "scope", c.Scope, "address", ClientAddress(r, s.cfg.TrustedProxies)}
	if c.Actor != nil {
		attrs = append(attrs, "actor", c.Actor.Subject)
	}
	s.cfg.Logger.InfoContext(r.Context(), "token issued", attrs...)
	return &tokenResponse{
		AccessToken: token, TokenType: "bearer", ExpiresIn: c.Expires - c.IssuedAt,
		IssuedTokenType: typeAccessToken, Scope: c.Scope,
	}, nil
}

// earliest is the smaller of two times in seconds, where 0 means none.
func earliest(a, b int64) int64 {
	switch {
	case a == 0:
		return b
	case b == 0:
		return a
	}
	return min(a, b)
}
