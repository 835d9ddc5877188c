// The sections of a workload's page below the evidence: why, this episode, every signal, what a pause writes, owner chain, what was before.
import type { Check, Episode, Explanation } from "../../api";
import { at } from "../../clock";
import {
  CANNOT_TELL,
  clock,
  exactSpan,
  fullTime,
  localised,
  modelName,
  money,
  moneyOr,
  percent,
  plural,
  sameDay,
  shortModel,
  span,
  time,
  utc,
  weekday,
} from "../../words";
import { Glyph, Icon, type GlyphName } from "../../parts/Glyph";
import { Copy, Head } from "../../parts/small";
import { Table } from "../../parts/Table";

const GROUPS: [Check["group"], string, GlyphName][] = [
  ["idle", "Idle, because", "idle"],
  ["pausable", "May be paused, because", "rest"],
  ["waiting", "Waiting for", "told"],
];

function title(group: Check["group"], words: string, checks: Check[], e: Explanation): string {
  if (e.row.rest) return "Paused, because";
  if (!checks.some((c) => c.state === "failed")) return words;
  return group === "idle" ? (e.verdict === "unknown" ? "Cannot tell, because" : "Not idle, because") : "Not paused, because";
}

/** Each line a check, a sentence, the limit; a failed check comes first. */
export function ReasonTree({ explanation, now }: { explanation: Explanation; now: number }) {
  return (
    <section class="o3" id="why">
      <Head title="Why">
        <a class="l s" href={`/policies/${encodeURIComponent(explanation.policy)}`}>
          policy {explanation.policy}
        </a>
      </Head>
      <div class="tree">
        {GROUPS.map(([group, words, glyph]) => {
          const checks = explanation.checks
            .filter((c) => c.group === group)
            .sort((a, b) => Number(b.state === "failed") - Number(a.state === "failed"));
          if (!checks.length) return null;
          const failed = checks.some((c) => c.state === "failed");
          return (
            <>
              <h3>
                <Glyph
                  name={
                    explanation.row.rest
                      ? "rest"
                      : failed && group === "idle"
                        ? explanation.verdict === "unknown"
                          ? "unknown"
                          : "busy"
                        : glyph
                  }
                />{" "}
                {title(group, words, checks, explanation)}
              </h3>
              <ul>
                {checks.map((c) => (
                  <li class={c.state}>
                    <Icon name={c.state === "ok" ? "ok" : c.state === "failed" ? "no" : "clock"} />
                    <span>
                      <span class="sr">{c.state === "failed" ? "Not so: " : ""}</span>
                      {localised(c.sentence, now)}
                      {c.reason && <code class="q"> {c.reason}</code>}
                      {c.helps && <span class="helps q xs">What helps: {c.helps}</span>}
                    </span>
                    {c.limit && <em class="n">{localised(c.limit, now)}</em>}
                  </li>
                ))}
              </ul>
            </>
          );
        })}
      </div>
    </section>
  );
}

const EPISODE: Record<Episode["kind"], GlyphName | null> = {
  work: "busy",
  gap: "unknown",
  idle: "idle",
  told: "told",
  kept: "kept",
  now: null,
  pause: "rest",
  paused: "rest",
  resumed: "busy",
};

export function EpisodeStory({ explanation, now }: { explanation: Explanation; now: number }) {
  if (!explanation.episode.length) return null;
  const long = explanation.episode.some((e) => !sameDay(at(e.at), now));
  return (
    <section class="o4">
      <Head title="This episode" />
      <ol class={long ? "story long" : "story"}>
        {explanation.episode.map((e) => (
          <li class={at(e.at) > now + 30_000 ? "fut" : undefined}>
            <span class="t n" title={utc(at(e.at))}>
              {time(at(e.at), now)}
            </span>
            <span class="dot">{EPISODE[e.kind] ? <Glyph name={EPISODE[e.kind]!} /> : <span class="nowdot" />}</span>
            <div>
              <b>{localised(e.headline, now)}</b> <span class="m">{localised(e.sentence, now)}</span>
            </div>
          </li>
        ))}
      </ol>
    </section>
  );
}

const measure = (value: number | null, unit: string) =>
  value === null ? CANNOT_TELL : unit === "ratio" ? percent(value) : `${Number(value.toFixed(2))}${unit && `\u00a0${unit}`}`;

