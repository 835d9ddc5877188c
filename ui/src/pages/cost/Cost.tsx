// What the GPUs cost: the sentence, who caused it down to pods, how it went by day, budgets, and what was saved. All choices stand in the address.
import { useState } from "preact/hooks";
import type { BudgetsPage, CostReportPage, CostSeriesPage, PricesPage } from "../../api";
import { useAnswer, type Answer } from "../../ask";
import { at } from "../../clock";
import { lines as csvLines, download } from "../../csv";
import { useTitle } from "../../hooks";
import { Icon } from "../../parts/Glyph";
import { Answered, Choice, FailedPart, Head, Loading, Segments } from "../../parts/small";
import { set, useAddress } from "../../route";
import { addUp, dayName, list, money, plural, span, tenth, time } from "../../words";
import { Budgets } from "./Budgets";
import { Days } from "./Days";
import { FiveParts } from "./FiveParts";
import { Keeps, Saved } from "./Saved";
import { asked, during, headOf, heldCosts, lines, mostIdle, shortName, sorted, stepOf, subject, terms, filterOf, word, type Sort } from "./spend";
import { WhoCaused } from "./WhoCaused";

const WINDOWS: [string, string][] = [
  ["24h", "24\u00a0hours"],
  ["7d", "7\u00a0days"],
  ["30d", "30\u00a0days"],
  ["90d", "90\u00a0days"],
  ["month", "this month"],
  ["lastmonth", "last month"],
];
const BY: [string, string][] = [
  ["team", "Team"],
  ["namespace", "Namespace"],
  ["workload", "Workload"],
  ["model", "Model"],
  ["capacity", "Capacity"],
  ["label", "Label…"],
];
const BASIS: [string, string][] = [
  ["allocation", "Allocation"],
  ["use", "Use"],
];
const STEPS = { hour: "Hour by hour", day: "Day by day", week: "Week by week", month: "Month by month" };
const MOST = "100";

export type Choices = { window: string; by: string; basis: string; filter: string; sort: Sort; most: string };
function useChoices(): Choices {
  const { query } = useAddress();
  const said = (name: string, usual: string) => query.get(name) || usual;
  return {
    window: said("window", "30d"),
    by: said("by", "team"),
    basis: said("basis", "allocation"),
    filter: said("filter", ""),
    sort: said("sort", "cost") as Sort,
    most: said("most", MOST),
  };
}

/** The same page with other choices. */
export function costPath(change: Record<string, string | null>): string {
  const query = new URLSearchParams(location.search);
  for (const [name, value] of Object.entries(change)) value ? query.set(name, value) : query.delete(name);
  return `/cost${query.size ? `?${query}` : ""}`;
}

const own = Intl.DateTimeFormat().resolvedOptions().timeZone;
function ask(name: string, { window, by, filter }: Choices, more: Record<string, string>): string {
  const query = new URLSearchParams({ window, by: asked(by), zone: own, ...(filter && { filter }), ...more });
  return `/api/v1/cost/${name}?${query}`;
}

export default function Cost() {
  useTitle("Cost");
  const chosen = useChoices();
  const unnamed = chosen.by === "label:";
  const report = useAnswer<CostReportPage>(
    unnamed ? null : ask("report", chosen, { basis: chosen.basis, compare: "true", most: chosen.most }),
  );
  if (report.error?.code === "NoBooks") return <NoBooks says={report.error.message} />;
  return (
    <>
      <section class="wh">
        <Crumbs filter={chosen.filter} />
        <Headline report={report} chosen={chosen} unnamed={unnamed} />
      </section>
      <Controls chosen={chosen} report={report.data} />
      {unnamed ? null : !report.data ? (
        report.error ? (
          <FailedPart answer={report} retry={report.retry} />
        ) : (
          <Loading rows={8} />
        )
      ) : report.data.gpuHours > 0 ? (
        <Spent chosen={chosen} report={report.data} />
      ) : (
        <p class="m">
          The books are kept
          {at(report.data.asOf) > 0 && `, and were written last ${time(at(report.data.asOf), at(report.data.window.end))}`}. GPUs that are
          there at the next look will be in them.
        </p>
      )}
      {!chosen.filter && report.data && <Beside chosen={chosen} />}
    </>
  );
}

const NoBooks = ({ says }: { says: string }) => (
  <>
    <section class="wh">
      <h1 class="say">What the GPUs cost is not written down here.</h1>
    </section>
    <section>
      <p class="m">
        fallow keeps books when it is told to: start the daemon with <code>--cost true</code>, or install the chart with{" "}
        <code>cost.enabled=true</code>. The first figures come with its next look at the cluster.
      </p>
      <p class="q xs after">The server says: {says}.</p>
    </section>
  </>
);

