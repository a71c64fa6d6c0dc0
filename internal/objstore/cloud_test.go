// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/sluice-data/sluice/internal/secret"
)

// clouds are the cloud stores, each with a root in a bucket and what opens it.
var clouds = []struct {
	name    string
	dialect func(*fake, http.ResponseWriter, *http.Request, []byte)
	// profile gives the profile of <bucket>/w at an endpoint.
	profile func(endpoint, bucket string) Profile
}{
	{"s3", speakS3, func(endpoint, bucket string) Profile {
		return Profile{Type: TypeS3, Root: "s3://" + bucket + "/w", S3: S3{
			Endpoint: endpoint, Region: "fake-region-1", PathStyle: true, AccessKeyID: fakeKeyID, SecretAccessKey: secret.New(fakeSecret),
		}}
	}},
	{"gcs", speakGCS, func(endpoint, bucket string) Profile {
		return Profile{Type: TypeGCS, Root: "gs://" + bucket + "/w", GCS: GCS{Endpoint: endpoint}}
	}},
	{"azure", speakAzure, func(endpoint, bucket string) Profile {
		return Profile{Type: TypeAzure, Root: "abfss://" + bucket + "@acct.dfs.core.windows.net/w", Azure: Azure{
			Account: "acct", AccountKey: secret.New("ZmFrZS1zZWNyZXQtdGhhdC1tdXN0LW5vdC1zaG93"), Endpoint: endpoint + "/acct",
		}}
	}},
}

// openFake opens a bucket on a fake, with short pauses between attempts.
func openFake(t testing.TB, endpoint string, p Profile, o Options) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	switch d := b.driver.(type) {
	case *s3Store:
		d.pause = time.Millisecond
	case *gcsStore:
		d.pause = time.Millisecond
	case *azureStore:
		d.pause = time.Millisecond
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func TestClouds(t *testing.T) {
	t.Parallel()
	for _, c := range clouds {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, endpoint := startFake(t, c.dialect)
			p := c.profile(endpoint, "lake")
			testStore(t, openFake(t, endpoint, p, Options{}), p.Root)
		})
	}
	t.Run("s3 without conditional writes", func(t *testing.T) {
		t.Parallel()
		_, endpoint := startFake(t, func(f *fake, w http.ResponseWriter, r *http.Request, body []byte) {
			if r.Header.Get("If-None-Match") != "" {
				refuse(w, http.StatusNotImplemented, "NotImplemented")
				return
			}
			speakS3(f, w, r, body)
		})
		p := clouds[0].profile(endpoint, "lake")
		b := openFake(t, endpoint, p, Options{})
		if err := b.Check(t.Context()); err == nil || !strings.Contains(err.Error(), "NotImplemented") {
			t.Errorf("Check without the setting: %v", err)
		}
		p.S3.NoConditionalWrites = true
		b = openFake(t, endpoint, p, Options{})
		if err := b.Check(t.Context()); err != nil {
			t.Error(err)
		}
		if err := b.WriteNew(t.Context(), p.Root+"/f", nil); err != nil {
			t.Error(err)
		}
		if err := b.WriteNew(t.Context(), p.Root+"/f", nil); !errors.Is(err, ErrExists) {
			t.Errorf("write again: %v", err)
		}
	})
}

