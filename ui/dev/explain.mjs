// One workload in full: the explanation and its timeline, made from its row.
import { chance } from "./chance.mjs";
import { NOW } from "./cluster.mjs";
import { hhmm, iso, MINUTE, spanOf } from "./world.mjs";

const HOUR = 60 * MINUTE;
const refOf = ({ apiVersion, kind, namespace, name, uid }) => ({ apiVersion, kind, namespace, name, uid });
const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

function sentence(row) {
  const gpus = Math.max(1, Math.round(row.instances));
  const on = gpus === 1 ? "on its GPU" : `on any of its ${gpus} GPUs`;
  const idle = row.idleSeconds ? `No work for ${row.atLeast ? "at least " : ""}${spanOf(row.idleSeconds / 60)} ${on}.` : "";
  switch (row.state) {
    case "told": {
      const at = Date.parse(row.next.at);
      return `${idle} It will be paused at ${hhmm(at)}, in ${spanOf(Math.round((at - NOW) / MINUTE))}, unless you keep it.`;
    }
    case "kept":
      return `${idle} ${row.keep.by} keeps it until ${hhmm(Date.parse(row.keep.until))}.`;
    case "left":
      return `${idle} fallow leaves it alone: ${row.skipBecause}.`;
    case "idle":
      return `${idle} Its owner will be told at ${hhmm(Date.parse(row.next.at))}.`;
    case "unknown":
      return `Cannot tell whether it works: ${row.because}. It will not be paused meanwhile.`;
    case "paused":
      return `Resting since ${hhmm(Date.parse(row.rest.at))}. One press brings it back.`;
    case "resuming":
      return "Coming back: its pods are starting.";
    default:
      return "At work. Nothing to do.";
  }
}

const check = (group, state, text, limit = null, reason = null, helps = null) => ({ group, state, sentence: text, limit, reason, helps });
function checks(row, gpus) {
  if (row.state === "unknown")
    return [
      check("idle", "failed", row.because, null, row.reason, "restart its dcgm-exporter pod"),
      check("idle", "ok", `Pods ready for 30 h`, "needs 65 min"),
    ];
  const idle = row.verdict === "idle";
  return [
    check("idle", "ok", `All ${gpus} GPUs of 2 pods are measured`, `${gpus} of ${gpus}`),
    check("idle", "ok", "Newest sample is 12 s old", "limit 3 min"),
    check("idle", "ok", "92 % of the window is covered", "needs 80 %"),
    idle
      ? check("idle", "ok", "Highest activity was 0.2 %", "busy from 1 %")
      : check("idle", "failed", "Highest activity was 64 %", "busy from 1 %", "Active"),
    check("idle", "ok", "Power and requests agree", "0 requests"),
    check("idle", "ok", "Pods ready for 30 h", "needs 65 min"),
    ...(row.skip
      ? [check("pausable", "failed", row.skipBecause, null, row.skip, "ask the operator to change the policy, or remove the annotation")]
      : []),
    ...(row.keep
      ? [check("pausable", "failed", `Kept until ${hhmm(Date.parse(row.keep.until))} by ${row.keep.by}`, null, "Acknowledged")]
      : [check("pausable", "ok", "Not kept, not opted out")]),
    check("pausable", "ok", `${row.kind} is enabled; no HPA, no KEDA`),
    check("pausable", "ok", "Argo CD: policy says act"),
    check("pausable", "ok", "Not frozen, brakes have room", "0 of 10"),
    check("pausable", "ok", "No regret in 30 days"),
    ...(row.state === "told"
      ? [
          check("waiting", "waiting", "Grace after the notice", `until ${hhmm(Date.parse(row.next.at))}`),
          check("waiting", "waiting", "A second look just before"),
        ]
      : []),
  ];
}

function episode(row) {
  if (!row.idleSince) return row.rest ? [{ at: row.rest.at, kind: "paused", headline: "Paused", sentence: row.rest.reason }] : [];
  const steps = [
    { at: row.idleSince, kind: "work", headline: "Last work", sentence: "GPU 4 on a100-04, engine at 1.4 %" },
    {
      at: "2026-11-17T13:28:00Z",
      kind: "gap",
      headline: "Exporter of a100-03 fell silent",
      sentence: "24 min without samples: cannot tell, the clock waits",
    },
    { at: "2026-11-17T14:40:00Z", kind: "idle", headline: "Idle", sentence: "60 min covered to 80 %, all 4 GPUs below 1 %" },
  ];
  if (row.toldAt)
    steps.push({
      at: row.toldAt,
      kind: "told",
      headline: "Owner told",
      sentence: `${row.toldTo.join(" and ")}${row.toldTo.length > 1 ? ", both" : ","} confirmed`.replace(", confirmed", ", confirmed"),
    });
  if (row.keep) steps.push({ at: row.keep.at, kind: "kept", headline: "Kept", sentence: `by ${row.keep.by}, “${row.keep.reason}”` });
  steps.push({ at: iso(NOW), kind: "now", headline: "Now", sentence: "4 cycles since the notice, still idle" });
  if (row.state === "told")
    steps.push({
      at: row.next.at,
      kind: "pause",
      headline: "Pause",
      sentence: "after a second look; longest idle first; nothing is deleted",
    });
  return steps;
}

