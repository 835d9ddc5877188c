// Made by `python -m docs.api_types` of the server's own OpenAPI document: do not change it here.
// Instants are RFC 3339 UTC, spans seconds, ratios 0..1, GPUs shares of physical ones; null: not known.

export type State = "busy" | "idle" | "told" | "kept" | "left" | "unknown" | "paused" | "resuming";
export type SlotState = "busy" | "idle" | "told" | "kept" | "left" | "unknown" | "free" | "freed";
export type Step = "notice" | "pause" | "keepEnds" | "freezeEnds";
export type View = "idle" | "unknown" | "busy" | "paused" | "kept" | "all";
export type Group = "willPause" | "onTheWay" | "leftAlone" | "kept" | "unknown" | "busy" | "paused";
export type Layout = "whole" | "mig" | "slices" | "mps";
export type AuthMode = "email" | "kube" | "oidc" | "proxy";
export type DecidedType = "told" | "paused" | "resumed" | "kept" | "keepEnded" | "refused" | "failed" | "notPaused" | "broughtBack" | "left" | "frozen" | "unfrozen" | "noDecision" | "wouldPause" | "regretted" | "released";

export type AckTold = {
  until: string;
  by: string;
  reason: string | null;
  at: string | null;
  idleSeconds: number | null;
  cost: number | null;
  workload: Ref;
  active: boolean;
};
export type Acks = {
  items: AckTold[];
};
export type Row = {
  apiVersion: string;
  kind: string;
  namespace: string;
  name: string;
  uid: string;
  state: State;
  verdict: "active" | "idle" | "unknown";
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
export type Banner = {
  kind: "data" | "dryRun" | "frozen" | "stale";
  headline: string;
  sentence: string;
};
export type BrakesTold = {
  pausesThisCycle: number;
  mostPerCycle: number;
  gpusThisHour: number;
  mostGpusThisHour: number | null;
};
export type Check = {
  group: "idle" | "pausable" | "waiting";
  state: "failed" | "ok" | "waiting";
  sentence: string;
  limit?: string | null;
  reason?: string | null;
  helps?: string | null;
};
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
export type Cost = {
  perHour: number;
  currency: string;
};
/** Of the window of the rules; `gaps` as far as they are known. */
export type CoverageTold = {
  ratio: number | null;
  gaps: [string, string][];
};
export type Decided = {
  id: number;
  at: string;
  type: DecidedType;
  workload: Ref | null;
  gpus: number | null;
  sentence: string;
  detail: string | null;
  actor: string;
  source: "annotation" | "api" | "cli" | "cycle" | "outside" | "slack";
  reason: string | null;
  policy: string | null;
  code: string | null;
};
export type Decisions = {
  items: Decided[];
  next: string | null;
  revision: number;
};
export type Episode = {
  at: string;
  kind: "gap" | "idle" | "kept" | "now" | "pause" | "paused" | "resumed" | "told" | "work";
  headline: string;
  sentence: string;
};
/** `missing`: the right that lacks. */
export type Failed = {
  error: ErrorTold;
  missing?: string | null;
};
export type ErrorTold = {
  code: string;
  message: string;
};
export type ExporterTold = {
  state: "none" | "silent" | "suspect" | "unseen" | "up" | "utilisationOnly";
  words: string;
};
/** The last cycles gave no decision. */
export type Failure = {
  because: string;
  since: string;
  cycles: number;
};
export type Field = {
  revision: number;
  pools: Pool[];
};
/** `answer`: what the daemon made of it; of what stands in its own plan, that it is heeded. */
export type FreezeState = {
  frozen: boolean;
  until: string | null;
  reason: string | null;
  answer: string | null;
};
export type Frozen = {
  until: string;
  because: string;
  by: string | null;
};
/** What `fallow why` says, and what the page of a workload shows beside it. */
export type Explanation = {
  workload: Ref;
  verdict: string;
  reasons: ReasonGiven[];
  skips: SkipGiven[];
  policy: string;
  idleSince: string | null;
  atLeast: boolean;
  neverUsed: boolean;
  pausedAt: string | null;
  pause: PauseTold | null;
  windowSeconds: number;
  coverage: number | null;
  gpus: GpuEvidence[];
  lostSignals: SignalMissed[];
  owner: OwnerLink[];
  nextAction: Upcoming | null;
  patch: object | null;
  cost: Cost | null;
  asOf: string | null;
  revision: number;
  row: Row;
  sentence: string;
  threshold: number;
  graceSeconds: number;
  keepHours: number[];
  maxKeepHours: number;
  keepCost: KeepOffered[];
  may: MayDo;
  checks: Check[];
  signals: SignalTold[];
  episode: Episode[];
  writes: WriteTold[];
  was: string | null;
  notes: string[];
  gitops: string | null;
  keptBefore: Keep[];
  pausedBefore: PauseBefore[];
  spent: SpentTold;
};
export type GapTold = {
  from: string;
  to: string;
  because: string;
};
export type GivenBack = {
  gpuHours: number;
  takenGpuHours: number | null;
};
export type GpuEvidence = {
  uuid: string;
  index: number | null;
  node: string;
  pod: string;
  model: string;
  share: number;
  verdict: string;
  reason: string;
  because: string;
  signals: Record<string, SignalSeen>;
};
export type GpuLine = {
  node: string;
  index: number | null;
  uuid: string | null;
  pod: string;
  values: (number | null)[];
  max: number | null;
  coverage: number | null;
  newestSeconds: number | null;
};
export type Gpu = {
  index: number;
  uuid: string | null;
  slots: Slot[];
};
/** Physical GPUs by state: all but `total` add up to it. None: not all of the cluster is seen. */
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
export type History = {
  items: Decided[];
};
export type HourlyMoney = {
  busy: number | null;
  idle: number | null;
  kept: number | null;
};
export type KeepOffered = {
  hours: number;
  until: string;
  cost: number | null;
};
/** An acknowledgement. `idle_seconds`: for how long it was idle under it so far; `cost`: what that cost. */
export type Keep = {
  until: string;
  by: string;
  reason: string | null;
  at: string | null;
  idleSeconds: number | null;
  cost: number | null;
};
export type LeftAlone = {
  label: string;
  sentence: string;
  workloads: number;
  gpus: number;
};
export type MayDo = {
  keep: May;
  pause: May;
  resume: May;
};
/** `missing`: the right that lacks; `command`: what does the same at a keyboard. */
export type May = {
  allowed: boolean;
  missing: string | null;
  command: string;
};
export type MoneyTold = {
  perHour: HourlyMoney;
  unpricedGpus: number;
};
export type NamespaceHeld = {
  namespace: string;
  held: number;
  idle: number;
  kept: number;
};
export type NodeRow = {
  name: string;
  pool: string;
  model: string | null;
  layout: string;
  gpus: number;
  held: number;
  activity: number | null;
  ready: boolean | null;
  exporter: ExporterTold;
  newestSeconds: number | null;
  coverage: CoverageTold;
  perHour: number | null;
  plan: string | null;
};
export type FieldNode = {
  name: string;
  ready: boolean | null;
  layout: Layout;
  activity: number | null;
  trouble: string | null;
  gpus: Gpu[];
};
export type Nodes = {
  revision: number;
  sources: Source[];
  nodes: NodeRow[];
};
export type NotHappened = {
  label: string;
  sentence: string;
  count: number;
};
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
  money: MoneyTold;
  counts: Counts;
  paused: PausedSums;
  givenBackToday: GivenBack;
  next: Coming[];
  brakes: BrakesTold;
  byNamespace: NamespaceHeld[];
  leftAlone: LeftAlone[];
  unknowns: UnknownTold[];
  banners: Banner[];
};
export type OwnerLink = {
  kind: string;
  name: string;
  uid: string;
};
export type Pace = {
  from: string;
  to: string;
  stepSeconds: number;
  paused: number[];
  resumed: number[];
  regretted: number[];
  freezes: SpanTold[];
};
export type PauseBefore = {
  at: string;
  until: string | null;
  by: string | null;
  readyAfterSeconds: number | null;
  regretted: boolean;
};
/** A pause of ours that stands, as its marks tell it. `returns_to`: what a resume restores, by JSON pointer. */
export type PauseTold = {
  at: string | null;
  by: string | null;
  policy: string | null;
  reason: string | null;
  gpus: number | null;
  replicas: number | null;
  returnsTo: object;
};
export type PausedSums = {
  workloads: number;
  gpus: number;
};
export type Policies = {
  items: Policy[];
};
export type PolicyRegrets = {
  policy: string;
  pauses: number;
  regrets: number;
  threshold: number;
  windowSeconds: number;
};
/** `workloads`: what it matches now, at most MOST_NAMED of them. */
export type Policy = {
  name: string;
  priority: number;
  action: "notify" | "pause" | "report";
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
export type Pool = {
  name: string;
  model: string | null;
  perGpuHour: number | null;
  nodes: FieldNode[];
};
/** `helps`: what to do about it, "" where nobody needs to. */
export type ReasonGiven = {
  reason: string;
  because: string;
  helps: string;
};
export type Regrets = {
  byPolicy: PolicyRegrets[];
  items: Decided[];
  notHappened: NotHappened[];
};
/** A pause of ours that stands. `size`: what comes back. */
export type Rest = {
  at: string;
  by: string;
  reason: string;
  gpus: number | null;
  policy: string | null;
  size: string;
  resumeCommand: string;
};
/** `per_hour` of those whose price is known; None where that is none of them. */
export type RowSums = {
  gpus: number;
  perHour: number | null;
  unpricedGpus: number;
};
export type SavedDay = {
  day: string;
  gpuHours: number;
  takenGpuHours: number | null;
  regrets: number;
};
export type Savings = {
  days: SavedDay[];
  gpuHours: number;
  mode: "acting" | "dry-run";
};
export type SeedCluster = {
  name: string;
  honor_labels: boolean;
};
export type SeedCurrent = {
  current: number;
};
export type SeedIdle = {
  name: string;
  namespace: string;
  kind: string;
  gpu_model: string | null;
  idle_duration: number | null;
};
export type SeedPauses = {
  lifetime: number;
};
export type SeedPausesIn = {
  lifetime: number;
  in_window: number;
  window: string;
};
export type SeedStats = {
  scale_downs: SeedPausesIn;
  idle_workloads: SeedCurrent;
  prometheus_available: boolean;
  pods_checked: number;
  updated_at: string | null;
};
export type SeedStatus = {
  idle_workloads: SeedIdle[];
  total_idle_gpus: number;
  total_pods_checked: number;
  last_update: string | null;
};
export type SeedSummary = {
  scale_downs: SeedPauses;
  idle_workloads: SeedCurrent;
  pods_checked: number;
  updated_at: string | null;
};
export type SignalMissed = {
  signal: string;
  because: string;
};
export type SignalSeen = {
  max: number | null;
  mean?: number | null;
  samples: number | null;
  newest: string | null;
};
export type SignalTold = {
  signal: string;
  name: string;
  measured: number | null;
  unit: string;
  limit: number | null;
  primary: boolean;
};
export type SkipGiven = {
  skip: string | null;
  because: string;
  helps: string;
};
/** A part of a GPU. `start`, `size`: of a MIG instance, in compute slices. `label`: for who cannot see it. */
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
export type Source = {
  name: string;
  state: "ok" | "partial" | "trouble" | "unseen";
  headline: string;
  detail: string;
  effect: string;
};
export type SpanTold = {
  from: string;
  to: string;
};
export type SpentTold = {
  idle: number | null;
  idleSeconds: number | null;
};
export type States = {
  from: string;
  to: string;
  stepSeconds: number;
  total: (number | null)[];
  busy: (number | null)[];
  idle: (number | null)[];
  kept: (number | null)[];
  unknown: (number | null)[];
  free: (number | null)[];
  gaps: GapTold[];
};
/** What comes next; `at` None: in the next cycle. */
export type Next = {
  type: Step;
  at: string | null;
  because: string;
};
/** `gpus`: the first so many; `more`: how many others, `more_max`: the highest of those. */
export type Timeline = {
  from: string;
  to: string;
  stepSeconds: number;
  threshold: number;
  windowFrom: string;
  lastWork: string | null;
  gpus: GpuLine[];
  more: number;
  moreMax: number | null;
};
export type UnknownTold = {
  label: string;
  sentence: string;
  helps: string;
  workloads: number;
  gpus: number;
  nodes: string[];
};
export type Upcoming = {
  type: string;
  at: string | null;
};
export type Counts = {
  idle: number;
  unknown: number;
  busy: number;
  paused: number;
  kept: number;
  all: number;
};
/** One object in the cluster, by everything that identifies it. */
export type Ref = {
  apiVersion: string;
  kind: string;
  namespace: string;
  name: string;
  uid: string;
};
/** `next`: the cursor of what follows. `total`, `sums`: of all that were asked for, on this page or not. */
export type Workloads = {
  revision: number;
  items: Row[];
  next: string | null;
  total: number;
  counts: Counts;
  sums: RowSums;
};
export type WriteTold = {
  method: string;
  path: string;
  body: object;
};
export type Series = (number | null)[];
export type Outcome = { status: string; sentence: string; code: string | null };
export type Me = { user: string | null; mode: AuthMode; mayFreeze: May; csrf: string };
export type Gaming = { items: { workload: Ref; gpus: number; sentence: string; everySeconds: number; mean: number }[] };
/** What a `cycle` event carries. */
export type CycleNews = {
  revision: number; asOf: string | null; counts: Counts; gpus: Gpus; frozen: Frozen | null; failure: Failure | null;
};
export type RowNews = Row | { uid: string; gone: true };
