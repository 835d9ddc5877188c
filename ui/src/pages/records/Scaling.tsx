// Which nodes come and go: what was wanted in the last day and what is expected, and what would be added, let go or kept, each with its reason.
import type { ComponentChildren } from "preact";
import type { PolicyScaling, Scaling } from "../../api";
import { at } from "../../clock";
import { Chart, Levels, roundUp } from "../../parts/chart";
import { Glyph, type GlyphName } from "../../parts/Glyph";
import { Head } from "../../parts/small";
import { CANNOT_TELL, clock, money, plural, tenth } from "../../words";

const DRIVERS: Record<string, string> = {
  karpenter: "Karpenter drives the nodes",
  "cluster-autoscaler": "cluster-autoscaler drives the nodes",
  direct: "fallow drives the nodes",
  auto: "nobody drives the nodes",
};
/** Of nodes that stay one wonders why only where something else was to be expected. */
const EXPECTED = new Set(["Needed", "Busy", "NotOurs", "Releasing"]);
const HOUR = 3_600_000;
const MOST = 6;

type Point = [hour: number, gpus: number];
/** Lines break where nobody looked. */
function path(points: (Point | null)[], x: (h: number) => number, y: (g: number) => number): string {
  let pen = "M";
  return points
    .map((p) => {
      if (!p) {
        pen = "M";
        return "";
      }
      const d = `${pen}${x(p[0])} ${y(p[1])}`;
      pen = "L";
      return d;
    })
    .join("");
}

function Demand({ policy }: { policy: PolicyScaling }) {
  const past = policy.demand;
  if (!past || past.gpus.every((g) => g === null)) return <p class="q">What was wanted in the last day is not known yet.</p>;
  const ahead = policy.guess?.ahead.slice(0, 24) ?? [];
  const n = past.gpus.length;
  const seen: (Point | null)[] = past.gpus.map((g, i) => (g === null ? null : [i - n + 1, g]));
  const last = past.gpus[n - 1];
  const coming: (Point | null)[] = [typeof last === "number" ? ([0, last] as Point) : null, ...ahead.map((g, i): Point => [i + 1, g])];
  const most = roundUp(Math.max(policy.gpus ?? 0, ...ahead, ...past.gpus.map((g) => g ?? 0)));
  const rows = [...seen.filter((p) => p !== null), ...ahead.map((g, i): Point => [i + 1, g])];
  const when = (h: number) => clock(at(past.endsAt) + h * HOUR);
  const says = `GPUs in use or waited for: ${typeof last === "number" ? tenth(last) : CANNOT_TELL} now${
    policy.gpus === null ? "" : `, of ${policy.gpus}`
  }${ahead.length ? `; ${tenth(Math.max(...ahead))} expected at most` : ""}.`;
  return (
    <Chart
      height={176}
      says={says}
      caption="GPUs wanted, by the hour"
      table={[["Hour", "GPUs"], ...rows.map((p) => [when(p![0]), tenth(p![1])])]}
    >
      {(width) => {
        const left = 36,
          right = width - 8,
          y = (g: number) => 150 - (134 * g) / most;
        const first = 1 - n,
          end = Math.max(1, ahead.length);
        const x = (h: number) => left + ((right - left) * (h - first)) / (end - first);
        return (
          <>
            <Levels most={most} left={left} right={right} y={y} />
            {policy.gpus !== null && (
              <>
                <path d={`M${left} ${y(policy.gpus)}H${right}`} stroke="var(--ink)" stroke-width="1.5" fill="none" />
                <text class="ax k" x={left + 4} y={y(policy.gpus) - 5}>
                  capacity now {policy.gpus}
                </text>
              </>
            )}
            <path d={path(seen, x, y)} stroke="var(--busy)" stroke-width="1.5" fill="none" />
            {ahead.length > 0 && (
              <path d={path(coming, x, y)} stroke="var(--rest-text)" stroke-width="1.5" stroke-dasharray="4 4" fill="none" />
            )}
            <path d={`M${x(0)} 12V150`} stroke="var(--ink)" />
            {[first, 0, ...(ahead.length ? [end] : [])].map((h) => (
              <text class="ax" x={x(h)} y="170" text-anchor={h === 0 ? "middle" : h < 0 ? "start" : "end"}>
                {h === 0 ? "now" : when(h)}
              </text>
            ))}
          </>
        );
      }}
    </Chart>
  );
}

