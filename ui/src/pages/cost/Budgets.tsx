// Budgets: of each what is left of it in its period, an even pace beside it, and where it is heading.
import { useState } from "preact/hooks";
import { seeAlert } from "../../acts";
import type { AlertFired, BudgetsPage, BudgetTold, Me } from "../../api";
import { at } from "../../clock";
import { ME, useAnswer, type Answer } from "../../ask";
import { Chart } from "../../parts/chart";
import { Glyph } from "../../parts/Glyph";
import { Answered, Head } from "../../parts/small";
import { set, useAddress } from "../../route";
import { CANNOT_TELL, dayName, money, NBSP, percent, tenth, ticks, time } from "../../words";
import { emptyAt } from "./spend";

const FIRST = 3;

export function Budgets({ answer }: { answer: Answer<BudgetsPage> & { retry: () => void } }) {
  const every = useAddress().query.get("budgets") === "all";
  const count = answer.data?.items.length ?? 0;
  return (
    <section>
      <Head title="Budgets" sub="what is left; dotted: even pace; dashed: forecast" wide>
        {count > FIRST && (
          <button type="button" class="plain l s" aria-expanded={every} onClick={() => set({ budgets: every ? null : "all" })}>
            {every ? "The fullest" : `All ${count}`}
          </button>
        )}
      </Head>
      <Answered of={answer}>
        {(page) =>
          page.items.length ? (
            <div class="buds">
              {page.items.slice(0, every ? undefined : FIRST).map((one) => (
                <Budget key={one.budget} of={one} currency={page.currency} now={at(page.asOf)} since={page.booksSince} />
              ))}
            </div>
          ) : (
            <p class="q">There are no CostBudgets.</p>
          )
        }
      </Answered>
    </section>
  );
}

/** In a word how it stands: glyph, tone, words. */
function standing({ limit, spend, projected, status }: BudgetTold): ["bad" | "busy" | "unknown", string, string] {
  if (limit === null || spend === null) return ["unknown", "unk", "Cannot tell"];
  if (status === "exceeded" || spend >= limit) return ["bad", "bad", `Spent ${percent(spend / limit)}`];
  if (projected === null) return ["unknown", "unk", "Too early to tell"];
  return projected > limit
    ? ["bad", "bad", `Forecast ${percent(projected / limit)}`]
    : ["busy", "busy", `On pace, ${percent(projected / limit)}`];
}

function Budget({ of, currency, now, since }: { of: BudgetTold; currency: string; now: number; since: string | null }) {
  const [glyph, tone, words] = standing(of);
  return (
    <article class="bd">
      <div class="bh">
        <h3>{of.budget}</h3>
        <span class="q clip">{of.scope ?? (of.team || of.namespace || "")}</span>
        <span class="sp" />
        <span class={`chip ${tone}`}>
          <Glyph name={glyph} />
          {words}
        </span>
      </div>
      <div class="bn n">
        <span>
          <b>{of.spend === null ? CANNOT_TELL : money(of.spend, currency)}</b>
          {of.limit !== null && <span class="q"> of {money(of.limit, currency, true)}</span>}
        </span>
        {of.projected !== null && (
          <span>
            <span class="q">forecast</span> <b>{money(of.projected, currency, true)}</b>
          </span>
        )}
      </div>
      <Burn of={of} currency={currency} />
      <p class="q xs">
        {known(of, now, since).join(" ")} <Alerts of={of} now={now} />
        {told(of, currency, now).join(" ")}
      </p>
    </article>
  );
}

/** Each that fired, and a press that says somebody has seen it. */
function Alerts({ of, now }: { of: BudgetTold; now: number }) {
  const [seen, put] = useState<string[]>([]);
  const may = useAnswer<Me>(ME).data?.maySeeAlerts?.allowed;
  const idOf = (one: AlertFired) => `${one.alert} ${one.at}`; // in the next period it fires anew
  const see = async (one: AlertFired) => (await seeAlert(of.budget, one.alert)) && put((before) => [...before, idOf(one)]);
  return of.alerts.map((one) => {
    const isSeen = one.isSeen || seen.includes(idOf(one));
    return (
      <span key={one.alert}>
        Alert “{one.alert}” fired {time(at(one.at), now)}
        {isSeen ? ", seen" : ""}.{" "}
        {may && !isSeen && (
          <button
            type="button"
            class="plain l"
            aria-label={`Mark alert ${one.alert} of ${of.budget} as seen`}
            onClick={() => void see(one)}
          >
            Mark as seen.
          </button>
        )}{" "}
      </span>
    );
  });
}

const sentence = (text: string) => text.charAt(0).toUpperCase() + text.slice(1) + (/[.!?]$/.test(text) ? "" : ".");
/** Of when this is, a sentence each. */
function known(of: BudgetTold, now: number, since: string | null): string[] {
  const said = [of.at ? `As of ${time(at(of.at), now)}.` : "Never looked at."];
  if (since && of.period && at(of.period.start) < at(since))
    said.push(`Books are kept since ${time(at(since), now)}; what was spent before is not known.`);
  if (!of.alerts.length && of.mode) said.push("No alert fired.");
  return said;
}

