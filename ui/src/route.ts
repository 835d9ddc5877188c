// Where we are: the address is the only place for the state of a page, so every view can be sent.
// `go` changes it, `useAddress` renders again, `set` writes some parameters in place. Plain links work: a click on one is caught here.
import { useEffect, useState } from "preact/hooks";

export type Address = { path: string; query: URLSearchParams };

const listeners = new Set<() => void>();
const tell = () => listeners.forEach((f) => f());

export const here = (): Address => ({ path: location.pathname, query: new URLSearchParams(location.search) });

export function go(to: string, replace = false): void {
  const samePath = to.split("?")[0] === location.pathname;
  history[replace ? "replaceState" : "pushState"](null, "", to);
  if (!samePath) scrollTo(0, 0);
  tell();
}

/** Write parameters into the address; null or "" takes one away. */
export function set(parameters: Record<string, string | null>): void {
  const { path, query } = here();
  for (const [key, value] of Object.entries(parameters)) value ? query.set(key, value) : query.delete(key);
  const text = query.toString();
  go(text ? `${path}?${text}` : path, true);
}

export function useAddress(): Address {
  const [address, put] = useState(here);
  useEffect(() => {
    const hear = () => put(here());
    listeners.add(hear);
    addEventListener("popstate", hear);
    return () => {
      listeners.delete(hear);
      removeEventListener("popstate", hear);
    };
  }, []);
  return address;
}

/** Follow links of ours without loading the page anew. */
export function catchLinks(): void {
  document.addEventListener("click", (event) => {
    const link = (event.target as Element).closest?.("a");
    if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    if (link.origin !== location.origin || link.target || link.hasAttribute("download") || link.pathname.startsWith("/api")) return;
    event.preventDefault();
    go(link.pathname + link.search);
  });
}

type Named = { namespace: string; kind: string; name: string };
const part = encodeURIComponent;
export const workloadPath = (w: Named) => `/w/${part(w.namespace)}/${part(w.kind)}/${part(w.name)}`;
export const workloadApi = (w: Named) => `/api/v1/workloads/${part(w.namespace)}/${part(w.kind)}/${part(w.name)}`;
