// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

// Package webhook sends lines of the audit log as CloudEvents 1.0, in the HTTP
// protocol binding's batched mode (application/cloudevents-batch+json).
//
// Invariants: a batch is delivered when the receiver has answered 2xx, and not
// otherwise; the same event may come twice and then has the same id; redirects
// are not followed, so that nothing goes to where the configuration does not
// say; the signature covers the time and every byte of the body.
package webhook

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/secret"
)

// SignatureHeader holds "t=<Unix seconds>,v1=<hex>": the HMAC-SHA-256, under
// the shared secret, of the seconds, a dot and the body.
const SignatureHeader = "Sluice-Signature"

// Sender sends to one receiver. It is safe for concurrent use.
type Sender struct {
	url    string
	secret secret.Value
	client *http.Client
	now    func() time.Time
}

// sendTimeout bounds one delivery.
const sendTimeout = 30 * time.Second

// New returns a Sender. transport may be nil.
func New(url string, key secret.Value, transport http.RoundTripper) *Sender {
	return &Sender{url: url, secret: key, now: time.Now, client: &http.Client{
		Transport: transport, Timeout: sendTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// event is a CloudEvent in JSON.
type event struct {
	SpecVersion     string          `json:"specversion"`
	ID              string          `json:"id"`
	Source          string          `json:"source"`
	Type            string          `json:"type"`
	Time            time.Time       `json:"time"`
	DataContentType string          `json:"datacontenttype"`
	Data            json.RawMessage `json:"data"`
}

// encode turns lines into a batch. data is the line itself, byte for byte, so
// that the receiver can verify the chain.
func encode(source string, lines [][]byte) ([]byte, error) {
	var b bytes.Buffer
	b.WriteByte('[')
	for i, line := range lines {
		m, err := audit.ParseLine(line)
		if err != nil {
			return nil, fmt.Errorf("a line of the audit log is no JSON: %w", err)
		}
		id := m.Partition + "/" + strconv.FormatInt(m.Seq, 10)
		if m.IsCheckpoint() {
			id += "/checkpoint"
		}
		head, err := json.Marshal(event{
			SpecVersion: "1.0", ID: id, Source: source, Type: "io.sluice." + m.Type, Time: m.Time, DataContentType: "application/json", Data: json.RawMessage("0"),
		})
		if err != nil {
			return nil, err
		}
		if i > 0 {
			b.WriteByte(',')
		}
		// The encoder would write the line its own way.
		b.Write(head[:len(head)-len("0}")])
		b.Write(line)
		b.WriteByte('}')
	}
	b.WriteByte(']')
	return b.Bytes(), nil
}

// Send implements [audit.Sink]. The events' source is "sluice/" and the batch's.
func (s *Sender) Send(ctx context.Context, b audit.Batch) error {
	body, err := encode("sluice/"+b.Source, b.Lines)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		return errors.New("webhook: its URL is none")
	}
	req.Header.Set("Content-Type", "application/cloudevents-batch+json; charset=utf-8")
	req.Header.Set(SignatureHeader, sign(s.secret, s.now().Unix(), body))
	answer, err := s.client.Do(req)
	if err != nil {
		// The error names the URL, whose path or query may be a secret.
		var named *url.Error
		if errors.As(err, &named) {
			err = named.Err
		}
		return fmt.Errorf("webhook at %s: %w", req.URL.Host, err)
	}
	defer answer.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(answer.Body, 64<<10)) // so that the connection is used again
	if answer.StatusCode/100 != 2 {
		return fmt.Errorf("webhook at %s: the receiver answered %d", req.URL.Host, answer.StatusCode)
	}
	return nil
}

func sign(key secret.Value, seconds int64, body []byte) string {
	t := strconv.FormatInt(seconds, 10)
	mac := hmac.New(sha256.New, []byte(key.Reveal()))
	mac.Write([]byte(t + ".")) //nolint:errcheck // never fails (hash.Hash)
	mac.Write(body)            //nolint:errcheck // as above
	return "t=" + t + ",v1=" + hex.EncodeToString(mac.Sum(nil))
}
