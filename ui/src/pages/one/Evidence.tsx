// The evidence, GPU by GPU: one strip each on a shared axis. Work is tall and green, what lies below the threshold a thin line, what was not
// measured is hatched. The scale is even up to 1 % and logarithmic above, so that a single small kernel is seen.
import { useState } from "preact/hooks";
import type { Row, Timeline } from "../../api";
import { at } from "../../clock";
import { level, runs } from "./evidence";
import { useNarrow } from "../../hooks";
import { clock, covered, percent, span, time } from "../../words";
import { AsTable } from "../../parts/chart";

const HEIGHT = 46;
type Scale = { x: (t: number) => number; from: number; to: number; end: number };

const r = (n: number) => Math.round(n * 10) / 10;

function shapes(values: (number | null)[], timeline: Timeline, scale: Scale) {
  const y = (v: number) => r(HEIGHT - 1 - level(v) * (HEIGHT - 2));
  const xAt = (i: number) => r(scale.x(scale.from + i * timeline.stepSeconds * 1000));
  let work = "",
    low = "";
  const gaps: { x: number; w: number }[] = [];
  for (const run of runs(values, timeline.threshold)) {
    if (run.kind === "gap") {
      gaps.push({ x: xAt(run.from), w: xAt(run.to) - xAt(run.from) });
      continue;
    }
    const steps = values
      .slice(run.from, run.to)
      .map((v, i) => `V${y(v!)}H${xAt(run.from + i + 1)}`)
      .join("");
    if (run.kind === "work") work += `M${xAt(run.from)} ${HEIGHT - 1}${steps}V${HEIGHT - 1}z`;
    else low += `M${xAt(run.from)} ${y(values[run.from]!)}${steps.replace(/^V[\d.]+/, "")}`;
  }
  return { work, low, gaps };
}

function Line({
  gpu,
  timeline,
  scale,
  pauseAt,
  hover,
}: {
  gpu: Timeline["gpus"][number];
  timeline: Timeline;
  scale: Scale;
  pauseAt: number | null;
  hover: number | null;
}) {
  const { work, low, gaps } = shapes(gpu.values, timeline, scale);
  const windowFrom = scale.x(at(timeline.windowFrom)),
    now = scale.x(scale.to);
  const limit = HEIGHT - 1 - level(timeline.threshold) * (HEIGHT - 2);
  const mark = (t: number | null, props: object) =>
    t !== null && <path d={`M${r(scale.x(t))} -5V51`} vector-effect="non-scaling-stroke" {...props} />;
  const name = gpu.index === null ? gpu.node : `${gpu.node} GPU ${gpu.index}`;
  const words = `${name}: ${timeline.lastWork ? `active until ${clock(at(timeline.lastWork))}, then ` : ""}${gpu.max === null ? "cannot tell" : `at most ${percent(gpu.max)} in the window`}, ${covered(gpu.coverage)} covered`;
  const from = Math.max(windowFrom, ...gaps.filter((g) => g.x <= windowFrom && g.x + g.w > windowFrom).map((g) => g.x + g.w));
  return (
    <svg viewBox={`0 0 1000 ${HEIGHT}`} preserveAspectRatio="none" width="100%" height={HEIGHT} role="img" aria-label={words}>
      <rect x={from} y="0" width={Math.max(0, now - from)} height={HEIGHT} fill="var(--idle-wash)" />
      <path d={work} fill="var(--busy)" fill-opacity=".85" />
      <path d={low} fill="none" stroke="var(--idle-row)" stroke-width="1.6" vector-effect="non-scaling-stroke" />
      {gaps.map((g) => (
        <>
          <rect x={g.x} width={g.w} height={HEIGHT} fill="var(--unk-wash)" />
          <rect x={g.x} width={g.w} height={HEIGHT} fill="url(#p-gap)" />
        </>
      ))}
      <path
        d={`M0 ${r(limit)}H${r(now)}`}
        stroke="var(--ink)"
        stroke-opacity=".75"
        stroke-dasharray="3 3"
        vector-effect="non-scaling-stroke"
      />
      {mark(timeline.lastWork ? at(timeline.lastWork) : null, { stroke: "var(--ink)", "stroke-opacity": 0.5 })}
      {mark(scale.to, { stroke: "var(--ink)" })}
      {mark(pauseAt, { stroke: "var(--rest-text)", "stroke-dasharray": "4 3" })}
      {mark(hover, { stroke: "var(--focus)" })}
      <path d="M0 45.5H1000" stroke="var(--edge)" stroke-opacity=".6" vector-effect="non-scaling-stroke" />
    </svg>
  );
}

function axisMarks(from: number, end: number): number[] {
  const span = end - from;
  const step = span < 5 * 3.6e6 ? 30 * 6e4 : span < 40 * 3.6e6 ? 4 * 3.6e6 : 24 * 3.6e6;
  const first = new Date(from).setHours(0, 0, 0, 0);
  const all: number[] = [];
  for (let t = first; t < end; t += step) if (t > from + span * 0.02 && t < end - span * 0.02) all.push(t);
  return all;
}

/** How long no GPU of it was measured, at most. */
const longestGap = (timeline: Timeline) =>
  Math.max(
    0,
    ...timeline.gpus.flatMap((g) =>
      runs(g.values, timeline.threshold)
        .filter((x) => x.kind === "gap")
        .map((x) => x.to - x.from),
    ),
  ) * timeline.stepSeconds;

