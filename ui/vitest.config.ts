// Quick tests of the pure parts. The zone is fixed, because times are written in the viewer's.
import { defineConfig } from "vitest/config";

process.env["TZ"] = "UTC";
export default defineConfig({ test: { include: ["tests/**/*.test.ts"], environment: "node" } });
