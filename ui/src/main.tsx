// The dashboard begins here: theme, live wire, keys, and the page that the address names.
import { type ComponentType, render } from "preact";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";
import "./styles/narrow.css";
import { refresh } from "./ask";
import { listenForKeys } from "./hooks";
import { OVERVIEW, start } from "./live";
import { Dialogs } from "./parts/Dialogs";
import { Shell } from "./parts/Shell";
import { Loading } from "./parts/small";
import { Toasts } from "./parts/Toasts";
import { catchLinks, go, useAddress } from "./route";
import { startTheme } from "./theme";

const MOVED: Record<string, string> = {
  "/paused": "/workloads?view=paused",
  "/acks": "/workloads?view=kept",
  "/acknowledgements": "/workloads?view=kept",
};

type Page = ComponentType<{ parts: string[] }>;
/** By the first word of the address; each is loaded when it is first opened. */
const PAGES: Record<string, () => Promise<{ default: Page }>> = {
  "": () => import("./pages/overview/Overview"),
  workloads: () => import("./pages/list/Workloads"),
  w: () => import("./pages/one/Workload"),
  activity: () => import("./pages/records/Activity"),
  cost: () => import("./pages/cost/Cost"),
  nodes: () => import("./pages/records/Nodes"),
  policies: () => import("./pages/records/Policies"),
  clusters: () => import("./pages/records/Clusters"),
  inbox: () => import("./pages/records/Conversation"),
};
const loaded: Record<string, Page> = {};

/** The page of that word: null while it is under way, "failed" where it did not come (fallow was renewed meanwhile, or is gone). */
function usePage(word: string): Page | null | "failed" {
  const [state, put] = useState<{ word: string; page: Page | "failed" } | null>(null);
  useLayoutEffect(() => {
    if (loaded[word] || !PAGES[word]) return;
    PAGES[word]().then(
      ({ default: page }) => put({ word, page: (loaded[word] = page) }),
      () => put({ word, page: "failed" }),
    );
  }, [word]);
  return loaded[word] ?? (state?.word === word ? state.page : null);
}

const decoded = (part: string) => {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
};

function Page() {
  const { path } = useAddress();
  const moved = MOVED[path];
  useEffect(() => {
    if (moved) go(moved, true);
  }, [moved]);
  const parts = path.split("/").slice(1).map(decoded);
  const Shown = usePage(parts[0]!);
  if (moved) return null;
  if (!(parts[0]! in PAGES) || (parts[0] === "w" && parts.length !== 4)) return <Lost />;
  if (Shown === "failed") return <NotLoaded />;
  return Shown ? <Shown key={parts[0] === "w" ? path : parts[0]} parts={parts} /> : <Loading rows={6} />;
}

const NotLoaded = () => (
  <section class="wh">
    <h1 class="say sm">This page could not be loaded.</h1>
    <p class="m after">fallow may have been renewed since this tab was opened.</p>
    <p class="after">
      <button type="button" class="btn" onClick={() => location.reload()}>
        Load again
      </button>
    </p>
  </section>
);

const Lost = () => (
  <section class="wh">
    <h1 class="say sm">There is nothing at this address.</h1>
    <p class="after">
      <a class="l" href="/">
        Overview
      </a>
    </p>
  </section>
);

// What the first page needs is asked for before anything is drawn; who wants it then finds it under way.
PAGES[location.pathname.split("/")[1]!]?.().catch(() => {}); // said where it is shown
void refresh(OVERVIEW);
startTheme();
catchLinks();
listenForKeys();
start();
render(
  <>
    <Shell>
      <Page />
    </Shell>
    <Dialogs />
    <Toasts />
  </>,
  document.getElementById("app")!,
);
