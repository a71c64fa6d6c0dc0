// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

//go:build emulators && linux

package objstore

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/sluice-data/sluice/internal/secret"
	"github.com/sluice-data/sluice/test/install"
)

// Stores that others wrote, in the versions that are tested against. They are
// installed into the cache of test/install, once: SeaweedFS takes minutes.
const (
	versitygwVersion = "v1.8.0"
	fakeGCSVersion   = "v1.56.1"
	azuriteVersion   = "3.35.0"
)

const (
	emulatorKeyID  = "AKIDEMULATOR"
	emulatorSecret = "emulator-secret-key-0123456789"
)

func TestSeaweedFS(t *testing.T) {
	weed, err := install.Weed(t.Context(), filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	iam, err := json.Marshal(map[string]any{"identities": []any{map[string]any{
		"name": "admin", "actions": []string{"Admin", "Read", "Write", "List", "Tagging"},
		"credentials": []any{map[string]string{"accessKey": emulatorKeyID, "secretKey": emulatorSecret}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"iam.json": iam, "security.toml": nil} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	args := []string{
		"mini", "-ip", "127.0.0.1", "-ip.bind", "127.0.0.1", "-dir", dir, "-s3.config", "iam.json",
		"-webdav=false", "-s3.port.lance=0", "-s3.port.iceberg=0",
	}
	port := 0
	for _, service := range []string{"master", "volume", "filer", "admin", "s3"} {
		port = freePort(t)
		args = append(args, fmt.Sprintf("-%s.port=%d", service, port), fmt.Sprintf("-%s.port.grpc=%d", service, freePort(t)))
	}
	runEmulator(t, dir, port, weed, args...)
	testS3(t, "http://127.0.0.1:"+strconv.Itoa(port))
}

func TestVersityGateway(t *testing.T) {
	gateway, err := install.GoTool(t.Context(), "github.com/versity/versitygw/cmd/versitygw", versitygwVersion)
	if err != nil {
		t.Fatal(err)
	}
	// Its POSIX backend wants extended attributes, which a temporary folder in
	// memory may not have.
	dir, err := os.MkdirTemp(install.Cache(), "versitygw-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	port := freePort(t)
	runEmulator(t, dir, port, gateway, "--port", "127.0.0.1:"+strconv.Itoa(port), "--access", emulatorKeyID, "--secret", emulatorSecret, "--region", "us-east-1", "posix", dir)
	testS3(t, "http://127.0.0.1:"+strconv.Itoa(port))
}

// testS3 runs the suite and asks for what only a real store answers.
func testS3(t *testing.T, endpoint string) {
	client := s3.New(s3.Options{
		Region: "us-east-1", BaseEndpoint: &endpoint, UsePathStyle: true,
		Credentials: credentials.NewStaticCredentialsProvider(emulatorKeyID, emulatorSecret, ""),
	})
	eventually(t, func(ctx context.Context) error {
		_, err := client.CreateBucket(ctx, &s3.CreateBucketInput{Bucket: aws.String("lake")})
		return err
	})
	profile := func(bucket string) Profile {
		return Profile{Type: TypeS3, Root: "s3://" + bucket + "/w", S3: S3{
			Endpoint: endpoint, Region: "us-east-1", PathStyle: true, AccessKeyID: emulatorKeyID, SecretAccessKey: secret.New(emulatorSecret),
		}}
	}
	testStore(t, openEmulator(t, profile("lake"), Options{}), "s3://lake/w")

	t.Run("no such bucket", func(t *testing.T) {
		b := openEmulator(t, profile("absent"), Options{})
		if _, err := b.Read(t.Context(), "s3://absent/w/f", 1); !errors.Is(err, ErrNoBucket) {
			t.Errorf("Read: %v", err)
		}
	})
	t.Run("wrong secret", func(t *testing.T) {
		p := profile("lake")
		p.S3.SecretAccessKey = secret.New("wrong")
		if _, err := openEmulator(t, p, Options{}).Read(t.Context(), "s3://lake/w/f", 1); !errors.Is(err, ErrForbidden) {
			t.Errorf("Read: %v", err)
		}
	})
	t.Run("more than one page", func(t *testing.T) {
		b := openEmulator(t, profile("lake"), Options{})
		manyObjects(t, b, "s3://lake/w/many", 1100)
	})
}

// manyObjects writes, lists and deletes n objects: more than one page of
// either.
func manyObjects(t *testing.T, b *Bucket, dir string, n int) {
	t.Helper()
	ctx := t.Context()
	locations := make([]string, n)
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for i := range n {
		locations[i] = fmt.Sprintf("%s/f%05d", dir, i)
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := b.WriteNew(ctx, locations[i], []byte("x")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := listed(t, b, dir); len(got) != n {
		t.Errorf("%d objects are listed, want %d", len(got), n)
	}
	if err := b.DeleteMany(ctx, locations); err != nil {
		t.Error(err)
	}
	if got := listed(t, b, dir); len(got) != 0 {
		t.Errorf("%d objects are left", len(got))
	}
}

func TestFakeGCSServer(t *testing.T) {
	server, err := install.GoTool(t.Context(), "github.com/fsouza/fake-gcs-server", fakeGCSVersion)
	if err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	endpoint := "http://127.0.0.1:" + strconv.Itoa(port)
	runEmulator(t, t.TempDir(), port, server, "-scheme", "http", "-host", "127.0.0.1", "-port", strconv.Itoa(port), "-backend", "memory", "-public-host", "127.0.0.1:"+strconv.Itoa(port))
	eventually(t, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint+"/storage/v1/b?project=p", strings.NewReader(`{"name":"lake"}`))
		if err != nil {
			return err
		}
		req.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return errors.New(resp.Status)
		}
		return nil
	})
	for name, p := range map[string]Profile{
		"anonymous":       {Type: TypeGCS, Root: "gs://lake/anonymous", GCS: GCS{Endpoint: endpoint}},
		"service account": {Type: TypeGCS, Root: "gs://lake/account", GCS: GCS{Endpoint: endpoint + "/storage/v1/", Credentials: serviceAccount(t, nil)}},
	} {
		t.Run(name, func(t *testing.T) { testStore(t, openEmulator(t, p, Options{}), p.Root) })
	}
	t.Run("more than one page", func(t *testing.T) {
		b := openEmulator(t, Profile{Type: TypeGCS, Root: "gs://lake/w", GCS: GCS{Endpoint: endpoint}}, Options{})
		manyObjects(t, b, "gs://lake/w/many", 1100)
	})
}

func TestAzurite(t *testing.T) {
	azurite := installAzurite(t)
	dir := t.TempDir()
	roots := certificate(t, dir)
	port := freePort(t)
	runEmulator(t, dir, port, "node", azurite, "--blobHost", "127.0.0.1", "--blobPort", strconv.Itoa(port), "--location", dir, "--silent", "--disableTelemetry", "--skipApiVersionCheck",
		"--oauth", "basic", "--cert", filepath.Join(dir, "cert.pem"), "--key", filepath.Join(dir, "key.pem"))

	const account = "devstoreaccount1"
	// Azurite's account has this key, which its documentation publishes.
	key := secret.New("Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==")
	endpoint := fmt.Sprintf("https://127.0.0.1:%d/%s", port, account)
	client := HTTPClient()
	client.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}

	credential, err := container.NewSharedKeyCredential(account, key.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	c, err := container.NewClientWithSharedKeyCredential(endpoint+"/lake", credential, &container.ClientOptions{ClientOptions: policy.ClientOptions{Transport: client}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, func(ctx context.Context) error { _, err := c.Create(ctx, nil); return err })

	tokens := tokenService(t)
	const authority = "lake@devstoreaccount1.dfs.core.windows.net"
	for name, p := range map[string]Profile{
		"account key": {Type: TypeAzure, Root: "abfss://" + authority + "/key", Azure: Azure{Account: account, AccountKey: key, Endpoint: endpoint}},
		"principal": {Type: TypeAzure, Root: "wasbs://lake@devstoreaccount1.blob.core.windows.net/principal", Azure: Azure{
			Account: account, TenantID: "tenant", ClientID: "client", ClientSecret: secret.New(emulatorSecret), Authority: tokens, Endpoint: endpoint,
		}},
	} {
		t.Run(name, func(t *testing.T) { testStore(t, openEmulator(t, p, Options{HTTPClient: client}), p.Root) })
	}
	open := func(change func(*Profile)) *Bucket {
		p := Profile{Type: TypeAzure, Root: "abfss://" + authority + "/w", Azure: Azure{Account: account, AccountKey: key, Endpoint: endpoint}}
		change(&p)
		return openEmulator(t, p, Options{HTTPClient: client})
	}
	t.Run("wrong key", func(t *testing.T) {
		b := open(func(p *Profile) { p.Azure.AccountKey = secret.New("d3Jvbmc=") })
		if _, err := b.Read(t.Context(), "abfss://"+authority+"/w/f", 1); !errors.Is(err, ErrForbidden) {
			t.Errorf("Read: %v", err)
		}
	})
	t.Run("wrong client secret", func(t *testing.T) {
		b := open(func(p *Profile) {
			p.Azure = Azure{Account: account, TenantID: "tenant", ClientID: "client", ClientSecret: secret.New("wrong"), Authority: tokens, Endpoint: endpoint}
		})
		if _, err := b.Read(t.Context(), "abfss://"+authority+"/w/f", 1); !errors.Is(err, ErrForbidden) {
			t.Errorf("Read: %v", err)
		}
	})
	t.Run("no such container", func(t *testing.T) {
		absent := "abfss://absent@devstoreaccount1.dfs.core.windows.net/w"
		b := open(func(p *Profile) { p.Root = absent })
		if _, err := b.Read(t.Context(), absent+"/f", 1); !errors.Is(err, ErrNoBucket) {
			t.Errorf("Read: %v", err)
		}
	})
	t.Run("more than one page", func(t *testing.T) {
		b := open(func(*Profile) {})
		b.driver.(*azureStore).pageSize = to.Ptr[int32](100) // Azurite writes slowly
		manyObjects(t, b, "abfss://"+authority+"/w/many", 250)
	})
}

// tokenService answers client credentials as Entra ID does, with a token that
// is not signed: Azurite looks at its claims only.
func tokenService(t *testing.T) string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := r.ParseForm(); err != nil || r.URL.Path != "/tenant/oauth2/v2.0/token" || r.Form.Get("scope") != azureScope || r.Form.Get("client_secret") != emulatorSecret {
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprint(w, `{"error":"invalid_client"}`)
			return
		}
		now := time.Now().Unix()
		claims, err := json.Marshal(map[string]any{
			"aud": "https://storage.azure.com", "iss": "https://sts.windows.net/tenant/", "iat": now, "nbf": now - 60, "exp": now + 3600, "ver": "1.0",
		})
		if err != nil {
			t.Error(err)
		}
		part := base64.RawURLEncoding.EncodeToString
		fmt.Fprintf(w, `{"token_type":"Bearer","expires_in":3600,"access_token":"%s.%s.%s"}`, part([]byte(`{"alg":"RS256","typ":"JWT"}`)), part(claims), part([]byte("signature")))
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// certificate writes a self-signed certificate for 127.0.0.1 and returns the
// pool that trusts it.
func certificate(t *testing.T, dir string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certPEM := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	for name, content := range map[string][]byte{"cert.pem": certPEM, "key.pem": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: keyDER})} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certPEM)
	return roots
}

// installAzurite puts Azurite into the cache and returns its main script.
func installAzurite(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(install.Cache(), "azurite-"+azuriteVersion)
	script := filepath.Join(dir, "node_modules", "azurite", "dist", "src", "blob", "main.js")
	if _, err := os.Stat(script); err == nil {
		return script
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "install", "--prefix", dir, "--no-audit", "--no-fund", "--omit=dev", "azurite@"+azuriteVersion)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("npm install azurite: %v\n%s", err, out)
	}
	return script
}

func openEmulator(t *testing.T, p Profile, o Options) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), p, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// runEmulator starts a server in dir, waits for its port and ends it with the
// test; what it printed shows when the test failed.
func runEmulator(t *testing.T, dir string, port int, name string, args ...string) {
	t.Helper()
	var out bytes.Buffer
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &out
	// A test that runs into its time limit ends without cleaning up.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		<-ended
		if t.Failed() {
			t.Logf("%s printed:\n%.4000s", filepath.Base(name), out.String())
		}
	})
	eventually(t, func(ctx context.Context) error {
		select {
		case err := <-ended:
			ended <- err
			return fmt.Errorf("%s ended: %w", name, err)
		default:
		}
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", "127.0.0.1:"+strconv.Itoa(port))
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// eventually repeats f for a minute until it succeeds.
func eventually(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for {
		err := f(ctx)
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}
