// The evidence as numbers: its scale, and the runs of work, quiet and missing samples. Pure; drawn by parts/Evidence.tsx.
const EVEN = 0.01;
const TOP = Math.asinh(1 / EVEN);
/** 0..1 on the asinh scale. */
export const level = (ratio: number) => Math.asinh(Math.max(0, Math.min(1, ratio)) / EVEN) / TOP;

/** Runs of samples that are alike: at work, below the threshold, not measured. */
export function runs(values: (number | null)[], threshold: number): { kind: "work" | "low" | "gap"; from: number; to: number }[] {
  const kind = (v: number | null) => (v === null ? "gap" : v >= threshold ? "work" : "low") as "work" | "low" | "gap";
  const all: { kind: "work" | "low" | "gap"; from: number; to: number }[] = [];
  values.forEach((v, i) => {
    const last = all[all.length - 1];
    if (last?.kind === kind(v)) last.to = i + 1;
    else all.push({ kind: kind(v), from: i, to: i + 1 });
  });
  return all;
}
