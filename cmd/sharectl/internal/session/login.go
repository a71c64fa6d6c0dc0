// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// ErrSignIn is in the chain of every error for which the remedy is to sign in
// (again).
var ErrSignIn = errors.New("not signed in")

// Issuer is what an OpenID provider says of itself (OpenID Connect Discovery
// 1.0, section 3; RFC 8414; RFC 8628 section 4).
type Issuer struct {
	Issuer         string `json:"issuer"`
	TokenEndpoint  string `json:"token_endpoint"`
	DeviceEndpoint string `json:"device_authorization_endpoint"`
	JWKS           string `json:"jwks_uri"`
}

// maxDiscovery bounds a provider's document in bytes.
const maxDiscovery = 1 << 20

// Discover asks an issuer for its endpoints.
func Discover(ctx context.Context, client *http.Client, issuer string) (*Issuer, error) {
	issuer = strings.TrimRight(issuer, "/")
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, issuer+"/.well-known/openid-configuration", nil)
	if err != nil {
		return nil, fmt.Errorf("issuer %s: %w", issuer, err)
	}
	resp, err := client.Do(r)
	if err != nil {
		return nil, fmt.Errorf("issuer %s does not answer: %w", issuer, err)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxDiscovery))
	if err != nil {
		return nil, fmt.Errorf("issuer %s: %w", issuer, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("issuer %s: %s for %s; is this an OpenID provider's URI?", issuer, resp.Status, r.URL.Redacted())
	}
	var d Issuer
	if err := json.Unmarshal(raw, &d); err != nil {
		return nil, fmt.Errorf("issuer %s: its configuration is no JSON: %w", issuer, err)
	}
	if strings.TrimRight(d.Issuer, "/") != issuer {
		return nil, fmt.Errorf("issuer %s calls itself %q; use that as --issuer if it is right", issuer, d.Issuer)
	}
	if d.TokenEndpoint == "" {
		return nil, fmt.Errorf("issuer %s names no token endpoint", issuer)
	}
	for _, e := range []string{d.TokenEndpoint, d.DeviceEndpoint} {
		u, err := url.Parse(e)
		if err != nil {
			return nil, fmt.Errorf("issuer %s: endpoint %q: %w", issuer, e, err)
		}
		if err := plainOnlyHere(u); err != nil {
			return nil, err
		}
	}
	return &d, nil
}

// ByCredentials asks for a token with a client's id and secret.
func (c *Context) ByCredentials(ctx context.Context, client *http.Client, secret string) (Kept, error) {
	config := clientcredentials.Config{
		ClientID: c.SignIn.ClientID, ClientSecret: secret, TokenURL: c.SignIn.TokenURI, Scopes: c.SignIn.Scopes,
		AuthStyle: oauth2.AuthStyleInHeader,
	}
	if c.SignIn.Audience != "" {
		config.EndpointParams = url.Values{"audience": {c.SignIn.Audience}}
	}
	t, err := config.Token(context.WithValue(ctx, oauth2.HTTPClient, client))
	if err != nil {
		return Kept{}, tokenError(c.SignIn.TokenURI, err)
	}
	return kept(t), nil
}

// Prompt is what a person does on another device (RFC 8628 section 3.2).
type Prompt struct {
	URI, CompleteURI, Code string
	Expires                time.Time
}

// ByDevice asks for a token that a person grants on another device, and waits
// until it is granted or refused, or the code is too old.
func (c *Context) ByDevice(ctx context.Context, client *http.Client, deviceEndpoint string, show func(Prompt) error) (Kept, error) {
	config := c.config()
	config.Endpoint.DeviceAuthURL = deviceEndpoint
	ctx = context.WithValue(ctx, oauth2.HTTPClient, client)
	var options []oauth2.AuthCodeOption
	if c.SignIn.Audience != "" {
		options = append(options, oauth2.SetAuthURLParam("audience", c.SignIn.Audience))
	}
	d, err := config.DeviceAuth(ctx, options...)
	if err != nil {
		return Kept{}, tokenError(deviceEndpoint, err)
	}
	if err := show(Prompt{d.VerificationURI, d.VerificationURIComplete, d.UserCode, d.Expiry}); err != nil {
		return Kept{}, err
	}
	t, err := config.DeviceAccessToken(ctx, d)
	if err != nil {
		var answer *oauth2.RetrieveError
		switch {
		case errors.As(err, &answer) && answer.ErrorCode == "access_denied":
			return Kept{}, fmt.Errorf("%w: it was refused on the other device", ErrSignIn)
		case errors.As(err, &answer) && answer.ErrorCode == "expired_token", errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil:
			return Kept{}, fmt.Errorf("%w: nobody confirmed the code in time", ErrSignIn)
		}
		return Kept{}, tokenError(c.SignIn.TokenURI, err)
	}
	return kept(t), nil
}

