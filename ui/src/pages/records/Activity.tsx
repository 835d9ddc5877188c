// What was decided and by whom, day by day; how often a pause was regretted; what did not happen. Filters are in the address.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import type { Decided, DecidedType, Decisions, Pace, Regrets } from "../../api";
import { demo, fetchJson, Refused, useAnswer } from "../../ask";
import { at, useNow } from "../../clock";
import { download } from "../../csv";
import { useTitle } from "../../hooks";
import { brief } from "./brief";
import { PaceBars } from "./PaceBars";
import { Heartbeats, RegretSide } from "./regrets";
import { Glyph, type GlyphName, Icon } from "../../parts/Glyph";
import { Fills } from "../../parts/chart";
import { Answered, Choice, FailedPart, Head, Loading, WINDOWS } from "../../parts/small";
import { set, useAddress, workloadPath } from "../../route";
import { clock, count, dayName, gpus, localised, plural, sameDay, span, startOfDay, utc } from "../../words";

const KIND: Record<DecidedType, [string, GlyphName]> = {
  told: ["Told", "told"],
  paused: ["Paused", "rest"],
  resumed: ["Resumed", "busy"],
  kept: ["Kept", "kept"],
  keepEnded: ["Keep ended", "kept"],
  refused: ["Refused", "kept"],
  failed: ["Failed", "bad"],
  notPaused: ["Not paused", "busy"],
  broughtBack: ["Brought back", "busy"],
  left: ["Left alone", "idle"],
  frozen: ["Frozen", "frost"],
  unfrozen: ["Unfrozen", "frost"],
  noDecision: ["No decision", "unknown"],
  wouldPause: ["Would pause", "rest"],
  regretted: ["Regretted", "bad"],
  released: ["Released", "rest"],
  nodesAdded: ["Nodes added", "busy"],
  drainBegun: ["Node drained", "rest"],
  drainUndone: ["Node kept", "kept"],
  nodeRemoved: ["Node removed", "rest"],
  spotInterrupted: ["Spot node ends", "bad"],
  restarted: ["Restarted", "busy"],
  moveBegun: ["Pod is moved", "rest"],
  podMoved: ["Pod moved", "busy"],
  moveStopped: ["Move stopped", "kept"],
  alertSeen: ["Alert seen", "busy"],
};
type Filter = "all" | "nodes" | "pauses" | "notices" | "keeps" | "resumes" | "refused" | "failures" | "people";
const TYPES: Record<Filter, DecidedType[] | null> = {
  all: null,
  pauses: ["paused", "notPaused", "wouldPause", "released"],
  nodes: ["nodesAdded", "drainBegun", "drainUndone", "nodeRemoved", "spotInterrupted", "moveBegun", "podMoved", "moveStopped"],
  notices: ["told"],
  keeps: ["kept", "keepEnded"],
  resumes: ["resumed", "broughtBack", "regretted"],
  refused: ["refused"],
  failures: ["failed", "noDecision"],
  people: ["kept", "resumed", "refused", "regretted", "broughtBack", "frozen", "unfrozen", "paused", "alertSeen"],
};
const LABEL: [Filter, string][] = [
  ["all", "All"],
  ["pauses", "Pauses"],
  ["notices", "Notices"],
  ["keeps", "Keeps"],
  ["resumes", "Resumes"],
  ["refused", "Refused"],
  ["failures", "Failures"],
  ["nodes", "Nodes"],
  ["people", "By people"],
];
const PAGE = 24;
const byPeople = (d: Decided) => d.source !== "cycle";

type Log = { items: Decided[]; next: string | null; total: number; error: Refused | null; loading: boolean };
type Counts = Decisions["counts"];
const counted = (counts: Counts, ...types: DecidedType[]) => types.reduce((sum, type) => sum + (counts[type] ?? 0), 0);
const NONE: Log = { items: [], next: null, total: 0, error: null, loading: true };

