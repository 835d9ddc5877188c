// Made by `python -m docs.api_types` of the server's own OpenAPI document: do not change it here.
// Instants are RFC 3339 UTC, spans seconds, ratios 0..1, GPUs shares of physical ones; null: not known.

export type State = "busy" | "idle" | "told" | "kept" | "left" | "unknown" | "paused" | "resuming";
export type SlotState = "busy" | "idle" | "told" | "kept" | "left" | "unknown" | "free" | "freed";
export type Step = "notice" | "pause" | "keepEnds" | "freezeEnds";
export type View = "idle" | "unknown" | "busy" | "paused" | "kept" | "all";
export type Group = "willPause" | "onTheWay" | "leftAlone" | "kept" | "unknown" | "busy" | "paused";
export type Layout = "whole" | "mig" | "slices" | "mps";
export type AuthMode = "email" | "kube" | "oidc" | "proxy";
export type DecidedType = "told" | "paused" | "resumed" | "kept" | "keepEnded" | "refused" | "failed" | "notPaused" | "broughtBack" | "left" | "frozen" | "unfrozen" | "noDecision" | "wouldPause" | "regretted" | "released" | "nodesAdded" | "drainBegun" | "drainUndone" | "nodeRemoved" | "spotInterrupted" | "restarted" | "moveBegun" | "podMoved" | "moveStopped" | "alertSeen";

/** The five parts of all that is paid for, by the keys of a report. */
export const PART_WORDS = {
  used: "Used",
  allocatedUnused: "Held, not used",
  heldIdle: "Held idle",
  useUnknown: "Cannot tell",
  unallocated: "Nobody held it",
} as const;

