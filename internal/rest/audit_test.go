// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package rest_test

import (
	"bytes"
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-data/sluice/internal/audit"
	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/rest"
)

// TestRecordsHoldNoSecret sends secrets and data values wherever a client can
// put them, and looks for them in the records of reads and of changes.
func TestRecordsHoldNoSecret(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log, err := audit.NewWriter(&out, audit.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	statuses := map[int]int{}
	s := start(t, func(c *rest.Config) {
		c.Address = func(*http.Request) netip.Addr { return netip.MustParseAddr("192.0.2.9") }
		c.Audit = func(ctx context.Context, a rest.Access) error {
			mu.Lock()
			defer mu.Unlock()
			statuses[a.Status]++
			return log.Append(ctx, audit.Record{
				Time: time.Now(), RequestID: a.RequestID, Principal: a.Principal.ID, Actor: a.Principal.Actor, Address: a.Address,
				Operation: a.Operation, Warehouse: a.Warehouse, Resource: a.Resource, Status: a.Status, Decision: a.Decision,
			})
		}
	})
	const hidden = "hidden-Qx71"
	everywhere := []header{
		{"Cookie", "session=" + hidden},
		{"X-Api-Key", hidden},
		{"User-Agent", hidden},
		{"X-Forwarded-For", hidden},
		{"X-Request-Id", hidden + ";"},
		{"Referer", "https://example.org/?" + hidden},
		{"X-Iceberg-Access-Delegation", hidden},
	}
	query := "?token=" + hidden + "&" + hidden + "=1&pageToken=" + hidden
	try := func(method, path, body string, more ...header) {
		t.Helper()
		s.do(t, method, path+query, body, append(everywhere, more...)...)
		s.do(t, method, path, body, append(everywhere, more...)...)
	}
	schema := `{"type":"struct","schema-id":0,"fields":[{"id":1,"name":"x","required":false,"type":"string","doc":"` + hidden + `"}]}`
	try("POST", "/v1/demo/namespaces", `{"namespace":["n"],"properties":{"password":"`+hidden+`"}}`)
	try("POST", "/v1/demo/namespaces/n/properties", `{"updates":{"owner":"`+hidden+`"},"removals":["`+hidden+`"]}`)
	try("POST", "/v1/demo/namespaces/n/tables", `{"name":"t","schema":`+schema+`,"properties":{"comment":"`+hidden+`"}}`)
	try("POST", "/v1/demo/namespaces/n/tables", `{"name":"u","schema":`+schema+`,"properties":{"s3.secret-access-key":"`+hidden+`"}}`)
	try("POST", "/v1/demo/namespaces/n/tables/t", `{"requirements":[],"updates":[{"action":"set-properties","updates":{"a":"`+hidden+`"}}]}`)
	try("POST", "/v1/demo/namespaces/n/tables/t", `{"requirements":[{"type":"assert-ref-snapshot-id","ref":"`+hidden+`","snapshot-id":1}],"updates":[]}`)
	try("POST", "/v1/demo/namespaces/n/tables/t", `{"`+hidden+`":`)
	try("POST", "/v1/demo/namespaces/n/views", `{"name":"v","schema":`+schema+`,"view-version":{"version-id":1,"timestamp-ms":1,"schema-id":0,"summary":{},"default-namespace":["n"],"representations":[{"type":"sql","sql":"select '`+hidden+`'","dialect":"spark"}]},"properties":{"k":"`+hidden+`"}}`)
	for _, path := range []string{"/v1/config", "/v1/demo/namespaces", "/v1/demo/namespaces/n", "/v1/demo/namespaces/n/tables", "/v1/demo/namespaces/n/tables/t", "/v1/demo/namespaces/n/tables/t/credentials", "/v1/demo/namespaces/n/views/v", "/" + hidden} {
		try("GET", path, "")
		try("GET", path, "", header{"Authorization", "Bearer " + hidden})
		try("GET", path, "", header{"Authorization", "Basic " + hidden})
	}
	try("POST", "/v1/demo/namespaces/n/tables/t/metrics", `{"report-type":"scan-report","table-name":"t","snapshot-id":1,"filter":{"type":"eq","term":"x","value":"`+hidden+`"},"schema-id":0,"projected-field-ids":[],"projected-field-names":[],"metrics":{}}`)
	try("DELETE", "/v1/demo/namespaces/n/tables/t", "")
	if err := log.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	wh := s.warehouse.ID()
	if _, _, err := s.store.SealAudit(t.Context(), wh, 1000); err != nil {
		t.Fatal(err)
	}
	changes := 0
	for line, err := range catalog.AuditLines(t.Context(), s.store, wh, 0) {
		if err != nil {
			t.Fatal(err)
		}
		changes++
		out.Write(append(line.Text, '\n'))
		if !bytes.Contains(line.Text, []byte(`"address":"192.0.2.9"`)) || !bytes.Contains(line.Text, []byte(`"decision":"allow"`)) {
			t.Errorf("a change without address or decision: %s", line.Text)
		}
	}
	if changes < 5 || statuses[200] < 6 || statuses[401] < 6 || statuses[400] == 0 || statuses[409] == 0 {
		t.Errorf("the test went through too little: %d changes, %v", changes, statuses)
	}
	for _, form := range []string{hidden, url.QueryEscape(hidden), "Qx71"} {
		if i := strings.Index(out.String(), form); i >= 0 {
			t.Errorf("a secret is in a record: …%s", out.String()[max(0, i-300):min(out.Len(), i+50)])
		}
	}
}