const SIGNALS = [
  ["gr_engine", "Graphics engine", 0.002, "ratio", 0.01, true],
  ["sm_active", "SM activity", 0.001, "ratio", 0.01, true],
  ["tensor", "Tensor pipes", 0, "ratio", 0.01, false],
  ["dram", "Memory bandwidth", 0.001, "ratio", 0.01, false],
  ["pcie", "PCIe traffic", 0.02, "MiB/s", 10, false],
  ["fb_growth", "Memory growth", 0, "MiB", 256, false],
  ["power", "Power", 71, "W", null, false],
  ["requests", "Requests", 0, "", 0, false],
];

function placed(world, row) {
  const gpus = [];
  for (const pool of world.field)
    for (const node of pool.nodes)
      for (const gpu of node.gpus)
        for (const slot of gpu.slots)
          if (slot.holder?.uid === row.uid)
            gpus.push({ uuid: gpu.uuid, node: node.name, index: gpu.index, model: pool.model, share: slot.share });
  const nodes = [...new Set(gpus.map((g) => g.node))];
  return gpus.map((g) => ({
    ...g,
    pod: `${row.name}-7d9fb-${["k2xqz", "w8r4d", "p0c7n"][nodes.indexOf(g.node) % 3]}`,
    verdict: row.verdict,
    reason: row.reason,
    because: row.because,
    signals: { gr_engine: { max: 0.002, samples: 230, newest: iso(NOW - 9000) } },
  }));
}

