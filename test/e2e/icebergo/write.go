// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"
	"github.com/apache/iceberg-go/table"
	"github.com/apache/iceberg-go/view"
)

var (
	namespace = table.Identifier{"e2e"}
	main1     = table.Identifier{"e2e", "iceberg_go"}
	deletes   = table.Identifier{"e2e", "iceberg_go_deletes"}
)

// three is what the tables hold after the first append.
var three = []string{"1|one|10", "2|two|20", "3|three|30"}

const threeJSON = `[{"id":1,"name":"one","n":10},{"id":2,"name":"two","n":20},{"id":3,"name":"three","n":30}]`

func columns(n iceberg.Type) *iceberg.Schema {
	return iceberg.NewSchema(0,
		iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64},
		iceberg.NestedField{ID: 2, Name: "name", Type: iceberg.PrimitiveTypes.String},
		iceberg.NestedField{ID: 3, Name: "n", Type: n})
}

// writing is the steps in their order; each builds on those before it.
var writing = []step{
	{"create namespace", createNamespace},
	{"token by client credentials", tokenByCredentials},
	{"create a partitioned table and append", createAndAppend},
	{"evolve schema", evolveSchema},
	{"evolve partitioning", evolvePartitioning},
	{"time travel", timeTravel},
	{"delete rows", deleteRows},
	{"delete rows by position", deleteByPosition},
	{"roll back", rollBack},
	{"concurrent commit is refused", concurrentCommit},
	{"two tables in one transaction", twoTables},
	{"register", register},
	{"rename and drop", renameAndDrop},
	{"views", views},
}

func createNamespace(ctx context.Context, c *rest.Catalog) error {
	exists, err := c.CheckNamespaceExists(ctx, namespace)
	if err != nil {
		return err
	}
	if !exists {
		if err := c.CreateNamespace(ctx, namespace, nil); err != nil {
			return err
		}
	}
	if err := refused("create it again", c.CreateNamespace(ctx, namespace, nil), catalog.ErrNamespaceAlreadyExists); err != nil {
		return err
	}
	below := table.Identifier{"e2e", "iceberg_go_below"}
	if err := c.CreateNamespace(ctx, below, iceberg.Properties{"owner": "go"}); err != nil {
		return err
	}
	if _, err := c.UpdateNamespaceProperties(ctx, below, []string{"owner"}, iceberg.Properties{"colour": "blue"}); err != nil {
		return err
	}
	properties, err := c.LoadNamespaceProperties(ctx, below)
	if err != nil {
		return err
	}
	if properties["colour"] != "blue" || properties["owner"] != "" {
		return fmt.Errorf("properties: got %v, want a colour and no owner", properties)
	}
	names, err := c.ListNamespaces(ctx, namespace)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(names, func(n table.Identifier) bool { return slices.Equal(n, below) }) {
		return fmt.Errorf("namespaces below e2e: %v", names)
	}
	return c.DropNamespace(ctx, below)
}

func tokenByCredentials(ctx context.Context, _ *rest.Catalog) error {
	c, err := byCredentials(ctx)
	if err != nil {
		return err
	}
	names, err := c.ListNamespaces(ctx, nil)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(names, func(n table.Identifier) bool { return slices.Equal(n, namespace) }) {
		return fmt.Errorf("namespaces: %v", names)
	}
	return nil
}

