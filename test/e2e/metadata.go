// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-data/sluice/test/install"
)

// metadataCase is a table's metadata, updates for it, and what has to come out.
type metadataCase struct {
	Name    string          `json:"name"`
	Base    json.RawMessage `json:"base"`
	Updates json.RawMessage `json:"updates"`

	java   json.RawMessage // outcome of Java's builder, or {"ERR":…}
	choice struct {        // where the catalog differs on purpose
		Unchanged bool            `json:"unchanged"`
		Invalid   string          `json:"invalid"`
		Patch     json.RawMessage `json:"patch"`
		Reason    string          `json:"reason"`
	}
}

// written is a metadata file that a commit has made; want is Java's outcome
// of the same commit, absent where a choice was made.
type written struct {
	Name string          `json:"name"`
	File string          `json:"file"`
	Want json.RawMessage `json:"want,omitempty"`

	java json.RawMessage // its outcome, with or without a choice; nil when it has none
}

// metadata sends every case of internal/catalog/metadata/testdata through the
// commit endpoint, and has Java and PyIceberg read what the catalog wrote.
func metadata(r *run) {
	var jars, python string
	if !r.step("install Iceberg for Java and PyIceberg", 20*time.Minute, func(ctx context.Context) (err error) {
		if jars, err = install.Jars(ctx, "iceberg-core", install.Core); err != nil {
			return err
		}
		python, err = install.Python(ctx, "clients", install.Clients)
		return err
	}) {
		return
	}
	var files []written
	r.step("every case through the commit endpoint", 5*time.Minute, func(ctx context.Context) error {
		cases, err := readCases(filepath.Join(r.root, "internal", "catalog", "metadata", "testdata"))
		if err != nil {
			return err
		}
		t, err := r.sqlite(ctx, filepath.Join(r.dir, "metadata"), 0)
		if err != nil {
			return err
		}
		if err := t.do(ctx, "POST", "/namespaces", map[string]any{"namespace": []string{"cases"}}, nil, ""); err != nil {
			return errors.Join(err, t.stop())
		}
		var failed []error
		for _, c := range cases {
			w, err := c.commit(ctx, t, filepath.Join(r.dir, "metadata", "warehouse"))
			if err != nil {
				failed = append(failed, fmt.Errorf("%s: %w", c.Name, err))
			} else if w.File != "" {
				files = append(files, w)
			}
		}
		fmt.Printf("     %d cases, %d metadata files written\n", len(cases), len(files))
		return errors.Join(append(failed, t.stop())...)
	})
	if len(files) == 0 {
		return
	}
	r.step("Java reads what was written, as it would have written it", 2*time.Minute, func(ctx context.Context) error {
		java, err := install.JavaHome(ctx, 17)
		if err != nil {
			return err
		}
		jobs, err := json.Marshal(files)
		if err != nil {
			return err
		}
		list := filepath.Join(r.dir, "metadata", "files.json")
		if err := os.WriteFile(list, jobs, 0o600); err != nil {
			return err
		}
		out, err := command(ctx, r.dir, nil, filepath.Join(java, "bin", "java"),
			"-cp", install.Classpath(jars), filepath.Join(r.root, "test", "e2e", "metadata", "ReadBack.java"), list)
		return allOK(out, err, len(files))
	})
	r.step("PyIceberg reads what was written", 2*time.Minute, func(ctx context.Context) error {
		lines := filepath.Join(r.dir, "metadata", "files.txt")
		var list strings.Builder
		for _, w := range files {
			java := "-"
			if w.java != nil {
				java = filepath.Join(r.dir, "metadata", "java-"+w.Name+".metadata.json")
				if err := os.WriteFile(java, w.java, 0o600); err != nil {
					return err
				}
			}
			fmt.Fprintln(&list, w.Name, w.File, java)
		}
		if err := os.WriteFile(lines, []byte(list.String()), 0o600); err != nil {
			return err
		}
		out, err := command(ctx, r.dir, nil, python, filepath.Join(r.root, "test", "e2e", "metadata", "read_back.py"), lines)
		fmt.Printf("     of them, %d hold what PyIceberg cannot read in Java's file either\n", strings.Count(out, "(nor Java's)"))
		return allOK(out, err, len(files))
	})
}

