"""Every name that another program must spell the same: labels, annotations, event reasons, kinds, resources, field managers.

Nothing here computes anything. A name that appears in a manifest, in a document or on an object in a cluster is written once, here
(metric names: telemetry.py).
"""

from typing import Final

GROUP: Final = "gpuautoscaler.io"
ALIAS_GROUP: Final = "gpu-pruner.io"

# Who we are towards the API server. Resuming has its own field manager: GitOps rules that ignore `fallow` would else ignore
# later edits in Git.
FIELD_MANAGER: Final = "fallow"
RESUME_FIELD_MANAGER: Final = "fallow-resume"
LEASE: Final = "gpu-pruner"
REPORTING_CONTROLLER: Final = "gpu-pruner"
EVENT_PREFIX: Final = "gpuscaler-"

# The letters of --enabled-resources, as the tool had them that we take over from, and what each is called in its help. The rows of
# model/kinds say which kinds a letter switches on.
LETTERS: Final = {
    "d": "Deployment", "r": "ReplicaSet", "s": "StatefulSet", "i": "InferenceService", "n": "Notebook", "l": "LeaderWorkerSet",
    "m": "LLMInferenceService", "o": "Rollout", "w": "Workspace", "y": "Ray", "j": "jobs", "c": "CronJob schedules", "k": "Knative",
    "x": "others with /scale",
}
DEFAULT_LETTERS: Final = "drsin"

# Annotations on a workload that hold the way back. Written in the very patch that pauses.
ORIGINAL_STATE: Final = f"{GROUP}/original-state"
ORIGINAL_REPLICAS: Final = f"{GROUP}/original-replicas"
PAUSED_AT: Final = f"{GROUP}/paused-at"
PAUSED_BY: Final = f"{GROUP}/paused-by"
PAUSED_REASON: Final = f"{GROUP}/paused-reason"
PAUSED_GPUS: Final = f"{GROUP}/paused-gpus"  # how many GPUs the pause freed: the hourly cap survives a restart
RESUMED_AT: Final = f"{GROUP}/resumed-at"
RESUMED_BY: Final = f"{GROUP}/resumed-by"
RESUME_REQUESTED: Final = f"{GROUP}/resume-requested"
PAUSE_REVERSALS: Final = f"{GROUP}/pause-reversals"
FIGHT_HOLD_UNTIL: Final = f"{GROUP}/fight-hold-until"
PAUSE_INEFFECTIVE_AT: Final = f"{GROUP}/pause-ineffective-at"  # told once; the pause did not free its GPUs
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
NOTIFY: Final = f"{GROUP}/notify"
NOTIFY_ALIAS: Final = f"{ALIAS_GROUP}/slack-mentions"
OWNER_EMAIL: Final = f"{GROUP}/owner"
OPT_OUT: Final = f"{GROUP}/idle"
OPT_OUT_VALUE: Final = "ignore"
OPT_OUT_UNTIL: Final = f"{GROUP}/idle-ignore-until"
PRE_PAUSE_HOOK: Final = f"{GROUP}/pre-pause"
FROZEN_UNTIL: Final = f"{GROUP}/frozen-until"  # on the Lease
FROZEN_BECAUSE: Final = f"{GROUP}/frozen-because"  # on the Lease
WORKLOAD_TYPE: Final = f"{GROUP}/workload-type"
WORKLOAD_TYPE_ALIAS: Final = "gpu-autoscaler.io/workload-type"

ACK_KEYS: Final = (ACK_UNTIL, ACK_UNTIL_ALIAS, ACK_BY, ACK_BY_ALIAS, ACK_REASON, ACK_AT)
PENDING_KEYS: Final = (IDLE_SINCE, IDLE_EPISODE, PENDING_SINCE, PENDING_SINCE_ALIAS)
PAUSE_KEYS: Final = (ORIGINAL_STATE, ORIGINAL_REPLICAS, PAUSED_AT, PAUSED_BY, PAUSED_REASON, PAUSED_GPUS, PAUSE_INEFFECTIVE_AT)

# Other people's opt-outs that we heed.
DOWNSCALER_EXCLUDE: Final = "downscaler/exclude"
DOWNSCALER_EXCLUDE_UNTIL: Final = "downscaler/exclude-until"
KARPENTER_DO_NOT_DISRUPT: Final = "karpenter.sh/do-not-disrupt"

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
GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"
GPU_SHARING: Final = "nvidia.com/gpu.sharing-strategy"
HOSTNAME: Final = "kubernetes.io/hostname"
RESERVATION_NAMESPACES: Final = frozenset({"kai-resource-reservation", "runai-reservation"})
RESERVATION_GROUP_LABEL: Final = "runai-gpu-group"
MIRROR_POD: Final = "kubernetes.io/config.mirror"

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
    Event.NOTICE_FAILED, Event.RESUME_FAILED, Event.INVALID_ACK, Event.PAUSE_FAILED, Event.PAUSE_INEFFECTIVE, Event.PAUSE_REVERTED,
    Event.IDLE_SHARE_JUMP,
})
