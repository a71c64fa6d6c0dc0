// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/sharing"
)

// TestAddedWhileDropped: a table, or a namespace, is never both dropped and
// shared, whoever comes first.
func TestAddedWhileDropped(t *testing.T) {
	t.Parallel()
	onBoth(t, func(h *house) {
		a := h.namespace(h.main, "a")
		h.share("s", sharing.OnDropBlock)
		for i := range 12 {
			name := fmt.Sprintf("t%d", i)
			h.table(h.main, a, name)
			ns := h.namespace(h.main, "n"+name)
			var wg sync.WaitGroup
			var added, dropped, addedNS, droppedNS error
			wg.Go(func() {
				_, added = h.ModifyMembers(h.ctx, m(), "s", []sharing.NewMember{tableMember("main", a, name)}, nil)
			})
			wg.Go(func() {
				dropped = h.main.DropTable(h.ctx, catalog.Mutation{}, catalog.Ident{Namespace: a, Name: name}, false)
			})
			wg.Go(func() {
				_, addedNS = h.ModifyMembers(h.ctx, m(), "s", []sharing.NewMember{{Kind: sharing.MemberNamespace, Warehouse: "main", Namespace: ns}}, nil)
			})
			wg.Go(func() { droppedNS = h.main.DropNamespace(h.ctx, catalog.Mutation{}, ns) })
			wg.Wait()
			if (added == nil) == (dropped == nil) {
				h.Errorf("table %d: added: %v, dropped: %v", i, added, dropped)
			}
			if (addedNS == nil) == (droppedNS == nil) {
				h.Errorf("namespace %d: added: %v, dropped: %v", i, addedNS, droppedNS)
			}
		}
		members, _, err := h.Members(h.ctx, "s", sharing.Page{})
		h.ok(err)
		for _, one := range members {
			if one.Kind == sharing.MemberNamespace {
				if exists, err := h.store.NamespaceExists(h.ctx, one.Warehouse, one.Namespace); err != nil || !exists {
					h.Errorf("a member that is not there: %+v, %v", one, err)
				}
			} else if _, err := h.store.ObjectByID(h.ctx, one.Warehouse, one.Object); err != nil {
				h.Errorf("a member that is not there: %+v, %v", one, err)
			}
		}
	})
}
