// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sluice-data/sluice/cmd/sharectl/internal/icebergrest"
)

// tableAnswer is what tables show of a loaded table.
type tableAnswer struct {
	MetadataLocation string            `json:"metadata-location"`
	Config           map[string]string `json:"config"`
	Metadata         struct {
		FormatVersion   int               `json:"format-version"`
		UUID            string            `json:"table-uuid"`
		Location        string            `json:"location"`
		LastUpdated     int64             `json:"last-updated-ms"`
		Properties      map[string]string `json:"properties"`
		CurrentSchema   int               `json:"current-schema-id"`
		Schemas         []schemaJSON      `json:"schemas"`
		DefaultSpec     int               `json:"default-spec-id"`
		Specs           []specJSON        `json:"partition-specs"`
		CurrentSnapshot *int64            `json:"current-snapshot-id"`
		Snapshots       []snapshotJSON    `json:"snapshots"`
		Refs            map[string]refJSON
	} `json:"metadata"`
}

type schemaJSON struct {
	ID     int         `json:"schema-id"`
	Fields []fieldJSON `json:"fields"`
}

type fieldJSON struct {
	ID       int             `json:"id"`
	Name     string          `json:"name"`
	Required bool            `json:"required"`
	Type     json.RawMessage `json:"type"`
	Doc      string          `json:"doc"`
}

type specJSON struct {
	ID     int `json:"spec-id"`
	Fields []struct {
		Source    int    `json:"source-id"`
		Name      string `json:"name"`
		Transform string `json:"transform"`
	} `json:"fields"`
}

type snapshotJSON struct {
	ID        int64             `json:"snapshot-id"`
	Parent    *int64            `json:"parent-snapshot-id"`
	Timestamp int64             `json:"timestamp-ms"`
	Summary   map[string]string `json:"summary"`
}

type refJSON struct {
	Snapshot int64  `json:"snapshot-id"`
	Type     string `json:"type"`
}

// load loads a table or view; the answer is also given as it came.
func (a *app) load(cmd *cobra.Command, name, what string, q url.Values, into any) (icebergrest.Ident, json.RawMessage, error) {
	id, err := identOf(name, what)
	if err != nil {
		return id, nil, err
	}
	w, err := a.openWarehouse(cmd.Context())
	if err != nil {
		return id, nil, err
	}
	raw, err := w.Get(cmd.Context(), w.Path(id, what+"s"), q)
	if err != nil {
		return id, nil, missing(err, what, id)
	}
	if err := json.Unmarshal(raw, into); err != nil {
		return id, nil, fmt.Errorf("%s %s: the answer is not what the protocol says: %w", what, id, err)
	}
	return id, raw, nil
}

// missing tells what to try when a table or view is not there.
func missing(err error, what string, id icebergrest.Ident) error {
	var e *icebergrest.Error
	if errors.As(err, &e) && e.Type == "NoSuchNamespaceException" {
		return inNamespace(err)
	}
	return nextFor(err, http.StatusNotFound, "sharectl "+what+" list "+id.Namespace.String())
}

func millis(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }

// typeText writes an Iceberg type in a line.
func typeText(raw json.RawMessage) string {
	var name string
	if json.Unmarshal(raw, &name) == nil {
		return name
	}
	var t struct {
		Type    string          `json:"type"`
		Fields  []fieldJSON     `json:"fields"`
		Element json.RawMessage `json:"element"`
		Key     json.RawMessage `json:"key"`
		Value   json.RawMessage `json:"value"`
	}
	if json.Unmarshal(raw, &t) != nil {
		return string(raw)
	}
	switch t.Type {
	case "struct":
		var fields []string
		for _, f := range t.Fields {
			fields = append(fields, f.Name+": "+typeText(f.Type))
		}
		return "struct<" + strings.Join(fields, ", ") + ">"
	case "list":
		return "list<" + typeText(t.Element) + ">"
	case "map":
		return "map<" + typeText(t.Key) + ", " + typeText(t.Value) + ">"
	}
	return string(raw)
}

