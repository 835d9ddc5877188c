// What was given back a day, and how much of it somebody took.
import type { Savings } from "../../api";
import { Chart, Fills, Levels, roundUp, triangle } from "../../parts/chart";
import { count, plural } from "../../words";

export function GivenBack({ savings: { days } }: { savings: Savings }) {
  const most = roundUp(Math.max(4, ...days.map((d) => d.gpuHours)));
  const left = 34,
    bottom = 166,
    height = 148;
  const y = (v: number) => bottom - (v / most) * height;
  const total = days.reduce((sum, d) => sum + d.gpuHours, 0);
  return (
    <Chart
      height={188}
      says={`GPU-hours given back a day, ${count(Math.round(total))} in ${plural(days.length, "day")}.`}
      caption="GPU-hours given back a day"
      table={[
        ["Day", "given back", "surely used by others", "regrets"],
        ...days.map((d) => [d.day, d.gpuHours.toFixed(1), d.takenGpuHours?.toFixed(1) ?? "cannot tell", d.regrets]),
      ]}
      over={
        <Fills
          of={[
            ["var(--rest)", "surely used by others"],
            ["url(#p-freed)", "freed; whether used cannot be told"],
            [null, "regretted pause"],
          ]}
        />
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
              const taken = d.takenGpuHours ?? 0;
              const middle = x + bar / 2;
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