// TestFaults answers requests with each kind of failure and counts how often
// each is made.
func TestFaults(t *testing.T) {
	t.Parallel()
	for _, c := range clouds {
		for name, fault := range map[string]struct {
			status   int
			code     string
			times    int // failing requests; 0 for all
			want     error
			requests int
		}{
			"refused":             {http.StatusForbidden, "AccessDenied", 0, ErrForbidden, 1},
			"unauthenticated":     {http.StatusUnauthorized, "x", 0, ErrForbidden, 1},
			"expired token":       {http.StatusBadRequest, "ExpiredToken", 0, ErrForbidden, 1},
			"absent":              {http.StatusNotFound, "NoSuchKey", 0, ErrNotFound, 1},
			"overloaded for good": {http.StatusServiceUnavailable, "SlowDown", 0, ErrUnavailable, 4},
			"overloaded twice":    {http.StatusServiceUnavailable, "SlowDown", 2, nil, 3},
			"internal once":       {http.StatusInternalServerError, "InternalError", 1, nil, 2},
			"bad gateway once":    {http.StatusBadGateway, "", 1, nil, 2},
			"throttled once":      {http.StatusTooManyRequests, "", 1, nil, 2},
			"timed out once":      {http.StatusRequestTimeout, "RequestTimeout", 1, nil, 2},
			"not implemented":     {http.StatusNotImplemented, "NotImplemented", 0, nil, 1},
			"bad request":         {http.StatusBadRequest, "InvalidArgument", 0, nil, 1},
			"redirect":            {http.StatusTemporaryRedirect, "TemporaryRedirect", 0, nil, 1},
		} {
			if fault.code == "ExpiredToken" && c.name == "gcs" {
				continue // S3's word; Google answers 401
			}
			t.Run(c.name+"/"+name, func(t *testing.T) {
				t.Parallel()
				f, endpoint := startFake(t, c.dialect)
				p := c.profile(endpoint, "lake")
				b := openFake(t, endpoint, p, Options{})
				location := p.Root + "/t/f"
				if err := b.WriteNew(t.Context(), location, []byte("data")); err != nil {
					t.Fatal(err)
				}
				calls := map[string]func() error{
					"Read": func() error { _, err := b.Read(t.Context(), location, 10); return err },
					"Range": func() error {
						_, err := b.ReadRange(t.Context(), location, 1, 2)
						return err
					},
					"Size":  func() error { _, err := b.Size(t.Context(), location); return err },
					"Write": func() error { return b.WriteNew(t.Context(), location+"2", []byte("new")) },
					"List":  func() error { return b.List(t.Context(), p.Root+"/t", func(string, int64) error { return nil }) },
					"Many":  func() error { return b.DeleteMany(t.Context(), []string{location + "3"}) },
					"Del":   func() error { return b.Delete(t.Context(), location+"3") },
				}
				for call, run := range calls {
					seen := 0
					f.mu.Lock()
					f.fault = func(r *http.Request) (int, string, bool) {
						seen++
						if fault.times > 0 && seen > fault.times {
							return 0, "", false
						}
						return fault.status, fault.code, false
					}
					f.mu.Unlock()
					err := run()
					f.mu.Lock()
					f.fault = nil
					n := seen
					f.mu.Unlock()
					if n != fault.requests {
						t.Errorf("%s: %d requests, want %d (%v)", call, n, fault.requests, err)
					}
					want := fault.want
					if fault.code == "ExpiredToken" && c.name == "s3" && call == "Size" {
						want = nil // an answer to HEAD has no body to tell it
					}
					deletesAbsent := errors.Is(want, ErrNotFound) && (call == "Del" || call == "Many" && c.name != "s3")
					switch {
					case fault.times > 0 || deletesAbsent:
						if err != nil {
							t.Errorf("%s: %v", call, err)
						}
					case err == nil:
						t.Errorf("%s succeeds", call)
					case want != nil && !errors.Is(err, want):
						t.Errorf("%s: %v; want %v", call, err, want)
					case want == nil && (errors.Is(err, ErrNotFound) || errors.Is(err, ErrExists) || errors.Is(err, ErrForbidden) || errors.Is(err, ErrUnavailable)):
						t.Errorf("%s: %v is taken for something else", call, err)
					}
					if err != nil && strings.Contains(err.Error(), fakeSecret) {
						t.Errorf("%s: the error shows the secret: %v", call, err)
					}
				}
			})
		}
	}
}

