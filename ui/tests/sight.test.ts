import { expect, test } from "vitest";
import { indexAt, towards } from "../src/pages/list/sight";

const ROWS = 5000;
const size = ({ from, to }: { from: number; to: number }) => to - from;
const fresh = (old: { from: number; to: number }, next: { from: number; to: number }) =>
  size(next) - Math.max(0, Math.min(old.to, next.to) - Math.max(old.from, next.from));

test("the row at a place is the last that begins at or above it", () => {
  const tops = Float64Array.from([0, 40, 84, 128]);
  expect([-5, 0, 39, 40, 84, 127, 128, 999].map((y) => indexAt(tops, y))).toEqual([0, 0, 0, 1, 2, 2, 2, 2]);
});

test("a jump brings the rows in sight first, a few a frame, and ends with those beyond", () => {
  const sight = { from: 2000, to: 2021 };
  let range = { from: 0, to: 33 };
  const steps = [];
  for (let i = 0; i < 20; i++) {
    const next = towards(range, sight, ROWS);
    expect(fresh(range, next)).toBeLessThanOrEqual(4);
    steps.push((range = next));
  }
  expect(steps[0]).toEqual({ from: 2000, to: 2004 });
  expect(steps[5]).toEqual({ from: 2000, to: 2024 }); // all in sight within six frames, a tenth of a second
  expect(range).toEqual({ from: 1988, to: 2033 });
  expect(towards(range, sight, ROWS)).toEqual(range);
});

test("a slow scroll in either direction keeps what is there", () => {
  const there = { from: 88, to: 133 };
  expect(towards(there, { from: 103, to: 124 }, ROWS)).toEqual({ from: 91, to: 136 });
  expect(towards(there, { from: 97, to: 118 }, ROWS)).toEqual({ from: 85, to: 130 });
});

test("a list that became shorter leaves nothing beyond its end", () => {
  expect(towards({ from: 2000, to: 2040 }, { from: 2, to: 3 }, 3)).toEqual({ from: 0, to: 3 });
  expect(towards({ from: 0, to: 0 }, { from: 0, to: 1 }, 0)).toEqual({ from: 0, to: 0 });
});
