import { describe, expect, it } from "vitest";
import type { Row, RowNews } from "../src/api";
import { csv } from "../src/csv";
import { arranged, belongs, heard, longestRising, merged, rowOf, settled, sums, type Wanted, wordTest } from "../src/rows";

const wanted: Wanted = {
  view: "idle",
  namespace: "",
  kind: "",
  policy: "",
  model: "",
  words: "",
  mine: "",
  sort: "next",
  descending: false,
};
function row(name: string, more: Partial<Row> = {}): Row {
  return {
    apiVersion: "apps/v1",
    kind: "Deployment",
    namespace: "team-chat",
    name,
    uid: name,
    state: "told",
    verdict: "idle",
    reason: "InNotice",
    because: "",
    group: "willPause",
    gpus: 1,
    instances: 1,
    idleInstances: 1,
    activeInstances: 0,
    unknownInstances: 0,
    idlePerHour: 5,
    idleGpus: 1,
    models: ["A100"],
    profile: null,
    idleSince: null,
    atLeast: false,
    idleSeconds: 600,
    neverUsed: false,
    strip: null,
    perHour: 5,
    currency: "USD",
    isList: true,
    next: { type: "pause", at: "2026-11-17T15:00:00Z", because: "" },
    skip: null,
    skipBecause: null,
    toldAt: null,
    toldTo: [],
    policy: "serving",
    keepHours: [4, 8, 24],
    maxKeepHours: 168,
    keep: null,
    rest: null,
    revision: 1,
    ...more,
  };
}
const mapOf = (...rows: Row[]) => new Map(rows.map((r) => [r.uid, r]));
const listOf = (...rows: Row[]) => settled(mapOf(...rows), wanted);
const news = (...rows: RowNews[]) => new Map(rows.map((r) => [r.uid, r]));
const next = (at: string) => ({ type: "pause" as const, at, because: "" });

describe("live rows", () => {
  const a = row("a", { next: next("2026-11-17T15:00:00Z") }),
    b = row("b", { next: next("2026-11-17T15:10:00Z") }),
    c = row("c", { next: next("2026-11-17T15:20:00Z") });

  it("changes values in place, keeps the order, and counts what would move", () => {
    const list = heard(listOf(a, b, c), news({ ...a, next: next("2026-11-17T16:00:00Z"), revision: 2 }), wanted);
    expect(list.shown).toEqual(["a", "b", "c"]);
    expect(rowOf(list, "a").next?.at).toBe("2026-11-17T16:00:00Z");
    expect([...list.changed]).toEqual(["a"]);
    expect(list.waiting).toBe(1);
    expect(settled(list.all, wanted).shown).toEqual(["b", "c", "a"]);
  });
  it("keeps a row that became busy or went away on screen until the list is settled", () => {
    const list = heard(
      listOf(a, b),
      news({ ...a, state: "busy", verdict: "active", group: "busy", revision: 2 }, { uid: "b", gone: true }),
      wanted,
    );
    expect(list.shown).toEqual(["a", "b"]);
    expect(rowOf(list, "b").name).toBe("b");
    expect(list.waiting).toBe(2);
    expect(settled(list.all, wanted).shown).toEqual([]);
  });
  it("lets new rows wait, and takes no older revision", () => {
    const list = heard(listOf({ ...a, revision: 5 }), news(b, { ...a, gpus: 9, revision: 4 }), wanted);
    expect(list.shown).toEqual(["a"]);
    expect(list.waiting).toBe(1);
    expect(rowOf(list, "a").gpus).toBe(1);
  });
  it("gathers the newest news of each workload", () => {
    const pending = new Map<string, RowNews>();
    merged(pending, { ...a, revision: 3 });
    merged(pending, { ...a, gpus: 7, revision: 2 });
    expect((pending.get("a") as Row).gpus).toBe(1);
    merged(pending, { uid: "a", gone: true });
    expect(pending.get("a")).toEqual({ uid: "a", gone: true });
  });
  it("finds what can stay where it is", () =>
    expect([longestRising([]), longestRising([0, 1, 2]), longestRising([2, 0, 1]), longestRising([3, 2, 1])]).toEqual([0, 3, 2, 1]));
});

describe("filters and order", () => {
  it("knows which rows a view has", () => {
    expect(belongs(row("k", { group: "kept" }), "idle")).toBe(true);
    expect(belongs(row("k", { group: "busy" }), "idle")).toBe(false);
    expect(belongs(row("k", { group: "busy" }), "all")).toBe(true);
  });
  it("matches globs as a whole and words in part, without regular expressions from outside", () => {
    const names = (w: Partial<Wanted>) =>
      arranged(mapOf(row("a", { namespace: "team-chat" }), row("b", { namespace: "other" })), { ...wanted, ...w }).map((r) => r.name);
    expect(names({ namespace: "team-*" })).toEqual(["a"]);
    expect(names({ namespace: "team" })).toEqual([]);
    expect(names({ words: "chat" })).toEqual(["a"]);
    expect(names({ words: "(.+)+$" })).toEqual([]);
    expect([wordTest("gpus>2")(row("x", { gpus: 2 })), wordTest("gpus>=2")(row("x", { gpus: 2 }))]).toEqual([false, true]);
  });
  it("groups by what comes next, sorts flat by anything else", () => {
    const rows = [
      row("cheap", { group: "willPause", perHour: 1 }),
      row("dear", { group: "leftAlone", perHour: 9 }),
      row("none", { perHour: null }),
    ];
    expect(arranged(mapOf(...rows), wanted).map((r) => r.name)).toEqual(["cheap", "none", "dear"]);
    expect(arranged(mapOf(...rows), { ...wanted, sort: "cost", descending: true }).map((r) => r.name)).toEqual(["dear", "cheap", "none"]);
  });
  it("counts what has no price beside the sum, never as 0", () =>
    expect(sums([row("a"), row("b", { perHour: null, gpus: 2 })])).toEqual({ workloads: 2, gpus: 3, perHour: 5, unpriced: 2 }));
  it("writes no formula into a spreadsheet", () => expect(csv([row("=cmd|x")])).toContain("'=cmd|x"));
});
