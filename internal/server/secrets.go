// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package server

import (
	"github.com/sluice-data/sluice/internal/secret"
	"github.com/sluice-data/sluice/internal/server/config"
)

// secretsOf takes the values out of references.
func secretsOf(refs map[string]config.Secret) map[string]secret.Value {
	values := make(map[string]secret.Value, len(refs))
	for name, ref := range refs {
		values[name] = ref.Value
	}
	return values
}
