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

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
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

// vends reports whether the catalog gave credentials, or signs requests.
func (l *loadedStorage) vends() bool {
	s := l.settings()
	for k := range s {
		for _, p := range []string{"s3.access-key-id", "gcs.oauth2.token", "adls.sas-token", "adls.auth.shared-key"} {
			if strings.HasPrefix(k, p) {
				return true
			}
		}
	}
	return s["s3.remote-signing-enabled"] == "true"
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
		if l.vends() {
			return "", errSkipped("the catalog gives credentials; they are tried for S3 alone")
		}
		return "", warning{"the catalog gives no credentials: engines need their own", "give the engine access to " + l.Metadata.Location}
	}
	return "", fmt.Errorf("location %s is of no kind that is known", l.MetadataLocation)
}

// reachS3 asks S3 for the metadata file's length.
func reachS3(ctx context.Context, l *loadedStorage, s map[string]string) (string, error) {
	u, err := url.Parse(l.MetadataLocation)
	if err != nil {
		return "", err
	}
	options := s3.Options{
		Region: first(s["s3.region"], s["client.region"], "us-east-1"), UsePathStyle: s["s3.path-style-access"] == "true",
		Credentials: credentials.NewStaticCredentialsProvider(s["s3.access-key-id"], s["s3.secret-access-key"], s["s3.session-token"]),
	}
	if endpoint := s["s3.endpoint"]; endpoint != "" {
		options.BaseEndpoint = aws.String(endpoint)
	}
	head, err := s3.New(options).HeadObject(ctx, &s3.HeadObjectInput{Bucket: aws.String(u.Host), Key: aws.String(strings.TrimPrefix(u.Path, "/"))})
	if err != nil {
		return "", fmt.Errorf("the catalog's credentials do not read %s: %w", l.MetadataLocation, err)
	}
	return fmt.Sprintf("the catalog's credentials read the metadata file (%d bytes)", aws.ToInt64(head.ContentLength)), nil
}