func (c *Context) config() *oauth2.Config {
	return &oauth2.Config{
		ClientID: c.SignIn.ClientID, Scopes: c.SignIn.Scopes,
		Endpoint: oauth2.Endpoint{TokenURL: c.SignIn.TokenURI, AuthStyle: oauth2.AuthStyleInParams},
	}
}

// Refresh asks for a new token with a refresh token (RFC 6749 section 6).
func (c *Context) Refresh(ctx context.Context, client *http.Client, refreshToken string) (Kept, error) {
	source := c.config().TokenSource(context.WithValue(ctx, oauth2.HTTPClient, client), &oauth2.Token{RefreshToken: refreshToken})
	t, err := source.Token()
	if err != nil {
		return Kept{}, tokenError(c.SignIn.TokenURI, err)
	}
	return kept(t), nil
}

func kept(t *oauth2.Token) Kept {
	return Kept{AccessToken: t.AccessToken, RefreshToken: t.RefreshToken, Expiry: t.Expiry}
}

// tokenError says what a token endpoint answered, without quoting bodies that
// could hold more than an error.
func tokenError(endpoint string, err error) error {
	var answer *oauth2.RetrieveError
	if !errors.As(err, &answer) {
		return fmt.Errorf("token endpoint %s: %w", endpoint, err)
	}
	what := answer.ErrorCode
	if answer.ErrorDescription != "" {
		what += ": " + answer.ErrorDescription
	}
	if what == "" && answer.Response != nil {
		what = answer.Response.Status
	}
	if answer.Response != nil && answer.Response.StatusCode >= 500 {
		return fmt.Errorf("token endpoint %s: %s", endpoint, what)
	}
	return fmt.Errorf("%w: token endpoint %s: %s", ErrSignIn, endpoint, what)
}

// early is how long before its end a token is renewed.
const early = 30 * time.Second

// fresh reports whether the access token can be used.
func (k Kept) fresh(now time.Time) bool {
	return k.AccessToken != "" && (k.Expiry.IsZero() || now.Add(early).Before(k.Expiry))
}

// Token returns a context's token, renewed when it is old and can be; a
// renewed one is kept.
func (c *Context) Token(ctx context.Context, client *http.Client, v *Vault, name string, now time.Time) (Kept, error) {
	k, err := v.Get(c.SignIn.Store, name)
	if err != nil {
		return Kept{}, err
	}
	if k.fresh(now) {
		return k, nil
	}
	var next Kept
	switch {
	case k.RefreshToken != "":
		next, err = c.Refresh(ctx, client, k.RefreshToken)
		if next.RefreshToken == "" {
			next.RefreshToken = k.RefreshToken
		}
	case k.ClientSecret != "":
		next, err = c.ByCredentials(ctx, client, k.ClientSecret)
		next.ClientSecret = k.ClientSecret
	case k.AccessToken == "":
		return Kept{}, ErrSignIn
	default:
		return Kept{}, fmt.Errorf("%w: the token ended %s", ErrSignIn, k.Expiry.UTC().Format(time.RFC3339))
	}
	if err != nil {
		// Where a refresh token works once, another process was perhaps faster.
		if other, again := v.Get(c.SignIn.Store, name); again == nil && other.AccessToken != k.AccessToken && other.fresh(now) {
			return other, nil
		}
		return Kept{}, err
	}
	if _, err := v.Put(c.SignIn.Store, name, next); err != nil {
		return Kept{}, err
	}
	return next, nil
}
