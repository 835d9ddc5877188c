// Prints what the browser has to load, gzipped (fonts as they are: woff2 is packed already), and fails above the hard limits.
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

const OUT = "../src/fallow/doors/api/static";
const KINDS = { js: { aim: 60, most: 80 }, css: { aim: 10, most: 12 }, woff2: { aim: 36, most: 40 } };
const sums = { js: 0, css: 0, woff2: 0 };

for (const path of await readdir(OUT, { recursive: true })) {
  const kind = path.split(".").pop();
  if (!(kind in KINDS)) continue;
  const data = await readFile(join(OUT, path));
  const size = kind === "woff2" ? data.length : gzipSync(data, { level: 9 }).length;
  sums[kind] += size;
  console.log(`  ${path.padEnd(40)} ${(size / 1024).toFixed(1).padStart(6)} KB`);
}
let failed = false;
for (const [kind, { aim, most }] of Object.entries(KINDS)) {
  const kb = sums[kind] / 1024;
  failed ||= kb > most;
  console.log(`${kind.padEnd(6)} ${kb.toFixed(1)} KB (aim ${aim}, at most ${most})${kb > most ? ": too much" : ""}`);
}
process.exit(failed ? 1 : 0);
