// Builds the dashboard into the Python package, where the server finds it. No inline script, no inline style, no data: fonts (the CSP forbids them).
import { defineConfig } from "vite";

export default defineConfig({
  build: {
    outDir: "../src/fallow/doors/api/static",
    emptyOutDir: true,
    assetsInlineLimit: 0,
    modulePreload: false,
    target: "es2022",
    reportCompressedSize: false,
  },
});
