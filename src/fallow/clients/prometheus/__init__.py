"""Prometheus-compatible servers (Prometheus, Thanos, Mimir, VictoriaMetrics, the clouds' own): queries and logins.

`client.Prometheus` asks; `auth.Login` says how to log in, unless a Signer (of a cloud) was handed in. Nothing here
reads the environment or the clock: both arrive as arguments. No credential appears in a repr or a message.
"""
