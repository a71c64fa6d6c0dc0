// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

// gcsStore is Google Cloud Storage through its JSON API, of which a warehouse
// needs five requests. The official client looks for the process's ambient
// identity and environment even when it is given credentials, and brings gRPC
// with it.
type gcsStore struct {
	requests
	http   *http.Client
	base   string // without trailing slash
	tokens oauth2.TokenSource
}

const (
	gcsEndpoint = "https://storage.googleapis.com"
	gcsScope    = "https://www.googleapis.com/auth/devstorage.read_write"
)

func openGCS(roots []Location, p GCS, client *http.Client, r requests) (driver, error) {
	if err := requireScheme(roots, "gs"); err != nil {
		return nil, err
	}
	s := &gcsStore{requests: r, http: client, base: gcsEndpoint}
	if p.Endpoint != "" {
		base, err := serviceURL("gcs: the endpoint", p.Endpoint)
		if err != nil {
			return nil, err
		}
		s.base = strings.TrimSuffix(base, "/storage/v1") // as Google's libraries spell it
	}
	if !p.Credentials.Empty() {
		key, err := google.JWTConfigFromJSON([]byte(p.Credentials.Reveal()), gcsScope)
		if err != nil {
			return nil, errors.New("gcs: the credentials are not a service account's JSON key")
		}
		if _, err := serviceURL("gcs: token_uri of the credentials", key.TokenURL); err != nil {
			return nil, err
		}
		s.tokens = oauth2.ReuseTokenSource(nil, key.TokenSource(tokenContext(client)))
	}
	return s, nil
}

// tokenContext makes oauth2 use our client, with a limit of its own: token
// sources know no caller's context.
func tokenContext(client *http.Client) context.Context {
	c := *client
	c.Timeout = 15 * time.Second
	return context.WithValue(context.Background(), oauth2.HTTPClient, &c)
}

func (s *gcsStore) close() error {
	s.http.CloseIdleConnections()
	return nil
}

func (s *gcsStore) object(l Location) string {
	return s.base + "/storage/v1/b/" + url.PathEscape(l.Authority) + "/o/" + url.PathEscape(l.Path)
}

// send makes one request and returns the answer, or the error that a status
// other than 2xx stands for.
func (s *gcsStore) send(ctx context.Context, method, target string, header http.Header, body []byte) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("gcs: %w", err)
	}
	for name, values := range header {
		req.Header[name] = values
	}
	// Compressed objects come as they are stored, not inflated on the way.
	req.Header.Set("Accept-Encoding", "gzip")
	if s.tokens != nil {
		token, err := s.tokens.Token()
		if err != nil {
			return nil, tokenError("gcs", err)
		}
		token.SetAuthHeader(req)
	}
	resp, err := s.http.Do(req)
	if err != nil {
		return nil, unanswered("gcs", err)
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 16<<10)) // the status is enough
	var answer struct {
		Error struct {
			Message string
			Errors  []struct{ Reason string }
		}
	}
	message, code := "", ""
	if json.Unmarshal(text, &answer) == nil {
		message = answer.Error.Message
		if len(answer.Error.Errors) > 0 {
			code = answer.Error.Errors[0].Reason
		}
	} else {
		message = string(text)
	}
	if resp.StatusCode == http.StatusNotFound && strings.Contains(message, "bucket does not exist") {
		code = "NoSuchBucket"
	}
	return nil, answered("gcs", resp.StatusCode, code, message)
}

// tokenError tells a refused key from a token service that does not answer.
func tokenError(store string, err error) error {
	var refused *oauth2.RetrieveError
	if errors.As(err, &refused) && refused.Response != nil && refused.Response.StatusCode < 500 && refused.Response.StatusCode != http.StatusTooManyRequests {
		return &storeError{store: store + " token", status: refused.Response.StatusCode, code: refused.ErrorCode, kind: ErrForbidden}
	}
	if errors.As(err, &refused) && refused.Response != nil {
		return answered(store+" token", refused.Response.StatusCode, refused.ErrorCode, "")
	}
	return unanswered(store+" token", err)
}

