"""The flags of `fallow spot-watch`: which node, which cloud, where its metadata and the API server are.

In: flag texts, the environment. Out: WatchOptions, valid in full; whatever is wrong is a usage error.
"""

from collections.abc import Mapping
from typing import Any, Final

from fallow import names
from fallow.model.spot_watch import WatchOptions
from fallow.model.units import Seconds
from fallow.settings import readers as read
from fallow.settings.flags import Flag, read_values
from fallow.settings.readers import UsageError

_USUAL: Final = WatchOptions(node="")


def _interval(text: str) -> Seconds:
    seconds = read.duration(text)
    if not 1.0 <= seconds <= 30.0:
        raise ValueError(f"{text!r} is not between 1s and 30s: a cloud gives half a minute")
    return seconds


def _base(text: str) -> str:
    return read.http_url(text).rstrip("/")


FLAGS: tuple[Flag, ...] = (
    Flag("--node-name", "NAME", "The node that this runs on.", variable="NODE_NAME"),
    Flag("--cloud", "CLOUD", "Whose metadata is asked; auto: that of whoever answers as its own.",
         read.one_of("auto", "aws", "gcp", "azure"), _USUAL.cloud),
    Flag("--interval", "DURATION", "Time between polls.", _interval, "5s"),
    Flag("--metrics-addr", "IP:PORT", "Where /metrics and /healthz are answered; empty: nowhere.", read.listen_address,
         f"{_USUAL.host}:{_USUAL.port}"),
    Flag("--aws-metadata-url", "URL", "Base address of AWS' instance metadata.", _base, _USUAL.aws),
    Flag("--gcp-metadata-url", "URL", "Base address of Google's metadata server.", _base, _USUAL.gcp),
    Flag("--azure-metadata-url", "URL", "Base address of Azure's instance metadata.", _base, _USUAL.azure),
    Flag("--server", "URL", "The API server; default: the one of the cluster that this runs in.", read.secure_url),
    Flag("--token-file", "FILE", "Token of the account that may get and patch nodes.",
         default=f"{names.SERVICE_ACCOUNT_DIR}/token"),
    Flag("--certificate-authority", "FILE", "By which the API server is known; empty: whom this machine trusts.",
         default=f"{names.SERVICE_ACCOUNT_DIR}/ca.crt"),
    Flag("--log-format", "FORMAT", "json, default or pretty.", read.one_of("json", "default", "pretty"), "default"),
)


def read_watch(given: Mapping[str, Any], environ: Mapping[str, str]) -> WatchOptions:
    """Raises UsageError at the first flag that is wrong."""
    values = read_values(FLAGS, given, environ)
    if not values["node_name"]:
        raise UsageError("--node-name, or the variable NODE_NAME, must name the node that this runs on")
    host, port = values["metrics_addr"] or ("", 0)
    return WatchOptions(
        node=values["node_name"], cloud=values["cloud"], interval=values["interval"], host=host, port=port,
        aws=values["aws_metadata_url"], gcp=values["gcp_metadata_url"], azure=values["azure_metadata_url"],
        server=(values["server"] or _find_server(environ)).rstrip("/"), token_file=values["token_file"],
        authority_file=values["certificate_authority"], log_format=values["log_format"],
    )


def _find_server(environ: Mapping[str, str]) -> str:
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise UsageError("--server is needed: this runs in no cluster")
    return f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
