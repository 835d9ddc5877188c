// Builds the dashboard into the Python package, where the server finds it. No inline script, no inline style, no data: fonts (the CSP forbids them).
// A folder in src/pages is one file, loaded when one of its pages is first opened; all the rest is another. Few files: each is packed alone.
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../src/fallow/doors/api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
    reportCompressedSize: false,
    rolldownOptions: {
      checks: { pluginTimings: false }, // on a busy machine it tells every newcomer how to profile our build
      output: {
        codeSplitting: {
          includeDependenciesRecursively: false,
          groups: [{ debugName: "pages", name: (id) => /src.pages.(\w+)/.exec(id)?.[1] ?? "base" }],
        },
      },
    },
  },
});