export function SignalTable({ explanation }: { explanation: Explanation }) {
  const { signals, gpus, windowSeconds, asOf } = explanation;
  if (!signals.length) return null;
  const to = asOf ? at(asOf) : null;
  return (
    <section class="o6">
      <Head
        title="Every signal in the window"
        wide
        sub={
          <>
            highest of {plural(gpus.length, "GPU")}
            {to && `, ${clock(to - windowSeconds * 1000)} to ${clock(to)}`}
          </>
        }
      />
      <Table
        class="mini"
        rows={signals}
        columns={[
          { head: "Signal", cell: (s) => s.name },
          { unseen: "Code", class: "q mono dsk", cell: (s) => s.signal },
          { head: "measured", right: true, cell: (s) => measure(s.measured, s.unit) },
          {
            head: "busy from",
            right: true,
            class: "q",
            cell: (s) => (s.limit === null ? "" : s.limit === 0 ? "above 0" : measure(s.limit, s.unit)),
          },
          { unseen: "Part it plays", class: "q xs", cell: (s) => (s.primary ? "primary" : s.limit === null ? "no vote" : "") },
        ]}
      />
      {explanation.lostSignals.map((l) => (
        <p class="q xs after">
          {l.signal}: {l.because}
        </p>
      ))}
    </section>
  );
}

/** The lines of a request; those outside `metadata` are what the pause really changes. */
function bodyLines(body: object, was: string | null): { text: string; change: boolean; note: string | null }[] {
  const entries = Object.entries(body);
  const lines: { text: string; change: boolean; note: string | null }[] = [{ text: "{", change: false, note: null }];
  entries.forEach(([key, value], i) => {
    const comma = i < entries.length - 1 ? "," : "";
    const change = key !== "metadata";
    const text = change
      ? JSON.stringify(value).replaceAll(":", ": ").replaceAll(",", ", ").replace(/^\{/, "{ ").replace(/\}$/, " }")
      : JSON.stringify(value, null, 2).replaceAll("\n", "\n  ");
    lines.push({ text: `  ${JSON.stringify(key)}: ${text}${comma}`, change, note: change ? was : null });
  });
  return [...lines, { text: "}", change: false, note: null }];
}

export function Writes({ explanation }: { explanation: Explanation }) {
  const { writes, was, notes, gitops } = explanation;
  if (!writes.length) return null;
  const text = writes.map((w) => `${w.method} ${w.path}\n${JSON.stringify(w.body, null, 2)}`).join("\n\n");
  return (
    <section class="o8">
      <Head
        title="What a pause writes"
        wide
        sub={writes.length === 1 ? "one request; the way back is inside it" : `${writes.length} requests; the way back is inside the first`}
      >
        <Copy text={text} />
      </Head>
      {writes.map((w) => (
        <pre class="patch" tabindex={0} role="region" aria-label={`${w.method} ${w.path}`}>
          <span class="q">
            {w.method} {w.path}
          </span>
          {"\n"}
          {bodyLines(w.body, was).map((l, i) => (
            <>
              {i > 0 && "\n"}
              {l.change ? <span class="add">{l.text}</span> : l.text}
              {l.note && (
                <span class="q">
                  {"      "}
                  {l.note}
                </span>
              )}
            </>
          ))}
        </pre>
      ))}
      {notes.map((n) => (
        <p class="q xs after">{n}</p>
      ))}
      {gitops && (
        <details class="gitops">
          <summary class="l xs">The lines to add so that GitOps does not undo it</summary>
          <pre class="patch" tabindex={0}>
            {gitops}
          </pre>
          <Copy text={gitops} />
        </details>
      )}
    </section>
  );
}

export function CostPart({ explanation, now }: { explanation: Explanation; now: number }) {
  const { row, cost, spent, gpus } = explanation;
  const currency = cost?.currency ?? "USD";
  const perHour = cost?.perHour ?? null;
  const model = row.models.map(modelName).join(" or ");
  const each = perHour !== null && row.gpus > 0 ? perHour / row.gpus : null;
  const idle = row.idleSince ? (now - at(row.idleSince)) / 1000 : spent.idleSeconds;
  return (
    <section class="o5">
      <Head
        title="Cost"
        sub={
          model && gpus.length > 0 && each !== null
            ? `${row.profile ?? `${Number(row.gpus.toFixed(2))} × ${model}`} at ${money(each, currency)}`
            : undefined
        }
      />
      {perHour === null ? (
        <p class="q">{row.gpus > 0 ? `${Number(row.gpus.toFixed(2))} GPUs have no price.` : "It holds no GPU now."}</p>
      ) : (
        <dl class="kv">
          <dt>Per hour</dt>
          <dd class="n">{money(perHour, currency)}</dd>
          {idle !== null && spent.idle !== null && (
            <>
              <dt>This idle time, {span(idle)}</dt>
              <dd class="n">{money(spent.idle, currency)}</dd>
            </>
          )}
        </dl>
      )}
    </section>
  );
}

/** `…-k2xqz` for a pod that begins with its owner's name. */
const tail = (pod: string, owner: string) => (pod.startsWith(owner) ? `…${pod.slice(owner.length)}` : pod);