function useLog(filter: Filter, since: string | null, until: string | null): Log & { older: () => void; reload: () => void } {
  const [log, put] = useState<Log>(NONE);
  const [round, setRound] = useState(0);
  const types = TYPES[filter];
  const query = [
    types && `type=${types.join(",")}`,
    since && `since=${encodeURIComponent(since)}`,
    until && `until=${encodeURIComponent(until)}`,
    `limit=${PAGE}`,
  ]
    .filter(Boolean)
    .join("&");
  const head = useAnswer<Decisions>(`/api/v1/decisions?${query}`); // asked anew with every cycle
  useEffect(() => {
    if (head.data)
      put((old) => ({
        items: joined(head.data!.items, old.items, old.next === null && old.items.length === 0),
        next: old.items.length > head.data!.items.length ? old.next : head.data!.next,
        total: Object.values(head.data!.counts).reduce((a, b) => a + b, 0),
        error: null,
        loading: false,
      }));
    else if (head.error) put((old) => ({ ...old, error: head.error, loading: false }));
  }, [head.data, head.error, round]);
  useEffect(() => put(NONE), [query]);
  const older = () => {
    if (!log.next) return;
    fetchJson<Decisions>(`/api/v1/decisions?${query}&cursor=${encodeURIComponent(log.next)}`)
      .then(({ data }) => data && put((old) => ({ ...old, items: [...old.items, ...data.items], next: data.next })))
      .catch((error: unknown) => error instanceof Refused && put((old) => ({ ...old, error })));
  };
  return {
    ...log,
    older,
    reload: () => {
      head.retry();
      setRound((n) => n + 1);
    },
  };
}

/** New entries on top of those we have; nothing twice. */
function joined(fresh: Decided[], old: Decided[], replace: boolean): Decided[] {
  const known = new Set(fresh.map((d) => d.id));
  const kept = replace ? [] : old.filter((d) => !known.has(d.id));
  return [...fresh, ...kept].sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : b.id - a.id));
}

const SOURCE: Partial<Record<Decided["source"], string>> = { slack: "Slack", cli: "CLI", annotation: "annotation" };

function Entry({ entry, now }: { entry: Decided; now: number }) {
  const [open, put] = useState(false);
  const [verb, glyph] = KIND[entry.type];
  const bad = entry.type === "failed" || entry.type === "regretted";
  const source = SOURCE[entry.source];
  const hint = entry.detail && entry.type === "failed";
  const facts: [string, ComponentChildren][] = [["What", localised(entry.sentence, now)]];
  for (const line of entry.detail && !hint ? entry.detail.split("\n") : []) {
    const [, name, rest] = /^([A-Z][\w ]{1,18}): (.*)$/.exec(line) ?? [null, "Detail", line];
    facts.push([name!, localised(rest!, now)]);
  }
  if (entry.reason) facts.push(["Reason", `“${entry.reason}”`]);
  if (entry.policy) {
    const to = `/policies/${encodeURIComponent(entry.policy)}`;
    facts.push([
      "Policy",
      <a class="l" href={to}>
        {entry.policy}
      </a>,
    ]);
  }
  if (entry.code) facts.push(["Code", <code>{entry.code}</code>]);
  facts.push(["At", utc(at(entry.at))]);
  const classes = [bad && "err", open && "open"].filter(Boolean).join(" ");
  return (
    <>
      <tr class={classes}>
        <td class="n t" title={utc(at(entry.at))}>
          {clock(at(entry.at))}
        </td>
        <td class="gl">
          <Glyph name={glyph} />
        </td>
        <td class="vb">{verb}</td>
        <td class="wd">
          <div class="clip">
            {entry.workload && (
              <>
                <a class="b" href={workloadPath(entry.workload)}>
                  {entry.workload.name}
                </a>{" "}
              </>
            )}
            <span class="m">{localised(brief(entry), now)}</span>
          </div>
          {hint && <div class="fix xs">{localised(entry.detail!, now)}</div>}
        </td>
        <td class="m who">
          {entry.type === "broughtBack" ? "not through fallow" : entry.actor}
          {source && `, ${source}`}
        </td>
        <td class="r n">{entry.gpus === null ? "" : gpus(entry.gpus)}</td>
        <td class="r ch">
          <button
            type="button"
            class="plain"
            aria-expanded={open}
            aria-label={`Details of ${verb.toLowerCase()} ${entry.workload?.name ?? ""} at ${clock(at(entry.at))}`}
            onClick={() => put(!open)}
          >
            <Icon name={open ? "down" : "right"} />
          </button>
        </td>
      </tr>
      {open && (
        <tr class="det">
          <td colSpan={2} />
          <td colSpan={5}>
            <dl>
              {facts.map(([name, value]) => (
                <>
                  <dt>{name}</dt>
                  <dd>{value}</dd>
                </>
              ))}
            </dl>
          </td>
        </tr>
      )}
    </>
  );
}

