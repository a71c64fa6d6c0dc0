// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package metadata

import "slices"

// Repeats reports whether a commit whose requirements or updates failed is
// the repetition of one that was applied: refusing it would make the client
// delete files that the table needs, since it takes the refusal for the
// outcome. It is one when it adds snapshots, all of them are in the history
// (with the same manifest list), the refs it sets lead to them or to
// successors, and nothing else in it would change anything. What the commit
// asserts of the table's UUID must hold; its other assertions are of the state
// before.
func (d *Document) Repeats(requirements []Requirement, updates []Update) bool {
	for _, r := range requirements {
		if r.kind == "assert-table-uuid" && d.violated(r) != "" {
			return false
		}
	}
	added := 0
	var rest []Update
	for _, u := range updates {
		switch u.action {
		case "add-snapshot":
			added++
			if s, _ := u.AddedSnapshot(); s.ManifestList == "" || d.ManifestList(s.ID) != s.ManifestList {
				return false
			}
		case "set-snapshot-ref":
			if !d.leadsTo(u.text, u.ref) {
				return false
			}
		default:
			rest = append(rest, u)
		}
	}
	if added == 0 {
		return false
	}
	_, changed, err := d.Apply(rest, ApplyOptions{})
	return err == nil && !changed
}

// leadsTo reports whether a branch or tag is what an update made it, or a
// branch on which more has been committed since.
func (d *Document) leadsTo(name string, set Ref) bool {
	now, ok := d.ref(name)
	if !ok || now.Type != set.Type {
		return false
	}
	if now.SnapshotID == set.SnapshotID {
		return true
	}
	return now.Type == "branch" && slices.Contains(d.ancestors(now.SnapshotID), set.SnapshotID)
}

// ancestors returns a snapshot and those before it, as far as they are kept.
func (d *Document) ancestors(id int64) []int64 {
	var all []int64
	for range d.snapshots { // a history that runs in a circle ends, too
		i := d.find(id)
		if i < 0 {
			break
		}
		all = append(all, id)
		s := readSnapshot(newCursor(d.snapshots[i].at.of(d.raw), d.limits.MaxDepth), true)
		if !s.hasParent {
			break
		}
		id = s.parent
	}
	return all
}
