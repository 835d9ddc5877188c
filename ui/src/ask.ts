// Asks the server and remembers the answer by address: one answer serves every part that wants it, an old one stays while a new one is
// under way or fails, and a failed call is tried again (5, 10, 20 seconds, then every 30). `useAnswer` is how parts read; `send` is how they write.
import { useEffect, useState } from "preact/hooks";
import type { Failed, Me } from "./api";
import { learn } from "./clock";
import { store } from "./store";

/** Whether this is the demo: its server says so with every answer. */
export const demo = store(false);

export class Refused extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly missing: string | null,
    readonly call: string,
  ) {
    super(message);
  }
}

export type Answer<T> = { data: T | null; error: Refused | null; tries: number; nextTry: number | null };
type Entry = Answer<unknown> & { path: string; readers: Set<() => void>; etag: string | null; busy: Promise<void> | null; timer: number };

const entries = new Map<string, Entry>();
const EMPTY: Answer<never> = { data: null, error: null, tries: 0, nextTry: null };

async function refusal(response: Response, call: string): Promise<Refused> {
  const body = (await response.json().catch(() => null)) as Failed | null;
  const message = body?.error?.message ?? `the server answered ${response.status}`;
  return new Refused(response.status, body?.error?.code ?? "", message, body?.missing ?? null, call);
}

export async function fetchJson<T>(path: string, init: RequestInit = {}): Promise<{ data: T | null; etag: string | null }> {
  const call = `${init.method ?? "GET"} ${path.split("?")[0]}`;
  const sentAt = Date.now();
  let response: Response;
  try {
    response = await fetch(path, { ...init, credentials: "same-origin", signal: AbortSignal.timeout(20000) });
  } catch {
    throw new Refused(0, "Unreachable", navigator.onLine ? "the server did not answer" : "this browser is offline", null, call);
  }
  learn(response.headers.get("date"), sentAt);
  if (response.headers.has("x-fallow-demo") && !demo.get()) demo.put(true);
  if (response.status === 304 || response.status === 204) return { data: null, etag: response.headers.get("etag") };
  if (response.status === 401) location.assign(`/login?then=${encodeURIComponent(location.pathname + location.search)}`);
  if (!response.ok) throw await refusal(response, call);
  return { data: (await response.json()) as T, etag: response.headers.get("etag") };
}

function entryOf(path: string): Entry {
  let entry = entries.get(path);
  if (!entry) entries.set(path, (entry = { ...EMPTY, path, readers: new Set(), etag: null, busy: null, timer: 0 }));
  return entry;
}

function settle(entry: Entry, answer: Answer<unknown>): void {
  Object.assign(entry, answer);
  entry.readers.forEach((f) => f());
}

async function load(entry: Entry): Promise<void> {
  clearTimeout(entry.timer);
  try {
    const { data, etag } = await fetchJson<unknown>(
      entry.path,
      entry.etag && entry.data ? { headers: { "If-None-Match": entry.etag } } : {},
    );
    entry.etag = etag;
    if (data !== null || entry.error) settle(entry, { data: data ?? entry.data, error: null, tries: 0, nextTry: null });
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    const tries = entry.tries + 1;
    const wait = Math.min(30, 5 * 2 ** (tries - 1)) * 1000;
    const again = error.status !== 404 && entry.readers.size > 0;
    if (again) entry.timer = window.setTimeout(() => refresh(entry.path), wait);
    settle(entry, { data: error.status === 404 ? null : entry.data, error, tries, nextTry: again ? Date.now() + wait : null });
  }
}

export function refresh(path: string): Promise<void> {
  const entry = entryOf(path);
  return (entry.busy ??= load(entry).finally(() => (entry.busy = null)));
}

/** Ask again for everything that is on the page; forget the rest. */
export function refreshAll(): void {
  for (const entry of entries.values()) entry.readers.size ? void refresh(entry.path) : entries.delete(entry.path);
}

/** Change what we know of an answer without asking (news came another way). */
export function amend<T>(path: string, change: (old: T) => T): void {
  const entry = entries.get(path);
  if (entry?.data) settle(entry, { data: change(entry.data as T), error: entry.error, tries: entry.tries, nextTry: entry.nextTry });
}

export function useAnswer<T>(path: string | null): Answer<T> & { retry: () => void } {
  const [, render] = useState(0);
  useEffect(() => {
    if (path === null) return;
    const entry = entryOf(path);
    const hear = () => render((n) => n + 1);
    entry.readers.add(hear);
    void refresh(path);
    return () => {
      entry.readers.delete(hear);
      if (!entry.readers.size) clearTimeout(entry.timer);
    };
  }, [path]);
  const { data, error, tries, nextTry } = path === null ? EMPTY : entryOf(path);
  return { data: data as T | null, error, tries, nextTry, retry: () => path !== null && void refresh(path) };
}

// ---- writes

let me: Promise<Me> | null = null;
export const ME = "/api/v1/me";
export function whoAmI(anew = false): Promise<Me> {
  if (!me || anew) me = fetchJson<Me>(ME).then(({ data }) => data!);
  me.catch(() => (me = null));
  return me;
}

/** A write: with the token of this session, once anew where it has run out. */
export async function send<T>(method: "POST" | "DELETE", path: string, body: object): Promise<T | null> {
  const once = async (anew: boolean) => {
    const { csrf } = await whoAmI(anew);
    const headers = { "Content-Type": "application/json", "X-Fallow-CSRF": csrf };
    return (await fetchJson<T>(path, { method, headers, body: JSON.stringify(body) })).data;
  };
  try {
    return await once(false);
  } catch (error) {
    if (error instanceof Refused && error.status === 403 && error.code === "CSRF") return once(true);
    throw error;
  }
}
