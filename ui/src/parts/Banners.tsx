// At most two banners, the gravest first: cannot reach the server, stale, frozen, data trouble, dry run.
import type { ComponentChildren } from "preact";
import type { Banner, Overview } from "../api";
import { at, useNow } from "../clock";
import { dialog } from "../dialogs";
import { useWire } from "../live";
import { CANNOT_TELL, localised, span, time } from "../words";
import { Glyph, Icon } from "./Glyph";

type Shown = { kind: string; headline: string; sentence: string; end: ComponentChildren };
const SIGN: Record<string, ComponentChildren> = {
  lost: <Glyph name="bad" />,
  stale: <Glyph name="bad" />,
  frozen: <Icon name="frost" />,
  data: <Icon name="warn" />,
  dryRun: <Icon name="eye" />,
};

function endOf(banner: Banner, overview: Overview, now: number): ComponentChildren {
  switch (banner.kind) {
    case "frozen":
      return (
        <button type="button" class="btn sm" onClick={() => dialog.put({ type: "unfreeze" })}>
          Unfreeze…
        </button>
      );
    case "data":
      return (
        <a class="l" href="/nodes">
          Nodes and data
        </a>
      );
    case "stale":
      return overview.failure && <span class="n m">since {time(at(overview.failure.since), now)}</span>;
    case "dryRun":
      return (
        <span class="m">
          It acts with <code>--run-mode=scale-down</code>
        </span>
      );
    default:
      return null;
  }
}

/** The wire is lost: said at once when the browser is offline, otherwise when it stays so. */
function lostBanner(state: ReturnType<typeof useWire>, overview: Overview | null, now: number): Shown | null {
  const gone = Date.now() - state.since;
  if (state.state !== "lost" || (navigator.onLine && gone < 3000)) return null;
  const wait = state.nextTry ? span(Math.max(0, (state.nextTry - Date.now()) / 1000)) : CANNOT_TELL;
  const known = overview?.asOf ? ` What you see is of ${time(at(overview.asOf), now)}.` : "";
  return {
    kind: "lost",
    headline: navigator.onLine ? "fallow cannot be reached." : "This browser is offline.",
    sentence: `${known} Pauses and notices go on without this page.`.trim(),
    end: <span class="n m">next try in {wait}</span>,
  };
}

/** Old by our own clock, when the server could not say so itself. */
function staleBanner(overview: Overview, now: number): Shown | null {
  if (!overview.asOf || overview.banners.some((b) => b.kind === "stale")) return null;
  const seconds = (now - at(overview.asOf)) / 1000;
  if (seconds <= 3 * overview.intervalSeconds) return null;
  return {
    kind: "stale",
    headline: `Last measured ${span(seconds)} ago.`,
    sentence: "What you see may be out of date; nothing will be paused.",
    end: null,
  };
}

export function Banners({ overview, path }: { overview: Overview | null; path: string }) {
  const wire = useWire();
  const now = useNow(wire.state === "lost" ? 1 : 10);
  const all: (Shown | null)[] = [lostBanner(wire, overview, now)];
  if (overview) {
    if (!all[0]) all.push(staleBanner(overview, now));
    const told = overview.banners.filter((b) => !(b.kind === "data" && path !== "/"));
    all.push(...told.map((b) => ({ ...b, end: endOf(b, overview, now) })));
  }
  const shown = all.filter((b): b is Shown => b !== null).slice(0, 2);
  return (
    <div aria-live="polite">
      {shown.map((b) => (
        <div class={`banner ${b.kind}`} key={b.kind}>
          {SIGN[b.kind]}
          <span>
            <b>{localised(b.headline, now)}</b> {localised(b.sentence, now)}
          </span>
          <span class="go">{b.end}</span>
        </div>
      ))}
    </div>
  );
}
