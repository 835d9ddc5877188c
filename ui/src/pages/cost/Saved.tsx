// What was saved, realised apart from freed, and what open keeps have cost so far.
import type { Acks, AckSpendPage, CostSavingsPage, SavingLine } from "../../api";
import { useAnswer } from "../../ask";
import { at } from "../../clock";
import { useNarrow } from "../../hooks";
import { Answered, Head } from "../../parts/small";
import { Table, type Column } from "../../parts/Table";
import { workloadPath } from "../../route";
import { addUp, money, tenth, time } from "../../words";

const WORDS: Record<SavingLine["type"], string> = {
  waste: "Paused workloads",
  autoscaling: "Nodes removed",
  sharing: "Shared GPUs",
  spot: "Spot",
};
const ORDER: SavingLine["type"][] = ["waste", "autoscaling", "sharing", "spot"];
const WIDE = 150;

export function Saved({ window }: { window: string }) {
  const answer = useAnswer<CostSavingsPage>(`/api/v1/cost/savings?window=${encodeURIComponent(window)}`);
  return (
    <section>
      <Head title="What was saved" sub="measured; regretted pauses are not in it" wide />
      <Answered of={answer}>{(page) => (page.lines.length ? <Lines page={page} /> : <None page={page} />)}</Answered>
    </section>
  );
}

const None = ({ page }: { page: CostSavingsPage }) => (
  <p class="q">
    Nothing is known to have been saved in this time. <DryRun page={page} />
  </p>
);
const DryRun = ({ page: { dryRunGpuHours, dryRunWorth, currency } }: { page: CostSavingsPage }) =>
  dryRunGpuHours > 0 ? (
    <>
      Dry runs would have freed {tenth(dryRunGpuHours)}&nbsp;GPU-hours, worth {money(dryRunWorth, currency)}; they are in no sum.
    </>
  ) : (
    <>Dry-run figures are never in here.</>
  );

function Lines({ page }: { page: CostSavingsPage }) {
  const { currency, roi } = page;
  const found = ORDER.flatMap((type) => page.lines.find((line) => line.type === type) ?? []);
  const rows = found.map((row) => (row.type === "spot" ? { ...row, gpuHours: 0, realisedGpuHours: 0 } : row)); // frees no GPU
  const taken = addUp(rows.map((row) => row.realisedGpuHours));
  const left = addUp(rows.map((row) => row.gpuHours - row.realisedGpuHours));
  const tenths = (of: number[]) => Math.round(of.reduce((a, b) => a + b, 0) * 10) / 10;
  const most = Math.max(1, ...rows.map((row) => row.gpuHours));
  const shown = rows.map((row, i) => ({ ...row, taken: taken[i]!, left: left[i]!, freed: tenths([taken[i]!, left[i]!]) }));
  const narrow = useNarrow();
  const saved: Column<(typeof shown)[number]> = {
    head: "saved",
    right: true,
    cell: (row) => <b>{money(row.saved, currency)}</b>,
    sum: money(page.saved, currency),
  };
  const freed = (row: (typeof shown)[number]) => (isPrice(row) ? <span class="q">price only</span> : tenth(row.freed));
  const isPrice = (row: (typeof shown)[number]) => !row.gpuHours;
  return (
    <>
      <div class="scroll" tabindex={0} role="region" aria-label="What was saved">
        <Table
          class="mini sv"
          caption="What was saved, by how"
          rows={shown}
          columns={[
            {
              unseen: "How",
              class: narrow ? undefined : "nw",
              cell: (row) => (
                <>
                  <b>{WORDS[row.type]}</b>
                  {narrow && <div class="q xs">{method(row)}</div>}
                </>
              ),
              sum: "Total",
            },
            narrow && saved,
            !narrow && {
              unseen: "Taken and not taken, drawn",
              class: "spc",
              cell: (row) =>
                !isPrice(row) && <Freed taken={row.realisedGpuHours / most} left={(row.gpuHours - row.realisedGpuHours) / most} />,
              sum: "",
            },
            {
              head: "GPU-hours freed",
              right: true,
              cell: (row) => (
                <>
                  {freed(row)}
                  {narrow && !isPrice(row) && <div class="q xs">{tenth(row.taken)} taken by others</div>}
                </>
              ),
              sum: tenth(tenths(shown.map((row) => row.freed))),
            },
            !narrow && {
              head: "taken by others",
              right: true,
              cell: (row) => !isPrice(row) && tenth(row.taken),
              sum: tenth(tenths(taken)),
            },
            !narrow && { head: "not taken", right: true, cell: (row) => !isPrice(row) && tenth(row.left), sum: tenth(tenths(left)) },
            !narrow && saved,
            !narrow && {
              head: "how it is counted",
              class: "q xs how",
              cell: method,
              sum: roi.ownCost > 0 ? <span class="q xs">fallow itself cost {money(roi.ownCost, currency)}</span> : "",
            },
          ]}
        />
      </div>
      <p class="q xs after">
        Saved is money: somebody else used the GPU, or its node went away. What nobody took is capacity, not money. <DryRun page={page} />
      </p>
    </>
  );
}

const method = (row: SavingLine) => row.method.replaceAll(" x ", " × ").replace(" - 1)", " − 1)");

const Freed = ({ taken, left }: { taken: number; left: number }) => (
  <svg width={WIDE} height="12" aria-hidden="true">
    <rect width={taken * WIDE} height="12" rx="2" fill="var(--rest)" />
    {left > 0 && (
      <rect x={taken * WIDE + 1} y=".5" width={Math.max(0, left * WIDE - 2)} height="11" rx="2" fill="url(#p-freed)" stroke="var(--rest)" />
    )}
  </svg>
);

const MOST = 8;
export function Keeps() {
  const answer = useAnswer<AckSpendPage>("/api/v1/cost/acks");
  const standing = useAnswer<Acks>("/api/v1/acks").data?.items ?? [];
  return (
    <section>
      <Head title="Open keeps" sub="idle cost so far" />
      <Answered of={answer}>
        {(page) => {
          const open = page.items.filter((one) => one.isOpen);
          if (!open.length) return <p class="q">Nothing idle is kept now.</p>;
          const now = at(page.asOf);
          const total = Math.round(open.reduce((sum, one) => sum + one.cost * 100, 0)) / 100;
          return (
            <Table
              class="mini"
              caption="Open keeps and what they have cost"
              rows={open.slice(0, MOST)}
              columns={[
                {
                  unseen: "Workload",
                  cell: (one) => (
                    <>
                      <a class="b" href={workloadPath(one)}>
                        {one.name}
                      </a>{" "}
                      <span class="q">{one.namespace}</span>
                      <span class="q xs within">kept idle since {time(at(one.since), now)}</span>
                    </>
                  ),
                  sum: open.length > MOST ? `All ${open.length}, ${open.length - MOST} not shown` : `All ${open.length}`,
                },
                {
                  unseen: "Until",
                  right: true,
                  class: "m",
                  cell: (one) => {
                    const ack = standing.find(
                      ({ workload: w }) => w.namespace === one.namespace && w.kind === one.kind && w.name === one.name,
                    );
                    return ack && `until ${time(at(ack.until), now)}`;
                  },
                  sum: "",
                },
                {
                  unseen: "Cost",
                  right: true,
                  cell: (one) => (one.unpricedGpuHours > 0 && !one.cost ? "no price" : money(one.cost, page.currency)),
                  sum: money(total, page.currency),
                },
              ]}
            />
          );
        }}
      </Answered>
    </section>
  );
}
