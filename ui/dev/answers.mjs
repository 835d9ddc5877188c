// The answers of the API about one world: overview, nodes, history, policies. Shapes as in the contract.
import { chance } from "./chance.mjs";
import { NOW, PRICES } from "./cluster.mjs";
import { countsOf, hhmm, inView, iso, MINUTE } from "./world.mjs";

const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const refOf = ({ apiVersion, kind, namespace, name, uid }) => ({ apiVersion, kind, namespace, name, uid });
const isIdle = (row) => inView(row, "idle");
const short = (model) => model?.split("-")[0] ?? null;

function coming(rows) {
  const steps = new Map();
  for (const row of rows.filter((r) => r.next)) {
    const key = `${row.next.type}${row.next.at}`;
    steps.set(key, [...(steps.get(key) ?? []), row]);
  }
  return [...steps.values()]
    .map((same) => ({
      step: same[0].next.type,
      at: same[0].next.at,
      workloads: same.map(refOf),
      gpus: same.reduce((n, r) => n + r.gpus, 0),
      model: same.length === 1 ? short(same[0].models[0]) : null,
      perHour: same.reduce((n, r) => n + r.perHour, 0),
      because: same[0].neverUsed
        ? "never used"
        : same[0].next.type === "notice"
          ? `idle ${same[0].idleSeconds >= 3600 ? `${Math.floor(same[0].idleSeconds / 3600)} h ` : ""}${String(Math.floor((same[0].idleSeconds % 3600) / 60)).padStart(2, "0")} min`
          : "",
      cost: same[0].keep?.cost ?? null,
    }))
    .sort((a, b) => (a.at < b.at ? -1 : 1))
    .slice(0, 8);
}

function byNamespace(rows) {
  const all = new Map();
  for (const r of rows) {
    const n = all.get(r.namespace) ?? { namespace: r.namespace, held: 0, idle: 0, kept: 0 };
    n.held += r.gpus;
    if (r.state === "kept") n.kept += r.gpus;
    else if (isIdle(r)) n.idle += r.gpus;
    all.set(r.namespace, n);
  }
  return [...all.values()].filter((n) => n.idle + n.kept > 0).sort((a, b) => b.idle + b.kept - (a.idle + a.kept));
}

const LEFT = {
  InNotice: "Notice given, owner has time",
  "ReportOnly:PvcDeletedOnScale": "A pause would delete its volumes",
  FightHold: "Brought back by hand 3 times today",
  Acknowledged: "Kept by its owner",
  Confirming: "Second look pending",
  OptedOut: "Opted out",
  OutsideSchedule: "Policy acts only at night",
  "ReportOnly:HpaCanScaleToZero": "HPA can scale it to zero itself",
};
const HELPS = {
  ExporterSilent: ["Exporter of a100-05 is silent since 14:36", "restart its dcgm-exporter pod", ["a100-05"]],
  UtilisationOnly: ["mig-02 reports no profiling counters", "needs DCGM profiling", ["mig-02"]],
  TooYoung: ["Started less than 35 min ago", "wait", []],
  SharedGpuBusy: ["A neighbour is busy on the same GPU", "install the node exporter", ["l4-05"]],
};
function grouped(rows, labels) {
  const all = new Map();
  for (const r of rows) {
    const g = all.get(r.reason) ?? { workloads: 0, gpus: 0, ...labels(r.reason, r) };
    g.workloads += 1;
    g.gpus += r.gpus;
    all.set(r.reason, g);
  }
  return [...all.values()].sort((a, b) => b.gpus - a.gpus);
}

