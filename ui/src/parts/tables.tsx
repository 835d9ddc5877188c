// Three small tables of the overview: who holds it, why it is not paused yet, what we cannot tell. Each ends in a sum that agrees with the bar.
import type { Overview } from "../api";
import { count, localised, tenth } from "../words";
import { now } from "../clock";
import { Head } from "./small";

const MOST = 8;
const BAR = 150;

export function WhoHolds({ overview }: { overview: Overview }) {
  const all = overview.byNamespace;
  const shown = all.slice(0, MOST);
  const most = Math.max(0.01, ...shown.map((n) => n.idle + n.kept));
  const scale = (BAR - 4) / most;
  const sum = (key: "idle" | "kept") => all.reduce((total, n) => total + n[key], 0);
  const rest = all.slice(MOST);
  return (
    <section>
      <Head title="Who holds it" sub="GPUs now" />
      <table class="mini">
        <thead>
          <tr>
            <th scope="col">Team</th>
            <th class="bars">
              <span class="sr">idle and kept as a bar</span>
            </th>
            <th scope="col" class="r">
              idle
            </th>
            <th scope="col" class="r">
              kept
            </th>
          </tr>
        </thead>
        <tbody>
          {shown.map((n) => (
            <tr>
              <td class="nw">
                <a href={`/workloads?view=idle&ns=${encodeURIComponent(n.namespace)}`}>{n.namespace}</a>
              </td>
              <td>
                <svg width={BAR} height="12" aria-hidden="true">
                  <rect width={n.idle * scale} height="12" rx="2" fill="url(#p-idle)" />
                  {n.kept > 0 && (
                    <rect
                      x={n.idle > 0 ? n.idle * scale + 1.5 : 0}
                      width={Math.max(2, n.kept * scale)}
                      height="12"
                      rx="2"
                      fill="url(#p-kept)"
                    />
                  )}
                </svg>
              </td>
              <td class="r n">{tenth(n.idle)}</td>
              <td class="r n q">{tenth(n.kept)}</td>
            </tr>
          ))}
          {rest.length > 0 && (
            <tr>
              <td class="q" colSpan={2}>
                {rest.length} more
              </td>
              <td class="r n">{tenth(rest.reduce((s, n) => s + n.idle, 0))}</td>
              <td class="r n q">{tenth(rest.reduce((s, n) => s + n.kept, 0))}</td>
            </tr>
          )}
          {all.length === 0 && (
            <tr>
              <td colSpan={4} class="q">
                Nobody holds an idle GPU.
              </td>
            </tr>
          )}
        </tbody>
        <tfoot>
          <tr>
            <td>All</td>
            <td />
            <td class="r n">{tenth(sum("idle"))}</td>
            <td class="r n">{tenth(sum("kept"))}</td>
          </tr>
        </tfoot>
      </table>
    </section>
  );
}

export function WhyNot({ overview }: { overview: Overview }) {
  const rows = overview.leftAlone;
  return (
    <section>
      <Head title="Why it is not paused yet" />
      <table class="mini">
        <thead>
          <tr>
            <th scope="col">Reason</th>
            <th>
              <span class="sr">Code</span>
            </th>
            <th scope="col" class="r">
              workloads
            </th>
            <th scope="col" class="r">
              GPUs
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((r) => (
            <tr>
              <td>{localised(r.sentence, now())}</td>
              <td class="q mono">{r.label}</td>
              <td class="r n">{count(r.workloads)}</td>
              <td class="r n">{tenth(r.gpus)}</td>
            </tr>
          ))}
          {rows.length === 0 && (
            <tr>
              <td colSpan={4} class="q">
                Nothing is idle.
              </td>
            </tr>
          )}
        </tbody>
        <tfoot>
          <tr>
            <td>All idle</td>
            <td />
            <td class="r n">{count(rows.reduce((s, r) => s + r.workloads, 0))}</td>
            <td class="r n">{tenth(rows.reduce((s, r) => s + r.gpus, 0))}</td>
          </tr>
        </tfoot>
      </table>
    </section>
  );
}

export function CannotTell({ overview }: { overview: Overview }) {
  const rows = overview.unknowns;
  return (
    <section>
      <Head title="What we cannot tell" />
      <table class="mini">
        <thead>
          <tr>
            <th scope="col">Reason, and what helps</th>
            <th scope="col" class="r">
              workloads
            </th>
            <th scope="col" class="r">
              GPUs
            </th>
          </tr>
        </thead>
        <tbody>
          {rows.map((r) => (
            <tr>
              <td>
                {localised(r.sentence, now())}
                <div class="q xs">{r.helps}</div>
              </td>
              <td class="r n">{count(r.workloads)}</td>
              <td class="r n">{tenth(r.gpus)}</td>
            </tr>
          ))}
          {rows.length === 0 && (
            <tr>
              <td colSpan={3} class="q">
                Every held GPU is measured.
              </td>
            </tr>
          )}
        </tbody>
        {rows.length > 0 && (
          <tfoot>
            <tr>
              <td>All</td>
              <td class="r n">{count(rows.reduce((s, r) => s + r.workloads, 0))}</td>
              <td class="r n">{tenth(rows.reduce((s, r) => s + r.gpus, 0))}</td>
            </tr>
          </tfoot>
        )}
      </table>
      {rows.length > 0 && <p class="q xs after">None of these is counted as idle, and none will be paused.</p>}
    </section>
  );
}
