// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// tableMetadata is what steps compare of a table.
type tableMetadata struct {
	Version    int               `json:"format-version"`
	UUID       string            `json:"table-uuid"`
	Location   string            `json:"location"`
	Properties map[string]string `json:"properties"`
	Current    int64             `json:"current-snapshot-id"`
	Snapshots  []struct {
		ID        int64             `json:"snapshot-id"`
		Summary   map[string]string `json:"summary"`
		Schema    int               `json:"schema-id"`
		Manifests string            `json:"manifest-list"`
	} `json:"snapshots"`
	Refs map[string]struct {
		Type     string `json:"type"`
		Snapshot int64  `json:"snapshot-id"`
	} `json:"refs"`
	Schemas []struct {
		Fields []struct {
			Name string `json:"name"`
		} `json:"fields"`
	} `json:"schemas"`
	Specs []struct {
		Fields []struct {
			Name      string `json:"name"`
			Transform string `json:"transform"`
		} `json:"fields"`
	} `json:"partition-specs"`
	file string // the metadata file's location
}

// table asks the catalog for a table.
func (t *target) table(ctx context.Context, namespace, name string) (*tableMetadata, error) {
	var answer struct {
		File     string        `json:"metadata-location"`
		Metadata tableMetadata `json:"metadata"`
	}
	err := t.do(ctx, http.MethodGet, "/namespaces/"+namespace+"/tables/"+name, nil, &answer, "")
	answer.Metadata.file = answer.File
	return &answer.Metadata, err
}

// missing returns an error unless the catalog says that a path is not there.
func (t *target) missing(ctx context.Context, path string) error {
	var status *statusError
	err := t.do(ctx, http.MethodGet, path, nil, nil, "")
	if errors.As(err, &status) && status.status == http.StatusNotFound {
		return nil
	}
	return fmt.Errorf("GET %s: want a 404, got error %w", path, err)
}

// terminal are the colours that the command prints, also into a pipe; padding
// is what makes its columns as wide as the terminal.
var (
	terminal = regexp.MustCompile("\x1b\\[[0-9;]*m")
	padding  = regexp.MustCompile(` *\| *`)
)