export function overview(world, dev) {
  const rows = world.list();
  const perHour = (test) => rows.filter(test).reduce((n, r) => n + (r.perHour ?? 0), 0);
  const paused = rows.filter((r) => r.group === "paused");
  const banners = [];
  const stale = dev.has("stale");
  if (stale)
    banners.push({
      kind: "stale",
      headline: "Last measured 4 min ago.",
      sentence: "Three cycles are missing: Prometheus does not answer. What you see may be out of date; nothing will be paused.",
    });
  if (world.frozen)
    banners.push({
      kind: "frozen",
      headline: `Frozen until ${hhmm(Date.parse(world.frozen.until))}.`,
      sentence: `${world.frozen.because} No notice, no pause. Resume works.`,
    });
  if (!dev.has("empty") && world.find("team-bio", "Job", "protein-fold"))
    banners.push({
      kind: "data",
      headline: "6 GPUs on a100-05 cannot be read.",
      sentence: "Its exporter has not answered for 11 min. They count as “cannot tell”; nothing on that node will be paused.",
    });
  if (dev.has("dry"))
    banners.push({
      kind: "dryRun",
      headline: "Dry run.",
      sentence: "Everything below is what would happen. Nothing is told, nothing is paused.",
    });
  return {
    revision: world.revision,
    cluster: "ml-west",
    mode: dev.has("dry") ? "dry-run" : "acting",
    version: "0.9",
    asOf: iso(stale ? NOW - 4 * MINUTE : world.now() - 12_000),
    intervalSeconds: 60,
    tookSeconds: 0.4,
    isLeader: true,
    currency: "USD",
    auth: dev.has("email") ? "email" : "kube",
    user: dev.has("email") ? null : "ana@example.com",
    frozen: world.frozen,
    failure: stale ? { because: "Prometheus does not answer", since: iso(NOW - 4 * MINUTE), cycles: 3 } : null,
    gpus: world.gpus(),
    money: {
      perHour: {
        busy: perHour((r) => r.group === "busy"),
        idle: perHour((r) => isIdle(r) && r.state !== "kept"),
        kept: perHour((r) => r.state === "kept"),
      },
      unpricedGpus: 0,
    },
    counts: countsOf(rows),
    paused: { workloads: paused.length, gpus: paused.reduce((n, r) => n + (r.rest?.gpus ?? 0), 0) },
    givenBackToday: { gpuHours: 213.4, takenGpuHours: 144.5 },
    next: coming(rows),
    brakes: { pausesThisCycle: 0, mostPerCycle: 10, gpusThisHour: 3, mostGpusThisHour: 21 },
    byNamespace: byNamespace(rows),
    leftAlone: grouped(rows.filter(isIdle), (reason) => ({ label: reason.split(":")[0], sentence: LEFT[reason] ?? reason })),
    unknowns: grouped(
      rows.filter((r) => r.group === "unknown"),
      (reason) => ({ label: reason, sentence: HELPS[reason][0], helps: HELPS[reason][1], nodes: HELPS[reason][2] }),
    ),
    banners,
  };
}

export function nodes(world) {
  const random = chance(3);
  const list = world.field.flatMap((pool) =>
    pool.nodes.map((node) => {
      const held = node.gpus.reduce((n, g) => n + g.slots.reduce((m, s) => m + (s.holder ? s.share : 0), 0), 0);
      const silent = node.name === "a100-05";
      const gaps = [[iso(NOW - 11.69 * HOUR), iso(NOW - 10.53 * HOUR)]];
      if (silent) gaps.push([iso(NOW - 11 * MINUTE), iso(NOW)]);
      if (node.name === "a100-03") gaps.push([iso(NOW - 79 * MINUTE), iso(NOW - 55 * MINUTE)]);
      const lost = gaps.reduce((n, [a, b]) => n + Date.parse(b) - Date.parse(a), 0);
      const exporter = silent
        ? { state: "silent", words: "Silent" }
        : node.name === "mig-02"
          ? { state: "utilisationOnly", words: "Utilisation only" }
          : node.name === "l4-05"
            ? { state: "suspect", words: "No node exporter" }
            : { state: "up", words: "Up" };
      return {
        name: node.name,
        pool: pool.name,
        model: pool.model,
        layout: { whole: "whole", mig: `MIG, ${node.gpus.length} GPUs`, slices: "time-slicing × 4" }[node.layout],
        gpus: node.gpus.length,
        held,
        activity: node.activity,
        ready: true,
        exporter,
        newestSeconds: silent ? 660 : random.whole(8, 14),
        coverage: { ratio: 1 - lost / DAY, gaps },
        perHour: node.gpus.length * PRICES[pool.model],
      };
    }),
  );
  const source = (name, state, headline, detail, effect) => ({ name, state, headline, detail, effect });
  return {
    revision: world.revision,
    nodes: list,
    sources: [
      source("Prometheus", "ok", "answers in 0.21 s", "newest sample 9 s old", "verdicts"),
      source("dcgm-exporter", "trouble", "19 of 20 nodes", "a100-05 silent since 14:36", "6 GPUs cannot be told"),
      source("Profiling counters", "partial", "19 of 20 nodes", "mig-02 has utilisation only", "1.5 GPUs cannot be told"),
      source("Node exporter", "partial", "1 of 2 shared nodes", "l4-05 without it", "1 slot cannot be told"),
      source("Kubernetes watch", "ok", "in sync", "412 pods, 20 nodes", "owners, pods"),
      source("Prices", "ok", "of 15 Nov", "12.4 GPU-hours without one", "cost"),
    ],
  };
}

