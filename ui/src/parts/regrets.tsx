// Beside the log: how often a pause was regretted, which ones, what did not happen, and what looks like a heartbeat.
import type { Gaming, Regrets } from "../api";
import { useAnswer } from "../ask";
import { workloadPath } from "../route";
import { localised, percent, plural, span } from "../words";
import { Glyph } from "./Glyph";
import { Answered, Head } from "./small";

function RegretTable({ regrets }: { regrets: Regrets }) {
  const rows = regrets.byPolicy;
  const pauses = rows.reduce((n, r) => n + r.pauses, 0),
    sorry = rows.reduce((n, r) => n + r.regrets, 0);
  const widens = rows[0]?.threshold ?? 0.2;
  const WIDE = 92,
    FULL = 0.25;
  const x = (rate: number) => Math.min(WIDE, (rate / FULL) * WIDE);
  return (
    <>
      <table class="mini">
        <thead>
          <tr>
            <th scope="col">Policy</th>
            <th scope="col" class="r">
              pauses
            </th>
            <th scope="col" class="r">
              regrets
            </th>
            <th scope="col">line: widens at {percent(widens)}</th>
            <th scope="col" class="r">
              rate
            </th>
            <th scope="col" class="r">
              window
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((r) => {
            const rate = r.pauses ? r.regrets / r.pauses : 0;
            return (
              <tr>
                <td>{r.policy}</td>
                <td class="r n">{r.pauses}</td>
                <td class="r n">{r.regrets}</td>
                <td>
                  <svg width={WIDE} height="12" aria-hidden="true">
                    <rect y="3" width={WIDE} height="6" rx="3" fill="var(--sunken)" />
                    {rate > 0 && <rect y="3" width={Math.max(3, x(rate))} height="6" rx="3" fill="var(--bad)" />}
                    <path d={`M${x(r.threshold)} 0v12`} stroke="var(--ink)" />
                  </svg>
                </td>
                <td class="r n">{r.pauses ? percent(rate, true) : "no pause"}</td>
                <td class="r n q">{Math.round(r.windowSeconds / 60)}&nbsp;min</td>
              </tr>
            );
          })}
        </tbody>
        <tfoot>
          <tr>
            <td>All</td>
            <td class="r n">{pauses}</td>
            <td class="r n">{sorry}</td>
            <td />
            <td class="r n">{pauses ? percent(sorry / pauses, true) : ""}</td>
            <td />
          </tr>
        </tfoot>
      </table>
      <p class="q xs after">A regret is a resume within 15&nbsp;min of the pause.</p>
    </>
  );
}

export function RegretSide({ now }: { now: number }) {
  const answer = useAnswer<Regrets>("/api/v1/regrets");
  const not = answer.data?.notHappened ?? [];
  return (
    <>
      <section>
        <Head title="Regrets by policy" sub="30 days" />
        <Answered of={answer}>
          {(regrets) => (regrets.byPolicy.length ? <RegretTable regrets={regrets} /> : <p class="q">Nothing was paused in 30 days.</p>)}
        </Answered>
      </section>
      {answer.data && answer.data.items.length > 0 && (
        <section>
          <Head title="What was regretted">
            <a class="l s" href="/activity?type=resumes">
              All {answer.data.byPolicy.reduce((n, p) => n + p.regrets, 0)}
            </a>
          </Head>
          <ul class="rl">
            {answer.data.items.slice(0, 5).map((d) => (
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
      {not.length > 0 && (
        <section>
          <Head title="Pauses that did not happen" sub="30 days" />
          <table class="mini">
            <tbody>
              {not.map((n) => (
                <tr>
                  <td>
                    {n.label}
                    <div class="q xs">{n.sentence}</div>
                  </td>
                  <td class="r n">{n.count}</td>
                </tr>
              ))}
            </tbody>
            <tfoot>
              <tr>
                <td>All</td>
                <td class="r n">{not.reduce((s, n) => s + n.count, 0)}</td>
              </tr>
            </tfoot>
          </table>
        </section>
      )}
    </>
  );
}

export function Heartbeats() {
  const { data } = useAnswer<Gaming>("/api/v1/gaming");
  if (!data?.items.length) return null;
  return (
    <section>
      <Head title="Looks like a heartbeat" sub="6 h" />
      {data.items.map((g) => (
        <div class="gm">
          <div>
            <a class="b" href={workloadPath(g.workload)}>
              {g.workload.name}
            </a>{" "}
            <span class="q">
              {g.workload.kind} in {g.workload.namespace}, {plural(g.gpus, "GPU")}
            </span>
            <div class="m s">{g.sentence}</div>
          </div>
          <svg width="182" height="24" role="img" aria-label={`a burst every ${span(g.everySeconds)}`}>
            <path d="M0 20.5H182" stroke="var(--edge)" />
            <path d="M0 17H182" stroke="var(--ink)" stroke-opacity=".6" stroke-dasharray="3 3" />
            {Array.from({ length: 26 }, (_, i) => (
              <rect x={i * 7} y="4" width="1.6" height="16" fill="var(--busy)" />
            ))}
          </svg>
        </div>
      ))}
      <p class="q xs after">Shown with its evidence. fallow never acts on this; ask the owner.</p>
    </section>
  );
}
