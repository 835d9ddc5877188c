// What the page of costs asks for and what its table says: questions from the address, the way down into a row, lines that add up. Pure.
import { PART_WORDS, type CostReportPage, type SpendRow } from "../../api";
import { addUp, dayName, NBSP } from "../../words";

const OF_WORKLOAD = "namespace,controllerKind,controller";
const ASKED: Record<string, string> = { workload: OF_WORKLOAD, pod: "namespace,pod" };
/** As the API groups. */
export const asked = (by: string) => ASKED[by] ?? by;

const NAMES: Record<string, string> = {
  model: "Model",
  capacity: "Capacity",
  controllerKind: "Kind",
  controller: "Workload",
  costcenter: "Cost center",
};
/** How a dimension heads a column. */
export const headOf = (by: string) =>
  by.startsWith("label:") ? `Label ${by.slice(6)}` : (NAMES[by] ?? by.charAt(0).toUpperCase() + by.slice(1));

// ---- filters, as the API reads them: namespace:"a"+label[tier]:"gold"

export type Term = { on: string; value: string };
const TERM = /([A-Za-z]+)(?:\[([^\]\s"]+)\])?:"([^"]*)"/g;
export const terms = (filter: string): Term[] =>
  [...filter.matchAll(TERM)].map(([, name, label, value]) => ({ on: label ? `label:${label}` : name!, value: value! }));
const field = (on: string) => (on.startsWith("label:") ? `label[${on.slice(6)}]` : on);
export const filterOf = (of: Term[]) => of.map(({ on, value }) => `${field(on)}:"${value}"`).join("+");

/** Where a row leads: the same page of it alone, by workload and then by pod. Null: there is nothing below, or it cannot be named. */
export function below(by: string, keys: string[], filter: string): { by: string; filter: string } | null {
  const on = asked(by).split(",");
  if (by === "pod" || keys.length !== on.length || keys.some((key) => key === "__other__" || key.includes('"'))) return null;
  const more = on.map((each, i) => ({ on: each, value: keys[i]! }));
  const there = terms(filter);
  const all = [...there, ...more.filter((each) => !there.some((one) => one.on === each.on && one.value === each.value))];
  return { by: by === "workload" ? "pod" : "workload", filter: filterOf(all) };
}

const WORDS: Record<string, string> = {
  __none__: "not said",
  __other__: "all others",
  __platform__: "fallow itself",
  __unallocated__: PART_WORDS.unallocated,
  __unused_commitment__: "Unused commitment",
};
export const word = (key: string) => WORDS[key] ?? key;
/** What a row is called, and what it is in. */
export function nameOf(by: string, keys: string[]): { name: string; within: string } {
  const said = keys.map(word);
  if (keys.every((key) => key === "__other__")) return { name: "all others", within: "" };
  if (by === "workload") return { name: said[2] ?? said.join("/"), within: `${said[1]} in ${said[0]}` };
  if (by === "pod") return { name: said[1] ?? said.join("/"), within: `in ${said[0]}` };
  return { name: said.join("/"), within: "" };
}

/** The same in one piece, where there is little room. */
export const shortName = (by: string, keys: string[]) =>
  by === "workload" && keys.length === 3 && keys[0] !== "__other__" ? `${word(keys[0]!)}/${word(keys[2]!)}` : nameOf(by, keys).name;

/** Whose costs these are, to begin a sentence with. */
export function subject(filter: string): string {
  const all = terms(filter);
  const last = all.at(-1);
  if (!last) return "The GPUs";
  const space = last.on === "controller" && all.find((one) => one.on === "namespace");
  return word(last.value) + (space ? ` in ${space.value}` : "");
}

// ---- windows

const FIXED: Record<string, string> = {
  today: "today",
  yesterday: "yesterday",
  week: "this week",
  lastweek: "last week",
  month: "this month",
  lastmonth: "last month",
};
const UNITS: Record<string, [string, number]> = { m: ["minute", 60], h: ["hour", 3600], d: ["day", 86400], w: ["week", 604800] };
const LENGTH = /^(\d+)([mhdw])$/;

/** `in 30 days`, `today`, `from 1 Nov to 8 Nov`. */
export function during(window: string, start: number, end: number): string {
  if (FIXED[window]) return FIXED[window];
  const [, n, unit] = LENGTH.exec(window) ?? [];
  if (n && unit) return `in ${n}${NBSP}${UNITS[unit]![0]}${n === "1" ? "" : "s"}`;
  return `from ${dayName(start).slice(4)} to ${dayName(end - 1).slice(4)}`;
}

function lengthOf(window: string): number {
  const [, n, unit] = LENGTH.exec(window) ?? [];
  if (n && unit) return Number(n) * UNITS[unit]![1];
  const [from, to] = window.split(",").map((text) => (/^\d+$/.test(text) ? Number(text) : Date.parse(text) / 1000));
  if (from !== undefined && to !== undefined && to > from) return to - from;
  return window === "today" || window === "yesterday" ? 86400 : 30 * 86400;
}
export type Step = "hour" | "day" | "week" | "month";
/** By which pieces a window is drawn. */
export function stepOf(window: string): Step {
  const days = lengthOf(window) / 86400;
  return days <= 2 ? "hour" : days <= 92 ? "day" : days <= 400 ? "week" : "month";
}

// ---- lines of the table

export const PARTS = ["used", "allocatedUnused", "heldIdle", "useUnknown"] as const;
export type Part = (typeof PARTS)[number];
export type Line = {
  kind: "row" | "held" | "rest" | "platform" | "total";
  key: string;
  keys: string[];
  hours: number | null;
  cost: number;
  share: number; // percent
  parts: Record<Part, number> | null;
  perHour: number | null;
  change: number | null;
  isNew: boolean; // it cost nothing in the window before, and others did
  isUnpriced: boolean; // it has hours, and none of them has a price
};
const cents = (n: number) => Math.round(n * 100) / 100;
const sum = (of: number[]) => of.reduce((a, b) => a + b, 0);
const rate = (cost: number, hours: number) => (hours > 0 ? cost / hours : null);
const only = (row: SpendRow): Record<Part, number> => ({
  used: row.used,
  allocatedUnused: row.allocatedUnused,
  heldIdle: row.heldIdle,
  useUnknown: row.useUnknown,
});

/** Every line with figures that add up as printed: rows to `held`, that with the rest and the platform to the total. */
export function lines(report: CostReportPage): { rows: Line[]; below: Line[]; total: Line } {
  const { rows, held, platform, rest, total } = report;
  const nobodys = platform.parts;
  const hours = addUp([...rows.map((row) => row.gpuHours), ...nobodys.map((part) => part.gpuHours)]);
  const costs = [...rows.map((row) => row.cost), ...nobodys.map((part) => part.cost), rest];
  const shares = addUp(costs.map((cost) => (total ? (cost / total) * 100 : 0)));
  const shown = rows.map((row, i): Line => ({
    kind: "row",
    key: row.key,
    keys: row.keys,
    hours: hours[i]!,
    cost: row.cost,
    share: shares[i]!,
    parts: only(row),
    perHour: row.perGpuHour,
    change: row.change,
    isNew: row.change === null && !!report.before && row.cost > 0 && row.key !== "__other__",
    isUnpriced: !row.cost && !row.used && row.unpricedGpuHours > 0,
  }));
  const line = (kind: Line["kind"], key: string, cost: number, share: number, hours: number | null, perHour: number | null): Line => ({
    kind,
    key,
    keys: [],
    hours,
    cost,
    share,
    parts: null,
    perHour,
    change: null,
    isNew: false,
    isUnpriced: !cost && !!hours && perHour === null,
  });
  const n = rows.length;
  const tenths = (of: number[]) => Math.round(sum(of) * 10) / 10;
  const after = [
    { ...line("held", "held", held.cost, tenths(shares.slice(0, n)), tenths(hours.slice(0, n)), held.perGpuHour), parts: only(held) },
    ...(rest ? [line("rest", "rest", rest, shares.at(-1)!, null, null)] : []),
    ...nobodys.map((part, i) =>
      line("platform", part.key, part.cost, shares[n + i]!, hours[n + i]!, rate(part.cost, part.gpuHours - part.unpricedGpuHours)),
    ),
  ];
  const change = report.before ? total / report.before - 1 : null;
  return {
    rows: shown,
    below: after,
    total: {
      ...line("total", "total", total, total ? 100 : 0, tenths(hours), rate(total, report.gpuHours - report.unpricedGpuHours)),
      change,
    },
  };
}

/** Who paid most for GPUs that did nothing, where there are several to choose from. */
export function mostIdle(report: CostReportPage): { name: string; amount: number } | null {
  const [first] = [...report.rows].sort((a, b) => b.heldIdle - a.heldIdle);
  if (!first?.heldIdle || report.rows.length < 2) return null;
  return { name: nameOf(report.by.join(), first.keys).name, amount: first.heldIdle };
}

export type Sort = "name" | "hours" | "cost" | Part | "perHour" | "change";
const valueOf = (line: Line, by: Exclude<Sort, "name">): number | null =>
  by === "hours" || by === "cost" || by === "perHour" || by === "change" ? line[by] : (line.parts?.[by] ?? null);
/** The largest first; names from A. What is not known comes last, and with it what is many things at once. */
export function sorted(rows: Line[], by: Sort): Line[] {
  const others = (line: Line) => (line.keys[0] === "__other__" ? 1 : 0);
  return [...rows].sort((a, b) => {
    const apart = others(a) - others(b);
    if (apart || by === "name") return apart || a.key.localeCompare(b.key);
    return (valueOf(b, by) ?? -Infinity) - (valueOf(a, by) ?? -Infinity) || a.key.localeCompare(b.key);
  });
}

/** What each of the series cost, as the table has it. */
export function heldCosts(report: CostReportPage | null): Map<string, number> {
  return new Map((report?.rows ?? []).map((row) => [row.key, cents(sum(PARTS.map((part) => row[part])))]));
}

// ---- budgets

/** When what is left comes to nothing, if it goes on in a straight line to what is forecast; null: not in this period. */
export function emptyAt(limit: number, spent: number, projected: number | null, from: number, to: number): number | null {
  if (projected === null || projected <= limit || spent >= limit) return null;
  return from + ((limit - spent) / (projected - spent)) * (to - from);
}
