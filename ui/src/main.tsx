// The dashboard begins here: theme, live wire, keys, and the page that the address names.
import { render } from "preact";
import { useEffect } from "preact/hooks";
import "uplot/dist/uPlot.min.css";
import "./styles/tokens.css";
import "./styles/base.css";
import "./styles/parts.css";
import "./styles/pages.css";
import "./styles/narrow.css";
import { listenForKeys } from "./hooks";
import { start } from "./live";
import { Activity } from "./pages/Activity";
import { Nodes } from "./pages/Nodes";
import { Overview } from "./pages/Overview";
import { Policies } from "./pages/Policies";
import { Workload } from "./pages/Workload";
import { Workloads } from "./pages/Workloads";
import { Dialogs } from "./parts/Dialogs";
import { Shell } from "./parts/Shell";
import { Toasts } from "./parts/Toasts";
import { catchLinks, go, useAddress } from "./route";
import { startTheme } from "./theme";

const MOVED: Record<string, string> = {
  "/paused": "/workloads?view=paused",
  "/acks": "/workloads?view=kept",
  "/acknowledgements": "/workloads?view=kept",
};

function Page() {
  const { path } = useAddress();
  const moved = MOVED[path];
  useEffect(() => {
    if (moved) go(moved, true);
  }, [moved]);
  const parts = path
    .split("/")
    .slice(1)
    .map((part) => {
      try {
        return decodeURIComponent(part);
      } catch {
        return part;
      }
    });
  switch (parts[0]) {
    case "":
      return <Overview />;
    case "workloads":
      return <Workloads />;
    case "w":
      return parts.length === 4 ? <Workload key={path} namespace={parts[1]!} kind={parts[2]!} name={parts[3]!} /> : <Lost />;
    case "activity":
      return <Activity />;
    case "nodes":
      return <Nodes />;
    case "policies":
      return <Policies />;
    default:
      return moved ? null : <Lost />;
  }
}

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