const Line = ({ glyph, what, because, money: cost }: { glyph: GlyphName; what: ComponentChildren; because: string; money?: string }) => (
  <li class="pl1">
    <Glyph name={glyph} />
    <div>
      <div>{what}</div>
      <div class="q xs">{because}</div>
    </div>
    {cost && <span class="r n">{cost}</span>}
  </li>
);

function Plan({ policy, page, currency }: { policy: PolicyScaling; page: Scaling; currency: string }) {
  const kept = page.nodes.filter((n) => n.policy === policy.name && !EXPECTED.has(n.verdict));
  const held = [...policy.blocked, ...policy.brakes];
  return (
    <ul class="plans">
      {held.map((h) => (
        <Line glyph="bad" what={<b>{h.reason}</b>} because={h.because} />
      ))}
      {policy.releases.map((r) => (
        <Line
          glyph="rest"
          what={
            <>
              {policy.acts ? "Let go" : "Would let go"} <b>{r.node}</b>
            </>
          }
          because={r.because}
          money={r.perHour === null ? undefined : `−${money(r.perHour, currency)}/h`}
        />
      ))}
      {policy.grows.map((g) => (
        <Line
          glyph="busy"
          what={
            <>
              {policy.acts ? "Add" : "Would add"} {plural(g.count, "node")} of <b>{g.pool}</b> ({g.capacityType})
            </>
          }
          because={g.because}
          money={g.perHour === null ? undefined : `+${money(g.perHour, currency)}/h`}
        />
      ))}
      {policy.inFlight.map((f) => (
        <Line
          glyph="busy"
          what={
            <>
              {plural(f.count, "node")} of <b>{f.pool}</b> on the way
            </>
          }
          because={`${f.capacityType}, asked for at ${clock(at(f.since))}`}
        />
      ))}
      {policy.soldOut.map((s) => (
        <Line
          glyph="unknown"
          what={
            <>
              <b>{s.pool}</b> is sold out ({s.capacityType})
            </>
          }
          because={`asked again at ${clock(at(s.until))}`}
        />
      ))}
      {kept.slice(0, MOST).map((n) => (
        <Line
          glyph={n.verdict === "UseUnknown" || n.verdict === "CannotTell" ? "unknown" : "kept"}
          what={
            <>
              Keep <b>{n.node}</b>
            </>
          }
          because={n.because}
        />
      ))}
      {kept.length > MOST && <li class="q xs">and {kept.length - MOST} more nodes stay</li>}
      {policy.grows.length === 0 && <Line glyph="busy" what="Add nothing" because={nothing(policy, page)} />}
    </ul>
  );
}

function nothing(policy: PolicyScaling, page: Scaling): string {
  const waiting = page.pods.filter((p) => p.policy === policy.name || !p.policy);
  const first = waiting[0];
  if (!first) return "no pod waits for a node";
  const more = waiting.length > 1 ? `; ${plural(waiting.length - 1, "other pod")} wait too` : "";
  return `${first.namespace}/${first.pod}: ${first.because}${more}`;
}

export function ScalingPart({ page, currency }: { page: Scaling; currency: string }) {
  if (page.policies.length === 0)
    return (
      <section>
        <Head title="Scaling plan" />
        <p class="q">{page.unseen ?? "No AutoscalingPolicy: fallow adds no node and lets none go."}</p>
      </section>
    );
  return (
    <>
      {page.policies.map((policy) => (
        <section key={policy.name}>
          <Head title="Scaling plan">
            <span class="q xs">
              {policy.name}: {policy.acts ? "acts" : "recommends only"}; {DRIVERS[policy.driver] ?? policy.driver};{" "}
              {plural(policy.nodes, "node")}
              {policy.perHour === null ? "" : `, ${money(policy.perHour, currency)}/h`}
            </span>
          </Head>
          <Demand policy={policy} />
          <p class="q xs">
            {policy.guess && policy.guess.model
              ? `Forecast: ${policy.guess.model}${policy.guess.confidence === null ? "" : `, ${Math.round(100 * policy.guess.confidence)} % of past peaks nearly right`}.`
              : "No forecast: too little is known of the past weeks."}
          </p>
          <Plan policy={policy} page={page} currency={currency} />
        </section>
      ))}
    </>
  );
}
