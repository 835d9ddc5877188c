// Where everything of the field lies: parcels (pools), plots (nodes), cells (GPUs), strips (MIG instances, slices), and the blocks that one
// workload forms on one node. Pure geometry in pixels; drawing is in parts/Field.tsx. A node's cells never leave its plot, shares fill a cell.
import type { FieldNode, Gpu, Pool, Slot } from "./api";

export type Box = { x: number; y: number; w: number; h: number };
export type Strip = Box & { slot: Slot; node: string; gpu: number; whole: boolean; column: number; row: number };
export type Plot = Box & { node: FieldNode; strips: Strip[]; blocks: Block[] };
export type Parcel = Box & { pool: Pool; plots: Plot[] };
/** Cells of one workload on one node that touch each other. */
export type Block = { strips: Strip[]; slot: Slot; badge: { x: number; y: number } | null };
export type Scale = {
  cell: number;
  gap: number;
  badges: boolean;
  canvas: boolean;
  perNode: boolean;
  labels: boolean;
  pad: number;
  between: number;
};
export type Laid = { parcels: Parcel[]; width: number; height: number; legend: Box | null; scale: Scale };

const SCALES: { most: number; cell: number; gap: number }[] = [
  { most: 160, cell: 32, gap: 2 },
  { most: 400, cell: 24, gap: 2 },
  { most: 1000, cell: 16, gap: 2 },
  { most: 5000, cell: 8, gap: 1 },
];

export function scaleFor(gpus: number, narrow: boolean): Scale {
  const found = SCALES.find((s) => gpus <= s.most);
  const { cell, gap } = found ?? { cell: 12, gap: 1 };
  const size = narrow ? Math.min(18, cell) : cell;
  return {
    cell: size,
    gap,
    badges: cell >= 24,
    canvas: cell <= 12,
    perNode: !found,
    labels: cell >= 16,
    pad: narrow ? 10 : 12,
    between: narrow ? 8 : cell >= 24 ? 14 : 8,
  };
}

export const countGpus = (pools: Pool[]) => pools.reduce((sum, pool) => sum + pool.nodes.reduce((n, node) => n + node.gpus.length, 0), 0);

const columnsOf = (gpus: number) => (gpus <= 2 ? Math.max(1, gpus) : gpus <= 4 ? 2 : gpus <= 8 ? 4 : 8);
const plotWidth = (node: FieldNode, { cell, gap }: Scale) => {
  const columns = columnsOf(node.gpus.length);
  return columns * cell + (columns - 1) * gap;
};
const plotHeight = (node: FieldNode, { cell, gap }: Scale) => {
  const rows = Math.max(1, Math.ceil(node.gpus.length / columnsOf(node.gpus.length)));
  return rows * cell + (rows - 1) * gap;
};

/** The strips of one cell: one for a whole GPU, upright by compute slices for MIG, level for slices and MPS. */
function stripsOf(gpu: Gpu, node: FieldNode, cell: Box, column: number, row: number): Strip[] {
  const base = { node: node.name, gpu: gpu.index, column, row };
  const sole = gpu.slots.length === 1 ? gpu.slots[0]! : null;
  if (sole && (sole.size ?? 7) >= 7) return [{ ...cell, ...base, slot: sole, whole: true }];
  if (node.layout === "mig") return migStrips(gpu, cell, base);
  const n = gpu.slots.length;
  const h = (cell.h - (n - 1)) / n;
  return gpu.slots.map((slot, i) => ({ x: cell.x, y: cell.y + i * (h + 1), w: cell.w, h, ...base, slot, whole: false }));
}

function migStrips(gpu: Gpu, cell: Box, base: { node: string; gpu: number; column: number; row: number }): Strip[] {
  const sizes = gpu.slots.map((slot) => slot.size ?? slot.share * 7);
  const all = Math.max(
    7,
    sizes.reduce((a, b) => a + b, 0),
  );
  const room = cell.w - (gpu.slots.length - 1);
  let x = cell.x;
  return gpu.slots.map((slot, i) => {
    const strip = { x, y: cell.y, w: (room * sizes[i]!) / all, h: cell.h, ...base, slot, whole: false };
    x += strip.w + 1;
    return strip;
  });
}

const sameHolder = (a: Slot, b: Slot) => a.holder !== null && a.holder.uid === b.holder?.uid && a.state === b.state;

/** Join whole cells of one workload that are neighbours; every strip is a block of its own. */
export function blocksOf(strips: Strip[], badges: boolean): Block[] {
  const blocks: Block[] = [];
  const seen = new Set<Strip>();
  for (const strip of strips) {
    if (seen.has(strip)) continue;
    const block = [strip];
    seen.add(strip);
    for (const one of block) {
      for (const other of strips) {
        const near = Math.abs(one.column - other.column) + Math.abs(one.row - other.row) === 1;
        if (near && one.whole && other.whole && !seen.has(other) && sameHolder(one.slot, other.slot)) {
          seen.add(other);
          block.push(other);
        }
      }
    }
    blocks.push({ strips: block, slot: strip.slot, badge: badges && strip.whole ? middle(block) : null });
  }
  return blocks;
}

