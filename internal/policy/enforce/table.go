// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package enforce

import (
	"context"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/policy"
)

// Table returns a table as decisions know it, for checks of policies that are
// to be activated. owner is the organisation of the warehouse.
func (e *Enforcer) Table(ctx context.Context, w catalog.Operations, owner string, obj catalog.Object) (*policy.Table, error) {
	g := &Guard{e: e, in: w, owner: owner, warehouse: policy.NewWarehouse(owner, w.Name())}
	return g.table(ctx, obj)
}
