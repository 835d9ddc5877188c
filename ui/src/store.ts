// A value that several parts watch: read it, put a new one, or render again when it changes.
import { useEffect, useState } from "preact/hooks";

export type Store<T> = { get: () => T; put: (change: T | ((old: T) => T)) => void; use: () => T };

export function store<T>(first: T): Store<T> {
  let value = first;
  const watchers = new Set<() => void>();
  const put = (change: T | ((old: T) => T)) => {
    value = typeof change === "function" ? (change as (old: T) => T)(value) : change;
    watchers.forEach((f) => f());
  };
  const use = () => {
    const [, render] = useState(0);
    useEffect(() => {
      const hear = () => render((n) => n + 1);
      watchers.add(hear);
      hear();
      return () => void watchers.delete(hear);
    }, []);
    return value;
  };
  return { get: () => value, put, use };
}