/** Where the badge goes: the middle of the block's widest row, so that it never lies outside the block. */
function middle(strips: Strip[]): { x: number; y: number } {
  const rows = [...new Set(strips.map((s) => s.row))].map((row) => strips.filter((s) => s.row === row));
  const row = rows.reduce((best, next) => (next.length > best.length ? next : best));
  const left = Math.min(...row.map((s) => s.x));
  const right = Math.max(...row.map((s) => s.x + s.w));
  return { x: (left + right) / 2, y: row[0]!.y + row[0]!.h / 2 };
}

function plotAt(node: FieldNode, x: number, y: number, scale: Scale): Plot {
  const { cell, gap } = scale;
  const columns = columnsOf(node.gpus.length);
  const strips = node.gpus.flatMap((gpu, i) => {
    const column = i % columns;
    const row = Math.floor(i / columns);
    const at = { x: x + column * (cell + gap), y: y + row * (cell + gap), w: cell, h: cell };
    return stripsOf(gpu, node, at, column, row);
  });
  return {
    x,
    y,
    w: plotWidth(node, scale),
    h: plotHeight(node, scale),
    node,
    strips,
    blocks: scale.canvas ? [] : blocksOf(strips, scale.badges),
  };
}

const headOf = (scale: Scale, narrow: boolean) => (narrow ? 26 : 32) + (scale.labels ? 18 : 0);

/** One parcel with its plots in lines of at most `width`; when `stretch` is given, the plots are spread over that width. */
function parcelAt(pool: Pool, x: number, y: number, width: number, scale: Scale, narrow: boolean, stretch: number | null): Parcel {
  const { pad, between } = scale;
  const head = headOf(scale, narrow);
  const room = (stretch ?? width) - 2 * pad;
  const natural = pool.nodes.reduce((sum, node) => sum + plotWidth(node, scale) + between, -between);
  const spread =
    stretch !== null && natural <= room && pool.nodes.length > 1
      ? between + Math.min(10, (room - natural) / (pool.nodes.length - 1))
      : between;
  const plots: Plot[] = [];
  let px = x + pad;
  let py = y + head;
  let lineHeight = 0;
  let right = 0;
  for (const node of pool.nodes) {
    const w = plotWidth(node, scale);
    if (px > x + pad && px + w > x + pad + room + 0.5) {
      px = x + pad;
      py += lineHeight + (scale.labels ? 24 : between);
      lineHeight = 0;
    }
    plots.push(plotAt(node, px, py, scale));
    lineHeight = Math.max(lineHeight, plotHeight(node, scale));
    right = Math.max(right, px + w);
    px += w + spread;
  }
  const title = narrow ? 0 : pool.name.length * 6.6 + 60;
  return { x, y, w: stretch ?? Math.max(right - x + pad, title), h: py + lineHeight + pad - y, pool, plots };
}

const LEGEND = { w: 218, h: 128 };

/** Lay the pools out in lines; a line's parcels are equally high, and the last one of a full line reaches its end. */
export function laid(pools: Pool[], width: number, narrow: boolean): Laid {
  const total = countGpus(pools);
  const scale = scaleFor(total, narrow);
  const drawn = scale.perNode ? pools.map(perNode) : pools;
  const gap = narrow ? 10 : 14;
  const parcels: Parcel[] = [];
  let line: Parcel[] = [];
  let x = 0;
  let y = 0;
  const end = (last: boolean) => {
    const h = Math.max(...line.map((p) => p.h), 0);
    const alone = line[line.length - 1]!;
    const rest = width - (alone.x + alone.w);
    if (narrow || (rest > 0 && (rest < 60 || !last)))
      line[line.length - 1] = parcelAt(alone.pool, alone.x, alone.y, alone.w + rest, scale, narrow, alone.w + rest);
    parcels.push(...line.map((p) => ({ ...p, h: Math.max(h, p.h) })));
    y += h + gap;
    x = 0;
    line = [];
  };
  for (const pool of drawn) {
    let parcel = parcelAt(pool, x, y, width - x, scale, narrow, null);
    const oneLine = parcel.plots.every((p) => p.y === parcel.plots[0]?.y);
    if (line.length && (narrow || !oneLine || parcel.x + parcel.w > width + 0.5)) {
      end(false);
      parcel = parcelAt(pool, 0, y, width, scale, narrow, null);
    }
    line.push(parcel);
    x = parcel.x + parcel.w + gap;
  }
  let legend: Box | null = null;
  if (line.length) {
    const lineY = y;
    const fits = !narrow && width - x >= LEGEND.w;
    const left = x;
    end(true);
    if (!narrow) legend = fits ? { x: left, y: lineY, ...LEGEND } : null;
  }
  return { parcels, width, height: Math.max(0, y - gap), legend, scale };
}

