// The field above 1,000 GPUs: plain fills on a canvas (hatching stays for what we cannot tell). One description for screen readers;
// pointing finds the cell below the pointer.
import { useEffect, useRef } from "preact/hooks";
import type { Ref, Slot } from "../../api";
import type { Laid, Strip } from "../../field";
import { colour, theme } from "../../theme";
import { count } from "../../words";
import { groupOf, type Only } from "./Field";

type Props = { map: Laid; label: string; only: Only; pick: (slot: Slot, at: string) => void; open: (ref: Ref) => void };
const TOKEN: Record<string, string> = { busy: "--busy", idle: "--idle", kept: "--kept", unknown: "--unk", free: "--sunken" };

function hatch(ctx: CanvasRenderingContext2D): CanvasPattern | string {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 4;
  const t = tile.getContext("2d")!;
  t.fillStyle = colour("--unk");
  t.fillRect(0, 0, 4, 4);
  t.strokeStyle = colour("--unk-row");
  t.beginPath();
  for (const d of [-4, 0, 4]) (t.moveTo(d, 4), t.lineTo(d + 4, 0));
  t.stroke();
  return ctx.createPattern(tile, "repeat") ?? colour("--unk");
}

function paint(canvas: HTMLCanvasElement, map: Laid, only: Only): void {
  const ratio = devicePixelRatio || 1;
  canvas.width = map.width * ratio;
  canvas.height = map.height * ratio;
  const ctx = canvas.getContext("2d")!;
  ctx.scale(ratio, ratio);
  const fills: Record<string, string | CanvasPattern> = Object.fromEntries(Object.entries(TOKEN).map(([k, token]) => [k, colour(token)]));
  fills["unknown"] = hatch(ctx);
  const soil = colour("--soil"),
    ink = colour("--ink"),
    rest = colour("--rest");
  ctx.font = "600 12px Inter";
  for (const parcel of map.parcels) {
    ctx.globalAlpha = 1;
    ctx.fillStyle = soil;
    ctx.beginPath();
    ctx.roundRect(parcel.x, parcel.y, parcel.w, parcel.h, 8);
    ctx.fill();
    ctx.fillStyle = ink;
    ctx.fillText(parcel.pool.name, parcel.x + map.scale.pad, parcel.y + 21);
    for (const plot of parcel.plots) {
      for (const s of plot.strips) {
        const group = groupOf(s.slot.state);
        ctx.globalAlpha = only && only !== group ? 0.2 : 1;
        ctx.fillStyle = s.slot.state === "freed" ? rest : fills[group]!;
        ctx.fillRect(s.x, s.y, s.w, s.h);
      }
    }
  }
}

function find(map: Laid, x: number, y: number): Strip | null {
  for (const parcel of map.parcels) {
    if (y < parcel.y || y > parcel.y + parcel.h || x < parcel.x || x > parcel.x + parcel.w) continue;
    for (const plot of parcel.plots) {
      if (x < plot.x || x > plot.x + plot.w || y < plot.y || y > plot.y + plot.h) continue;
      return plot.strips.find((s) => x >= s.x && x <= s.x + s.w && y >= s.y && y <= s.y + s.h) ?? null;
    }
  }
  return null;
}

export function FieldCanvas({ map, label, only, pick, open }: Props) {
  const ref = useRef<HTMLCanvasElement>(null);
  const shade = theme.use();
  useEffect(() => {
    if (ref.current) paint(ref.current, map, only);
  }, [map, only, shade]);
  const at = (event: MouseEvent) => {
    const box = ref.current!.getBoundingClientRect();
    return find(map, event.clientX - box.x, event.clientY - box.y);
  };
  const cells = map.parcels.reduce((n, p) => n + p.plots.reduce((m, q) => m + q.strips.length, 0), 0);
  return (
    <canvas
      ref={ref}
      role="img"
      aria-label={`${label} ${count(cells)} cells; the list of workloads has the same facts.`}
      style={{ width: `${map.width}px`, height: `${map.height}px` }}
      onPointerMove={(e) => {
        const s = at(e);
        if (s?.slot.holder) pick(s.slot, s.node);
      }}
      onClick={(e) => {
        const s = at(e);
        if (s?.slot.holder) open(s.slot.holder);
      }}
    />
  );
}
