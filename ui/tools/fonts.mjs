// Cuts the two fonts (both SIL OFL 1.1) to the characters that the dashboard writes itself, plus the commonest letters of names.
// In: the woff2 files of the font packages. Out: src/fonts/*.woff2 (not in git). Everything else falls back to the system's font.
import { mkdir, readFile, writeFile } from "node:fs/promises";
import subsetFont from "subset-font";

const range = (from, to) => Array.from({ length: to - from + 1 }, (_, i) => String.fromCodePoint(from + i)).join("");
const ascii = range(0x20, 0x7e);
const letters = " -" + range(0x30, 0x39) + range(0x41, 0x5a) + range(0x61, 0x7a);
const signs = "\u00a0·×–’“”…−";

const FONTS = [
  {
    from: "@fontsource-variable/inter/files/inter-latin-wght-normal.woff2",
    to: "inter.woff2",
    text: ascii + signs + "→↑↓↵¼½¾€£äöüÄÖÜßéè",
    variationAxes: { wght: { min: 400, max: 600 } },
  },
  { from: "@fontsource/vollkorn/files/vollkorn-latin-500-normal.woff2", to: "vollkorn.woff2", text: letters + ".,:;?!()/%$€&_" + signs },
];

await mkdir("src/fonts", { recursive: true });
for (const { from, to, text, variationAxes } of FONTS) {
  const whole = await readFile(`node_modules/${from}`);
  const cut = await subsetFont(whole, text, { targetFormat: "woff2", variationAxes });
  await writeFile(`src/fonts/${to}`, cut);
  console.log(`${to}: ${(cut.length / 1024).toFixed(1)} KB of ${(whole.length / 1024).toFixed(1)} KB`);
}
