// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"context"
	"crypto/md5"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/streaming"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/to"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blockblob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"
)

// azureStore is Azure Blob Storage, with or without a hierarchical namespace,
// through its blob endpoint.
type azureStore struct {
	requests
	http       *http.Client
	containers map[string]*container.Client // by Location.Authority
	pageSize   *int32                       // of listings; nil for the store's own
}

const (
	azureAuthority = "https://login.microsoftonline.com"
	azureScope     = "https://storage.azure.com/.default"
)

func openAzure(roots []Location, p Azure, client *http.Client, r requests) (driver, error) {
	if err := requireScheme(roots, "abfss"); err != nil {
		return nil, err
	}
	if p.Account == "" {
		return nil, errors.New("azure: an account is required")
	}
	if p.AccountKey.Empty() == (p.ClientID == "") {
		return nil, errors.New("azure: give either the account's key or a client id with tenant and secret")
	}
	s := &azureStore{requests: r, http: client, containers: map[string]*container.Client{}}
	for _, l := range roots {
		if s.containers[l.Authority] != nil {
			continue
		}
		c, err := openContainer(l, p, client)
		if err != nil {
			return nil, err
		}
		s.containers[l.Authority] = c
	}
	return s, nil
}

func openContainer(l Location, p Azure, client *http.Client) (*container.Client, error) {
	name, host, _ := strings.Cut(l.Authority, "@")
	account, domain, _ := strings.Cut(host, ".dfs.")
	if !strings.EqualFold(account, p.Account) || domain == "" {
		return nil, fmt.Errorf("azure: %s does not lie in the account %s (its host must be %s.dfs.<domain>)", l, p.Account, strings.ToLower(p.Account))
	}
	service := "https://" + account + ".blob." + domain
	if p.Endpoint != "" {
		var err error
		if service, err = serviceURL("azure: the endpoint", p.Endpoint); err != nil {
			return nil, err
		}
	}
	o := &container.ClientOptions{ClientOptions: policy.ClientOptions{
		Transport:       client,
		Retry:           policy.RetryOptions{MaxRetries: -1}, // requests.do repeats
		Telemetry:       policy.TelemetryOptions{Disabled: true},
		PerCallPolicies: []policy.Policy{storedEncoding{}},
	}}
	if !p.AccountKey.Empty() {
		key, err := container.NewSharedKeyCredential(p.Account, p.AccountKey.Reveal())
		if err != nil {
			return nil, errors.New("azure: the account's key is not base64")
		}
		return container.NewClientWithSharedKeyCredential(service+"/"+name, key, o)
	}
	credential, err := azurePrincipal(p, client)
	if err != nil {
		return nil, err
	}
	return container.NewClient(service+"/"+name, credential, o)
}

// storedEncoding asks for objects as they are stored, compressed or not.
type storedEncoding struct{}

func (storedEncoding) Do(req *policy.Request) (*http.Response, error) {
	req.Raw().Header.Set("Accept-Encoding", "identity")
	return req.Next()
}

// principal is a service principal with a secret.
type principal struct{ tokens oauth2.TokenSource }

func azurePrincipal(p Azure, client *http.Client) (azcore.TokenCredential, error) {
	if p.TenantID == "" || p.ClientSecret.Empty() {
		return nil, errors.New("azure: a client id needs a tenant id and a client secret")
	}
	if strings.ContainsAny(p.TenantID, "/?#%") {
		return nil, errors.New("azure: the tenant id is invalid")
	}
	authority := azureAuthority
	if p.Authority != "" {
		var err error
		if authority, err = serviceURL("azure: the authority", p.Authority); err != nil {
			return nil, err
		}
	}
	c := clientcredentials.Config{
		ClientID: p.ClientID, ClientSecret: p.ClientSecret.Reveal(),
		TokenURL:  authority + "/" + p.TenantID + "/oauth2/v2.0/token",
		Scopes:    []string{azureScope},
		AuthStyle: oauth2.AuthStyleInParams,
	}
	return principal{c.TokenSource(tokenContext(client))}, nil
}

// GetToken implements azcore.TokenCredential.
func (p principal) GetToken(context.Context, policy.TokenRequestOptions) (azcore.AccessToken, error) {
	t, err := p.tokens.Token()
	if err != nil {
		return azcore.AccessToken{}, tokenError("azure", err)
	}
	return azcore.AccessToken{Token: t.AccessToken, ExpiresOn: t.Expiry}, nil
}

func (s *azureStore) close() error {
	s.http.CloseIdleConnections()
	return nil
}

func (s *azureStore) blob(l Location) *blockblob.Client {
	return s.containers[l.Authority].NewBlockBlobClient(l.Path)
}

