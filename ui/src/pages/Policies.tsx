// The policies, what each matches now and what it would do with it. Nothing is changed here: policies are objects of the cluster.
import type { Policies as Answer, Policy } from "../api";
import { useAnswer } from "../ask";
import { useTitle } from "../hooks";
import { Glyph, type GlyphName } from "../parts/Glyph";
import { Answered, Copy, Head } from "../parts/small";
import { useAddress, workloadPath } from "../route";
import { count, plural, span, tenth } from "../words";

const ACTION: Record<Policy["action"], [string, GlyphName]> = {
  pause: ["Tell, then pause", "rest"],
  notify: ["Tell only", "told"],
  report: ["Report only", "idle"],
};
const minutes = (seconds: number) => (seconds <= 120 * 60 ? `${Math.round(seconds / 60)}\u00a0min` : span(seconds));

function Headline({ items }: { items: Policy[] }) {
  const pausing = items.filter((p) => p.action === "pause");
  const idle = pausing.reduce((n, p) => n + p.idleGpus, 0);
  const wrong = items.filter((p) => !p.isValid);
  if (!items.length) return <>No policy: only what the flags say holds.</>;
  return (
    <>
      {plural(items.length, "policy").replace("policys", "policies")}.{" "}
      <mark>
        {pausing.length} of them may pause; {tenth(idle)} GPUs they match are idle.
      </mark>
      {wrong.length > 0 && ` ${wrong.length === 1 ? `${wrong[0]!.name} cannot be read.` : `${wrong.length} cannot be read.`}`}
    </>
  );
}

const Line = ({ policy, chosen }: { policy: Policy; chosen: boolean }) => {
  const [words, glyph] = ACTION[policy.action];
  return (
    <tr class={chosen ? "cur" : undefined}>
      <td>
        <a class="b" href={`/policies/${encodeURIComponent(policy.name)}`} aria-current={chosen ? "true" : undefined}>
          {policy.name}
        </a>
        {!policy.isValid && <div class="bt xs">{policy.trouble}</div>}
      </td>
      <td class="r n">{policy.priority}</td>
      <td class="nw">
        <Glyph name={glyph} /> {words}
      </td>
      <td class="m">
        {[policy.namespaces, policy.classes.join(", ")].filter(Boolean).join(" · ")}
        <div class="q xs">{policy.kinds.join(", ") || "every kind"}</div>
      </td>
      <td class="r n">{count(policy.matched)}</td>
      <td class="r n">{count(policy.idle)}</td>
      <td class="r n">{tenth(policy.idleGpus)}</td>
      <td class="r n">{count(policy.paused)}</td>
      <td class="r n">{count(policy.acknowledged)}</td>
      <td class="r n q">{minutes(policy.goneIdleSeconds)}</td>
      <td class="r n q">{minutes(policy.neverUsedSeconds)}</td>
      <td class="r n q">{minutes(policy.graceSeconds)}</td>
    </tr>
  );
};

function Detail({ policy }: { policy: Policy }) {
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
          Without work for {minutes(policy.goneIdleSeconds)} ({minutes(policy.neverUsedSeconds)} if it never worked), it would {does}.
        </p>
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

export function Policies() {
  useTitle("Policies");
  const answer = useAnswer<Answer>("/api/v1/policies");
  const name = decodeURIComponent(useAddress().path.split("/")[2] ?? "");
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
                <table class="pt">
                  <thead>
                    <tr>
                      <th scope="col">Policy</th>
                      <th scope="col" class="r">
                        priority
                      </th>
                      <th scope="col">Does</th>
                      <th scope="col">Matches</th>
                      <th scope="col" class="r">
                        workloads
                      </th>
                      <th scope="col" class="r">
                        idle
                      </th>
                      <th scope="col" class="r">
                        idle GPUs
                      </th>
                      <th scope="col" class="r">
                        paused
                      </th>
                      <th scope="col" class="r">
                        kept
                      </th>
                      <th scope="col" class="r">
                        gone idle
                      </th>
                      <th scope="col" class="r">
                        never used
                      </th>
                      <th scope="col" class="r">
                        grace
                      </th>
                    </tr>
                  </thead>
                  <tbody>
                    {sorted.map((p) => (
                      <Line key={p.name} policy={p} chosen={p === chosen} />
                    ))}
                  </tbody>
                </table>
              </div>
            </section>
            {chosen ? <Detail policy={chosen} /> : items.length > 0 && <p class="panel">There is no policy {name}.</p>}
          </>
        );
      }}
    </Answered>
  );
}
