"""Every name that another program must spell the same: labels, annotations, event reasons, kinds, resources.

Nothing here computes anything. A name that appears in a manifest, in a document or on an object in a cluster is written
once, here (metric names: telemetry.py; kinds of workloads: model/kinds.py).
"""

from typing import Final

GROUP: Final = "gpuautoscaler.io"
ALIAS_GROUP: Final = "gpu-pruner.io"

# Who we are towards the API server. Resuming has its own field manager: GitOps rules that ignore `fallow` would else
# ignore later edits in Git.
FIELD_MANAGER: Final = "fallow"
RESUME_FIELD_MANAGER: Final = "fallow-resume"
LEASE: Final = "gpu-pruner"
SYSTEM_NAMESPACES: Final = ("gpu-pruner-system", "fallow-system")  # where we are installed; by our manifests, the first
REPORTING_CONTROLLER: Final = "gpu-pruner"
EVENT_PREFIX: Final = "gpuscaler-"

# The letters of --enabled-resources, as the tool had them that we take over from, and what each is called in its help.
# The rows of model/kinds say which kinds a letter switches on.
LETTERS: Final = {
    "d": "Deployment", "r": "ReplicaSet", "s": "StatefulSet", "i": "InferenceService", "n": "Notebook",
    "l": "LeaderWorkerSet", "m": "LLMInferenceService", "o": "Rollout", "w": "Workspace", "y": "Ray", "j": "jobs",
    "c": "CronJob schedules", "k": "Knative", "x": "others with /scale",
}
DEFAULT_LETTERS: Final = "drsin"

# Annotations on a workload that hold the way back. Written in the very patch that pauses.
ORIGINAL_STATE: Final = f"{GROUP}/original-state"
ORIGINAL_REPLICAS: Final = f"{GROUP}/original-replicas"
PAUSED_AT: Final = f"{GROUP}/paused-at"
PAUSED_BY: Final = f"{GROUP}/paused-by"
BY_OTHERS: Final = "external:"  # how resumed-by begins where somebody brought it back past us
BY_USER: Final = "user:"  # how a person's name begins there, and in resumed-by and ack-by
BY_API: Final = "api:"  # the same, of who came by the API and is known
BY_EMAIL: Final = "unverified:"  # of whom only the e-mail address is known that they gave
BY_SLACK: Final = "slack:"
PAUSED_REASON: Final = f"{GROUP}/paused-reason"
PAUSED_GPUS: Final = f"{GROUP}/paused-gpus"  # how many GPUs the pause freed, for people
PAUSED_POLICY: Final = f"{GROUP}/paused-policy"  # the rule that did it, for people: another may hold meanwhile
RESUMED_AT: Final = f"{GROUP}/resumed-at"
RESUMED_BY: Final = f"{GROUP}/resumed-by"
RESUME_REQUESTED: Final = f"{GROUP}/resume-requested"
PAUSE_REVERSALS: Final = f"{GROUP}/pause-reversals"
FIGHT_HOLD_UNTIL: Final = f"{GROUP}/fight-hold-until"
PAUSE_INEFFECTIVE_AT: Final = f"{GROUP}/pause-ineffective-at"  # said once; the pause did not free its GPUs
KSERVE_NO_STOP: Final = f"{GROUP}/kserve-no-stop"  # when this KServe was seen to ignore its stop annotation

# The idle episode and its notice.
IDLE_SINCE: Final = f"{GROUP}/idle-since"
IDLE_EPISODE: Final = f"{GROUP}/idle-episode"
PENDING_SINCE: Final = f"{GROUP}/pending-since"
PENDING_SINCE_ALIAS: Final = f"{ALIAS_GROUP}/pending-scale-at"

