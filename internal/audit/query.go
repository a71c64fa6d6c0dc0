// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package audit

import (
	"encoding/json"
	"strings"
	"time"
)

// Filter chooses records. Empty fields choose all.
type Filter struct {
	Since, Until     time.Time // from, and before
	Principal, Actor string
	// Resource is an identifier or, for a namespace, the levels that it begins
	// with.
	Resource  string
	Operation string
	Outcome   string // OutcomeOK, OutcomeDenied or OutcomeFailed
}

// Matches reports whether a line is a record that the filter chooses.
// Checkpoints and the openings of partitions are none.
func (f *Filter) Matches(line []byte) bool {
	var m struct {
		Type      string    `json:"type"`
		Time      time.Time `json:"time"`
		Principal string    `json:"principal"`
		Actor     string    `json:"actor"`
		Operation string    `json:"operation"`
		Resource  string    `json:"resource"`
		Status    int       `json:"status"`
		Decision  string    `json:"decision"`
	}
	if json.Unmarshal(line, &m) != nil || m.Type == openType || m.Type == checkpointType || m.Type == "" {
		return false
	}
	r := Record{Status: m.Status, Decision: ParseDecision(m.Decision)}
	for _, want := range [][2]string{{f.Principal, m.Principal}, {f.Actor, m.Actor}, {f.Operation, m.Operation}, {f.Outcome, r.Outcome()}} {
		if want[0] != "" && want[0] != want[1] {
			return false
		}
	}
	return (f.Resource == "" || m.Resource == f.Resource || strings.HasPrefix(m.Resource, f.Resource+".")) &&
		!m.Time.Before(f.Since) && (f.Until.IsZero() || m.Time.Before(f.Until))
}