/** `void`: why it does not hold; None for one that does. */
export type AckRow = {
  apiVersion: string;
  kind: string;
  namespace: string;
  name: string;
  uid: string;
  workload: string;
  until: string;
  holds: boolean;
  void: string | null;
  by: string | null;
  reason: string | null;
};
/** What was booked while somebody kept an idle workload. `is_open`: it is being kept still. */
export type AckSpend = {
  ackId: string;
  namespace: string;
  kind: string;
  name: string;
  cost: number;
  gpuHours: number;
  unpricedGpuHours: number;
  since: string;
  isOpen: boolean;
  sentence: string;
};
export type AckSpendPage = {
  asOf: string;
  currency: string;
  items: AckSpend[];
  total: number;
};
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
/** `threshold`: percent of the limit. `is_seen`: somebody has acknowledged it. */
export type AlertFired = {
  alert: string;
  at: string;
  threshold: number;
  isSeen: boolean;
};
export type Allocation = {
  name: string;
  properties: AllocationProperties;
  window: AllocationWindow;
  start: string;
  end: string;
  minutes: number;
  gpuCount: number;
  gpuHours: number;
  unpricedGpuHours: number;
  gpuCost: number;
  gpuCostAdjustment: number;
  gpuCostIdle: number;
  gpuRequestAverage: number;
  gpuUsageAverage: number | null;
  gpuEfficiency: number | null;
  cpuCost: number;
  ramCost: number;
  sharedCost: number;
  externalCost: number;
  totalCost: number;
  totalEfficiency: number | null;
};
export type AllocationProperties = {
  cluster?: string;
  node?: string;
  namespace?: string;
  controllerKind?: string;
  controller?: string;
  pod?: string;
  container?: string;
  providerID?: string;
  labels?: Record<string, string>;
};
export type AllocationWindow = {
  start: string;
  end: string;
};
export type AllocationsPage = {
  code: number;
  data: Record<string, Allocation>[];
};
/** `gpus`: physical ones; in how many pieces it holds them, and what each is, the instances say. `per_hour`: of all that it holds; `idle_per_hour`: of what is idle of it; `is_list`: by list prices, because nobody keeps books. */
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
  idleInstances: number;
  activeInstances: number;
  unknownInstances: number;
  idleGpus: number;
  models: string[];
  profile: string | null;
  idleSince: string | null;
  atLeast: boolean;
  idleSeconds: number | null;
  neverUsed: boolean;
  strip: string | null;
  perHour: number | null;
  idlePerHour: number | null;
  currency: string;
  isList: boolean;
  next: Next | null;
  skip: string | null;
  skipBecause: string | null;
  toldAt: string | null;
  toldTo: string[];
  policy: string;
  keepHours: number[];
  maxKeepHours: number;
  keep: Keep | null;
  rest: Rest | null;
  revision: number;
};
export type AttributedGroup = {
  key: string;
  cost: number;
  useCost: number;
  idleCost: number;
  gpuHours: number;
};
/** `problem`: why it is not told; then there are no figures. What nobody held is a group, too, where it counts. */
export type AttributionTold = {
  name: string;
  by: string[];
  periodSeconds: number;
  totalCost: number | null;
  gpuHours: number | null;
  groups: AttributedGroup[];
  problem: string | null;
};
export type AttributionsPage = {
  asOf: string;
  currency: string;
  items: AttributionTold[];
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
/** As it was read last. `projected`: what its period will come to, None where it is too early to tell. `mode`: what happens when it is spent; `why`: it does, or does not now. `burn`: from the begin of its period until somebody looked last. */
export type BudgetTold = {
  budget: string;
  at: string | null;
  namespace: string;
  team: string;
  scope: string | null;
  limit: number | null;
  spend: number | null;
  percentageUsed: number | null;
  status: string | null;
  period: WindowTold | null;
  projected: number | null;
  mode: string | null;
  isEnforced: boolean;
  why: string;
  alerts: AlertFired[];
  override: OverrideTold | null;
  unpricedGpuHours: number | null;
  problems: string[];
  burn: SpentUntil[];
};
/** `books_since`: what was spent before is not known, and in no budget. */
export type BudgetsPage = {
  asOf: string;
  booksSince: string | null;
  currency: string;
  items: BudgetTold[];
};
export type ChangeStep = {
  name: string;
  state: "ahead" | "done" | "failed" | "now";
};
export type Check = {
  group: "idle" | "pausable" | "waiting";
  state: "failed" | "ok" | "waiting";
  sentence: string;
  limit?: string | null;
  reason?: string | null;
  helps?: string | null;
};
/** Of the whole cluster, whatever was asked for; None where not all of it is seen. `gpus` as nodes offer them, a MIG instance or a time slice as one each; `physical`: the boards, None where nodes are not seen. */
export type ClusterGpus = {
  nodes: number | null;
  physical: number | null;
  gpus: number | null;
  free: number | null;
  waitedFor: number;
};
/** `url`: of its own dashboard; None: this one. `because`: why it has no figures. `seen_at`: when it last answered, by our clock; `measured_seconds`: how old its measurements were then, by its own. `given_back_gpu_hours`: in 30 days; in a dry run, what would have been. */
export type ClusterRow = {
  name: string;
  url: string | null;
  sight: "away" | "old" | "seen";
  because: string | null;
  seenAt: string | null;
  measuredSeconds: number | null;
  mode: "acting" | "dry-run" | null;
  version: string | null;
  total: number | null;
  busy: number | null;
  idle: number | null;
  unknown: number | null;
  free: number | null;
  givenBackGpuHours: number | null;
  costs: PeerCosts | null;
};
/** Of the clusters that are seen. `unseen`: the names of the others. `without_books`: of those that are seen, how many are in no sum of money. */
export type ClusterSums = {
  clusters: number;
  unseen: string[];
  total: number | null;
  busy: number | null;
  idle: number | null;
  unknown: number | null;
  free: number | null;
  givenBackGpuHours: number | null;
  wouldGiveBackGpuHours: number | null;
  money: MoneySums[];
  withoutBooks: number;
};
export type ClustersPage = {
  asOf: string;
  clusters: ClusterRow[];
  sums: ClusterSums;
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
/** `is_list`: by list prices, because nobody keeps books; else by what the nodes cost. */
export type Cost = {
  perHour: number;
  currency: string;
  isList?: boolean;
};
/** `rest`: of the total, what no row and not the platform pays: by use, what was held and not used. `held`: all rows in one. `before`: the total of the window before, where it was asked for. `is_energy_in_cost`: what energy cost is in every cost here. */
export type CostReportPage = {
  window: WindowTold;
  asOf: string;
  currency: string;
  basis: "allocation" | "use";
  by: string[];
  rows: SpendRow[];
  held: SpendRow;
  platform: PlatformTold;
  rest: number;
  total: number;
  gpuHours: number;
  unpricedGpuHours: number;
  stalePrices: DoubtfulPrice[];
  estimatedPrices: DoubtfulPrice[];
  before: number | null;
  isEnergyInCost: boolean;
};
/** `saved`: realised, in money. `freed_gpu_hours`: given back and used by nobody. `dry_run_gpu_hours`: what a dry run would have given back, and is in no sum. */
export type CostSavingsPage = {
  window: WindowTold;
  asOf: string;
  currency: string;
  lines: SavingLine[];
  baseline: number;
  actual: number;
  saved: number;
  freedGpuHours: number;
  dryRunGpuHours: number;
  dryRunWorth: number;
  roi: RoiTold;
};
/** `starts`: of the pieces; the last one ends with the window. What is left of the pieces is the platform's. None: of a piece that was over when the books began (`books_since`) nobody knows what it cost. */
export type CostSeriesPage = {
  window: WindowTold;
  asOf: string;
  booksSince: string | null;
  currency: string;
  by: string[];
  step: "day" | "hour" | "month" | "week";
  starts: string[];
  series: SpendSeries[];
  platform: (number | null)[];
  used: (number | null)[];
  allocatedUnused: (number | null)[];
  heldIdle: (number | null)[];
  useUnknown: (number | null)[];
  total: (number | null)[];
};
/** Money on one page. `per_hour`: of what runs now; `projected`: the month, if it goes on as its days so far, None in its first six hours. `lag_seconds`: how far the books are behind. */
export type CostSummaryPage = {
  asOf: string;
  lagSeconds: number;
  currency: string;
  perHour: number;
  unpricedGpus: number;
  today: number;
  monthToDate: number;
  projected: number | null;
  week: WeekTold;
  savedThisMonth: number;
  freedGpuHoursThisMonth: number;
  openAcks: number;
  openAcksCost: number;
  stalePrices: number;
  trouble: string | null;
};
/** Of the last day: `ratio` of as much of it as is known, `gaps` in all of it, also the time before anybody was here. Where nothing of it is known: of the window of the rules. */
export type CoverageTold = {
  ratio: number | null;
  gaps: [string, string][];
};
/** `running`: None where that cannot be seen. */
export type DaemonTold = {
  namespace: string;
  running: boolean | null;
  renewed: string | null;
  because: string;
};
/** How much of the window was seen, and how much of what was seen could be told. */
export type DataHealth = {
  seenShare: number;
  knownShare: number | null;
  noDecision: number;
  trouble: string | null;
};
/** What is wrong with what we see, and what helps. */
export type DataProblem = {
  what: string;
  because: string;
  helps: string;
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
/** `counts`: how many of each type there are in the time that was asked for, shown or not. */
export type Decisions = {
  items: Decided[];
  next: string | null;
  counts: Record<string, number>;
  revision: number;
};
/** GPUs in use and waited for, by the hour; None where nobody looked. */
export type DemandTold = {
  endsAt: string;
  gpus: (number | null)[];
};
/** `source`: where hours held idle and given back are from. `books`: the ledger, idle from when the silence began; `audit`: no books are kept, and idle counts from the verdict on, at list prices. */
export type Digest = {
  cluster: string;
  since: string;
  until: string;
  source: "audit" | "books";
  currency: string;
  counts: DigestCounts;
  idle: IdlePlace;
  namespaces: IdlePlace[];
  workloads: IdlePlace[];
  acks: DigestAck[] | null;
  savings: DigestSavings;
  health: DataHealth;
};
/** An acknowledgement that stands, and what its workload held idle under one in the window. */
export type DigestAck = {
  namespace: string;
  kind: string;
  name: string;
  by: string;
  until: string;
  reason: string | null;
  gpuHours: number;
  cost: number | null;
};
export type DigestCounts = {
  notices: number;
  paused: number;
  wouldPause: number;
  resumed: number;
  regretted: number;
  kept: number;
  failed: number;
};
/** What pauses of ours gave back. Of a dry run: what they would have, and how many of them would have been wrong. `taken_gpu_hours`: somebody else held them, or their node went; only the books know, and by them only these are money. */
export type DigestSavings = {
  mode: "acting" | "dry-run";
  gpuHours: number | null;
  until: string | null;
  takenGpuHours: number | null;
  cost: number | null;
  unpricedGpuHours: number | null;
  pauses: number;
  wrong: number | null;
};
/** A price that is older than prices may be, or an estimate. `age_days` None: nobody knows how old. */
export type DoubtfulPrice = {
  priceId: string;
  instanceType: string;
  gpuModel: string;
  capacityType: string;
  source: string;
  ageDays: number | null;
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
/** Of one pod. `minutes`: from its beginning, `remaining_minutes`: from now. null: nothing is foretold; `because`: why, where none of them is. `runs` that are known, `own_runs` of its owner. */
export type ForecastTold = {
  pod: string;
  minutes: ForetoldTold | null;
  remainingMinutes: ForetoldTold | null;
  use: ForetoldTold | null;
  runs: number;
  ownRuns: number;
  because: string | null;
};
/** `error`: by how much this way was wrong on runs that it had not seen, on the mean; `median_error`: by how much the median of all runs was. `by`: owner, group or features. */
export type ForetoldTold = {
  value: number;
  error: number;
  medianError: number;
  by: string;
  runs: number;
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
  action: string;
  held: number;
  idleSince: string | null;
  atLeast: boolean;
  neverUsed: boolean;
  pausedAt: string | null;
  pause: PauseTold | null;
  windowSeconds: number;
  coverage: number | null;
  gpus: GpuEvidence[];
  lostSignals: SignalMissed[];
  ignored: SourceIgnored[];
  owner: OwnerLink[];
  nextAction: Upcoming | null;
  patch: object | null;
  cost: Cost | null;
  asOf: string | null;
  widened?: number;
  suspect?: string | null;
  sharing?: ShareTold | null;
  waiting?: WaitingTold[];
  forecast?: ForecastTold | null;
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
/** `because`: why nothing is known; None where it is. `asked`: GPUs that were looked at closely. */
export type Gaming = {
  items: SuspectTold[];
  asOf: string | null;
  asked: number;
  because: string | null;
};
export type GapTold = {
  from: string;
  to: string;
  because: string;
};
/** `source`: as of the savings: the books where they are kept. `until`: what is later is not in it. */
export type GivenBack = {
  gpuHours: number | null;
  until: string | null;
  takenGpuHours: number | null;
  source: "audit" | "books";
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
/** `pods`: for whom. `per_hour`: what all of them cost; None: not known. */
export type GrowthTold = {
  pool: string;
  capacityType: string;
  instanceType: string | null;
  count: number;
  reason: string;
  because: string;
  pods: string[];
  perHour: number | null;
};
/** `error`: how far off such guesses were lately, as a share of what was wanted. `ahead`: GPUs in each of the coming hours. `refused`: why no node is started ahead of it; None: one is, or would be. */
export type GuessTold = {
  model: string;
  error: number | null;
  confidence: number | null;
  peakGpus: number | null;
  utilization: number | null;
  nodes: number | null;
  busyAt: string | null;
  ahead: number[];
  refused: string | null;
};
export type History = {
  items: Decided[];
};
/** One state of one key in one hour (or the part of it that the window has). `list_cost`: what its hours that have a price would have cost on demand; None: no list price is known. */
export type HourRow = {
  bucket: string;
  bucketEnd: string;
  cluster: string;
  namespace: string;
  ownerKind: string;
  ownerName: string;
  node: string;
  instanceType: string;
  region: string;
  gpuModel: string;
  capacityType: string;
  sharingMode: string;
  workloadType: string;
  team: string;
  project: string;
  experimentId: string;
  costCenter: string;
  user: string;
  labels: Record<string, string>;
  state: string;
  cost: string;
  useCost: string;
  listCost?: string | null;
  gpuHours: string;
  unpricedGpuHours: string;
  energyKwh: string;
  energyCost: string | null;
  energyCo2Kg: string | null;
  currency: string;
};
export type HourlyMoney = {
  busy: number | null;
  idle: number | null;
  kept: number | null;
};
export type HoursPage = {
  currency: string;
  asOf: string;
  items: HourRow[];
};
/** `per_hour` of the idle GPUs whose price is known; None where that is none of them. `partly_per_hour`: of it, GPUs of workloads that are not idle as a whole, and so in no list of idle ones. `unpriced`: most first. */
export type IdleCost = {
  perHour: number | null;
  partlyPerHour?: number | null;
  partlyGpus?: number;
  partlyWorkloads?: number;
  currency: string;
  isList?: boolean;
  unpricedGpus: number;
  unpriced: Unpriced[];
};
/** A namespace, or a workload in it (`kind` and `name`), by what it held idle. `cost`: of the hours whose price is known; None: of none is. */
export type IdlePlace = {
  namespace: string;
  kind: string | null;
  name: string | null;
  gpuHours: number;
  keptGpuHours: number;
  cost: number | null;
  unpricedGpuHours: number;
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
/** `config`: the GPUNodeConfig that asks for it; None: it is gone. `layout`: what the node is to offer, where that is worked out already. `steps`: the way there, or back; none before it began. */
export type LayoutChange = {
  node: string;
  config: string | null;
  phase: "Configuring" | "Failed" | "Pending";
  layout: string | null;
  reason: string;
  because: string;
  since: string | null;
  until: string | null;
  steps: ChangeStep[];
};
export type LeftAlone = {
  label: string;
  sentence: string;
  workloads: number;
  gpus: number;
};
/** One that runs, and what is advised. `remaining_minutes`: null where nobody knows. */
export type MakesRoom = {
  namespace: string;
  pod: string;
  node: string;
  workload: string | null;
  priority: number | null;
  holds: Record<string, number>;
  remainingMinutes: ForetoldTold | null;
  shouldPreempt: boolean;
  reason: string;
  because: string;
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
/** Of the clusters that say what they cost, in that currency. */
export type MoneySums = {
  currency: string;
  clusters: number;
  perHour: number;
  monthToDate: number;
  projected: number | null;
  savedThisMonth: number;
};
export type MoneyTold = {
  perHour: HourlyMoney;
  unpricedGpus: number;
};
export type MoveTold = {
  pod: string;
  node: string;
};
export type NamespaceHeld = {
  namespace: string;
  held: number;
  idle: number;
  kept: number;
};
export type NamespaceShare = {
  namespace: string;
  gpus: number;
  activeGpus: number;
  idleGpus: number;
  unknownGpus: number;
};
/** What comes next by these rules. `what`: notice, pause, ackEnds or freezeEnds; no `workload`: it is about all. */
export type NextStep = {
  what: string;
  at: string | null;
  workload: Ref | null;
  gpus: number;
  because: string;
};
export type NodeFate = {
  node: string;
  policy: string;
  verdict: string;
  because: string;
  unneededSince: string | null;
};
export type NodePlan = {
  node: string;
  what: "canBeEmptied" | "moveWouldHelp" | "newLayout" | "placeKept" | "podMoves" | "stays";
  words: string;
  because: string;
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
/** Something of what is asked for may be there too. */
export type NotSeen = {
  what: string;
  because: string;
};
export type OnTheWay = {
  pool: string;
  capacityType: string;
  count: number;
  since: string;
};
export type OverrideTold = {
  until: string;
  by: string;
  reason: string;
  cost: number | null;
};
/** `watches`: the namespaces that are looked at; none: all. `now`: by the daemon's own clock, as all of it is. `peers`: how many further clusters are shown beside this one. */
export type Overview = {
  revision: number;
  now: string;
  cluster: string;
  peers: number;
  mode: "acting" | "dry-run";
  version: string;
  asOf: string | null;
  intervalSeconds: number;
  tookSeconds: number | null;
  watches: string[];
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
/** What stands paused by us, as its marks tell it. `workload`: as it is typed to bring it back. */
export type PausedRow = {
  apiVersion: string;
  kind: string;
  namespace: string;
  name: string;
  uid: string;
  workload: string;
  since: string | null;
  by: string | null;
  policy: string | null;
  gpus: number | null;
  reason: string | null;
  replicas: number | null;
};
export type PausedSums = {
  workloads: number;
  gpus: number;
};
/** The same, of a summary of costs. What was saved is less than nothing where an act cost more than it gave back. */
export type PeerCosts = {
  currency: string;
  perHour: number;
  monthToDate: number;
  projected: number | null;
  savedThisMonth: number;
};
/** `key`: `__unallocated__` or `__unused_commitment__`. */
export type PlatformPart = {
  key: string;
  gpuHours: number;
  cost: number;
  share: number | null;
  kwh: number;
  energyCost: number | null;
  co2Kg: number | null;
  unpricedGpuHours: number;
};
/** What nobody held: the platform's to pay. */
export type PlatformTold = {
  cost: number;
  gpuHours: number;
  kwh: number;
  energyCost: number | null;
  co2Kg: number | null;
  parts: PlatformPart[];
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
/** `acts`: False: this is advice. `gpus`: of all its nodes; None: of one it is not known. `blocked`, `brakes`: why it does less than it would. */
export type PolicyScaling = {
  name: string;
  mode: string;
  acts: boolean;
  driver: string;
  provider: string;
  nodes: number;
  gpus: number | null;
  desired: number;
  byCapacityType: Record<string, number>;
  pendingPods: number;
  utilization: number | null;
  perHour: number | null;
  because: string;
  blocked: WhyTold[];
  brakes: WhyTold[];
  grows: GrowthTold[];
  releases: ReleaseTold[];
  headroom: WhyTold[];
  gangs: WhyTold[];
  inFlight: OnTheWay[];
  soldOut: SoldOut[];
  guess: GuessTold | null;
  spotAdvice: SpotTold | null;
  demand: DemandTold | null;
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
  widened: Widened | null;
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
/** Advice only: fallow preempts nobody. `runs`: that are known; `because`: why none are. `all_waiting`: of whom `waiting` are the first; None: nobody counted. */
export type PreemptionPage = {
  asOf: string;
  runs: number;
  because: string | null;
  allWaiting: number | null;
  waiting: WaitsForRoom[];
};
/** A row of the price book that the ledger names. `is_used`: by what runs now. `age_days` None: nobody knows. */
export type PriceTold = {
  priceId: string;
  provider: string;
  region: string;
  zone: string;
  instanceType: string;
  gpuModel: string;
  gpus: number | null;
  capacityType: string;
  unit: "gpu_hour" | "node_hour";
  pricePerHour: string;
  currency: string;
  source: string;
  retrievedAt: string | null;
  ageDays: number | null;
  isStale: boolean;
  isEstimated: boolean;
  isUsed: boolean;
};
export type PricesPage = {
  asOf: string;
  currency: string;
  maxAgeDays: number;
  items: PriceTold[];
  unpriced: UnpricedNow[];
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
export type ReleaseTold = {
  node: string;
  kind: string;
  because: string;
  moves: MoveTold[];
  perHour: number | null;
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
/** `ratio`: (saved - own cost) / own cost; None where we cost nothing. */
export type RoiTold = {
  ownCost: number;
  ofItPods: number;
  ofItInvestment: number;
  saved: number;
  ratio: number | null;
};
/** Free GPUs, and how many of them fit nothing that usually comes (None: of that nothing is known). `causes` are of all that is free, also of what is usable. `notes`: which nodes are in none of these figures, and what else is to be said of them. */
export type RoomLeft = {
  asOf: string | null;
  free: number;
  stranded: number | null;
  notes: string[];
  causes: StrandedCause[];
  nodes: StrandedNode[];
};
/** `per_hour` of those whose price is known; None where that is none of them. */
export type RowSums = {
  gpus: number;
  perHour: number | null;
  unpricedGpus: number;
};
/** What whoever asks may do with all workloads of one kind in one namespace. `missing`: the right that lacks; who has it for some of them by name is told so on the page of each. */
export type RowsMay = {
  namespace: string;
  apiVersion: string;
  kind: string;
  keep: boolean;
  pause: boolean;
  resume: boolean;
  missing: string | null;
};
/** Whose rules an answer is by: the flags of the command, and the policies of the cluster (None: not seen). */
export type RulesTold = {
  policies: number | null;
  daemon: DaemonTold;
  sentence: string;
};
/** `gpu_hours` None: of that day nothing was written down. `taken_gpu_hours`: of these, somebody else held them, or their node went. */
export type SavedDay = {
  day: string;
  gpuHours: number | null;
  takenGpuHours: number | null;
  regrets: number;
};
/** One way to save. `realised_gpu_hours`: of `gpu_hours`, those that somebody else had or whose node was gone; only they are money. */
export type SavingLine = {
  type: "autoscaling" | "sharing" | "spot" | "waste";
  baseline: number;
  actual: number;
  saved: number;
  gpuHours: number;
  realisedGpuHours: number;
  method: string;
};
/** `source`: the books where they are kept, as on the page of costs; else the audit, which knows of what was taken only the least. `since`: nothing is known of the time before; `until`: what is later is not in it, None where that is not known. */
export type Savings = {
  days: SavedDay[];
  gpuHours: number;
  mode: "acting" | "dry-run";
  source: "audit" | "books";
  since: string | null;
  until: string | null;
};
/** `unseen`: why nothing could be planned; None where something was. `per_hour`: what the plan changes, None where a price is not known. */
export type Scaling = {
  asOf: string | null;
  policies: PolicyScaling[];
  pods: WaitingTold[];
  nodes: NodeFate[];
  perHour: number | null;
  currency?: string;
  unseen: string | null;
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
/** `was`: GPUs that it asked for; `resource`: what it asks for now, None where only its nodes were chosen; `policy`: None where the pod itself asked for it. */
export type ShareChange = {
  was: string;
  resource: string | null;
  strategy: string;
  policy: string | null;
  at: string | null;
};
/** `until`: None where it does not end by itself. */
export type ShareTakenBack = {
  until: string | null;
  because: string | null;
  policy: string | null;
  times: number;
};
/** `pod`: the one that was looked at; `shared_pods` of its `pods` were changed. `next`: what a pod like it would get now, by `reason`: a part of a GPU (`resource`), the same if somebody let it (audited), or a whole one. `unprotected`: what its way of sharing does not keep apart. `opt_out`: the annotation, and the command. `assumed`: what of the webhook nobody saw. */
export type ShareTold = {
  pod: string;
  pods: number;
  sharedPods: number;
  changed: ShareChange | null;
  workClass: string;
  classSource: string;
  takenBack: ShareTakenBack | null;
  next: "audited" | "part" | "whole";
  reason: string;
  because: string;
  resource: string | null;
  unprotected: string | null;
  optOut: string | null;
  optOutCommand: string | null;
  assumed?: string | null;
};
/** `room` None: nobody has looked yet, or it cannot be looked at; then `unknown` says why where that is known. */
export type Sharing = {
  changes: LayoutChange[];
  policies: SharingRule[];
  plans: NodePlan[];
  room: RoomLeft | null;
  unknown: string[];
};
/** A GPUSharingPolicy. `pods`: running ones that it changed; `audited`: that it would have; `reverted`: owners who have whole GPUs again, because sharing hurt them. None: nobody counted. `trouble`: why it does less than it says. */
export type SharingRule = {
  name: string;
  strategy: string;
  mode: "audit" | "enforce";
  enforces: boolean;
  pods: number | null;
  audited: number | null;
  reverted: number | null;
  trouble: string | null;
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
export type SoldOut = {
  pool: string;
  capacityType: string;
  instanceType: string | null;
  zone: string | null;
  until: string;
  failures: number;
};
/** An exporter that is not believed. */
export type SourceIgnored = {
  who: string;
  because: string;
};
export type SourceState = {
  reason: string;
  because: string;
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
/** One group. `cost` is what it pays by the basis asked for; the four parts are always those of what it held. `energy_cost`, `co2_kg`: of its `kwh`; None where nobody said what a kWh is worth. */
export type SpendRow = {
  key: string;
  keys: string[];
  gpuHours: number;
  cost: number;
  used: number;
  allocatedUnused: number;
  heldIdle: number;
  useUnknown: number;
  share: number | null;
  use: number | null;
  perGpuHour: number | null;
  kwh: number;
  energyCost: number | null;
  co2Kg: number | null;
  unpricedGpuHours: number;
  change: number | null;
};
/** `costs`: one for each piece; None: no books were kept then. */
export type SpendSeries = {
  key: string;
  costs: (number | null)[];
  total: number;
};
export type SpentTold = {
  idle: number | null;
  idleSeconds: number | null;
};
/** Since the period began. */
export type SpentUntil = {
  at: string;
  spend: number;
};
/** What share of spot nodes would do, and the one that is set; `daily`: share of them taken back on a day. */
export type SpotTold = {
  share: number;
  isSet: number;
  daily: number;
  because: string;
};
export type StandingPage = {
  paused: PausedRow[];
  acks: AckRow[];
  notSeen: NotSeen[];
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
export type StatusPage = {
  rules: RulesTold;
  cluster: ClusterGpus;
  workloads: number;
  pods: number;
  gpus: number;
  activeGpus: number;
  idleGpus: number;
  unknownGpus: number;
  idleCost: IdleCost;
  verdicts: VerdictCount[];
  top: WorkloadRow[];
  next: NextStep[];
  problems: DataProblem[];
  namespaces: NamespaceShare[];
  paused: PausedRow[];
  frozenUntil: string | null;
  frozenBecause: string | null;
  source: SourceState | null;
  asOf: string | null;
  widened?: WaitsLonger[];
  suspects?: SuspectTold[] | null;
};
/** What comes next; `at` None: in the next cycle. */
export type Next = {
  type: Step;
  at: string | null;
  because: string;
};
export type StrandedCause = {
  cause: string;
  gpus: number;
  words: string;
};
export type StrandedNode = {
  node: string;
  gpus: number;
};
/** Ratios are 0 to 1, the highest of its GPUs; `every_seconds`: between the begins of two bursts. */
export type SuspectTold = {
  workload: Ref;
  gpus: string[];
  since: string;
  until: string;
  mean: number;
  tensorMax: number;
  dramMax: number;
  bursts: number;
  everySeconds: number;
  variation: number;
  sentence: string;
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
/** GPUs without a price, and why. `model`: as --price takes it; None where a price would not help. */
export type Unpriced = {
  model: string | null;
  because: string;
  gpus: number;
};
/** GPUs that run now and have no price. Not `is_model_known`: its name is in no list of ours, as it stands here. */
export type UnpricedNow = {
  instanceType: string;
  gpuModel: string;
  isModelKnown: boolean;
  region: string;
  capacityType: string;
  gpus: number;
  nodes: number;
};
export type Upcoming = {
  type: string;
  at: string | null;
};
export type VerdictCount = {
  verdict: string;
  reason: string;
  workloads: number;
  gpus: number;
};
export type Counts = {
  idle: number;
  unknown: number;
  busy: number;
  paused: number;
  kept: number;
  all: number;
};
/** `fit`: what the pod means for nodes; `held`: why it is nobody's demand. `where`: a node or a pool. */
export type WaitingTold = {
  namespace: string;
  pod: string;
  fit: string;
  held: string | null;
  because: string;
  policy: string | null;
  where: string | null;
};
/** One that waits. `counts`: of all that hold as much as it asks for, how many were told what; `running`: some of them, those first for whom it would be worth it. */
export type WaitsForRoom = {
  namespace: string;
  pod: string;
  workload: string | null;
  priority: number | null;
  asks: Record<string, number>;
  since: string;
  minutes: ForetoldTold | null;
  shouldPreempt: boolean;
  counts: Record<string, number>;
  running: MakesRoom[];
};
/** A policy that waits longer than it says, because too many of its pauses were undone at once. */
export type WaitsLonger = {
  policy: string;
  times: number;
  goneIdleSeconds: number;
};
/** The last seven days, by what they were. `change`: against the seven before. */
export type WeekTold = {
  total: number;
  used: number;
  allocatedUnused: number;
  heldIdle: number;
  useUnknown: number;
  unallocated: number;
  unpricedGpuHours: number;
  change: number | null;
  days: number[];
};
export type WhyTold = {
  reason: string;
  because: string;
};
/** Its window grew. `back_at`: a step back, at the earliest; `calm_below`: the ratio of its pauses that may be undone until then. `pauses`, `regrets`: since it grew last; `since`, `back_at` None: no longer remembered. */
export type Widened = {
  times: number;
  fromSeconds: number;
  because: string;
  since: string | null;
  backAt: string | null;
  calmBelow: number;
  pauses: number;
  regrets: number;
};
/** [start, end). */
export type WindowTold = {
  start: string;
  end: string;
};
/** One object in the cluster, by everything that identifies it. */
export type Ref = {
  apiVersion: string;
  kind: string;
  namespace: string;
  name: string;
  uid: string;
};
/** One line of `fallow idle`. */
export type WorkloadRow = {
  apiVersion: string;
  kind: string;
  namespace: string;
  name: string;
  uid: string;
  gpus: number;
  idleGpus: number;
  activeGpus: number;
  unknownGpus: number;
  models: string[];
  verdict: string;
  reason: string;
  because: string;
  idleSince: string | null;
  atLeast: boolean;
  idleSeconds: number | null;
  pausedAt: string | null;
  policy: string;
  skip: string | null;
  skipBecause: string | null;
  nextAction: Upcoming | null;
  cost: Cost | null;
};
/** `next`: the cursor of what follows. `total`, `sums`: of all that were asked for, on this page or not. `may`: of the rows on this page, a kind and namespace each, where it was asked for; of what is not in it nothing is known. */
export type Workloads = {
  revision: number;
  items: Row[];
  next: string | null;
  total: number;
  counts: Counts;
  sums: RowSums;
  may?: RowsMay[];
};
export type WriteTold = {
  method: string;
  path: string;
  body: object;
};
export type Series = (number | null)[];
export type Outcome = { status: string; sentence: string; code: string | null };
export type Me = { user: string | null; mode: AuthMode; mayFreeze: May; maySeeAlerts: May; csrf: string };
/** What a `cycle` event carries. */
export type CycleNews = {
  revision: number; asOf: string | null; counts: Counts; gpus: Gpus; frozen: Frozen | null; failure: Failure | null;
};
export type RowNews = Row | { uid: string; gone: true };
