// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"context"
	"errors"
	"maps"
	"strconv"
	"time"

	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/server/config"
	"github.com/sluice-data/sluice/internal/telemetry"
)

// profileOf turns a warehouse's configuration into its storage profile.
func profileOf(s config.Storage) objstore.Profile {
	p := objstore.Profile{Type: s.Type, Root: s.Root, AllowedRoots: s.AllowedRoots}
	if s.S3 != nil {
		p.S3 = objstore.S3{
			Endpoint: s.S3.Endpoint, Region: s.S3.Region, PathStyle: s.S3.PathStyle,
			AccessKeyID: s.S3.AccessKeyID, SecretAccessKey: s.S3.SecretAccessKey.Value, SessionToken: s.S3.SessionToken.Value,
		}
	}
	if s.GCS != nil {
		p.GCS = objstore.GCS{Credentials: s.GCS.Credentials.Value, Endpoint: s.GCS.Endpoint}
	}
	if a := s.Azure; a != nil {
		p.Azure = objstore.Azure{
			Account: a.Account, AccountKey: a.AccountKey.Value, TenantID: a.TenantID, ClientID: a.ClientID, ClientSecret: a.ClientSecret.Value,
			Authority: a.Authority, Endpoint: a.Endpoint,
		}
	}
	return p
}

// clientConfig is what clients are told about a warehouse's storage. Never a
// secret.
func clientConfig(w config.Warehouse) map[string]string {
	told := map[string]string{}
	if s3 := w.Storage.S3; s3 != nil {
		told["client.region"], told["s3.region"] = s3.Region, s3.Region
		told["s3.path-style-access"] = strconv.FormatBool(s3.PathStyle)
		if s3.Endpoint != "" {
			told["s3.endpoint"] = s3.Endpoint
		}
	}
	if gcs := w.Storage.GCS; gcs != nil && gcs.Endpoint != "" {
		told["gcs.service.host"] = gcs.Endpoint
	}
	if azure := w.Storage.Azure; azure != nil {
		told["adls.account-name"] = azure.Account
	}
	maps.Copy(told, w.ClientConfig)
	return told
}

// objectObserver counts the calls of object stores.
func objectObserver(m *telemetry.Metrics) func(op string, took time.Duration, err error) {
	outcomes := []string{"ok", "not-found", "exists", "forbidden", "too-large", "cancelled"}
	calls := map[string]*telemetry.Call{}
	for _, op := range []string{"read", "write", "delete", "list", "size"} {
		calls[op] = m.ObjectCall(op, outcomes...)
	}
	other := m.ObjectCall("other", outcomes...)
	return func(op string, took time.Duration, err error) {
		c := calls[op]
		if c == nil {
			c = other
		}
		c.Done(objectOutcome(err), took)
	}
}

func objectOutcome(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, objstore.ErrNotFound):
		return "not-found"
	case errors.Is(err, objstore.ErrExists):
		return "exists"
	case errors.Is(err, objstore.ErrForbidden):
		return "forbidden"
	case errors.Is(err, objstore.ErrTooLarge):
		return "too-large"
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return "cancelled"
	}
	return "error"
}
