// Which dialog is open, if any. The dialogs themselves are in parts/Dialogs.tsx.
import type { Row } from "./api";
import { store } from "./store";

export type Dialog =
  | { type: "freeze" }
  | { type: "unfreeze" }
  | { type: "keys" }
  | { type: "pause"; rows: Row[]; size: string | null }
  | { type: "keep"; rows: Row[]; maxHours: number; extraPause: boolean }
  | { type: "address"; done: (email: string | null) => void };

export const dialog = store<Dialog | null>(null);