/** Where we are, from all of it down to one. */
function Crumbs({ filter }: { filter: string }) {
  const all = terms(filter);
  if (!all.length) return null;
  return (
    <nav class="crumb q" aria-label="Filter">
      <a class="l" href={costPath({ filter: null, by: null, sort: null, most: null })}>
        All costs
      </a>
      {all.map((term, i) => {
        const words = `${headOf(term.on).toLowerCase()} ${word(term.value)}`;
        const to = costPath({ filter: filterOf(all.slice(0, i + 1)), by: "workload", sort: null, most: null });
        return (
          <>
            {" › "}
            {i < all.length - 1 ? (
              <a class="l" href={to}>
                {words}
              </a>
            ) : (
              <span aria-current="page">{words}</span>
            )}
          </>
        );
      })}
    </nav>
  );
}

function Headline({ report: { data, error }, chosen, unnamed }: { report: Answer<CostReportPage>; chosen: Choices; unnamed: boolean }) {
  if (unnamed) return <h1 class="say">By which label?</h1>;
  if (!data) return <h1 class="say">{error ? "What the GPUs cost cannot be told now." : "What the GPUs cost"}</h1>;
  const { currency, total } = data;
  const when = during(chosen.window, at(data.window.start), at(data.window.end));
  if (!data.gpuHours)
    return (
      <h1 class="say">
        Nothing is booked {chosen.filter && <>for {subject(chosen.filter)} </>}
        {when}.
      </h1>
    );
  if (!total)
    return (
      <h1 class="say">
        What {subject(chosen.filter)} cost {when} cannot be told: {hours(data.unpricedGpuHours)} have no price.
      </h1>
    );
  const digits = total >= 10_000 ? 0 : 2;
  const say = (amount: number) => money(amount, currency, true, digits);
  const [idle, free] = addUp([data.held.heldIdle, data.platform.cost], digits) as [number, number];
  const nothing = idle + free;
  const first = mostIdle(data);
  const most = first ? `, most by ${first.name} (${say(first.amount)})` : "";
  return (
    <h1 class="say">
      {subject(chosen.filter)} cost {say(total)} {when}.{" "}
      {nothing > 0 ? (
        <>
          <mark>{say(nothing)} of it paid for GPUs that did nothing</mark>
          {free > 0
            ? idle > 0
              ? `: ${say(idle)} were held idle${most}; ${say(free)} nobody held.`
              : ": nobody held them."
            : `: held idle${most}.`}
        </>
      ) : (
        "None of it is known to have paid for GPUs that did nothing."
      )}
    </h1>
  );
}
const hours = (n: number) => `${tenth(n)}\u00a0GPU-hours`;

function Controls({ chosen, report }: { chosen: Choices; report: CostReportPage | null }) {
  const byLabel = chosen.by.startsWith("label:");
  const [key, put] = useState(byLabel ? chosen.by.slice(6) : "");
  const name = (e: Event) => {
    e.preventDefault();
    set({ by: `label:${key.trim()}`, sort: null });
  };
  return (
    <div class="ctl">
      <Window chosen={chosen.window} />
      <Segments
        label="By"
        named
        small={false}
        of={chosen.by === "pod" ? [...BY.slice(0, -1), ["pod", "Pod"], BY.at(-1)!] : BY}
        value={byLabel ? "label" : chosen.by}
        choose={(by) => set({ by: by === "label" ? `label:${key}` : by === "team" ? null : by, sort: null, most: null })}
      />
      {byLabel && (
        <form onSubmit={name}>
          <input
            class="inp"
            aria-label="Key of the label"
            placeholder="key, such as tier"
            value={key}
            onInput={(e) => put(e.currentTarget.value)}
            onChange={name}
          />
        </form>
      )}
      <Choice label="Basis" named name="basis" usual="allocation" small={false} of={BASIS} />
      {report && (
        <span class="ctlr">
          <State report={report} />
          {report.gpuHours > 0 && (
            <button type="button" class="btn" onClick={() => save(report, chosen)}>
              <Icon name="save" />
              CSV
            </button>
          )}
        </span>
      )}
    </div>
  );
}

function Window({ chosen }: { chosen: string }) {
  const other: typeof WINDOWS = WINDOWS.some(([window]) => window === chosen) ? [] : [[chosen, "as in the address"]];
  return (
    <label class="sel">
      <span class="q">Window</span>
      <select value={chosen} onChange={(e) => set({ window: e.currentTarget.value === "30d" ? null : e.currentTarget.value })}>
        {[...WINDOWS, ...other].map(([window, words]) => (
          <option value={window}>{words}</option>
        ))}
      </select>
      <Icon name="down" />
    </label>
  );
}