export function sharing() {
  const step = (name, state) => ({ name, state });
  return {
    changes: [
      {
        node: "mig-02",
        config: "mig-02",
        phase: "Configuring",
        layout: "8 × 3g.40gb, 8 × 2g.20gb, 16 × 1g.10gb",
        reason: "Running",
        because: "Waits for 4 pods to end; nobody is evicted",
        since: iso(NOW - 22 * MINUTE),
        until: iso(NOW + 38 * MINUTE),
        steps: [
          step("Planned", "done"),
          step("Cordoning", "done"),
          step("Draining", "now"),
          step("Labelling", "ahead"),
          step("Verifying", "ahead"),
          step("Uncordoning", "ahead"),
        ],
      },
    ],
    policies: [
      { name: "notebooks", strategy: "timeslicing", mode: "enforce", enforces: true, pods: 6, audited: 0, reverted: 1, trouble: null },
      { name: "services", strategy: "auto", mode: "audit", enforces: false, pods: 0, audited: 9, reverted: 0, trouble: null },
    ],
    plans: [
      { node: "mig-02", what: "newLayout", words: "new layout", because: "draining" },
      { node: "l4-06", what: "canBeEmptied", words: "can be emptied", because: "2 pods would fit on l4-05" },
      { node: "h100-04", what: "stays", words: "stays", because: "somebody keeps a pod of it by an acknowledgement" },
    ],
    room: {
      asOf: iso(NOW - MINUTE),
      free: 24.1,
      stranded: 7.4,
      causes: [
        { cause: "q3_satisfied", gpus: 16.7, words: "usable: it fits here" },
        { cause: "q2_lack_gpu", gpus: 5.9, words: "the node has too few GPUs free for it" },
        { cause: "no_access", gpus: 1.5, words: "it does not accept this model" },
      ],
      nodes: [
        { node: "h100-04", gpus: 2.9 },
        { node: "a100-03", gpus: 1.8 },
      ],
    },
    unknown: [],
  };
}

// ---- history

export function states(world, window) {
  const [span, step] = { "24h": [DAY, 300], "7d": [7 * DAY, 1800], "30d": [30 * DAY, 7200] }[window];
  const random = chance(5);
  const end = world.gpus();
  const n = span / (step * 1000) + 1;
  const s = { busy: [], idle: [], kept: [], unknown: [], free: [], total: [] };
  const gapFrom = NOW - 11.69 * HOUR,
    gapTo = NOW - 10.53 * HOUR;
  for (let i = 0; i < n; i++) {
    const at = NOW - span + i * step * 1000;
    const left = (n - 1 - i) / n;
    const day = Math.sin(((at / DAY) * 2 - 0.15) * Math.PI);
    const wobble = () => random.between(-1.4, 1.4) * (i === n - 1 ? 0 : 1);
    const near = i === n - 1 ? 1 : Math.min(1, left * 9);
    const gap = at > gapFrom && at < gapTo;
    const busy = end.busy - (near < 1 ? 0 : 0) + (left > 0 ? -12 * near - 11 * day * near : 0) + wobble();
    const idle = end.idle + end.told + end.left - (left > 0 ? 2 * near : 0) + wobble() * 0.6;
    const kept = end.kept + (left > 0 ? -1.5 * near : 0) + wobble() * 0.3;
    const unknown = left > 0.01 ? 1.5 + Math.max(0, wobble()) * 0.4 : end.unknown;
    const put = (k, v) => s[k].push(gap ? null : Math.max(0, v));
    put("busy", busy);
    put("idle", idle);
    put("kept", kept);
    put("unknown", unknown);
    put("free", end.total - busy - idle - kept - unknown);
    put("total", end.total);
  }
  return {
    from: iso(NOW - span),
    to: iso(NOW),
    stepSeconds: step,
    ...s,
    gaps: [{ from: iso(gapFrom), to: iso(gapTo), because: "Prometheus away" }],
  };
}