func createAndAppend(ctx context.Context, c *rest.Catalog) error {
	spec := iceberg.NewPartitionSpec(iceberg.PartitionField{SourceIDs: []int{2}, FieldID: 1000, Name: "name", Transform: iceberg.IdentityTransform{}})
	t, err := c.CreateTable(ctx, main1, columns(iceberg.PrimitiveTypes.Int32), catalog.WithPartitionSpec(&spec), catalog.WithProperties(iceberg.Properties{"owner": "go"}))
	if err != nil {
		return err
	}
	if _, err := c.CreateTable(ctx, main1, columns(iceberg.PrimitiveTypes.Int32)); err != nil {
		if err := refused("create it again", err, catalog.ErrTableAlreadyExists); err != nil {
			return err
		}
	} else {
		return fmt.Errorf("a second table of that name was created")
	}
	if _, err := appendRows(ctx, t, threeJSON); err != nil {
		return err
	}
	if t, err = holdsNow(ctx, c, main1, three); err != nil {
		return err
	}
	if err := same("owner", t.Properties()["owner"], "go"); err != nil {
		return err
	}
	// Of the three partitions, a filter reads one.
	filter := iceberg.EqualTo(iceberg.Reference("name"), "two")
	tasks, err := t.Scan(table.WithRowFilter(filter)).PlanFiles(ctx)
	if err != nil {
		return err
	}
	if err := same("files planned for one partition", len(tasks), 1); err != nil {
		return err
	}
	if err := same("its partition", tasks[0].File.Partition()[1000], any("two")); err != nil {
		return err
	}
	return holds(ctx, t, "one partition", []string{"2|two|20"}, table.WithRowFilter(filter))
}

func evolveSchema(ctx context.Context, c *rest.Catalog) error {
	t, err := c.LoadTable(ctx, main1)
	if err != nil {
		return err
	}
	tx := t.NewTransaction()
	if err := tx.UpdateSchema(true, false).
		UpdateColumn([]string{"n"}, table.ColumnUpdate{FieldType: iceberg.Optional[iceberg.Type]{Val: iceberg.PrimitiveTypes.Int64, Valid: true}}).
		AddColumn([]string{"extra"}, iceberg.PrimitiveTypes.Int32, "more to come", false, nil).
		Commit(); err != nil {
		return err
	}
	if t, err = tx.Commit(ctx); err != nil {
		return err
	}
	tx = t.NewTransaction()
	if err := tx.UpdateSchema(true, false).RenameColumn([]string{"extra"}, "more").Commit(); err != nil {
		return err
	}
	if _, err = tx.Commit(ctx); err != nil {
		return err
	}
	// The rows of before are read under the schema of now.
	if t, err = holdsNow(ctx, c, main1, three); err != nil {
		return err
	}
	var got []string
	for _, f := range t.Schema().Fields() {
		got = append(got, fmt.Sprintf("%d %s %s", f.ID, f.Name, f.Type))
	}
	return same("columns", got, []string{"1 id long", "2 name string", "3 n long", "4 more int"})
}

func evolvePartitioning(ctx context.Context, c *rest.Catalog) error {
	t, err := c.LoadTable(ctx, main1)
	if err != nil {
		return err
	}
	tx := t.NewTransaction()
	if err := tx.UpdateSpec(true).RemoveField("name").AddField("id", iceberg.BucketTransform{NumBuckets: 4}, "id_bucket").Commit(); err != nil {
		return err
	}
	if t, err = tx.Commit(ctx); err != nil {
		return err
	}
	if _, err := appendRows(ctx, t, `[{"id":4,"name":"four","n":40,"more":null}]`); err != nil {
		return err
	}
	if t, err = holdsNow(ctx, c, main1, append([]string{}, "1|one|10", "2|two|20", "3|three|30", "4|four|40")); err != nil {
		return err
	}
	spec := t.Spec()
	if err := same("fields of the spec", fmt.Sprint(spec.NumFields(), spec.Field(0).Name, spec.Field(0).Transform), fmt.Sprint(1, "id_bucket", "bucket[4]")); err != nil {
		return err
	}
	tasks, err := t.Scan().PlanFiles(ctx)
	if err != nil {
		return err
	}
	bySpec := map[int32]int{}
	for _, task := range tasks {
		bySpec[task.File.SpecID()]++
	}
	return same("files by spec", bySpec, map[int32]int{0: 3, int32(spec.ID()): 1})
}

