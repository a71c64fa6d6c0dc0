// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-data/sluice/internal/secret"
)

// The types of storage profile.
const (
	TypeFile  = "file"
	TypeS3    = "s3"
	TypeGCS   = "gcs"
	TypeAzure = "azure"
)

// Profile says where a warehouse lies and how the server reaches it. Only the
// part of its Type is used.
type Profile struct {
	Type         string   // TypeFile, TypeS3, TypeGCS, TypeAzure
	Root         string   // location of the warehouse
	AllowedRoots []string // further locations that may be read and written
	File         File
	S3           S3
	GCS          GCS
	Azure        Azure
}

// File gives the permissions of what is made below a local root, before the
// process's umask. Engines that run as other users need more than the
// defaults, or a shared group.
type File struct {
	DirMode  fs.FileMode // 0755 when zero
	FileMode fs.FileMode // 0644 when zero
}

// S3 reaches Amazon S3 or a compatible store with static credentials.
type S3 struct {
	Endpoint        string // "" for Amazon
	Region          string
	PathStyle       bool
	AccessKeyID     string
	SecretAccessKey secret.Value
	SessionToken    secret.Value
	// NoConditionalWrites is for stores that do not know If-None-Match: a new
	// object is then looked for before it is written, which two writers of one
	// name can both pass.
	NoConditionalWrites bool
}

// GCS reaches Google Cloud Storage with a service account's key.
type GCS struct {
	Credentials secret.Value // JSON; empty means anonymous
	Endpoint    string       // "" for Google
}

// Azure reaches Azure Blob Storage with the account's key or as a service
// principal; one of the two is required.
type Azure struct {
	Account      string
	AccountKey   secret.Value // base64
	TenantID     string
	ClientID     string
	ClientSecret secret.Value
	Authority    string // token service; "" for https://login.microsoftonline.com
	Endpoint     string // blob service; "" for https://<account>.blob.<domain of the root>
}

// Options tune a [Bucket].
type Options struct {
	// HTTPClient is used for every request to a cloud store; nil gives each
	// Bucket its own. It should not follow redirects (a signed request must
	// not go elsewhere) and must not decompress; [HTTPClient] makes one.
	HTTPClient *http.Client
	// Observe is called after each operation: "read", "write", "delete",
	// "list" or "size".
	Observe func(op string, took time.Duration, err error)
	// Timeout bounds each call to the store with its repetitions (for List
	// and DeleteMany: each page); 30 s when zero.
	Timeout time.Duration
}

// HTTPClient returns a client for [Options], which the buckets of a process
// can share.
func HTTPClient() *http.Client {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConns, t.MaxIdleConnsPerHost = 256, 64
	t.ResponseHeaderTimeout = 15 * time.Second
	t.DisableCompression = true // objects come as they are stored
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// serviceURL checks an endpoint and returns it without a trailing slash.
func serviceURL(what, endpoint string) (string, error) {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", fmt.Errorf("%s must be an http or https URL", what)
	}
	if u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return "", errors.New(what + " must have no user, query or fragment")
	}
	return strings.TrimRight(endpoint, "/"), nil
}
