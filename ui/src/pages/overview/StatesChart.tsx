// GPUs by state over time: a stacked area in the patterns of the field, with the figures of now at the right and gaps hatched over their
// full height. What one points at is read out above.
import { useState } from "preact/hooks";
import type { States } from "../../api";
import { at } from "../../clock";
import { useNarrow } from "../../hooks";
import { addUp, CANNOT_TELL, clock, dayName, hundredth, shortDay, startOfDay, tenth, time } from "../../words";
import { Chart, Levels } from "../../parts/chart";

type Part = "busy" | "idle" | "kept" | "unknown";
const PARTS: Part[] = ["busy", "idle", "kept", "unknown"];
const WORDS: Record<Part | "free", string> = { busy: "busy", idle: "idle", kept: "kept", unknown: "cannot tell", free: "free" };
const FILL: Record<Part, string> = { busy: "url(#p-busy)", idle: "url(#p-idle)", kept: "url(#p-kept)", unknown: "url(#p-unk)" };

/** Sums from below; in gaps the last value goes on, because the hatch is painted over it. */
export function stacked(states: States): number[][] {
  const known = (list: (number | null)[]) => {
    let last = list.find((v) => v !== null) ?? 0;
    return list.map((v) => (last = v ?? last));
  };
  const tops: number[][] = [];
  for (const part of PARTS) {
    const below = tops[tops.length - 1];
    tops.push(known(states[part]).map((v, i) => v + (below?.[i] ?? 0)));
  }
  return tops;
}

const HOUR = 3_600_000;
const DAY = 24 * HOUR;
/** Marks at whole hours or days of the viewer's zone. */
export function marks(from: number, to: number, narrow: boolean): { at: number; words: string }[] {
  const span = to - from;
  const step = span <= 25 * HOUR ? (narrow ? 6 : 3) * HOUR : span <= 8 * DAY ? (narrow ? 2 : 1) * DAY : 5 * DAY;
  const words = (t: number) => (step < DAY ? clock(t) : span <= 8 * DAY ? shortDay(t) : dayName(t).slice(4));
  const all = [];
  for (let t = startOfDay(from); t <= to; t += step) if (t >= from) all.push({ at: t, words: words(t) });
  return all;
}

/** The figures at the right, pushed apart so that none covers another. */
function Figures({ states, tops, total, x, y }: { states: States; tops: number[][]; total: number; x: number; y: (v: number) => number }) {
  const last = [0, ...tops.map((t) => t[t.length - 1]!)];
  const rows = PARTS.map((part, i) => ({
    part: part as Part | "free",
    value: last[i + 1]! - last[i]!,
    middle: (last[i + 1]! + last[i]!) / 2,
  }));
  rows.push({ part: "free", value: states.free[states.free.length - 1] ?? total - last[4]!, middle: (total + last[4]!) / 2 });
  const printed = addUp(rows.map((row) => row.value));
  let below = Infinity;
  return (
    <>
      {rows.map((row, i) => (
        <text class="ax k" x={x} y={(below = Math.min(y(row.middle) + 4, below - 14))}>
          <tspan class="ax d">{tenth(printed[i]!)}</tspan> {WORDS[row.part]}
        </text>
      ))}
    </>
  );
}

/** The parts of a moment in a table: they add up as printed, where all of them are known. */
export function moment(values: (number | null | undefined)[]): string[] {
  const known = values.filter((v): v is number => typeof v === "number");
  if (known.length < values.length) return values.map((v) => (typeof v === "number" ? hundredth(v) : CANNOT_TELL));
  return addUp(known, 2).map(hundredth);
}

const value = (v: number | null | undefined) => (v === null || v === undefined ? "cannot tell" : v.toFixed(1));

