// What was given back a day, and how much of it somebody took.
import type { Savings } from "../../api";
import { Chart, Fills, Levels, roundUp, triangle } from "../../parts/chart";
import { at } from "../../clock";
import { CANNOT_TELL, count, dayName, plural } from "../../words";

/** The audit knows only the least that was taken. */
export const TAKEN = { books: "taken by others", audit: "surely taken by others" } as const;

export function GivenBack({ savings: { days, since, source } }: { savings: Savings }) {
  const most = roundUp(Math.max(4, ...days.map((d) => d.gpuHours ?? 0)));
  const gap = since && days.some((d) => d.gpuHours === null);
  const left = 34,
    bottom = 166,
    height = 148;
  const y = (v: number) => bottom - (v / most) * height;
  const total = days.reduce((sum, d) => sum + (d.gpuHours ?? 0), 0);
  return (
    <Chart
      height={188}
      says={`GPU-hours given back a day, ${count(Math.round(total))} in ${plural(days.length, "day")}.`}
      caption="GPU-hours given back a day"
      table={[
        ["Day", "given back", TAKEN[source], "regrets"],
        ...days.map((d) => [d.day, d.gpuHours?.toFixed(1) ?? CANNOT_TELL, d.takenGpuHours?.toFixed(1) ?? CANNOT_TELL, d.regrets]),
      ]}
      over={
        <>
          <Fills
            of={[
              ["var(--rest)", TAKEN[source]],
              ["url(#p-freed)", source === "books" ? "taken by nobody" : "freed; whether taken cannot be told"],
              [null, "regretted pause"],
            ]}
          />
          {gap && <p class="q xs">Written down since {dayName(at(since))}; of the days before (hatched) nothing is known.</p>}
        </>
      }
    >
      {(width) => {
        const step = (width - left) / Math.max(1, days.length);
        const bar = Math.min(28, step * 0.66);
        return (
          <>
            <Levels most={most} left={left} right={width} y={y} />
            {days.map((d, i) => {
              const x = left + i * step + (step - bar) / 2;
              const given = d.gpuHours ?? 0;
              const taken = d.takenGpuHours ?? 0;
              const middle = x + bar / 2;
              return (
                <>
                  {d.gpuHours === null && <rect x={x} y={y(most)} width={bar} height={height} fill="url(#p-unk)" />}
                  <rect x={x} y={y(taken)} width={bar} height={bottom - y(taken)} fill="var(--rest)" />
                  {given > taken && (
                    <rect
                      x={x + 0.5}
                      y={y(given)}
                      width={bar - 1}
                      height={Math.max(0, y(taken) - y(given) - 1)}
                      fill="url(#p-freed)"
                      stroke="var(--rest)"
                    />
                  )}
                  {d.regrets > 0 && <path d={triangle(middle, y(given) - 13.5)} fill="var(--bad)" />}
                  {d.regrets > 1 && (
                    <text class="ax bt" x={middle + 7} y={y(given) - 6}>
                      {d.regrets}
                    </text>
                  )}
                  <text class={i === days.length - 1 ? "ax d" : "ax"} x={middle} y="182" text-anchor="middle">
                    {Number(d.day.slice(8))}
                  </text>
                </>
              );
            })}
          </>
        );
      }}
    </Chart>
  );
}