func (s *gcsStore) read(ctx context.Context, l Location, limit int64) (data []byte, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		var sum string
		if data, sum, err = s.get(ctx, l, nil, limit); err != nil {
			return err
		}
		if sum != "" && sum != gcsChecksum(data) {
			return unanswered("gcs", errors.New("the object's checksum does not fit its bytes"))
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return data, nil
}

func (s *gcsStore) readRange(ctx context.Context, l Location, offset, n int64) (data []byte, err error) {
	err = s.do(ctx, func(ctx context.Context) error {
		data, _, err = s.get(ctx, l, http.Header{"Range": {byteRange(offset, n)}}, n)
		return err
	})
	return wholeRange(data, n, err)
}

// get returns bytes and the CRC-32C of the whole object, in base64, if told.
func (s *gcsStore) get(ctx context.Context, l Location, header http.Header, limit int64) ([]byte, string, error) {
	resp, err := s.send(ctx, http.MethodGet, s.object(l)+"?alt=media", header, nil)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	data, err := readBody("gcs", resp.Body, resp.ContentLength, limit)
	if err != nil {
		return nil, "", err
	}
	for _, hashes := range resp.Header.Values("X-Goog-Hash") {
		for hash := range strings.SplitSeq(hashes, ",") {
			if sum, ok := strings.CutPrefix(strings.TrimSpace(hash), "crc32c="); ok {
				return data, sum, nil
			}
		}
	}
	return data, "", nil
}

func gcsChecksum(data []byte) string {
	sum := crc32.Checksum(data, crc32.MakeTable(crc32.Castagnoli))
	return base64.StdEncoding.EncodeToString(binary.BigEndian.AppendUint32(nil, sum))
}

// ask makes a request whose answer is a small JSON document.
func (s *gcsStore) ask(ctx context.Context, target string, into any) error {
	return s.do(ctx, func(ctx context.Context) error {
		resp, err := s.send(ctx, http.MethodGet, target, nil, nil)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		text, err := readBody("gcs", resp.Body, resp.ContentLength, 64<<20)
		if err != nil {
			return err
		}
		if resp.Header.Get("Content-Encoding") == "gzip" {
			if text, err = Gunzip(text, 64<<20); err != nil {
				return err
			}
		}
		if err := json.Unmarshal(text, into); err != nil {
			return fmt.Errorf("gcs: answer: %w", err)
		}
		return nil
	})
}

type gcsObject struct {
	Name string `json:"name"`
	Size string `json:"size"`
}

func (o gcsObject) bytes() (int64, error) {
	n, err := strconv.ParseInt(o.Size, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("gcs: an object's size: %w", err)
	}
	return n, nil
}

func (s *gcsStore) size(ctx context.Context, l Location) (int64, error) {
	var o gcsObject
	if err := s.ask(ctx, s.object(l)+"?fields=size", &o); err != nil {
		return 0, err
	}
	return o.bytes()
}

func (s *gcsStore) writeNew(ctx context.Context, l Location, data []byte) error {
	contentTypeOfBody, body, err := gcsUpload(l.Path, data)
	if err != nil {
		return err
	}
	// Generation 0 is no object at all.
	target := s.base + "/upload/storage/v1/b/" + url.PathEscape(l.Authority) + "/o?uploadType=multipart&ifGenerationMatch=0"
	header := http.Header{"Content-Type": {contentTypeOfBody}}
	return s.create(ctx, data, func(ctx context.Context) error {
		resp, err := s.send(ctx, http.MethodPost, target, header, body)
		if err != nil {
			return err
		}
		return drain(resp)
	}, func(ctx context.Context, limit int64) ([]byte, error) { return s.read(ctx, l, limit) })
}

// gcsUpload puts an object's name and checksum, which the store compares, in
// front of its bytes.
func gcsUpload(name string, data []byte) (contentTypeOfBody string, body []byte, err error) {
	about, err := json.Marshal(map[string]string{"name": name, "crc32c": gcsChecksum(data), "contentType": contentType(data)})
	if err != nil {
		return "", nil, err
	}
	buf := bytes.NewBuffer(make([]byte, 0, len(data)+len(about)+1024))
	w := multipart.NewWriter(buf)
	for _, p := range []struct {
		contentType string
		content     []byte
	}{{"application/json; charset=UTF-8", about}, {contentType(data), data}} {
		part, err := w.CreatePart(textproto.MIMEHeader{"Content-Type": {p.contentType}})
		if err == nil {
			_, err = part.Write(p.content)
		}
		if err != nil {
			return "", nil, err
		}
	}
	if err := w.Close(); err != nil {
		return "", nil, err
	}
	return "multipart/related; boundary=" + w.Boundary(), buf.Bytes(), nil
}

// drain reads the rest of an answer, so that its connection can be used again.
func drain(resp *http.Response) error {
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10)) // the answer has been given
	return resp.Body.Close()
}

func (s *gcsStore) delete(ctx context.Context, l Location) error {
	return s.do(ctx, func(ctx context.Context) error {
		resp, err := s.send(ctx, http.MethodDelete, s.object(l), nil, nil)
		switch {
		case errors.Is(err, ErrNotFound):
			return nil
		case err != nil:
			return err
		}
		return drain(resp)
	})
}

func (s *gcsStore) deleteMany(ctx context.Context, list []Location) error {
	return each(ctx, list, s.delete)
}

func (s *gcsStore) list(ctx context.Context, dir Location, fn func(path string, size int64) error) error {
	query := url.Values{"prefix": {dir.Path + "/"}, "fields": {"items(name,size),nextPageToken"}}
	for {
		var page struct {
			Items         []gcsObject `json:"items"`
			NextPageToken string      `json:"nextPageToken"`
		}
		if err := s.ask(ctx, s.base+"/storage/v1/b/"+url.PathEscape(dir.Authority)+"/o?"+query.Encode(), &page); err != nil {
			return err
		}
		for _, o := range page.Items {
			if strings.HasSuffix(o.Name, "/") {
				continue // a marker that some tools leave for a directory
			}
			size, err := o.bytes()
			if err != nil {
				return err
			}
			if err := fn(o.Name, size); err != nil {
				return err
			}
		}
		if page.NextPageToken == "" {
			return nil
		}
		query.Set("pageToken", page.NextPageToken)
	}
}