/** Of a whole day, however much of it is shown; people's own acts alone are not counted. */
function DaySums({ day, filter }: { day: number; filter: Filter }) {
  const types = TYPES[filter];
  const [since, until] = [day, day + 86_400_000].map((t) => encodeURIComponent(new Date(t).toISOString()));
  const only = types ? `&type=${types.join(",")}` : "";
  const { data } = useAnswer<Decisions>(filter === "people" ? null : `/api/v1/decisions?since=${since}&until=${until}&limit=1${only}`);
  if (!data) return null;
  const parts: [number, string, string][] = [
    [counted(data.counts, "told"), "notice", "notices"],
    [counted(data.counts, "paused"), "pause", "pauses"],
    [counted(data.counts, "resumed", "broughtBack"), "came back", "came back"],
    [counted(data.counts, "kept"), "keep", "keeps"],
    [counted(data.counts, "regretted"), "regret", "regrets"],
    [counted(data.counts, "frozen"), "freeze", "freezes"],
  ];
  const said = parts.filter(([n]) => n > 0).map(([n, one, many]) => `${count(n)} ${n === 1 ? one : many}`);
  return <span class="q">{said.join(", ")}</span>;
}

function Days({ items, now, filter }: { items: Decided[]; now: number; filter: Filter }) {
  const days = new Map<number, Decided[]>();
  for (const d of items) {
    const day = startOfDay(at(d.at));
    days.set(day, [...(days.get(day) ?? []), d]);
  }
  const word = (day: number) => (sameDay(day, now) ? "Today, " : sameDay(day, now - 86_400_000) ? "Yesterday, " : "");
  return (
    <table class="log">
      <caption class="sr">What was decided, newest first</caption>
      <colgroup>
        {["t", "gl", "vb", "wd", "who", "gp", "ch"].map((name) => (
          <col class={`k-${name}`} />
        ))}
      </colgroup>
      {[...days].map(([day, list]) => (
        <tbody key={day}>
          <tr class="day">
            <th scope="rowgroup" colSpan={7}>
              {word(day)}
              {dayName(day)} <DaySums day={day} filter={filter} />
            </th>
          </tr>
          {list.map((d) => (
            <Entry key={d.id} entry={d} now={now} />
          ))}
        </tbody>
      ))}
    </table>
  );
}

function LogPart({ now }: { now: number }) {
  const { query } = useAddress();
  const asked = query.get("type") as Filter;
  const filter: Filter = asked in TYPES ? asked : "all";
  const log = useLog(filter, query.get("since"), query.get("until"));
  const name = query.get("q");
  const items = log.items.filter((d) => (filter !== "people" || byPeople(d)) && (!name || d.workload?.name.includes(name)));
  const failures = log.items.filter((d) => d.type === "failed" && sameDay(at(d.at), now)).length;
  const choices = LABEL.map(([value, label]): [Filter, ComponentChildren] => [
    value,
    value === "failures" && failures ? (
      <>
        {label} <b class="cnt">{failures}</b>
      </>
    ) : (
      label
    ),
  ]);
  return (
    <section>
      <Head title="What was decided">
        <Choice label="Show" name="type" usual="all" of={choices} />
        <button
          type="button"
          class="btn sm quiet dsk"
          onClick={() => download("fallow-decisions.json", "application/json", JSON.stringify(items, null, 2))}
        >
          <Icon name="save" />
          JSON
        </button>
      </Head>
      {name && (
        <p class="m">
          <span class="tok">
            name:<b>{name}</b>
            <button type="button" aria-label="Remove this filter" onClick={() => set({ q: null })}>
              <Icon name="no" />
            </button>
          </span>
        </p>
      )}
      {log.error && !items.length && <FailedPart answer={{ data: null, error: log.error, tries: 1, nextTry: null }} retry={log.reload} />}
      {log.loading && <Loading rows={8} />}
      {!log.loading && !log.error && !items.length && (
        <div class="panel">
          <p class="voice">Nothing was decided{filter === "all" ? " yet" : " of this kind"}.</p>
          {(filter !== "all" || name) && (
            <a class="btn sm" href="/activity">
              Show everything
            </a>
          )}
        </div>
      )}
      <Days items={items} now={now} filter={filter} />
      {items.length > 0 && (
        <p class="q s after">
          {count(items.length)}
          {filter !== "people" && !name && log.total > items.length && ` of ${count(log.total)}`} shown.{" "}
          {log.next ? (
            <button type="button" class="plain l" onClick={log.older}>
              Older
            </button>
          ) : (
            "That is all."
          )}
        </p>
      )}
    </section>
  );
}