export function OwnerChain({ explanation }: { explanation: Explanation }) {
  const { gpus, row } = explanation;
  const owner = [...explanation.owner].reverse(); // the answer begins at the pods
  const last = owner[owner.length - 1]?.name ?? row.name;
  const pods = [...new Map(gpus.map((g) => [g.pod, g.node]))];
  return (
    <section class="o7">
      <Head title="Owner chain" />
      <ul class="chain">
        {owner.map((o) => (
          <li>
            <span class="q">{o.kind}</span> {o.uid === row.uid ? <b>{o.name}</b> : o.name}
            {o.uid === row.uid && explanation.writes.length > 0 && (
              <>
                {" "}
                <span class="pin">{row.group === "paused" ? "paused here" : "a pause acts here"}</span>
              </>
            )}
          </li>
        ))}
        {pods.length > 0 && (
          <li>
            <span class="q">{pods.length === 1 ? "Pod" : "Pods"}</span>{" "}
            {pods
              .slice(0, 4)
              .map(([pod, node]) => `${tail(pod, last)} on ${node}`)
              .join(", ")}
            {pods.length > 4 && ` and ${pods.length - 4} more`}
          </li>
        )}
      </ul>
      {row.toldTo.length > 0 && (
        <p class="s m after">
          Told:{" "}
          {row.toldTo.map((to, i) => (
            <>
              {i > 0 && ", "}
              <b>{to}</b>
            </>
          ))}
        </p>
      )}
    </section>
  );
}

export function KeptBefore({ explanation }: { explanation: Explanation }) {
  const keeps = explanation.keptBefore;
  if (!keeps.length) return null;
  const currency = explanation.cost?.currency ?? "USD";
  const idle = keeps.reduce((n, k) => n + (k.idleSeconds ?? 0), 0);
  const known = keeps.every((k) => k.cost !== null);
  const cost = keeps.reduce((n, k) => n + (k.cost ?? 0), 0);
  return (
    <section class="o9">
      <Head title="Kept before">
        <span class="q">idle cost under it</span>
      </Head>
      <Table
        class="mini"
        rows={keeps}
        columns={[
          {
            sum: "30 days",
            cell: (k) => (
              <>
                <b>{k.at ? span((at(k.until) - at(k.at)) / 1000) : `until ${fullTime(at(k.until))}`}</b> by {k.by}
                <div class="q xs">
                  {k.at && fullTime(at(k.at))}
                  {k.reason && `, “${k.reason}”`}
                </div>
              </>
            ),
          },
          {
            right: true,
            sum: span(idle),
            cell: (k) => (
              <>
                {k.idleSeconds === null ? CANNOT_TELL : span(k.idleSeconds)}
                <div class="q xs">idle</div>
              </>
            ),
          },
          { right: true, cell: (k) => moneyOr(k.cost, currency), sum: known ? money(cost, currency) : "" },
        ]}
      />
    </section>
  );
}

export function PausedBefore({ explanation, now }: { explanation: Explanation; now: number }) {
  const pauses = explanation.pausedBefore;
  if (!pauses.length) return null;
  const { name } = explanation.row;
  const back = (p: { until: string | null; at: string }) =>
    p.until === null
      ? "rests"
      : `back ${at(p.until) - at(p.at) < 6.5 * 86_400_000 ? `${weekday(at(p.until))}\u00a0${clock(at(p.until))}` : time(at(p.until), now)}`;
  return (
    <section class="o10">
      <Head title="Paused before">
        <a class="l s" href={`/activity?q=${encodeURIComponent(name)}`}>
          All events
        </a>
      </Head>
      <Table
        class="mini"
        rows={pauses}
        columns={[
          { class: "n", cell: (p) => fullTime(at(p.at)) },
          {
            class: "m",
            cell: (p) => (
              <>
                {back(p)}
                {p.by && ` by ${p.by}`}
                {p.regretted && <b class="bt"> regretted</b>}
              </>
            ),
          },
          { right: true, cell: (p) => (p.readyAfterSeconds === null ? "" : exactSpan(p.readyAfterSeconds)) },
        ]}
      />
      {pauses.some((p) => p.readyAfterSeconds !== null) && <p class="q xs after">Right: from click to all pods ready.</p>}
    </section>
  );
}

export const holdsWords = (e: Explanation) => {
  const pods = new Set(e.gpus.map((g) => g.pod)).size;
  const model = e.row.models.map(modelName).join(" or ") || null;
  const n = e.row.profile
    ? `${e.row.instances} × ${e.row.profile}`
    : e.row.gpus > 0
      ? `${Number(e.row.gpus.toFixed(2))} × ${model ?? shortModel(model) ?? "GPU"}`
      : "";
  return [pods > 0 && plural(pods, "pod"), n].filter(Boolean).join(", ");
};
