// Three small tables of the overview: who holds it, why it is not paused yet, what we cannot tell. Each ends in a sum that agrees with the bar.
import type { Overview } from "../../api";
import { now } from "../../clock";
import { column, count, localised } from "../../words";
import { Figure, Head } from "../../parts/small";
import { type Column, Table } from "../../parts/Table";

const MOST = 8;
const BAR = 150;

/** How many workloads and GPUs, with their sums. */
function amounts<T extends { workloads: number; gpus: number }>(rows: T[]): Column<T>[] {
  const sum = (of: (row: T) => number) => rows.reduce((total, row) => total + of(row), 0);
  return [
    { head: "workloads", right: true, cell: (r) => count(r.workloads), sum: count(sum((r) => r.workloads)) },
    figures("GPUs", rows, (r) => r.gpus),
  ];
}

/** GPUs of every row, and their sum as it is printed. */
function figures<T>(head: string, rows: T[], of: (row: T) => number): Column<T> {
  const { each, sum } = column(rows.map(of));
  return { head, right: true, cell: (row) => <Figure n={each[rows.indexOf(row)]!} />, sum: <Figure n={sum} /> };
}

export function WhoHolds({ overview }: { overview: Overview }) {
  const all = overview.byNamespace.filter((n) => n.idle + n.kept > 0);
  const sum = (rows: typeof all, key: "idle" | "kept") => rows.reduce((total, n) => total + n[key], 0);
  const rest = all.slice(MOST);
  const rows = all.slice(0, MOST).map((n) => ({ ...n, others: 0 }));
  const scale = (BAR - 4) / Math.max(0.01, ...rows.map((n) => n.idle + n.kept));
  if (rest.length) rows.push({ namespace: "", held: 0, idle: sum(rest, "idle"), kept: sum(rest, "kept"), others: rest.length });
  return (
    <section>
      <Head title="Who holds it" sub="GPUs now" />
      <Table
        class="mini"
        rows={rows}
        none="Nobody holds an idle GPU."
        columns={[
          {
            head: "Team",
            class: "nw",
            sum: "All",
            cell: (n) =>
              n.others ? (
                <span class="q">{n.others} more</span>
              ) : (
                <a href={`/workloads?view=idle&ns=${encodeURIComponent(n.namespace)}`}>{n.namespace}</a>
              ),
          },
          {
            unseen: "idle and kept as a bar",
            class: "bars",
            cell: (n) =>
              !n.others && (
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
              ),
          },
          figures("idle", rows, (n) => n.idle),
          { ...figures("kept", rows, (n) => n.kept), class: "q" },
        ]}
      />
    </section>
  );
}

export const WhyNot = ({ overview: { leftAlone } }: { overview: Overview }) => (
  <section>
    <Head title="Why it is not paused yet" />
    <Table
      class="mini"
      rows={leftAlone}
      none="Nothing is idle."
      columns={[
        { head: "Reason", cell: (r) => localised(r.sentence, now()), sum: "All idle" },
        { unseen: "Code", class: "q mono", cell: (r) => r.label },
        ...amounts(leftAlone),
      ]}
    />
  </section>
);

export const CannotTell = ({ overview: { unknowns } }: { overview: Overview }) => (
  <section>
    <Head title="What we cannot tell" />
    <Table
      class="mini"
      rows={unknowns}
      none="Every held GPU is measured."
      columns={[
        {
          head: "Reason, and what helps",
          sum: "All",
          cell: (r) => (
            <>
              {localised(r.sentence, now())}
              <div class="q xs">{r.helps}</div>
            </>
          ),
        },
        ...amounts(unknowns),
      ]}
    />
    {unknowns.length > 0 && <p class="q xs after">None of these is counted as idle, and none will be paused.</p>}
  </section>
);