# Consent.
ACK_UNTIL: Final = f"{GROUP}/ack-until"
ACK_UNTIL_ALIAS: Final = f"{ALIAS_GROUP}/ack-until"
ACK_BY: Final = f"{GROUP}/ack-by"
ACK_BY_ALIAS: Final = f"{ALIAS_GROUP}/ack-by"
ACK_REASON: Final = f"{GROUP}/ack-reason"
ACK_AT: Final = f"{GROUP}/ack-at"
OPT_OUT: Final = f"{GROUP}/idle"
OPT_OUT_VALUE: Final = "ignore"
OPT_OUT_UNTIL: Final = f"{GROUP}/idle-ignore-until"
NOTIFY: Final = f"{GROUP}/notify"  # whom its owners want told, on a workload or a Namespace
SLACK_MENTIONS: Final = f"{ALIAS_GROUP}/slack-mentions"
OWNER: Final = f"{GROUP}/owner"  # an e-mail address
TOLD: Final = f"{GROUP}/told"  # who was told by the notice that runs, for people
PRE_PAUSE_HOOK: Final = f"{GROUP}/pre-pause"
FROZEN_UNTIL: Final = f"{GROUP}/frozen-until"  # on the Lease
FROZEN_BECAUSE: Final = f"{GROUP}/frozen-because"  # on the Lease
FROZEN_SEEN: Final = f"{GROUP}/frozen-seen"  # on the Lease: the frozen-until that its holder heeds
MEMORY: Final = f"{GROUP}/memory"  # on the Lease: what we must remember although the process ends (JSON)
PAUSED_KINDS: Final = f"{GROUP}/paused-kinds"  # on the Lease: the kinds outside the table that we ever paused
WORKLOAD_TYPE: Final = f"{GROUP}/workload-type"
WORKLOAD_TYPE_ALIAS: Final = "gpu-autoscaler.io/workload-type"

ACK_KEYS: Final = (ACK_UNTIL, ACK_UNTIL_ALIAS, ACK_BY, ACK_BY_ALIAS, ACK_REASON, ACK_AT)
PENDING_KEYS: Final = (IDLE_SINCE, IDLE_EPISODE, PENDING_SINCE, PENDING_SINCE_ALIAS, TOLD)
PAUSE_KEYS: Final = (
    ORIGINAL_STATE, ORIGINAL_REPLICAS, PAUSED_AT, PAUSED_BY, PAUSED_REASON, PAUSED_GPUS, PAUSED_POLICY,
    PAUSE_INEFFECTIVE_AT,
)
CLEARED_BY_PAUSE: Final = (*PENDING_KEYS, RESUMED_AT, RESUMED_BY)  # and put back where the pause is taken back

# Other people's opt-outs that we heed.
DOWNSCALER_EXCLUDE: Final = "downscaler/exclude"
DOWNSCALER_EXCLUDE_UNTIL: Final = "downscaler/exclude-until"
KARPENTER_DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"

# What Kubernetes itself, and what runs on its nodes, call things.
SERVICE_ACCOUNT_DIR: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # of a pod: token, ca.crt, namespace
LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
SAFE_TO_EVICT: Final = "cluster-autoscaler.kubernetes.io/safe-to-evict"
OS_LABEL: Final = "kubernetes.io/os"
ARCH_LABEL: Final = "kubernetes.io/arch"
DCGM_EXPORTER: Final = "dcgm-exporter"  # its app.kubernetes.io/name
DCGM_APP: Final = "nvidia-dcgm-exporter"  # its label app, where the GPU operator runs it
NODE_EXPORTER: Final = "gpu-idle-exporter"
UNTRUSTED_EXPORTER: Final = "UntrustedExporter"  # how one is named whose series do not count

# GitOps tools leave these on what they manage.
ARGOCD_TRACKING: Final = "argocd.argoproj.io/tracking-id"
FLUX_NAME: Final = "kustomize.toolkit.fluxcd.io/name"
HELM_RELEASE: Final = "meta.helm.sh/release-name"

# What other operators call things.
NOTEBOOK_STOPPED: Final = "kubeflow-resource-stopped"
NOTEBOOK_LAST_ACTIVITY: Final = "notebooks.kubeflow.org/last-activity"
NOTEBOOK_LAST_CHECK: Final = "notebooks.kubeflow.org/last_activity_check_timestamp"
KSERVE_STOP: Final = "serving.kserve.io/stop"
KSERVE_MODE: Final = "serving.kserve.io/deploymentMode"
KSERVE_AUTOSCALER: Final = "serving.kserve.io/autoscalerClass"
KSERVE_ISVC_LABEL: Final = "serving.kserve.io/inferenceservice"
PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
NAME_LABEL: Final = "app.kubernetes.io/name"
LLM_PART_OF: Final = "llminferenceservice"
LWS_NAME_LABEL: Final = "leaderworkerset.sigs.k8s.io/name"
KNATIVE_MIN_SCALE: Final = "autoscaling.knative.dev/min-scale"
KEDA_PAUSED: Final = "autoscaling.keda.sh/paused"
KEDA_PAUSED_REPLICAS: Final = "autoscaling.keda.sh/paused-replicas"
KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
KUEUE_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
TRAINJOB_MANAGER: Final = "trainer.kubeflow.org/trainjob-controller"

