// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"text/template"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// inCluster is the configuration of catalogd for pods.
var inCluster = template.Must(template.New("").Parse(`
public_uri: {{.URI}}
listeners:
  catalog:
    address: "127.0.0.1:{{.Port}}"
    tls: {cert: {{.Cert}}, key: {{.Key}}}
  metrics: {address: ""}
store:
  auto_migrate: true
  sqlite: {path: {{.Dir}}/catalog.db}
audit:
  reads: {{.Dir}}/reads.jsonl
warehouses:
  - name: demo
    storage: {type: file, root: "file://{{.Dir}}/warehouse"}
issuers:
  - name: cluster
    kind: kubernetes
    issuer: https://kubernetes.default.svc.cluster.local
    audiences: [sluice]
    ca_file: {{.Dir}}/ca.pem
    claims:
      organisation: {fixed: acme}
      attributes: [{name: namespace, claim: /kubernetes.io/namespace, type: string, required: true}]
    kubernetes:
      api: {{.Issuer}}
      token_file: {{.Dir}}/api.token
      review: {{.Review}}
      ttl: 1s
    grants:
      - {subject: "system:serviceaccount:jobs:loader", warehouse: demo, access: write}
`))

// cluster is the API server of one, without nodes.
type cluster struct {
	*login
	admin *http.Client
}

// kubernetes drives catalogd with service-account tokens that a real API
// server has issued, and has it review them and check their signatures.
func kubernetes(r *run) {
	c := &cluster{login: &login{r: r}}
	var etcd, api *process
	var apiserver, database string
	if !r.step("install PyIceberg and build kube-apiserver and etcd (once, about fifteen minutes)", 60*time.Minute, func(ctx context.Context) (err error) {
		if c.python, err = install.Python(ctx, "clients", install.Clients); err == nil {
			apiserver, database, err = install.Kube(ctx, r.root)
		}
		return err
	}) || !r.step("start etcd and kube-apiserver", 3*time.Minute, func(ctx context.Context) (err error) {
		if err := c.prepare(ctx); err != nil {
			return err
		}
		etcd, api, err = c.startAPI(ctx, apiserver, database)
		return err
	}) {
		return
	}
	defer etcd.kill()
	defer api.kill()
	var stale string
	for _, review := range []bool{true, false} {
		how := map[bool]string{true: "review: ", false: "keys: "}[review]
		c.Review = review
		if !r.step(how+"start catalogd", time.Minute, func(ctx context.Context) error {
			if err := c.write(inCluster); err != nil {
				return err
			}
			return c.start(ctx)
		}) {
			return
		}
		var token string
		if r.step(how+"a projected token", time.Minute, func(ctx context.Context) (err error) {
			token, err = c.projected(ctx, "jobs", "loader", "", "sluice")
			return err
		}) {
			c.script("workload", "TOKEN="+token, fmt.Sprintf("NAMESPACE=pods_%t", review))
		}
		r.step(how+"a token for the API server, and one of an account without grants", time.Minute, func(ctx context.Context) error {
			own, err := c.projected(ctx, "jobs", "loader", "")
			if err != nil {
				return err
			}
			other, err := c.projected(ctx, "jobs", "other", "", "sluice")
			if err != nil {
				return err
			}
			return errors.Join(c.expect(ctx, own, http.StatusUnauthorized), c.expect(ctx, other, http.StatusNotFound))
		})
		if review {
			r.step(how+"a pod's token ends with the pod", time.Minute, func(ctx context.Context) (err error) {
				stale, err = c.endOfPod(ctx)
				return err
			})
		} else {
			r.step(how+"a deleted pod's token works until it expires, as documented", time.Minute, func(ctx context.Context) error {
				return c.expect(ctx, stale, http.StatusOK)
			})
		}
		r.step(how+"stop catalogd", time.Minute, func(context.Context) error { return c.cat.stop() })
	}
}

// prepare writes catalogd's configuration, and what the API server needs.
func (c *cluster) prepare(ctx context.Context) error {
	port, err := freePort()
	if err != nil {
		return err
	}
	c.Issuer = fmt.Sprintf("https://127.0.0.1:%d", port)
	if err := c.configure(ctx); err != nil {
		return err
	}
	cert, key, err := c.ca.issue("admin", &x509.Certificate{
		Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return err
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AddCert(c.ca.cert)
	c.admin = &http.Client{Timeout: 30 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12},
	}}
	signing, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	return writePEM(filepath.Join(c.Dir, "service-accounts.key"), "RSA PRIVATE KEY", x509.MarshalPKCS1PrivateKey(signing))
}

