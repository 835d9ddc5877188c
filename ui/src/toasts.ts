// What was just done, with the way back: shown ten seconds, longer while somebody points at it. Success only after the server's answer.
import { store } from "./store";

export type Toast = {
  id: number;
  tone: "good" | "rest" | "bad";
  headline: string;
  text: string;
  action: { label: string; act: () => void; counts: boolean } | null;
};
const SECONDS = 10;
export const MOST = 4;
export const toasts = store<(Toast & { left: number; held: boolean })[]>([]);
let nextId = 1;
let timer = 0;

function tick(): void {
  toasts.put((all) => all.map((t) => (t.held ? t : { ...t, left: t.left - 1 })).filter((t) => t.left > 0));
  if (!toasts.get().length) {
    clearInterval(timer);
    timer = 0;
  }
}

export function toast(one: Omit<Toast, "id">): void {
  toasts.put((all) => [...all, { ...one, id: nextId++, left: SECONDS, held: false }].slice(-MOST));
  timer ||= window.setInterval(tick, 1000);
}

export const hold = (id: number, held: boolean) => toasts.put((all) => all.map((t) => (t.id === id ? { ...t, held } : t)));
export const dismiss = (id: number) => toasts.put((all) => all.filter((t) => t.id !== id));