/** What happened to it and what is wrong with it, a sentence each. */
function told(of: BudgetTold, currency: string, now: number): string[] {
  const said: string[] = [];
  if (of.mode) said.push(of.mode === "alert" ? "Alert only." : `When it is spent: ${of.mode}${of.isEnforced ? ", now" : ""}.`);
  if (of.mode !== "alert" && of.why) said.push(sentence(of.why));
  if (of.override)
    said.push(
      `Overridden until ${time(at(of.override.until), now)} by ${of.override.by}: ${sentence(of.override.reason)}` +
        (of.override.cost === null ? "" : ` ${money(of.override.cost, currency)} were spent under it.`),
    );
  if (of.unpricedGpuHours) said.push(`${tenth(of.unpricedGpuHours)}${NBSP}GPU-hours without a price are not in it.`);
  return [...said, ...of.problems.map(sentence)];
}

const HEIGHT = 118;
const TOP = 10;

/** `$80k`: an axis has little room. */
const brief = (amount: number, currency: string, whole: number) =>
  whole >= 10_000 ? `${money(amount / 1000, currency, true, amount % 1000 ? 1 : 0)}k` : money(amount, currency, true, 0);

function Burn({ of: { budget, limit, projected, burn, period }, currency }: { of: BudgetTold; currency: string }) {
  if (limit === null || !period || burn.length < 2) return <p class="q xs nb">How it was spent is not known yet.</p>;
  const from = at(period.start),
    to = at(period.end);
  const last = burn.at(-1)!;
  const upTo = at(last.at);
  const left = (spent: number) => limit - spent;
  const empty = emptyAt(limit, last.spend, projected, upTo, to);
  const lowest = Math.min(empty === null ? 0 : -limit / 6, left(last.spend), projected === null ? 0 : left(projected)); // room for the words
  const y = (value: number) => TOP + ((limit - value) / (limit - lowest)) * (HEIGHT - TOP);
  const bad = last.spend > limit || (projected !== null && projected > limit);
  const colour = bad ? "var(--bad)" : "var(--link)";
  const axis = 46;
  const levels = y(0) - TOP > 40 ? [limit, limit / 2, 0] : [limit, 0];
  return (
    <Chart
      height={HEIGHT + 20}
      says={`${budget}: ${money(left(last.spend), currency)} of ${money(limit, currency)} left${
        projected === null ? "" : `, ${money(left(projected), currency)} by forecast when the period ends`
      }.`}
      caption={`What is left of ${budget}`}
      table={[
        ["Until", "spent", "left"],
        ...burn.map((point) => [dayName(at(point.at)), money(point.spend, currency), money(left(point.spend), currency)]),
      ]}
    >
      {(width) => {
        const x = (t: number) => Math.round((axis + ((t - from) / (to - from)) * (width - axis - 4)) * 10) / 10;
        const path = burn.map((point) => `${x(at(point.at))} ${y(left(point.spend)).toFixed(1)}`).join("L");
        const [x0, x1, xn] = [x(from), x(to), x(upTo)];
        return (
          <>
            {levels.map((value) => (
              <>
                <path class="grid" d={`M${axis} ${y(value)}H${x1}`} />
                <text class="ax" x={axis - 7} y={y(value) + 4} text-anchor="end">
                  {value ? brief(value, currency, limit) : "0"}
                </text>
              </>
            ))}
            <path d={`M${axis} ${y(0)}H${x1}`} stroke="var(--edge)" />
            <path d={`M${x0} ${y(limit)}L${x1} ${y(0)}`} stroke="var(--edge)" stroke-dasharray="2 3" />
            <path d={`M${path}L${xn} ${y(0)}H${x0}z`} fill="var(--link)" fill-opacity=".1" />
            <path d={`M${path}`} fill="none" stroke="var(--link)" stroke-width="2" />
            {projected !== null && (
              <path
                d={`M${xn} ${y(left(last.spend))}L${x1} ${y(left(projected))}`}
                stroke={colour}
                stroke-width="1.6"
                stroke-dasharray="5 3"
              />
            )}
            <circle cx={xn} cy={y(left(last.spend))} r="3.2" fill="var(--paper)" stroke="var(--link)" stroke-width="2" />
            {empty !== null && (
              <>
                <path d={`M${x(empty)} ${y(0) - 5}v10`} stroke="var(--bad)" stroke-width="2" />
                <text class="ax bt" x={x(empty) - 8} y={y(0) + 13} text-anchor="end">
                  empty {dayName(empty).slice(4)}
                </text>
              </>
            )}
            {ticks(from, to).map((words, i) => (
              <text
                class="ax"
                x={x(from + (i / 3) * (to - from))}
                y={HEIGHT + 16}
                text-anchor={i === 0 ? "start" : i === 3 ? "end" : "middle"}
              >
                {words}
              </text>
            ))}
          </>
        );
      }}
    </Chart>
  );
}