export function savings() {
  const given = [250, 270, 263, 328, 334, 261, 272, 287, 287, 291, 353, 357, 290, 213.4],
    taken = [190, 203, 178, 121, 105, 194, 215, 225, 233, 198, 132, 119, 221, 144.5],
    regrets = [0, 1, 0, 0, 0, 2, 0, 0, 1, 0, 0, 0, 1, 0];
  return {
    days: given.map((g, i) => ({ day: iso(NOW - (13 - i) * DAY).slice(0, 10), gpuHours: g, takenGpuHours: taken[i], regrets: regrets[i] })),
    gpuHours: given.slice(-7).reduce((a, b) => a + b, 0),
    mode: "acting",
  };
}

export function pace(window) {
  const [span, step] = { "24h": [DAY, 3600], "7d": [7 * DAY, 3600], "30d": [30 * DAY, 4 * 3600] }[window];
  const random = chance(21);
  const to = NOW - (NOW % HOUR) + HOUR;
  const start = window === "7d" ? Date.parse("2026-11-11T00:00:00Z") : to - span;
  const n = Math.floor((to - start) / (step * 1000));
  const paused = [],
    resumed = [],
    regretted = [];
  for (let i = 0; i < n; i++) {
    const hour = (start / HOUR + i * (step / 3600)) % 24;
    paused.push(random.next() < (hour > 10 && hour < 23 ? 0.78 : 0.14) ? random.whole(1, hour > 16 && hour < 22 ? 4 : 2) : 0);
    resumed.push(hour > 7 && hour < 15 && random.next() < 0.7 ? random.whole(1, hour < 10 ? 3 : 1) : 0);
    regretted.push(random.next() < 0.02 && resumed[i] ? 1 : 0);
  }
  return {
    from: iso(start),
    to: iso(NOW),
    stepSeconds: step,
    paused,
    resumed,
    regretted,
    freezes: [{ from: "2026-11-16T10:52:00Z", to: "2026-11-16T11:52:00Z" }],
  };
}

