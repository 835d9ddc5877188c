"""What was measured, in columns: asked of Prometheus; and what both sources share (labels, rows, columns, the look-back)."""