func (s *azureStore) read(ctx context.Context, l Location, limit int64) (data []byte, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		data, err = s.get(ctx, l, blob.HTTPRange{}, limit)
		return err
	})
	return data, err
}

func (s *azureStore) readRange(ctx context.Context, l Location, offset, n int64) (data []byte, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		data, err = s.get(ctx, l, blob.HTTPRange{Offset: offset, Count: n}, n)
		return err
	})
	return wholeRange(data, n, err)
}

func (s *azureStore) get(ctx context.Context, l Location, r blob.HTTPRange, limit int64) ([]byte, error) {
	out, err := s.blob(l).DownloadStream(ctx, &blob.DownloadStreamOptions{Range: r})
	if err != nil {
		return nil, azureError(err)
	}
	defer out.Body.Close()
	size := int64(-1)
	if out.ContentLength != nil {
		size = *out.ContentLength
	}
	return readBody("azure", out.Body, size, limit)
}

func (s *azureStore) size(ctx context.Context, l Location) (size int64, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		out, err := s.blob(l).GetProperties(ctx, nil)
		switch {
		case err != nil:
			return azureError(err)
		case isFolder(out.Metadata):
			return fmt.Errorf("%w: it is a directory", ErrNotFound)
		case out.ContentLength == nil:
			return errors.New("azure: the store does not tell the object's length")
		}
		size = *out.ContentLength
		return nil
	})
	return size, err
}

// isFolder reports whether a blob stands for a directory of a hierarchical
// namespace.
func isFolder(metadata map[string]*string) bool {
	for name, value := range metadata {
		if strings.EqualFold(name, "hdi_isfolder") && value != nil && *value == "true" {
			return true
		}
	}
	return false
}

func (s *azureStore) writeNew(ctx context.Context, l Location, data []byte) error {
	sum := md5.Sum(data) // compared by the store
	o := &blockblob.UploadOptions{
		HTTPHeaders:             &blob.HTTPHeaders{BlobContentType: to.Ptr(contentType(data))},
		AccessConditions:        &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfNoneMatch: to.Ptr(azcore.ETagAny)}},
		TransactionalValidation: blob.TransferValidationTypeMD5(sum[:]),
	}
	return s.create(ctx, data, func(ctx context.Context) error {
		_, err := s.blob(l).Upload(ctx, streaming.NopCloser(bytes.NewReader(data)), o)
		return azureError(err)
	}, func(ctx context.Context, limit int64) ([]byte, error) { return s.read(ctx, l, limit) })
}

func (s *azureStore) delete(ctx context.Context, l Location) error {
	return s.do(ctx, func(ctx context.Context) error {
		_, err := s.blob(l).Delete(ctx, &blob.DeleteOptions{DeleteSnapshots: to.Ptr(blob.DeleteSnapshotsOptionTypeInclude)})
		if err = azureError(err); errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
}

func (s *azureStore) deleteMany(ctx context.Context, list []Location) error {
	return each(ctx, list, s.delete)
}

func (s *azureStore) list(ctx context.Context, dir Location, fn func(path string, size int64) error) error {
	o := container.ListBlobsFlatOptions{Prefix: to.Ptr(dir.Path + "/"), Include: container.ListBlobsInclude{Metadata: true}, MaxResults: s.pageSize}
	for {
		var page container.ListBlobsFlatResponse
		err := s.do(ctx, func(ctx context.Context) (err error) {
			page, err = s.containers[dir.Authority].NewListBlobsFlatPager(&o).NextPage(ctx)
			return azureError(err)
		})
		if err != nil {
			return err
		}
		for _, item := range page.Segment.BlobItems {
			if isFolder(item.Metadata) {
				continue
			}
			if item.Name == nil || item.Properties == nil || item.Properties.ContentLength == nil {
				return errors.New("azure: a listed blob has no name or length")
			}
			if err := fn(*item.Name, *item.Properties.ContentLength); err != nil {
				return err
			}
		}
		if page.NextMarker == nil || *page.NextMarker == "" {
			return nil
		}
		o.Marker = page.NextMarker
	}
}

func azureError(err error) error {
	if err == nil {
		return nil
	}
	var (
		own      *storeError
		response *azcore.ResponseError
		send     *url.Error
	)
	switch {
	case errors.As(err, &own): // from GetToken
		return own
	case errors.As(err, &response):
		return answered("azure", response.StatusCode, response.ErrorCode, "")
	case errors.As(err, &send), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return unanswered("azure", err)
	}
	return fmt.Errorf("azure: %w", err) // nothing was sent, or the answer makes no sense
}