/** Beyond 5,000 GPUs: one cell a node, split by state. */
export function perNode(pool: Pool): Pool {
  const cells: Gpu[] = pool.nodes.map((node, index) => ({ index, uuid: null, slots: byState(node) }));
  return { ...pool, nodes: [{ name: pool.name, ready: null, layout: "slices", activity: null, trouble: null, gpus: cells }] };
}

function byState(node: FieldNode): Slot[] {
  const shares = new Map<Slot["state"], number>();
  for (const gpu of node.gpus) for (const slot of gpu.slots) shares.set(slot.state, (shares.get(slot.state) ?? 0) + slot.share);
  return [...shares].map(([state, share]) => ({
    share,
    start: null,
    size: null,
    profile: null,
    state,
    holder: null,
    activity: node.activity,
    freedBy: null,
    label: `${node.name}, ${share.toFixed(1)} GPUs ${state}`,
  }));
}

// ---- arranging by something else than the pool

const NOBODY = "free";
const SEVERAL = "shared by several teams";

const teamOf = (gpu: Gpu): string => {
  const teams = new Set(gpu.slots.map((slot) => slot.holder?.namespace).filter((n): n is string => !!n));
  return teams.size === 0 ? NOBODY : teams.size === 1 ? [...teams][0]! : SEVERAL;
};

/** The same GPUs in other parcels. A cell stays one GPU, so everything still adds up. */
export function arrangedBy(pools: Pool[], by: "pool" | "team" | "model"): Pool[] {
  if (by === "pool") return pools;
  const parcels = new Map<string, Pool>();
  for (const pool of pools) {
    for (const node of pool.nodes) {
      const byName = new Map<string, Gpu[]>();
      for (const gpu of node.gpus) {
        const name = by === "model" ? (pool.model ?? "model not known") : teamOf(gpu);
        byName.set(name, [...(byName.get(name) ?? []), gpu]);
      }
      for (const [name, gpus] of byName) {
        const parcel = parcels.get(name) ?? { name, model: null, perGpuHour: null, nodes: [] };
        parcel.nodes.push({ ...node, gpus });
        parcels.set(name, parcel);
      }
    }
  }
  const rank = (name: string) => (name === NOBODY ? 2 : name === SEVERAL ? 1 : 0);
  return [...parcels.values()].sort((a, b) => rank(a.name) - rank(b.name) || countGpus([b]) - countGpus([a]));
}

// ---- outlines

/** One path for some cells of a grid that belong together: each cell rounded, seams between neighbours filled, grown by `grow`. */
export function joined(strips: Strip[], gap: number, grow: number): string {
  const at = new Map(strips.map((s) => [`${s.column},${s.row}`, s]));
  const has = (s: Strip, dx: number, dy: number) => at.has(`${s.column + dx},${s.row + dy}`);
  const parts: string[] = [];
  for (const s of strips) {
    const x = s.x - grow,
      y = s.y - grow,
      w = s.w + 2 * grow,
      h = s.h + 2 * grow;
    parts.push(rounded(x, y, w, h, Math.min(3 + grow / 2, w / 2, h / 2)));
    const reach = gap - 2 * grow + 8;
    const right = s.whole && has(s, 1, 0),
      down = s.whole && has(s, 0, 1);
    if (right) parts.push(square(x + w - 4, y, reach, h));
    if (down) parts.push(square(x, y + h - 4, w, reach));
    if (right && down && has(s, 1, 1)) parts.push(square(x + w - 4, y + h - 4, reach, reach));
  }
  return parts.join("");
}

const n = (value: number) => String(Math.round(value * 100) / 100);
const square = (x: number, y: number, w: number, h: number) => `M${n(x)} ${n(y)}h${n(w)}v${n(h)}h${n(-w)}z`;
function rounded(x: number, y: number, w: number, h: number, r: number): string {
  return `M${n(x + r)} ${n(y)}h${n(w - 2 * r)}a${n(r)} ${n(r)} 0 0 1 ${n(r)} ${n(r)}v${n(h - 2 * r)}a${n(r)} ${n(r)} 0 0 1 ${n(-r)} ${n(r)}h${n(2 * r - w)}a${n(r)} ${n(r)} 0 0 1 ${n(-r)} ${n(-r)}v${n(2 * r - h)}a${n(r)} ${n(r)} 0 0 1 ${n(r)} ${n(-r)}z`;
}

/** The thin lines between the cells of one block. */
export function seams(block: Block, gap: number): string {
  const at = new Map(block.strips.map((s) => [`${s.column},${s.row}`, s]));
  return block.strips
    .map((s) => {
      const right = at.has(`${s.column + 1},${s.row}`) ? `M${n(s.x + s.w + gap / 2)} ${n(s.y + 3)}v${n(s.h - 6)}` : "";
      const down = at.has(`${s.column},${s.row + 1}`) ? `M${n(s.x + 3)} ${n(s.y + s.h + gap / 2)}h${n(s.w - 6)}` : "";
      return right + down;
    })
    .join("");
}
