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
DEFAULT_CLUSTER: Final = "default"  # what the API calls a cluster that was given no name
LEASE: Final = "gpu-pruner"
# Where we are installed; by our manifests, the first.
SYSTEM_NAMESPACES: Final = ("gpu-pruner-system", "fallow-system", "gpu-autoscaler-system")
DAEMON_SERVICE: Final = "gpu-pruner-dashboard"  # through which a daemon answers
DAEMON_PORT: Final = 8080
RELAYED_AUTHORIZATION: Final = "X-Fallow-Authorization"  # for us behind a proxy that keeps Authorization to itself
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
PAUSED_NODES: Final = f"{GROUP}/paused-nodes"  # on which nodes it held what, for people (JSON)
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
DIGEST: Final = f"{GROUP}/digest"  # on the Lease: the last digest, and who has it (JSON)
PAUSED_KINDS: Final = f"{GROUP}/paused-kinds"  # on the Lease: the kinds outside the table that we ever paused
WORKLOAD_TYPE: Final = f"{GROUP}/workload-type"
WORKLOAD_TYPE_ALIAS: Final = "gpu-autoscaler.io/workload-type"
SEED_GROUP: Final = "gpu-autoscaler.io"  # under which the keys of sharing are read as well, and never written
PRICE_PER_HOUR: Final = f"{GROUP}/price-per-hour"  # on a node: what all of it costs
PRICES: Final = "gpu-autoscaler-prices"  # the ConfigMap in our own namespace that says what GPUs cost
COMMITMENTS_KEY: Final = "commitments.csv"  # beside it
PRICES_KEY: Final = "prices.csv"

