// SPDX-License-Identifier: Apache-2.0
// Copyright The Sluice Authors

package telemetry

import (
	"encoding/json"
	"math"

	"github.com/prometheus/client_golang/prometheus"
)

// reportMetrics add up what clients report of their scans and commits. The
// numbers are the clients' own: they steer nothing.
type reportMetrics struct {
	byTable bool
	reports *prometheus.CounterVec
	values  *prometheus.CounterVec
	times   *prometheus.CounterVec
}

// reportCounters maps the counters of the protocol's reports, which are
// {"unit":…,"value":…}, to the metric label of each. All others are ignored,
// so that a client cannot make series.
var reportCounters = map[string]map[string]string{
	"scan-report": {
		"result-data-files": "data_files", "result-delete-files": "delete_files",
		"total-data-manifests": "data_manifests", "scanned-data-manifests": "scanned_data_manifests", "skipped-data-manifests": "skipped_data_manifests",
		"total-file-size-in-bytes": "data_file_bytes", "total-delete-file-size-in-bytes": "delete_file_bytes", // Java
		"total-file-size-bytes": "data_file_bytes", "total-delete-file-size-bytes": "delete_file_bytes", // the specification
		"skipped-data-files": "skipped_data_files", "skipped-delete-files": "skipped_delete_files",
	},
	"commit-report": {
		"attempts": "attempts", "added-data-files": "added_data_files", "removed-data-files": "removed_data_files",
		"added-delete-files": "added_delete_files", "removed-delete-files": "removed_delete_files",
		"added-records": "added_records", "removed-records": "removed_records",
		"added-files-size-bytes": "added_file_bytes", "removed-files-size-bytes": "removed_file_bytes",
	},
}

// reportTimers are {"count":…,"time-unit":"nanoseconds","total-duration":…}.
var reportTimers = map[string]string{"scan-report": "total-planning-duration", "commit-report": "total-duration"}

func newReportMetrics(registry *prometheus.Registry, byTable bool) reportMetrics {
	labels := func(more ...string) []string {
		if byTable {
			return append(more, "table")
		}
		return more
	}
	m := reportMetrics{
		byTable: byTable,
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_client_reports_total", Help: "Scan and commit reports that clients sent.",
		}, labels("type")),
		values: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_client_report_values_total", Help: "Sums of the counters in clients' reports, in the unit of each.",
		}, labels("type", "value")),
		times: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_client_report_seconds_total", Help: "Time that clients report for planning scans and for commits.",
		}, labels("type")),
	}
	registry.MustRegister(m.reports, m.values, m.times)
	return m
}

func (m reportMetrics) observe(reportType string, raw []byte) {
	counters, ok := reportCounters[reportType]
	if !ok {
		return
	}
	var report struct {
		Table   string                     `json:"table-name"`
		Metrics map[string]json.RawMessage `json:"metrics"`
	}
	if json.Unmarshal(raw, &report) != nil {
		return // the protocol's room has checked what it must; counting is optional
	}
	labels := func(more ...string) []string {
		if m.byTable {
			return append(more, report.Table)
		}
		return more
	}
	m.reports.WithLabelValues(labels(reportType)...).Inc()
	for name, label := range counters {
		var c struct {
			Value float64 `json:"value"`
		}
		if json.Unmarshal(report.Metrics[name], &c) == nil && countable(c.Value) {
			m.values.WithLabelValues(labels(reportType, label)...).Add(c.Value)
		}
	}
	var timer struct {
		Unit     string  `json:"time-unit"`
		Duration float64 `json:"total-duration"`
	}
	if json.Unmarshal(report.Metrics[reportTimers[reportType]], &timer) == nil && timer.Unit == "nanoseconds" && countable(timer.Duration) {
		m.times.WithLabelValues(labels(reportType)...).Add(timer.Duration / 1e9)
	}
}

// countable keeps a counter growing, and by what can be true.
func countable(v float64) bool { return v > 0 && v < math.MaxInt64 }
