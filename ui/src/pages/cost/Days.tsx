// Cost over time: a bar for each piece of the calendar, stacked by who caused it, and a legend that is a table with sums.
import { useState } from "preact/hooks";
import type { CostSeriesPage } from "../../api";
import { at } from "../../clock";
import { Chart, Levels, roundUp } from "../../parts/chart";
import { Table } from "../../parts/Table";
import { addUp, CANNOT_TELL, clock, dayName, money } from "../../words";
import { word, type Step } from "./spend";

type Layer = { name: string; fill: string; costs: (number | null)[]; total: number; free?: boolean };
const BOTTOM = 210;

const sumOf = (costs: (number | null)[]) => costs.reduce((a: number, b) => a + (b ?? 0), 0);

/** `known`, `nobodys`: what each came to, and what nobody held, as the table has it: days that are rounded by themselves would differ by a cent. */
function layers(series: CostSeriesPage, names: Map<string, string>, known: Map<string, number>, nobodys: number | undefined): Layer[] {
  const held = series.series.map((one, i): Layer => ({
    name: names.get(one.key) ?? word(one.key.split("/")[0]!),
    fill: i < 8 ? `var(--c${i + 1})` : "var(--rule)",
    costs: one.costs,
    total: known.get(one.key) ?? one.total,
  }));
  const free = nobodys ?? sumOf(series.platform);
  return free ? [...held, { name: "platform", fill: "url(#p-free)", costs: series.platform, total: free, free: true }] : held;
}

const says = (start: number, step: Step) =>
  step === "hour" ? clock(start) : step === "month" ? dayName(start).slice(-3) : dayName(start).slice(4);
const short = (start: number, step: Step, before: number | undefined) =>
  step === "day" && before !== undefined && new Date(before).getMonth() === new Date(start).getMonth()
    ? String(new Date(start).getDate())
    : says(start, step);

type Told = { series: CostSeriesPage; names: Map<string, string>; known: Map<string, number>; nobodys: number | undefined };

export function Days({ series, names, known, nobodys }: Told) {
  const [pointed, point] = useState<number | null>(null);
  const { currency, step } = series;
  const all = layers(series, names, known, nobodys);
  const starts = series.starts.map(at);
  const most = roundUp(Math.max(0.01, ...series.total.map((each) => each ?? 0)));
  const said = (cost: number | null) => (cost === null ? CANNOT_TELL : money(cost, currency));
  const gap = series.booksSince !== null && series.total.includes(null);
  const digits = most >= 100 ? 0 : 2;
  const left = 18 + 7 * money(most, currency, true, digits).length;
  const y = (value: number) => BOTTOM - (value / most) * (BOTTOM - 8);
  const sum = sumOf(series.total);
  return (
    <div class="dd">
      <Chart
        height={BOTTOM + 22}
        says={`Cost by ${step}, ${money(sum, currency, true)} in ${starts.length} bars; most of it ${all[0]?.name ?? "nobody's"}.`}
        caption={`Cost by ${step}`}
        table={[
          [step, ...all.map((layer) => layer.name), "total"],
          ...starts.map((start, i) => [says(start, step), ...all.map((layer) => said(layer.costs[i]!)), said(series.total[i]!)]),
        ]}
        over={
          pointed !== null ? (
            <p class="read" aria-hidden="true">
              {step === "hour" ? clock(starts[pointed]!) : dayName(starts[pointed]!)}: {said(series.total[pointed]!)}
              {series.total[pointed] !== null &&
                all
                  .slice(0, 3)
                  .map((layer) => `, ${layer.name} ${said(layer.costs[pointed]!)}`)
                  .join("")}
            </p>
          ) : (
            gap && (
              <p class="q xs">Books are kept since {dayName(at(series.booksSince!))}; of the time before (hatched) nothing is known.</p>
            )
          )
        }
      >
        {(width) => {
          const each = (width - left) / Math.max(1, starts.length);
          const every = Math.ceil(44 / each);
          const bar = Math.max(1, each - 2);
          return (
            <g onPointerLeave={() => point(null)}>
              <Levels most={most} left={left} right={width} y={y} say={(value) => (value ? money(value, currency, true, digits) : "0")} />
              {starts.map((start, i) => {
                const x = left + i * each + 1;
                let top = 0;
                const last = i === starts.length - 1;
                const shown = last || (i % every === 0 && starts.length - 1 - i > every / 2);
                return (
                  <g onPointerEnter={() => point(i)}>
                    <rect x={x} y="8" width={bar} height={BOTTOM - 8} fill={series.total[i] === null ? "url(#p-unk)" : "transparent"} />
                    {all.map((layer) => {
                      const from = y(top);
                      const to = y((top += layer.costs[i] ?? 0));
                      if (from - to < 0.2) return null;
                      return (
                        <rect
                          x={x + (layer.free ? 0.5 : 0)}
                          y={to + (layer.free ? 0.5 : 0)}
                          width={Math.max(0.5, bar - (layer.free ? 1 : 0))}
                          height={Math.max(0.5, from - to - (layer.free ? 1.5 : 1))}
                          fill={layer.fill}
                          stroke={layer.free ? "var(--edge)" : undefined}
                          stroke-opacity=".6"
                        />
                      );
                    })}
                    {shown && (
                      <text class={last ? "ax d" : "ax"} x={x + bar / 2} y={BOTTOM + 16} text-anchor={i ? "middle" : "start"}>
                        {short(start, step, i ? starts[Math.max(0, i - every)] : undefined)}
                      </text>
                    )}
                  </g>
                );
              })}
            </g>
          );
        }}
      </Chart>
      <Legend all={all} currency={currency} />
    </div>
  );
}

function Legend({ all, currency }: { all: Layer[]; currency: string }) {
  const exact = all.reduce((a, layer) => a + layer.total, 0);
  const digits = exact >= 10_000 ? 0 : 2;
  const totals = addUp(
    all.map((layer) => layer.total),
    digits,
  );
  const shares = addUp(all.map((layer) => (exact ? (layer.total / exact) * 100 : 0)));
  const sum = totals.reduce((a, b) => a + b, 0);
  const rows = all.map((layer, i) => ({ ...layer, total: totals[i]!, share: shares[i]! })).reverse(); // as they are stacked
  return (
    <Table
      class="mini lgt"
      caption="What each colour cost"
      rows={rows}
      columns={[
        {
          cell: (row) => (
            <svg width="11" height="11" aria-hidden="true">
              <rect x=".5" y=".5" width="10" height="10" rx="2" fill={row.fill} stroke={row.free ? "var(--edge)" : undefined} />
            </svg>
          ),
          sum: "",
        },
        { class: "wrapped", cell: (row) => row.name, sum: "Sum" },
        { right: true, cell: (row) => money(row.total, currency, true, digits), sum: money(sum, currency, true, digits) },
        { right: true, class: "q", cell: (row) => `${row.share.toFixed(1)}\u00a0%`, sum: "" },
      ]}
    />
  );
}
