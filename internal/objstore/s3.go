// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

// s3Store is Amazon S3 or a compatible store.
type s3Store struct {
	requests
	client      *s3.Client
	http        *http.Client
	conditional bool
}

func openS3(roots []Location, p S3, client *http.Client, r requests) (driver, error) {
	if p.Region == "" {
		return nil, errors.New("s3: a region is required (any, for a compatible store that has none)")
	}
	if p.AccessKeyID == "" || p.SecretAccessKey.Empty() {
		return nil, errors.New("s3: an access key id and a secret access key are required")
	}
	if err := requireScheme(roots, "s3"); err != nil {
		return nil, err
	}
	// Options built here alone: no environment, shared file or instance role.
	options := s3.Options{
		Region:       p.Region,
		UsePathStyle: p.PathStyle,
		Credentials:  credentials.NewStaticCredentialsProvider(p.AccessKeyID, p.SecretAccessKey.Reveal(), p.SessionToken.Reveal()),
		HTTPClient:   client,
		// Compatible stores do not all know the newer checksums. The body is
		// covered by its signed SHA-256.
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired,
		Retryer:                    aws.NopRetryer{},
	}
	if p.Endpoint != "" {
		endpoint, err := serviceURL("s3: the endpoint", p.Endpoint)
		if err != nil {
			return nil, err
		}
		options.BaseEndpoint = aws.String(endpoint)
	}
	return &s3Store{requests: r, client: s3.New(options), http: client, conditional: !p.NoConditionalWrites}, nil
}

func requireScheme(roots []Location, scheme string) error {
	for _, l := range roots {
		if l.Scheme != scheme {
			return fmt.Errorf("%s is not a %s location", l, scheme)
		}
	}
	return nil
}

func (s *s3Store) close() error {
	s.http.CloseIdleConnections()
	return nil
}

func (s *s3Store) read(ctx context.Context, l Location, limit int64) (data []byte, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		data, err = s.get(ctx, &s3.GetObjectInput{Bucket: &l.Authority, Key: &l.Path}, limit)
		return err
	})
	return data, err
}

func (s *s3Store) readRange(ctx context.Context, l Location, offset, n int64) (data []byte, err error) {
	in := &s3.GetObjectInput{Bucket: &l.Authority, Key: &l.Path, Range: aws.String(byteRange(offset, n))}
	err = s.do(ctx, func(ctx context.Context) error {
		data, err = s.get(ctx, in, n)
		return err
	})
	return wholeRange(data, n, err)
}

func byteRange(offset, n int64) string { return fmt.Sprintf("bytes=%d-%d", offset, offset+n-1) }

// wholeRange refuses a shorter answer than was asked for, and a store that
// ignores ranges (it sent too much).
func wholeRange(data []byte, n int64, err error) ([]byte, error) {
	switch {
	case errors.Is(err, ErrTooLarge):
		return nil, errors.New("the store answered a range with the whole object")
	case err != nil:
		return nil, err
	case int64(len(data)) < n:
		return nil, unexpectedEnd(int64(len(data)), n)
	}
	return data, nil
}

func (s *s3Store) get(ctx context.Context, in *s3.GetObjectInput, limit int64) ([]byte, error) {
	out, err := s.client.GetObject(ctx, in)
	if err != nil {
		return nil, s3Error(err)
	}
	defer out.Body.Close()
	size := int64(-1)
	if out.ContentLength != nil {
		size = *out.ContentLength
	}
	return readBody("s3", out.Body, size, limit)
}

func (s *s3Store) size(ctx context.Context, l Location) (size int64, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		out, err := s.client.HeadObject(ctx, &s3.HeadObjectInput{Bucket: &l.Authority, Key: &l.Path})
		if err != nil {
			return s3Error(err)
		}
		if out.ContentLength == nil {
			return errors.New("s3: the store does not tell the object's length")
		}
		size = *out.ContentLength
		return nil
	})
	return size, err
}

