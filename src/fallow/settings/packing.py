"""The flags of the scheduler's extender, a table of their own.

In: flag texts, the environment. Out: ExtenderSettings. To listen beyond loopback without certificates is a usage error,
before anything is opened.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from fallow.model import loopback
from fallow.settings import readers as read
from fallow.settings.flags import Flag, group, read_values
from fallow.settings.readers import UsageError

EXTENDER: Final = "Scheduler extender"
SCHEDULER: Final = "system:kube-scheduler"
# As decide.packing spells them, but Random, which is for comparison alone.
POLICIES: Final = (
    "Auto", "SPP", "FGD", "Balanced", "BestFit", "FirstFit", "WorstFit", "DotProd", "GPUClustering", "GPUPacking",
)


def _read_policy(text: str) -> str:
    found = {name.lower(): name for name in POLICIES}.get(text.lower())
    if found is None:
        raise ValueError(f"no packing policy is called {text!r}; there are {', '.join(POLICIES)}")
    return found


def _read_address(text: str) -> tuple[str, int] | None:
    """IP:PORT; :PORT is every address."""
    return read.listen_address(f"0.0.0.0{text}" if text.startswith(":") else text)


EXTENDER_FLAGS: tuple[Flag, ...] = group(
    EXTENDER,
    Flag("--addr", "IP:PORT",
         "Where kube-scheduler asks. Anywhere but on loopback it needs --cert-dir.", _read_address, ":9444"),
    Flag("--cert-dir", "DIR",
         "Folder with tls.crt, tls.key and ca.crt, the authority of those who may ask; read again when they change."),
    Flag("--client", "NAME", f"Common name of a certificate that may ask (repeatable).  [default: {SCHEDULER}]",
         repeat=True),
    Flag("--health-addr", "IP:PORT", "Also answer probes and metrics here, and nothing else.", _read_address),
    Flag("--policy", "POLICY", f"What makes a node good: {', '.join(POLICIES)}.", _read_policy, "Auto"),
    Flag("--log-format", "FORMAT", "json, default or pretty.", read.one_of("json", "default", "pretty"), "default"),
    Flag("--kubeconfig", "FILE", "Kubeconfig file; default: KUBECONFIG, ~/.kube/config, or the pod's own account."),
    Flag("--context", "NAME", "Context of the kubeconfig."),
)


class ExtenderSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`cert_dir`: it is there wherever `address` is not on loopback."""

    address: tuple[str, int]
    cert_dir: str | None
    clients: tuple[str, ...]
    health_address: tuple[str, int] | None
    policy: str
    log_format: str
    kubeconfig: str | None
    context: str | None


def read_extender(given: Mapping[str, Any], environ: Mapping[str, str]) -> ExtenderSettings:
    """Raises UsageError at the first flag that is wrong."""
    values = read_values(EXTENDER_FLAGS, given, environ)
    address, cert_dir = values["addr"], values["cert_dir"]
    if address is None:
        raise UsageError("--addr: say where to listen, such as 127.0.0.1:9444")
    if cert_dir is None and not loopback.is_here(address[0]):
        raise UsageError(
            f"--addr {address[0]}:{address[1]} can be reached by others, so --cert-dir is needed: without certificates "
            "anybody could ask. For a scheduler in the same pod take --addr 127.0.0.1:9444"
        )
    return ExtenderSettings(
        address=address, cert_dir=cert_dir, clients=values["client"] or (SCHEDULER,),
        health_address=values["health_addr"], policy=values["policy"], log_format=values["log_format"],
        kubeconfig=values["kubeconfig"], context=values["context"],
    )