// icebergGo drives the command line of iceberg-go. What a command shows is
// compared with what the catalog answers, and so is what it has changed.
func (r *run) icebergGo(where string, t tools, cat *target, s *objectStore, written []string) {
	env := []string{"HOME=" + r.dir}
	if s != nil {
		env = append(env, "AWS_ACCESS_KEY_ID="+s.keyID, "AWS_SECRET_ACCESS_KEY="+s.secret, "AWS_S3_ENDPOINT="+s.endpoint, "AWS_REGION=us-east-1")
	}
	// cli runs the command and returns what it printed, without colours, with
	// one space where there were several and none beside a bar.
	cli := func(ctx context.Context, args ...string) (string, error) {
		all := append([]string{"--catalog", "rest", "--uri", cat.URI, "--warehouse", cat.Warehouse, "--token", cat.Token}, args...)
		out, err := command(ctx, r.dir, env, t.iceberg, all...)
		var lines []string
		for line := range strings.Lines(terminal.ReplaceAllString(out, "")) {
			lines = append(lines, padding.ReplaceAllString(strings.Join(strings.Fields(line), " "), "|"))
		}
		return strings.Join(lines, "\n"), err
	}
	// shows runs the command and looks for each of the wanted texts.
	shows := func(ctx context.Context, wanted []string, args ...string) error {
		out, err := cli(ctx, args...)
		for _, want := range wanted {
			if err == nil && !strings.Contains(out, want) {
				err = fmt.Errorf("%s: no %q in\n%s", strings.Join(args, " "), want, out)
			}
		}
		return err
	}
	step := func(name string, f func(ctx context.Context) error) {
		r.step(where+": iceberg-go command: "+name, time.Minute, f)
	}
	var uuid string // of the table that is made here

	step("list namespaces", func(ctx context.Context) error { return shows(ctx, []string{"|e2e|"}, "list") })
	step("list tables", func(ctx context.Context) error {
		var wanted []string
		for _, name := range written {
			wanted = append(wanted, "|e2e."+name+"|")
		}
		return shows(ctx, wanted, "list", "e2e")
	})
	step("create namespace", func(ctx context.Context) error {
		if err := shows(ctx, nil, "create", "namespace", "e2e_go"); err != nil {
			return err
		}
		return cat.do(ctx, http.MethodGet, "/namespaces/e2e_go", nil, nil, "")
	})
	step("set and get a namespace's property", func(ctx context.Context) error {
		if err := shows(ctx, nil, "properties", "set", "namespace", "e2e_go", "owner", "go"); err != nil {
			return err
		}
		var answer struct {
			Properties map[string]string `json:"properties"`
		}
		if err := cat.do(ctx, http.MethodGet, "/namespaces/e2e_go", nil, &answer, ""); err != nil {
			return err
		}
		if answer.Properties["owner"] != "go" {
			return fmt.Errorf("properties of the namespace: %v", answer.Properties)
		}
		out, err := cli(ctx, "properties", "get", "namespace", "e2e_go", "owner")
		if err == nil && strings.TrimSpace(out) != "go" {
			err = fmt.Errorf("the property is shown as %q", out)
		}
		return err
	})
	step("create a table", func(ctx context.Context) error {
		if err := shows(ctx, []string{"created"}, "create", "table", "--partition-spec", "id",
			"--schema", `[{"id":1,"name":"id","required":false,"type":"long"},{"id":2,"name":"name","required":false,"type":"string"}]`, "e2e_go.t"); err != nil {
			return err
		}
		m, err := cat.table(ctx, "e2e_go", "t")
		if err != nil {
			return err
		}
		uuid = m.UUID
		if got, want := fmt.Sprint(m.Schemas, m.Specs), "[{[{id} {name}]}] [{[{id identity}]}]"; got != want {
			return fmt.Errorf("schema and partitioning: got %s, want %s", got, want)
		}
		return shows(ctx, []string{"1000: id: identity(1)"}, "spec", "e2e_go.t")
	})
	step("set a table's property", func(ctx context.Context) error {
		if err := shows(ctx, []string{"Updated"}, "properties", "set", "table", "e2e_go.t", "owner", "go"); err != nil {
			return err
		}
		m, err := cat.table(ctx, "e2e_go", "t")
		if err == nil && m.Properties["owner"] != "go" {
			err = fmt.Errorf("properties of the table: %v", m.Properties)
		}
		return err
	})
	step("upgrade a table to version 3", func(ctx context.Context) error {
		if err := shows(ctx, []string{"Upgraded"}, "upgrade", "--yes", "e2e_go.t", "3"); err != nil {
			return err
		}
		m, err := cat.table(ctx, "e2e_go", "t")
		if err == nil && m.Version != 3 {
			err = fmt.Errorf("format version is %d", m.Version)
		}
		return err
	})
	step("rename a table", func(ctx context.Context) error {
		if err := shows(ctx, []string{"Renamed"}, "rename", "e2e_go.t", "e2e_go.u"); err != nil {
			return err
		}
		m, err := cat.table(ctx, "e2e_go", "u")
		if err != nil {
			return err
		}
		if uuid == "" || m.UUID != uuid {
			return fmt.Errorf("uuid is %s, was %s", m.UUID, uuid)
		}
		out, err := cli(ctx, "properties", "get", "table", "e2e_go.u", "owner")
		if err == nil && strings.TrimSpace(out) != "go" {
			err = fmt.Errorf("the property is shown as %q", out)
		}
		return errors.Join(err, cat.missing(ctx, "/namespaces/e2e_go/tables/t"))
	})
	step("drop a table", func(ctx context.Context) error {
		return errors.Join(shows(ctx, []string{"dropped"}, "drop", "table", "e2e_go.u"), cat.missing(ctx, "/namespaces/e2e_go/tables/u"))
	})
	step("drop namespace", func(ctx context.Context) error {
		return errors.Join(shows(ctx, nil, "drop", "namespace", "e2e_go"), cat.missing(ctx, "/namespaces/e2e_go"))
	})

	// What Spark has written.
	step("tag a snapshot", func(ctx context.Context) error {
		if err := shows(ctx, []string{"from_go"}, "tag", "create", "--yes", "e2e.spark", "from_go"); err != nil {
			return err
		}
		m, err := cat.table(ctx, "e2e", "spark")
		if err != nil {
			return err
		}
		if ref := m.Refs["from_go"]; m.Current == 0 || ref.Type != "tag" || ref.Snapshot != m.Current {
			return fmt.Errorf("the tag is %+v, the current snapshot %d", ref, m.Current)
		}
		id := strconv.FormatInt(m.Current, 10)
		return shows(ctx, []string{"from_go|tag|" + id, "main|branch|" + id}, "refs", "e2e.spark")
	})
	step("snapshots of a table", func(ctx context.Context) error {
		m, err := cat.table(ctx, "e2e", "spark")
		if err != nil {
			return err
		}
		var wanted []string
		for _, snapshot := range m.Snapshots {
			wanted = append(wanted, strconv.FormatInt(snapshot.ID, 10)+"|")
		}
		if len(wanted) < 4 {
			return fmt.Errorf("Spark's table has %d snapshots", len(wanted))
		}
		return shows(ctx, wanted, "snapshots", "e2e.spark")
	})
	step("describe a table", func(ctx context.Context) error {
		m, err := cat.table(ctx, "e2e", "pyiceberg")
		if err != nil {
			return err
		}
		return shows(ctx, []string{m.UUID, m.file, "1: id: optional long", "id_bucket: bucket[4](1)"}, "describe", "e2e.pyiceberg")
	})
	step("schema of a table", func(ctx context.Context) error {
		return shows(ctx, []string{"1: id: optional long", "2: name: optional string", "3: n: optional long", "4: more: optional int"}, "schema", "e2e.spark")
	})
	step("location of a table", func(ctx context.Context) error {
		m, err := cat.table(ctx, "e2e", "spark")
		if err != nil {
			return err
		}
		out, err := cli(ctx, "location", "e2e.spark")
		if err == nil && strings.TrimSpace(out) != m.Location {
			err = fmt.Errorf("the location is shown as %q, and is %q", out, m.Location)
		}
		return err
	})
	step("files of a table", func(ctx context.Context) error {
		m, err := cat.table(ctx, "e2e", "spark")
		if err != nil {
			return err
		}
		// The command also shows the files that the snapshot's manifests say
		// are deleted.
		for _, snapshot := range m.Snapshots {
			if snapshot.ID != m.Current {
				continue
			}
			out, err := cli(ctx, "files", "e2e.spark")
			if err != nil {
				return err
			}
			shown, live := strings.Count(out, "Datafile: "), snapshot.Summary["total-data-files"]
			if n, err := strconv.Atoi(live); err != nil || n == 0 || shown < n {
				return fmt.Errorf("%d data files are shown, and there are %q:\n%s", shown, live, out)
			}
			if want := fmt.Sprintf("Snapshot %d, schema %d: %s", snapshot.ID, snapshot.Schema, snapshot.Manifests); !strings.Contains(out, want) {
				return fmt.Errorf("no %q in\n%s", want, out)
			}
			return nil
		}
		return errors.New("the table has no current snapshot")
	})
}
