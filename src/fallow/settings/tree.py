"""Everything we were asked for, in one frozen tree: what flags and environment become."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

import msgspec

from fallow.model.patterns import Pattern
from fallow.model.policies import idle
from fallow.model.secret import Secret
from fallow.model.units import Seconds
from fallow.settings.cost import CostSettings
from fallow.settings.cost_doors import CostDoorSettings
from fallow.settings.cost_enforcement import EnforcementSettings
from fallow.settings.cost_store import CostStoreSettings
from fallow.settings.peers import Peer
from fallow.settings.scaling import ScalingSettings
from fallow.settings.serving import ServingSettings
from fallow.settings.sharing import ConsolidationSettings, DefragSettings, PartitionSettings
from fallow.settings.telling import TellingSettings

AuthMethod: TypeAlias = Literal["auto", "kube", "none", "bearer", "basic", "sigv4", "gcp", "azure"]


class PrometheusSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the measurements are, and how we prove who we are there."""

    url: str
    auth: AuthMethod = "auto"
    token: Secret[str] | None = None
    token_file: str | None = None
    username: str | None = None
    password_file: str | None = None
    headers: tuple[tuple[str, Secret[str]], ...] = ()
    matchers: tuple[str, ...] = ()
    verify_tls: bool = True
    ca_file: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    aws_region: str | None = None
    honor_labels: bool = False
    expected_interval: Seconds | None = None


class ScrapeSettings(msgspec.Struct, frozen=True):
    """Which exporters are read without Prometheus, and how often."""

    interval: Seconds = 15.0
    timeout: Seconds = 5.0
    selectors: tuple[tuple[str, str], ...] = ()  # (namespace or "", label selector), instead of the usual ones
    targets: tuple[str, ...] = ()
    honor_labels: bool = False


class LoopSettings(msgspec.Struct, frozen=True):
    """When we look, and when we give up."""

    daemon: bool = False
    interval: Seconds = 180.0
    budget: Seconds = 180.0  # how long one cycle may take
    max_consecutive_failures: int = 0  # 0 = never give up
    leader_elect: bool = False
    metrics_address: tuple[str, int] | None = None
    dashboard_address: tuple[str, int] | None = None  # None = there is none


class ViewCluster(msgspec.Struct, frozen=True, kw_only=True):
    """A further Prometheus that is only looked at: nothing of it is judged, and nothing there is changed."""

    name: str
    url: str
    honor_labels: bool = False


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    kubeconfig: str | None
    context: str | None
    prometheus: PrometheusSettings | None  # None = exporters are read directly
    long_past: PrometheusSettings | None  # whom to ask about days and weeks, also where exporters are read directly
    scrape: ScrapeSettings
    exporter_namespaces: Pattern  # whose exporters are believed
    trust_metrics: bool  # whoever exports them
    state_dir: str | None
    mandate: idle.Mandate
    loop: LoopSettings
    telling: TellingSettings
    serving: ServingSettings = ServingSettings()
    cost: CostSettings = CostSettings()
    cost_store: CostStoreSettings = CostStoreSettings()
    cost_doors: CostDoorSettings = CostDoorSettings()
    enforcement: EnforcementSettings = EnforcementSettings()
    sharing: PartitionSettings = PartitionSettings()
    consolidation: ConsolidationSettings = ConsolidationSettings()
    defrag: DefragSettings = DefragSettings()
    scaling: ScalingSettings = ScalingSettings()
    clusters: tuple[ViewCluster, ...] = ()
    peers: tuple[Peer, ...] = ()
    dry_run_scope: Literal["server", "client"]
    gpu_resources: frozenset[str]
    log_format: str
    log_level: str
    own_namespace: str | None
    pod_name: str | None
    pod_uid: str
    environment: Mapping[str, str]  # for credentials that other systems name by variable (AWS_*, KUBECONFIG, ...)
