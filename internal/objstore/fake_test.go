// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package objstore

import (
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

// fake is a small object store that speaks the parts of three protocols that
// the drivers use, with listings of three objects a page. S3's signatures are
// checked. Real stores are met in emulators_test.go; this one can fail on
// demand.
type fake struct {
	dialect func(f *fake, w http.ResponseWriter, r *http.Request, body []byte)
	// fault is asked before each request; lost drops the connection after
	// the request has had its effect, a status answers in its place.
	fault func(r *http.Request) (status int, code string, lost bool)

	mu       sync.Mutex
	objects  map[string][]byte // bucket/key
	requests []string          // method and path
}

const (
	fakeKeyID  = "AKIDFAKE"
	fakeSecret = "fake-secret-that-must-not-show"
)

func startFake(t testing.TB, dialect func(*fake, http.ResponseWriter, *http.Request, []byte)) (*fake, string) {
	t.Helper()
	f := &fake{dialect: dialect, objects: map[string][]byte{}}
	server := httptest.NewServer(f)
	t.Cleanup(server.Close)
	return f, server.URL
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client went away
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, r.Method+" "+r.URL.EscapedPath())
	if f.fault != nil {
		status, code, lost := f.fault(r)
		switch {
		case lost:
			f.dialect(f, httptest.NewRecorder(), r, body)
			panic(http.ErrAbortHandler)
		case status != 0:
			refuse(w, status, code)
			return
		}
	}
	f.dialect(f, w, r, body)
}

// refuse answers an error as all three stores do at once.
func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("x-ms-error-code", code)
	w.WriteHeader(status)
	fmt.Fprintf(w, `<Error><Code>%s</Code><Message>m</Message></Error>`, code)
}

// split takes bucket and key from an escaped path.
func split(escaped string) (bucket, key string) {
	bucket, key, _ = strings.Cut(strings.TrimPrefix(escaped, "/"), "/")
	bucket, _ = url.PathUnescape(bucket)
	key, err := url.PathUnescape(key)
	if err != nil {
		panic(err)
	}
	return bucket, key
}

// put stores an object unless it must be new and is not.
func (f *fake) put(name string, data []byte, mustBeNew bool) bool {
	if _, there := f.objects[name]; there && mustBeNew {
		return false
	}
	f.objects[name] = bytes.Clone(data)
	return true
}

// serve answers a GET or HEAD.
func (f *fake) serve(w http.ResponseWriter, r *http.Request, name, byteRange, absent string) {
	data, ok := f.objects[name]
	if !ok {
		refuse(w, http.StatusNotFound, absent)
		return
	}
	status := http.StatusOK
	if byteRange != "" {
		var from, to int
		if n, err := fmt.Sscanf(byteRange, "bytes=%d-%d", &from, &to); n != 2 || err != nil {
			panic("range " + byteRange)
		}
		if from >= len(data) {
			refuse(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, min(to, len(data)-1), len(data)))
		data, status = data[from:min(to+1, len(data))], http.StatusPartialContent
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)))
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		_, _ = w.Write(data) // the client may have seen enough
	}
}

