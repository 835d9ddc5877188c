// What stands on every page: the bar with age of data, mode and Freeze; banners; the footer; keys that work everywhere.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Overview, Row, Workloads } from "../api";
import { demo, useAnswer } from "../ask";
import { at, useNow } from "../clock";
import { dialog } from "../dialogs";
import { useKeys } from "../hooks";
import { OVERVIEW, useWire } from "../live";
import { go, useAddress, workloadPath } from "../route";
import { switchTheme } from "../theme";
import { exactSpan, span, time, utc, zone } from "../words";
import { Banners } from "./Banners";
import { Glyph, glyphOf, Icon, Signs } from "./Glyph";
import { Key } from "./small";

const PAGES: [string, string, string][] = [
  ["/", "Overview", "o"],
  ["/workloads", "Workloads", "w"],
  ["/activity", "Activity", "a"],
  ["/cost", "Cost", "c"],
  ["/nodes", "Nodes", "n"],
  ["/policies", "Policies", "p"],
];
const CLUSTERS: [string, string, string] = ["/clusters", "Clusters", "l"]; // where there are several
const TALK: [string, string, string] = ["/inbox", "Conversation", "i"];
const isCurrent = (path: string, page: string) =>
  page === "/" ? path === "/" : path.startsWith(page) || (page === "/workloads" && path.startsWith("/w/"));

/** How old the measurements are; grey and in words when the wire is lost. */
function Age({ overview }: { overview: Overview | null }) {
  const now = useNow(1);
  const wire = useWire();
  if (!overview?.asOf)
    return (
      <span class="age">
        <span class="pulse off" />
        {overview ? "Not measured yet" : "Connecting"}
      </span>
    );
  const seconds = (now - at(overview.asOf)) / 1000;
  const old = wire.state === "lost" || seconds > 3 * overview.intervalSeconds;
  return (
    <span class="age" title={utc(at(overview.asOf))}>
      <span class={old ? "pulse off" : "pulse"} />
      <span class="n">Measured {span(seconds)} ago</span>
    </span>
  );
}

function Find() {
  const input = useRef<HTMLInputElement>(null);
  const [text, put] = useState("");
  const [chosen, choose] = useState(0);
  const [open, setOpen] = useState(false);
  const asked = text.trim();
  const { data } = useAnswer<Workloads>(open && asked ? `/api/v1/workloads?view=all&limit=8&q=${encodeURIComponent(`*${asked}*`)}` : null);
  const hits: Row[] = (open && asked && data?.items) || [];
  useKeys({ "/": () => (document.querySelector<HTMLInputElement>("#filter") ?? input.current)?.focus() });
  const leave = (to: string) => {
    put("");
    input.current?.blur();
    go(to);
  };
  const onKey = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step && hits.length) {
      event.preventDefault();
      choose((n) => (n + step + hits.length + 1) % (hits.length + 1));
    } else if (event.key === "Enter" && asked) {
      leave(chosen && hits[chosen - 1] ? workloadPath(hits[chosen - 1]!) : `/workloads?view=all&q=${encodeURIComponent(asked)}`);
    } else if (event.key === "Escape") {
      put("");
      input.current?.blur();
    }
  };
  return (
    <div class="find">
      <Icon name="find" />
      <input
        ref={input}
        type="text"
        placeholder="Find a workload"
        aria-label="Find a workload"
        role="combobox"
        aria-expanded={hits.length > 0}
        aria-controls="found"
        aria-activedescendant={chosen ? `found-${chosen}` : undefined}
        autocomplete="off"
        spellcheck={false}
        value={text}
        onInput={(e) => {
          put(e.currentTarget.value);
          choose(0);
        }}
        onKeyDown={onKey}
        onFocus={() => setOpen(true)}
        onBlur={() => setTimeout(() => setOpen(false), 150)}
      />
      <Key>/</Key>
      <ul id="found" class="found" role="listbox" aria-label="Workloads found" hidden={!hits.length}>
        {hits.map((row, i) => (
          <li id={`found-${i + 1}`} role="option" aria-selected={chosen === i + 1} onMouseDown={() => leave(workloadPath(row))}>
            <Glyph name={glyphOf(row.state)} />
            <span>
              <b>{row.name}</b>{" "}
              <span class="q">
                {row.kind} in {row.namespace}
              </span>
            </span>
          </li>
        ))}
      </ul>
    </div>
  );
}

