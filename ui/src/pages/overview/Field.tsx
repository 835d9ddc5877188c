// The field: every GPU of the cluster by what it does. SVG up to 1,000 GPUs, canvas beyond. Pointing at a workload or walking with the
// arrow keys outlines it on all its nodes and says who it is; the geometry comes from field.ts.
import { useMemo, useRef, useState } from "preact/hooks";
import type { Field as FieldAnswer, Pool, Ref, Row, Slot } from "../../api";
import { type Block, joined, laid, type Parcel, type Plot, seams, type Strip, arrangedBy, countGpus } from "../../field";
import { useNarrow, useWidth } from "../../hooks";
import { money, percent, plural } from "../../words";
import { FieldCanvas } from "./FieldCanvas";
import { fillOf, strokeOf, wedge } from "../../parts/Glyph";

export type Arrange = "pool" | "team" | "model";
export type Show = "verdict" | "activity" | "cost";
export type Only = "busy" | "idle" | "kept" | "unknown" | "free" | null;
export const groupOf = (state: Slot["state"]): Exclude<Only, null> =>
  state === "told" || state === "left" ? "idle" : state === "freed" ? "free" : state;

/** How far the time between notice and pause has gone, per workload. */
export type Gone = (holder: Ref | null) => number;
type Props = {
  field: FieldAnswer;
  arrange: Arrange;
  show: Show;
  only: Only;
  currency: string;
  picked: string | null;
  pick: (slot: Slot, at: string) => void;
  open: (ref: Ref) => void;
  gone: Gone;
};

const WEDGE = 5.4;
const line = { stroke: "var(--ink)", "stroke-width": 1.5, "stroke-linecap": "round", fill: "none" } as const;
const MARKS = {
  idle: <circle r="3" {...line} stroke-linecap="butt" stroke-width={1.3} stroke-dasharray="1.8 1.4" />,
  kept: (
    <>
      <path d="M-2.4-4.6v9.2" {...line} stroke-width={1.4} />
      <path d="M-1.8-4h5.4l-1.6 2.1 1.6 2.1h-5.4z" fill="var(--ink)" />
    </>
  ),
  left: <path d="M-4 0h8" {...line} />,
  unknown: (
    <>
      <path d="M-2.1-1.9a2.1 2.1 0 1 1 3 1.9C.2.4 0 .8 0 1.5" {...line} />
      <circle cy="4" r=".95" fill="var(--ink)" />
    </>
  ),
};
export function Badge({ state, gone = 0.15 }: { state: Slot["state"]; gone?: number }) {
  const mark =
    state === "told" ? (
      <>
        <circle r={WEDGE} {...line} stroke-width={1} />
        <path d={wedge(gone, WEDGE)} fill="var(--ink)" />
      </>
    ) : (
      MARKS[state as keyof typeof MARKS]
    );
  return mark ? (
    <>
      <circle r="8" fill="var(--paper)" stroke="var(--ink)" stroke-opacity=".25" stroke-width=".8" />
      {mark}
    </>
  ) : null;
}

function fill(slot: Slot, show: Show, price: number | null, dearest: number): { fill: string; opacity?: number } {
  if (show === "verdict" || !slot.holder) return { fill: fillOf(slot.state, slot.activity) };
  if (show === "activity")
    return slot.activity === null ? { fill: "url(#p-unk)" } : { fill: "var(--busy-row)", opacity: 0.12 + 0.88 * slot.activity };
  return price === null ? { fill: "url(#p-unk)" } : { fill: "var(--c1)", opacity: 0.15 + (0.85 * price) / dearest };
}

