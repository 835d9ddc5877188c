// This cluster and its peers, side by side: what their GPUs do, what they cost, what was saved, and the sums of those that are seen.
import type { ClusterRow, ClustersPage, ClusterSums } from "../../api";
import { useAnswer } from "../../ask";
import { at, useNow } from "../../clock";
import { useTitle } from "../../hooks";
import { Glyph } from "../../parts/Glyph";
import { Answered, Head } from "../../parts/small";
import { type Column, Table } from "../../parts/Table";
import { CANNOT_TELL, gpus, hundredth, money, plural, span, tenth, time, utc } from "../../words";

const hours = (n: number | null) => (n === null ? CANNOT_TELL : `${tenth(n)}\u00a0h`);
const MODE = { acting: "Acting", "dry-run": "Dry run" } as const;

function Headline({ sums, of }: { sums: ClusterSums; of: number }) {
  if (of === 1) return <>This is the only cluster that is shown here.</>;
  if (!sums.clusters) return <mark class="u">None of {of} clusters is seen.</mark>;
  return (
    <>
      {sums.total === null ? `${CANNOT_TELL} how many GPUs there are` : `${gpus(sums.total)} GPUs`} in {plural(sums.clusters, "cluster")}.{" "}
      {sums.idle !== null && <mark>{gpus(sums.idle)} of them are idle.</mark>}
      {sums.unseen.length > 0 && (
        <>
          {" "}
          <mark class="u">
            {sums.unseen.join(", ")} {sums.unseen.length === 1 ? "is" : "are"} not seen.
          </mark>
        </>
      )}
    </>
  );
}

/** When it was measured; or why there is nothing to tell. */
function Sight({ row, now }: { row: ClusterRow; now: number }) {
  if (row.sight === "seen")
    return <span title={row.seenAt ? utc(at(row.seenAt)) : undefined}>measured {span(Math.max(0, row.measuredSeconds ?? 0))} ago</span>;
  return (
    <>
      <Glyph name="unknown" /> Not seen: {row.because}
      {row.sight === "away" && row.seenAt && <div class="q xs">last answered {time(at(row.seenAt), now)}</div>}
    </>
  );
}

const boards = (n: number | null) => (n === null ? CANNOT_TELL : hundredth(n));
const figure = (row: ClusterRow, text: string) => (row.sight === "seen" ? text : <span class="q">not seen</span>);
const paid = (row: ClusterRow, of: (costs: NonNullable<ClusterRow["costs"]>) => number) =>
  row.costs ? money(of(row.costs), row.costs.currency) : figure(row, "not told");
const summed = (sums: ClusterSums, of: (each: ClusterSums["money"][number]) => number) =>
  sums.money.map((each) => <div>{money(of(each), each.currency)}</div>);

const columns = (sums: ClusterSums, now: number): Column<ClusterRow>[] => [
  {
    head: "Cluster",
    cell: (row) =>
      row.url ? (
        <a class="b" href={row.url} target="_blank" rel="noreferrer">
          {row.name}
        </a>
      ) : (
        <b>{row.name}</b>
      ),
    sum: `${plural(sums.clusters, "cluster")} that ${sums.clusters === 1 ? "is" : "are"} seen`,
  },
  { head: "Mode", class: "nw", cell: (row) => (row.mode ? MODE[row.mode] : <span class="q">not seen</span>), sum: "" },
  { head: "GPUs", right: true, cell: (row) => figure(row, boards(row.total)), sum: boards(sums.total) },
  { head: "busy", right: true, cell: (row) => figure(row, boards(row.busy)), sum: boards(sums.busy) },
  { head: "idle", right: true, cell: (row) => figure(row, boards(row.idle)), sum: boards(sums.idle) },
  { head: "cannot tell", right: true, cell: (row) => figure(row, boards(row.unknown)), sum: boards(sums.unknown) },
  { head: "free", right: true, cell: (row) => figure(row, boards(row.free)), sum: boards(sums.free) },
  {
    head: "given back, 30 d",
    right: true,
    cell: (row) => (
      <>
        {figure(row, hours(row.givenBackGpuHours))}
        {row.mode === "dry-run" && row.givenBackGpuHours !== null && <div class="q xs">would have been</div>}
      </>
    ),
    sum: sums.givenBackGpuHours === null ? "" : hours(sums.givenBackGpuHours),
  },
  { head: "now, per hour", right: true, cell: (row) => paid(row, (c) => c.perHour), sum: summed(sums, (s) => s.perHour) },
  { head: "this month", right: true, cell: (row) => paid(row, (c) => c.monthToDate), sum: summed(sums, (s) => s.monthToDate) },
  { head: "saved this month", right: true, cell: (row) => paid(row, (c) => c.savedThisMonth), sum: summed(sums, (s) => s.savedThisMonth) },
  { head: "Seen", cell: (row) => <Sight row={row} now={now} />, sum: "" },
];

export default function Clusters() {
  useTitle("Clusters");
  const now = useNow(30);
  const answer = useAnswer<ClustersPage>("/api/v1/all-clusters");
  return (
    <Answered of={answer} rows={4}>
      {({ clusters, sums }) => (
        <>
          <section class="wh">
            <h1 class="say sm">
              <Headline sums={sums} of={clusters.length} />
            </h1>
          </section>
          <section>
            <Head title="Clusters" sub="only read: what is done in another one is done on its own dashboard" />
            <div class="scroll" tabindex={0} role="region" aria-label="Clusters">
              <Table rows={clusters} columns={columns(sums, now)} />
            </div>
            {sums.wouldGiveBackGpuHours !== null && (
              <p class="q after">Dry runs would have given back {hours(sums.wouldGiveBackGpuHours)}; that is in no sum.</p>
            )}
            {sums.withoutBooks > 0 && (
              <p class="q after">Of {plural(sums.withoutBooks, "cluster")} nobody told what it costs: that is in no sum.</p>
            )}
            {clusters.length === 1 && (
              <p class="q after">
                Further ones are named by <code>--peer NAME=URL</code>.
              </p>
            )}
          </section>
        </>
      )}
    </Answered>
  );
}
