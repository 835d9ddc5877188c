import { describe, expect, it } from "vitest";
import * as words from "../src/words";

const now = Date.parse("2026-11-17T14:47:00Z"); // a Tuesday
const at = (text: string) => Date.parse(text);
const plain = (text: string) => text.replaceAll(words.NBSP, " ");

describe("spans", () => {
  it.each([
    [9, "9 s"],
    [59.4, "59 s"],
    [60, "1 min"],
    [1500, "25 min"],
    [3600, "1 h"],
    [8040, "2 h 14 min"],
    [7560, "2 h 06 min"],
    [150_300, "41 h 45 min"],
    [273_600, "3 d 4 h"],
    [604_800, "7 d"],
    [-5, "0 s"],
  ])("%s seconds", (seconds, text) => expect(plain(words.span(seconds))).toBe(text));
  it("has no breaking space", () => expect(words.span(8040)).not.toContain(" "));
  it("is short where there is no room", () => expect(plain(words.span(4380, true))).toBe("1 h 13"));
  it("is exact to the second where asked", () => expect(plain(words.exactSpan(98))).toBe("1 min 38 s"));
  it("counts down in minutes, in seconds only at the end", () => {
    expect(plain(words.until(now + 1_500_000, now))).toBe("in 25 min");
    expect(plain(words.until(now + 42_000, now))).toBe("in 42 s");
    expect(words.until(now - 1, now)).toBe("now");
  });
});

describe("times", () => {
  it("says the clock today, the weekday this week, else the date", () => {
    expect(words.time(at("2026-11-17T15:12:00Z"), now)).toBe("15:12");
    expect(plain(words.time(at("2026-11-16T19:40:00Z"), now))).toBe("Mon 19:40");
    expect(plain(words.time(at("2026-11-06T16:03:00Z"), now))).toBe("6 Nov 16:03");
  });
  it("writes the instants of a sentence in the viewer's zone", () =>
    expect(words.localised("paused at 2026-11-17T15:12:00Z, told 2026-11-17T14:42:00Z", now)).toBe("paused at 15:12, told 14:42"));
});

describe("numbers", () => {
  it("has one decimal below ten percent, and says so when it cannot tell", () => {
    expect([0, 0.002, 0.08, 0.92, 0.0996, null].map((p) => plain(words.percent(p)))).toEqual([
      "0 %",
      "0.2 %",
      "8 %",
      "92 %",
      "10 %",
      "cannot tell",
    ]);
    expect(plain(words.percent(0.04, true))).toBe("4.0 %");
  });
  it("writes GPUs whole or with one decimal in sentences, two in tables", () => {
    expect([4, 25.39, 0.14, null].map(words.gpus)).toEqual(["4", "25.4", "0.1", "cannot tell"]);
    expect([4, 0.142857, 1.07].map(words.hundredth)).toEqual(["4", "0.14", "1.07"]);
    expect(plain(words.held(0.25, "L4"))).toBe("¼ L4");
  });
  it("writes money in the ledger's currency, whole in sentences above 10,000, with a true minus", () => {
    expect(words.money(1316.73, "USD")).toBe("$1,316.73");
    expect(words.money(12_345.6, "EUR", true)).toBe("€12,346");
    expect(words.money(-3.24, "USD")).toBe("−$3.24");
    expect(plain(words.money(3, "not a currency"))).toBe("3.00 not a currency");
    expect(words.moneyOr(null, "USD")).toBe("no price");
  });
  it("makes parts that add up to the printed whole", () => {
    const parts = words.addUp([64.366, 25.393, 5.393, 8.786, 24.062]);
    expect(parts.reduce((a, b) => a + b, 0)).toBeCloseTo(128, 9);
    expect(words.addUp([1 / 3, 1 / 3, 1 / 3]).reduce((a, b) => a + b, 0)).toBeCloseTo(1, 9);
  });
  it("writes figures at an axis so that they have room", () => {
    expect([0, 38.25, 114.75, 153].map((value) => words.level(value, 153))).toEqual(["0", "38", "115", "153"]);
    expect([0.75, 1.5, 3].map((value) => words.level(value, 3))).toEqual(["0.8", "1.5", "3"]);
  });
  it("reads only times from an address", () =>
    expect(["8h", "2d", "8", "-8h", "8h;", "99999h", null].map(words.hoursOf)).toEqual([8, 48, null, null, null, null, null]));
});

it("a column of a table adds up as printed", () => {
  expect(words.column([0.125, 0.125, 3])).toEqual({ each: [0.13, 0.12, 3], sum: 3.25 });
  expect(words.column([])).toEqual({ each: [], sum: 0 });
});

it("no two words along an axis of time are alike", () => {
  const from = new Date(2026, 10, 19).getTime();
  const day = 86_400_000;
  expect(words.ticks(from, from + day)).toEqual(["Thu 00:00", "08:00", "16:00", "Fri 00:00"]);
  expect(words.ticks(from, from + 30 * day)).toEqual(["19\u00a0Nov", "29", "9", "18"]);
  for (const days of [0.25, 1, 2, 3, 4, 7]) expect(new Set(words.ticks(from, from + days * day)).size).toBe(4);
});