function Mode({ overview }: { overview: Overview | null }) {
  if (!overview) return null;
  return (
    <details class="pop acting">
      <summary class="sel">
        <span class="q">{overview.cluster}</span> {overview.mode === "acting" ? "Acting" : "Dry run"} <Icon name="down" />
      </summary>
      <div class="popped">
        <p>
          <b>{overview.mode === "acting" ? "Acting." : "Dry run."}</b>{" "}
          {overview.mode === "acting" ? "Owners are told, idle workloads are paused." : "Nobody is told, nothing is paused."}
        </p>
        <p class="q">{overview.isLeader ? "This is the leader." : "This is a follower; it shows what the leader decides."}</p>
        <p class="q">
          {overview.user ? (
            <>
              You are <b>{overview.user}</b>.
            </>
          ) : (
            "You are not signed in."
          )}
        </p>
      </div>
    </details>
  );
}

function Menu({ path, pages }: { path: string; pages: typeof PAGES }) {
  const ref = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    if (ref.current) ref.current.open = false;
  }, [path]);
  return (
    <details class="pop menu" ref={ref}>
      <summary class="btn ico quiet" aria-label="Menu">
        <Icon name="menu" />
      </summary>
      <nav class="popped" aria-label="Main menu">
        {pages.map(([to, label]) => (
          <a href={to} aria-current={isCurrent(path, to) ? "page" : undefined}>
            {label}
          </a>
        ))}
        <button type="button" class="btn" onClick={() => dialog.put({ type: "freeze" })}>
          <Icon name="frost" />
          Freeze
        </button>
      </nav>
    </details>
  );
}

function Footer({ overview }: { overview: Overview | null }) {
  const now = useNow(60);
  return (
    <footer class="foot">
      <span>Times are {zone()}</span>
      {overview && (
        <span>
          Cycle every {exactSpan(overview.intervalSeconds).replace("1\u00a0min", "60\u00a0s")}
          {overview.tookSeconds !== null && <>, last took {overview.tookSeconds.toFixed(1)}&nbsp;s</>}
        </span>
      )}
      <span class="sp" />
      <button type="button" class="plain dsk" onClick={() => dialog.put({ type: "keys" })}>
        Keys: <Key>?</Key>
      </button>
      {overview && <span>fallow {overview.version}</span>}
      <span class="printed">
        {location.href}, {time(now, now)}
      </span>
    </footer>
  );
}

export function Shell({ children }: { children: ComponentChildren }) {
  const { path } = useAddress();
  const { data: overview } = useAnswer<Overview>(OVERVIEW);
  const frozen = !!overview?.frozen;
  const pages = [...PAGES, ...(overview?.peers ? [CLUSTERS] : []), ...(demo.use() ? [TALK] : [])];
  const chords = Object.fromEntries(pages.map(([to, , key]) => [`g ${key}`, () => go(to)]));
  useKeys({ ...chords, "?": () => dialog.put({ type: "keys" }) });
  return (
    <>
      <Signs />
      <a
        class="skip"
        href="#main"
        onClick={(e) => {
          e.preventDefault();
          document.getElementById("main")?.focus();
        }}
      >
        Skip to the page
      </a>
      <header class="top">
        <a class="brand" href="/">
          <svg aria-hidden="true">
            <use href="#logo" />
          </svg>
          fallow
        </a>
        <nav class="nav" aria-label="Main">
          {pages.map(([to, label]) => (
            <a href={to} aria-current={isCurrent(path, to) ? "page" : undefined}>
              {label}
            </a>
          ))}
        </nav>
        <span class="sp" />
        <Find />
        <Age overview={overview} />
        <Mode overview={overview} />
        <button type="button" class="btn frz" onClick={() => dialog.put({ type: frozen ? "unfreeze" : "freeze" })}>
          <Icon name="frost" />
          {frozen ? "Frozen" : "Freeze"}
        </button>
        <button type="button" class="btn ico quiet" aria-label="Switch between light and dark" onClick={switchTheme}>
          <Icon name="moon" />
        </button>
        <Menu path={path} pages={pages} />
      </header>
      <main class="wrap" id="main" tabindex={-1}>
        <Banners overview={overview} path={path} />
        {children}
        <Footer overview={overview} />
      </main>
    </>
  );
}
