// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/secret"
	"github.com/sluice-data/sluice/internal/server/config"
	"github.com/sluice-data/sluice/internal/telemetry"
)

func TestReadyAsksTheStoreOncePerSecond(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	var down atomic.Bool
	h := &health{log: slog.New(slog.DiscardHandler), ping: func(context.Context) error {
		asked.Add(1)
		if down.Load() {
			return errors.New("secret detail of the database")
		}
		return nil
	}}
	probe := func() (int, string) {
		w := httptest.NewRecorder()
		h.ready(w, httptest.NewRequest(http.MethodGet, "/health/ready", nil))
		return w.Code, w.Body.String()
	}
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if code, _ := probe(); code != http.StatusOK {
				t.Error(code)
			}
		})
	}
	wg.Wait()
	if n := asked.Load(); n != 1 {
		t.Errorf("fifty probes asked the store %d times", n)
	}
	down.Store(true)
	h.checked = time.Time{}
	if code, body := probe(); code != http.StatusServiceUnavailable || strings.Contains(body, "detail") {
		t.Errorf("with the store down: %d %s", code, body)
	}
	// A prober that leaves does not make the store look down.
	down.Store(false)
	h.checked = time.Time{}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if err := h.check(gone); err != nil {
		t.Errorf("a prober's leaving is an answer for all: %v", err)
	}
	h.draining.Store(true)
	if code, body := probe(); code != http.StatusServiceUnavailable || !strings.Contains(body, "draining") {
		t.Errorf("draining: %d %s", code, body)
	}
}

func TestPlainListenersOffLoopbackAreRefused(t *testing.T) {
	t.Parallel()
	log := slog.New(slog.DiscardHandler)
	for _, address := range []string{"0.0.0.0:0", ":0", "[::]:0", "example.com:0"} {
		if l, _, err := listen(t.Context(), config.Listener{Address: address}, false, log); err == nil {
			l.Close()
			t.Errorf("%s listens", address)
		}
	}
	for _, c := range []config.Listener{{Address: "127.0.0.1:0"}, {Address: "localhost:0"}, {Address: "0.0.0.0:0", Insecure: true}} {
		l, _, err := listen(t.Context(), c, false, log)
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		l.Close()
	}
}

// versions is a store that has only versions.
type versions struct {
	catalog.Store
	current, newest int
	migrated        bool
}

func (v *versions) Version(context.Context) (int, int, error) { return v.current, v.newest, nil }

func (v *versions) Migrate(context.Context) error {
	v.migrated = true
	return nil
}

func TestSchemaIsChecked(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		current, newest int
		may             bool
		migrated        bool
		want            string
	}{
		{1, 1, false, false, ""},
		{0, 1, false, false, "catalogd migrate"},
		{0, 1, true, true, ""},
		{2, 1, true, false, "run a newer catalogd"},
	} {
		v := &versions{current: test.current, newest: test.newest}
		err := checkSchema(t.Context(), v, test.may)
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) || v.migrated != test.migrated {
			t.Errorf("%+v: %v, migrated %v", test, err, v.migrated)
		}
	}
}

func TestOutcomes(t *testing.T) {
	t.Parallel()
	wrap := func(err error) error { return fmt.Errorf("doing something: %w", err) }
	for want, list := range map[string][]error{
		"ok":          {nil},
		"not-found":   {wrap(catalog.ErrNoObject), catalog.ErrNoNamespace},
		"refused":     {wrap(catalog.ErrExists), catalog.ErrStale, catalog.ErrLocationTaken, catalog.Errorf(catalog.CommitFailed, "x")},
		"unavailable": {wrap(catalog.ErrUnavailable), fmt.Errorf("%w: %w", catalog.ErrUnavailable, context.DeadlineExceeded)},
		"unknown":     {wrap(catalog.ErrUnknownOutcome)},
		"cancelled":   {wrap(context.Canceled)},
		"error":       {errors.New("x")},
	} {
		for _, err := range list {
			if got := storeOutcome(err); got != want {
				t.Errorf("%v is %s, want %s", err, got, want)
			}
		}
	}
	for want, err := range map[string]error{
		"ok": nil, "not-found": wrap(objstore.ErrNotFound), "exists": objstore.ErrExists, "forbidden": objstore.ErrForbidden,
		"too-large": objstore.ErrTooLarge, "cancelled": context.DeadlineExceeded, "error": errors.New("x"),
	} {
		if got := objectOutcome(err); got != want {
			t.Errorf("%v is %s, want %s", err, got, want)
		}
	}
}

func TestClientConfigHoldsNoSecret(t *testing.T) {
	t.Parallel()
	w := config.Warehouse{
		Storage: config.Storage{Type: "s3", S3: &config.S3{
			Endpoint: "http://s3", Region: "r", PathStyle: true, AccessKeyID: "AKID", SecretAccessKey: config.Secret{Value: secret.New("hunter2")},
		}},
		ClientConfig: map[string]string{"s3.endpoint": "https://outside", "x": "y"},
	}
	got := clientConfig(w)
	want := map[string]string{
		"client.region": "r", "s3.region": "r", "s3.path-style-access": "true", "s3.endpoint": "https://outside", "x": "y",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got %v\nwant %v", got, want)
	}
	if p := profileOf(w.Storage); p.S3.SecretAccessKey.Reveal() != "hunter2" || strings.Contains(fmt.Sprintf("%+v", p), "hunter2") {
		t.Error("the profile lacks the key, or prints it")
	}
}

func TestProfileOfAzure(t *testing.T) {
	t.Parallel()
	w := config.Warehouse{Storage: config.Storage{Type: "azure", Azure: &config.Azure{
		Account: "acc", AccountKey: config.Secret{Value: secret.New("hunter2")}, TenantID: "t", ClientID: "c", ClientSecret: config.Secret{Value: secret.New("hunter3")},
		Authority: "https://login", Endpoint: "https://blob",
	}}}
	if got := clientConfig(w); fmt.Sprint(got) != "map[adls.account-name:acc]" {
		t.Errorf("clients are told %v", got)
	}
	p := profileOf(w.Storage)
	if a := p.Azure; p.Type != objstore.TypeAzure || a.Account != "acc" || a.AccountKey.Reveal() != "hunter2" || a.TenantID != "t" || a.ClientID != "c" ||
		a.ClientSecret.Reveal() != "hunter3" || a.Authority != "https://login" || a.Endpoint != "https://blob" {
		t.Errorf("the profile is %+v", p)
	}
	if strings.Contains(fmt.Sprintf("%+v", p), "hunter") {
		t.Error("the profile prints its secrets")
	}
}

// instant answers at once.
type instant struct{ catalog.Store }

func (instant) Object(context.Context, uuid.UUID, catalog.Namespace, string, catalog.Kind) (catalog.Object, error) {
	return catalog.Object{}, nil
}

// BenchmarkMeasuredStore is what counting adds to a look-up.
func BenchmarkMeasuredStore(b *testing.B) {
	s := measureStore(instant{}, telemetry.NewMetrics(telemetry.MetricsOptions{}), &telemetry.Tracer{})
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.Object(ctx, uuid.UUID{}, nil, "t", catalog.KindTable); err != nil {
			b.Fatal(err)
		}
	}
}
