// Beside the log: how often a pause was regretted, which policies wait longer for it, what did not happen, what looks like a heartbeat.
import type { Gaming, Policies, Policy, Regrets } from "../../api";
import { useAnswer } from "../../ask";
import { at } from "../../clock";
import { workloadPath } from "../../route";
import { fullTime, localised, minutes, percent, plural, span, time } from "../../words";
import { Glyph } from "../../parts/Glyph";
import { Answered, Head } from "../../parts/small";
import { Table } from "../../parts/Table";

const WIDE = 92;
const FULL = 0.25;
const scaled = (rate: number) => Math.min(WIDE, (rate / FULL) * WIDE);
const rateOf = (r: { pauses: number; regrets: number }) => (r.pauses ? r.regrets / r.pauses : 0);

function RegretTable({ rows, policies }: { rows: Regrets["byPolicy"]; policies: Policy[] }) {
  const all = rows.reduce((s, r) => ({ pauses: s.pauses + r.pauses, regrets: s.regrets + r.regrets }), { pauses: 0, regrets: 0 });
  return (
    <Table
      class="mini"
      rows={rows}
      columns={[
        { head: "Policy", cell: (r) => <a href={`/policies/${encodeURIComponent(r.policy)}`}>{r.policy}</a>, sum: "All" },
        { head: "pauses", right: true, cell: (r) => r.pauses, sum: all.pauses },
        { head: "regrets", right: true, cell: (r) => r.regrets, sum: all.regrets },
        {
          head: `line: widens at ${percent(rows[0]?.threshold ?? 0.2)}`,
          cell: (r) => (
            <svg width={WIDE} height="12" aria-hidden="true">
              <rect y="3" width={WIDE} height="6" rx="3" fill="var(--sunken)" />
              {r.regrets > 0 && <rect y="3" width={Math.max(3, scaled(rateOf(r)))} height="6" rx="3" fill="var(--bad)" />}
              <path d={`M${scaled(r.threshold)} 0v12`} stroke="var(--ink)" />
            </svg>
          ),
        },
        {
          head: "rate",
          right: true,
          cell: (r) => (r.pauses ? percent(rateOf(r), true) : "no pause"),
          sum: all.pauses ? percent(rateOf(all), true) : "",
        },
        {
          head: "window",
          right: true,
          class: "q",
          cell: (r) => (
            <>
              {minutes(r.windowSeconds)}
              {policies.some((p) => p.name === r.policy && p.widened) && <div class="xs up">widened</div>}
            </>
          ),
        },
      ]}
    />
  );
}

/** That a policy waits longer than it asks for: from what, why, and until when. */
export function Widening({ policy, now }: { policy: Policy; now: number }) {
  const w = policy.widened;
  if (!w) return null;
  return (
    <p class="m widening">
      <Glyph name="told" />
      <span>
        <b>
          {policy.name} waits {minutes(policy.goneIdleSeconds)} instead of {minutes(w.fromSeconds)}
        </b>
        {w.since && ` since ${time(at(w.since), now)}`}: {w.because}.{" "}
        <span class="q">
          {w.backAt && at(w.backAt) > now ? `It takes a step back ${fullTime(at(w.backAt))} at the earliest` : "It takes a step back"}, if
          less than {percent(w.calmBelow)} of its pauses are undone until then; so far {w.regrets} of {w.pauses}.
        </span>
      </span>
    </p>
  );
}

export function RegretSide({ now }: { now: number }) {
  const answer = useAnswer<Regrets>("/api/v1/regrets");
  const policies = useAnswer<Policies>("/api/v1/policies").data?.items ?? [];
  const not = answer.data?.notHappened ?? [];
  const items = answer.data?.items ?? [];
  return (
    <>
      <section>
        <Head title="Regrets by policy" sub="30 days" />
        <Answered of={answer}>
          {({ byPolicy }) =>
            byPolicy.length ? <RegretTable rows={byPolicy} policies={policies} /> : <p class="q">Nothing was paused in 30 days.</p>
          }
        </Answered>
        <p class="q xs after">A regret is a resume within 15&nbsp;min of the pause.</p>
        {policies.map((p) => (
          <Widening policy={p} now={now} />
        ))}
      </section>
      {items.length > 0 && (
        <section>
          <Head title="What was regretted">
            <a class="l s" href="/activity?type=resumes">
              All {items.length}
            </a>
          </Head>
          <ul class="rl">
            {items.slice(0, 5).map((d) => (
              <li>
                <Glyph name="bad" />
                <div>
                  {d.workload && (
                    <>
                      <a class="b" href={workloadPath(d.workload)}>
                        {d.workload.name}
                      </a>{" "}
                      <span class="q">{d.workload.namespace}</span>
                    </>
                  )}
                  <div class="m">{localised(d.sentence, now)}</div>
                  {d.detail && <div class="q xs">{localised(d.detail, now)}</div>}
                </div>
              </li>
            ))}
          </ul>
        </section>
      )}
      {answer.data && (
        <section>
          <Head title="Pauses that did not happen" sub="30 days" />
          <Table
            class="mini"
            none="None: what was to be paused was."
            rows={not}
            columns={[
              {
                sum: not.length ? "All" : undefined,
                cell: (n) => (
                  <>
                    {n.label}
                    <div class="q xs">{n.sentence}</div>
                  </>
                ),
              },
              { right: true, cell: (n) => n.count, sum: not.length ? not.reduce((s, n) => s + n.count, 0) : undefined },
            ]}
          />
        </section>
      )}
    </>
  );
}

/** What may be kept busy only to be left alone, with what was measured of it. */
export function Heartbeats({ now }: { now: number }) {
  const answer = useAnswer<Gaming>("/api/v1/gaming");
  return (
    <section class="beats">
      <Head title="Looks like a heartbeat" sub="6 h" />
      <Answered of={answer}>
        {({ items, asked, asOf, because }) => (
          <>
            {items.map((g) => (
              <div class="gm">
                <div>
                  <a class="b" href={workloadPath(g.workload)}>
                    {g.workload.name}
                  </a>{" "}
                  <span class="q">
                    {g.workload.kind} in {g.workload.namespace}, {plural(g.gpus.length, "GPU")}
                  </span>
                  <div class="m s">
                    A burst every {span(g.everySeconds)}, {g.bursts} of them; engine {percent(g.mean)} on average, tensor and memory at most{" "}
                    {percent(Math.max(g.tensorMax, g.dramMax))}.
                  </div>
                  <div class="q xs">
                    {time(at(g.since), now)} to {time(at(g.until), now)}; the gaps between bursts vary by {percent(g.variation)}.
                  </div>
                </div>
                <svg width="182" height="24" aria-hidden="true">
                  <path d="M0 20.5H182" stroke="var(--edge)" />
                  <path d="M0 17H182" stroke="var(--ink)" stroke-opacity=".6" stroke-dasharray="3 3" />
                  {Array.from({ length: 26 }, (_, i) => (
                    <rect x={i * 7} y="4" width="1.6" height="16" fill="var(--busy)" />
                  ))}
                </svg>
              </div>
            ))}
            {!items.length && (
              <p class="q">
                {because
                  ? `Cannot tell: ${localised(because, now)}.`
                  : `Nothing does. ${plural(asked, "GPU")} with little and even work ${asked === 1 ? "was" : "were"} looked at closely${asOf ? `, last at ${time(at(asOf), now)}` : ""}.`}
              </p>
            )}
            {items.length > 0 && <p class="q xs after">Shown with its evidence. fallow never acts on this; ask the owner.</p>}
          </>
        )}
      </Answered>
    </section>
  );
}
