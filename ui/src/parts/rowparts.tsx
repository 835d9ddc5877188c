// What a row shows of a workload: the cells it holds, its last day as a strip, the time until the next step, the keep buttons.
import type { Row, State } from "../api";
import { keep } from "../acts";
import { at } from "../clock";
import { dialog } from "../dialogs";
import { localised, modelName, restSize, shortModel, time, until, utc } from "../words";
import { fillOf, wedge } from "./Glyph";

const MOST = 6;
const FRACTION: Record<number, string> = { 0.25: "¼", 0.5: "½", 0.75: "¾" };

/** One square a GPU (at most six), an upright strip for a MIG instance, a level one for a slice. */
export function Cells({ row }: { row: Row }) {
  const state: State = row.group === "paused" ? "paused" : row.state;
  const held = row.rest?.gpus ?? row.gpus;
  const fill = fillOf(state);
  const whole = !row.profile && held >= 0.99;
  const n = Math.min(MOST, whole ? Math.round(held) : Math.max(1, row.instances));
  const model = [...new Set(row.models.map(modelName))].join(", ");
  const words = row.profile
    ? `${row.instances > 1 ? `${row.instances} × ` : ""}${row.profile}`
    : whole || !held
      ? model
      : [shortModel(row.models[0] ?? null), `${FRACTION[Math.round(held * 100) / 100] ?? held.toFixed(2)} slice`]
          .filter(Boolean)
          .join(", ");
  return (
    <>
      <svg width={n * 13} height="12" aria-hidden="true">
        {Array.from({ length: n }, (_, i) =>
          whole ? (
            <rect x={i * 13} width="12" height="12" rx="2" fill={fill} />
          ) : row.profile ? (
            <rect x={i * 6} width="5" height="12" rx="1.5" fill={fill} />
          ) : (
            <>
              <rect width="12" height="3" rx="1" fill={fill} />
              <path d="M0 5.5h12M0 8.5h12M0 11.5h12" stroke="var(--edge)" stroke-opacity=".4" />
            </>
          ),
        )}
      </svg>
      <div class="q xs clip">{words || (row.rest ? "" : "model not known")}</div>
    </>
  );
}

const LETTER: Record<string, { y: number; h: number; fill: string }> = {
  b: { y: 0, h: 14, fill: "var(--busy)" },
  i: { y: 8, h: 6, fill: "url(#p-idle)" },
  k: { y: 8, h: 6, fill: "url(#p-kept)" },
  u: { y: 0, h: 14, fill: "url(#p-unk)" },
  p: { y: 11, h: 3, fill: "var(--rest)" },
  "-": { y: 12, h: 1, fill: "var(--rule)" },
};
const NAMES: Record<string, string> = { b: "busy", i: "idle", k: "kept", u: "not measured", p: "paused", "-": "not there" };

/** The last 24 hours, half an hour a letter: busy tall, idle low, not measured hatched. Runs are drawn as one. */
export function Strip({ strip }: { strip: string | null }) {
  if (!strip) return <span class="q xs">no history yet</span>;
  const runs: { letter: string; from: number; n: number }[] = [];
  [...strip].forEach((letter, i) => {
    const last = runs[runs.length - 1];
    if (last?.letter === letter) last.n += 1;
    else runs.push({ letter, from: i, n: 1 });
  });
  const wide = 136 / strip.length;
  const words = runs
    .slice(-3)
    .map((r) => `${NAMES[r.letter] ?? "not known"} ${r.n / 2} h`)
    .join(", then ");
  return (
    <svg
      class="strip"
      width="136"
      height="14"
      viewBox="0 0 136 14"
      preserveAspectRatio="none"
      role="img"
      aria-label={`Last 24 hours, at the end: ${words}`}
    >
      {runs.map((r) => {
        const s = LETTER[r.letter];
        return s && <rect x={r.from * wide} y={s.y} width={r.n * wide} height={s.h} fill={s.fill} />;
      })}
    </svg>
  );
}

