// The answers of the server, exactly as the contract names them (later generated from /api/openapi.json).
// Instants are RFC 3339 UTC, spans are seconds, ratios 0..1, GPU figures shares of physical GPUs; null means: not known.

export type State = "busy" | "idle" | "told" | "kept" | "left" | "unknown" | "paused" | "resuming";
export type SlotState = "busy" | "idle" | "told" | "kept" | "left" | "unknown" | "free" | "freed";
export type Step = "notice" | "pause" | "keepEnds" | "freezeEnds";
export type View = "idle" | "unknown" | "busy" | "paused" | "kept" | "all";
export type Group = "willPause" | "onTheWay" | "leftAlone" | "kept" | "unknown" | "busy" | "paused";

export type Ref = { apiVersion: string; kind: string; namespace: string; name: string; uid: string };
export type Next = { type: Step; at: string | null; because: string };
export type Keep = { until: string; by: string; reason: string | null; at: string | null; idleSeconds: number | null; cost: number | null };
export type Rest = {
  at: string;
  by: string;
  reason: string;
  gpus: number | null;
  policy: string | null;
  size: string;
  resumeCommand: string;
};
export type May = { allowed: boolean; missing: string | null; command: string };
export type Failed = { error: { code: string; message: string }; missing?: string };
export type Outcome = { status: string; sentence: string; code: string | null };

export type Frozen = { until: string; because: string; by: string | null };
export type Failure = { because: string; since: string; cycles: number };
export type Gpus = {
  total: number | null;
  busy: number | null;
  idle: number | null;
  told: number | null;
  kept: number | null;
  left: number | null;
  unknown: number | null;
  free: number | null;
  freed: number;
};
export type Counts = Record<View, number>;
export type Coming = {
  step: Step;
  at: string | null;
  workloads: Ref[];
  gpus: number;
  model: string | null;
  perHour: number | null;
  because: string;
  cost: number | null;
};
export type Banner = { kind: "stale" | "frozen" | "data" | "dryRun"; headline: string; sentence: string };
export type Overview = {
  revision: number;
  cluster: string;
  mode: "acting" | "dry-run";
  version: string;
  asOf: string | null;
  intervalSeconds: number;
  tookSeconds: number | null;
  isLeader: boolean;
  currency: string;
  auth: AuthMode;
  user: string | null;
  frozen: Frozen | null;
  failure: Failure | null;
  gpus: Gpus;
  money: { perHour: { busy: number | null; idle: number | null; kept: number | null }; unpricedGpus: number };
  counts: Counts;
  paused: { workloads: number; gpus: number };
  givenBackToday: { gpuHours: number; takenGpuHours: number | null };
  next: Coming[];
  brakes: { pausesThisCycle: number; mostPerCycle: number; gpusThisHour: number; mostGpusThisHour: number | null };
  byNamespace: { namespace: string; held: number; idle: number; kept: number }[];
  leftAlone: { label: string; sentence: string; workloads: number; gpus: number }[];
  unknowns: { label: string; sentence: string; helps: string; workloads: number; gpus: number; nodes: string[] }[];
  banners: Banner[];
};

export type Slot = {
  share: number;
  start: number | null;
  size: number | null;
  profile: string | null;
  state: SlotState;
  holder: Ref | null;
  activity: number | null;
  freedBy: Ref | null;
  label: string;
};
export type Gpu = { index: number; uuid: string | null; slots: Slot[] };
export type Layout = "whole" | "mig" | "slices" | "mps";
export type FieldNode = {
  name: string;
  ready: boolean | null;
  layout: Layout;
  activity: number | null;
  trouble: string | null;
  gpus: Gpu[];
};
export type Pool = { name: string; model: string | null; perGpuHour: number | null; nodes: FieldNode[] };
export type Field = { revision: number; pools: Pool[] };

export type Source = { name: string; state: "ok" | "trouble" | "partial" | "unseen"; headline: string; detail: string; effect: string };
export type NodeRow = {
  name: string;
  pool: string;
  model: string | null;
  layout: string;
  gpus: number;
  held: number;
  activity: number | null;
  ready: boolean | null;
  exporter: { state: "up" | "silent" | "suspect" | "utilisationOnly" | "none" | "unseen"; words: string };
  newestSeconds: number | null;
  coverage: { ratio: number | null; gaps: [string, string][] };
  perHour: number | null;
  plan: string | null;
};
export type Nodes = { revision: number; sources: Source[]; nodes: NodeRow[] };

export type Row = Ref & {
  state: State;
  verdict: "idle" | "active" | "unknown";
  reason: string;
  because: string;
  group: Group;
  gpus: number;
  instances: number;
  idleGpus: number;
  models: string[];
  profile: string | null;
  idleSince: string | null;
  atLeast: boolean;
  idleSeconds: number | null;
  neverUsed: boolean;
  strip: string | null;
  perHour: number | null;
  next: Next | null;
  skip: string | null;
  skipBecause: string | null;
  toldAt: string | null;
  toldTo: string[];
  policy: string;
  keep: Keep | null;
  rest: Rest | null;
  revision: number;
};
export type Workloads = {
  revision: number;
  items: Row[];
  next: string | null;
  total: number;
  counts: Counts;
  sums: { gpus: number; perHour: number | null; unpricedGpus: number };
};

