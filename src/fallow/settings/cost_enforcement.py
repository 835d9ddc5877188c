"""The flags about budgets: what the daemon may do when one is spent, and how the admission webhook is set up.

In: flag texts, the environment. Out: EnforcementSettings for the daemon; WebhookSettings for `fallow webhook`, whose
flags are a table of their own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from fallow.model.patterns import Pattern
from fallow.model.units import HOUR, Seconds
from fallow.settings import readers as read
from fallow.settings import sharing
from fallow.settings.flags import Flag, group, parse_arguments, read_values
from fallow.settings.readers import UsageError

BUDGETS: Final = "Budgets"
PAGER: Final = "https://events.pagerduty.com/v2/enqueue"
WEBHOOK: Final = "Admission webhook"
EXEMPT: Final = "kube-system|kube-public|kube-node-lease|gpu-operator"

FLAGS: tuple[Flag, ...] = group(
    BUDGETS,
    Flag("--cost-enforcement", "BOOL",
         "Let CostBudgets that are exceeded throttle or block new GPU pods; false: that is only shown.",
         read.truth, "false"),
    Flag("--cost-enforcement-edit-node-pools", "BOOL",
         "While a throttle of the whole cluster holds, give NodePools of Karpenter that make only what it closes no "
         "more GPUs, by their limits; the original limits come back with its end. Needs --cost-enforcement true.",
         read.truth, "false"),
    Flag("--cost-max-override-hours", "HOURS", "Longest override of an exceeded budget that is heeded.",
         read.whole_number(1), "72"),
    Flag("--cost-pagerduty-url", "URL", "Where PagerDuty takes events of budgets.", read.http_url, PAGER),
    Flag("--webhook-certificate", "BOOL",
         "Make and renew the certificate of the admission webhook, where that is installed and deploy/webhook gave the "
         "rights; false: something else, such as cert-manager, does.", read.truth, "true"),
)

WEBHOOK_FLAGS: tuple[Flag, ...] = group(
    WEBHOOK,
    Flag("--webhook-port", "PORT", "Port on which the API server asks.", read.port, "9443"),
    Flag("--webhook-addr", "IP:PORT", "The same, listening at this address.", read.listen_address),
    Flag("--webhook-cert-dir", "DIR", "Folder with tls.crt and tls.key, read again when they change.",
         default="/etc/fallow/webhook"),
    Flag("--exempt-namespaces", "REGEX", "Namespaces whose pods are never denied or changed; our own is always one.",
         read.regex, EXEMPT),
    Flag("--gpu-resource", "NAME", "A further resource name that counts as a GPU (repeatable).", repeat=True),
    *sharing.WEBHOOK_FLAGS,
    Flag("--log-format", "FORMAT", "json, default or pretty.", read.one_of("json", "default", "pretty"), "default"),
    Flag("--kubeconfig", "FILE", "Kubeconfig file; default: KUBECONFIG, ~/.kube/config, or the pod's own account."),
    Flag("--context", "NAME", "Context of the kubeconfig."),
)


class EnforcementSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: bool = False
    edits_node_pools: bool = False
    longest_override: Seconds = 72 * HOUR
    pager_url: str = PAGER
    makes_certificate: bool = True


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True):
    address: tuple[str, int]
    cert_dir: str
    exempt: Pattern
    gpu_resources: frozenset[str]
    sharing: sharing.AdmissionSharing
    own_namespace: str | None
    log_format: str
    kubeconfig: str | None
    context: str | None


def read_enforcement(values: Mapping[str, Any]) -> EnforcementSettings:
    return EnforcementSettings(
        enabled=values["cost_enforcement"], edits_node_pools=values["cost_enforcement_edit_node_pools"],
        longest_override=values["cost_max_override_hours"] * HOUR,
        pager_url=values["cost_pagerduty_url"], makes_certificate=values["webhook_certificate"],
    )


def read_webhook(given: Mapping[str, Any], environ: Mapping[str, str]) -> WebhookSettings:
    """Raises UsageError at the first flag that is wrong."""
    import re

    values = read_values(WEBHOOK_FLAGS, given, environ)
    address, port = values["webhook_addr"], values["webhook_port"]
    if address is not None and given.get("webhook_port") is not None and address[1] != port:
        raise UsageError("--webhook-port and --webhook-addr say two different ports: give one of them")
    own = environ.get("POD_NAMESPACE")
    exempt = values["exempt_namespaces"]
    return WebhookSettings(
        address=address or ("0.0.0.0", port), cert_dir=values["webhook_cert_dir"],
        exempt=read.regex(f"(?:{exempt.pattern})|{re.escape(own)}") if own else exempt,
        gpu_resources=frozenset(values["gpu_resource"]), sharing=sharing.read_admission(values),
        own_namespace=own, log_format=values["log_format"],
        kubeconfig=values["kubeconfig"], context=values["context"],
    )


def read_webhook_arguments(words: Sequence[str], own_namespace: str) -> WebhookSettings:
    """Of a webhook that runs there, by its command line: everything after `webhook`. Raises UsageError."""
    if "webhook" not in words:
        raise UsageError("its command line does not say `fallow webhook`")
    given = parse_arguments(WEBHOOK_FLAGS, words[words.index("webhook") + 1 :])
    return read_webhook(given, {"POD_NAMESPACE": own_namespace})
