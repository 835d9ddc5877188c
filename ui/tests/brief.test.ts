import { expect, it } from "vitest";
import type { Decided } from "../src/api";
import { brief } from "../src/pages/records/brief";

const workload = { apiVersion: "apps/v1", kind: "Deployment", namespace: "ml", name: "llm", uid: "u" };
const idle = "llm has done no work for 50 min on any of its 2 GPUs.";

it.each<[Decided["type"], string, string]>([
  ["told", `told #ml, an Event on it: ${idle} It will be stopped at 18:36 UTC at the earliest.`, "#ml, an Event on it; pause at 18:36 UTC"],
  ["told", `told ana@example.com: ${idle} Nothing will be done.`, "ana@example.com"],
  [
    "paused",
    "Scaled Deployment ml/llm from 3 to 0: 2 GPUs idle for 1h. Resume: fallow resume llm",
    "Deployment in ml: 2 GPUs idle for 1h.",
  ],
  ["paused", "by hand", "by hand"],
  ["resumed", "resumed by ana", "Deployment in ml"],
  ["resumed", "resumed by ana, though its record was lost", "resumed by ana, though its record was lost"],
  ["kept", "kept until 22:56: still needed", "until 22:56: still needed"],
  ["noDecision", "Prometheus is away; nothing was sent or paused", "Prometheus is away; nothing was sent or paused"],
])("a line of %s says what its other columns do not", (type, sentence, said) => {
  expect(brief({ type, sentence, actor: "ana", workload })).toBe(said);
});
