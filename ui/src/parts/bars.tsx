// Small charts of bars as SVG: what was given back a day, pauses and resumes an hour. They follow the width and the theme by themselves.
import type { Pace, Savings } from "../api";
import { at } from "../clock";
import { useWidth } from "../hooks";
import { clock, count, plural, sameDay, shortDay, span, startOfDay, time } from "../words";
import { AsTable } from "./small";

const DAY = 86_400_000;
const triangle = (x: number, y: number) => `M${x} ${y}l4.4 7.6h-8.8z`;

/** A round number at or above `n` that divides into four. */
export function roundUp(n: number): number {
  const unit = 10 ** Math.floor(Math.log10(Math.max(1, n)));
  return [1, 2, 4, 6, 8, 10].map((f) => f * unit).find((v) => v >= n) ?? 10 * unit;
}

export function GivenBack({ savings }: { savings: Savings }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const { days } = savings;
  const most = roundUp(Math.max(4, ...days.map((d) => d.gpuHours)));
  const left = 34,
    bottom = 166,
    height = 148;
  const step = (width - left) / Math.max(1, days.length);
  const bar = Math.min(28, step * 0.66);
  const y = (v: number) => bottom - (v / most) * height;
  const total = days.reduce((sum, d) => sum + d.gpuHours, 0);
  return (
    <div ref={ref} class="chart">
      <p class="key q xs">
        <span>
          <svg width="10" height="10" aria-hidden="true">
            <rect width="10" height="10" rx="2" fill="var(--rest)" />
          </svg>
          used by others, or node gone
        </span>
        <span>
          <svg width="10" height="10" aria-hidden="true">
            <rect width="10" height="10" rx="2" fill="url(#p-freed)" />
          </svg>
          freed, nobody took it
        </span>
        <span>
          <svg width="10" height="10" aria-hidden="true">
            <path d={triangle(5, 1)} fill="var(--bad)" />
          </svg>
          regretted pause
        </span>
      </p>
      {width > 0 && (
        <svg
          width={width}
          height="188"
          role="img"
          aria-label={`GPU-hours given back a day, ${count(Math.round(total))} in ${plural(days.length, "day")}.`}
        >
          {[0, 0.25, 0.5, 0.75, 1].map((f) => (
            <>
              <path class="grid" d={`M${left} ${y(f * most)}H${width}`} />
              <text class="ax" x={left - 8} y={y(f * most) + 4} text-anchor="end">
                {count(f * most)}
              </text>
            </>
          ))}
          {days.map((d, i) => {
            const x = left + i * step + (step - bar) / 2;
            const taken = d.takenGpuHours ?? 0;
            const middle = x + bar / 2;
            const last = i === days.length - 1;
            return (
              <>
                <rect x={x} y={y(taken)} width={bar} height={bottom - y(taken)} fill="var(--rest)" />
                {d.gpuHours > taken && (
                  <rect
                    x={x + 0.5}
                    y={y(d.gpuHours)}
                    width={bar - 1}
                    height={Math.max(0, y(taken) - y(d.gpuHours) - 1)}
                    fill="url(#p-freed)"
                    stroke="var(--rest)"
                  />
                )}
                {d.regrets > 0 && <path d={triangle(middle, y(d.gpuHours) - 13.5)} fill="var(--bad)" />}
                {d.regrets > 1 && (
                  <text class="ax bt" x={middle + 7} y={y(d.gpuHours) - 6}>
                    {d.regrets}
                  </text>
                )}
                <text class={last ? "ax d" : "ax"} x={middle} y="182" text-anchor="middle">
                  {Number(d.day.slice(8))}
                </text>
              </>
            );
          })}
        </svg>
      )}
      <AsTable
        caption="GPU-hours given back a day"
        head={["Day", "given back", "used by others", "regrets"]}
        rows={days.map((d) => [d.day, d.gpuHours.toFixed(1), d.takenGpuHours?.toFixed(1) ?? "cannot tell", d.regrets])}
      />
    </div>
  );
}

