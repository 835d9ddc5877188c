// Takes the addresses of the registry out of the lock file: versions and hashes are enough for `npm ci`, and any mirror will do.
import { readFile, writeFile } from "node:fs/promises";

const lock = JSON.parse(await readFile("package-lock.json", "utf8"));
for (const entry of Object.values(lock.packages)) delete entry.resolved;
await writeFile("package-lock.json", `${JSON.stringify(lock, null, 2)}\n`);