// TestLostAnswers: the store did what it was asked to and the connection
// broke. The next attempt must find out, and another writer's object must not
// pass for our own.
func TestLostAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range clouds {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f, endpoint := startFake(t, c.dialect)
			p := c.profile(endpoint, "lake")
			b := openFake(t, endpoint, p, Options{})
			first := true
			f.fault = func(r *http.Request) (int, string, bool) {
				lost := first && (r.Method == http.MethodPut || r.Method == http.MethodPost)
				first = first && !lost
				return 0, "", lost
			}
			if err := b.WriteNew(t.Context(), p.Root+"/ours", []byte("ours")); err != nil {
				t.Errorf("a write whose answer was lost: %v", err)
			}
			// An attempt that did not arrive, and in between somebody else.
			first = true
			f.fault = func(r *http.Request) (int, string, bool) {
				if first && (r.Method == http.MethodPut || r.Method == http.MethodPost) {
					first = false
					f.objects["lake/w/theirs"] = []byte("theirs")
					return http.StatusServiceUnavailable, "SlowDown", false
				}
				return 0, "", false
			}
			if err := b.WriteNew(t.Context(), p.Root+"/theirs", []byte("our's!")); !errors.Is(err, ErrExists) {
				t.Errorf("a write that lost to another: %v", err)
			}
			if data, err := b.Read(t.Context(), p.Root+"/theirs", 10); err != nil || string(data) != "theirs" {
				t.Errorf("the other's object holds %q, %v", data, err)
			}
			first = true
			f.fault = func(*http.Request) (int, string, bool) { lost := first; first = false; return 0, "", lost }
			if err := b.Delete(t.Context(), p.Root+"/ours"); err != nil {
				t.Errorf("a deletion whose answer was lost: %v", err)
			}
		})
	}
}

func TestNoBucket(t *testing.T) {
	t.Parallel()
	for _, c := range clouds {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, endpoint := startFake(t, c.dialect)
			p := c.profile(endpoint, "no-such-bucket")
			b := openFake(t, endpoint, p, Options{})
			_, readErr := b.Read(t.Context(), p.Root+"/f", 10)
			for call, err := range map[string]error{
				"Read": readErr, "WriteNew": b.WriteNew(t.Context(), p.Root+"/f", nil), "Delete": b.Delete(t.Context(), p.Root+"/f"),
				"DeleteMany": b.DeleteMany(t.Context(), []string{p.Root + "/f"}), "List": b.List(t.Context(), p.Root+"/d", nil), "Check": b.Check(t.Context()),
			} {
				if !errors.Is(err, ErrNoBucket) || errors.Is(err, ErrNotFound) {
					t.Errorf("%s: %v", call, err)
				}
			}
		})
	}
}

// TestDeadlines: a store that never answers costs no more than the timeout,
// and one that is not there is ErrUnavailable.
func TestDeadlines(t *testing.T) {
	t.Parallel()
	release := make(chan struct{})
	hung := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(hung.Close)
	t.Cleanup(func() { close(release) })
	gone := httptest.NewServer(nil)
	gone.Close()
	for _, c := range clouds {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			p := c.profile(hung.URL, "lake")
			b := openFake(t, hung.URL, p, Options{Timeout: 50 * time.Millisecond})
			if _, err := b.Read(t.Context(), p.Root+"/f", 10); !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, ErrUnavailable) {
				t.Errorf("a store that hangs: %v", err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(20*time.Millisecond, cancel)
			b = openFake(t, hung.URL, p, Options{})
			if err := b.WriteNew(ctx, p.Root+"/f", nil); !errors.Is(err, context.Canceled) {
				t.Errorf("a caller who gave up: %v", err)
			}
			p = c.profile(gone.URL, "lake")
			b = openFake(t, gone.URL, p, Options{})
			if _, err := b.Read(t.Context(), p.Root+"/f", 10); !errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotFound) {
				t.Errorf("a store that is not there: %v", err)
			}
		})
	}
}