const DECISIONS = [
  ["2026-11-17T14:44:10Z", "kept", "nb-tracking", 1, "kept until Wed 09:00, “labels arrive tonight”", "vera@example.com", "api"],
  ["2026-11-17T14:42:00Z", "told", "llm-draft", 4, "#team-chat and ana@example.com; pause at 15:12", "fallow", "cycle"],
  ["2026-11-17T14:35:00Z", "told", "reranker-ft", 4, "#team-search; pause at 15:05", "fallow", "cycle"],
  ["2026-11-17T14:12:00Z", "paused", "beam-search", 3, "Deployment in team-speech, 3 pods to 0, idle 1 h 31 min", "fallow", "cycle"],
  ["2026-11-17T13:58:00Z", "left", "eval-harness", 4, "brought back by hand 3 times in 24 h; left until Wed 13:58", "fallow", "cycle"],
  [
    "2026-11-17T13:57:00Z",
    "broughtBack",
    "eval-harness",
    4,
    "scaled up outside fallow, by field manager kubectl-scale",
    "not through fallow",
    "outside",
  ],
  [
    "2026-11-17T13:20:00Z",
    "notPaused",
    "thumbs",
    2,
    "the second look found GPU 2 on l4-01 at 12 %",
    "fallow",
    "cycle",
    "Planned: pause, idle 1 h 01 min, policy serving, cycle 8,214\nSecond look: 13:20:04, object unchanged, 2 pods, GPU 2 on l4-01 at 12 %\nResult: no request sent; marks removed; the next notice starts from zero",
  ],
  ["2026-11-17T12:51:00Z", "paused", "eval-harness", 4, "Deployment in team-chat, 1 pod to 0, idle 1 h 04 min", "fallow", "cycle"],
  [
    "2026-11-17T12:40:00Z",
    "resumed",
    "video-batch",
    2,
    "Job in team-vision, up after 1 min 44 s; rested 3 h 12 min",
    "tom@example.com",
    "slack",
  ],
  [
    "2026-11-17T10:31:00Z",
    "failed",
    "maps-tile",
    1,
    "Rollout in team-maps: 403, may not patch rollouts.argoproj.io",
    "fallow",
    "cycle",
    "Enable letter o in the role, or leave Rollouts out of policy serving.",
    "Forbidden",
  ],
  ["2026-11-17T09:12:00Z", "kept", "sim-rollouts", 4, "until 15:30, “demo at three”", "kim@example.com", "api"],
  [
    "2026-11-17T08:06:00Z",
    "resumed",
    "tts-voices",
    2,
    "Deployment in team-speech, up after 1 min 12 s; rested 11 h 02 min",
    "mia@example.com",
    "api",
  ],
  ["2026-11-17T03:06:00Z", "noDecision", null, null, "Prometheus did not answer for 69 min; nothing was sent or paused", "fallow", "cycle"],
  ["2026-11-16T19:20:00Z", "paused", "batch-eval", 9, "4 more in the same cycle: nb-scan, nb-mesh, ocr-train, hq-index", "fallow", "cycle"],
  ["2026-11-16T16:55:00Z", "regretted", "nb-flow", 2, "resumed 6 min after its pause", "lee@example.com", "api"],
  ["2026-11-16T16:49:00Z", "paused", "nb-flow", 2, "Notebook in team-robotics, stopped, idle 1 h 02 min", "fallow", "cycle"],
  ["2026-11-16T11:52:00Z", "unfrozen", null, null, "the new level is the baseline", "fallow", "cycle"],
  [
    "2026-11-16T10:52:00Z",
    "frozen",
    null,
    null,
    "idle share rose from 24 % to 61 % in one cycle, 41 GPUs more; held for 60 min",
    "fallow",
    "cycle",
  ],
  [
    "2026-11-16T10:40:00Z",
    "keepEnded",
    "nb-audit",
    2,
    "TrainJob in team-ads; it cost $61.44 while idle; a new notice follows",
    "fallow",
    "cycle",
  ],
  ["2026-11-16T09:58:00Z", "refused", "nb-audit", 2, "keep for 24 h: the policy allows 8 h", "noa@example.com", "api", null, "AckTooLong"],
  [
    "2026-11-16T08:12:00Z",
    "resumed",
    "llm-draft",
    4,
    "Deployment in team-chat, up after 1 min 38 s; rested 2 d 13 h",
    "ana@example.com",
    "api",
  ],
  ["2026-11-16T08:04:00Z", "resumed", "geo-rank", 2, "and 2 more; back within 2 min each", "dan@example.com", "cli"],
];
export function decisions(world) {
  const byName = new Map(world.list().map((r) => [r.name, r]));
  return DECISIONS.map(([at, type, name, gpus, sentence, actor, source, detail, code], i) => ({
    id: 900 - i,
    at,
    type,
    workload: byName.has(name) ? refOf(byName.get(name)) : null,
    gpus,
    sentence,
    detail: detail ?? null,
    actor,
    source,
    reason: null,
    policy: byName.get(name)?.policy ?? null,
    code: code ?? null,
  }));
}