const TITLE: Record<string, string> = { "24h": "One day", "7d": "Seven days", "30d": "Thirty days" };

function PacePart({ now }: { now: number }) {
  const { query } = useAddress();
  const usual = demo.use() ? "24h" : "7d"; // a demo has a day behind it
  const window = query.get("window") ?? usual;
  const answer = useAnswer<Pace>(`/api/v1/pace?window=${window}`);
  return (
    <section class="pace">
      <Head
        title={TITLE[window] ?? "Seven days"}
        sub={answer.data && answer.data.stepSeconds !== 3600 ? `workloads every ${span(answer.data.stepSeconds)}` : "workloads an hour"}
      >
        <Fills
          of={[
            ["var(--rest)", "paused"],
            ["var(--busy)", "resumed"],
            [null, "regretted"],
          ]}
        />
        <Choice label="Window" name="window" usual={usual} of={WINDOWS} />
      </Head>
      <Answered of={answer} rows={4}>
        {(pace) => <PaceBars pace={pace} now={now} />}
      </Answered>
    </section>
  );
}

function Headline({ regrets, today }: { regrets: Regrets | null; today: Counts | null }) {
  if (!today) return <>{"\u00a0"}</>;
  const pauses = counted(today, "paused"),
    back = counted(today, "resumed", "broughtBack"),
    sorry = counted(today, "regretted");
  const all = regrets?.byPolicy.reduce((s, p) => ({ pauses: s.pauses + p.pauses, regrets: s.regrets + p.regrets }), {
    pauses: 0,
    regrets: 0,
  });
  return (
    <>
      {pauses === 0 ? "No pause today" : `${plural(pauses, "pause")} today`},{" "}
      {back === 0 ? "nothing came back" : `${plural(back, "workload")} came back`},{" "}
      {sorry === 0 ? "none was regretted" : `${sorry} ${sorry === 1 ? "was" : "were"} regretted`}.
      {all && all.pauses > 0 && (
        <>
          {" "}
          In 30&nbsp;days{" "}
          <mark>
            {all.regrets === 0
              ? `none of ${count(all.pauses)} was regretted.`
              : `${all.regrets} of ${count(all.pauses)} ${all.regrets === 1 ? "was" : "were"} regretted.`}
          </mark>
        </>
      )}
    </>
  );
}

export default function Activity() {
  useTitle("Activity");
  const now = useNow(30);
  const { data: regrets } = useAnswer<Regrets>("/api/v1/regrets");
  const { data: today } = useAnswer<Decisions>(
    `/api/v1/decisions?since=${encodeURIComponent(new Date(startOfDay(now)).toISOString())}&limit=1`,
  );
  return (
    <>
      <section class="wh">
        <h1 class="say sm">
          <Headline regrets={regrets} today={today?.counts ?? null} />
        </h1>
      </section>
      <PacePart now={now} />
      <div class="two act">
        <LogPart now={now} />
        <div class="side">
          <RegretSide now={now} />
          <Heartbeats now={now} />
        </div>
      </div>
    </>
  );
}