export type Check = {
  group: "idle" | "pausable" | "waiting";
  state: "ok" | "failed" | "waiting";
  sentence: string;
  limit: string | null;
  reason: string | null;
  helps: string | null;
};
export type Episode = {
  at: string;
  kind: "work" | "gap" | "idle" | "told" | "kept" | "now" | "pause" | "paused" | "resumed";
  headline: string;
  sentence: string;
};
export type Explanation = {
  workload: Ref;
  verdict: string;
  reasons: { reason: string; because: string }[];
  skips: { skip: string; because: string }[];
  policy: string;
  idleSince: string | null;
  atLeast: boolean;
  neverUsed: boolean;
  windowSeconds: number;
  coverage: number | null;
  pausedAt: string | null;
  gpus: {
    uuid: string | null;
    node: string;
    index: number | null;
    pod: string;
    model: string | null;
    share: number;
    verdict: string;
    reason: string;
    because: string;
    signals: Record<string, { max: number | null; mean?: number; samples: number; newest: string | null }>;
  }[];
  lostSignals: { signal: string; because: string }[];
  owner: { kind: string; name: string; uid: string }[];
  nextAction: { type: Step; at: string | null } | null;
  patch: object | null;
  cost: { perHour: number | null; currency: string } | null;
  asOf: string | null;
  revision: number;
  row: Row;
  sentence: string;
  threshold: number;
  graceSeconds: number;
  keepHours: number[];
  maxKeepHours: number;
  keepCost: { hours: number; until: string; cost: number | null }[];
  may: { keep: May; pause: May; resume: May };
  checks: Check[];
  signals: { signal: string; name: string; measured: number | null; unit: string; limit: number | null; primary: boolean }[];
  episode: Episode[];
  writes: { method: string; path: string; body: object }[];
  was: string | null;
  notes: string[];
  gitops: string | null;
  keptBefore: Keep[];
  pausedBefore: { at: string; until: string | null; by: string | null; readyAfterSeconds: number | null; regretted: boolean }[];
  spent: { idle: number | null; idleSeconds: number | null };
};
export type Timeline = {
  from: string;
  to: string;
  stepSeconds: number;
  threshold: number;
  windowFrom: string;
  lastWork: string | null;
  gpus: {
    node: string;
    index: number | null;
    uuid: string | null;
    pod: string;
    values: (number | null)[];
    max: number | null;
    coverage: number | null;
    newestSeconds: number | null;
  }[];
  more: number;
  moreMax: number | null;
};

export type DecidedType =
  | "told"
  | "paused"
  | "resumed"
  | "kept"
  | "keepEnded"
  | "refused"
  | "failed"
  | "notPaused"
  | "broughtBack"
  | "left"
  | "frozen"
  | "unfrozen"
  | "noDecision"
  | "wouldPause"
  | "regretted"
  | "released";
export type Decided = {
  id: number;
  at: string;
  type: DecidedType;
  workload: Ref | null;
  gpus: number | null;
  sentence: string;
  detail: string | null;
  actor: string;
  source: "cycle" | "cli" | "api" | "slack" | "annotation" | "outside";
  reason: string | null;
  policy: string | null;
  code: string | null;
};
export type Decisions = { items: Decided[]; next: string | null; revision: number };

export type Series = (number | null)[];
export type States = {
  from: string;
  to: string;
  stepSeconds: number;
  total: Series;
  busy: Series;
  idle: Series;
  kept: Series;
  unknown: Series;
  free: Series;
  gaps: { from: string; to: string; because: string }[];
};
export type Pace = {
  from: string;
  to: string;
  stepSeconds: number;
  paused: number[];
  resumed: number[];
  regretted: number[];
  freezes: { from: string; to: string }[];
};
export type Savings = {
  days: { day: string; gpuHours: number; takenGpuHours: number | null; regrets: number }[];
  gpuHours: number;
  mode: string;
};
export type Regrets = {
  byPolicy: { policy: string; pauses: number; regrets: number; threshold: number; windowSeconds: number }[];
  items: Decided[];
  notHappened: { label: string; sentence: string; count: number }[];
};
export type Gaming = { items: { workload: Ref; gpus: number; sentence: string; everySeconds: number; mean: number }[] };
export type Policy = {
  name: string;
  priority: number;
  action: "report" | "notify" | "pause";
  isValid: boolean;
  trouble: string | null;
  matched: number;
  idle: number;
  idleGpus: number;
  paused: number;
  acknowledged: number;
  goneIdleSeconds: number;
  neverUsedSeconds: number;
  graceSeconds: number;
  classes: string[];
  kinds: string[];
  namespaces: string;
  spec: object;
  workloads: Ref[];
};
export type Policies = { items: Policy[] };

export type AuthMode = "email" | "kube" | "oidc" | "proxy";
export type Me = { user: string | null; mode: AuthMode; mayFreeze: May; csrf: string };

/** What a `cycle` event carries. */
export type CycleNews = {
  revision: number;
  asOf: string | null;
  counts: Counts;
  gpus: Gpus;
  frozen: Frozen | null;
  failure: Failure | null;
};
export type RowNews = Row | { uid: string; gone: true };