ACK_KEYS: Final = (ACK_UNTIL, ACK_UNTIL_ALIAS, ACK_BY, ACK_BY_ALIAS, ACK_REASON, ACK_AT)
PENDING_KEYS: Final = (IDLE_SINCE, IDLE_EPISODE, PENDING_SINCE, PENDING_SINCE_ALIAS, TOLD)
PAUSE_KEYS: Final = (
    ORIGINAL_STATE, ORIGINAL_REPLICAS, PAUSED_AT, PAUSED_BY, PAUSED_REASON, PAUSED_GPUS, PAUSED_NODES, PAUSED_POLICY,
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
SEVERAL_BUDGETS: Final = "more than one PodDisruptionBudget"  # why the Eviction API can never let a pod go
UNBOUND_VOLUMES: Final = "unbound immediate PersistentVolumeClaims"  # the scheduler, of a pod that waits for one
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
KUEUE_GATES: Final = "kueue.x-k8s.io/"  # how its scheduling gates begin
KUEUE_POD_GROUP: Final = "kueue.x-k8s.io/pod-group-name"
KUEUE_POD_GROUP_SIZE: Final = "kueue.x-k8s.io/pod-group-total-count"
# By which other programs say that pods only start together, labels or annotations.
POD_GROUPS: Final = (
    KUEUE_POD_GROUP, "scheduling.k8s.io/group-name", "scheduling.x-k8s.io/pod-group", "jobset.sigs.k8s.io/jobset-name",
)
INDEXED_POD: Final = "batch.kubernetes.io/job-completion-index"
JOB_NAME: Final = "batch.kubernetes.io/job-name"
# Of pods for which somebody else has asked cluster-autoscaler already.
CONSUMES_REQUEST: Final = (
    "autoscaling.x-k8s.io/consume-provisioning-request",
    "cluster-autoscaler.kubernetes.io/consume-provisioning-request",
)
KUEUE_JOB_UID: Final = "kueue.x-k8s.io/job-uid"
TRAINJOB_MANAGER: Final = "trainer.kubeflow.org/trainjob-controller"

# GPUs on nodes and pods.
NVIDIA: Final = "nvidia.com/"  # how its labels and resources begin
GPU: Final = "nvidia.com/gpu"
GPU_SHARED: Final = "nvidia.com/gpu.shared"
MIG_PREFIX: Final = "nvidia.com/mig-"
DRA_DRIVER: Final = "gpu.nvidia.com"
DRA_GPU_CLASS: Final = "gpu.nvidia.com"
DRA_MIG_CLASS: Final = "mig.nvidia.com"
DRA_CLASSES: Final = (DRA_GPU_CLASS, DRA_MIG_CLASS, "vfio.gpu.nvidia.com")  # of that driver
GPU_PRODUCT: Final = "nvidia.com/gpu.product"
GPU_PRESENT: Final = "nvidia.com/gpu.present"
GPU_COUNT: Final = "nvidia.com/gpu.count"
GPU_REPLICAS: Final = "nvidia.com/gpu.replicas"
MIG_STRATEGY: Final = "nvidia.com/mig.strategy"
GPU_SHARING: Final = "nvidia.com/gpu.sharing-strategy"
GPU_MEMORY: Final = "nvidia.com/gpu.memory"  # of one, in MiB
HOSTNAME: Final = "kubernetes.io/hostname"
RESERVATION_NAMESPACES: Final = frozenset({"kai-resource-reservation", "runai-reservation"})
RESERVATION_GROUP_LABEL: Final = "runai-gpu-group"
GPU_FRACTIONS: Final = ("gpu-fraction", "gpu-memory")  # annotations of a pod that asks KAI or Run:ai for a part of one
GPU_MEMORY_NEED: Final = f"{GROUP}/gpu-memory"  # a quantity; a bare number is MiB
GPU_FRACTION_DEVICES: Final = "gpu-fraction-num-devices"  # ... on each of how many
HAMI_REGISTER: Final = "hami.io/node-nvidia-register"  # on a node: its GPUs
HAMI_ALLOCATED: Final = "hami.io/vgpu-devices-allocated"  # on a pod: which of them
HAMI_MEMORY: Final = "nvidia.com/gpumem"  # MiB of each GPU
HAMI_MEMORY_PERCENT: Final = "nvidia.com/gpumem-percentage"
HAMI_CORES: Final = "nvidia.com/gpucores"  # percent
HAMI_PARTS: Final = (HAMI_MEMORY, HAMI_MEMORY_PERCENT, HAMI_CORES)
MIRROR_POD: Final = "kubernetes.io/config.mirror"

# What nodes are to who bills them. Of several labels the first that is there counts.
INSTANCE_TYPE: Final = ("node.kubernetes.io/instance-type", "beta.kubernetes.io/instance-type")
REGION: Final = ("topology.kubernetes.io/region", "failure-domain.beta.kubernetes.io/region")
ZONE: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")
GKE_ACCELERATOR: Final = "cloud.google.com/gke-accelerator"
GKE_SPOT: Final = ("cloud.google.com/gke-spot", "cloud.google.com/gke-preemptible")
GKE_PROVISIONING: Final = "cloud.google.com/gke-provisioning"
OWN_CAPACITY: Final = f"{GROUP}/capacity-type"  # where no cloud says it
KARPENTER_NODEPOOL: Final = "karpenter.sh/nodepool"
CA_SCALE_DOWN_DISABLED: Final = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
KARPENTER_CAPACITY: Final = "karpenter.sh/capacity-type"
KARPENTER_GPU_COUNT: Final = ("karpenter.k8s.aws/instance-gpu-count", "karpenter.azure.com/sku-gpu-count")
EKS_CAPACITY: Final = "eks.amazonaws.com/capacityType"
AKS_PRIORITY: Final = "kubernetes.azure.com/scalesetpriority"
NODE_LIFECYCLE: Final = ("node.kubernetes.io/lifecycle", "node-lifecycle", "lifecycle", "spotinst.io/node-lifecycle")


SPOT_WATCH_UP: Final = "gpu_autoscaler_spot_watch_up"  # by node, of `fallow spot-watch`


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
BUDGET_KIND: Final = "CostBudget"
BUDGET_PLURAL: Final = "costbudgets"
ATTRIBUTION_KIND: Final = "CostAttribution"
ATTRIBUTION_PLURAL: Final = "costattributions"

# Budgets: what people write on a CostBudget, and what the admission webhook writes on a pod.
ALERT_ACK: Final = f"{GROUP}/alert-ack"  # alerts, by commas: somebody has seen them
OVERRIDE_UNTIL: Final = f"{GROUP}/override-until"
OVERRIDE_BY: Final = f"{GROUP}/override-by"
OVERRIDE_REASON: Final = f"{GROUP}/override-reason"
OVERRIDE_KEYS: Final = (OVERRIDE_UNTIL, OVERRIDE_BY, OVERRIDE_REASON)
OVERRIDE_VERB: Final = "override"  # on costbudgets: who may admit a single pod in spite of one
BUDGET_OVERRIDE: Final = f"{GROUP}/budget-override"  # on a pod: why it shall run all the same
BUDGET_GATE: Final = f"{GROUP}/budget"  # a scheduling gate
GATED_BY: Final = f"{GROUP}/gated-by"  # on a pod with that gate: the budgets
ORIGINAL_LIMITS: Final = f"{GROUP}/original-limits"  # on a NodePool that a budget holds: JSON, model/node_pools.py
SPOT_OK: Final = f"{GROUP}/spot-ok"  # on a pod: "false": not on spot nodes
TEAM_LABEL: Final = "team"
EXPERIMENT_LABEL: Final = "experiment-id"

# By which labels nodes say that they cost less than on demand, as their makers call it: spot, then reserved.
CHEAP_NODES: Final = (
    (OWN_CAPACITY, ("spot", "reserved")), (KARPENTER_CAPACITY, ("spot", "reserved")),
    (EKS_CAPACITY, ("SPOT", "CAPACITY_BLOCK")), (GKE_SPOT[0], ("true",)), (GKE_SPOT[1], ("true",)),
    (AKS_PRIORITY, ("spot",)),
)

# A node that is emptied, so that its GPUs are whole again. The label finds it, the annotation says how far that is.
CONSOLIDATION: Final = f"{GROUP}/consolidation"  # label: emptying, or done
BEING_EMPTIED: Final = "emptying"
EMPTYING: Final = f"{GROUP}/emptying"  # JSON, as model/emptying.py reads it
EMPTYING_RESULT: Final = f"{GROUP}/emptying-result"  # how the last one ended, for people

# A pod that is moved so that another fits in its place. The label finds both nodes; the one it leaves has the record.
DEFRAG: Final = f"{GROUP}/defrag"  # label: moving (it leaves), held (it is to come), or done
BEING_LEFT, BEING_HELD, MOVE_DONE = "moving", "held", "done"
MOVE: Final = f"{GROUP}/move"  # JSON, as model/moving.py reads it
PLACE_HELD: Final = f"{GROUP}/place-held"  # JSON, too: for whom a place is kept there, by the scheduler's extender
MOVE_RESULT: Final = f"{GROUP}/move-result"  # how the last one ended, for people
MOVED_IN_VAIN: Final = f"{GROUP}/moved-in-vain"  # the namespace of a pod that did not come although room was made
MOVED_OWNER: Final = f"{GROUP}/moved-owner"  # the uid of whose pod was evicted
EXTENDER_LEASE: Final = "fallow-extender"  # by which the extender says, in the annotation, which places it keeps
PLACES_KEPT: Final = f"{GROUP}/places-kept."  # and the id of the process that says so, in JSON (model/moving.py)
DEFAULT_SCHEDULER: Final = "default-scheduler"
KEEP_OUT: Final = ("NoExecute", "NoSchedule")  # effects of taints; PreferNoSchedule keeps nobody out
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"  # of an affinity

# The admission webhook.
WEBHOOK: Final = "gpu-autoscaler-webhook"  # its Deployment, its Service and both of its configurations
WEBHOOK_CERTIFICATE: Final = "gpu-autoscaler-webhook-cert"
WEBHOOK_DISABLED: Final = (f"{GROUP}/webhook", "disabled")  # a label of namespaces that it leaves alone
VALIDATE_PATH: Final = "/validate-v1-pod-budget"
MUTATE_PATH: Final = "/mutate-v1-pod-budget"

# Sharing: what people write on a pod, its top owner or its namespace, under our group or SEED_GROUP.
OPTIMIZE: Final = f"{GROUP}/optimize"  # "false": leave it alone
SHARING: Final = f"{GROUP}/sharing"  # disabled, enabled
SHARING_MODE: Final = f"{GROUP}/sharing-mode"
SHARING_PROFILE: Final = f"{GROUP}/mig-profile"
GPU_COMPUTE_NEED: Final = f"{GROUP}/gpu-compute"  # percent
MPS_ENABLED: Final = f"{GROUP}/mps-enabled"
TIMESLICING: Final = (f"{GROUP}/timeslicing", f"{GROUP}/time-slicing-enabled")
MPS_CLIENTS: Final = f"{GROUP}/mps-clients"
TIMESLICE_REPLICAS: Final = f"{GROUP}/timeslice-replicas"
# ... and what we write on a top owner whom sharing hurt: until when it has whole GPUs, how often, by whom, and why.
BACKOFF_UNTIL: Final = f"{GROUP}/sharing-backoff-until"
SHARING_REVERTS: Final = f"{GROUP}/sharing-reverts"
REVERTED_POLICY: Final = f"{GROUP}/sharing-reverted-policy"
REVERTED_BECAUSE: Final = f"{GROUP}/sharing-reverted-because"
SHARING_RESTARTED: Final = f"{GROUP}/sharing-restarted"  # the back-off for which its pods were made anew
RESTARTED_AT: Final = "kubectl.kubernetes.io/restartedAt"  # in a template: as `kubectl rollout restart` does it
BACKOFF_MARKS: Final = (BACKOFF_UNTIL, SHARING_REVERTS, REVERTED_POLICY, REVERTED_BECAUSE)

# ... and what the sharing webhook leaves on a pod that it changed.
OPTIMIZED: Final = f"{GROUP}/optimized"
ORIGINAL_GPU_REQUEST: Final = f"{GROUP}/original-gpu-request"
OPTIMIZATION_STRATEGY: Final = f"{GROUP}/optimization-strategy"
OPTIMIZATION_TIMESTAMP: Final = f"{GROUP}/optimization-timestamp"
OPTIMIZATION_POLICY: Final = f"{GROUP}/policy"
SHARE_PATH: Final = "/mutate-v1-pod"
VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"

# ... and the ResourceClaimTemplates that the daemon keeps for it.
CLAIM_TEMPLATE_PREFIX: Final = "fallow-"
MANAGED_BY: Final = ("app.kubernetes.io/managed-by", "fallow")  # label and word
LEAVING_SINCE: Final = f"{GROUP}/leaving-since"  # on one that nobody wants any more: no further pod is given it

OWNER_USE: Final = "fallow-owner-use"  # ConfigMap where we live: what the daemon tells the webhook
SHARING_POLICY_KIND: Final = "GPUSharingPolicy"
SHARING_POLICY_PLURAL: Final = "gpusharingpolicies"
NODE_CONFIG_KIND: Final = "GPUNodeConfig"
NODE_CONFIG_PLURAL: Final = "gpunodeconfigs"
DEPLOYMENT_KIND: Final = "Deployment"
SCALING_POLICY_KIND: Final = "AutoscalingPolicy"
SCALING_POLICY_PLURAL: Final = "autoscalingpolicies"
# Nodes that come and go. On a node: what we do with it, as model/scaling.py reads it, and the taints that go with it.
SCALE_DOWN: Final = f"{GROUP}/scale-down"  # annotation (JSON) and taint: it is drained, and its machine then goes
SPOT_RECORD: Final = f"{GROUP}/spot-record"  # annotation (JSON): its cloud takes it back
SPOT_INTERRUPTION: Final = f"{GROUP}/spot-interruption"  # the taint that goes with it
SPOT_WARNING: Final = f"{GROUP}/spot-interruption-warning"  # RFC 3339: when the node's watch saw the notice
SPOT_TERMINATION: Final = f"{GROUP}/spot-termination-time"  # RFC 3339: when its machine ends
DRAIN_RESTS_UNTIL: Final = f"{GROUP}/scale-down-rests-until"  # RFC 3339: no drain before, for the last was undone
# RFC 3339: started ahead of demand, and stays so long; then one of the words, so that it is counted once.
PREWARMED_UNTIL: Final = f"{GROUP}/prewarmed-until"
PREWARM_USED: Final = "used"
PREWARM_UNUSED: Final = "unused"
SCALE_DOWN_DISABLED: Final = f"{GROUP}/scale-down-disabled"  # "true": people want it to stay
# ... labels of nodes that we launch (and OWN_CAPACITY).
NODE_POOL: Final = f"{GROUP}/node-pool"
OWN_INSTANCE_TYPE: Final = f"{GROUP}/instance-type"
OWN_GPU_TYPE: Final = f"{GROUP}/gpu-type"
SCALING_GROUP: Final = f"{GROUP}/scaling-group"
# ... and what people write on a pod (and SPOT_OK).
EVICTABLE: Final = f"{GROUP}/evictable"  # "true": it may go although nobody makes it again
HEADROOM: Final = f"{GROUP}/headroom"  # label of our own placeholders: the pool that they keep room in
GANG: Final = f"{GROUP}/gang"  # annotation of a ProvisioningRequest: for whom it asks
GANG_POLICY: Final = f"{GROUP}/autoscaling-policy"  # ... and by which policy
GANG_PREFIX: Final = "fallow-gang-"
BUFFER_VERSIONS: Final = ("v1beta1", "v1alpha1")  # of CapacityBuffer, the first that is served
HEADROOM_CLASS: Final = "gpu-autoscaler-headroom"  # their PriorityClass
EVICTION_PRIORITY: Final = f"{GROUP}/eviction-priority"  # low, medium, high

REPARTITION: Final = f"{GROUP}/repartition"  # on a node: the change that runs there (JSON); on its config: a finalizer

# What NVIDIA's MIG manager and device plugin read and write on nodes.
MIG_CONFIG: Final = "nvidia.com/mig.config"
MIG_CONFIG_STATE: Final = "nvidia.com/mig.config.state"
PLUGIN_CONFIG: Final = "nvidia.com/device-plugin.config"
MPS_CAPABLE: Final = "nvidia.com/mps.capable"
MIG_DISABLED: Final = "all-disabled"  # the MIG manager's name of no MIG


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
    PRICE_SUSPICIOUS: Final = "PriceSuspicious"
    BUDGET_EXCEEDED: Final = "BudgetExceeded"
    BUDGET_ENFORCED: Final = "BudgetEnforced"
    BUDGET_LIFTED: Final = "BudgetLifted"
    BUDGET_OVERRIDDEN: Final = "BudgetOverridden"
    POOL_HELD: Final = "NodePoolHeld"
    POOL_GIVEN_BACK: Final = "NodePoolGivenBack"
    UNKNOWN_WORKLOAD_TYPE: Final = "UnknownWorkloadType"
    CONFLICTING_ANNOTATION: Final = "ConflictingAnnotation"
    FITS_BUT_UNSCHEDULED: Final = "FitsButUnscheduled"
    NO_POOL_FITS: Final = "NoPoolFits"
    LIMIT_REACHED: Final = "NodePoolLimitReached"
    SCALE_DOWN: Final = "ScaleDown"
    SPOT_INTERRUPTED: Final = "SpotInterrupted"
    SCALE_DOWN_CANCELLED: Final = "ScaleDownCancelled"
    PREWARMING_OFF: Final = "PrewarmingOff"
    INVALID_SHARING_MODE: Final = "InvalidSharingMode"
    REPARTITION_FAILED: Final = "RepartitionFailed"
    SHARING_REVERTED: Final = "SharingReverted"
    SHARING_RESTARTED: Final = "SharingRestarted"
    EMPTYING: Final = "NodeEmptying"
    EMPTIED: Final = "NodeEmptied"
    EMPTYING_STOPPED: Final = "NodeEmptyingStopped"
    POD_MOVING: Final = "PodMoving"
    POD_MOVED: Final = "PodMoved"
    MOVE_STOPPED: Final = "PodMoveStopped"


WARNINGS: Final = frozenset({
    Event.NOTICE_FAILED, Event.RESUME_FAILED, Event.INVALID_ACK, Event.PAUSE_FAILED, Event.PAUSE_INEFFECTIVE,
    Event.PAUSE_REVERTED, Event.IDLE_SHARE_JUMP, Event.PRICE_SUSPICIOUS, Event.BUDGET_EXCEEDED, Event.BUDGET_ENFORCED,
    Event.BUDGET_OVERRIDDEN, Event.UNKNOWN_WORKLOAD_TYPE, Event.CONFLICTING_ANNOTATION, Event.INVALID_SHARING_MODE,
    Event.REPARTITION_FAILED, Event.SHARING_REVERTED, Event.EMPTYING_STOPPED, Event.MOVE_STOPPED,
    Event.SPOT_INTERRUPTED,
})
