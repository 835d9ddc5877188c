// Which rows a list shows, in which order, and what waits. Pure: the list is a value; nothing in it moves until `settled`.
// `all` is the newest we know of every workload of the view, `shown` the order on screen (kept while values change in it),
// `gone` what vanished from the cluster and stays on screen until then.
import type { Group, Row, RowNews, View } from "./api";

export type Sort = "next" | "gpus" | "idle" | "cost" | "name" | "namespace";
export type Wanted = {
  view: View;
  namespace: string;
  kind: string;
  policy: string;
  model: string;
  words: string;
  mine: string;
  sort: Sort;
  descending: boolean;
};
export type List = {
  all: ReadonlyMap<string, Row>;
  gone: ReadonlyMap<string, Row>;
  shown: readonly string[];
  groups: ReadonlyMap<string, Group>;
  changed: ReadonlySet<string>;
  waiting: number;
};

export const GROUPS: Group[] = ["willPause", "onTheWay", "leftAlone", "kept", "unknown", "busy", "paused"];
const IDLE: Group[] = ["willPause", "onTheWay", "leftAlone", "kept"];
export const EMPTY: List = { all: new Map(), gone: new Map(), shown: [], groups: new Map(), changed: new Set(), waiting: 0 };

/** Keep the newest news of each workload; an older revision never replaces a newer one. */
export function merged(pending: Map<string, RowNews>, news: RowNews): void {
  const old = pending.get(news.uid);
  if (!old || "gone" in news || "gone" in old || news.revision >= old.revision) pending.set(news.uid, news);
}

export function belongs(row: Row, view: View): boolean {
  if (view === "all") return true;
  return view === "idle" ? IDLE.includes(row.group) : row.group === view;
}

const globs = new Map<string, RegExp>();
/** `team-*` as a test of a whole name. */
export function glob(pattern: string): RegExp {
  let test = globs.get(pattern);
  if (!test) {
    const source = pattern
      .split("*")
      .map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&"))
      .join(".*");
    globs.set(pattern, (test = new RegExp(`^${source}$`, "i")));
  }
  return test;
}

const COMPARISON = /^gpus(>=|<=|>|<|=)(\d+(?:\.\d+)?)$/;
const COMPARE: Record<string, (a: number, b: number) => boolean> = {
  ">": (a, b) => a > b,
  "<": (a, b) => a < b,
  ">=": (a, b) => a >= b,
  "<=": (a, b) => a <= b,
  "=": (a, b) => Math.abs(a - b) < 0.005,
};

/** One test for the words of the filter: names, namespaces, kinds (in part, or as a glob) and `gpus>2`. */
export function wordTest(words: string): (row: Row) => boolean {
  const tests = words
    .trim()
    .split(/\s+/)
    .filter(Boolean)
    .map((word) => {
      const size = COMPARISON.exec(word);
      if (size) return (row: Row) => COMPARE[size[1]!]!(row.gpus, Number(size[2]));
      const part = word.toLowerCase();
      const whole = word.includes("*") ? glob(word) : null;
      const has = (text: string) => (whole ? whole.test(text) : text.toLowerCase().includes(part));
      return (row: Row) => has(row.name) || has(row.namespace) || has(row.kind);
    });
  return (row) => tests.every((test) => test(row));
}

export function matches(wanted: Wanted): (row: Row) => boolean {
  const words = wordTest(wanted.words);
  const namespace = wanted.namespace ? glob(wanted.namespace) : null;
  return (row) =>
    belongs(row, wanted.view) &&
    (!namespace || namespace.test(row.namespace)) &&
    (!wanted.kind || row.kind === wanted.kind) &&
    (!wanted.policy || row.policy === wanted.policy) &&
    (!wanted.model || row.models.includes(wanted.model)) &&
    (!wanted.mine || row.toldTo.includes(wanted.mine) || row.keep?.by === wanted.mine) &&
    words(row);
}

const LAST = Number.POSITIVE_INFINITY;
const instant = (text: string | null | undefined) => (text ? Date.parse(text) : LAST);
const nextOf = (row: Row) => instant(row.next?.at ?? row.keep?.until) || 0;

