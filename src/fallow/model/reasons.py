"""Every reason explained for people: what it means, who can do something about it, and what helps.

In: a Reason, or the Detail after `ReportOnly:`. Out: its Meaning. `fallow why` says what happened to one workload; this
says what the word means for all. docs/operators/reasons.md is made from these tables, and commands may show them.
Invariant: both tables are complete (a test says so), and no rule reads them.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

import msgspec

from fallow import names
from fallow.model.decision import Detail, Heading, Reason


class Who(StrEnum):
    """Who can do something about it."""

    nobody = "nobody needs to"
    time = "wait"
    owner = "its owner"
    operator = "the operator"
    both = "owner or operator"


class Meaning(msgspec.Struct, frozen=True):
    """What a reason means, who can do something, and what helps: one or two sentences each."""

    means: str
    who: Who
    helps: str


def of(heading: Heading) -> Meaning:
    """Of `ReportOnly:BarePod` what BarePod means; of every other its reason."""
    return REASONS[heading.reason] if heading.detail is None else DETAILS[heading.detail]


def of_label(label: str) -> Meaning:
    """The same, of a heading as it is written: `BarePod` of `ReportOnly:BarePod`."""
    word, _, detail = label.partition(":")
    return DETAILS[Detail(detail)] if detail else REASONS[Reason(word)]


def what_helps(heading: Heading) -> str:
    """"" where nobody needs to do anything."""
    meaning = of(heading)
    return "" if meaning.who is Who.nobody else meaning.helps


_AT_WORK: Final = {
    Reason.Busy: Meaning(
        "At least one of its GPUs worked within the window, or requests were served.", Who.nobody,
        "It is left alone while it works.",
    ),
    Reason.NeverUsed: Meaning(
        "All its GPUs were measured through the whole window, and none has done anything since it started.", Who.owner,
        "Keep it with `fallow ack`, or give the GPUs back. Check whether the program asks for a GPU it does not use.",
    ),
    Reason.GoneIdle: Meaning(
        "All its GPUs were measured through the whole window and did nothing, although they once worked.", Who.owner,
        "Keep it with `fallow ack`, or let it be paused: `fallow resume` brings it back.",
    ),
}
_CANNOT_TELL: Final = {
    Reason.ExporterDown: Meaning(
        "The exporter on its node does not answer, so nobody measures the GPU.", Who.operator,
        "Look at the exporter's pod on the node that `fallow why` names.",
    ),
    Reason.FrozenSeries: Meaning(
        "The exporter repeats old values: the energy counter, which always moves, stood still.", Who.operator,
        "Restart the exporter's pod on that node.",
    ),
    Reason.ExporterSuspect: Meaning(
        "Profiling counters read 0 on the whole node while its power or utilisation shows work.", Who.operator,
        "Another profiler may hold the counters (Nsight, a second dcgm-exporter). Stop it, or restart the exporter.",
    ),
    Reason.SignalContradiction: Meaning(
        "Two measurements of the GPU disagree, or several pods are named for one GPU that is not shared.", Who.operator,
        "`fallow why` names both. Find out which exporter is wrong, or who else claims the GPU.",
    ),
    Reason.SharedDevice: Meaning(
        "Several pods share the GPU and nothing tells which of them worked.", Who.operator,
        "Run gpu-idle-exporter on the node: it measures each pod's own processes.",
    ),
    Reason.BlankSamples: Meaning(
        "Some samples of a signal are no measurement (a blank of the driver), and hide what the others show.",
        Who.operator,
        "`fallow why` names the signal. See why the exporter passes on what the driver could not read; a newer one "
        "leaves it out. It is judged again a window after the last blank.",
    ),
    Reason.NoSignal: Meaning(
        "There is no utilisation series for this GPU.", Who.operator,
        "Let the exporter export DCGM_FI_PROF_GR_ENGINE_ACTIVE or DCGM_FI_DEV_GPU_UTIL, with pod labels.",
    ),
    Reason.MigUtilOnly: Meaning(
        "The GPU is cut by MIG, and only the utilisation of the whole GPU is measured, which says nothing of a slice.",
        Who.operator, "Let the exporter export DCGM_FI_PROF_GR_ENGINE_ACTIVE, or run gpu-idle-exporter.",
    ),
    Reason.Stale: Meaning(
        "The newest measurement is older than `--max-sample-age`.", Who.operator,
        "See whether Prometheus still scrapes the exporter, and whether remote write lags.",
    ),
    Reason.FutureSamples: Meaning(
        "Measurements carry a time in the future: a clock is wrong.", Who.operator,
        "Set the clocks of the node and of Prometheus.",
    ),
    Reason.LowCoverage: Meaning(
        "Too little of the window was measured (`--coverage`, 80 % unless you say otherwise).", Who.operator,
        "Look for scrapes that fail or time out. After an outage wait for one full window.",
    ),
    Reason.MissingGpuSeries: Meaning(
        "The pod asked for more GPUs than are measured.", Who.operator,
        "See which GPU of the node the exporter leaves out; a GPU that fell off the bus is one cause.",
    ),
    Reason.ReservationOpaque: Meaning(
        "The pod holds a GPU on behalf of others (KAI, Run:ai), and those cannot be seen.", Who.operator,
        "Give the account the right to see the pods that share it.",
    ),
    Reason.PodStarting: Meaning("A pod of it is bound to a node and has not started.", Who.time, "Wait until it runs."),
    Reason.NodeNotReady: Meaning(
        "The node of one of its pods is not ready.", Who.operator, "Mend the node, or drain it.",
    ),
    Reason.NodeUnseen: Meaning(
        "The node cannot be seen, so nobody can tell whether its GPU is shared.", Who.operator,
        "Give the account `get`, `list` and `watch` on nodes (`deploy/one-namespace/nodes/nodes.yaml`).",
    ),
    Reason.NotReady: Meaning(
        "A pod of it is not ready. A program that is loading is not idle.", Who.owner,
        "Mend its readiness probe. After two hours without being ready it is judged all the same.",
    ),
    Reason.TooYoung: Meaning(
        "A pod of it has not run for a whole window and its grace yet.", Who.time,
        "Wait. If its pods restart again and again, look why.",
    ),
    Reason.SourceDown: Meaning(
        "Prometheus, or whatever measures, did not answer, or not in full.", Who.operator,
        "`fallow status` says what it answered. Nothing is paused meanwhile.",
    ),
    Reason.WarmingUp: Meaning(
        "Exporters are read directly, and the first window is not full yet.", Who.time,
        "Wait for one window after a start. `--state-dir` lets what was measured outlive a restart.",
    ),
    Reason.OwnerLookupFailed: Meaning(
        "The object above its pods could not be looked up.", Who.operator,
        "The API server's answer is in `fallow why`; mostly it is slow or restarting.",
    ),
    Reason.Odd: Meaning(
        "Something about it is as nobody foresaw, and considering it failed. The others are judged.", Who.operator,
        "Tell us: `fallow why` and the log have what went wrong.",
    ),
    Reason.NoGpuPods: Meaning("None of its pods holds a GPU now.", Who.nobody, "Nothing can be gained here."),
}
_LEFT_ALONE: Final = {
    Reason.Acknowledged: Meaning(
        "Somebody said that it is still needed.", Who.owner, "It ends by itself. `fallow unack` ends it now.",
    ),
    Reason.OptedOut: Meaning(
        "A label or annotation on it, a pod of it or its Namespace says to leave it alone.", Who.owner,
        f"Remove what `fallow why` names, for example `{names.OPT_OUT}: {names.OPT_OUT_VALUE}`.",
    ),
    Reason.KindDisabled: Meaning(
        "Its kind is not switched on.", Who.operator,
        "Add its letter to `--enabled-resources`, or the kind to the policy, and apply its role in `deploy/letters/`.",
    ),
    Reason.Excluded: Meaning(
        "The flags leave it out: its namespace, its pods or its GPU model.", Who.operator,
        "See `-n`, `-m`, `--exclude-namespaces` and `--exclude-pods`.",
    ),
    Reason.ProtectedNamespace: Meaning(
        "Nothing is ever paused in this namespace.", Who.operator, "See `--protected-namespaces`.",
    ),
    Reason.Immune: Meaning(
        "It was resumed a short while ago, or somebody just asked for it.", Who.time,
        "After `--immunity` (an hour unless you say otherwise) it is judged again.",
    ),
    Reason.FightHold: Meaning(
        "Others undid its pause three times within a day, so it is left alone for a day.", Who.both,
        "Find out who brings it back (Event `PauseReverted`): a GitOps tool, an autoscaler, or a person.",
    ),
    Reason.InNotice: Meaning(
        "Its owner was told and still has time to answer.", Who.owner,
        "Keep it with `fallow ack`, or use it: both end the notice.",
    ),
    Reason.Confirming: Meaning(
        "It must be found idle in more cycles in a row (`--confirm-cycles`), or the daemon has just started and does "
        "not know the cluster yet.", Who.time, "Wait for the next cycles.",
    ),
    Reason.NoPressure: Meaning(
        "It is idle, but no pod and no Workload in Kueue's queues waits for such a GPU, or that cannot be seen, and "
        "the rule pauses only then.", Who.operator,
        "`action.pressure: 'off'` in the policy, or `--pressure off`, pauses it all the same.",
    ),
    Reason.OutsideSchedule: Meaning(
        "The policy acts at other times of the week only.", Who.operator, "See `schedule` in the policy.",
    ),
    Reason.Capped: Meaning(
        "Enough was paused in this cycle, in this namespace, or within the hour.", Who.time,
        "It comes in a later cycle. See `--max-actions-per-cycle`, `--max-actions-per-namespace` and "
        "`--max-percent-per-hour`.",
    ),
    Reason.BackingOff: Meaning(
        "Its pause was tried and failed. It is tried again after a while that doubles, up to an hour.", Who.operator,
        "`fallow why` has the error: a missing right, a webhook, or an admission policy.",
    ),
    Reason.Frozen: Meaning(
        "Nothing is paused anywhere for now: the share of idle GPUs jumped, or somebody said so.", Who.operator,
        "If the measurements are right, wait, or `fallow unfreeze`.",
    ),
    Reason.AlreadyPaused: Meaning(
        "It stands paused, or has finished; its pods are on their way out.", Who.owner,
        "`fallow resume` brings back what fallow paused.",
    ),
    Reason.ReportOnly: Meaning(
        "It is idle and only reported. The word after the colon says why.", Who.operator, "See that word below.",
    ),
}
REASONS: Final[Mapping[Reason, Meaning]] = {**_AT_WORK, **_CANNOT_TELL, **_LEFT_ALONE}
GROUPS: Final[Mapping[str, Mapping[Reason, Meaning]]] = {
    "At work, or idle": _AT_WORK, "Cannot tell": _CANNOT_TELL, "Idle, and left alone": _LEFT_ALONE,
}

DETAILS: Final[Mapping[Detail, Meaning]] = {
    Detail.OwnerMissing: Meaning(
        "The object that its pods belong to is gone.", Who.owner, "Delete the pods if nobody needs them.",
    ),
    Detail.OwnerForbidden: Meaning(
        "Its pods belong to an object of a kind that fallow may not read.", Who.operator,
        "Give the account `get`, `list` and `watch` on that kind.",
    ),
    Detail.ManagedByUnknownOwner: Meaning(
        "An operator that fallow does not know manages it, and would put it back, or half of it.", Who.operator,
        "Letter `x` or `action.lookPast` in a policy, if you know that its operator bears a pause.",
    ),
    Detail.BarePod: Meaning(
        "It is a pod without an owner. A pause would delete it for good.", Who.owner,
        "Run it by a Deployment, StatefulSet or Job.",
    ),
    Detail.NonScalable: Meaning(
        "Its kind cannot be stopped and brought back (a DaemonSet, a static pod).", Who.owner,
        "Give the GPU back by changing it yourself.",
    ),
    Detail.Unseen: Meaning(
        "Something that has a say in it cannot be read: the policies, its Namespace, or its autoscaler.", Who.operator,
        "Apply `deploy/base` again; `fallow status` names what is not seen.",
    ),
    Detail.NoPolicy: Meaning(
        "No IdlePolicy covers it, and `--require-policy` wants one.", Who.operator, "Write a policy for it.",
    ),
    Detail.InvalidPolicy: Meaning(
        "The policy that covers it has a mistake.", Who.operator, "`kubectl describe idp` shows every mistake.",
    ),
    Detail.PolicyUnclear: Meaning(
        "A policy may be meant for it, but its GPU model or the labels of its Namespace are not known.", Who.operator,
        "See why the model is not measured, or select by something else.",
    ),
    Detail.Report: Meaning(
        "Its policy says `action.type: report`.", Who.operator, "`notify` tells its owner, `pause` also pauses it.",
    ),
    Detail.NoChannel: Meaning(
        "Its policy wants a notice and has no channel to send one by.", Who.operator,
        "Name a channel in `notice.channels`; `event` always works.",
    ),
    Detail.NotifyOnly: Meaning(
        "Its owner was told, and the policy does no more.", Who.owner, "Keep it, or stop it yourself.",
    ),
    Detail.PvcDeletedOnScale: Meaning(
        "Scaling it to 0 would, or might, delete the volumes of its pods.", Who.owner,
        "Set `persistentVolumeClaimRetentionPolicy` to `Retain`.",
    ),
    Detail.RolloutBusy: Meaning(
        "It is in the middle of a rollout.", Who.owner, "Finish or abort the rollout.",
    ),
    Detail.KnativeRollout: Meaning(
        "Pausing a Knative Service makes a new revision, which first needs a free GPU.", Who.operator,
        "`action.allowKnativeRollout: true` in the policy, if there is room.",
    ),
    Detail.AlreadyScalesToZero: Meaning(
        "It may scale to zero by itself already, and its own autoscaler keeps the pods.", Who.owner,
        "See what keeps it up: requests, probes, or a long scale-down delay.",
    ),
    Detail.RayJobNotSuspendable: Meaning(
        "This RayJob cannot be suspended without being lost, or not in its present state.", Who.owner,
        "Set `shutdownAfterJobFinishes: true` and use no `clusterSelector`.",
    ),
    Detail.NoRoles: Meaning(
        "It has no roles with names of their own that could be scaled to 0.", Who.owner, "Name its roles.",
    ),
    Detail.KServeNoStop: Meaning(
        "This KServe does not heed its stop annotation, and there is no other safe way.", Who.operator,
        "Upgrade KServe, or see `action.kserveMethod`.",
    ),
    Detail.ReplicasUnknown: Meaning(
        "Nothing tells which field holds its replica count.", Who.operator,
        "Give the account `get` on its `/scale` and on CustomResourceDefinitions.",
    ),
    Detail.ManagedByOther: Meaning(
        "Its `managedBy` names another controller than its kind's own.", Who.operator, "Pause it through that one.",
    ),
    Detail.KueueWorkloadUnclear: Meaning(
        "Kueue queues it, but it has no Workload, or several, or they cannot be seen.", Who.operator,
        "Give the account the right to read Kueue's Workloads, or see why there is not exactly one.",
    ),
    Detail.ScaledObjectUnclear: Meaning(
        "Several ScaledObjects of KEDA scale it.", Who.owner, "Keep one of them.",
    ),
    Detail.HpaScaleToZero: Meaning(
        "An HPA with `minReplicas: 0` scales it and would wake it at once.", Who.owner,
        "See which metric of the HPA keeps it up.",
    ),
    Detail.PdbProtected: Meaning(
        "A PodDisruptionBudget protects its pods, and the policy respects that.", Who.both,
        "Remove the budget, or set `action.respectPDB: false`.",
    ),
    Detail.GitOpsManaged: Meaning(
        "Argo CD, Flux or Helm manages it, and the policy only reports those.", Who.operator,
        "Set `action.gitops: act`, and let the tool ignore what the field manager `fallow` owns.",
    ),
    Detail.NoPlaceForMarks: Meaning(
        "No Deployment below it is in sight that could carry a notice; one on itself would restart its pods.",
        Who.operator, "Give the account the right to read Deployments in its namespace.",
    ),
    Detail.RecordPresent: Meaning(
        "It still carries the record of an earlier pause.", Who.both,
        "`fallow resume` ends the earlier pause and removes its record.",
    ),
    Detail.RecordTooLarge: Meaning(
        "What a pause would have to remember does not fit into an annotation.", Who.owner,
        "It has very many roles or autoscalers: split it.",
    ),
    Detail.UnsupportedField: Meaning(
        "The API server does not know, or does not accept, the field that a pause would write.", Who.operator,
        "Upgrade its operator; `fallow why` has the server's words.",
    ),
    Detail.HookFailing: Meaning(
        f"Its `{names.PRE_PAUSE_HOOK}` hook refused three times in a row.", Who.owner,
        "Mend the hook: it must answer 2xx in time. `action.hook.onFailure: continue` in the policy ignores it.",
    ),
}