func timeTravel(ctx context.Context, c *rest.Catalog) error {
	t, err := c.LoadTable(ctx, main1)
	if err != nil {
		return err
	}
	snapshots := t.Metadata().Snapshots()
	if err := same("snapshots", len(snapshots), 2); err != nil {
		return err
	}
	if err := holds(ctx, t, "the first snapshot", three, table.WithSnapshotID(snapshots[0].SnapshotID)); err != nil {
		return err
	}
	return holds(ctx, t, "the time between", three, table.WithSnapshotAsOf(snapshots[1].TimestampMs-1))
}

func deleteRows(ctx context.Context, c *rest.Catalog) error {
	t, err := c.LoadTable(ctx, main1)
	if err != nil {
		return err
	}
	before := t.CurrentSnapshot().SnapshotID
	if _, err := t.Delete(ctx, iceberg.EqualTo(iceberg.Reference("id"), int64(3)), nil); err != nil {
		return err
	}
	if t, err = holdsNow(ctx, c, main1, final); err != nil {
		return err
	}
	got, err := rows(ctx, t, table.WithSnapshotID(before))
	if err != nil {
		return err
	}
	return same("rows before the delete", len(got), 4)
}

// deleteByPosition writes a table of its own with a file of position deletes,
// which the other clients then read.
func deleteByPosition(ctx context.Context, c *rest.Catalog) error {
	t, err := c.CreateTable(ctx, deletes, columns(iceberg.PrimitiveTypes.Int64), catalog.WithProperties(iceberg.Properties{"format-version": "2", "write.delete.mode": "merge-on-read"}))
	if err != nil {
		return err
	}
	all := strings.TrimSuffix(threeJSON, "]") + `,{"id":4,"name":"four","n":40}]`
	if t, err = appendRows(ctx, t, all); err != nil {
		return err
	}
	if _, err := t.Delete(ctx, iceberg.EqualTo(iceberg.Reference("id"), int64(3)), nil); err != nil {
		return err
	}
	if t, err = holdsNow(ctx, c, deletes, final); err != nil {
		return err
	}
	tasks, err := t.Scan().PlanFiles(ctx)
	if err != nil {
		return err
	}
	if len(tasks) != 1 || len(tasks[0].DeleteFiles) != 1 || tasks[0].DeleteFiles[0].ContentType() != iceberg.EntryContentPosDeletes {
		return fmt.Errorf("planned tasks: got %+v, want one data file with one file of position deletes", tasks)
	}
	return nil
}

func rollBack(ctx context.Context, c *rest.Catalog) error {
	name := table.Identifier{"e2e", "iceberg_go_back"}
	t, err := c.CreateTable(ctx, name, columns(iceberg.PrimitiveTypes.Int64))
	if err != nil {
		return err
	}
	if t, err = appendRows(ctx, t, threeJSON); err != nil {
		return err
	}
	first := t.CurrentSnapshot().SnapshotID
	if t, err = appendRows(ctx, t, threeJSON); err != nil {
		return err
	}
	tx := t.NewTransaction()
	if err := tx.RollbackToSnapshot(first); err != nil {
		return err
	}
	if _, err := tx.Commit(ctx); err != nil {
		return err
	}
	if _, err := holdsNow(ctx, c, name, three); err != nil {
		return err
	}
	return c.PurgeTable(ctx, name)
}

