// Makes a world from a written cluster, or a big one from a seed: GPUs with their slots, workload rows, overview, nodes. `now` is an argument.
import { chance } from "./chance.mjs";
import { NOW, POOLS, PRICES, WORKLOADS } from "./cluster.mjs";

const MINUTE = 60_000;
export const iso = (t) => new Date(t).toISOString().replace(/\.\d+Z$/, "Z");
const GROUP = {
  told: "willPause",
  idle: "onTheWay",
  left: "leftAlone",
  kept: "kept",
  unknown: "unknown",
  busy: "busy",
  paused: "paused",
  resuming: "paused",
};
const API = {
  Deployment: "apps/v1",
  StatefulSet: "apps/v1",
  Job: "batch/v1",
  Notebook: "kubeflow.org/v1",
  TrainJob: "trainer.kubeflow.org/v1alpha1",
  RayCluster: "ray.io/v1",
  InferenceService: "serving.kserve.io/v1beta1",
  Rollout: "argoproj.io/v1alpha1",
  Workflow: "argoproj.io/v1alpha1",
};
const uidOf = (name) => `u-${name}`;
const refOf = (name, w) => ({ apiVersion: API[w.kind] ?? "apps/v1", kind: w.kind, namespace: w.namespace, name, uid: uidOf(name) });
const spanOf = (m) => (m < 60 ? `${m} min` : `${Math.floor(m / 60)} h ${String(m % 60).padStart(2, "0")} min`);
const hhmm = (t) => iso(t).slice(11, 16);

function slotShares(words, layout) {
  if (layout === "slices") return words.map(() => 1 / words.length);
  if (layout !== "mig") return [1];
  const memory = { 1: 1, 2: 2, 3: 4, 4: 4, 7: 8 };
  const raw = words.map((word) => {
    const size = Number(word.split("/")[1]);
    return (size / 7 + memory[size] / 8) / 2;
  });
  const sum = raw.reduce((a, b) => a + b, 0);
  return raw.map((r) => r / sum);
}

function slotsOf(words, node, workloads, gpu) {
  const layout = node.layout ?? "whole";
  const shares = slotShares(words, layout);
  let start = 0;
  return words.map((word, i) => {
    const [name, size] = word.split("/");
    const [state, by] = name.startsWith("free") ? name.split(":") : [workloads[name].state, null];
    const holder = by === null ? refOf(name, workloads[name]) : null;
    const slot = {
      share: shares[i],
      start: size ? start : null,
      size: size ? Number(size) : null,
      profile: size ? `${size}g.${{ 1: 10, 2: 20, 3: 40, 4: 40, 7: 80 }[size]}gb` : null,
      state,
      holder,
      activity: holder ? (workloads[name].activity ?? (state === "unknown" ? null : 0.001)) : null,
      freedBy: by ? refOf(by, workloads[by]) : null,
      label: labelOf(node.name, gpu, name, workloads[name], state),
    };
    start += Number(size ?? 0);
    return slot;
  });
}

function labelOf(node, gpu, name, w, state) {
  if (!w) return `${node} GPU ${gpu}, ${state === "freed" ? "freed by a pause, not yet taken" : "free"}`;
  const idle = w.minutes ? ` ${spanOf(w.minutes)}` : "";
  const words = {
    told: `idle${idle}, pause at ${hhmm(NOW + ((w.grace ?? 0) - (w.told ?? 0)) * MINUTE)}`,
    idle: `idle${idle}`,
    kept: `idle${idle}, kept`,
    left: `idle${idle}, left alone`,
    unknown: "cannot tell",
    busy: "busy",
  };
  return `${node} GPU ${gpu}, ${name}, ${words[state]}`;
}

const fieldOf = (pools, workloads) =>
  pools.map((pool) => ({
    name: pool.name,
    model: pool.model,
    perGpuHour: PRICES[pool.model] ?? null,
    nodes: pool.nodes.map((node) => ({
      name: node.name,
      ready: true,
      layout: node.layout ?? "whole",
      activity: node.activity,
      trouble: node.trouble ?? null,
      gpus: node.gpus.map((words, index) => ({ index, uuid: `GPU-${node.name}-${index}`, slots: slotsOf(words, node, workloads, index) })),
    })),
  }));

function holdings(field) {
  const held = new Map();
  for (const pool of field)
    for (const node of pool.nodes)
      for (const gpu of node.gpus)
        for (const slot of gpu.slots) {
          if (!slot.holder) continue;
          const h = held.get(slot.holder.uid) ?? { gpus: 0, instances: 0, models: new Set(), perHour: 0, nodes: new Map() };
          h.gpus += slot.share;
          h.instances += 1;
          h.models.add(pool.model);
          h.perHour += slot.share * (pool.perGpuHour ?? 0);
          h.nodes.set(node.name, [...(h.nodes.get(node.name) ?? []), gpu.index]);
          held.set(slot.holder.uid, h);
        }
  return held;
}

