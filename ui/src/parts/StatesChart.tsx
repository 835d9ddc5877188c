// GPUs by state over time: a stacked area by uPlot, with the figures of now at the right and gaps hatched over their full height.
// uPlot is loaded when this is first drawn; the page does not wait for it.
import { useEffect, useRef, useState } from "preact/hooks";
import type uPlot from "uplot";
import type { States } from "../api";
import { at } from "../clock";
import { useNarrow, useWidth } from "../hooks";
import { colour, theme } from "../theme";
import { addUp, clock, count, dayName, shortDay, startOfDay, tenth, time } from "../words";
import { AsTable } from "./small";

type Part = "busy" | "idle" | "kept" | "unknown";
const PARTS: Part[] = ["busy", "idle", "kept", "unknown"];
const WORDS: Record<Part | "free", string> = { busy: "busy", idle: "idle", kept: "kept", unknown: "cannot tell", free: "free" };

/** Sums from below; in gaps the last value goes on, because the hatch is painted over it. */
export function stacked(states: States): { times: number[]; tops: number[][] } {
  const from = at(states.from) / 1000;
  const times = states.busy.map((_, i) => from + i * states.stepSeconds);
  const known = (list: (number | null)[]) => {
    let last = list.find((v) => v !== null) ?? 0;
    return list.map((v) => (last = v ?? last));
  };
  const tops: number[][] = [];
  for (const part of PARTS) {
    const below = tops[tops.length - 1];
    tops.push(known(states[part]).map((v, i) => v + (below?.[i] ?? 0)));
  }
  return { times, tops };
}

function tile(size: number, ratio: number, draw: (t: CanvasRenderingContext2D) => void, turned = false): CanvasPattern | string {
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = Math.round(size * ratio);
  const t = canvas.getContext("2d")!;
  t.scale(canvas.width / size, canvas.width / size);
  draw(t);
  const pattern = t.createPattern(canvas, "repeat")!;
  if (turned) pattern.setTransform(new DOMMatrix().rotate(45));
  return pattern;
}

/** The patterns of the field for the canvas; made anew when the theme changes. */
function fills(ratio: number) {
  const box = (ground: string, x: number, y: number, w: number, h: number, row: string, alpha: number) => (t: CanvasRenderingContext2D) => {
    if (ground) {
      t.fillStyle = colour(ground);
      t.fillRect(0, 0, 8, 8);
    }
    t.globalAlpha = alpha;
    t.fillStyle = colour(row);
    t.fillRect(x, y, w, h);
  };
  const dots = (t: CanvasRenderingContext2D) => {
    t.globalAlpha = 0.35;
    t.fillStyle = colour("--edge");
    t.beginPath();
    t.arc(4, 4, 0.9, 0, 7);
    t.fill();
  };
  return {
    busy: tile(5, ratio, box("--busy", 2, 0, 1.4, 5, "--busy-row", 1)),
    idle: tile(5, ratio, box("--idle", 0, 2, 5, 1, "--idle-row", 0.6)),
    kept: tile(5, ratio, box("--kept", 0, 2, 5, 1, "--kept-row", 0.9)),
    unknown: tile(5, ratio, box("--unk", 0, 0, 1.2, 5, "--unk-row", 0.75), true),
    free: tile(8, ratio, dots),
  };
}

const HOUR = 3600;
/** Marks at whole hours or days of the viewer's zone. */
export function marks(from: number, to: number, narrow: boolean): { at: number[]; words: (t: number) => string } {
  const span = to - from;
  const midnight = startOfDay(from * 1000) / 1000;
  const step = span <= 25 * HOUR ? (narrow ? 6 : 3) * HOUR : span <= 8 * 24 * HOUR ? (narrow ? 48 : 24) * HOUR : 5 * 24 * HOUR;
  const all: number[] = [];
  for (let t = midnight; t <= to; t += step) if (t >= from) all.push(t);
  return {
    at: all,
    words:
      step < 24 * HOUR ? (t) => clock(t * 1000) : span <= 8 * 24 * HOUR ? (t) => shortDay(t * 1000) : (t) => dayName(t * 1000).slice(4),
  };
}

/** The figures at the right, pushed apart so that none covers another. */
function rightLabels(u: uPlot, states: States, tops: number[][], total: number, ratio: number): void {
  const last = tops.map((t) => t[t.length - 1]!);
  const rows = PARTS.map((part, i) => ({
    part: part as Part | "free",
    value: last[i]! - (last[i - 1] ?? 0),
    middle: (last[i]! + (last[i - 1] ?? 0)) / 2,
  }));
  rows.push({ part: "free", value: states.free[states.free.length - 1] ?? total - last[3]!, middle: (total + last[3]!) / 2 });
  const printed = addUp(rows.map((row) => row.value));
  let below = Infinity;
  const { ctx } = u;
  ctx.textAlign = "left";
  for (const [i, row] of rows.entries()) {
    const y = Math.min(u.valToPos(row.middle, "y", true) + 4 * ratio, below - 14 * ratio);
    below = y;
    const x = u.bbox.left + u.bbox.width + 10 * ratio;
    ctx.font = `550 ${11 * ratio}px Inter, sans-serif`;
    ctx.fillStyle = colour("--ink");
    ctx.fillText(tenth(printed[i]!), x, y);
    const w = ctx.measureText(`${tenth(printed[i]!)} `).width;
    ctx.font = `400 ${11 * ratio}px Inter, sans-serif`;
    ctx.fillStyle = colour("--ink-2");
    ctx.fillText(WORDS[row.part], x + w, y);
  }
}