func concurrentCommit(ctx context.Context, c *rest.Catalog) error {
	a, err := c.LoadTable(ctx, main1)
	if err != nil {
		return err
	}
	b, err := c.LoadTable(ctx, main1)
	if err != nil {
		return err
	}
	add := func(t *table.Table, name string) error {
		tx := t.NewTransaction()
		if err := tx.UpdateSchema(true, false).AddColumn([]string{name}, iceberg.PrimitiveTypes.Int32, "", false, nil).Commit(); err != nil {
			return err
		}
		_, err := tx.Commit(ctx)
		return err
	}
	if err := add(a, "by_a"); err != nil {
		return err
	}
	if err := refused("a commit onto what is no longer current", add(b, "by_b"), table.ErrCommitFailed); err != nil {
		return err
	}
	t, err := c.LoadTable(ctx, main1)
	if err != nil {
		return err
	}
	_, lost := t.Schema().FindFieldByName("by_b")
	_, kept := t.Schema().FindFieldByName("by_a")
	if lost || !kept {
		return fmt.Errorf("columns: %v", t.Schema())
	}
	tx := t.NewTransaction()
	if err := tx.UpdateSchema(true, false).DeleteColumn([]string{"by_a"}).Commit(); err != nil {
		return err
	}
	_, err = tx.Commit(ctx)
	return err
}

func twoTables(ctx context.Context, c *rest.Catalog) error {
	names := []table.Identifier{{"e2e", "iceberg_go_one"}, {"e2e", "iceberg_go_two"}}
	commits := func(value string) (all []table.TableCommit, err error) {
		for _, name := range names {
			t, err := c.LoadTable(ctx, name)
			if err != nil {
				return nil, err
			}
			tx := t.NewTransaction()
			if err := tx.SetProperties(iceberg.Properties{"stage": value}); err != nil {
				return nil, err
			}
			commit, err := tx.TableCommit()
			if err != nil {
				return nil, err
			}
			all = append(all, commit)
		}
		return all, nil
	}
	stages := func(want string) error {
		for _, name := range names {
			t, err := c.LoadTable(ctx, name)
			if err != nil {
				return err
			}
			if err := same("stage of "+name[1], t.Properties()["stage"], want); err != nil {
				return err
			}
		}
		return nil
	}
	for _, name := range names {
		if _, err := c.CreateTable(ctx, name, columns(iceberg.PrimitiveTypes.Int64)); err != nil {
			return err
		}
	}
	both, err := commits("both")
	if err != nil {
		return err
	}
	if err := c.CommitTransaction(ctx, both); err != nil {
		return err
	}
	if err := stages("both"); err != nil {
		return err
	}
	// All or nothing: the second table is another one by now.
	neither, err := commits("neither")
	if err != nil {
		return err
	}
	if err := c.PurgeTable(ctx, names[1]); err != nil {
		return err
	}
	if _, err := c.CreateTable(ctx, names[1], columns(iceberg.PrimitiveTypes.Int64), catalog.WithProperties(iceberg.Properties{"stage": "both"})); err != nil {
		return err
	}
	if err := refused("a transaction of which one half cannot be", c.CommitTransaction(ctx, neither), table.ErrCommitFailed); err != nil {
		return err
	}
	if err := stages("both"); err != nil {
		return err
	}
	for _, name := range names {
		if err := c.PurgeTable(ctx, name); err != nil {
			return err
		}
	}
	return nil
}

func register(ctx context.Context, c *rest.Catalog) error {
	from, to := table.Identifier{"e2e", "iceberg_go_lost"}, table.Identifier{"e2e", "iceberg_go_found"}
	t, err := c.CreateTable(ctx, from, columns(iceberg.PrimitiveTypes.Int64))
	if err != nil {
		return err
	}
	if t, err = appendRows(ctx, t, threeJSON); err != nil {
		return err
	}
	if err := c.DropTable(ctx, from); err != nil {
		return err
	}
	found, err := c.RegisterTable(ctx, to, t.MetadataLocation())
	if err != nil {
		return err
	}
	if err := same("uuid", found.Metadata().TableUUID(), t.Metadata().TableUUID()); err != nil {
		return err
	}
	if _, err := holdsNow(ctx, c, to, three); err != nil {
		return err
	}
	return c.PurgeTable(ctx, to)
}