// TestBrokenAnswers: too few bytes, a wrong checksum, a range that is
// ignored, a page without end.
func TestBrokenAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range clouds {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var broken atomic.Pointer[func(w http.ResponseWriter, r *http.Request)]
			_, endpoint := startFake(t, func(f *fake, w http.ResponseWriter, r *http.Request, body []byte) {
				if answer := broken.Load(); answer != nil {
					(*answer)(w, r)
					return
				}
				c.dialect(f, w, r, body)
			})
			p := c.profile(endpoint, "lake")
			b := openFake(t, endpoint, p, Options{})
			location := p.Root + "/t/f"
			if err := b.WriteNew(t.Context(), location, []byte("0123456789")); err != nil {
				t.Fatal(err)
			}
			cut := func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Content-Length", "10")
				_, _ = w.Write([]byte("01234"))
				panic(http.ErrAbortHandler)
			}
			broken.Store(&cut)
			if data, err := b.Read(t.Context(), location, 100); !errors.Is(err, ErrUnavailable) || data != nil {
				t.Errorf("an answer that is cut off: %q, %v", data, err)
			}
			whole := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("0123456789")) }
			broken.Store(&whole)
			if data, err := b.ReadRange(t.Context(), location, 2, 3); err == nil {
				t.Errorf("a store that ignores ranges gives %q", data)
			}
			endless := func(w http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil {
					if _, err := w.Write(make([]byte, 64<<10)); err != nil {
						return
					}
				}
			}
			broken.Store(&endless)
			if data, err := b.Read(t.Context(), location, 1<<20); !errors.Is(err, ErrTooLarge) {
				t.Errorf("an answer without end: %d bytes, %v", len(data), err)
			}
			if c.name == "gcs" {
				wrong := func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("X-Goog-Hash", "crc32c=AAAAAA==")
					_, _ = w.Write([]byte("0123456789"))
				}
				broken.Store(&wrong)
				if data, err := b.Read(t.Context(), location, 100); err == nil {
					t.Errorf("a wrong checksum is not seen: %q", data)
				}
			}
			broken.Store(nil)
			if data, err := b.Read(t.Context(), location, 100); err != nil || string(data) != "0123456789" {
				t.Errorf("after the trouble: %q, %v", data, err)
			}
		})
	}
}

// TestManyDeletions: S3 takes a thousand a request; one that is refused is an
// error.
func TestManyDeletions(t *testing.T) {
	t.Parallel()
	f, endpoint := startFake(t, speakS3)
	p := clouds[0].profile(endpoint, "lake")
	b := openFake(t, endpoint, p, Options{})
	var locations []string
	for i := range 2001 {
		locations = append(locations, fmt.Sprintf("%s/t/%d", p.Root, i))
		f.objects[fmt.Sprintf("lake/w/t/%d", i)] = nil
	}
	if err := b.DeleteMany(t.Context(), locations); err != nil {
		t.Fatal(err)
	}
	if len(f.requests) != 3 || len(f.objects) != 0 {
		t.Errorf("%d requests, %d objects left", len(f.requests), len(f.objects))
	}
	if err := b.DeleteMany(t.Context(), nil); err != nil || len(f.requests) != 3 {
		t.Errorf("deleting nothing: %v, %d requests", err, len(f.requests)-3)
	}
	if err := b.DeleteMany(t.Context(), []string{p.Root + "/t/a", p.Root + "/t/locked"}); !errors.Is(err, ErrForbidden) {
		t.Errorf("an object that may not be deleted: %v", err)
	}
}

// TestOverwritingStore: Check finds a store that ignores If-None-Match.
func TestOverwritingStore(t *testing.T) {
	t.Parallel()
	f, endpoint := startFake(t, func(f *fake, w http.ResponseWriter, r *http.Request, body []byte) {
		if r.Method == http.MethodPut {
			bucket, key := split(r.URL.EscapedPath())
			f.put(bucket+"/"+key, body, false)
			return
		}
		speakS3(f, w, r, body)
	})
	p := clouds[0].profile(endpoint, "lake")
	err := openFake(t, endpoint, p, Options{}).Check(t.Context())
	if err == nil || !strings.Contains(err.Error(), "If-None-Match") {
		t.Errorf("Check: %v", err)
	}
	if len(f.objects) != 0 {
		t.Errorf("Check left %v", f.objects)
	}
}

func TestAzureFolders(t *testing.T) {
	t.Parallel()
	f, endpoint := startFake(t, speakAzure)
	p := clouds[2].profile(endpoint, "lake")
	b := openFake(t, endpoint, p, Options{})
	f.objects["lake/w/t/folder"] = nil
	f.objects["lake/w/t/folder/f"] = []byte("x")
	if got := listed(t, b, p.Root+"/t"); len(got) != 1 || got[p.Root+"/t/folder/f"] != 1 {
		t.Errorf("listed %v", got)
	}
	if there, err := b.Exists(t.Context(), p.Root+"/t/folder"); there || err != nil {
		t.Errorf("a directory is an object: %t, %v", there, err)
	}
}