// schemaText is a schema with a line for each column.
func schemaText(all []schemaJSON, current int) (text string, names map[int]string) {
	names = map[int]string{}
	i := slices.IndexFunc(all, func(s schemaJSON) bool { return s.ID == current })
	if i < 0 {
		return "", names
	}
	width := 0
	for _, f := range all[i].Fields {
		width = max(width, len([]rune(f.Name)))
	}
	var b strings.Builder
	for _, f := range all[i].Fields {
		names[f.ID] = f.Name
		line := fmt.Sprintf("%-*s  %s", width, f.Name, typeText(f.Type))
		if f.Required {
			line += "  required"
		}
		if f.Doc != "" {
			line += "  -- " + strings.Join(strings.Fields(f.Doc), " ")
		}
		b.WriteString(line + "\n")
	}
	return b.String(), names
}

func (a *app) tableCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "table", Short: "Tables"}
	cmd.AddCommand(a.listing("table"), a.tableShow(), a.tableHistory(), a.tableSet(), a.rename("table"), a.tableRegister(), a.tableDrop())
	return cmd
}

func (a *app) viewCommand() *cobra.Command {
	cmd := &cobra.Command{Use: "view", Short: "Views"}
	cmd.AddCommand(a.listing("view"), a.viewShow(), a.rename("view"), a.viewDrop())
	return cmd
}

