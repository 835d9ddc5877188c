"""What was measured, in columns: asked of Prometheus; and what both sources share (readings, labels, rows, columns)."""
