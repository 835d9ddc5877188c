// The pretend cluster of the drawings: 20 nodes in 5 pools, 128 GPUs, 56 workloads. What holds what is written down here; the rest is derived.
export const NOW = Date.parse("2026-11-17T14:47:00Z");
export const PRICES = { "H100-80GB": 6.88, "A100-80GB": 5.12, L4: 0.81, A10G: 0.42 };

// name: [kind, namespace, state, idle minutes, policy, more]
const w = (kind, namespace, state, minutes, policy, more = {}) => ({ kind, namespace, state, minutes, policy, ...more });
export const WORKLOADS = {
  "reranker-ft": w("TrainJob", "team-search", "told", 126, "training", { told: 12, grace: 30, to: ["#team-search"] }),
  "nb-ocr": w("Notebook", "team-vision", "told", 96, "notebooks", { told: 9, grace: 30, to: ["lee@example.com"], profile: "1g.10gb" }),
  "nb-codec": w("Notebook", "team-speech", "told", 85, "notebooks", { told: 9, grace: 30, to: ["mia@example.com"] }),
  "llm-draft": w("Deployment", "team-chat", "told", 134, "serving", { told: 5, grace: 30, to: ["#team-chat", "ana@example.com"] }),
  "nb-fleet": w("Notebook", "team-robotics", "told", 74, "notebooks", { told: 3, grace: 30, to: ["raj@example.com"] }),
  "ablation-study": w("Notebook", "team-vision", "told", 87, "notebooks", { told: 0, grace: 30, to: ["vera@example.com"], never: true }),
  "tts-voices": w("Deployment", "team-speech", "idle", 63, "serving", { notice: 2, because: "second look first" }),
  "nb-pose": w("Notebook", "team-vision", "idle", 71, "night-only", {
    notice: 193,
    because: "policy acts 18:00 to 08:00",
    skip: "OutsideSchedule",
  }),
  "img-index": w("StatefulSet", "team-vision", "left", 1147, "serving", {
    skip: "ReportOnly:PvcDeletedOnScale",
    because: "a pause would delete its volumes",
  }),
  "eval-harness": w("Deployment", "team-chat", "left", 372, "serving", {
    skip: "FightHold",
    because: "brought back by hand 3 times today",
  }),
  "chem-gen": w("Deployment", "team-bio", "left", 2505, "serving", {
    skip: "OptedOut",
    because: "opted out by annotation",
    profile: "4g.40gb",
  }),
  docqa: w("InferenceService", "team-search", "left", 1347, "serving", {
    skip: "ReportOnly:HpaCanScaleToZero",
    because: "HPA with minReplicas 0",
    profile: "3g.40gb",
  }),
  "sim-rollouts": w("RayCluster", "team-robotics", "kept", 289, "training", { keep: [43, "kim@example.com", "demo at three"] }),
  "nb-audit": w("Notebook", "team-ads", "kept", 169, "notebooks", { keep: [73, "noa@example.com", "month-end numbers"] }),
  "nb-lidar": w("Notebook", "team-robotics", "kept", 202, "notebooks", {
    keep: [193, "raj@example.com", "back after lunch"],
    profile: "1g.10gb",
  }),
  "nb-tracking": w("Notebook", "team-vision", "kept", 247, "notebooks", { keep: [1093, "vera@example.com", "labels arrive tonight"] }),
  "protein-fold": w("Job", "team-bio", "unknown", null, "training", {
    reason: "ExporterSilent",
    because: "exporter of a100-05 is silent since 14:36",
  }),
  "caption-api": w("Deployment", "team-vision", "unknown", null, "serving", {
    reason: "ExporterSilent",
    because: "exporter of a100-05 is silent since 14:36",
  }),
  "mig-batch": w("Job", "team-search", "unknown", null, "training", {
    reason: "UtilisationOnly",
    because: "mig-02 reports no profiling counters",
  }),
  "nb-fresh": w("Notebook", "team-ads", "unknown", null, "notebooks", { reason: "TooYoung", because: "started less than 35 min ago" }),
  "nb-neighbour": w("Notebook", "team-chat", "unknown", null, "notebooks", {
    reason: "SharedGpuBusy",
    because: "a neighbour is busy on the same GPU",
  }),
  "pretrain-7b": w("TrainJob", "team-chat", "busy", null, "training", { activity: 0.93 }),
  "search-embed": w("Deployment", "team-search", "busy", null, "serving", { activity: 0.6 }),
  "chat-prod": w("InferenceService", "team-chat", "busy", null, "serving", { activity: 0.6 }),
  "rank-ctr": w("Deployment", "team-ads", "busy", null, "serving", { activity: 0.5 }),
  "draft-api": w("Deployment", "team-search", "busy", null, "serving", { activity: 0.17 }),
  "asr-stream": w("Deployment", "team-speech", "busy", null, "serving", { activity: 0.15 }),
  thumbs: w("Deployment", "team-vision", "busy", null, "serving", { activity: 0.52 }),
  "ocr-api": w("Deployment", "team-search", "busy", null, "serving", { activity: 0.52 }),
  "maps-tile": w("Rollout", "team-maps", "busy", null, "serving", { activity: 0.28 }),
  "nb-warm": w("Notebook", "team-ads", "busy", null, "notebooks", { activity: 0.01 }),
  "gate-check": w("Deployment", "team-robotics", "busy", null, "serving", { activity: 0.58 }),
  "video-batch": w("Job", "team-vision", "busy", null, "training", { activity: 0.91 }),
  "spot-scan": w("Job", "team-bio", "busy", null, "training", { activity: 0.84 }),
  "tile-mini": w("Deployment", "team-maps", "busy", null, "serving", { activity: 0.44 }),
  "ab-probe": w("Deployment", "team-ads", "busy", null, "serving", { activity: 0.11 }),
  "geo-rank": w("Deployment", "team-maps", "busy", null, "serving", { activity: 0.48 }),
  "nb-graph": w("Notebook", "team-bio", "busy", null, "notebooks", { activity: 0.2 }),
  "tile-embed": w("Deployment", "team-maps", "busy", null, "serving", { activity: 0.66 }),
  "ctr-serve": w("Deployment", "team-ads", "busy", null, "serving", { activity: 0.41 }),
  "variant-call": w("Workflow", "team-bio", "busy", null, "training", { activity: 0.57 }),
  "mol-dock": w("Job", "team-bio", "busy", null, "training", { activity: 0.62 }),
  "nb-pool": w("Notebook", "team-speech", "busy", null, "notebooks", { activity: 0.12 }),
  "nb-hot": w("Notebook", "team-ads", "busy", null, "notebooks", { activity: 0.4 }),
  "nb-class": w("Notebook", "team-bio", "busy", null, "notebooks", { activity: 0.18 }),
  "beam-search": w("Deployment", "team-speech", "paused", null, "serving", { rest: [35, 3, "A100-80GB", "3 replicas"] }),
  "batch-eval": w("Job", "team-chat", "paused", null, "training", { rest: [1167, 9, "H100-80GB", "suspended"] }),
  "nb-scan": w("Notebook", "team-bio", "paused", null, "notebooks", { rest: [1167, 2, "L4", "stopped"] }),
  "nb-mesh": w("Notebook", "team-robotics", "paused", null, "notebooks", { rest: [1167, 2, "L4", "stopped"] }),
  "ocr-train": w("TrainJob", "team-vision", "paused", null, "training", { rest: [1167, 8, "A100-80GB", "suspended"] }),
  "hq-index": w("Deployment", "team-search", "paused", null, "serving", { rest: [1167, 4, "A100-80GB", "2 replicas"] }),
  "nb-flow": w("Notebook", "team-robotics", "paused", null, "notebooks", { rest: [900, 1, "L4", "stopped"] }),
  "intent-b": w("Deployment", "team-chat", "paused", null, "serving", { rest: [800, 4, "A100-80GB", "2 replicas"] }),
  "nb-sketch": w("Notebook", "team-ads", "paused", null, "notebooks", { rest: [300, 1, "A10G", "stopped"] }),
  "vox-clone": w("Deployment", "team-speech", "paused", null, "serving", { rest: [210, 3, "A100-80GB", "3 replicas"] }),
  "nb-slate": w("Notebook", "team-vision", "paused", null, "notebooks", { rest: [95, 1, "L4", "stopped"] }),
};

