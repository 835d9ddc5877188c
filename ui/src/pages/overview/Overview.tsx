// The operator's first page: how much lies fallow, where, what happens next, what the last day was like, and why the rest is left alone.
import { useMemo, useState } from "preact/hooks";
import type { Field as FieldAnswer, Gpus, Overview as Answer, Ref, Row, Savings, Slot, States, Workloads } from "../../api";
import { useAnswer } from "../../ask";
import { useNow } from "../../clock";
import { useTitle } from "../../hooks";
import { OVERVIEW } from "../../live";
import { Agenda } from "./Agenda";
import { GivenBack } from "./GivenBack";
import { Badge, Field, goneOf, type Arrange, type Only, type Show } from "./Field";
import { Inspector } from "./Inspector";
import { LandUse } from "./LandUse";
import { Answered, Choice, FailedPart, Head, Loading, WINDOWS } from "../../parts/small";
import { StatesChart } from "./StatesChart";
import { CannotTell, WhoHolds, WhyNot } from "./tables";
import { go, useAddress, workloadPath } from "../../route";
import { count, gpus as gpusWords, money, plural } from "../../words";

const idleSum = (g: Gpus) =>
  g.idle === null || g.told === null || g.left === null || g.kept === null ? null : g.idle + g.told + g.left + g.kept;

const MOST_STEPS = 8; // what the server tells of the steps that come next
/** The sentence of the page. */
function Headline({ overview, now }: { overview: Answer; now: number }) {
  const { gpus, money: cost, currency } = overview;
  const fallow = idleSum(gpus);
  if (fallow === null || gpus.told === null || gpus.total === null)
    return <h1 class="say">Cannot tell how much lies fallow yet: {overview.failure?.because ?? "nothing was measured so far"}.</h1>;
  const heldAll = gpus.total - (gpus.free ?? 0) - gpus.freed;
  if (fallow < 0.05)
    return (
      <h1 class="say">
        <mark class="bsy">Nothing lies fallow.</mark> {gpusWords(heldAll)} of {count(gpus.total)} GPUs are held
        {gpus.unknown ? `; ${gpusWords(gpus.unknown)} cannot be told` : ", all at work"}.
      </h1>
    );
  const whole = (n: number) => (n >= 10 ? count(Math.round(n)) : gpusWords(n));
  const perHour = cost.perHour.idle === null ? null : cost.perHour.idle + (cost.perHour.kept ?? 0);
  const soon = overview.next.filter((n) => n.step === "pause" && (!n.at || Date.parse(n.at) <= now + 30.5 * 60_000));
  const soonGpus = soon.reduce((sum, n) => sum + n.gpus, 0);
  const all = overview.next.length < MOST_STEPS || overview.next.some((n) => !soon.includes(n)); // else there may be more than we were told of
  const would = overview.mode === "acting" ? "will" : "would";
  const soonWords = all ? (
    <>
      {whole(soonGpus)} of them {would} be paused within 30&nbsp;minutes unless their owners keep them.
    </>
  ) : (
    <>
      {whole(gpus.told)} of them are in notice and {would} be paused unless their owners keep them.
    </>
  );
  return (
    <h1 class="say">
      <mark>
        {whole(fallow)} of {count(gpus.total)} GPUs lie fallow
      </mark>
      {perHour !== null && perHour > 0 && <>, at {money(perHour, currency, true)} an hour</>}.{" "}
      {overview.frozen
        ? "Nothing is paused while it is frozen."
        : soonGpus > 0
          ? soonWords
          : "None of them is paused within the next 30\u00a0minutes."}
    </h1>
  );
}

function useRows(): Map<string, Row> {
  const { data } = useAnswer<Workloads>("/api/v1/workloads?view=idle&limit=500");
  return useMemo(() => new Map((data?.items ?? []).map((row) => [row.uid, row])), [data]);
}

const ARRANGE: [Arrange, string][] = [
  ["pool", "Pool"],
  ["team", "Team"],
  ["model", "Model"],
];
const SHOW: [Show, string][] = [
  ["verdict", "Verdict"],
  ["activity", "Activity"],
  ["cost", "Cost"],
];