// page lists at most three names under bucket/prefix after a token.
func (f *fake) page(bucket, prefix, token string) (keys []string, next string) {
	for name := range f.objects {
		if key, ok := strings.CutPrefix(name, bucket+"/"); ok && strings.HasPrefix(key, prefix) && key > token {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if len(keys) > 3 {
		keys, next = keys[:3], keys[2]
	}
	return keys, next
}

func speakS3(f *fake, w http.ResponseWriter, r *http.Request, body []byte) {
	if why := wrongSignature(r, body); why != "" {
		refuse(w, http.StatusForbidden, why)
		return
	}
	bucket, key := split(r.URL.EscapedPath())
	query := r.URL.Query()
	if bucket == "no-such-bucket" {
		refuse(w, http.StatusNotFound, "NoSuchBucket")
		return
	}
	switch {
	case r.Method == http.MethodPut:
		if !f.put(bucket+"/"+key, body, r.Header.Get("If-None-Match") == "*") {
			refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
		}
	case r.Method == http.MethodDelete:
		delete(f.objects, bucket+"/"+key)
		w.WriteHeader(http.StatusNoContent)
	case r.Method == http.MethodPost && query.Has("delete"):
		var list struct {
			Object []struct{ Key string }
		}
		if err := xml.Unmarshal(body, &list); err != nil || len(list.Object) > 1000 || r.Header.Get("x-amz-checksum-crc32") == "" && r.Header.Get("Content-MD5") == "" {
			refuse(w, http.StatusBadRequest, "MalformedXML")
			return
		}
		fmt.Fprint(w, "<DeleteResult>")
		for _, o := range list.Object {
			if strings.HasSuffix(o.Key, "locked") {
				fmt.Fprintf(w, "<Error><Key>%s</Key><Code>AccessDenied</Code></Error>", o.Key)
				continue
			}
			delete(f.objects, bucket+"/"+o.Key)
		}
		fmt.Fprint(w, "</DeleteResult>")
	case query.Get("list-type") == "2":
		keys, next := f.page(bucket, query.Get("prefix"), query.Get("continuation-token"))
		fmt.Fprintf(w, "<ListBucketResult><IsTruncated>%t</IsTruncated><NextContinuationToken>", next != "")
		_ = xml.EscapeText(w, []byte(next))
		fmt.Fprint(w, "</NextContinuationToken>")
		for _, k := range keys {
			fmt.Fprint(w, "<Contents><Key>")
			_ = xml.EscapeText(w, []byte(k))
			fmt.Fprintf(w, "</Key><Size>%d</Size></Contents>", len(f.objects[bucket+"/"+k]))
		}
		fmt.Fprint(w, "</ListBucketResult>")
	default:
		f.serve(w, r, bucket+"/"+key, r.Header.Get("Range"), "NoSuchKey")
	}
}

// wrongSignature signs the request again with the known secret and compares.
func wrongSignature(r *http.Request, body []byte) string {
	sum := sha256.Sum256(body)
	if r.Header.Get("X-Amz-Content-Sha256") != hex.EncodeToString(sum[:]) {
		return "XAmzContentSHA256Mismatch"
	}
	_, after, _ := strings.Cut(r.Header.Get("Authorization"), "SignedHeaders=")
	signed, _, _ := strings.Cut(after, ",")
	again, err := http.NewRequest(r.Method, "http://"+r.Host+r.RequestURI, bytes.NewReader(body))
	if err != nil {
		return err.Error()
	}
	for name := range strings.SplitSeq(signed, ";") {
		if name != "host" && name != "content-length" {
			again.Header[http.CanonicalHeaderKey(name)] = r.Header.Values(name)
		}
	}
	when, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return "MissingDate"
	}
	err = v4.NewSigner().SignHTTP(context.Background(), aws.Credentials{AccessKeyID: fakeKeyID, SecretAccessKey: fakeSecret}, again, hex.EncodeToString(sum[:]), "s3", "fake-region-1", when,
		func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err != nil || again.Header.Get("Authorization") != r.Header.Get("Authorization") {
		return "SignatureDoesNotMatch"
	}
	return ""
}

func speakGCS(f *fake, w http.ResponseWriter, r *http.Request, body []byte) {
	path, query := r.URL.EscapedPath(), r.URL.Query()
	refuseJSON := func(status int, message string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, `{"error":{"code":%d,"message":%q,"errors":[{"reason":"why"}]}}`, status, message)
	}
	if strings.Contains(path, "/b/no-such-bucket/") {
		refuseJSON(http.StatusNotFound, "The specified bucket does not exist.")
		return
	}
	if rest, ok := strings.CutPrefix(path, "/upload/storage/v1/b/"); ok {
		bucket, _, _ := strings.Cut(rest, "/")
		_, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
		if err != nil {
			panic(err)
		}
		parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
		var about struct{ Name, CRC32C string }
		part, err := parts.NextPart()
		if err == nil {
			err = json.NewDecoder(part).Decode(&about)
		}
		if err != nil {
			panic(err)
		}
		if part, err = parts.NextPart(); err != nil {
			panic(err)
		}
		data, err := io.ReadAll(part)
		switch {
		case err != nil:
			panic(err)
		case about.CRC32C != gcsChecksum(data):
			refuseJSON(http.StatusBadRequest, "checksum")
		case !f.put(bucket+"/"+about.Name, data, query.Get("ifGenerationMatch") == "0"):
			refuseJSON(http.StatusPreconditionFailed, "conditionNotMet")
		default:
			fmt.Fprint(w, `{}`)
		}
		return
	}
	bucket, rest, _ := strings.Cut(strings.TrimPrefix(path, "/storage/v1/b/"), "/o")
	if rest == "" {
		keys, next := f.page(bucket, query.Get("prefix"), query.Get("pageToken"))
		answer := map[string]any{"nextPageToken": next}
		var items []gcsObject
		for _, k := range keys {
			items = append(items, gcsObject{k, strconv.Itoa(len(f.objects[bucket+"/"+k]))})
		}
		answer["items"] = items
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	key, err := url.PathUnescape(rest[1:])
	if err != nil {
		panic(err)
	}
	name := bucket + "/" + key
	data, there := f.objects[name]
	switch {
	case !there:
		refuseJSON(http.StatusNotFound, "No such object: "+name)
	case r.Method == http.MethodDelete:
		delete(f.objects, name)
		w.WriteHeader(http.StatusNoContent)
	case query.Get("alt") == "media":
		w.Header().Add("X-Goog-Hash", "crc32c="+gcsChecksum(data)+",md5=x")
		f.serve(w, r, name, r.Header.Get("Range"), "")
	default:
		fmt.Fprintf(w, `{"size":"%d"}`, len(data))
	}
}

func speakAzure(f *fake, w http.ResponseWriter, r *http.Request, body []byte) {
	if !strings.HasPrefix(r.Header.Get("Authorization"), "SharedKey acct:") {
		refuse(w, http.StatusForbidden, "AuthenticationFailed")
		return
	}
	bucket, key := split(strings.TrimPrefix(r.URL.EscapedPath(), "/acct"))
	query := r.URL.Query()
	if bucket == "no-such-bucket" {
		refuse(w, http.StatusNotFound, "ContainerNotFound")
		return
	}
	name := bucket + "/" + key
	switch {
	case query.Get("comp") == "list":
		keys, next := f.page(bucket, query.Get("prefix"), query.Get("marker"))
		fmt.Fprint(w, `<EnumerationResults><Blobs>`)
		for _, k := range keys {
			fmt.Fprint(w, "<Blob><Name>")
			_ = xml.EscapeText(w, []byte(k))
			fmt.Fprintf(w, "</Name><Properties><Content-Length>%d</Content-Length></Properties>", len(f.objects[bucket+"/"+k]))
			if strings.HasSuffix(k, "/folder") {
				fmt.Fprint(w, "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>")
			}
			fmt.Fprint(w, "</Blob>")
		}
		fmt.Fprint(w, "</Blobs><NextMarker>")
		_ = xml.EscapeText(w, []byte(next))
		fmt.Fprint(w, "</NextMarker></EnumerationResults>")
	case r.Method == http.MethodPut:
		sum := md5.Sum(body)
		switch {
		case r.Header.Get("Content-MD5") != base64.StdEncoding.EncodeToString(sum[:]):
			refuse(w, http.StatusBadRequest, "Md5Mismatch")
		case !f.put(name, body, r.Header.Get("If-None-Match") == "*"):
			refuse(w, http.StatusConflict, "BlobAlreadyExists")
		default:
			w.WriteHeader(http.StatusCreated)
		}
	case r.Method == http.MethodDelete:
		if _, there := f.objects[name]; !there {
			refuse(w, http.StatusNotFound, "BlobNotFound")
			return
		}
		delete(f.objects, name)
		w.WriteHeader(http.StatusAccepted)
	default:
		if strings.HasSuffix(key, "/folder") {
			w.Header().Set("x-ms-meta-hdi_isfolder", "true")
		}
		f.serve(w, r, name, r.Header.Get("x-ms-range"), "BlobNotFound")
	}
}
