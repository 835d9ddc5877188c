// What happens next, the soonest first: whom it concerns, when, and the way to stop it.
import { useRef } from "preact/hooks";
import type { Coming, Overview, Row } from "../../api";
import { keep, KEEP_HOURS } from "../../acts";
import { at } from "../../clock";
import { workloadPath } from "../../route";
import { count, gpus, held, localised, money, time, until, utc } from "../../words";
import { Glyph, Icon, type GlyphName } from "../../parts/Glyph";
import { Head } from "../../parts/small";

const STEP: Record<Coming["step"], [string, GlyphName]> = {
  notice: ["Notice", "told"],
  pause: ["Pause", "rest"],
  keepEnds: ["Keep ends", "kept"],
  freezeEnds: ["Freeze ends", "frost"],
};

function KeepMenu({ coming, currency }: { coming: Coming; currency: string }) {
  const ref = useRef<HTMLDetailsElement>(null);
  const press = (hours: number) => {
    if (ref.current) ref.current.open = false;
    void keep(coming.workloads, { hours }, "");
  };
  const who = coming.workloads.map((w) => w.name).join(", ");
  return (
    <details
      class="pop"
      ref={ref}
      onFocusOut={(e) => {
        if (ref.current && !ref.current.contains(e.relatedTarget as Node | null)) ref.current.open = false;
      }}
    >
      <summary class="btn sm" aria-label={`Keep ${who}`}>
        Keep <Icon name="down" />
      </summary>
      <div class="popped keepmenu">
        {KEEP_HOURS.map((h) => (
          <button type="button" onClick={() => press(h)}>
            <b>{h}&nbsp;h</b>
            {coming.perHour !== null && <span class="q n">{money(coming.perHour * h, currency)}</span>}
          </button>
        ))}
        {coming.workloads.length === 1 && <a href={workloadPath(coming.workloads[0]!)}>Other time…</a>}
      </div>
    </details>
  );
}

function about(c: Coming, rows: Map<string, Row>, currency: string, now: number): string {
  const teams = [...new Set(c.workloads.map((w) => w.namespace))];
  const words = [
    teams.slice(0, 3).join(", ") + (teams.length > 3 ? ` and ${teams.length - 3} more` : ""),
    c.model ? held(c.gpus, c.model) : `${gpus(c.gpus)}\u00a0GPUs`,
  ];
  if (c.workloads.every((w) => rows.get(w.uid)?.neverUsed)) words.push("never used");
  if (c.step === "notice" && c.because) words.push(localised(c.because, now));
  else if (c.step === "keepEnds" && c.cost !== null) words.push(`has cost ${money(c.cost, currency)}`);
  else if (c.step === "pause" && c.perHour !== null && c.workloads.length === 1) words.push(`${money(c.perHour, currency)}/h`);
  return words.filter(Boolean).join(" · ");
}

const MOST_NAMES = 3;

export function Agenda({ overview, rows, now }: { overview: Overview; rows: Map<string, Row>; now: number }) {
  const { next, brakes, counts, currency } = overview;
  return (
    <section class="agenda">
      <Head title="What happens next">
        {counts.idle > 0 && (
          <a class="l s" href="/workloads">
            All {count(counts.idle)} idle
          </a>
        )}
      </Head>
      {next.length === 0 && <p class="q">Nothing is about to happen.</p>}
      <ol>
        {next.map((c) => {
          const [verb, glyph] = STEP[c.step];
          const when = c.at ? at(c.at) : null;
          const shown = c.workloads.slice(0, MOST_NAMES);
          return (
            <li key={`${c.step}${c.at}${c.workloads[0]?.uid}`}>
              <div class="t n">
                <b title={when ? utc(when) : undefined}>{when ? time(when, now) : "next"}</b>
                <span class="q">{when ? until(when, now, true) : "cycle"}</span>
              </div>
              <span class="dot">
                <Glyph name={glyph} />
              </span>
              <div class="w">
                <span class="m">{overview.mode === "acting" || c.step === "keepEnds" ? verb : `Would ${verb.toLowerCase()}`}</span>{" "}
                {shown.map((w, i) => (
                  <>
                    {i > 0 && ", "}
                    <a class="b" href={workloadPath(w)}>
                      {w.name}
                    </a>
                  </>
                ))}
                {c.workloads.length > MOST_NAMES && ` and ${c.workloads.length - MOST_NAMES} more`}
                <div class="q xs">{about(c, rows, currency, now)}</div>
              </div>
              {c.step === "pause" && <KeepMenu coming={c} currency={currency} />}
            </li>
          );
        })}
      </ol>
      <p class="q xs brake">
        Brakes: {brakes.pausesThisCycle} of {brakes.mostPerCycle} pauses used this cycle,{" "}
        {brakes.mostGpusThisHour === null
          ? `${gpus(brakes.gpusThisHour)} GPUs in the last hour, no limit`
          : `${gpus(brakes.gpusThisHour)} of ${gpus(brakes.mostGpusThisHour)} GPUs in the last hour`}
        .
      </p>
    </section>
  );
}
