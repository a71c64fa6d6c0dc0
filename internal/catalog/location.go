// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package catalog

import (
	"context"
	"slices"
	"strings"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/objstore"
)

// pathProperties are the table properties that tell engines to write
// somewhere else than below the base location.
var pathProperties = []string{
	"write.data.path",
	"write.metadata.path",
	"write.object-storage.path",
	"write.folder-storage.path",
}

// reservedProperties tell which properties configure a client or its access
// to storage rather than the table. A catalog that stored and handed them on
// would let one writer redirect every reader's requests or credentials.
var (
	reservedPropertyPrefixes = []string{
		"s3.", "gcs.", "adls.", "azure.", "oss.", "ecs.", "dell.", "hdfs.", "fs.", "hadoop.", "aws.", "client.", "glue.", "dynamodb.", "kms.",
		"header.", "rest.", "rest-", "rest_", "oauth2-", "oauth2.", "auth.", "signer.", "ssl.", "cache.", "http-client.", "jdbc.", "py-",
	}
	reservedProperties = []string{
		"io-impl", "py-io-impl", "catalog-impl", "token", "credential", "credentials", "uri", "warehouse", "scope", "audience", "resource",
		"token-exchange-enabled", "token-refresh-enabled", "prefix", "namespace-separator", "scan-planning-mode", "type",
		"write.location-provider.impl", "encryption.kms-impl", "encryption.kms-type", "engine.hive.enabled.uri", "metrics-reporter-impl",
		"read-restrictions", "storage-credentials",
	}
)

// checkTableProperties refuses properties that are not the table's to set.
func checkTableProperties(field string, properties map[string]string) error {
	if err := checkProperties(field, properties); err != nil {
		return err
	}
	for key := range properties {
		if reservedProperty(key) {
			return Errorf(BadRequest, "%s.%s: this property configures a client or its storage access and cannot be stored with a table; set it in the client", field, key)
		}
	}
	return nil
}

func reservedProperty(key string) bool {
	key = strings.ToLower(key)
	if slices.Contains(reservedProperties, key) || strings.HasPrefix(key, "urn:ietf:params:oauth") {
		return true
	}
	for _, p := range reservedPropertyPrefixes {
		if strings.HasPrefix(key, p) {
			return true
		}
	}
	return false
}

// placement is every location that belongs to one object: the base first.
type placement []place

// place is one location, and the field that said it.
type place struct {
	objstore.Location
	field string
}

// contains reports whether a file lies inside one of the locations.
func (p placement) contains(file objstore.Location) bool {
	return slices.ContainsFunc(p, func(l place) bool { return l.Contains(file) })
}

// keys returns the canonical spellings that the store reserves.
func (p placement) keys() []string {
	keys := make([]string, len(p))
	for i, l := range p {
		keys[i] = l.Key()
	}
	return keys
}

// place checks a base location and the path properties and returns what the
// object occupies. Locations inside others of the same object are left out.
func (w *Warehouse) place(field, base string, properties func(key string) (string, bool)) (placement, error) {
	l, err := w.checkLocation(field, base)
	if err != nil {
		return nil, err
	}
	p := placement{{l, field}}
	for _, key := range pathProperties {
		value, ok := properties(key)
		if !ok {
			continue
		}
		extra, err := w.checkLocation("properties."+key, value)
		if err != nil {
			return nil, err
		}
		if !p.contains(extra) {
			p = append(p, place{extra, "properties." + key})
		}
	}
	return p, nil
}

// requireUnoccupied refuses locations that other objects have. What is taken
// after this look is refused by the transaction, as a conflict.
func (w *Warehouse) requireUnoccupied(ctx context.Context, object uuid.UUID, wanted placement) error {
	taken, err := w.store.Overlaps(ctx, w.id, object, wanted.keys())
	if err != nil {
		return storeError(err)
	}
	if !taken {
		return nil
	}
	culprit := wanted[0]
	for _, one := range wanted[1:] {
		// Only to name it: whatever is answered now, the change is refused.
		if taken, err := w.store.Overlaps(ctx, w.id, object, placement{one}.keys()); err == nil && taken {
			culprit = one
		}
	}
	return Errorf(Forbidden, "%s: %s overlaps the location of another table or view", culprit.field, culprit)
}

// locationConflict says that another object took the place while this one was
// being made.
func locationConflict(location string) *Error {
	return Errorf(CommitFailed, "location: %s overlaps that of a table or view made at the same time", location)
}

// checkLocation applies the rules for a place where files of a table or view
// may lie: the grammar of object locations, strictly inside one of the
// warehouse's roots, and not in a part that the catalog keeps for itself
// (first segment beginning with an underscore) or holding a whole namespace
// (see [Warehouse.NamespaceLocation]).
func (w *Warehouse) checkLocation(field, s string) (objstore.Location, error) {
	l, err := objstore.ParseLocation(s)
	if err != nil {
		return objstore.Location{}, Errorf(BadRequest, "%s: %s", field, err.Error())
	}
	for _, root := range w.roots {
		switch {
		case root.Key() == l.Key() || l.Contains(root):
			return objstore.Location{}, Errorf(Forbidden, "%s: %s holds the whole warehouse; name a directory inside it", field, s)
		case root.Contains(l):
			rest := strings.TrimPrefix(l.Key()[len(root.Key()):], "/")
			if strings.HasPrefix(rest, "_") {
				return objstore.Location{}, Errorf(Forbidden, "%s: names that begin with an underscore are reserved at the top of a warehouse", field)
			}
			if part, below, _ := strings.Cut(rest, "/"); part == namespacePart && !strings.Contains(strings.Trim(below, "/"), "/") {
				return objstore.Location{}, Errorf(Forbidden, "%s: %s holds the tables of whole namespaces; name a directory inside one", field, s)
			}
			return l, nil
		}
	}
	return objstore.Location{}, Errorf(BadRequest, "%s: %s lies outside the warehouse %s", field, s, w.opts.Name)
}

// checkOwnFile refuses a file that a change refers to outside what the
// object occupies: a reader of this table must never be sent to another's.
func checkOwnFile(field, file string, own placement) error {
	l, err := objstore.ParseFile(file)
	if err != nil {
		return Errorf(BadRequest, "%s: %s", field, err.Error())
	}
	if !own.contains(l) {
		return Errorf(Forbidden, "%s: %s lies outside the locations of this table", field, file)
	}
	return nil
}
