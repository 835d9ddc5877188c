// Light or dark: what the system says, or what was chosen here. Canvas cannot read the tokens: `colour` resolves one through a probe.
import { store } from "./store";

const KEY = "fallow-theme";
type Theme = "light" | "dark";
const system = matchMedia("(prefers-color-scheme: dark)");
const remembered = (): Theme | null => {
  try {
    const value = localStorage.getItem(KEY);
    return value === "light" || value === "dark" ? value : null;
  } catch {
    return null; // storage may be forbidden; then the system decides
  }
};
const current = (): Theme => remembered() ?? (system.matches ? "dark" : "light");

export const theme = store<Theme>("light");

function apply(): void {
  const chosen = remembered();
  if (chosen) document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
  theme.put(current());
}

export function startTheme(): void {
  apply();
  system.addEventListener("change", apply);
}

export function switchTheme(): void {
  try {
    localStorage.setItem(KEY, current() === "dark" ? "light" : "dark");
  } catch {
    return; // nothing to remember it in
  }
  apply();
}

/** The colour of a token such as `--busy`, as canvas wants it. */
export function colour(token: string): string {
  const probe = document.createElement("i");
  probe.className = "probe";
  probe.style.color = `var(${token})`;
  document.body.append(probe);
  const value = getComputedStyle(probe).color;
  probe.remove();
  return value;
}