# GPUs on nodes and pods.
GPU: Final = "nvidia.com/gpu"
GPU_SHARED: Final = "nvidia.com/gpu.shared"
MIG_PREFIX: Final = "nvidia.com/mig-"
DRA_DRIVER: Final = "gpu.nvidia.com"
GPU_PRODUCT: Final = "nvidia.com/gpu.product"
GPU_PRESENT: Final = "nvidia.com/gpu.present"
GPU_COUNT: Final = "nvidia.com/gpu.count"
GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"
MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
GPU_SHARING: Final = "nvidia.com/gpu.sharing-strategy"
HOSTNAME: Final = "kubernetes.io/hostname"
RESERVATION_NAMESPACES: Final = frozenset({"kai-resource-reservation", "runai-reservation"})
RESERVATION_GROUP_LABEL: Final = "runai-gpu-group"
GPU_FRACTIONS: Final = ("gpu-fraction", "gpu-memory")  # annotations of a pod that asks KAI or Run:ai for a part of one
MIRROR_POD: Final = "kubernetes.io/config.mirror"


class NodeMetric:
    """Series of the node exporter that others read; the whole table is its own (doors/exporter/expose.py)."""

    DEVICE_UTILIZATION: Final = "gpu_idle_device_utilization_percent"
    DEVICE_POWER: Final = "gpu_idle_device_power_watts"
    POD_GPU: Final = "gpu_idle_pod_gpu_info"
    POD_UTILIZATION: Final = "gpu_idle_pod_gpu_utilization_percent"
    POD_LAST_ACTIVE: Final = "gpu_idle_pod_gpu_last_active_timestamp_seconds"
    POD_OBSERVED_SINCE: Final = "gpu_idle_pod_gpu_observed_since_timestamp_seconds"


class NvmlCode:
    """Answers of NVML that mean something to us; any other is just the reason why a value is missing."""

    OK: Final = 0
    UNINITIALIZED: Final = 1
    NOT_SUPPORTED: Final = 3
    NO_PERMISSION: Final = 4
    NOT_FOUND: Final = 6
    INSUFFICIENT_SIZE: Final = 7
    DRIVER_NOT_LOADED: Final = 9
    LIBRARY_NOT_FOUND: Final = 12
    FUNCTION_NOT_FOUND: Final = 13
    GPU_IS_LOST: Final = 15
    VERSION_MISMATCH: Final = 18  # library and kernel module are of different releases: only a restart cures it
    ARGUMENT_VERSION_MISMATCH: Final = 25
    GPU_NOT_FOUND: Final = 28
    UNKNOWN: Final = 999

    ABSENT: Final = frozenset({NOT_SUPPORTED, FUNCTION_NOT_FOUND, ARGUMENT_VERSION_MISMATCH})  # not here, not "not now"


POLICY_KIND: Final = "IdlePolicy"
POLICY_VERSION: Final = "v1alpha1"
POLICY_PLURAL: Final = "idlepolicies"


class Event:
    """Reasons of the Kubernetes Events we emit: one CamelCase word each."""

    IDLE_DETECTED: Final = "IdleDetected"
    NOTICE_SENT: Final = "IdleNoticeSent"
    NOTICE_FAILED: Final = "IdleNoticeFailed"
    SCALED_TO_ZERO: Final = "ScaledToZero"
    SUSPENDED: Final = "Suspended"
    RESUMED: Final = "Resumed"
    RESUME_FAILED: Final = "ResumeFailed"
    ACKNOWLEDGED: Final = "Acknowledged"
    UNACKNOWLEDGED: Final = "Unacknowledged"
    ACK_EXPIRED: Final = "AckExpired"
    INVALID_ACK: Final = "InvalidAck"
    PAUSE_FAILED: Final = "PauseFailed"
    PAUSE_INEFFECTIVE: Final = "PauseIneffective"
    PAUSE_REVERTED: Final = "PauseReverted"
    IDLE_SHARE_JUMP: Final = "IdleShareJump"


WARNINGS: Final = frozenset({
    Event.NOTICE_FAILED, Event.RESUME_FAILED, Event.INVALID_ACK, Event.PAUSE_FAILED, Event.PAUSE_INEFFECTIVE,
    Event.PAUSE_REVERTED, Event.IDLE_SHARE_JUMP,
})
