// Rows as CSV, in UTC and plain numbers. A cell that a spreadsheet would take for a formula is quoted with an apostrophe.
import type { Row } from "./api";

type Columns<T> = [string, (row: T) => string | number | null][];
const COLUMNS: Columns<Row> = [
  ["namespace", (r) => r.namespace],
  ["kind", (r) => r.kind],
  ["name", (r) => r.name],
  ["state", (r) => r.state],
  ["reason", (r) => r.reason],
  ["gpus", (r) => Number(r.gpus.toFixed(4))],
  ["models", (r) => r.models.join(" ")],
  ["idle_since", (r) => r.idleSince],
  ["idle_seconds", (r) => r.idleSeconds],
  ["per_hour", (r) => r.perHour],
  ["next", (r) => r.next?.type ?? null],
  ["next_at", (r) => r.next?.at ?? null],
  ["policy", (r) => r.policy],
  ["kept_until", (r) => r.keep?.until ?? null],
  ["kept_by", (r) => r.keep?.by ?? null],
  ["kept_reason", (r) => r.keep?.reason ?? null],
];

function cell(value: string | number | null): string {
  if (value === null) return "";
  if (typeof value === "number") return String(value);
  const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

export const lines = <T>(columns: Columns<T>, rows: T[]) =>
  [columns.map(([name]) => cell(name)).join(","), ...rows.map((row) => columns.map(([, of]) => cell(of(row))).join(","))].join("\r\n") +
  "\r\n";
export const csv = (rows: Row[]) => lines(COLUMNS, rows);

export function download(name: string, type: string, text: string): void {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
