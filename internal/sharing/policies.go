// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package sharing

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/google/uuid"

	"github.com/sluice-data/sluice/internal/catalog"
	"github.com/sluice-data/sluice/internal/policy"
	"github.com/sluice-data/sluice/internal/policy/enforce"
)

// Limits of policy versions.
const (
	maxPolicyFiles = 1000
	maxPolicyBytes = 8 << 20 // of all files of a version
	// maxPolicyTables bounds how many tables a version is checked against.
	maxPolicyTables = 2000
)

func (k PolicyKey) check() error {
	if err := checkName("name", k.Name); err != nil {
		return err
	}
	switch {
	case k.Layer != LayerPlatform && k.Layer != LayerProvider && k.Layer != LayerRecipient:
		return invalid("layer", "must be platform, provider or recipient")
	case k.Layer == LayerPlatform && k.Organisation != "":
		return invalid("organisation", "the platform's policies belong to no organisation")
	case k.Layer != LayerPlatform && k.Organisation == "":
		return invalid("organisation", "is required, but for the platform's policies")
	}
	return nil
}

func (p *PolicySet) change(detail map[string]any) change {
	return change{"policy/" + p.String(), p.Organisation, detail}
}

// CreatePolicySet creates an empty set. An owner has one in each layer.
func (s *Service) CreatePolicySet(ctx context.Context, m Mutation, p PolicySet) (PolicySet, error) {
	if err := firstError(p.PolicyKey.check(), checkText("description", p.Description, maxLongText, true)); err != nil {
		return p, err
	}
	p.ID, p.Active, p.Newest, p.Stamp = uuid.Must(uuid.NewV7()), 0, 0, newStamp(s.stamp())
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (PolicySet, change, error) {
		if p.Layer != LayerPlatform {
			if err := holdOrganisation(ctx, tx, p.Organisation); err != nil {
				return p, change{}, err
			}
		}
		err := tx.PutPolicySet(ctx, p)
		if errors.Is(err, ErrExists) {
			err = Errorf(AlreadyExists, "POLICY_SET_EXISTS", "the owner has a policy set of the layer %s already", p.Layer).Try("upload a version of that one: see the list of policy sets")
		}
		return p, p.change(nil), err
	})
}

// PolicySet returns a set.
func (s *Service) PolicySet(ctx context.Context, key PolicyKey) (PolicySet, error) {
	return read(s.store.PolicySet(ctx, key))("policy set", key.String())
}

// PolicySets lists sets by layer, organisation and name.
func (s *Service) PolicySets(ctx context.Context, layer Layer, organisation string, p Page) ([]PolicySet, string, error) {
	all, err := s.store.PolicySets(ctx, layer, organisation, oneMore(p))
	page, next := more(all, p.Limit, func(p PolicySet) string {
		return Key(strconv.Itoa(int(p.Layer)), p.Organisation, p.Name)
	})
	return page, next, storeError(err)
}

// UpdatePolicySet lets apply change the description.
func (s *Service) UpdatePolicySet(ctx context.Context, m Mutation, key PolicyKey, apply func(*PolicySet) error) (PolicySet, error) {
	return s.changeSet(ctx, m, key, func(_ context.Context, _ Tx, p *PolicySet) (map[string]any, error) {
		return nil, firstError(apply(p), checkText("description", p.Description, maxLongText, true))
	})
}

// errUnchanged ends a change that has nothing to do.
var errUnchanged = errors.New("nothing to do")

func (s *Service) changeSet(ctx context.Context, m Mutation, key PolicyKey, fn func(context.Context, Tx, *PolicySet) (map[string]any, error)) (PolicySet, error) {
	return mutate(ctx, s, m, func(ctx context.Context, tx Tx) (PolicySet, change, error) {
		p, err := tx.PolicySet(ctx, key)
		if err != nil {
			return p, change{}, named(err, "policy set", key.String())
		}
		if err := checkEtag(m, "policy set", key.String(), p.Stamp); err != nil {
			return p, change{}, err
		}
		detail, err := fn(ctx, tx, &p)
		if errors.Is(err, errUnchanged) {
			return p, p.change(detail), nil
		}
		if err != nil {
			return p, change{}, err
		}
		p.Stamp = p.Stamp.next(s.stamp())
		return p, p.change(detail), named(tx.PutPolicySet(ctx, p), "policy set", key.String())
	})
}