export const Wedge = ({ gone, size = 14 }: { gone: number; size?: number }) => (
  <svg class="wedge" width={size} height={size} viewBox="-7 -7 14 14" aria-hidden="true">
    <circle r="6.2" fill="var(--idle-wash)" stroke="var(--idle-row)" stroke-width="1.2" />
    <path d={wedge(gone, 6.2)} fill="var(--idle-wedge)" />
  </svg>
);

export const goneRatio = (row: Row, now: number) =>
  row.toldAt && row.next?.at ? Math.min(1, Math.max(0, (now - at(row.toldAt)) / (at(row.next.at) - at(row.toldAt)))) : 0;
const STEP = { notice: "Notice", pause: "Pause", keepEnds: "Keep ends", freezeEnds: "Freeze ends" };

/** What comes next for this workload, and why, in two lines. */
export function NextStep({ row, now }: { row: Row; now: number }) {
  if (row.rest)
    return (
      <>
        {row.state === "resuming" ? (
          <b>Resuming</b>
        ) : (
          <>
            <b>Resting since {time(at(row.rest.at), now)}</b>
          </>
        )}
        <div class="q xs clip">
          by {row.rest.by}, {restSize(row.rest.size)}
        </div>
      </>
    );
  if (row.keep)
    return (
      <>
        <b title={utc(at(row.keep.until))}>Kept until {time(at(row.keep.until), now)}</b>
        <div class="q xs clip">
          {row.keep.by}
          {row.keep.reason && `, “${row.keep.reason}”`}
        </div>
      </>
    );
  if (row.state === "left")
    return (
      <>
        <span class="m">Reported only</span>
        <div class="q xs clip">{localised(row.skipBecause ?? row.because, now)}</div>
      </>
    );
  if (!row.next)
    return (
      <>
        <span class="m">{row.state === "unknown" ? "Cannot tell" : "Nothing to do"}</span>
        <div class="q xs clip">{localised(row.because, now)}</div>
      </>
    );
  const when = row.next.at ? at(row.next.at) : null;
  const over = when !== null && when <= now && row.next.type === "pause";
  return (
    <>
      {row.next.type === "pause" && <Wedge gone={goneRatio(row, now)} />}
      {over ? (
        <b>Looking once more</b>
      ) : (
        <>
          <b title={when ? utc(when) : undefined}>
            {STEP[row.next.type]} {when ? time(when, now) : "next cycle"}
          </b>
          {when && <span class="q"> {until(when, now)}</span>}
        </>
      )}
      <div class="q xs clip">
        {row.toldTo.length
          ? `told ${row.toldTo[0]}${row.toldTo.length > 1 ? ` +${row.toldTo.length - 1}` : ""}`
          : localised(row.next.because, now)}
      </div>
    </>
  );
}

const shared = (rows: Row[]) => rows.map((r) => r.keepHours).reduce((a, b) => a.filter((h) => b.includes(h)));

/** Keep for one of the times that all their policies offer, or for another. */
export const KeepRow = ({ rows, reason = "", small = true }: { rows: Row[]; reason?: string; small?: boolean }) => (
  <span class={small ? "seg sm" : "seg"} role="group" aria-label={`Keep ${rows.length === 1 ? rows[0]!.name : `${rows.length} workloads`}`}>
    <span class="lab" aria-hidden="true">
      Keep
    </span>
    {shared(rows).map((h) => (
      <button type="button" onClick={() => void keep(rows, { hours: h }, reason)}>
        {h}&nbsp;h
      </button>
    ))}
    <button
      type="button"
      aria-label={small ? "Keep for another time" : undefined}
      onClick={() => dialog.put({ type: "keep", rows, maxHours: Math.min(...rows.map((r) => r.maxKeepHours)), extraPause: false })}
    >
      {small ? "…" : "Other…"}
    </button>
  </span>
);