function BlockShape({
  block,
  gap,
  paint,
  picked,
}: {
  block: Block;
  gap: number;
  paint: { fill: string; opacity?: number };
  picked: boolean;
}) {
  const { slot, strips } = block;
  const first = strips[0]!;
  const border = strokeOf(slot.state);
  const disc = slot.state === "freed" && (
    <circle
      cx={first.x + first.w / 2}
      cy={first.y + first.h / 2}
      r={Math.min(4.5, first.w / 4 + 0.3, first.h / 2 - 1)}
      fill="var(--rest)"
      stroke="var(--rest-text)"
    />
  );
  if (!slot.holder) {
    return (
      <>
        <rect
          x={first.x + 0.5}
          y={first.y + 0.5}
          width={Math.max(0.5, first.w - 1)}
          height={Math.max(0.5, first.h - 1)}
          rx={first.whole ? 3 : 1.5}
          fill={first.whole && !slot.profile ? "url(#p-free)" : "none"}
          stroke="var(--edge)"
          stroke-opacity=".55"
        />
        {disc}
      </>
    );
  }
  const thin = !first.whole;
  return (
    <>
      {picked && <path d={joined(strips, gap, 2.4)} fill="var(--ink)" />}
      {picked && <path d={joined(strips, gap, 0.9)} fill="var(--soil)" />}
      {border && <path d={joined(strips, gap, 0)} fill={border} />}
      {paint.opacity !== undefined && <path d={joined(strips, gap, 0)} fill="var(--raised)" />}
      <path d={joined(strips, gap, border ? (thin ? -0.8 : -1) : 0)} fill={paint.fill} opacity={paint.opacity} />
      <path d={seams(block, gap)} stroke="var(--soil)" stroke-opacity=".7" />
    </>
  );
}

/** Lines in a free cell of a shared node: how it is cut. */
function FreeCuts({ plot }: { plot: Plot }) {
  const cells = new Map<number, Strip[]>();
  for (const s of plot.strips) if (!s.whole) cells.set(s.gpu, [...(cells.get(s.gpu) ?? []), s]);
  const free = [...cells.values()].filter((strips) => strips.every((s) => s.slot.state === "free"));
  return (
    <>
      {free.map((strips) => {
        const a = strips[0]!,
          z = strips[strips.length - 1]!;
        const w = z.x + z.w - a.x,
          h = z.y + z.h - a.y;
        const cuts = strips
          .slice(1)
          .map((s) => (s.x > a.x ? `M${s.x - 0.5} ${a.y + 3}v${h - 6}` : `M${a.x + 3} ${s.y - 0.5}h${w - 6}`))
          .join("");
        return (
          <g>
            <rect x={a.x} y={a.y} width={w} height={h} fill="var(--soil)" />
            <rect x={a.x + 0.5} y={a.y + 0.5} width={w - 1} height={h - 1} rx="3" fill="none" stroke="var(--edge)" stroke-opacity=".55" />
            <path d={cuts} stroke="var(--edge)" stroke-opacity=".4" />
          </g>
        );
      })}
    </>
  );
}

type Walk = { focused: string | null; setFocused: (key: string) => void };
const keyOf = (s: Strip) => `${s.node}/${s.gpu}/${s.x}/${s.y}`;

