// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/icebergrest"
	"github.com/sluice-data/sluice/cmd/sharectl/internal/session"
)

// Bounds of what is no trouble.
const (
	clockLimit       = 30 * time.Second    // what servers allow of a token's times
	certificateLimit = 14 * 24 * time.Hour // before a certificate ends
	connectLimit     = 10 * time.Second
)

// finding is what one check of doctor came to.
type finding struct {
	Check  string `json:"check"`
	Result string `json:"result"` // ok, warn, FAIL or skipped
	What   string `json:"what"`
	Remedy string `json:"remedy,omitempty"`
}

// errSkipped ends a check that has no sense here.
type errSkipped string

func (e errSkipped) Error() string { return string(e) }

// warning is something that will become trouble, or may be.
type warning struct{ what, remedy string }

func (w warning) Error() string { return w.what }

func (a *app) doctorCommand() *cobra.Command {
	var table string
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Find out what is wrong: connection, clock, TLS, issuer, sign-in, storage",
		Long: `Checks, in this order, what a client needs, and says what is wrong and what to
do. With --table it also looks whether the table's files can be reached from
here. Exit code 6 if anything is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context(), table) },
	}
	cmd.Flags().StringVar(&table, "table", "", "table whose files are looked for")
	return cmd
}

func (a *app) doctor(ctx context.Context, table string) error {
	var all []finding
	failed := 0
	check := func(name string, f func() (string, error)) bool {
		what, err := f()
		r := finding{Check: name, Result: "ok", What: what}
		var skipped errSkipped
		var warned warning
		switch {
		case err == nil:
		case errors.As(err, &skipped):
			r.Result, r.What = "skipped", string(skipped)
		case errors.As(err, &warned):
			r.Result, r.What, r.Remedy = "warn", warned.what, warned.remedy
		default:
			c := classify(err)
			r.Result, r.What, r.Remedy = "FAIL", c.Error(), c.next
			if r.Remedy == "sharectl doctor" {
				r.Remedy = ""
			}
			failed++
		}
		all = append(all, r)
		return r.Result != "FAIL"
	}

	var n *active
	if check("configuration", func() (string, error) {
		var err error
		if n, err = a.use(); err != nil {
			return "", err
		}
		return first(n.name, "from the environment") + ": " + n.ctx.URI, nil
	}) {
		d := &diagnosis{app: a, active: n}
		if check("connection", func() (string, error) { return d.connection(ctx) }) && check("TLS", d.encryption) &&
			check("catalog", func() (string, error) { return d.catalog(ctx) }) {
			check("clock", d.clock)
			check("issuer", func() (string, error) { return d.issuer(ctx) })
			if check("sign-in", func() (string, error) { return d.signIn(ctx) }) {
				check("sharing API", func() (string, error) { return d.sharing(ctx) })
			}
			if d.signedIn &&
				check("warehouse", func() (string, error) { return d.openWarehouse(ctx) }) {
				check("storage", func() (string, error) { return d.storage(ctx, table) })
			}
		}
	}

	l := list{columns: []string{"CHECK", "RESULT", "WHAT"}, value: all}
	for _, r := range all {
		l.rows = append(l.rows, []string{r.Check, r.Result, r.What})
	}
	if err := a.print(l); err != nil {
		return err
	}
	if a.format == "table" {
		for _, r := range all {
			if r.Remedy != "" {
				a.hint("%s, try: %s", r.Check, clean(r.Remedy))
			}
		}
	}
	if failed > 0 {
		return wanting("%d of %d checks failed", failed, len(all))
	}
	return nil
}

// diagnosis is what doctor's checks hand on.
type diagnosis struct {
	*app
	active    *active
	uri       *url.URL
	state     *tls.ConnectionState
	date      time.Time // the server's
	asked     time.Time // when it was asked
	warehouse *icebergrest.Warehouse
	signedIn  bool
}

// connection opens a connection, and TLS on it.
func (d *diagnosis) connection(ctx context.Context) (string, error) {
	var err error
	if d.uri, err = url.Parse(d.active.ctx.URI); err != nil {
		return "", err
	}
	address := d.uri.Host
	if d.uri.Port() == "" {
		address = net.JoinHostPort(d.uri.Hostname(), map[string]string{"http": "80", "https": "443"}[d.uri.Scheme])
	}
	if proxy, err := http.ProxyFromEnvironment(&http.Request{URL: d.uri}); err == nil && proxy != nil {
		return "", errSkipped("requests go through the proxy " + proxy.Host)
	}
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	start := time.Now()
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return "", &url.Error{Op: "dial", URL: d.active.ctx.URI, Err: err}
	}
	defer conn.Close()
	took := time.Since(start)
	if d.uri.Scheme == "https" {
		config, err := d.active.ctx.TLS.Config()
		if err != nil {
			return "", err
		}
		config.ServerName = d.uri.Hostname()
		secure := tls.Client(conn, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			return "", fmt.Errorf("TLS with %s: %w", address, err)
		}
		state := secure.ConnectionState()
		d.state = &state
	}
	return fmt.Sprintf("%s answers after %s", conn.RemoteAddr(), took.Round(time.Millisecond)), nil
}

// encryption looks at what TLS agreed on.
func (d *diagnosis) encryption() (string, error) {
	if d.uri.Scheme == "http" {
		return "", errSkipped("plain HTTP on this machine")
	}
	if d.state == nil {
		return "", errSkipped("the proxy is in between")
	}
	leaf := d.state.PeerCertificates[0]
	left := leaf.NotAfter.Sub(d.Now())
	what := fmt.Sprintf("%s, certificate until %s", tls.VersionName(d.state.Version), leaf.NotAfter.UTC().Format(time.DateOnly))
	if left < certificateLimit {
		return "", warning{fmt.Sprintf("the server's certificate ends in %d days", int(left.Hours()/24)), "tell whoever runs the server"}
	}
	return what, nil
}

// catalog asks without a token whether a catalog is there.
func (d *diagnosis) catalog(ctx context.Context) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, d.active.ctx.URI+"/v1/config", nil)
	if err != nil {
		return "", err
	}
	d.asked = d.Now()
	resp, err := d.active.http.Do(r)
	if err != nil {
		return "", err
	}
	resp.Body.Close()
	d.asked = d.asked.Add(d.Now().Sub(d.asked) / 2)
	if date, err := http.ParseTime(resp.Header.Get("Date")); err == nil {
		d.date = date
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound:
		if !strings.HasPrefix(resp.Header.Get("Content-Type"), "application/json") {
			return "", &failure{err: fmt.Errorf("what answers at %s is no Iceberg REST catalog", d.active.ctx.URI), code: codeWanting, next: "sharectl context show, and mind the path of the URI"}
		}
		return "an Iceberg REST catalog answers", nil
	}
	return "", fmt.Errorf("the server answers %s", resp.Status)
}

// clock compares this machine's with the server's, which HTTP tells in whole
// seconds.
func (d *diagnosis) clock() (string, error) {
	if d.date.IsZero() {
		return "", errSkipped("the server tells no time")
	}
	off := d.asked.Sub(d.date).Abs()
	if off > clockLimit {
		return "", &failure{err: fmt.Errorf("this machine's clock and the server's differ by %s: tokens will be refused", off.Round(time.Second)), code: codeWanting, next: "set the clock, for example with timedatectl set-ntp true"}
	}
	return fmt.Sprintf("within %s of the server's", max(off.Round(time.Second), time.Second)), nil
}

// issuer asks the OpenID provider.
func (d *diagnosis) issuer(ctx context.Context) (string, error) {
	if d.active.ctx.SignIn.Issuer == "" {
		return "", errSkipped("the context has none")
	}
	found, err := session.Discover(ctx, d.active.http, d.active.ctx.SignIn.Issuer)
	if err != nil {
		return "", err
	}
	if t := d.active.ctx.SignIn.TokenURI; t != "" && t != found.TokenEndpoint {
		return "", warning{fmt.Sprintf("its token endpoint is %s now, and the context has %s", found.TokenEndpoint, t), "sharectl login"}
	}
	if found.JWKS == "" {
		return "", warning{"it publishes no keys, so servers cannot verify its tokens", "ask whoever runs the issuer"}
	}
	return d.active.ctx.SignIn.Issuer + " answers", nil
}

// signIn obtains a token.
func (d *diagnosis) signIn(ctx context.Context) (string, error) {
	token, err := d.bearer(ctx)
	if err != nil {
		return "", err
	}
	if runtime.GOOS != "windows" && d.active.ctx.SignIn.Store == session.StoreFile {
		if info, err := os.Stat(d.vault.Path()); err == nil && info.Mode().Perm()&0o077 != 0 {
			return "", &failure{err: fmt.Errorf("%s can be read by others", d.vault.Path()), code: codeWanting, next: "chmod 600 " + d.vault.Path()}
		}
	}
	d.signedIn = true
	switch {
	case token == "":
		return "by certificate " + d.active.ctx.TLS.CertFile, nil
	case d.active.token.Expiry.IsZero():
		return "there is a token; when it ends is not known", nil
	}
	return "the token ends " + d.active.token.Expiry.UTC().Format(time.RFC3339), nil
}

// sharing asks as whom the server knows the caller.
func (d *diagnosis) sharing(ctx context.Context) (string, error) {
	who, err := d.ask(ctx, "PrincipalService", "WhoAmI", message{})
	if errors.Is(err, errNoSuchOperation) {
		return "", errSkipped("the server has none")
	}
	if err != nil {
		return "", err
	}
	what := "you are " + text(who, "id")
	if o := text(who, "organisation"); o != "" {
		what += " of " + o
	}
	if role := word(text(who, "role")); role != "" {
		what += ", " + role
	}
	return what, nil
}

// openWarehouse opens the context's warehouse with the token.
func (d *diagnosis) openWarehouse(ctx context.Context) (string, error) {
	w, err := d.app.openWarehouse(ctx)
	if err != nil {
		return "", nextFor(err, http.StatusNotFound, "sharectl context set --warehouse NAME")
	}
	d.warehouse = w
	return first(d.active.ctx.Warehouse, "the only one") + " can be used", nil
}

// storage looks for a table's metadata file where an engine would.
func (d *diagnosis) storage(ctx context.Context, table string) (string, error) {
	if table == "" {
		return "", errSkipped("no --table was named")
	}
	id, err := identOf(table, "table")
	if err != nil {
		return "", err
	}
	raw, err := d.warehouse.Load(ctx, id)
	if err != nil {
		return "", missing(err, "table", id)
	}
	return reach(ctx, raw)
}
