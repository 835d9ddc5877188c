// Pauses up, resumes down, a triangle for a regret; freezes behind them.
import type { Pace } from "../../api";
import { at } from "../../clock";
import { Chart, triangle } from "../../parts/chart";
import { clock, plural, sameDay, shortDay, span, startOfDay, time } from "../../words";

const DAY = 86_400_000;

export function PaceBars({ pace, now }: { pace: Pace; now: number }) {
  const from = at(pace.from),
    step = pace.stepSeconds * 1000;
  const end = at(pace.to); // the last step is not over yet
  const hourly = end - from <= 1.1 * DAY;
  const last = end + (end - from) * 0.06; // room for the word "now"
  const up = Math.max(5, ...pace.paused),
    down = Math.max(3, ...pace.resumed);
  const unit = Math.min(7, 56 / up, 32 / down);
  const marks: number[] = [];
  const each = hourly ? 3 * 3_600_000 : end - from > 10 * DAY ? 5 * DAY : DAY;
  for (let t = startOfDay(from); t < end; t += each) if (t >= from) marks.push(t);
  const all = (list: number[]) => list.reduce((a, b) => a + b, 0);
  const bars = pace.paused
    .map((n, i) => ({ at: from + i * step, n, back: pace.resumed[i] ?? 0, regrets: pace.regretted[i] ?? 0 }))
    .filter((b) => b.n || b.back || b.regrets);
  return (
    <Chart
      height={132}
      says={`${plural(all(pace.paused), "pause")}, ${plural(all(pace.resumed), "resume")}, ${plural(all(pace.regretted), "regret")}.`}
      caption="Pauses and resumes"
      table={[["From", "paused", "resumed", "regretted"], ...bars.map((b) => [time(b.at, now), b.n, b.back, b.regrets])]}
    >
      {(width) => {
        const x = (t: number) => 22 + ((t - from) / (last - from)) * (width - 28);
        const wide = (t: number) => Math.max(1, x(Math.min(t + step, end)) - x(t) - (hourly ? 6 : 2));
        return (
          <>
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
              .map((f) => ({ a: Math.max(from, at(f.from)), b: at(f.to), seconds: (at(f.to) - at(f.from)) / 1000 }))
              .filter((f) => f.b > from)
              .map((f) => (
                <>
                  <rect x={Math.min(x(f.a), x(f.b) - 2)} y="12" width={Math.max(2, x(f.b) - x(f.a))} height="100" fill="var(--rest-wash)" />
                  <text class="ax frozen" x={x(f.a) - 6} y="21" text-anchor="end">
                    frozen {span(f.seconds).replace("1\u00a0h", "60\u00a0min")}
                  </text>
                </>
              ))}
            {marks.map((t) => (
              <>
                <path class="grid" d={`M${x(t)} 12V112`} />
                <text class={sameDay(t, now) ? "ax d" : "ax"} x={x(t) + 4} y="127">
                  {hourly ? clock(t) : shortDay(t)}
                </text>
              </>
            ))}
            {bars.map((b) => {
              const [left, w] = [x(b.at) + 1, wide(b.at)];
              return (
                <>
                  {b.n > 0 && <rect x={left} y={72 - b.n * unit} width={w} height={b.n * unit} fill="var(--rest)" />}
                  {b.back > 0 && <rect x={left} y={73} width={w} height={b.back * unit} fill="var(--busy)" />}
                  {b.regrets > 0 && <path d={triangle(left + w / 2, 77 + b.back * unit)} fill="var(--bad)" />}
                </>
              );
            })}
            <path class="now" d={`M${x(now)} 12V112`} />
            <text class="ax d" x={x(now) + 5} y="21">
              now
            </text>
          </>
        );
      }}
    </Chart>
  );
}