func (s *s3Store) writeNew(ctx context.Context, l Location, data []byte) error {
	in := s3.PutObjectInput{Bucket: &l.Authority, Key: &l.Path, ContentType: aws.String(contentType(data))}
	if s.conditional {
		in.IfNoneMatch = aws.String("*")
	} else if _, err := s.size(ctx, l); err == nil {
		return ErrExists
	} else if !errors.Is(err, ErrNotFound) {
		return err
	}
	return s.create(ctx, data, func(ctx context.Context) error {
		in.Body = bytes.NewReader(data)
		_, err := s.client.PutObject(ctx, &in)
		return s3Error(err)
	}, func(ctx context.Context, limit int64) ([]byte, error) { return s.read(ctx, l, limit) })
}

// contentType tells a JSON document from everything else.
func contentType(data []byte) string {
	if len(data) > 0 && data[0] == '{' {
		return "application/json"
	}
	return "application/octet-stream"
}

func (s *s3Store) delete(ctx context.Context, l Location) error {
	return s.do(ctx, func(ctx context.Context) error {
		_, err := s.client.DeleteObject(ctx, &s3.DeleteObjectInput{Bucket: &l.Authority, Key: &l.Path})
		if err = s3Error(err); errors.Is(err, ErrNotFound) {
			return nil
		}
		return err
	})
}

// deleteMany takes a thousand objects of one bucket per request.
func (s *s3Store) deleteMany(ctx context.Context, list []Location) error {
	buckets := map[string][]types.ObjectIdentifier{}
	for _, l := range list {
		buckets[l.Authority] = append(buckets[l.Authority], types.ObjectIdentifier{Key: aws.String(l.Path)})
	}
	for bucket, keys := range buckets {
		for chunk := range slices.Chunk(keys, 1000) {
			if err := s.do(ctx, func(ctx context.Context) error { return s.deleteChunk(ctx, bucket, chunk) }); err != nil {
				return err
			}
		}
	}
	return nil
}

func (s *s3Store) deleteChunk(ctx context.Context, bucket string, keys []types.ObjectIdentifier) error {
	out, err := s.client.DeleteObjects(ctx, &s3.DeleteObjectsInput{
		Bucket: &bucket, Delete: &types.Delete{Objects: keys, Quiet: aws.Bool(true)},
	})
	if err != nil {
		return s3Error(err)
	}
	for _, e := range out.Errors {
		code := aws.ToString(e.Code)
		status := map[string]int{
			"NoSuchKey": http.StatusNotFound, "AccessDenied": http.StatusForbidden,
			"InternalError": http.StatusInternalServerError, "ServiceUnavailable": http.StatusServiceUnavailable,
		}[code]
		if status != http.StatusNotFound {
			return answered("s3", status, code, aws.ToString(e.Key)+": "+aws.ToString(e.Message))
		}
	}
	return nil
}

func (s *s3Store) list(ctx context.Context, dir Location, fn func(path string, size int64) error) error {
	in := s3.ListObjectsV2Input{Bucket: &dir.Authority, Prefix: aws.String(dir.Path + "/")}
	for {
		var out *s3.ListObjectsV2Output
		err := s.do(ctx, func(ctx context.Context) (err error) {
			out, err = s.client.ListObjectsV2(ctx, &in)
			return s3Error(err)
		})
		if err != nil {
			return err
		}
		for _, o := range out.Contents {
			key := aws.ToString(o.Key)
			if strings.HasSuffix(key, "/") {
				continue // a marker that some tools leave for a directory
			}
			if err := fn(key, aws.ToInt64(o.Size)); err != nil {
				return err
			}
		}
		if !aws.ToBool(out.IsTruncated) {
			return nil
		}
		if aws.ToString(out.NextContinuationToken) == "" {
			return errors.New("s3: the listing is cut off without a continuation token")
		}
		in.ContinuationToken = out.NextContinuationToken
	}
}

func s3Error(err error) error {
	if err == nil {
		return nil
	}
	var (
		response *smithyhttp.ResponseError
		send     *smithyhttp.RequestSendError
		api      smithy.APIError
	)
	switch answer := errors.As(err, &response); {
	case answer && response.HTTPStatusCode() >= 300 && errors.As(err, &api):
		return answered("s3", response.HTTPStatusCode(), api.ErrorCode(), api.ErrorMessage())
	case answer && response.HTTPStatusCode() >= 300:
		return answered("s3", response.HTTPStatusCode(), "", "")
	case answer, errors.As(err, &send), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return unanswered("s3", err)
	}
	return fmt.Errorf("s3: %w", err) // nothing was sent
}