export function StatesChart({ states }: { states: States }) {
  const narrow = useNarrow();
  const [index, hover] = useState<number | null>(null);
  const step = states.stepSeconds * 1000;
  const from = at(states.from),
    now = at(states.to);
  const last = states.busy.length - 1;
  const timeOf = (i: number) => from + i * step;
  const tops = stacked(states);
  const total = Math.max(1, ...states.total.map((v) => v ?? 0), ...tops[3]!);
  const extra = total >= 1000 ? 14 : 0; // room for longer figures
  const left = (narrow ? 26 : 30) + extra,
    right = 96 + extra; // "12.1 cannot tell"
  const bottom = narrow ? 168 : 192;
  const y = (v: number) => Math.round((bottom - (v / total) * (bottom - 8)) * 10) / 10;
  const every = Math.max(1, Math.ceil(last / 24));
  const listed = states.busy.map((_, i) => i).filter((i) => i % every === 0);
  const says = (i: number) => PARTS.map((p) => `${value(states[p][i])} ${WORDS[p]}`).join(", ");
  return (
    <Chart
      height={bottom + 22}
      says={`GPUs by state; now ${says(last)}, ${value(states.free[last])} free.`}
      caption="GPUs by state"
      table={[
        ["Time", "busy", "idle", "kept", "cannot tell", "free"],
        ...listed.map((i) => [time(timeOf(i), now), ...moment([...PARTS.map((p) => states[p][i]), states.free[i]])]),
      ]}
      over={
        index !== null && (
          <p class="read" aria-hidden="true">
            {time(timeOf(index), now)}: {states.busy[index] === null ? "not measured" : says(index)}
          </p>
        )
      }
    >
      {(width) => {
        const wide = Math.max(1, width - left - right);
        const x = (i: number) => Math.round((left + (i / last) * wide) * 10) / 10;
        const edge = (top: number[] | undefined) => (top ?? [0, 0]).map((v, i) => `${x(top ? i : i * last)} ${y(v)}`);
        const aim = (e: PointerEvent) => {
          const box = (e.currentTarget as SVGElement).ownerSVGElement!.getBoundingClientRect();
          const i = Math.round(((e.clientX - box.left - left) / wide) * last);
          hover(i >= 0 && i <= last ? i : null);
        };
        return (
          <g class="aim" onPointerMove={aim} onPointerLeave={() => hover(null)}>
            <rect x={left} y="8" width={wide} height={bottom - 8} fill="var(--paper)" />
            <rect x={left} y="8" width={wide} height={bottom - 8} fill="url(#p-free)" />
            <Levels most={total} left={left} right={left + wide} y={y} />
            {PARTS.map((part, i) => (
              <path
                d={`M${edge(tops[i]).join("L")}L${edge(tops[i - 1])
                  .reverse()
                  .join("L")}z`}
                fill={FILL[part]}
                stroke="var(--paper)"
                stroke-width="1.2"
              />
            ))}
            {states.gaps
              .map((g) => ({ ...g, a: Math.max(from, at(g.from)), b: Math.min(now, at(g.to)) }))
              .filter((g) => g.a < g.b)
              .map((g) => {
                const a = x((g.a - from) / step),
                  w = Math.max(3, x((g.b - from) / step) - a),
                  top = y(tops[3]![Math.ceil((g.a - from) / step)] ?? 0);
                const words = Math.max(top - 28, 34);
                return (
                  <>
                    <rect x={a} y={top} width={w} height={bottom - top} fill="var(--paper)" />
                    <rect x={a} y={top} width={w} height={bottom - top} fill="url(#p-unk)" />
                    {!narrow && w >= 12 && (
                      <text class="ax k" text-anchor="middle" y={words - 13}>
                        <tspan x={a + w / 2}>{g.because}</tspan>
                        <tspan class="ax" x={a + w / 2} dy="13">
                          {clock(g.a)} to {clock(g.b)}, nothing paused
                        </tspan>
                      </text>
                    )}
                  </>
                );
              })}
            {marks(from, timeOf(last), narrow).map((m) => (
              <text class="ax" x={x((m.at - from) / step)} y={bottom + 17} text-anchor="middle">
                {m.words}
              </text>
            ))}
            <Figures states={states} tops={tops} total={total} x={left + wide + 10} y={y} />
            {index !== null && <path class="now" d={`M${x(index)} 8V${bottom}`} stroke-dasharray="2 2" />}
          </g>
        );
      }}
    </Chart>
  );
}