function gaps(
  u: uPlot,
  states: States,
  times: number[],
  top: number[],
  pattern: CanvasPattern | string,
  ratio: number,
  narrow: boolean,
): void {
  const { ctx } = u;
  for (const gap of states.gaps) {
    const a = at(gap.from) / 1000,
      b = at(gap.to) / 1000;
    if (b < times[0]! || a > times[times.length - 1]!) continue;
    const x = u.valToPos(a, "x", true),
      w = Math.max(3 * ratio, u.valToPos(b, "x", true) - x);
    const height =
      top[
        Math.max(
          0,
          times.findIndex((t) => t >= a),
        )
      ] ?? 0;
    const y = u.valToPos(height, "y", true),
      h = u.valToPos(0, "y", true) - y;
    for (const fill of [colour("--paper"), pattern]) {
      ctx.fillStyle = fill;
      ctx.fillRect(x, y, w, h);
    }
    if (narrow || w < 12 * ratio) continue;
    ctx.textAlign = "center";
    ctx.font = `400 ${11 * ratio}px Inter, sans-serif`;
    ctx.fillStyle = colour("--ink-2");
    const words = Math.max(y - 28 * ratio, u.bbox.top + 26 * ratio);
    ctx.fillText(gap.because, x + w / 2, words - 13 * ratio);
    ctx.fillStyle = colour("--ink-3");
    ctx.fillText(`${clock(a * 1000)} to ${clock(b * 1000)}, nothing paused`, x + w / 2, words);
  }
}

function plot(
  U: typeof uPlot,
  host: HTMLElement,
  states: States,
  width: number,
  narrow: boolean,
  hover: (i: number | null) => void,
): uPlot {
  const ratio = devicePixelRatio || 1;
  const { times, tops } = stacked(states);
  const total = Math.max(1, ...states.total.map((v) => v ?? 0), ...tops[3]!);
  const extra = total >= 1000 ? 14 : 0; // room for longer figures
  const paint = fills(ratio);
  const paper = colour("--paper"),
    rule = colour("--rule"),
    ink3 = colour("--ink-3");
  const scale = marks(times[0]!, times[times.length - 1]!, narrow);
  const axis = { stroke: ink3, font: "11px Inter, sans-serif", ticks: { show: false }, border: { show: false } };
  const series: uPlot.Series[] = [
    {},
    ...PARTS.map((part, i) => ({
      stroke: paper,
      width: 1.2,
      points: { show: false },
      ...(i === 0 && { fill: () => paint[part] as string }),
    })),
  ];
  return new U(
    {
      width,
      height: narrow ? 190 : 214,
      legend: { show: false },
      pxAlign: 1,
      padding: [8, (narrow ? 84 : 92) + extra, 0, 0],
      cursor: { sync: { key: "t" }, points: { show: false }, drag: { x: false, y: false }, y: false },
      scales: { x: { time: false }, y: { range: [0, total] } },
      axes: [
        { ...axis, size: 22, gap: 5, splits: () => scale.at, values: () => scale.at.map(scale.words), grid: { show: false } },
        {
          ...axis,
          size: (narrow ? 26 : 30) + extra,
          gap: 6,
          splits: () => [0, 0.25, 0.5, 0.75, 1].map((f) => f * total),
          values: (_, s) => s.map((v) => count(Math.round(v))),
          grid: { stroke: rule, width: 1 },
        },
      ],
      series,
      bands: [2, 3, 4].map((i) => ({ series: [i, i - 1] as [number, number], fill: () => paint[PARTS[i - 1]!] as string })),
      hooks: {
        drawClear: [
          (u) => {
            u.ctx.fillStyle = paint.free;
            u.ctx.fillRect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
          },
        ],
        draw: [
          (u) => {
            gaps(u, states, times, tops[3]!, paint.unknown, ratio, narrow);
            rightLabels(u, states, tops, total, ratio);
          },
        ],
        setCursor: [(u) => hover(u.cursor.idx ?? null)],
      },
    },
    [times, ...tops] as uPlot.AlignedData,
    host,
  );
}

const value = (v: number | null | undefined) => (v === null || v === undefined ? "cannot tell" : v.toFixed(1));

export function StatesChart({ states }: { states: States }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const host = useRef<HTMLDivElement>(null);
  const narrow = useNarrow();
  const shade = theme.use();
  const [index, hover] = useState<number | null>(null);
  useEffect(() => {
    if (!width || !host.current) return;
    let chart: uPlot | null = null;
    let gone = false;
    void Promise.all([import("uplot"), document.fonts?.ready]).then(([{ default: U }]) => {
      if (!gone && host.current) chart = plot(U, host.current, states, width, narrow, hover);
    });
    return () => {
      gone = true;
      chart?.destroy();
    };
  }, [states, width, narrow, shade]);
  const last = states.busy.length - 1;
  const i = index ?? last;
  const when = at(states.from) + i * states.stepSeconds * 1000;
  const now = at(states.to);
  const says = PARTS.map((p) => `${WORDS[p]} ${value(states[p][last])}`).join(", ");
  const every = Math.max(1, Math.ceil(last / 24));
  const rows = states.busy
    .map((_, j) => j)
    .filter((j) => j % every === 0)
    .map((j) => [
      time(at(states.from) + j * states.stepSeconds * 1000, now),
      ...PARTS.map((p) => value(states[p][j])),
      value(states.free[j]),
    ]);
  return (
    <div ref={box} class="chart states">
      <div ref={host} role="img" aria-label={`GPUs by state; now ${says}, free ${value(states.free[last])}.`} />
      <p class={index === null ? "read off" : "read"} aria-hidden="true">
        {time(when, now)}: {states.busy[i] === null ? "not measured" : PARTS.map((p) => `${value(states[p][i])} ${WORDS[p]}`).join(", ")}
      </p>
      <AsTable caption="GPUs by state" head={["Time", "busy", "idle", "kept", "cannot tell", "free"]} rows={rows} />
    </div>
  );
}
