// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/catalog/sqlite"
	"github.com/sluice-data/sluice/internal/identity"
	"github.com/sluice-data/sluice/internal/sharing"
	"github.com/sluice-data/sluice/internal/sharing/store"
)

// BenchmarkAccess is what a request for a table in a share costs before the
// table is loaded: who has the share, and what the name stands for.
func BenchmarkAccess(b *testing.B) {
	for _, recipients := range []int{1, 1000} {
		b.Run(fmt.Sprintf("recipients=%d", recipients), func(b *testing.B) {
			ctx := b.Context()
			c, err := sqlite.Open(ctx, filepath.Join(b.TempDir(), "catalog.db"), sqlite.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			if err := c.Migrate(ctx); err != nil {
				b.Fatal(err)
			}
			shares, err := store.Open(ctx, c)
			if err != nil {
				b.Fatal(err)
			}
			s, err := sharing.New(sharing.Config{Store: shares, Issuers: map[string]identity.IssuerKind{"corp": identity.IssuerJWT}})
			if err != nil {
				b.Fatal(err)
			}
			must := func(err error) {
				b.Helper()
				if err != nil {
					b.Fatal(err)
				}
			}
			wh, err := c.EnsureWarehouse(ctx, "main")
			must(err)
			must(s.AdoptWarehouse(ctx, "main", wh, "acme", "file:///nowhere"))
			o := catalog.Object{ID: uuid.New(), Warehouse: wh, Kind: catalog.KindTable, Namespace: catalog.Namespace{"a"}, Name: "t", UUID: uuid.New(), Location: "file:///nowhere/t", MetadataLocation: "file:///nowhere/t/m"}
			must(c.Update(ctx, func(tx catalog.Tx) error {
				if err := tx.CreateNamespace(ctx, catalog.NamespaceRecord{Warehouse: wh, Namespace: catalog.Namespace{"a"}}); err != nil {
					return err
				}
				return tx.CreateObject(ctx, o, []string{o.Location})
			}))
			_, err = s.CreateShare(ctx, m(), sharing.Share{Name: "sales", Organisation: "acme"})
			must(err)
			_, err = s.ModifyMembers(ctx, m(), "sales", []sharing.NewMember{tableMember("main", catalog.Namespace{"a"}, "t")}, nil)
			must(err)
			for i := range recipients {
				name := fmt.Sprintf("r%d", i)
				_, err := s.CreateRecipient(ctx, m(), sharing.Recipient{Provider: "acme", Name: name, Binding: sharing.Binding{Kind: sharing.BoundByToken, Issuer: "corp", Claim: sharing.ClaimOrganisation, Value: name}}, 0)
				must(err)
				_, err = s.CreateGrant(ctx, m(), "sales", name, sharing.Grant{})
				must(err)
			}
			who := sharing.Caller{Principal: identity.Principal{ID: "corp:x", Issuer: "corp", Subject: "x", Kind: identity.KindToken, Organisation: fmt.Sprintf("r%d", recipients-1)}}
			b.ReportAllocs()
			for b.Loop() {
				view, err := s.Access(ctx, who, "sales")
				must(err)
				_, err = view.Lookup(ctx, catalog.Ident{Namespace: catalog.Namespace{"a"}, Name: "t"}, catalog.KindTable)
				must(err)
			}
		})
	}
}
