import { describe, expect, it } from "vitest";
import type { FieldNode, Pool, Slot } from "../src/api";
import { arrangedBy, blocksOf, countGpus, joined, laid, scaleFor } from "../src/field";
import { level, runs } from "../src/pages/one/evidence";

const slot = (name: string | null, more: Partial<Slot> = {}): Slot => ({
  share: 1,
  start: null,
  size: null,
  profile: null,
  state: name ? "idle" : "free",
  holder: name ? { apiVersion: "v1", kind: "Job", namespace: `team-${name[0]}`, name, uid: name } : null,
  activity: 0,
  freedBy: null,
  label: "",
  ...more,
});
const node = (name: string, holders: (string | null)[], more: Partial<FieldNode> = {}): FieldNode => ({
  name,
  ready: true,
  layout: "whole",
  activity: 0,
  trouble: null,
  gpus: holders.map((h, index) => ({ index, uuid: null, slots: [slot(h)] })),
  ...more,
});
const pool = (name: string, nodes: FieldNode[]): Pool => ({ name, model: "A100", perGpuHour: 5, nodes });
const eight = (name: string) => node(name, Array(8).fill("w"));

describe("the field", () => {
  it("chooses the size of a cell by the number of GPUs", () => {
    expect(
      [128, 400, 1000, 5000, 5001].map((n) => {
        const s = scaleFor(n, false);
        return [s.cell, s.canvas, s.perNode];
      }),
    ).toEqual([
      [32, false, false],
      [24, false, false],
      [16, false, false],
      [8, true, false],
      [12, true, true],
    ]);
  });
  it("lays the drawn cluster out as drawn", () => {
    const map = laid(
      [
        pool(
          "train",
          [1, 2, 3, 4].map((n) => eight(`h${n}`)),
        ),
        pool("mig", [eight("m1"), eight("m2")]),
        pool(
          "serve",
          [1, 2, 3, 4, 5, 6].map((n) => eight(`a${n}`)),
        ),
      ],
      922,
      false,
    );
    expect(map.parcels.map((p) => [p.x, p.y, p.w, p.h])).toEqual([
      [0, 0, 602, 128],
      [616, 0, 306, 128],
      [0, 142, 922, 128],
    ]);
  });
  it("keeps every cell inside its plot and every plot inside its parcel, at any width", () => {
    const pools = [
      pool(
        "a",
        Array.from({ length: 30 }, (_, i) => eight(`n${i}`)),
      ),
      pool("b", [node("x", ["w", null])]),
    ];
    for (const width of [340, 700, 1392])
      for (const p of laid(pools, width, width < 500).parcels)
        for (const plot of p.plots) {
          expect(plot.x + plot.w).toBeLessThanOrEqual(p.x + p.w + 0.01);
          expect(plot.y + plot.h).toBeLessThanOrEqual(p.y + p.h + 0.01);
          for (const s of plot.strips) expect(s.x >= plot.x && s.x + s.w <= plot.x + plot.w + 0.01).toBe(true);
        }
  });
  it("joins neighbours of one workload, and no others", () => {
    const plot = laid([pool("p", [node("n", ["a", "a", "b", "a", "a", null, null, "a"])])], 922, false).parcels[0]!.plots[0]!;
    expect(
      blocksOf(plot.strips, true)
        .map((b) => b.strips.length)
        .sort(),
    ).toEqual([1, 1, 1, 2, 3]);
  });
  it("cuts a MIG GPU by its slices and leaves room for those no profile can use", () => {
    const gpu = {
      index: 0,
      uuid: null,
      slots: [slot("a", { size: 3, start: 0, share: 0.5 }), slot(null, { size: 3, start: 3, share: 0.5 })],
    };
    const [a, b] = laid([pool("p", [node("n", [], { layout: "mig", gpus: [gpu] })])], 922, false).parcels[0]!.plots[0]!.strips;
    expect(a!.w).toBeCloseTo(b!.w, 9);
    expect(a!.w + b!.w).toBeLessThan(32 * (6 / 7));
  });
  it("keeps every GPU when it is arranged by team", () => {
    const pools = [pool("p", [node("n", ["a1", "b1", null]), node("m", ["a2"])])];
    const teams = arrangedBy(pools, "team");
    expect(teams.map((t) => t.name)).toEqual(["team-a", "team-b", "free"]);
    expect(countGpus(teams)).toBe(countGpus(pools));
  });
  it("writes no negative or endless path", () => {
    const plot = laid([pool("p", [eight("n")])], 922, false).parcels[0]!.plots[0]!;
    expect(joined(plot.strips, 2, 0)).not.toMatch(/NaN|Infinity/);
  });
});

describe("evidence", () => {
  it("separates work, quiet and what was not measured", () =>
    expect(runs([0.5, 0.001, null, null, 0], 0.01).map((r) => `${r.kind}${r.from}-${r.to}`)).toEqual([
      "work0-1",
      "low1-2",
      "gap2-4",
      "low4-5",
    ]));
  it("is even below one percent and logarithmic above", () => {
    expect([level(0), level(1), level(2)]).toEqual([0, 1, 1]);
    expect(level(0.01)).toBeGreaterThan(0.15);
  });
});
