// What a line of the log says beside its verb, its name and who did it: none of them twice. The whole sentence is among its details.
import type { Decided } from "../../api";

type Told = Pick<Decided, "type" | "sentence" | "actor" | "workload">;
export function brief({ type, sentence, actor, workload }: Told): string {
  const where = workload ? `${workload.kind} in ${workload.namespace}` : "";
  if (type === "told") {
    const [, whom, rest] = /^told (.+?): (.*)$/.exec(sentence) ?? [];
    const [, when] = / at (\d\d:\d\d UTC)/.exec(rest ?? "") ?? [];
    return whom ? `${whom}${when ? `; pause at ${when}` : ""}` : sentence;
  }
  if (type === "paused" && where) {
    const [, why] = /^[^:]+: (.*?)(?: Resume: .*)?$/.exec(sentence) ?? [];
    return why ? `${where}: ${why}` : sentence;
  }
  if (type === "resumed" && where && sentence === `resumed by ${actor}`) return where;
  return sentence.replace(/^kept (?=until )/, "");
}
