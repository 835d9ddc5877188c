// The whole cluster in one bar, with its parts below; a press on a part shows only that part in the field. The parts add up to the total.
import type { Overview } from "../../api";
import { useWidth } from "../../hooks";
import { set, useAddress } from "../../route";
import { at } from "../../clock";
import { addUp, clock, count, money, plural, tenth } from "../../words";
import type { Only } from "./Field";
import { Glyph } from "../../parts/Glyph";
import { TAKEN } from "./GivenBack";

type Part = { only: Exclude<Only, null>; label: string; value: number; fill: string; more: string };

function parts({ gpus, money: cost, currency, counts, unknowns, paused }: Overview): Part[] {
  const n = (v: number | null) => v ?? 0;
  const raw = [n(gpus.busy), n(gpus.idle) + n(gpus.told) + n(gpus.left), n(gpus.kept), n(gpus.unknown), n(gpus.free) + gpus.freed];
  const [busy, idle, kept, unknown, free] = addUp(raw) as [number, number, number, number, number];
  const price = (amount: number | null, rest: string) => (amount === null ? rest : `${money(amount, currency)}/h${rest && `, ${rest}`}`);
  const freed =
    gpus.freed > 0 ? `${tenth(gpus.freed)} of them freed by us` : paused.gpus > 0 ? "not seen which we freed" : "none freed by us now";
  const why = unknowns.length ? `${plural(counts.unknown, "workload")}, ${plural(unknowns.length, "reason")}` : "everything is measured";
  const atWork = cost.perHour.busy === null ? plural(counts.busy, "workload") : `${money(cost.perHour.busy, currency)}/h at work`;
  const part = (only: Part["only"], label: string, value: number, fill: string, more: string): Part => ({ only, label, value, fill, more });
  return [
    part("busy", "Busy", busy, "url(#p-busy)", atWork),
    part("idle", "Idle", idle, "url(#p-idle)", price(cost.perHour.idle, `${tenth(n(gpus.told))} in notice`)),
    part("kept", "Kept", kept, "url(#p-kept)", price(cost.perHour.kept, plural(counts.kept, "workload"))),
    part("unknown", "Cannot tell", unknown, "url(#p-unk)", why),
    part("free", "Free", free, "url(#p-free)", freed),
  ];
}

const GAP = 3;

export function LandUse({ overview }: { overview: Overview }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const only = useAddress().query.get("only");
  if (overview.gpus.total === null) return null;
  const all = parts(overview);
  const total = all.reduce((sum, p) => sum + p.value, 0) || 1;
  const shown = all.filter((p) => p.value > 0);
  const room = width - GAP * (shown.length - 1);
  let x = 0;
  const toggle = (part: Part) => set({ only: only === part.only ? null : part.only });
  const { paused, givenBackToday: given } = overview;
  return (
    <div ref={ref}>
      {width > 0 && (
        <svg
          class="bar"
          width={width}
          height="26"
          role="img"
          aria-label={`${all.map((p) => `${p.label} ${tenth(p.value)}`).join(", ")} of ${overview.gpus.total} GPUs`}
        >
          {shown.map((p) => {
            const w = (room * p.value) / total;
            const at = x;
            x += w + GAP;
            const free = p.only === "free";
            return (
              <rect
                class={only && only !== p.only ? "faded press" : "press"}
                x={at + (free ? 0.5 : 0)}
                y={free ? 0.5 : 0}
                width={Math.max(1, w - (free ? 1 : 0))}
                height={free ? 25 : 26}
                rx="3"
                fill={p.fill}
                stroke={free ? "var(--edge)" : undefined}
                stroke-opacity=".6"
                onClick={() => toggle(p)}
              />
            );
          })}
        </svg>
      )}
      <div class="lus">
        {all.map((p) => (
          <button type="button" class="lu" aria-pressed={only === p.only} onClick={() => toggle(p)} title="Show only these in the field">
            <span class="lu1">
              <Glyph name={p.only} />
              <b class="n">{tenth(p.value)}</b>
              <span>{p.label}</span>
            </span>
            <span class="q xs">{p.more}</span>
          </button>
        ))}
        <a class="lu edge" href="/workloads?view=paused">
          <span class="lu1">
            <Glyph name="rest" />
            <b class="n">{count(paused.workloads)}</b>
            <span>{paused.workloads === 1 ? "workload" : "workloads"} resting</span>
          </span>
          <span class="q xs">
            {paused.workloads === 1 ? "it" : "they"} held {plural(Math.round(paused.gpus * 10) / 10, "GPU")}
          </span>
        </a>
        <a class="lu" href="/activity">
          <span class="lu1">
            <b class="n">{given.gpuHours === null ? "–" : tenth(given.gpuHours)}</b>
            <span>GPU-hours given back today</span>
          </span>
          <span class="q xs">
            {given.gpuHours === null
              ? given.source === "books"
                ? "not worked out yet: that is done every hour"
                : "not known here"
              : given.takenGpuHours === null
                ? "cannot tell how many were taken by others"
                : `${tenth(given.takenGpuHours)} ${TAKEN[given.source]}`}
            {given.gpuHours !== null && given.source === "books" && given.until && `, until ${clock(at(given.until))}`}
          </span>
        </a>
      </div>
    </div>
  );
}