const words = (t: number, hourly: boolean) => (hourly ? clock(t) : shortDay(t));

export function PaceBars({ pace, now }: { pace: Pace; now: number }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const from = at(pace.from),
    step = pace.stepSeconds * 1000;
  const end = Math.max(at(pace.to), from + pace.paused.length * step);
  const hourly = end - from <= 1.1 * DAY;
  const last = end + (end - from) * 0.06; // room for the word "now"
  const x = (t: number) => 22 + ((t - from) / (last - from)) * (width - 28);
  const up = Math.max(5, ...pace.paused),
    down = Math.max(3, ...pace.resumed);
  const unit = Math.min(7, 56 / up, 32 / down);
  const w = Math.max(1, x(from + step) - x(from) - (hourly ? 6 : 2));
  const marks: number[] = [];
  const each = hourly ? 3 * 3_600_000 : end - from > 10 * DAY ? 5 * DAY : DAY;
  for (let t = startOfDay(from); t < end; t += each) if (t >= from) marks.push(t);
  const all = (list: number[]) => list.reduce((a, b) => a + b, 0);
  const bars = pace.paused
    .map((n, i) => ({ i, x: x(from + i * step) + 1, n, back: pace.resumed[i] ?? 0, regrets: pace.regretted[i] ?? 0 }))
    .filter((b) => b.n || b.back || b.regrets);
  return (
    <div ref={ref} class="chart">
      {width > 0 && (
        <svg
          width={width}
          height="132"
          role="img"
          aria-label={`${plural(all(pace.paused), "pause")}, ${plural(all(pace.resumed), "resume")}, ${plural(all(pace.regretted), "regret")}.`}
        >
          {[
            [72 - up * unit, up],
            [72 + down * unit, down],
          ].map(([y, n]) => (
            <>
              <path class="grid" d={`M22 ${y}H${width - 6}`} />
              <text class="ax" x="14" y={y! + 4} text-anchor="end">
                {n}
              </text>
            </>
          ))}
          <path d={`M22 72.5H${width - 6}`} stroke="var(--edge)" shape-rendering="crispEdges" />
          {pace.freezes
            .filter((f) => at(f.to) > from)
            .map((f) => (
              <>
                <rect
                  x={x(Math.max(from, at(f.from)))}
                  y="12"
                  width={Math.max(2, x(at(f.to)) - x(Math.max(from, at(f.from))))}
                  height="100"
                  fill="var(--rest-wash)"
                />
                <text class="ax frozen" x={x(at(f.from)) - 6} y="21" text-anchor="end">
                  frozen {span((at(f.to) - at(f.from)) / 1000).replace("1\u00a0h", "60\u00a0min")}
                </text>
              </>
            ))}
          {marks.map((t) => (
            <>
              <path class="grid" d={`M${x(t)} 12V112`} />
              <text class={sameDay(t, now) ? "ax d" : "ax"} x={x(t) + 4} y="127">
                {words(t, hourly)}
              </text>
            </>
          ))}
          {bars.map((b) => (
            <>
              {b.n > 0 && <rect x={b.x} y={72 - b.n * unit} width={w} height={b.n * unit} fill="var(--rest)" />}
              {b.back > 0 && <rect x={b.x} y={73} width={w} height={b.back * unit} fill="var(--busy)" />}
              {b.regrets > 0 && <path d={triangle(b.x + w / 2, 77 + b.back * unit)} fill="var(--bad)" />}
            </>
          ))}
          <path class="now" d={`M${x(now)} 12V112`} />
          <text class="ax d" x={x(now) + 5} y="21">
            now
          </text>
        </svg>
      )}
      <AsTable
        caption="Pauses and resumes"
        head={["From", "paused", "resumed", "regretted"]}
        rows={bars.map((b) => [time(from + b.i * step, now), b.n, b.back, b.regrets])}
      />
    </div>
  );
}
