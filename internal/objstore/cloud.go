// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"
	"gocloud.dev/gcp"
	"golang.org/x/oauth2/google"
	"google.golang.org/api/option"
)

// buckets is object storage through gocloud.dev/blob. A warehouse and its
// further roots may lie in several buckets of one account.
type buckets struct {
	byName map[string]*blob.Bucket
}

func openS3(roots []Location, p S3) (driver, error) {
	if p.Region == "" {
		return nil, errors.New("s3: a region is required (any, for a compatible store that has none)")
	}
	if p.AccessKeyID == "" || p.SecretAccessKey.Empty() {
		return nil, errors.New("s3: access_key_id and secret_access_key are required")
	}
	options := s3.Options{
		Region:       p.Region,
		UsePathStyle: p.PathStyle,
		Credentials:  credentials.NewStaticCredentialsProvider(p.AccessKeyID, p.SecretAccessKey.Reveal(), p.SessionToken.Reveal()),
		HTTPClient:   cloudClient(),
		// Compatible stores do not all know the newer checksums.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		RetryMaxAttempts:           4,
	}
	if p.Endpoint != "" {
		options.BaseEndpoint = aws.String(p.Endpoint)
	}
	client := s3.New(options)
	return openBuckets(roots, "s3", func(name string) (*blob.Bucket, error) {
		return s3blob.OpenBucket(context.Background(), client, name, nil)
	})
}

func openGCS(ctx context.Context, roots []Location, p GCS) (driver, error) {
	client := &gcp.HTTPClient{Client: *cloudClient()}
	if !p.Credentials.Empty() {
		creds, err := google.CredentialsFromJSONWithType(ctx, []byte(p.Credentials.Reveal()), google.ServiceAccount, "https://www.googleapis.com/auth/devstorage.read_write")
		if err != nil {
			return nil, errors.New("gcs: the credentials are not a service account's JSON key")
		}
		client, err = gcp.NewHTTPClient(cloudTransport(), gcp.CredentialsTokenSource(creds))
		if err != nil {
			return nil, fmt.Errorf("gcs: %w", err)
		}
	}
	o := &gcsblob.Options{}
	if p.Endpoint != "" {
		o.ClientOptions = append(o.ClientOptions, option.WithEndpoint(p.Endpoint))
	}
	return openBuckets(roots, "gs", func(name string) (*blob.Bucket, error) {
		return gcsblob.OpenBucket(ctx, client, name, o)
	})
}

func openBuckets(roots []Location, scheme string, open func(name string) (*blob.Bucket, error)) (driver, error) {
	b := &buckets{byName: map[string]*blob.Bucket{}}
	for _, l := range roots {
		if l.Scheme != scheme {
			return nil, errors.Join(fmt.Errorf("%s is not a %s location", l, scheme), b.close())
		}
		if b.byName[l.Authority] != nil {
			continue
		}
		opened, err := open(l.Authority)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("open bucket %s: %w", l.Authority, err), b.close())
		}
		b.byName[l.Authority] = opened
	}
	return b, nil
}

func cloudTransport() *http.Transport {
	t := http.DefaultTransport.(*http.Transport).Clone()
	t.MaxIdleConnsPerHost = 64
	t.ResponseHeaderTimeout = 20 * time.Second
	return t
}

func cloudClient() *http.Client { return &http.Client{Transport: cloudTransport()} }

func (b *buckets) close() error {
	var errs []error
	for _, bucket := range b.byName {
		errs = append(errs, bucket.Close())
	}
	return errors.Join(errs...)
}

func (b *buckets) read(ctx context.Context, l Location, limit int64) ([]byte, error) {
	// A range reader of the limit plus one byte: one request, bounded.
	r, err := b.byName[l.Authority].NewRangeReader(ctx, l.Path, 0, limit+1, nil)
	if err != nil {
		return nil, cloudError(err)
	}
	defer r.Close()
	if r.Size() > limit {
		return nil, ErrTooLarge
	}
	data := make([]byte, 0, max(r.Size(), 0)+1)
	for {
		n, err := r.Read(data[len(data):cap(data)])
		data = data[:len(data)+n]
		switch {
		case errors.Is(err, io.EOF):
			return data, nil
		case err != nil:
			return nil, cloudError(err)
		case int64(len(data)) > limit:
			return nil, ErrTooLarge
		case len(data) == cap(data):
			data = append(data, 0)[:len(data)]
		}
	}
}

func (b *buckets) writeNew(ctx context.Context, l Location, data []byte) error {
	return cloudError(b.byName[l.Authority].WriteAll(ctx, l.Path, data, &blob.WriterOptions{
		ContentType: "application/json", IfNotExist: true, DisableContentTypeDetection: true,
	}))
}

func (b *buckets) delete(ctx context.Context, l Location) error {
	err := b.byName[l.Authority].Delete(ctx, l.Path)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil
	}
	return cloudError(err)
}

func (b *buckets) list(ctx context.Context, dir Location, fn func(path string, size int64) error) error {
	it := b.byName[dir.Authority].List(&blob.ListOptions{Prefix: dir.Path + "/"})
	for {
		o, err := it.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return cloudError(err)
		}
		if err := fn(o.Key, o.Size); err != nil {
			return err
		}
	}
}

func cloudError(err error) error {
	switch gcerrors.Code(err) {
	case gcerrors.OK:
		return err
	case gcerrors.NotFound:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case gcerrors.AlreadyExists, gcerrors.FailedPrecondition:
		return fmt.Errorf("%w: %w", ErrExists, err)
	case gcerrors.PermissionDenied:
		return fmt.Errorf("%w: %w", ErrForbidden, err)
	}
	return err
}