// One word a GPU: a workload, `free`, `freed` (by the workload after the colon); MIG and slices: one word a slot, `name/size`.
const whole = (...names) => names.flatMap(([name, n]) => Array(n).fill([name]));
const FREED = "freed:batch-eval";
export const POOLS = [
  {
    name: "train-h100",
    model: "H100-80GB",
    nodes: [
      { name: "h100-01", gpus: whole(["pretrain-7b", 8]), activity: 0.93 },
      { name: "h100-02", gpus: whole(["pretrain-7b", 8]), activity: 0.93 },
      { name: "h100-03", gpus: whole(["eval-harness", 4], ["reranker-ft", 4]), activity: 0 },
      { name: "h100-04", gpus: whole(["sim-rollouts", 4], [FREED, 4]), activity: 0 },
    ],
  },
  {
    name: "mig-a100",
    model: "A100-80GB",
    nodes: [
      {
        name: "mig-01",
        layout: "mig",
        activity: 0.38,
        gpus: [
          ["tile-mini/1", "tile-mini/1", "tile-mini/1", "ab-probe/1", "ab-probe/1", "nb-ocr/1", "nb-lidar/1"],
          ["geo-rank/2", "free/1", "nb-graph/1", "docqa/3"],
          ["tile-embed/4", "ctr-serve/3"],
          ["tile-embed/4", "ctr-serve/3"],
          ["chem-gen/4", "variant-call/3"],
          ["variant-call/3", "free/3"],
          ["geo-rank/2", "geo-rank/2", "ctr-serve/3"],
          ["free/7"],
        ],
      },
      {
        name: "mig-02",
        layout: "mig",
        activity: null,
        trouble: "no profiling",
        gpus: [
          ["mig-batch/2", "mig-batch/2", "mig-batch/3"],
          ["mig-batch/4", "freed:vox-clone/3"],
          ["free/7"],
          Array(7).fill("free/1"),
          ["mol-dock/4", "mol-dock/3"],
          ["chem-gen/4", "docqa/3"],
          ["variant-call/3", "mol-dock/3"],
          ["mol-dock/4", "free/3"],
        ],
      },
    ],
  },
  {
    name: "serve-a100",
    model: "A100-80GB",
    nodes: [
      { name: "a100-01", gpus: whole(["search-embed", 8]), activity: 0.6 },
      { name: "a100-02", gpus: whole(["chat-prod", 8]), activity: 0.6 },
      { name: "a100-03", gpus: whole(["rank-ctr", 4], ["llm-draft", 2], ["freed:beam-search", 2]), activity: 0.25 },
      { name: "a100-04", gpus: whole(["draft-api", 2], ["asr-stream", 2], ["llm-draft", 2], ["tts-voices", 2]), activity: 0.08 },
      { name: "a100-05", gpus: whole(["protein-fold", 4], ["caption-api", 2], ["free", 2]), activity: null, trouble: "silent 11\u00a0min" },
      { name: "a100-06", gpus: whole(["img-index", 6], ["ablation-study", 1], ["freed:beam-search", 1]), activity: 0 },
    ],
  },
  {
    name: "dev-l4",
    model: "L4",
    nodes: [
      { name: "l4-01", gpus: whole(["thumbs", 2], ["ocr-api", 2]), activity: 0.52 },
      { name: "l4-02", gpus: whole(["nb-pose", 1], ["nb-tracking", 1], ["maps-tile", 2]), activity: 0.14 },
      { name: "l4-03", gpus: whole(["nb-warm", 1], ["nb-fleet", 1], ["nb-fresh", 1], ["free", 1]), activity: 0.18 },
      { name: "l4-04", gpus: whole(["gate-check", 1], ["free", 3]), activity: 0.58 },
      {
        name: "l4-05",
        layout: "slices",
        activity: 0.14,
        gpus: [
          ["nb-pool", "nb-codec", "nb-pool", "nb-pool"],
          ["nb-neighbour", "nb-hot", "nb-pool", "free"],
          ["nb-audit", "free", "free", "free"],
          Array(4).fill("free"),
        ],
      },
      {
        name: "l4-06",
        layout: "slices",
        activity: 0.18,
        gpus: [["nb-class", "nb-class", "free", "free"], Array(4).fill("free"), Array(4).fill("free"), Array(4).fill("free")],
      },
    ],
  },
  {
    name: "spot-a10g",
    model: "A10G",
    nodes: [
      { name: "a10g-01", gpus: whole(["video-batch", 4]), activity: 0.91 },
      { name: "a10g-02", gpus: whole(["spot-scan", 3], ["freed:nb-sketch", 1]), activity: 0.84 },
    ],
  },
];