function PlotShape({
  plot,
  props,
  dearest,
  price,
  walk,
  small,
}: {
  plot: Plot;
  props: Props;
  dearest: number;
  price: number | null;
  walk: Walk;
  small: boolean;
}) {
  const { show, only, picked, pick, open } = props;
  const { node } = plot;
  const faded = (slot: Slot) => only !== null && groupOf(slot.state) !== only;
  const order = [...plot.blocks].sort((a, b) => Number(a.slot.holder?.uid === picked) - Number(b.slot.holder?.uid === picked));
  return (
    <g role="row">
      <g role="presentation" aria-hidden="true">
        {!props.field.pools.length ? null : (
          <text x={plot.x} y={plot.y - 7} class={small ? "ax k tiny" : "ax k"}>
            {node.name}
          </text>
        )}
        {!small && plot.w > 100 && (
          <text x={plot.x + plot.w} y={plot.y - 7} text-anchor="end" class={node.trouble ? "ax trouble" : "ax"}>
            {node.trouble ?? (node.activity === null ? "" : percent(node.activity))}
          </text>
        )}
        {order.map((block) => (
          <g class={faded(block.slot) ? "faded" : undefined}>
            <BlockShape
              block={block}
              gap={2}
              paint={fill(block.slot, show, price, dearest)}
              picked={picked !== null && block.slot.holder?.uid === picked}
            />
          </g>
        ))}
        <FreeCuts plot={plot} />
        {show === "verdict" &&
          plot.blocks.map(
            (b) =>
              b.badge &&
              b.strips[0]!.w >= 20 &&
              !faded(b.slot) &&
              b.slot.holder && (
                <g transform={`translate(${b.badge.x},${b.badge.y})`}>
                  <Badge state={b.slot.state} gone={props.gone(b.slot.holder)} />
                </g>
              ),
          )}
      </g>
      {plot.strips.map((s) => (
        <rect
          role="gridcell"
          aria-label={s.slot.label}
          x={s.x}
          y={s.y}
          width={s.w}
          height={s.h}
          class="cell"
          data-key={keyOf(s)}
          tabindex={walk.focused === keyOf(s) ? 0 : -1}
          onPointerEnter={() => s.slot.holder && pick(s.slot, s.node)}
          onFocus={() => {
            walk.setFocused(keyOf(s));
            pick(s.slot, s.node);
          }}
          onClick={() => s.slot.holder && open(s.slot.holder)}
          onKeyDown={(e) => e.key === "Enter" && s.slot.holder && open(s.slot.holder)}
        />
      ))}
    </g>
  );
}

function subtitle(pool: Pool, currency: string, narrow: boolean): string {
  const parts = [pool.model !== pool.name && pool.model, plural(countGpus([pool]), "GPU")].filter(Boolean);
  if (pool.perGpuHour !== null && !narrow) parts.push(`${money(pool.perGpuHour, currency)}/h each`);
  return parts.join(" · ");
}

const ParcelShape = ({
  parcel,
  props,
  dearest,
  walk,
  narrow,
  labels,
}: {
  parcel: Parcel;
  props: Props;
  dearest: number;
  walk: Walk;
  narrow: boolean;
  labels: boolean;
}) => {
  const x = parcel.x + (narrow ? 10 : 12);
  const titleWidth = parcel.pool.name.length * 6.7 + 12;
  const sub = subtitle(parcel.pool, props.currency, narrow);
  const fits = titleWidth + sub.length * 5.9 < parcel.w - 20;
  const short = parcel.pool.model ?? "";
  return (
    <g role="rowgroup" aria-label={`${parcel.pool.name}, ${sub}`}>
      <g role="presentation" aria-hidden="true">
        <rect x={parcel.x} y={parcel.y} width={parcel.w} height={parcel.h} rx="8" fill="var(--soil)" />
        <text x={x} y={parcel.y + (narrow ? 19 : 23)} class="ax d title">
          {parcel.pool.name}
          <tspan class="ax sub" dx="8">
            {fits ? sub : titleWidth + short.length * 5.9 < parcel.w - 20 ? short : ""}
          </tspan>
        </text>
      </g>
      {parcel.plots.map((plot) => (
        <PlotShape plot={plot} props={props} dearest={dearest} price={parcel.pool.perGpuHour} walk={walk} small={narrow || !labels} />
      ))}
    </g>
  );
};

const Legend = ({ x, y }: { x: number; y: number }) => (
  <g aria-hidden="true" transform={`translate(${x + 8},${y})`}>
    <rect y="8" width="35" height="22" rx="3" fill="url(#p-busy)" />
    <path d="M17.5 11v16" stroke="var(--paper)" stroke-opacity=".7" />
    <text x="46" y="18" class="ax k">
      One cell is one GPU;
    </text>
    <text x="46" y="31" class="ax">
      joined cells, one workload
    </text>
    {["p-busy", "p-idle", "p-busy", "p-unk"].map((p, i) => (
      <rect x={i * 5.75} y="41" width="4.9" height="22" rx="1.5" fill={`url(#${p})`} />
    ))}
    <text x="46" y="56" class="ax k">
      upright strips: MIG
    </text>
    {["p-busy", "p-idle", "p-busy", "p-kept"].map((p, i) => (
      <rect y={71 + i * 5.75} width="22" height="4.9" rx="1.5" fill={`url(#${p})`} />
    ))}
    <text x="46" y="86" class="ax k">
      level strips: time slices
    </text>
    <rect x=".5" y="101.5" width="21" height="21" rx="3" fill="none" stroke="var(--edge)" stroke-opacity=".55" />
    <circle cx="11" cy="112" r="4.5" fill="var(--rest)" stroke="var(--rest-text)" />
    <text x="46" y="116" class="ax k">
      freed by a pause, not yet taken
    </text>
  </g>
);