export function regrets(world) {
  const policy = (p, pauses, n, minutes) => ({ policy: p, pauses, regrets: n, threshold: 0.2, windowSeconds: minutes * 60 });
  const hit = (name, sentence, detail, at, id) => {
    const row = world.list().find((r) => r.name === name);
    return {
      id,
      at,
      type: "regretted",
      workload: row ? refOf(row) : null,
      gpus: 2,
      sentence,
      detail,
      actor: "lee@example.com",
      source: "api",
      reason: null,
      policy: "serving",
      code: null,
    };
  };
  const not = (label, sentence, count) => ({ label, sentence, count });
  return {
    byPolicy: [policy("notebooks", 96, 3, 60), policy("serving", 81, 3, 60), policy("training", 25, 1, 90), policy("default", 12, 0, 30)],
    items: [
      hit(
        "hq-index",
        "Paused Mon 16:49, back after 6 min by lee@example.com",
        "A window of 75 min would have spared it, and cost 9 GPU-hours in 30 days.",
        "2026-11-16T16:55:00Z",
        1,
      ),
      hit(
        "nb-flow",
        "Paused Fri 18:07, back after 11 min by raj@example.com",
        "No longer window helps: it was quiet for 5 h.",
        "2026-11-13T18:18:00Z",
        2,
      ),
      hit(
        "intent-b",
        "Paused Thu 09:31, back after 3 min by ana@example.com",
        "A window of 90 min would have spared it, and cost 41 GPU-hours.",
        "2026-11-12T09:34:00Z",
        3,
      ),
    ],
    notHappened: [
      not("Second look said no", "workload, pods or GPUs had changed", 18),
      not("Owner kept it in time", "acknowledged during the grace", 57),
      not("Became busy during the grace", "marks removed at once", 133),
      not("Brake or freeze held it", "tried again later", 22),
      not("Request failed", "403, conflict, time-out", 3),
    ],
  };
}
export function gaming(world) {
  const row = world.list().find((r) => r.name === "nb-warm");
  return {
    items: row
      ? [
          {
            workload: refOf(row),
            gpus: ["GPU-7"],
            since: iso(NOW - 6 * HOUR),
            until: iso(NOW),
            mean: 0.007,
            tensorMax: 0,
            dramMax: 0.002,
            bursts: 359,
            everySeconds: 60,
            variation: 0.02,
            sentence: "",
          },
        ]
      : [],
    asOf: iso(NOW - 4 * 60_000),
    asked: 3,
    because: null,
  };
}

export function policies(world) {
  const about = {
    serving: ["pause", 30, 60, 120, 30, ["inference"]],
    notebooks: ["pause", 20, 60, 90, 30, ["notebook"]],
    training: ["pause", 10, 90, 180, 30, ["training"]],
    "night-only": ["notify", 40, 60, 90, 30, ["notebook"]],
    default: ["report", 0, 30, 65, 30, []],
  };
  return {
    items: Object.entries(about).map(([name, [action, priority, idle, never, grace, classes]]) => {
      const rows = world.list().filter((r) => r.policy === name);
      return {
        name,
        priority,
        action,
        isValid: name !== "night-only",
        trouble: name === "night-only" ? "spec.schedule: 26:00 is not a time of day; the last valid version holds" : null,
        matched: rows.length,
        idle: rows.filter(isIdle).length,
        idleGpus: rows.filter(isIdle).reduce((n, r) => n + r.gpus, 0),
        paused: rows.filter((r) => r.group === "paused").length,
        acknowledged: rows.filter((r) => r.keep).length,
        goneIdleSeconds: idle * 60,
        neverUsedSeconds: never * 60,
        graceSeconds: grace * 60,
        widened:
          name === "serving"
            ? {
                times: 1.5,
                fromSeconds: 40 * 60,
                because: "4 of 12 pauses were undone within 15 min, more than 20%",
                since: iso(NOW - 2 * DAY),
                backAt: iso(NOW + 5 * DAY),
                calmBelow: 0.1,
                pauses: 8,
                regrets: 0,
              }
            : null,
        classes,
        kinds: [...new Set(rows.map((r) => r.kind))].slice(0, 5),
        namespaces: "team-*",
        spec: {
          priority,
          selector: { namespaces: ["team-*"], classes },
          idle: { goneIdle: `${idle}m`, neverUsed: `${never}m` },
          action,
          consent: { grace: `${grace}m`, buttons: ["4h", "8h", "24h"], maxAck: "168h" },
        },
        workloads: rows.slice(0, 50).map(refOf),
      };
    }),
  };
}