// listing lists the tables or views of a namespace.
func (a *app) listing(what string) *cobra.Command {
	return &cobra.Command{
		Use: "list NAMESPACE", Aliases: []string{"ls"}, Short: "List the " + what + "s of a namespace", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeNamespace,
		RunE: func(cmd *cobra.Command, args []string) error {
			ns, err := namespaceOf(args[0])
			if err != nil {
				return err
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			found, err := w.List(cmd.Context(), ns, what+"s")
			if err != nil {
				return inNamespace(err)
			}
			l := list{columns: []string{strings.ToUpper(what)}, value: append([]icebergrest.Ident{}, found...), none: fmt.Sprintf("There is no %s in %s.", what, ns)}
			for _, id := range found {
				l.rows = append(l.rows, []string{id.String()})
			}
			return a.print(l)
		},
	}
}

func (a *app) tableShow() *cobra.Command {
	return &cobra.Command{
		Use: "show TABLE", Short: "Show a table: columns, partitioning, size, properties", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIdent("tables"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var t tableAnswer
			id, raw, err := a.load(cmd, args[0], "table", url.Values{"snapshots": {"refs"}}, &t)
			if err != nil {
				return err
			}
			m := &t.Metadata
			columns, names := schemaText(m.Schemas, m.CurrentSchema)
			var partitioning []string
			for _, s := range m.Specs {
				for _, f := range s.Fields {
					if s.ID == m.DefaultSpec {
						partitioning = append(partitioning, fmt.Sprintf("%s(%s)", f.Transform, first(names[f.Source], "field "+strconv.Itoa(f.Source))))
					}
				}
			}
			pairs := [][2]string{
				{"Table", id.String()},
				{"UUID", m.UUID},
				{"Format version", strconv.Itoa(m.FormatVersion)},
				{"Location", m.Location},
				{"Metadata", t.MetadataLocation},
				{"Updated", millis(m.LastUpdated)},
				{"Columns", columns},
				{"Partitioned by", strings.Join(partitioning, ", ")},
			}
			if s := current(m.CurrentSnapshot, m.Snapshots); s != nil {
				pairs = append(pairs, [2]string{"Snapshot", fmt.Sprintf("%d of %s", s.ID, millis(s.Timestamp))},
					[2]string{"Rows", s.Summary["total-records"]}, [2]string{"Data files", s.Summary["total-data-files"]}, [2]string{"Delete files", nonZero(s.Summary["total-delete-files"])},
					[2]string{"Bytes", s.Summary["total-files-size"]})
			}
			var refs []string
			for name, r := range m.Refs {
				refs = append(refs, fmt.Sprintf("%s (%s) at %d", name, r.Type, r.Snapshot))
			}
			slices.Sort(refs)
			return a.show(sheet{value: raw, pairs: append(pairs, [2]string{"References", strings.Join(refs, ", ")}, [2]string{"Properties", lines(m.Properties)})})
		},
	}
}

func nonZero(s string) string {
	if s == "0" {
		return ""
	}
	return s
}

func current(id *int64, all []snapshotJSON) *snapshotJSON {
	for i := range all {
		if id != nil && all[i].ID == *id {
			return &all[i]
		}
	}
	return nil
}

func (a *app) tableHistory() *cobra.Command {
	return &cobra.Command{
		Use: "history TABLE", Short: "List a table's snapshots, the newest first", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIdent("tables"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var t tableAnswer
			id, _, err := a.load(cmd, args[0], "table", url.Values{"snapshots": {"all"}}, &t)
			if err != nil {
				return err
			}
			all := append([]snapshotJSON{}, t.Metadata.Snapshots...)
			slices.Reverse(all)
			slices.SortStableFunc(all, func(a, b snapshotJSON) int { return int(min(max(b.Timestamp-a.Timestamp, -1), 1)) })
			l := list{columns: []string{"SNAPSHOT", "TIME", "OPERATION", "ADDED ROWS", "DELETED ROWS", "ROWS", "REFERENCES"}, value: all, none: fmt.Sprintf("Table %s has no snapshot yet.", id)}
			for _, s := range all {
				var refs []string
				for name, r := range t.Metadata.Refs {
					if r.Snapshot == s.ID {
						refs = append(refs, name)
					}
				}
				slices.Sort(refs)
				l.rows = append(l.rows, []string{
					strconv.FormatInt(s.ID, 10), millis(s.Timestamp), s.Summary["operation"], s.Summary["added-records"], s.Summary["deleted-records"],
					s.Summary["total-records"], strings.Join(refs, ", "),
				})
			}
			return a.print(l)
		},
	}
}

func (a *app) tableSet() *cobra.Command {
	var set, remove []string
	cmd := &cobra.Command{
		Use: "set TABLE", Short: "Set and remove properties", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIdent("tables"),
		Example: "  sharectl table set sales.orders --property owner=emea",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := identOf(args[0], "table")
			if err != nil {
				return err
			}
			p, err := pairsOf("property", set)
			if err != nil {
				return err
			}
			updates := []any{}
			if len(p) > 0 {
				updates = append(updates, map[string]any{"action": "set-properties", "updates": p})
			}
			if len(remove) > 0 {
				updates = append(updates, map[string]any{"action": "remove-properties", "removals": remove})
			}
			if len(updates) == 0 {
				return usage(errors.New("what is to be set?"), cmd.CommandPath()+" "+args[0]+" --property KEY=VALUE")
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := a.send(cmd.Context(), w, request{method: http.MethodPost, path: w.Path(id, "tables"), body: map[string]any{"requirements": []any{}, "updates": updates}}); err != nil {
				return missing(err, "table", id)
			}
			a.done("Changed the properties of %s.", id)
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&set, "property", nil, "KEY=VALUE; can be given again")
	cmd.Flags().StringArrayVar(&remove, "remove", nil, "KEY to remove; can be given again")
	return cmd
}

func (a *app) rename(what string) *cobra.Command {
	return &cobra.Command{
		Use: "rename FROM TO", Short: "Rename a " + what + ", also into another namespace", Args: cobra.ExactArgs(2), ValidArgsFunction: a.completeIdent(what + "s"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := identOf(args[0], what)
			if err != nil {
				return err
			}
			to, err := identOf(args[1], what)
			if err != nil {
				return err
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := a.send(cmd.Context(), w, request{method: http.MethodPost, path: w.Base() + "/" + what + "s/rename", body: map[string]any{"source": from, "destination": to}}); err != nil {
				return missing(err, what, from)
			}
			a.done("Renamed %s to %s.", from, to)
			return nil
		},
	}
}

func (a *app) tableRegister() *cobra.Command {
	var location string
	var overwrite bool
	cmd := &cobra.Command{
		Use: "register TABLE", Short: "Register a table that exists in storage", Args: cobra.ExactArgs(1),
		Example: "  sharectl table register sales.orders --metadata-location s3://lake/sales/orders/metadata/00042-….metadata.json",
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := identOf(args[0], "table")
			if err != nil {
				return err
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			body := map[string]any{"name": id.Name, "metadata-location": location}
			if overwrite {
				body["overwrite"] = true
			}
			if _, err := a.send(cmd.Context(), w, request{method: http.MethodPost, path: w.Path(icebergrest.Ident{Namespace: id.Namespace}, "") + "/register", body: body}); err != nil {
				return missing(err, "table", id)
			}
			a.done("Registered %s.", id)
			return nil
		},
	}
	cmd.Flags().StringVar(&location, "metadata-location", "", "the table's metadata file")
	cmd.Flags().BoolVar(&overwrite, "overwrite", false, "in the place of a table of that name")
	_ = cmd.MarkFlagRequired("metadata-location")
	return cmd
}

func (a *app) tableDrop() *cobra.Command {
	var purge bool
	cmd := &cobra.Command{
		Use: "drop TABLE", Short: "Drop a table; its files stay, unless --purge", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIdent("tables"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := identOf(args[0], "table")
			if err != nil {
				return err
			}
			what := "Drop table " + id.String()
			var q url.Values
			if purge {
				what, q = what+" and delete its files", url.Values{"purgeRequested": {"true"}}
			}
			if err := a.confirm(what); err != nil {
				return err
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := a.send(cmd.Context(), w, request{method: http.MethodDelete, path: w.Path(id, "tables"), query: q}); err != nil {
				return missing(err, "table", id)
			}
			a.done("Dropped %s.", id)
			return nil
		},
	}
	cmd.Flags().BoolVar(&purge, "purge", false, "delete its files, too")
	return cmd
}

func (a *app) viewShow() *cobra.Command {
	return &cobra.Command{
		Use: "show VIEW", Short: "Show a view: columns, and its SQL in each dialect", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIdent("views"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var v struct {
				Metadata struct {
					UUID       string            `json:"view-uuid"`
					Location   string            `json:"location"`
					Current    int               `json:"current-version-id"`
					Properties map[string]string `json:"properties"`
					Schemas    []schemaJSON      `json:"schemas"`
					Versions   []struct {
						ID              int                   `json:"version-id"`
						Timestamp       int64                 `json:"timestamp-ms"`
						Schema          int                   `json:"schema-id"`
						Namespace       icebergrest.Namespace `json:"default-namespace"`
						Catalog         string                `json:"default-catalog"`
						Representations []struct{ Type, SQL, Dialect string }
					} `json:"versions"`
				} `json:"metadata"`
			}
			id, raw, err := a.load(cmd, args[0], "view", nil, &v)
			if err != nil {
				return err
			}
			m := &v.Metadata
			pairs := [][2]string{{"View", id.String()}, {"UUID", m.UUID}, {"Location", m.Location}}
			for _, version := range m.Versions {
				if version.ID != m.Current {
					continue
				}
				columns, _ := schemaText(m.Schemas, version.Schema)
				pairs = append(pairs, [2]string{"Version", fmt.Sprintf("%d of %s", version.ID, millis(version.Timestamp))},
					[2]string{"Names are looked up in", strings.TrimPrefix(version.Catalog+"."+version.Namespace.String(), ".")}, [2]string{"Columns", columns})
				for _, r := range version.Representations {
					pairs = append(pairs, [2]string{"SQL of " + r.Dialect, r.SQL + "\n"})
				}
			}
			return a.show(sheet{value: raw, pairs: append(pairs, [2]string{"Properties", lines(m.Properties)})})
		},
	}
}

func (a *app) viewDrop() *cobra.Command {
	return &cobra.Command{
		Use: "drop VIEW", Short: "Drop a view", Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeIdent("views"),
		RunE: func(cmd *cobra.Command, args []string) error {
			id, err := identOf(args[0], "view")
			if err != nil {
				return err
			}
			if err := a.confirm("Drop view " + id.String()); err != nil {
				return err
			}
			w, err := a.openWarehouse(cmd.Context())
			if err != nil {
				return err
			}
			if _, err := a.send(cmd.Context(), w, request{method: http.MethodDelete, path: w.Path(id, "views")}); err != nil {
				return missing(err, "view", id)
			}
			a.done("Dropped %s.", id)
			return nil
		},
	}
}