/** How new the books and the prices are, and what has none. */
function State({ report }: { report: CostReportPage }) {
  const prices = useAnswer<PricesPage>("/api/v1/cost/prices").data;
  const behind = Math.max(0, at(report.window.end) - at(report.asOf)) / 1000;
  const days = (prices?.items ?? []).filter((one) => one.isUsed && one.retrievedAt).map((one) => at(one.retrievedAt!));
  const oldest = days.length ? dayName(Math.min(...days)).slice(4) : null;
  const stale = report.stalePrices.length;
  return (
    <span class="q s">
      {behind > 0 && `Ledger ${span(behind)} behind`}
      {oldest && ` · prices of ${oldest}${days.length > 1 ? " or newer" : ""}`}
      {stale > 0 && <b class="bt"> · {plural(stale, "price")} stale</b>}
      {report.unpricedGpuHours > 0 && ` · ${hours(report.unpricedGpuHours)} have no price`}
    </span>
  );
}

function save(report: CostReportPage, { by, window }: Choices): void {
  const { rows, below } = lines(report);
  const names = asked(by).split(",");
  const all = [...rows, ...below.filter((line) => line.kind !== "held")];
  const columns: [string, (line: (typeof all)[number]) => string | number | null][] = [
    ...names.map((name, i): [string, (line: (typeof all)[number]) => string] => [name, (line) => line.keys[i] ?? (i ? "" : line.key)]),
    ["gpu_hours", (line) => line.hours],
    [`cost_${report.currency.toLowerCase()}`, (line) => line.cost],
    ["used", (line) => line.parts?.used ?? null],
    ["allocated_unused", (line) => line.parts?.allocatedUnused ?? null],
    ["held_idle", (line) => line.parts?.heldIdle ?? null],
    ["use_unknown", (line) => line.parts?.useUnknown ?? null],
    ["change", (line) => line.change],
  ];
  const when = [report.window.start, report.window.end].map((each) => each.slice(0, 10)).join("-");
  download(`fallow-cost-${by.replace(/\W+/g, "-")}-${LENGTH_OK.test(window) ? window : when}.csv`, "text/csv", csvLines(columns, all));
}
const LENGTH_OK = /^\w+$/;

/** A window that ends now begins in the middle of something, too. */
const partly = (window: string, step: string) =>
  window.includes(",") || window.startsWith("last") || window === "yesterday"
    ? ""
    : /^\d/.test(window)
      ? `; the first and the last ${step} are not whole`
      : `; the last ${step} is not over`;

function Spent({ chosen, report }: { chosen: Choices; report: CostReportPage }) {
  const step = stepOf(chosen.window);
  const series = useAnswer<CostSeriesPage>(ask("series", chosen, { step, most: "8" }));
  const { rows, below, total } = lines(report);
  const names = new Map(report.rows.map((row) => [row.key, shortName(chosen.by, row.keys)]));
  const head = headOf(chosen.by).toLowerCase();
  return (
    <>
      {report.total > 0 && (
        <section>
          <FiveParts report={report} filtered={!!chosen.filter} />
        </section>
      )}
      <section>
        <Head title={STEPS[step]} sub={`by ${head}${chosen.basis === "use" ? ", as it was held" : ""}${partly(chosen.window, step)}`} />
        <Answered of={series} rows={6}>
          {(data) => <Days series={data} names={names} known={heldCosts(report)} nobodys={report.platform.cost} />}
        </Answered>
      </section>
      <section>
        <Head title="Who caused it" sub="every cent is in exactly one row and one column" wide />
        <WhoCaused rows={sorted(rows, chosen.sort)} below={below} total={total} chosen={chosen} currency={report.currency} />
        <Notes report={report} chosen={chosen} />
      </section>
    </>
  );
}

function Notes({ report, chosen }: { report: CostReportPage; chosen: Choices }) {
  const prices = useAnswer<PricesPage>("/api/v1/cost/prices").data;
  const none = prices?.unpriced.map((one) => `${one.gpuModel || one.instanceType} on ${plural(one.nodes, "node")}`) ?? [];
  return (
    <>
      {report.rows.length > Number(chosen.most) && chosen.most === MOST && (
        <p class="after">
          <a class="l" href={costPath({ most: "1000" })}>
            Show the next of “all others”
          </a>
        </p>
      )}
      {report.unpricedGpuHours > 0 && (
        <p class="q xs after">
          {hours(report.unpricedGpuHours)} have no price and are in no sum{none.length > 0 && <>; now without one: {list(none)}</>}.
        </p>
      )}
      <p class="q xs after">
        Change: of what it held, against as long before
        {report.before ? `, when all of it came to ${money(report.before, report.currency)}` : "; nothing is booked there"}.
        {chosen.basis === "use" &&
          " By use a row pays for what it used; what it held and did not use stands in a line of its own, and the total is the same."}
      </p>
    </>
  );
}

/** What is about the whole cluster. */
function Beside({ chosen }: { chosen: Choices }) {
  const budgets = useAnswer<BudgetsPage>("/api/v1/cost/budgets");
  return (
    <>
      <Budgets answer={budgets} />
      <div class="last">
        <Saved window={chosen.window} />
        <Keeps />
      </div>
    </>
  );
}