func TestWrongSecret(t *testing.T) {
	t.Parallel()
	_, endpoint := startFake(t, speakS3)
	p := clouds[0].profile(endpoint, "lake")
	p.S3.SecretAccessKey = secret.New("another-secret")
	b := openFake(t, endpoint, p, Options{})
	if _, err := b.Read(t.Context(), p.Root+"/f", 1); !errors.Is(err, ErrForbidden) || strings.Contains(err.Error(), "another-secret") {
		t.Errorf("a wrong secret: %v", err)
	}
	if shown := fmt.Sprintf("%v %+v %#v", p, p, p); strings.Contains(shown, "another-secret") {
		t.Errorf("the profile shows its secret: %s", shown)
	}
}

// TestObserve: one report per call, none for what was refused here.
func TestObserve(t *testing.T) {
	t.Parallel()
	var seen []string
	b, dir := openTemp(t, File{}, Options{Observe: func(op string, took time.Duration, err error) {
		if took < 0 {
			t.Errorf("%s took %v", op, took)
		}
		seen = append(seen, fmt.Sprint(op, " ", err == nil))
	}})
	location := "file://" + dir + "/f"
	ctx := t.Context()
	_ = b.WriteNew(ctx, location, []byte("x"))
	_ = b.WriteNew(ctx, location, []byte("x"))
	_, _ = b.Read(ctx, location, 1)
	_, _ = b.ReadRange(ctx, location, 0, 1)
	_, _ = b.Size(ctx, location)
	_ = b.List(ctx, location, func(string, int64) error { return nil })
	_ = b.DeleteMany(ctx, []string{location})
	_ = b.Delete(ctx, location)
	_, _ = b.Read(ctx, "file:///etc/passwd", 1)
	want := "write true,write false,read true,read true,size true,list true,delete true,delete true"
	if got := strings.Join(seen, ","); got != want {
		t.Errorf("seen %s\nwant %s", got, want)
	}
}

// serviceAccount makes the JSON key of a service account and a token service
// that takes it; refuse, if not nil, answers in its place.
func serviceAccount(t *testing.T, refuse http.HandlerFunc) secret.Value {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if refuse != nil {
			refuse(w, r)
			return
		}
		_, err := jwt.Parse(r.FormValue("assertion"), func(*jwt.Token) (any, error) { return &key.PublicKey, nil })
		w.Header().Set("Content-Type", "application/json")
		if err != nil {
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error":"invalid_grant"}`)
			return
		}
		fmt.Fprint(w, `{"access_token":"ya29.granted","token_type":"Bearer","expires_in":3600}`)
	}))
	t.Cleanup(server.Close)
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "sluice@example.iam.gserviceaccount.com", "private_key_id": "k1", "token_uri": server.URL,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return secret.New(string(text))
}

// TestServiceAccount: the key becomes a token, once for many calls, and a
// refused key is told from a token service that is down.
func TestServiceAccount(t *testing.T) {
	t.Parallel()
	f, endpoint := startFake(t, speakGCS)
	f.fault = func(r *http.Request) (int, string, bool) {
		if r.Header.Get("Authorization") != "Bearer ya29.granted" {
			return http.StatusUnauthorized, "", false
		}
		return 0, "", false
	}
	p := clouds[1].profile(endpoint, "lake")
	p.GCS.Credentials = serviceAccount(t, nil)
	if err := openFake(t, endpoint, p, Options{}).Check(t.Context()); err != nil {
		t.Error(err)
	}
	for name, c := range map[string]struct {
		status int
		want   error
		asked  int32
	}{
		"refused": {http.StatusBadRequest, ErrForbidden, 1},
		"down":    {http.StatusServiceUnavailable, ErrUnavailable, maxAttempts},
	} {
		var asked atomic.Int32
		p.GCS.Credentials = serviceAccount(t, func(w http.ResponseWriter, _ *http.Request) {
			asked.Add(1)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(c.status)
			fmt.Fprint(w, `{"error":"invalid_grant","error_description":"-----BEGIN RSA"}`)
		})
		_, err := openFake(t, endpoint, p, Options{}).Read(t.Context(), p.Root+"/f", 1)
		if !errors.Is(err, c.want) || asked.Load() != c.asked || strings.Contains(err.Error(), "BEGIN RSA") {
			t.Errorf("%s: asked %d times, %v", name, asked.Load(), err)
		}
	}
}