// startAPI starts etcd and the API server, and makes the accounts.
func (c *cluster) startAPI(ctx context.Context, apiserver, database string) (etcd, api *process, err error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, nil, err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	if etcd, err = start(c.Dir, c.r.logFile("etcd"), nil, nil, database, "--data-dir", filepath.Join(c.Dir, "etcd"), "--listen-client-urls", client,
		"--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", "default="+peer,
		"--unsafe-no-fsync", "--log-level", "warn"); err != nil {
		return nil, nil, err
	}
	if err := etcd.until(ctx, "etcd", func() bool { return listening(ports[0]) }); err != nil {
		etcd.kill()
		return nil, nil, err
	}
	accounts := filepath.Join(c.Dir, "service-accounts.key")
	port := c.Issuer[len("https://127.0.0.1:"):]
	api, err = start(c.Dir, c.r.logFile("kube-apiserver"), nil, nil, apiserver,
		"--etcd-servers", client, "--bind-address", "127.0.0.1", "--secure-port", port, "--tls-cert-file", c.Cert, "--tls-private-key-file", c.Key,
		"--client-ca-file", c.ca.file, "--authorization-mode", "RBAC", "--service-cluster-ip-range", "10.0.0.0/24", "--cert-dir", filepath.Join(c.Dir, "api"),
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local", "--service-account-key-file", accounts, "--service-account-signing-key-file", accounts)
	if err != nil {
		etcd.kill()
		return nil, nil, err
	}
	err = api.until(ctx, "kube-apiserver", func() bool {
		_, err := c.call(ctx, http.MethodGet, "/readyz", nil, http.StatusOK)
		return err == nil
	})
	if err == nil {
		err = c.accounts(ctx)
	}
	if err != nil {
		api.kill()
		etcd.kill()
		return nil, nil, err
	}
	return etcd, api, nil
}

type object = map[string]any

// call asks the API server as an administrator.
func (c *cluster) call(ctx context.Context, method, path string, body any, want int) (object, error) {
	return askWith(ctx, c.admin, method, c.Issuer+path, "", body, want)
}

// accounts makes the workload's service accounts and the catalog's own, which
// may review tokens.
func (c *cluster) accounts(ctx context.Context) error {
	for _, make := range []struct {
		path string
		body object
	}{
		{"/api/v1/namespaces", object{"metadata": object{"name": "jobs"}}},
		{"/api/v1/namespaces", object{"metadata": object{"name": "sluice"}}},
		{"/api/v1/namespaces/jobs/serviceaccounts", object{"metadata": object{"name": "loader"}}},
		{"/api/v1/namespaces/jobs/serviceaccounts", object{"metadata": object{"name": "other"}}},
		{"/api/v1/namespaces/sluice/serviceaccounts", object{"metadata": object{"name": "catalogd"}}},
		{"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", object{
			"metadata": object{"name": "sluice"},
			"roleRef":  object{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:auth-delegator"},
			"subjects": []object{{"kind": "ServiceAccount", "name": "catalogd", "namespace": "sluice"}},
		}},
	} {
		if _, err := c.call(ctx, http.MethodPost, make.path, make.body, http.StatusCreated); err != nil {
			return err
		}
	}
	token, err := c.projected(ctx, "sluice", "catalogd", "")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(c.Dir, "api.token"), []byte(token), 0o600)
}

// projected gets a token as a kubelet would for a pod's projected volume: of a
// pod when it is not "", and for the API server without audiences.
func (c *cluster) projected(ctx context.Context, namespace, account, pod string, audiences ...string) (string, error) {
	spec := object{"expirationSeconds": 600}
	if len(audiences) > 0 {
		spec["audiences"] = audiences
	}
	if pod != "" {
		spec["boundObjectRef"] = object{"apiVersion": "v1", "kind": "Pod", "name": pod}
	}
	answer, err := c.call(ctx, http.MethodPost, "/api/v1/namespaces/"+namespace+"/serviceaccounts/"+account+"/token",
		object{"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}, http.StatusCreated)
	if err != nil {
		return "", err
	}
	status, _ := answer["status"].(object)
	token, _ := status["token"].(string)
	if token == "" {
		return "", errors.New("the API server gave no token")
	}
	return token, nil
}

// endOfPod holds that a token is refused once its pod is gone, and returns it.
func (c *cluster) endOfPod(ctx context.Context) (string, error) {
	if _, err := c.call(ctx, http.MethodPost, "/api/v1/namespaces/jobs/pods", object{
		"metadata": object{"name": "job"},
		"spec":     object{"serviceAccountName": "loader", "containers": []object{{"name": "job", "image": "none"}}},
	}, http.StatusCreated); err != nil {
		return "", err
	}
	token, err := c.projected(ctx, "jobs", "loader", "job", "sluice")
	if err != nil {
		return "", err
	}
	if err := c.expect(ctx, token, http.StatusOK); err != nil {
		return "", err
	}
	if _, err := c.call(ctx, http.MethodDelete, "/api/v1/namespaces/jobs/pods/job?gracePeriodSeconds=0", nil, http.StatusOK); err != nil {
		return "", err
	}
	// kubernetes.ttl, and the API server's own cache of tokens, of 10 s.
	for start := time.Now(); ; time.Sleep(200 * time.Millisecond) {
		status, body, err := c.status(ctx, token)
		switch {
		case err != nil:
			return "", err
		case status == http.StatusUnauthorized:
			return token, nil
		case status != http.StatusOK || time.Since(start) > 20*time.Second:
			return "", fmt.Errorf("%s after the pod's end: status %d: %s", time.Since(start), status, body)
		}
	}
}
