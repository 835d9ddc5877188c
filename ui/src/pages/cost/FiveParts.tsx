// All of the cost in one bar of five parts, each with whose it is. The parts come to the total, to the cent.
import { PART_WORDS, type CostReportPage } from "../../api";
import { useWidth } from "../../hooks";
import { addUp, money } from "../../words";

type Leg = { label: string; fill: string; owner: "teams" | "platform"; value: number; more: string };
export const FILLS = {
  used: "url(#p-busy)",
  allocatedUnused: "url(#p-slack)",
  heldIdle: "url(#p-idle)",
  useUnknown: "url(#p-unk)",
} as const;
const GAP = 3;

function legs({ held, platform, currency }: CostReportPage): Leg[] {
  const free = platform.parts.find((part) => part.key === "__unallocated__");
  const unused = platform.parts.find((part) => part.key === "__unused_commitment__");
  const nobody = unused
    ? `${money(free?.cost ?? 0, currency)} free, ${money(unused.cost, currency)} commitment`
    : "free, nobody asked for it";
  const leg = (label: string, fill: string, value: number, more: string, owner: Leg["owner"] = "teams"): Leg => ({
    label,
    fill,
    owner,
    value,
    more,
  });
  return [
    leg(PART_WORDS.used, FILLS.used, held.used, "work was done"),
    leg(PART_WORDS.allocatedUnused, FILLS.allocatedUnused, held.allocatedUnused, "held by a workload that worked below its share"),
    leg(PART_WORDS.heldIdle, FILLS.heldIdle, held.heldIdle, "a whole window of silence"),
    leg(PART_WORDS.useUnknown, FILLS.useUnknown, held.useUnknown, "held, not measured; never counted as idle"),
    leg(PART_WORDS.unallocated, "url(#p-free)", platform.cost, nobody, "platform"),
  ];
}

/** `filtered`: what nobody held may be no part of it at all. */
export function FiveParts({ report, filtered }: { report: CostReportPage; filtered: boolean }) {
  const [ref, width] = useWidth<HTMLDivElement>();
  const all = legs(report).filter((leg) => !filtered || leg.owner === "teams" || leg.value > 0);
  const total = report.total || 1;
  const shares = addUp(all.map((leg) => (leg.value / total) * 100));
  const shown = all.filter((leg) => leg.value > 0);
  const room = Math.max(0, width - GAP * (shown.length - 1));
  let x = 0;
  return (
    <div ref={ref}>
      {width > 0 && (
        <svg
          width={width}
          height="30"
          role="img"
          aria-label={all.map((leg) => `${leg.label} ${money(leg.value, report.currency)}`).join(", ")}
        >
          {shown.map((leg) => {
            const wide = (room * leg.value) / total;
            const left = x;
            x += wide + GAP;
            const free = leg.owner === "platform";
            return (
              <rect
                x={left + (free ? 0.5 : 0)}
                y={free ? 0.5 : 0}
                width={Math.max(1, wide - (free ? 1 : 0))}
                height={free ? 29 : 30}
                rx="3"
                fill={leg.fill}
                stroke={free ? "var(--edge)" : undefined}
                stroke-opacity=".6"
              />
            );
          })}
        </svg>
      )}
      <ul class="legs">
        {all.map((leg, i) => (
          <li>
            <span class="lu1">
              <svg width="12" height="12" aria-hidden="true">
                <rect x=".5" y=".5" width="11" height="11" rx="2" fill={leg.fill} stroke={i === 4 ? "var(--edge)" : undefined} />
              </svg>
              {leg.label}
              <Owner of={leg.owner} />
            </span>
            <b class="big n">{money(leg.value, report.currency)}</b>
            <span class="q xs">
              <span class="n">{shares[i]!.toFixed(1)}&nbsp;%</span> · {leg.more}
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

/** Who pays. */
export const Owner = ({ of }: { of: "teams" | "platform" }) => <span class={`own ${of}`}>{of}</span>;
