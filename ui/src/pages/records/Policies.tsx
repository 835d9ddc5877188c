// The policies, what each matches now and what it would do with it. Nothing is changed here: policies are objects of the cluster.
import type { Policies as Answer, Policy } from "../../api";
import { useAnswer } from "../../ask";
import { useNow } from "../../clock";
import { useTitle } from "../../hooks";
import { Glyph, type GlyphName } from "../../parts/Glyph";
import { Widening } from "./regrets";
import { Answered, Copy, Figure, Head } from "../../parts/small";
import { type Column, Table } from "../../parts/Table";
import { workloadPath } from "../../route";
import { count, minutes, plural, tenth } from "../../words";

const ACTION: Record<Policy["action"], [string, GlyphName]> = {
  pause: ["Tell, then pause", "rest"],
  notify: ["Tell only", "told"],
  report: ["Report only", "idle"],
};
function Headline({ items }: { items: Policy[] }) {
  const pausing = items.filter((p) => p.action === "pause");
  const idle = pausing.reduce((n, p) => n + p.idleGpus, 0);
  const wrong = items.filter((p) => !p.isValid);
  const longer = items.filter((p) => p.widened);
  if (!items.length) return <>No policy: only what the flags say holds.</>;
  return (
    <>
      {plural(items.length, "policy").replace("policys", "policies")}.{" "}
      <mark>
        {pausing.length === items.length ? "All" : `${pausing.length} of them`} may pause; {tenth(idle)} GPUs they match are idle.
      </mark>
      {longer.length > 0 && ` ${longer.length === 1 ? `${longer[0]!.name} waits` : `${longer.length} wait`} longer than asked for.`}
      {wrong.length > 0 && ` ${wrong.length === 1 ? `${wrong[0]!.name} cannot be read.` : `${wrong.length} cannot be read.`}`}
    </>
  );
}

const columns = (chosen: Policy | null | undefined): Column<Policy>[] => [
  {
    head: "Policy",
    cell: (p) => (
      <>
        <a class="b" href={`/policies/${encodeURIComponent(p.name)}`} aria-current={p === chosen ? "true" : undefined}>
          {p.name}
        </a>
        {!p.isValid && <div class="bt xs">{p.trouble}</div>}
      </>
    ),
  },
  { head: "priority", right: true, cell: (p) => p.priority },
  {
    head: "Does",
    class: "nw",
    cell: (p) => (
      <>
        <Glyph name={ACTION[p.action][1]} /> {ACTION[p.action][0]}
      </>
    ),
  },
  {
    head: "Matches",
    class: "m",
    cell: (p) => (
      <>
        {[p.namespaces, p.classes.join(", ")].filter(Boolean).join(" · ")}
        <div class="q xs" title={p.kinds.join(", ")}>
          {p.kinds.length > 5 ? `${p.kinds.length} kinds` : p.kinds.join(", ") || "every kind"}
        </div>
      </>
    ),
  },
  { head: "workloads", right: true, cell: (p) => count(p.matched) },
  { head: "idle", right: true, cell: (p) => count(p.idle) },
  { head: "idle GPUs", right: true, cell: (p) => <Figure n={p.idleGpus} /> },
  { head: "paused", right: true, cell: (p) => count(p.paused) },
  { head: "kept", right: true, cell: (p) => count(p.acknowledged) },
  {
    head: "gone idle",
    right: true,
    class: "q",
    cell: (p) => (
      <>
        {minutes(p.goneIdleSeconds)}
        {p.widened && (
          <div class="xs">
            <b class="up">widened</b> from {minutes(p.widened.fromSeconds)}
          </div>
        )}
      </>
    ),
  },
  { head: "never used", right: true, class: "q", cell: (p) => minutes(p.neverUsedSeconds) },
  { head: "grace", right: true, class: "q", cell: (p) => minutes(p.graceSeconds) },
];

function Detail({ policy, now }: { policy: Policy; now: number }) {
  const text = JSON.stringify(policy.spec, null, 2);
  const by = new Map<string, Policy["workloads"]>();
  for (const w of policy.workloads) by.set(w.namespace, [...(by.get(w.namespace) ?? []), w]);
  const does = {
    pause: `tell the owner, wait ${minutes(policy.graceSeconds)}, look once more and pause`,
    notify: "tell the owner and leave it at that",
    report: "show it here and do nothing",
  }[policy.action];
  return (
    <div class="two pol">
      <section>
        <Head title={`What ${policy.name} matches now`} sub={`${plural(policy.matched, "workload")}, ${policy.idle} idle`}>
          <a class="l s" href={`/workloads?view=all&policy=${encodeURIComponent(policy.name)}`}>
            In the list
          </a>
        </Head>
        <p class="m">
          Without work for {minutes(policy.goneIdleSeconds)}
          {policy.neverUsedSeconds !== policy.goneIdleSeconds && ` (${minutes(policy.neverUsedSeconds)} if it never worked)`}, it would{" "}
          {does}.
        </p>
        <Widening policy={policy} now={now} />
        <dl class="matched">
          {[...by].map(([namespace, list]) => (
            <>
              <dt class="q">{namespace}</dt>
              <dd>
                {list.map((w, i) => (
                  <>
                    {i > 0 && ", "}
                    <a href={workloadPath(w)}>{w.name}</a>
                  </>
                ))}
              </dd>
            </>
          ))}
        </dl>
        {policy.matched > policy.workloads.length && (
          <p class="q xs after">{count(policy.matched - policy.workloads.length)} more in the list.</p>
        )}
        {policy.matched === 0 && <p class="q after">It matches nothing now.</p>}
      </section>
      <section>
        <Head title="As it stands">
          <Copy text={text} />
        </Head>
        {!policy.isValid && <p class="bt after">{policy.trouble}</p>}
        <pre class="patch" tabindex={0} role="region" aria-label={`Policy ${policy.name}`}>
          {text}
        </pre>
      </section>
    </div>
  );
}

export default function Policies({ parts }: { parts: string[] }) {
  useTitle("Policies");
  const now = useNow(30);
  const answer = useAnswer<Answer>("/api/v1/policies");
  const name = parts[1] ?? "";
  return (
    <Answered of={answer} rows={6}>
      {({ items }) => {
        const sorted = [...items].sort((a, b) => b.priority - a.priority);
        const chosen = sorted.find((p) => p.name === name) ?? (name ? null : sorted[0]);
        return (
          <>
            <section class="wh">
              <h1 class="say sm">
                <Headline items={items} />
              </h1>
            </section>
            <section>
              <Head title="Policies" sub="the highest priority that matches holds" />
              <div class="scroll" tabindex={0} role="region" aria-label="Policies">
                <Table class="pt" rows={sorted} columns={columns(chosen)} mark={(p) => (p === chosen ? "cur" : undefined)} />
              </div>
            </section>
            {chosen ? <Detail policy={chosen} now={now} /> : items.length > 0 && <p class="panel">There is no policy {name}.</p>}
          </>
        );
      }}
    </Answered>
  );
}