function stripOf(name, w, random) {
  const idleHalves = w.minutes ? Math.min(48, Math.max(1, Math.round(w.minutes / 30))) : 0;
  const born = w.kind === "Notebook" ? 31 : 0;
  if (w.state === "paused") {
    const p = Math.min(48, Math.ceil(w.rest[0] / 30));
    return "b".repeat(48 - p) + "p".repeat(p);
  }
  if (w.never) return "-".repeat(45) + "iii";
  let strip = "";
  for (let i = 0; i < 48; i++)
    strip +=
      i < born
        ? "-"
        : i === 24 || i === 25
          ? "u"
          : i >= 48 - idleHalves
            ? w.state === "kept" && i > 44
              ? "k"
              : "i"
            : random.next() < 0.12
              ? "i"
              : "b";
  return w.state === "unknown" ? strip.slice(0, 46) + "uu" : strip;
}

function rowOf(name, w, held, random, revision) {
  const h = held.get(uidOf(name)) ?? { gpus: 0, instances: 0, models: new Set(w.rest ? [w.rest[2]] : []), perHour: 0 };
  const pauseAt = w.state === "told" ? NOW + (w.grace - w.told) * MINUTE : null;
  const next =
    w.state === "told"
      ? { type: "pause", at: iso(pauseAt), because: "grace after the notice" }
      : w.notice !== undefined
        ? { type: "notice", at: iso(NOW + w.notice * MINUTE), because: w.because }
        : w.keep
          ? { type: "keepEnds", at: iso(NOW + w.keep[0] * MINUTE), because: "the keep ends" }
          : null;
  const isIdle = ["told", "idle", "left", "kept"].includes(w.state);
  const reasons = {
    told: "InNotice",
    idle: w.skip ?? "Confirming",
    kept: "Acknowledged",
    left: w.skip,
    unknown: w.reason,
    busy: "Active",
    paused: "Paused",
    resuming: "Resuming",
  };
  return {
    ...refOf(name, w),
    state: w.state,
    verdict: isIdle ? "idle" : w.state === "unknown" ? "unknown" : "active",
    reason: reasons[w.state] ?? "Idle",
    because: w.because ?? (isIdle ? `no work for ${spanOf(w.minutes)}` : "at work"),
    group: GROUP[w.state],
    gpus: h.gpus,
    instances: h.instances,
    idleGpus: isIdle ? h.gpus : 0,
    models: [...h.models],
    profile: w.profile ?? null,
    idleSince: isIdle ? iso(NOW - w.minutes * MINUTE) : null,
    atLeast: (w.minutes ?? 0) > 2400,
    idleSeconds: isIdle ? w.minutes * 60 : null,
    neverUsed: !!w.never,
    strip: stripOf(name, w, random),
    perHour: h.perHour || null,
    next,
    skip: w.state === "left" || w.skip ? w.skip : null,
    skipBecause: w.state === "left" || w.skip ? w.because : null,
    toldAt: w.told !== undefined ? iso(NOW - w.told * MINUTE) : null,
    toldTo: w.to ?? [],
    keepHours: [4, 8, 24],
    maxKeepHours: 168,
    policy: w.policy,
    keep: w.keep
      ? {
          until: iso(NOW + w.keep[0] * MINUTE),
          by: w.keep[1],
          reason: w.keep[2],
          at: iso(NOW - 180 * MINUTE),
          idleSeconds: w.minutes * 60,
          cost: h.perHour * (w.minutes / 60),
        }
      : null,
    rest: w.rest
      ? {
          at: iso(NOW - w.rest[0] * MINUTE),
          by: "fallow",
          reason: `${w.rest[1]} GPUs idle for 1h31m (policy ${w.policy})`,
          gpus: w.rest[1],
          policy: w.policy,
          size: w.rest[3],
          resumeCommand: `fallow resume ${w.kind}/${name} -n ${w.namespace}`,
        }
      : null,
    revision,
  };
}

const VIEWS = {
  idle: ["willPause", "onTheWay", "leftAlone", "kept"],
  unknown: ["unknown"],
  busy: ["busy"],
  paused: ["paused"],
  kept: ["kept"],
};
export const inView = (row, view) => view === "all" || VIEWS[view].includes(row.group);
export const countsOf = (rows) =>
  Object.fromEntries(["idle", "unknown", "busy", "paused", "kept", "all"].map((v) => [v, rows.filter((r) => inView(r, v)).length]));