function FieldPart({ overview, rows, now }: { overview: Answer; rows: Map<string, Row>; now: number }) {
  const answer = useAnswer<FieldAnswer>("/api/v1/gpus");
  const { query } = useAddress();
  const [slot, pick] = useState<Slot | null>(null);
  const arrange = (query.get("arrange") ?? "pool") as Arrange;
  const show = (query.get("show") ?? "verdict") as Show;
  const pools = answer.data?.pools ?? [];
  const nodes = pools.reduce((n, p) => n + p.nodes.length, 0);
  const open = (ref: Ref) => go(workloadPath(ref));
  return (
    <section class="fieldsec">
      <Head title="The field" sub={answer.data && `${plural(nodes, "node")}, ${plural(pools.length, "pool")}`}>
        <Choice label="Arrange by" named name="arrange" usual="pool" of={ARRANGE} />
        <span class="dsk">
          <Choice label="Show" named name="show" usual="verdict" of={SHOW} />
        </span>
      </Head>
      <Answered of={answer} rows={8}>
        {(field) => (
          <>
            <Field
              field={field}
              arrange={arrange}
              show={show}
              only={query.get("only") as Only}
              currency={overview.currency}
              picked={slot?.holder?.uid ?? null}
              pick={(s) => pick(s)}
              open={open}
              gone={goneOf(rows, now)}
            />
            <BadgeKey show={show} />
            <Inspector slot={slot} field={field} rows={rows} currency={overview.currency} now={now} />
          </>
        )}
      </Answered>
    </section>
  );
}

const BADGES: [Slot["state"], string][] = [
  ["told", "owner told, time running"],
  ["idle", "second look"],
  ["kept", "kept"],
  ["left", "idle, left alone"],
  ["unknown", "cannot tell"],
];
const BadgeKey = ({ show }: { show: Show }) => (
  <p class="bk q xs">
    {show === "verdict" &&
      BADGES.map(([state, words]) => (
        <span>
          <svg width="16" height="16" viewBox="-8.5 -8.5 17 17" aria-hidden="true">
            <Badge state={state} gone={0.15} />
          </svg>
          {words}
        </span>
      ))}
    <span class="sp" />
    <span class="dsk">
      {show === "verdict"
        ? "Fainter green: busy below 30 %"
        : show === "activity"
          ? "Darker: busier; hatched: cannot tell"
          : "Darker: dearer by the hour; hatched: no price"}
    </span>
  </p>
);

const TITLE: Record<string, [string, string]> = {
  "24h": ["The last 24 hours", "every 5 min"],
  "7d": ["The last 7 days", "every 30 min"],
  "30d": ["The last 30 days", "every 2 h"],
};

function History() {
  const { query } = useAddress();
  const window = query.get("window") ?? "24h";
  const answer = useAnswer<States>(`/api/v1/states?window=${window}`);
  const [title, step] = TITLE[window] ?? TITLE["24h"]!;
  return (
    <section>
      <Head title={title} sub={`GPUs by state, ${step}`}>
        <Choice label="Window" name="window" usual="24h" of={WINDOWS} />
      </Head>
      <Answered of={answer} rows={6}>
        {(states) =>
          states.busy.length > 1 ? (
            <StatesChart states={states} />
          ) : (
            <p class="q">No history yet: the first figures come with the next cycles.</p>
          )
        }
      </Answered>
    </section>
  );
}

/** Whose figures: where books are kept, those of the page of costs. */
const about = (savings: Savings | null) =>
  [
    "GPU-hours a day",
    savings?.mode === "dry-run" && "if it acted",
    savings && (savings.source === "books" ? "by the books, each hour" : "no books are kept"),
  ]
    .filter(Boolean)
    .join(", ");

function GivenBackPart() {
  const answer = useAnswer<Savings>("/api/v1/savings?window=14d");
  return (
    <section>
      <Head title="Given back" sub={about(answer.data)} />
      <Answered of={answer} rows={6}>
        {(savings) => (savings.days.length ? <GivenBack savings={savings} /> : <p class="q">Nothing was paused yet.</p>)}
      </Answered>
    </section>
  );
}

export default function Overview() {
  useTitle("Overview");
  const now = useNow(10);
  const answer = useAnswer<Answer>(OVERVIEW);
  const rows = useRows();
  const overview = answer.data;
  if (!overview)
    return <section class="hero">{answer.error ? <FailedPart answer={answer} retry={answer.retry} /> : <Loading rows={6} />}</section>;
  return (
    <>
      <section class="hero">
        <Headline overview={overview} now={now} />
        <LandUse overview={overview} />
      </section>
      <div class="two">
        <FieldPart overview={overview} rows={rows} now={now} />
        <Agenda overview={overview} rows={rows} now={now} />
      </div>
      <div class="two">
        <History />
        <GivenBackPart />
      </div>
      <div class="three">
        <WhoHolds overview={overview} />
        <WhyNot overview={overview} />
        <CannotTell overview={overview} />
      </div>
    </>
  );
}
