"""Prometheus-compatible servers (Prometheus, Thanos, Mimir, VictoriaMetrics, the clouds' own): instant queries and every way to log in.

`client.Prometheus` asks; `auth.Login` says how to log in; `aws`, `gcp` and `azure` get short-lived credentials from the clouds.
Nothing here reads the environment or the clock: both arrive as arguments. No credential appears in a repr or a message.
"""