func renameAndDrop(ctx context.Context, c *rest.Catalog) error {
	from, to := table.Identifier{"e2e", "iceberg_go_tmp"}, table.Identifier{"e2e", "iceberg_go_tmp2"}
	t, err := c.CreateTable(ctx, from, columns(iceberg.PrimitiveTypes.Int64))
	if err != nil {
		return err
	}
	if _, err := appendRows(ctx, t, threeJSON); err != nil {
		return err
	}
	if _, err := c.RenameTable(ctx, from, to); err != nil {
		return err
	}
	if _, err := c.LoadTable(ctx, from); err == nil {
		return fmt.Errorf("the table is there under its old name")
	} else if err := refused("load the old name", err, catalog.ErrNoSuchTable); err != nil {
		return err
	}
	if _, err := holdsNow(ctx, c, to, three); err != nil {
		return err
	}
	if _, err := c.RenameTable(ctx, to, main1); err == nil {
		return fmt.Errorf("a table was renamed over another")
	}
	if _, err := holdsNow(ctx, c, main1, final); err != nil {
		return err
	}
	if err := c.DropTable(ctx, to); err != nil {
		return err
	}
	exists, err := c.CheckTableExists(ctx, to)
	if err != nil {
		return err
	}
	return same("the dropped table exists", exists, false)
}

func views(ctx context.Context, c *rest.Catalog) error {
	from, to := table.Identifier{"e2e", "iceberg_go_view"}, table.Identifier{"e2e", "iceberg_go_view2"}
	schema := iceberg.NewSchema(0, iceberg.NestedField{ID: 1, Name: "id", Type: iceberg.PrimitiveTypes.Int64})
	version := func(id int64, sql string) (*view.Version, error) {
		return view.NewVersion(id, 0, view.Representations{view.NewRepresentation(sql, "spark"), view.NewRepresentation(sql, "trino")}, namespace)
	}
	first, err := version(1, "SELECT id FROM e2e.iceberg_go")
	if err != nil {
		return err
	}
	if _, err := c.CreateView(ctx, from, first, schema, catalog.WithViewProperties(iceberg.Properties{"owner": "go"})); err != nil {
		return err
	}
	if _, err := c.CreateView(ctx, from, first, schema); err == nil {
		return fmt.Errorf("a second view of that name was created")
	} else if err := refused("create it again", err, catalog.ErrViewAlreadyExists); err != nil {
		return err
	}
	second, err := version(2, "SELECT id FROM e2e.iceberg_go WHERE id > 1")
	if err != nil {
		return err
	}
	if _, err := c.UpdateView(ctx, from, nil, []view.Update{view.NewAddViewVersionUpdate(second), view.NewSetCurrentVersionUpdate(-1)}); err != nil {
		return err
	}
	if _, err := c.RenameView(ctx, from, to); err != nil {
		return err
	}
	loaded, err := c.LoadView(ctx, to)
	if err != nil {
		return err
	}
	meta := loaded.Metadata()
	current := meta.CurrentVersion()
	if err := same("version, versions, owner and SQL of the view",
		fmt.Sprint(current.VersionID, len(meta.Versions()), meta.Properties()["owner"], current.Representations),
		fmt.Sprint(2, 2, "go", second.Representations)); err != nil {
		return err
	}
	var listed []string
	for name, err := range c.ListViews(ctx, namespace) {
		if err != nil {
			return err
		}
		listed = append(listed, name[len(name)-1])
	}
	if !slices.Contains(listed, to[1]) || slices.Contains(listed, from[1]) {
		return fmt.Errorf("views: %v", listed)
	}
	if err := c.DropView(ctx, to); err != nil {
		return err
	}
	if _, err := c.LoadView(ctx, to); err == nil {
		return fmt.Errorf("the view is there after its drop")
	} else if err := refused("load a dropped view", err, catalog.ErrNoSuchView); err != nil {
		return err
	}
	exists, err := c.CheckViewExists(ctx, to)
	if err != nil {
		return err
	}
	return same("the dropped view exists", exists, false)
}
