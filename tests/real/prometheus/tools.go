//go:build tools

// Package prometheus pins the Prometheus that the tests build where none is installed.
package prometheus

import (
	_ "github.com/prometheus/prometheus/cmd/prometheus"
	_ "github.com/prometheus/prometheus/cmd/promtool"
)
