// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"slices"
	"strings"

	"github.com/sluice-data/sluice/internal/objstore"
	"github.com/sluice-data/sluice/internal/secret"
)

// loadedStorage is what a loaded table says of its files and of how to reach
// them.
type loadedStorage struct {
	MetadataLocation string              `json:"metadata-location"`
	Config           map[string]string   `json:"config"`
	Credentials      []storageCredential `json:"storage-credentials"`
	Metadata         struct {
		Location string `json:"location"`
	} `json:"metadata"`
}

type storageCredential struct {
	Prefix string            `json:"prefix"`
	Config map[string]string `json:"config"`
}

// settings are those of the credentials with the longest prefix of the metadata file,
// and else of the table's configuration (the protocol's LoadTableResult).
func (l *loadedStorage) settings() map[string]string {
	all := map[string]string{}
	for k, v := range l.Config {
		all[k] = v
	}
	slices.SortFunc(l.Credentials, func(a, b storageCredential) int { return len(a.Prefix) - len(b.Prefix) })
	for _, c := range l.Credentials {
		if strings.HasPrefix(l.MetadataLocation, c.Prefix) {
			for k, v := range c.Config {
				all[k] = v
			}
		}
	}
	return all
}

// reach reads the table's metadata file with what the catalog gave.
func reach(ctx context.Context, raw json.RawMessage) (string, error) {
	var l loadedStorage
	if err := json.Unmarshal(raw, &l); err != nil {
		return "", err
	}
	s := l.settings()
	switch storageOf(l.MetadataLocation) {
	case "file":
		u, err := url.Parse(l.MetadataLocation)
		if err != nil {
			return "", err
		}
		if _, err := os.Stat(u.Path); errors.Is(err, fs.ErrNotExist) {
			return "", &failure{err: fmt.Errorf("there is no %s here: the files are on the server's own disk", u.Path), code: codeWanting, next: "a warehouse in an object store, or the server's machine"}
		} else if err != nil {
			return "", err
		}
		return "local files can be read", nil
	case "s3":
		if s["s3.access-key-id"] == "" {
			return "", warning{"the catalog gives no credentials for S3: engines need their own", "give the engine keys for " + l.Metadata.Location}
		}
		return reachS3(ctx, &l, s)
	case "gcs", "azure":
		for k := range s {
			if strings.HasPrefix(k, "gcs.oauth2.token") || strings.HasPrefix(k, "adls.sas-token") {
				return "", errSkipped("the catalog gives credentials; they are tried for S3 alone")
			}
		}
		return "", warning{"the catalog gives no credentials: engines need their own", "give the engine access to " + l.Metadata.Location}
	}
	return "", fmt.Errorf("location %s is of no kind that is known", l.MetadataLocation)
}

// reachS3 reads the metadata file's length from S3.
func reachS3(ctx context.Context, l *loadedStorage, s map[string]string) (string, error) {
	b, err := objstore.Open(ctx, objstore.Profile{
		Type: objstore.TypeS3, Root: strings.TrimRight(l.Metadata.Location, "/"),
		S3: objstore.S3{
			Region: first(s["s3.region"], s["client.region"], "us-east-1"), Endpoint: s["s3.endpoint"], PathStyle: s["s3.path-style-access"] == "true",
			AccessKeyID: s["s3.access-key-id"], SecretAccessKey: secret.New(s["s3.secret-access-key"]), SessionToken: secret.New(s["s3.session-token"]),
		},
	}, objstore.Options{})
	if err != nil {
		return "", err
	}
	defer func() { _ = b.Close() }() // nothing was written
	size, err := b.Size(ctx, l.MetadataLocation)
	if err != nil {
		return "", fmt.Errorf("the catalog's credentials do not read %s: %w", l.MetadataLocation, err)
	}
	return fmt.Sprintf("the catalog's credentials read the metadata file (%d bytes)", size), nil
}