// allOK wants n lines that begin with ok, and no other result.
func allOK(out string, err error, n int) error {
	if err != nil {
		return err
	}
	ok := 0
	var failed []string
	for line := range strings.Lines(out) {
		switch {
		case strings.HasPrefix(line, "ok "):
			ok++
		case strings.HasPrefix(line, "FAIL "):
			failed = append(failed, strings.TrimSpace(line))
		}
	}
	if len(failed) > 0 || ok != n {
		return fmt.Errorf("%d of %d are as they should be\n%s", ok, n, strings.Join(failed, "\n"))
	}
	return nil
}

func readCases(dir string) ([]metadataCase, error) {
	var cases []metadataCase
	java := map[string]json.RawMessage{}
	choices := map[string]json.RawMessage{}
	for name, into := range map[string]any{"updates.json": &cases, "updates-java.json": &java, "choices.json": &choices} {
		raw, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(raw, into); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	for i := range cases {
		c := &cases[i]
		if c.java = java[c.Name]; c.java == nil {
			return nil, fmt.Errorf("%s: no outcome of Java", c.Name)
		}
		if raw, ok := choices[c.Name]; ok {
			if err := json.Unmarshal(raw, &c.choice); err != nil {
				return nil, fmt.Errorf("%s: %w", c.Name, err)
			}
		}
	}
	return cases, nil
}

// commit registers the case's table in its own folder, sends the updates, and
// checks the status. The file is empty when the commit had to fail.
func (c metadataCase) commit(ctx context.Context, t *target, warehouse string) (w written, err error) {
	dir := filepath.Join(warehouse, "case-"+c.Name)
	base := "file://" + dir + "/metadata/00000-base.metadata.json"
	// The files that the case names have to lie with the table.
	place := func(raw json.RawMessage) json.RawMessage {
		return json.RawMessage(strings.NewReplacer(
			"s3://bucket/test/location", "file://"+dir, "s3://bucket/.../", "file://"+dir+"/metadata/", "s3://a/b/", "file://"+dir+"/metadata/",
			"s3://new/loc/", "file://"+dir+"-moved/", "s3://new/loc", "file://"+dir+"-moved", "s3://prev/v.json", base).Replace(string(raw)))
	}
	if err := os.MkdirAll(filepath.Join(dir, "metadata"), 0o755); err != nil {
		return w, err
	}
	if err := os.WriteFile(strings.TrimPrefix(base, "file://"), place(c.Base), 0o644); err != nil {
		return w, err
	}
	if err := t.do(ctx, "POST", "/namespaces/cases/register", map[string]any{"name": c.Name, "metadata-location": base}, nil, ""); err != nil {
		return w, fmt.Errorf("register: %w", err)
	}
	var answer struct {
		MetadataLocation string `json:"metadata-location"`
	}
	err = t.do(ctx, "POST", "/namespaces/cases/tables/"+c.Name, map[string]any{"requirements": []any{}, "updates": place(c.Updates)}, &answer, "")
	// The cases' tables have one UUID.
	if derr := t.do(ctx, "DELETE", "/namespaces/cases/tables/"+c.Name, nil, nil, ""); derr != nil {
		return w, fmt.Errorf("drop: %w", derr)
	}
	status := 200
	var refused *statusError
	if errors.As(err, &refused) {
		status = refused.status
	} else if err != nil {
		return w, err
	}
	var java struct{ ERR string }
	if err := json.Unmarshal(c.java, &java); err != nil {
		return w, err
	}
	want := 200
	switch {
	case c.choice.Unchanged:
	case c.choice.Invalid != "":
		want = 400
	case strings.HasPrefix(java.ERR, "RetryableValidationException"):
		want = 409
	case java.ERR != "":
		want = 400
	}
	if status != want || c.choice.Invalid != "" && !strings.Contains(refused.body, c.choice.Invalid) {
		return w, fmt.Errorf("status %d (%w), want %d %s; Java: %s", status, err, want, c.choice.Invalid, java.ERR)
	}
	if c.choice.Unchanged && answer.MetadataLocation != base {
		return w, fmt.Errorf("a new version %s was written; nothing had to change", answer.MetadataLocation)
	}
	if status != 200 {
		return w, nil
	}
	w = written{Name: c.Name, File: strings.TrimPrefix(answer.MetadataLocation, "file://")}
	if java.ERR == "" {
		w.java = place(c.java)
	}
	if c.choice.Reason == "" {
		w.Want = place(c.java)
	}
	return w, nil
}
