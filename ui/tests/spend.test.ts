import { describe, expect, it } from "vitest";
import type { CostReportPage, SpendRow } from "../src/api";
import { below, during, emptyAt, filterOf, lines, mostIdle, nameOf, shortName, sorted, stepOf, subject, terms } from "../src/pages/cost/spend";

const row = (key: string, cost: number, more: Partial<SpendRow> = {}): SpendRow => ({
  key,
  keys: [key],
  gpuHours: cost,
  cost,
  used: cost,
  allocatedUnused: 0,
  heldIdle: 0,
  useUnknown: 0,
  share: null,
  use: null,
  perGpuHour: 1,
  kwh: 0,
  energyCost: null,
  co2Kg: null,
  unpricedGpuHours: 0,
  change: null,
  ...more,
});
const none = { energyCost: null, co2Kg: null };
const part = (key: string, cost: number) => ({ key, gpuHours: cost, cost, share: null, kwh: 0, unpricedGpuHours: 0, ...none });
const report = (rows: SpendRow[], nobody: number, rest = 0): CostReportPage => {
  const held = rows.reduce((sum, one) => sum + one.cost, 0);
  const total = held + nobody + rest;
  return {
    window: { start: "2026-11-01T00:00:00Z", end: "2026-11-02T00:00:00Z" },
    asOf: "2026-11-02T00:00:00Z",
    currency: "USD",
    basis: "allocation",
    by: ["team"],
    rows,
    held: row("all", held),
    platform: { cost: nobody, gpuHours: nobody, kwh: 0, ...none, parts: [part("__unallocated__", nobody)] },
    rest,
    total,
    gpuHours: held + nobody,
    unpricedGpuHours: 0,
    stalePrices: [], estimatedPrices: [],
    before: total / 2,
    isEnergyInCost: false,
  };
};

describe("lines", () => {
  it("add up as printed, in thirds too", () => {
    const third = 100 / 3;
    const { rows, below: after, total } = lines(report([row("a", third), row("b", third)], third));
    expect(rows.map((line) => line.share)).toEqual([33.4, 33.3]);
    expect(after.map((line) => [line.kind, line.share, line.hours])).toEqual([
      ["held", 66.7, 66.7],
      ["platform", 33.3, 33.3],
    ]);
    expect([total.share, total.hours, total.change]).toEqual([100, 100, 1]);
  });
  it("have what nobody pays by use in a line of its own", () => {
    const { below: after } = lines(report([row("a", 40)], 20, 40));
    expect(after.map((line) => [line.kind, line.cost])).toEqual([
      ["held", 40],
      ["rest", 40],
      ["platform", 20],
    ]);
  });
  it("say nothing of a change where there was nothing before", () => {
    expect(lines({ ...report([row("a", 1)], 1), before: 0 }).total.change).toBe(null);
  });
  it("know what is new, and what has hours and no price", () => {
    const { rows } = lines(report([row("a", 3, { change: 0.1 }), row("b", 2), row("c", 0, { gpuHours: 4, unpricedGpuHours: 4 })], 1));
    expect(rows.map((line) => [line.isNew, line.isUnpriced])).toEqual([
      [false, false],
      [true, false],
      [false, true],
    ]);
  });
  it("are sorted with what is not known, and all others, last", () => {
    const { rows } = lines(report([row("a", 1, { change: 0.2 }), row("__other__", 9, { keys: ["__other__"], change: 3 }), row("b", 2)], 1));
    expect(sorted(rows, "cost").map((line) => line.key)).toEqual(["b", "a", "__other__"]);
    expect(sorted(rows, "change").map((line) => line.key)).toEqual(["a", "b", "__other__"]);
    expect(sorted(rows, "name").map((line) => line.key)).toEqual(["a", "b", "__other__"]);
  });
});

describe("the way down", () => {
  it("leads from a team to its workloads and from one to its pods", () => {
    expect(below("team", ["chat"], "")).toEqual({ by: "workload", filter: 'team:"chat"' });
    expect(below("workload", ["ml", "Job", "x"], 'team:"chat"')).toEqual({
      by: "pod",
      filter: 'team:"chat"+namespace:"ml"+controllerKind:"Job"+controller:"x"',
    });
    expect(below("label:tier", ["gold"], "")).toEqual({ by: "workload", filter: 'label[tier]:"gold"' });
    expect(below("workload", ["ml", "Job", "x"], 'namespace:"ml"')?.filter).toBe('namespace:"ml"+controllerKind:"Job"+controller:"x"');
  });
  it("ends at pods, at all others, and at what a filter cannot say", () => {
    expect(below("pod", ["ml", "x-0"], "")).toBe(null);
    expect(below("team", ["__other__"], "")).toBe(null);
    expect(below("team", ['a"b'], "")).toBe(null);
  });
  it("is read back from the address", () => {
    const all = [
      { on: "team", value: "a b" },
      { on: "label:app.kubernetes.io/name", value: "x" },
    ];
    expect(terms(filterOf(all))).toEqual(all);
    expect(subject("")).toBe("The GPUs");
    expect(subject('namespace:"ml"+controllerKind:"Job"+controller:"x"')).toBe("x in ml");
    expect(subject('team:"__none__"')).toBe("not said");
  });
});

describe("words", () => {
  const at = (text: string) => Date.parse(text);
  it("say which time", () => {
    const [from, to] = [at("2026-11-01T00:00:00"), at("2026-11-08T00:00:00")];
    expect(during("30d", from, to)).toBe("in 30\u00a0days");
    expect(during("1h", from, to)).toBe("in 1\u00a0hour");
    expect(during("lastmonth", from, to)).toBe("last month");
    expect(during("1,2", from, to)).toBe("from 1\u00a0Nov to 7\u00a0Nov");
  });
  it("name a row by what it is and where", () => {
    expect(nameOf("workload", ["ml", "Job", "x"])).toEqual({ name: "x", within: "Job in ml" });
    expect(shortName("workload", ["ml", "Job", "x"])).toBe("ml/x");
    expect(shortName("workload", ["__other__", "__other__", "__other__"])).toBe("all others");
    expect(nameOf("team", ["__none__"]).name).toBe("not said");
  });
  it("draw a window in pieces one can see", () => {
    const steps = ["24h", "yesterday", "7d", "month", "12w", "200d", "1000d", "0,86400", "1600000000,1700000000"].map(stepOf);
    expect(steps).toEqual(["hour", "hour", "day", "day", "day", "week", "month", "hour", "month"]);
  });
});

describe("a budget", () => {
  it("is empty where its line crosses nothing", () => {
    expect(emptyAt(100, 50, 150, 0, 10)).toBe(5);
    expect([emptyAt(100, 50, 100, 0, 10), emptyAt(100, 50, null, 0, 10), emptyAt(100, 120, 150, 0, 10)]).toEqual([null, null, null]);
  });
});

describe("who paid most for GPUs that did nothing", () => {
  it("is named, with how much of it did nothing, not with what it paid in all", () => {
    const rows = [row("chat", 300, { heldIdle: 20 }), row("bio", 70, { heldIdle: 65 }), row("speech", 250)];
    expect(mostIdle(report(rows, 100))).toEqual({ name: "bio", amount: 65 });
  });
  it("is nobody where nothing was idle, or where there is nobody else", () => {
    expect(mostIdle(report([row("chat", 300), row("bio", 70)], 100))).toBe(null);
    expect(mostIdle(report([row("chat", 300, { heldIdle: 20 })], 100))).toBe(null);
  });
});
