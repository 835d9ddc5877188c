"""What was measured, without Prometheus: the exporters are read by ourselves and their samples kept in minutes."""