export function explain(world, row, dev) {
  const gpus = placed(world, row);
  const denied = dev.has("403");
  const may = (verb) => ({
    allowed: !denied && !(dev.has("email") && verb !== "ack"),
    missing: denied || dev.has("email") ? `patch on ${row.kind.toLowerCase()}s in ${row.namespace}` : null,
    command: `fallow ${verb} ${row.kind}/${row.name} -n ${row.namespace}${verb === "ack" ? " --hours 8" : ""}`,
  });
  const hours = dev.has("email") ? [4, 8, 24] : [4, 8, 24];
  const per = row.perHour;
  const pods = [...new Set(gpus.map((g) => g.pod))];
  const pauses = {
    metadata: {
      uid: "8c1f62aa-5d0e-4b7b-9a57-2f1a30c6e911",
      resourceVersion: "48211907",
      annotations: {
        "gpuautoscaler.io/original-state": '{"v":1,"fields":{"/spec/replicas":2}}',
        "gpuautoscaler.io/original-replicas": "2",
        "gpuautoscaler.io/paused-at": "2026-11-17T15:12:00Z",
        "gpuautoscaler.io/paused-by": "fallow",
        "gpuautoscaler.io/paused-reason": `${gpus.length} GPUs idle for 2h39m (policy ${row.policy})`,
        "gpuautoscaler.io/pending-since": null,
      },
    },
    spec: { replicas: 0 },
  };
  const hasPause = row.group !== "paused" && !row.skip?.startsWith("ReportOnly");
  return {
    workload: refOf(row),
    verdict: row.verdict,
    reasons: [{ reason: row.reason, because: row.because }],
    skips: row.skip ? [{ skip: row.skip, because: row.skipBecause }] : [],
    policy: row.policy,
    idleSince: row.idleSince,
    atLeast: row.atLeast,
    neverUsed: row.neverUsed,
    windowSeconds: 3600,
    coverage: 0.92,
    pausedAt: row.rest?.at ?? null,
    gpus,
    lostSignals: [],
    owner: [
      { kind: row.kind, name: row.name, uid: row.uid },
      { kind: "ReplicaSet", name: `${row.name}-7d9fb`, uid: "x" },
    ],
    nextAction: row.next && { type: row.next.type, at: row.next.at },
    patch: null,
    cost: { perHour: per, currency: "USD" },
    asOf: iso(NOW - 12_000),
    revision: world.revision,
    row,
    sentence: sentence(row),
    threshold: 0.01,
    graceSeconds: 1800,
    keepHours: hours,
    maxKeepHours: dev.has("email") ? 24 : 168,
    keepCost: hours.map((h) => ({ hours: h, until: iso(NOW + h * HOUR), cost: per === null ? null : per * h })),
    may: { keep: may("ack"), pause: may("pause"), resume: may("resume") },
    checks: checks(row, gpus.length),
    signals: SIGNALS.map(([signal, name, measured, unit, limit, primary]) => ({
      signal,
      name,
      measured: row.verdict === "unknown" ? null : row.verdict === "active" && unit === "ratio" ? 0.64 : measured,
      unit,
      limit,
      primary,
    })),
    episode: episode(row),
    writes: hasPause
      ? [{ method: "PATCH", path: `/apis/apps/v1/namespaces/${row.namespace}/${row.kind.toLowerCase()}s/${row.name}`, body: pauses }]
      : [],
    was: hasPause ? "was 2; resume writes 2" : null,
    notes: row.name === "llm-draft" ? ["Argo CD manages this Deployment and would undo the pause."] : [],
    gitops:
      row.name === "llm-draft"
        ? "spec:\n  ignoreDifferences:\n    - group: apps\n      kind: Deployment\n      name: llm-draft\n      jsonPointers: [/spec/replicas]"
        : null,
    keptBefore:
      row.name === "llm-draft"
        ? [
            {
              until: "2026-11-12T17:12:00Z",
              by: "ana@example.com",
              reason: "load test at noon",
              at: "2026-11-12T09:12:00Z",
              idleSeconds: 13260,
              cost: 75.43,
            },
            {
              until: "2026-11-07T16:03:00Z",
              by: "ben@example.com",
              reason: "demo on Monday",
              at: "2026-11-06T16:03:00Z",
              idleSeconds: 68700,
              cost: 390.83,
            },
          ]
        : [],
    pausedBefore:
      row.name === "llm-draft"
        ? [
            { at: "2026-11-13T19:20:00Z", until: "2026-11-16T08:12:00Z", by: "ana", readyAfterSeconds: 98, regretted: false },
            { at: "2026-11-10T20:05:00Z", until: "2026-11-11T09:01:00Z", by: "slack", readyAfterSeconds: 112, regretted: false },
            { at: "2026-10-31T02:40:00Z", until: "2026-11-02T07:55:00Z", by: "CLI", readyAfterSeconds: 89, regretted: false },
          ]
        : [],
    spent: { idle: per === null || !row.idleSeconds ? null : (per * row.idleSeconds) / 3600, idleSeconds: row.idleSeconds },
    pods,
  };
}

export function timeline(world, row, window) {
  const [span, step] = { "3h": [3 * HOUR, 60], "24h": [24 * HOUR, 300], "7d": [7 * 24 * HOUR, 1800] }[window];
  const from = NOW - span - 2 * MINUTE;
  const idleFrom = row.idleSince ? Date.parse(row.idleSince) : NOW;
  const all = placed(world, row);
  const shown = all.slice(0, all.length > 16 ? 8 : 16);
  const gpus = shown.map((g, k) => {
    const random = chance(100 + k * 7);
    let level = 0.4;
    const values = [];
    for (let t = from; t <= NOW; t += step * 1000) {
      level = Math.min(0.97, Math.max(0.02, level + random.between(-0.12, 0.12) + (random.next() < 0.08 ? random.between(-0.5, 0.6) : 0)));
      const silent = g.node === "a100-03" && t > NOW - 79 * MINUTE && t < NOW - 55 * MINUTE;
      values.push(
        silent || (row.state === "unknown" && t > NOW - 11 * MINUTE)
          ? null
          : row.neverUsed
            ? 0
            : t < idleFrom
              ? level
              : random.between(0, 0.002),
      );
    }
    return {
      node: g.node,
      index: g.index,
      uuid: g.uuid,
      pod: g.pod,
      values,
      max: row.verdict === "idle" ? (k % 2 ? 0.001 : 0.002) : level,
      coverage: g.node === "a100-03" ? 0.92 : 1,
      newestSeconds: g.node === "a100-03" ? 9 : 12,
    };
  });
  return {
    from: iso(from),
    to: iso(NOW),
    stepSeconds: step,
    threshold: 0.01,
    windowFrom: iso(NOW - HOUR),
    lastWork: row.idleSince && !row.neverUsed ? row.idleSince : null,
    gpus,
    more: all.length - shown.length,
    moreMax: all.length > shown.length ? 0.003 : null,
  };
}
export { plural };