// checkFiles applies the rules for files and returns their digest.
func checkFiles(files []PolicyFile) (digest string, err error) {
	if len(files) == 0 {
		return "", invalid("files", "a version has at least one file")
	}
	if len(files) > maxPolicyFiles {
		return "", invalid("files", "a version has at most %d files", maxPolicyFiles)
	}
	slices.SortFunc(files, func(a, b PolicyFile) int { return strings.Compare(a.Path, b.Path) })
	total := 0
	sum := sha256.New()
	for i, f := range files {
		switch {
		case f.Path == "" || len(f.Path) > 512 || path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || strings.HasPrefix(f.Path, "../"):
			return "", invalid("files", "%q is not a clean relative path", clip(f.Path))
		case i > 0 && files[i-1].Path == f.Path:
			return "", invalid("files", "%q is there twice", clip(f.Path))
		case !isPolicies(f.Path) && !isCases(f.Path):
			return "", invalid("files", "%q is neither policies (*.cedar) nor cases (*.yaml)", clip(f.Path))
		}
		if err := firstError(checkText("files", f.Path, 512, false), checkText("files", f.Text, maxPolicyBytes, true)); err != nil {
			return "", err
		}
		total += len(f.Text)
		var size [8]byte
		for _, part := range []string{f.Path, f.Text} {
			binary.BigEndian.PutUint64(size[:], uint64(len(part)))
			sum.Write(size[:])
			sum.Write([]byte(part))
		}
	}
	if total > maxPolicyBytes {
		return "", invalid("files", "a version has at most %d bytes", maxPolicyBytes)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

func isPolicies(p string) bool { return path.Ext(p) == ".cedar" }

func isCases(p string) bool { return path.Ext(p) == ".yaml" || path.Ext(p) == ".yml" }

// parsed is what a version's files come to.
type parsed struct {
	set   *policy.Set
	cases []*policy.Cases
}

// parse parses files; what is wrong is in the problems.
func (s *Service) parse(files []PolicyFile) (parsed, policy.Problems) {
	var out parsed
	var problems policy.Problems
	collect := func(err error) {
		var p policy.Problems
		if errors.As(err, &p) {
			problems = append(problems, p...)
		} else if err != nil {
			problems = append(problems, policy.Problem{Message: err.Error()})
		}
	}
	var sources []policy.Source
	for _, f := range files {
		if isPolicies(f.Path) {
			sources = append(sources, policy.Source{File: f.Path, Text: []byte(f.Text)})
			continue
		}
		c, err := policy.ParseCases(f.Path, []byte(f.Text))
		collect(err)
		out.cases = append(out.cases, c)
	}
	var err error
	out.set, err = policy.Parse(s.cfg.Schema, sources...)
	collect(err)
	return out, problems
}

// UploadedVersion is a version that was uploaded, with what is wrong only with
// the tables that there are now.
type UploadedVersion struct {
	Version   PolicyVersion
	Problems  policy.Problems
	Unchanged bool // it was the newest already
}

// UploadPolicyVersion keeps a new version that parses.
func (s *Service) UploadPolicyVersion(ctx context.Context, m Mutation, key PolicyKey, files []PolicyFile, comment string) (UploadedVersion, error) {
	files = slices.Clone(files)
	digest, err := checkFiles(files)
	if err := firstError(err, checkText("comment", comment, maxText, false)); err != nil {
		return UploadedVersion{}, err
	}
	what, problems := s.parse(files)
	if len(problems) > 0 {
		return UploadedVersion{}, refused("POLICY_INVALID", "the policies cannot be used", problems)
	}
	_, _, found, err := s.checkTables(ctx, key, what.set, files)
	if err != nil {
		return UploadedVersion{}, err
	}
	up := UploadedVersion{Problems: found}
	encode := m.Answer
	if encode != nil { // the answer is about the version, not the set
		m.Answer = func(any) (json.RawMessage, error) { return encode(up) }
	}
	_, err = s.changeSet(ctx, m, key, func(ctx context.Context, tx Tx, p *PolicySet) (map[string]any, error) {
		up.Unchanged = false
		if p.Newest > 0 {
			newest, err := tx.PolicyVersion(ctx, p.ID, p.Newest)
			if err != nil {
				return nil, err
			}
			if newest.Digest == digest {
				up.Version, up.Unchanged = newest, true
				return map[string]any{"version": p.Newest, "unchanged": true}, errUnchanged
			}
		}
		p.Newest++
		up.Version = PolicyVersion{
			Set: p.ID, Version: p.Newest, Comment: comment, Principal: m.Principal, Digest: digest, Files: files, Policies: what.set.Len(), CreatedAt: s.stamp(),
		}
		return map[string]any{"version": p.Newest, "digest": digest}, tx.AddPolicyVersion(ctx, up.Version)
	})
	if err != nil {
		return UploadedVersion{}, err
	}
	return up, nil
}

// refused is the error of policies that are not taken, with the first few
// problems.
func refused(reason, what string, problems policy.Problems) error {
	const most = 10
	lines := make([]string, 0, most+1)
	for i, p := range problems {
		if i == most {
			lines = append(lines, fmt.Sprintf("and %d more", len(problems)-most))
			break
		}
		lines = append(lines, p.String())
	}
	return Errorf(FailedPrecondition, reason, "%s:\n%s", what, strings.Join(lines, "\n")).Try("correct the files, and check them before you send them again: sharectl policy check")
}

// PolicyVersion returns a version with its files; 0 is the active one.
func (s *Service) PolicyVersion(ctx context.Context, key PolicyKey, version int64) (PolicyVersion, error) {
	p, err := s.PolicySet(ctx, key)
	if err != nil {
		return PolicyVersion{}, err
	}
	if version == 0 {
		if version = p.Active; version == 0 {
			return PolicyVersion{}, Errorf(FailedPrecondition, "NOTHING_ACTIVE", "no version of policy set %q is active", key).Try("name a version, or activate one")
		}
	}
	return read(s.store.PolicyVersion(ctx, p.ID, version))("policy version", fmt.Sprintf("%s@%d", key, version))
}

// PolicyVersions lists a set's versions, newest first, without files.
func (s *Service) PolicyVersions(ctx context.Context, key PolicyKey, p Page) ([]PolicyVersion, string, error) {
	set, err := s.PolicySet(ctx, key)
	if err != nil {
		return nil, "", err
	}
	all, err := s.store.PolicyVersions(ctx, set.ID, oneMore(p))
	page, next := more(all, p.Limit, func(v PolicyVersion) string { return strconv.FormatInt(v.Version, 10) })
	return page, next, storeError(err)
}

// PolicyActivations lists what was active when, newest first.
func (s *Service) PolicyActivations(ctx context.Context, key PolicyKey, p Page) ([]PolicyActivation, string, error) {
	set, err := s.PolicySet(ctx, key)
	if err != nil {
		return nil, "", err
	}
	all, err := s.store.PolicyActivations(ctx, set.ID, oneMore(p))
	page, next := more(all, p.Limit, func(a PolicyActivation) string { return strconv.FormatInt(a.ID, 10) })
	return page, next, storeError(err)
}

// Checked is what checking policies came to.
type Checked struct {
	Problems policy.Problems
	Policies int
	Tables   []string // those that the policies were checked against
}

// filesOf returns files, or those of a version when there are none.
func (s *Service) filesOf(ctx context.Context, key PolicyKey, files []PolicyFile, version int64) ([]PolicyFile, error) {
	if len(files) == 0 {
		v, err := s.PolicyVersion(ctx, key, version)
		return v.Files, err
	}
	files = slices.Clone(files)
	_, err := checkFiles(files)
	return files, err
}

// CheckPolicies finds all that is wrong with files, or with a version.
func (s *Service) CheckPolicies(ctx context.Context, key PolicyKey, files []PolicyFile, version int64) (Checked, error) {
	files, err := s.filesOf(ctx, key, files, version)
	if err != nil {
		return Checked{}, err
	}
	what, problems := s.parse(files)
	if what.set == nil {
		return Checked{Problems: problems}, nil
	}
	tables, _, found, err := s.checkTables(ctx, key, what.set, files)
	return Checked{append(problems, found...), what.set.Len(), tables}, err
}

// CaseResult is the outcome of one case.
type CaseResult struct {
	File, Name string
	Passed     bool
	Message    string
}

// TestPolicies runs the cases that come with files, or with a version. When
// the policies themselves are wrong the problems say so and no case is run.
func (s *Service) TestPolicies(ctx context.Context, key PolicyKey, files []PolicyFile, version int64) ([]CaseResult, policy.Problems, error) {
	files, err := s.filesOf(ctx, key, files, version)
	if err != nil {
		return nil, nil, err
	}
	what, problems := s.parse(files)
	if len(problems) > 0 {
		return nil, problems, nil
	}
	results, problems := runCases(what, files)
	return results, problems, nil
}

// runCases runs all cases; problems are what is wrong but with a case.
func runCases(what parsed, files []PolicyFile) ([]CaseResult, policy.Problems) {
	var results []CaseResult
	var rest policy.Problems
	i := 0
	for _, f := range files {
		if !isCases(f.Path) {
			continue
		}
		c := what.cases[i]
		i++
		failed := map[string][]string{}
		for _, p := range c.Run(what.set) {
			name := caseOf(p.Message, c)
			if name == "" {
				rest = append(rest, p)
				continue
			}
			failed[name] = append(failed[name], p.Message)
		}
		for _, k := range c.Cases {
			results = append(results, CaseResult{f.Path, k.Name, len(failed[k.Name]) == 0, strings.Join(failed[k.Name], "\n")})
		}
	}
	return results, rest
}

// caseOf returns the name of the case that a message is about.
func caseOf(message string, c *policy.Cases) string {
	for _, k := range c.Cases {
		if strings.HasPrefix(message, fmt.Sprintf("case %q: ", k.Name)) {
			return k.Name
		}
	}
	return ""
}

// Activated is a set after a version became active, with what was before.
type Activated struct {
	Set      PolicySet
	Previous int64 // 0: none
}

// ActivatePolicies makes a version the one in force, if nothing is wrong with
// it.
func (s *Service) ActivatePolicies(ctx context.Context, m Mutation, key PolicyKey, version int64) (Activated, error) {
	if version <= 0 {
		return Activated{}, invalid("version", "is required")
	}
	return s.activate(ctx, m, key, func(PolicySet) (int64, error) { return version, nil }, false)
}

// RollBackPolicies makes the version active that was before the present one.
func (s *Service) RollBackPolicies(ctx context.Context, m Mutation, key PolicyKey) (Activated, error) {
	return s.activate(ctx, m, key, func(p PolicySet) (int64, error) {
		// Back along what was activated, not what was rolled back to.
		history, err := s.store.PolicyActivations(ctx, p.ID, Page{})
		if err != nil {
			return 0, storeError(err)
		}
		for _, a := range history {
			if a.Version == p.Active && !a.Rollback && a.Previous != 0 {
				return a.Previous, nil
			}
		}
		return 0, Errorf(FailedPrecondition, "NO_VERSION_BEFORE", "no version of policy set %q was active before the present one", key).Try("activate a version by its number")
	}, true)
}

func (s *Service) activate(ctx context.Context, m Mutation, key PolicyKey, choose func(PolicySet) (int64, error), rollback bool) (Activated, error) {
	p, err := s.PolicySet(ctx, key)
	if err != nil {
		return Activated{}, err
	}
	version, err := choose(p)
	if err != nil {
		return Activated{}, err
	}
	v, err := s.PolicyVersion(ctx, key, version)
	if err != nil {
		return Activated{}, err
	}
	bindings, err := s.mayActivate(ctx, key, v)
	if err != nil {
		return Activated{}, err
	}
	if encode := m.Answer; encode != nil {
		m.Answer = func(set any) (json.RawMessage, error) { return encode(Activated{set.(PolicySet), p.Active}) }
	}
	set, err := s.changeSet(ctx, m, key, func(ctx context.Context, tx Tx, now *PolicySet) (map[string]any, error) {
		if now.Active != p.Active || now.ID != p.ID {
			return nil, stale("policy set", key.String())
		}
		now.Active = version
		return map[string]any{"version": version, "previous": p.Active, "rollback": rollback, "digest": v.Digest}, tx.AddPolicyActivation(ctx, PolicyActivation{
			Set: p.ID, Version: version, Previous: p.Active, Principal: m.Principal, Time: s.stamp(), Rollback: rollback, Bindings: bindings,
		})
	})
	return Activated{set, p.Active}, err
}

// mayActivate runs everything that can be checked of a version, and returns
// what its names mean.
func (s *Service) mayActivate(ctx context.Context, key PolicyKey, v PolicyVersion) ([]policy.Binding, error) {
	name := fmt.Sprintf("version %d of policy set %q", v.Version, key)
	what, problems := s.parse(v.Files)
	if len(problems) > 0 {
		return nil, refused("POLICY_INVALID", name+" cannot be used", problems)
	}
	_, bindings, problems, err := s.checkTables(ctx, key, what.set, v.Files)
	if err != nil {
		return nil, err
	}
	if len(problems) > 0 {
		return nil, refused("POLICY_DOES_NOT_FIT", name+" does not fit the tables that there are", problems)
	}
	results, problems := runCases(what, v.Files)
	for _, r := range results {
		if !r.Passed {
			problems = append(problems, policy.Problem{File: r.File, Message: r.Message})
		}
	}
	if len(problems) > 0 {
		return nil, refused("POLICY_CASES_FAIL", name+" does not decide as its cases expect", problems)
	}
	return bindings, nil
}

// checkTables checks a set against the tables and views that its policies
// name, themselves or by their namespaces, as far as they exist.
func (s *Service) checkTables(ctx context.Context, key PolicyKey, set *policy.Set, files []PolicyFile) (checked []string, bindings []policy.Binding, problems policy.Problems, err error) {
	if s.cfg.Table == nil {
		return nil, nil, nil, nil
	}
	named, err := entitiesOf(files)
	if err != nil {
		return nil, nil, nil, err
	}
	type target struct {
		warehouse string
		id        catalog.Ident
	}
	// An owner learns of tables that it owns, and of no other.
	owned := map[string]uuid.UUID{}
	owns := func(warehouse string) (bool, error) {
		if _, ok := owned[warehouse]; !ok {
			owned[warehouse] = uuid.Nil
			w, err := s.store.Warehouse(ctx, warehouse)
			switch {
			case errors.Is(err, ErrNotFound):
			case err != nil:
				return false, storeError(err)
			case key.Layer == LayerPlatform || w.Organisation == key.Organisation:
				owned[warehouse] = w.ID
			}
		}
		return owned[warehouse] != uuid.Nil, nil
	}
	var targets, within []target
	for _, e := range named {
		parts := partsOf(string(e.ID))
		if e.Type == "Column" && len(parts) > 3 {
			parts = parts[:len(parts)-1]
		}
		if len(parts) < 2 {
			continue
		}
		if ok, err := owns(parts[0]); err != nil {
			return nil, nil, nil, err
		} else if !ok {
			continue
		}
		switch {
		case len(parts) >= 3 && (e.Type == "Table" || e.Type == "View" || e.Type == "Column"):
			targets = append(targets, target{parts[0], catalog.Ident{Namespace: parts[1 : len(parts)-1], Name: parts[len(parts)-1]}})
		case e.Type == "Namespace":
			for _, kind := range []catalog.Kind{catalog.KindTable, catalog.KindView} {
				names, err := s.store.Objects(ctx, owned[parts[0]], parts[1:], kind, Page{Limit: maxPolicyTables})
				if err != nil {
					return nil, nil, nil, storeError(err)
				}
				for _, name := range names {
					within = append(within, target{parts[0], catalog.Ident{Namespace: parts[1:], Name: name}})
				}
			}
		}
	}
	if len(targets) > maxPolicyTables {
		return nil, nil, policy.Problems{{Message: fmt.Sprintf("the set names %d tables and columns; at most %d", len(targets), maxPolicyTables), Hint: "name a namespace instead"}}, nil
	}
	targets = append(targets, within...)
	seen := map[string]bool{}
	for _, t := range targets {
		name := t.warehouse + "/" + t.id.Resource()
		if seen[name] || len(checked) == maxPolicyTables {
			continue
		}
		seen[name] = true
		table, err := s.cfg.Table(ctx, t.warehouse, t.id)
		if errors.Is(err, ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, nil, nil, storeError(err)
		}
		found, err := set.Check(table)
		if err != nil {
			return nil, nil, nil, storeError(err)
		}
		checked = append(checked, name)
		if b := table.Bind(); b.UUID != "" {
			bindings = append(bindings, b)
		}
		problems = append(problems, found...)
	}
	return checked, bindings, problems, nil
}

// partsOf is the inverse of policy.EntityID; nil for what is no id.
func partsOf(id string) []string {
	parts := strings.Split(id, "/")
	for i := range parts {
		var err error
		if parts[i], err = url.PathUnescape(parts[i]); err != nil {
			return nil
		}
	}
	return parts
}

// entitiesOf returns the entities that policies name, in order.
func entitiesOf(files []PolicyFile) ([]cedar.EntityUID, error) {
	found := map[cedar.EntityUID]bool{}
	for _, f := range files {
		if !isPolicies(f.Path) {
			continue
		}
		policies, err := cedar.NewPolicyListFromBytes(f.Path, []byte(f.Text))
		if err != nil {
			return nil, fmt.Errorf("parse %s again: %w", f.Path, err)
		}
		for _, p := range policies {
			raw, err := p.MarshalJSON()
			if err != nil {
				return nil, fmt.Errorf("encode a policy of %s: %w", f.Path, err)
			}
			var tree any
			if err := json.Unmarshal(raw, &tree); err != nil {
				return nil, err
			}
			collectEntities(tree, found)
		}
	}
	all := make([]cedar.EntityUID, 0, len(found))
	for uid := range found {
		all = append(all, uid)
	}
	slices.SortFunc(all, func(a, b cedar.EntityUID) int { return strings.Compare(a.String(), b.String()) })
	return all, nil
}

// collectEntities walks a policy's JSON form, in which an entity is an object
// with a type and an id.
func collectEntities(tree any, found map[cedar.EntityUID]bool) {
	switch t := tree.(type) {
	case map[string]any:
		typ, isType := t["type"].(string)
		id, isID := t["id"].(string)
		if isType && isID {
			found[cedar.NewEntityUID(cedar.EntityType(typ), cedar.String(id))] = true
		}
		for _, v := range t {
			collectEntities(v, found)
		}
	case []any:
		for _, v := range t {
			collectEntities(v, found)
		}
	}
}

// PolicyDiff is how two versions differ.
type PolicyDiff struct {
	From, To                int64 // 0: none, or files
	Text                    string
	Added, Removed, Changed []string // ids of policies
}

// DiffPolicies compares a version, 0 for the active one or nothing when none
// is, with another, 0 for the newest, or with files.
func (s *Service) DiffPolicies(ctx context.Context, key PolicyKey, from, to int64, files []PolicyFile) (PolicyDiff, error) {
	p, err := s.PolicySet(ctx, key)
	if err != nil {
		return PolicyDiff{}, err
	}
	if from == 0 {
		from = p.Active
	}
	var before []PolicyFile
	if from != 0 {
		v, err := s.PolicyVersion(ctx, key, from)
		if err != nil {
			return PolicyDiff{}, err
		}
		before = v.Files
	}
	if len(files) > 0 {
		to = 0
		files = slices.Clone(files)
		if _, err := checkFiles(files); err != nil {
			return PolicyDiff{}, err
		}
	} else {
		if to == 0 {
			to = p.Newest
		}
		if to == 0 {
			return PolicyDiff{}, Errorf(FailedPrecondition, "NO_VERSION", "policy set %q has no version yet", key).Try("upload one, or send files")
		}
		v, err := s.PolicyVersion(ctx, key, to)
		if err != nil {
			return PolicyDiff{}, err
		}
		files = v.Files
	}
	d := PolicyDiff{From: from, To: to, Text: diffFiles(before, files)}
	old, fresh := policyTexts(before), policyTexts(files)
	for id, text := range fresh {
		if was, ok := old[id]; !ok {
			d.Added = append(d.Added, id)
		} else if was != text {
			d.Changed = append(d.Changed, id)
		}
	}
	for id := range old {
		if _, ok := fresh[id]; !ok {
			d.Removed = append(d.Removed, id)
		}
	}
	slices.Sort(d.Added)
	slices.Sort(d.Changed)
	slices.Sort(d.Removed)
	return d, nil
}

// policyTexts are policies in Cedar's own layout, by their @id, or by their
// file and place in it when they have none.
func policyTexts(files []PolicyFile) map[string]string {
	out := map[string]string{}
	for _, f := range files {
		if !isPolicies(f.Path) {
			continue
		}
		policies, err := cedar.NewPolicyListFromBytes(f.Path, []byte(f.Text))
		if err != nil {
			continue // files of a diff need not parse
		}
		for i, p := range policies {
			id := string(p.Annotations()["id"])
			if id == "" {
				id = fmt.Sprintf("%s#%d", f.Path, i+1)
			}
			out[id] = string(p.MarshalCedar())
		}
	}
	return out
}

// ActiveVersion returns the version of a set that is in force, 0 for none: one
// look-up of one row, for caches.
func (s *Service) ActiveVersion(ctx context.Context, key PolicyKey) (int64, error) {
	p, err := s.store.PolicySet(ctx, key)
	if errors.Is(err, ErrNotFound) {
		return 0, nil
	}
	return p.Active, storeError(err)
}

// ActivePolicies is the sets in force as the enforcer asks for them. It
// implements enforce.Source.
type ActivePolicies struct{ store Store }

var _ enforce.Source = ActivePolicies{}

// NewActivePolicies returns the source of a store.
func NewActivePolicies(s Store) ActivePolicies { return ActivePolicies{s} }

// Revision implements enforce.Source.
func (a ActivePolicies) Revision(ctx context.Context) (int64, error) {
	return a.store.PoliciesRevision(ctx)
}

// Active implements enforce.Source.
func (a ActivePolicies) Active(ctx context.Context, o enforce.Owner) (enforce.Active, error) {
	layer := map[string]Layer{enforce.Platform: LayerPlatform, enforce.Provider: LayerProvider, enforce.Recipient: LayerRecipient}[o.Layer]
	p, err := a.store.PolicySetOf(ctx, layer, o.Organisation)
	if errors.Is(err, ErrNotFound) || err == nil && p.Active == 0 {
		return enforce.Active{}, nil
	}
	if err != nil {
		return enforce.Active{}, err
	}
	v, err := a.store.PolicyVersion(ctx, p.ID, p.Active)
	if err != nil {
		return enforce.Active{}, err
	}
	active := enforce.Active{Version: v.Version}
	last, err := a.store.PolicyActivations(ctx, p.ID, Page{Limit: 1})
	if err != nil {
		return enforce.Active{}, err
	}
	if len(last) == 0 || last[0].Version != v.Version {
		return enforce.Active{}, fmt.Errorf("policy set %s: version %d is in force, but was not activated last", p.ID, v.Version)
	}
	if active.Bindings, err = policy.NewBindings(last[0].Bindings); err != nil {
		return enforce.Active{}, err
	}
	for _, f := range v.Files {
		if isPolicies(f.Path) {
			active.Sources = append(active.Sources, policy.Source{File: f.Path, Text: []byte(f.Text)})
		}
	}
	return active, nil
}