/** The cell that lies nearest in the direction of an arrow key. */
function neighbour(cells: SVGRectElement[], from: SVGRectElement, key: string): SVGRectElement | null {
  const a = from.getBoundingClientRect();
  const [dx, dy] = { ArrowRight: [1, 0], ArrowLeft: [-1, 0], ArrowDown: [0, 1], ArrowUp: [0, -1] }[key]!;
  const middle = (r: DOMRect) => [r.x + r.width / 2, r.y + r.height / 2] as const;
  const [ax, ay] = middle(a);
  let best: SVGRectElement | null = null;
  let least = Infinity;
  for (const cell of cells) {
    const [x, y] = middle(cell.getBoundingClientRect());
    const along = (x - ax) * dx! + (y - ay) * dy!;
    const across = Math.abs((x - ax) * dy!) + Math.abs((y - ay) * dx!);
    const distance = along + 3 * across;
    if (along > 1 && distance < least) [best, least] = [cell, distance];
  }
  return best;
}

export function Field(props: Props) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const narrow = useNarrow();
  const svg = useRef<SVGSVGElement>(null);
  const pools = useMemo(() => arrangedBy(props.field.pools, props.arrange), [props.field, props.arrange]);
  const map = useMemo(() => (width ? laid(pools, width, narrow) : null), [pools, width, narrow]);
  const [chosen, setFocused] = useState<string | null>(null);
  const first = map?.parcels[0]?.plots[0]?.strips[0];
  const exists = chosen && map?.parcels.some((p) => p.plots.some((q) => q.strips.some((s) => keyOf(s) === chosen)));
  const walk: Walk = { focused: exists ? chosen : first ? keyOf(first) : null, setFocused };
  const dearest = Math.max(0.01, ...props.field.pools.map((p) => p.perGpuHour ?? 0));
  const onKey = (event: KeyboardEvent) => {
    if (!event.key.startsWith("Arrow") || !svg.current) return;
    event.preventDefault();
    neighbour([...svg.current.querySelectorAll<SVGRectElement>(".cell")], event.target as SVGRectElement, event.key)?.focus();
  };
  const total = countGpus(props.field.pools);
  const label = `The field: ${plural(total, "GPU")} by state. Walk it with the arrow keys.`;
  return (
    <div ref={ref} class="field">
      {map && map.scale.canvas && <FieldCanvas map={map} label={label} only={props.only} pick={props.pick} open={props.open} />}
      {map && !map.scale.canvas && (
        <svg
          ref={svg}
          width={map.width}
          height={map.height}
          viewBox={`0 0 ${map.width} ${map.height}`}
          role="grid"
          aria-label={label}
          onKeyDown={onKey}
        >
          {map.parcels.map((parcel) => (
            <ParcelShape parcel={parcel} props={props} dearest={dearest} walk={walk} narrow={narrow} labels={map.scale.cell >= 24} />
          ))}
          {map.legend && <Legend x={map.legend.x} y={map.legend.y} />}
        </svg>
      )}
    </div>
  );
}

export const goneOf =
  (rows: Map<string, Row>, now: number): Gone =>
  (holder) => {
    const row = holder && rows.get(holder.uid);
    if (!row?.toldAt || !row.next?.at) return 0.15;
    const from = Date.parse(row.toldAt);
    return (now - from) / (Date.parse(row.next.at) - from);
  };