const KEYS: Record<Sort, (row: Row) => number | string> = {
  next: nextOf,
  gpus: (row) => row.gpus,
  idle: (row) => row.idleSeconds ?? -1,
  cost: (row) => row.perHour ?? -1,
  name: (row) => row.name,
  namespace: (row) => row.namespace,
};

const usual = new WeakMap<ReadonlyMap<string, Row>, Row[]>();
/** All rows in the order of those that are otherwise alike: most GPUs first, then by name. Sorted once for every change of the rows. */
function inUsualOrder(all: ReadonlyMap<string, Row>): Row[] {
  let rows = usual.get(all);
  if (!rows) usual.set(all, (rows = [...all.values()].sort((a, b) => b.gpus - a.gpus || (a.name < b.name ? -1 : 1))));
  return rows;
}

/** Filtered and sorted; by what comes next it is grouped too. */
export function arranged(all: ReadonlyMap<string, Row>, wanted: Wanted): Row[] {
  const test = matches(wanted);
  const key = KEYS[wanted.sort];
  const sign = wanted.descending ? -1 : 1;
  const keyed: { row: Row; key: number | string; group: number }[] = [];
  for (const row of inUsualOrder(all)) {
    if (test(row)) keyed.push({ row, key: key(row), group: wanted.sort === "next" ? GROUPS.indexOf(row.group) : 0 });
  }
  keyed.sort((a, b) => a.group - b.group || (a.key < b.key ? -sign : a.key > b.key ? sign : 0));
  return keyed.map(({ row }) => row);
}

/** The list as it should be now: nothing waits. */
export function settled(all: ReadonlyMap<string, Row>, wanted: Wanted): List {
  const rows = arranged(all, wanted);
  const groups = new Map(rows.map((row) => [row.uid, row.group]));
  return { all, gone: new Map(), shown: rows.map((row) => row.uid), groups, changed: new Set(), waiting: 0 };
}

export const rowOf = (list: List, uid: string) => (list.all.get(uid) ?? list.gone.get(uid))!;

/** News come in: values change in place, rows stay where they are, what would move is counted. */
export function heard(list: List, news: Map<string, RowNews>, wanted: Wanted): List {
  const all = new Map(list.all);
  const gone = new Map(list.gone);
  const changed = new Set(list.changed);
  for (const row of news.values()) {
    const old = all.get(row.uid);
    if ("gone" in row) {
      if (!old) continue;
      all.delete(row.uid);
      gone.set(row.uid, old);
    } else if (old && old.revision > row.revision) continue;
    else all.set(row.uid, row);
    if ("gone" in row || !old || looksDifferent(old, row)) changed.add(row.uid);
  }
  return { ...list, all, gone, changed, waiting: moves(list, arranged(all, wanted)) };
}

const looksDifferent = (a: Row, b: Row) =>
  a.state !== b.state || a.reason !== b.reason || a.gpus !== b.gpus || a.next?.at !== b.next?.at || a.keep?.until !== b.keep?.until;

/** How many rows would appear, vanish or change their place. */
export function moves(list: List, rows: Row[]): number {
  const place = new Map(list.shown.map((uid, i) => [uid, i]));
  let fresh = 0;
  const common: number[] = [];
  for (const row of rows) {
    const i = place.get(row.uid);
    if (i === undefined) fresh += 1;
    else common.push(i);
  }
  const vanished = list.shown.length - common.length;
  return fresh + vanished + common.length - longestRising(common);
}

/** The length of the longest rising subsequence: what can stay where it is. */
export function longestRising(numbers: number[]): number {
  const tails: number[] = [];
  for (const n of numbers) {
    let low = 0;
    let high = tails.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tails[middle]! < n) low = middle + 1;
      else high = middle;
    }
    tails[low] = n;
  }
  return tails.length;
}

/** GPUs and cost of some rows; what has no price is counted beside it. */
export function sums(rows: Iterable<Row>): { workloads: number; gpus: number; perHour: number; unpriced: number } {
  const sum = { workloads: 0, gpus: 0, perHour: 0, unpriced: 0 };
  for (const row of rows) {
    sum.workloads += 1;
    sum.gpus += row.gpus;
    if (row.perHour === null) sum.unpriced += row.gpus;
    else sum.perHour += row.perHour;
  }
  return sum;
}
