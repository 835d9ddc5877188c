// What every chart is made of: a drawing as wide as its place with a sentence and a table for those who cannot see it, level lines with their
// figures, and the key of its fills. All SVG: patterns, themes and print follow by themselves.
import type { ComponentChildren } from "preact";
import { useWidth } from "../hooks";
import { level } from "../words";
import { Table } from "./Table";

export const triangle = (x: number, y: number) => `M${x} ${y}l4.4 7.6h-8.8z`;

/** A round number at or above `n` that divides into four. */
export function roundUp(n: number): number {
  const unit = 10 ** Math.floor(Math.log10(Math.max(1, n)));
  return [1, 2, 4, 6, 8, 10].map((f) => f * unit).find((v) => v >= n) ?? 10 * unit;
}

/** `says`: the chart in a sentence; `table`: the same facts in words, heads first. */
export function Chart({
  height,
  says,
  caption,
  table,
  over,
  children,
}: {
  height: number;
  says: string;
  caption: string;
  table: (string | number)[][];
  over?: ComponentChildren;
  children: (width: number) => ComponentChildren;
}) {
  const [ref, width] = useWidth<HTMLDivElement>();
  return (
    <div ref={ref} class="chart">
      {over}
      {width > 0 && (
        <svg width={width} height={height} role="img" aria-label={says}>
          {children(width)}
        </svg>
      )}
      <AsTable caption={caption} table={table} />
    </div>
  );
}

/** The same facts as a chart, for those who cannot see it. */
export function AsTable({ caption, table: [head, ...rows] }: { caption: string; table: (string | number)[][] }) {
  return (
    <details class="astable">
      <summary>as table</summary>
      <div class="scroll" tabindex={0} role="region" aria-label={caption}>
        <Table
          caption={caption}
          rows={rows}
          columns={head!.map((name, i) => ({ head: name, right: i > 0, class: "n", cell: (row: (string | number)[]) => row[i] }))}
        />
      </div>
    </details>
  );
}

type Scale = { most: number; left: number; right: number; y: (value: number) => number; say?: (value: number) => string };
/** Five level lines from 0 to `most`, each with its figure at the left. */
export const Levels = ({ most, left, right, y, say = (value) => level(value, most) }: Scale) => (
  <>
    {[0, 0.25, 0.5, 0.75, 1].map((f) => (
      <>
        <path class="grid" d={`M${left} ${y(f * most)}H${right}`} />
        <text class="ax" x={left - 8} y={y(f * most) + 4} text-anchor="end">
          {say(f * most)}
        </text>
      </>
    ))}
  </>
);

/** What the fills mean; no fill: the triangle of a regret. */
export const Fills = ({ of }: { of: [string | null, string][] }) => (
  <span class="key q xs">
    {of.map(([fill, words]) => (
      <span>
        <svg width="10" height="10" aria-hidden="true">
          {fill ? <rect width="10" height="10" rx="2" fill={fill} /> : <path d={triangle(5, 1)} fill="var(--bad)" />}
        </svg>
        {words}
      </span>
    ))}
  </span>
);
