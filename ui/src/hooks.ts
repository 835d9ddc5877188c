// Small hooks that several parts share: how wide something is, whether the page is narrow, keys, a pause before showing.
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";

/** The width of an element in whole pixels; 0 before it is on the page. */
export function useWidth<E extends HTMLElement>(): [RefObject<E | null>, number] {
  const ref = useRef<E>(null);
  const [width, put] = useState(0);
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    put(Math.floor(element.clientWidth));
    const watch = new ResizeObserver(() => put(Math.floor(element.clientWidth)));
    watch.observe(element);
    return () => watch.disconnect();
  }, []);
  return [ref, width];
}

const narrowQuery = matchMedia("(max-width: 760px)");
export function useNarrow(): boolean {
  const [narrow, put] = useState(narrowQuery.matches);
  useEffect(() => {
    const hear = () => put(narrowQuery.matches);
    narrowQuery.addEventListener("change", hear);
    return () => narrowQuery.removeEventListener("change", hear);
  }, []);
  return narrow;
}

/** True once `milliseconds` have gone by: nothing flashes that is there at once. */
export function useAfter(milliseconds: number): boolean {
  const [over, put] = useState(false);
  useEffect(() => {
    const id = setTimeout(() => put(true), milliseconds);
    return () => clearTimeout(id);
  }, []);
  return over;
}

type Keys = Record<string, (event: KeyboardEvent) => void>;
const layers: { current: Keys }[] = [];
let after = ""; // the key before, where it was `g`

const isTyping = (target: EventTarget | null) =>
  target instanceof HTMLElement && (target.matches("input:not([type=checkbox]), textarea, select") || target.isContentEditable);

export function listenForKeys(): void {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector("dialog[open]")) return;
    const chord = after === "g" ? `g ${event.key}` : event.key;
    after = event.key === "g" && after !== "g" ? "g" : "";
    for (const { current } of [...layers].reverse()) {
      const act = current[chord];
      if (!act) continue;
      event.preventDefault();
      act(event);
      return;
    }
  });
}

/** Keys of a part while it is on the page; the newest part goes first. */
export function useKeys(keys: Keys): void {
  const layer = useRef(keys);
  layer.current = keys;
  useEffect(() => {
    layers.push(layer);
    return () => void layers.splice(layers.indexOf(layer), 1);
  }, []);
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · fallow`;
  }, [title]);
}