export function Evidence({ timeline, row, now }: { timeline: Timeline; row: Row; now: number }) {
  const narrow = useNarrow();
  const [hover, put] = useState<number | null>(null);
  const from = at(timeline.from),
    to = at(timeline.to);
  const pauseAt = row.next?.type === "pause" && row.next.at ? at(row.next.at) : null;
  const showPause = pauseAt !== null && pauseAt - to < (to - from) * 0.35 ? pauseAt : null;
  const end = showPause ? showPause + (to - from) * 0.045 : to + (to - from) * 0.03;
  const scale: Scale = { from, to, end, x: (t) => ((t - from) / (end - from)) * 1000 };
  const left = (t: number) => ({ left: `${scale.x(t) / 10}%` });
  const before = (t: number) => ({ left: `${Math.min(scale.x(t) / 10, 76)}%`, transform: "translateX(-100%)" }); // what else stands there
  const windowFrom = at(timeline.windowFrom);
  const marks = axisMarks(from, end);
  const day = to - from > 40 * 3.6e6;
  const gap = longestGap(timeline);
  const index =
    hover === null
      ? null
      : Math.min(Math.floor((hover - from) / (timeline.stepSeconds * 1000)), (timeline.gpus[0]?.values.length ?? 1) - 1);
  const windowWide = scale.x(to) - scale.x(windowFrom) > 190; // beside "now" there is room for its words
  const pauseApart = showPause !== null && scale.x(showPause) - scale.x(to) > 120;
  const lastWork = timeline.lastWork ? at(timeline.lastWork) : null;
  if (!timeline.gpus.length) return <p class="q">No GPU of it was measured in this window.</p>;
  const lowCover = (c: number | null) => c !== null && c < 0.995;
  return (
    <div class="evidence">
      <div class="evh">
        <div />
        <div class="evx" aria-hidden="true">
          {lastWork !== null && lastWork > from && (
            <span class="fl" style={narrow && scale.x(lastWork) > 480 ? before(lastWork) : left(lastWork)}>
              last work {time(lastWork, now)}
            </span>
          )}
          {windowWide && (
            <span class="wlab" style={left((windowFrom + to) / 2)}>
              window {Math.round((to - windowFrom) / 6e4)}&nbsp;min
            </span>
          )}
          <span class="nowt" style={left(to)}>
            now
          </span>
          {showPause && pauseApart && (
            <span class="pzt" style={left(showPause)}>
              pause {time(showPause, now)}
            </span>
          )}
          <span class="mob">max, covered</span>
        </div>
        <div class="evs q xs" aria-hidden="true">
          <span>
            max in
            <br />
            window
          </span>
          <span>covered</span>
          <span>newest</span>
        </div>
      </div>
      <div class="evw" onPointerLeave={() => put(null)}>
        {timeline.gpus.map((gpu, i) => (
          <div class="ev" key={`${gpu.uuid}${i}`}>
            <div class="evl">
              <b>
                {gpu.node}
                {gpu.index !== null && ` · GPU ${gpu.index}`}
              </b>
              <span class="q xs">{gpu.pod}</span>
            </div>
            <div
              class="evc"
              onPointerMove={(e) => {
                const box = e.currentTarget.getBoundingClientRect();
                const t = from + ((e.clientX - box.left) / box.width) * (end - from);
                put(t <= to ? t : null);
              }}
            >
              <Line gpu={gpu} timeline={timeline} scale={scale} pauseAt={showPause} hover={hover} />
            </div>
            <div class="evs n">
              <span>
                {index === null
                  ? gpu.max === null
                    ? "cannot tell"
                    : percent(gpu.max)
                  : gpu.values[index] === null
                    ? "no data"
                    : percent(gpu.values[index] ?? null)}
              </span>
              <span class={lowCover(gpu.coverage) ? "lo" : undefined}>{covered(gpu.coverage)}</span>
              <span>{gpu.newestSeconds === null ? "none" : span(gpu.newestSeconds)}</span>
            </div>
          </div>
        ))}
      </div>
      {timeline.more > 0 && (
        <p class="q s more">
          {timeline.more} more, {timeline.moreMax === null ? "not all measured" : `none above ${percent(timeline.moreMax)}`}
        </p>
      )}
      <div class="evh" aria-hidden="true">
        <div />
        <div class="evx ax0">
          {marks.map((t) => (
            <span style={left(t)} class={Math.abs(scale.x(t) - scale.x(to)) < 60 && narrow ? "hid" : undefined}>
              {day ? time(t, now).split("\u00a0")[0] : clock(t)}
            </span>
          ))}
        </div>
        <div />
      </div>
      <p class="key q xs">
        <span>
          <svg width="14" height="10" aria-hidden="true">
            <rect width="14" height="10" rx="2" fill="var(--busy)" />
          </svg>
          at work
        </span>
        <span>
          <svg width="14" height="10" aria-hidden="true">
            <path d="M0 7h14" stroke="var(--idle-row)" stroke-width="2" />
          </svg>
          below threshold
        </span>
        <span>
          <svg width="14" height="10" aria-hidden="true">
            <path d="M0 5h14" stroke="var(--ink)" stroke-dasharray="3 3" />
          </svg>
          threshold {percent(timeline.threshold)}
        </span>
        {gap > 0 && (
          <span>
            <svg width="14" height="10" aria-hidden="true">
              <rect width="14" height="10" fill="var(--unk-wash)" />
              <rect width="14" height="10" fill="url(#p-gap)" />
            </svg>
            not measured, {span(gap)}
          </span>
        )}
        <span class="dsk">Scale: even up to 1&nbsp;%, logarithmic above, so that a single small kernel is seen.</span>
      </p>
      <AsTable
        caption="Evidence by GPU"
        table={[
          ["GPU", "highest in window", "covered", "newest sample"],
          ...timeline.gpus.map((g) => [
            `${g.node}${g.index === null ? "" : ` GPU ${g.index}`}`,
            percent(g.max),
            covered(g.coverage),
            g.newestSeconds === null ? "none" : `${span(g.newestSeconds)} old`,
          ]),
        ]}
      />
    </div>
  );
}