function gpusOf(field) {
  const sum = { total: 0, busy: 0, idle: 0, told: 0, kept: 0, left: 0, unknown: 0, free: 0, freed: 0 };
  for (const pool of field)
    for (const node of pool.nodes)
      for (const gpu of node.gpus) {
        sum.total += 1;
        for (const slot of gpu.slots) sum[slot.state] += slot.share;
      }
  return sum;
}

export class World {
  constructor(pools, workloads, seed) {
    const random = chance(seed);
    this.random = random;
    this.revision = 8214;
    this.workloads = workloads;
    this.field = fieldOf(pools, workloads);
    this.held = holdings(this.field);
    this.rows = new Map(Object.entries(workloads).map(([name, w]) => [uidOf(name), rowOf(name, w, this.held, random, this.revision)]));
    this.frozen = null;
  }
  list() {
    return [...this.rows.values()];
  }
  find(namespace, kind, name) {
    return this.list().find((r) => r.namespace === namespace && r.kind === kind && r.name === name);
  }
  gpus() {
    return gpusOf(this.field);
  }
  /** Write a row anew after a change of some of its fields; the cells of the field follow. */
  change(uid, fields) {
    this.revision += 1;
    const row = { ...this.rows.get(uid), ...fields, revision: this.revision };
    this.rows.set(uid, row);
    for (const pool of this.field)
      for (const node of pool.nodes)
        for (const gpu of node.gpus)
          for (const slot of gpu.slots) {
            if (slot.holder?.uid !== uid) continue;
            if (row.state === "paused")
              Object.assign(slot, {
                state: "freed",
                freedBy: slot.holder,
                holder: null,
                activity: null,
                label: `${node.name} GPU ${gpu.index}, freed by a pause, not yet taken`,
              });
            else slot.state = row.state === "resuming" ? "busy" : row.state;
          }
    return row;
  }
}

export const drawn = () => new World(POOLS, WORKLOADS, 7);

/** A big cluster: `n` workloads on as many 8-GPU nodes as they need. */
export function big(n, seed = 11) {
  const random = chance(seed);
  const workloads = {};
  const kinds = ["Deployment", "Notebook", "Job", "TrainJob", "StatefulSet", "RayCluster"];
  const states = ["busy", "busy", "busy", "busy", "told", "idle", "left", "kept", "unknown", "paused"];
  const cells = [];
  for (let i = 0; i < n; i++) {
    const name = `${random.pick(["train", "nb", "serve", "eval", "batch", "index"])}-${String(i).padStart(4, "0")}`;
    const state = random.pick(states);
    const size = random.pick([1, 1, 1, 1, 1, 1, 1, 1, 2]);
    const told = random.whole(1, 29);
    const keep = [random.whole(5, 1400), `user${i % 90}@example.com`, "still needed"];
    workloads[name] = {
      kind: random.pick(kinds),
      namespace: `team-${random.whole(1, 60)}`,
      state,
      minutes: random.whole(31, 4000),
      policy: random.pick(["serving", "notebooks", "training"]),
      because: { left: "opted out by annotation", unknown: "started less than 35 min ago", idle: "second look first" }[state],
      skip: state === "left" ? "OptedOut" : undefined,
      reason: "TooYoung",
      told: state === "told" ? told : undefined,
      grace: 30,
      to: [`#team-${i % 60}`],
      notice: state === "idle" ? random.whole(1, 40) : undefined,
      keep: state === "kept" ? keep : undefined,
      rest: state === "paused" ? [random.whole(10, 900), size, "A100-80GB", "2 replicas"] : undefined,
      activity: state === "busy" ? random.between(0.05, 0.95) : undefined,
    };
    if (state !== "paused") for (let g = 0; g < size; g++) cells.push([name]);
  }
  while (cells.length % 8) cells.push(["free"]);
  const nodes = Array.from({ length: cells.length / 8 }, (_, i) => ({
    name: `node-${String(i).padStart(3, "0")}`,
    gpus: cells.slice(i * 8, i * 8 + 8),
    activity: random.next(),
  }));
  const cut = Math.floor(nodes.length / 3);
  return new World(
    [
      { name: "train-h100", model: "H100-80GB", nodes: nodes.slice(0, cut) },
      { name: "serve-a100", model: "A100-80GB", nodes: nodes.slice(cut, 2 * cut) },
      { name: "dev-l4", model: "L4", nodes: nodes.slice(2 * cut) },
    ],
    workloads,
    seed,
  );
}
export { hhmm, spanOf, MINUTE };
