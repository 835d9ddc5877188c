// Only in the demo: every message that went out to the pretend Slack and the pretend mailboxes, and what people answered, newest first.
import type { Decided, Decisions } from "../../api";
import { useAnswer } from "../../ask";
import { at, useNow } from "../../clock";
import { useTitle } from "../../hooks";
import { Glyph, type GlyphName } from "../../parts/Glyph";
import { Answered, Choice, Head } from "../../parts/small";
import { useAddress, workloadPath } from "../../route";
import { clock, count, dayName, localised, plural, utc } from "../../words";

type Message = { at: string; by: "slack" | "mail"; to: string[]; title: string; text: string; fields: [string, string][] };
type Turn = { at: string; message: Message } | { at: string; answer: Decided };
const ANSWERS = "/api/v1/decisions?type=kept,resumed,broughtBack,regretted,released&limit=500";
const VERB: Partial<Record<Decided["type"], [string, GlyphName]>> = {
  kept: ["keeps", "kept"],
  released: ["keeps no longer", "idle"],
  resumed: ["brings back", "busy"],
  broughtBack: ["brings back, past fallow,", "busy"],
  regretted: ["misses, soon after its pause,", "bad"],
};
const MOST = 40;
const SHOWN: [string, string][] = [
  ["all", "Everything"],
  ["slack", "Slack"],
  ["mail", "Mail"],
  ["answers", "Answers"],
];

/** Closed: whom it went to and how it begins; open: all of it, as it was sent. */
const Said = ({ message, open }: { message: Message; open: boolean }) => (
  <details class="message" open={open}>
    <summary>
      <span class="mh">
        <Glyph name={/\bpaused\b/i.test(message.title) ? "rest" : "told"} />
        <b>{[message.title, message.fields[0]?.[1]].filter(Boolean).join(" · ")}</b>
        <span class="q">
          {message.by === "slack" ? "Slack, " : "mail, "}
          {message.to.join(", ")}
        </span>
      </span>
      <span class="m clip">{message.text}</span>
    </summary>
    {message.fields.length > 0 && (
      <dl>
        {message.fields.map(([title, value]) => (
          <>
            <dt class="q">{title}</dt>
            <dd>{value}</dd>
          </>
        ))}
      </dl>
    )}
    {message.by === "mail" ? <pre>{message.text}</pre> : <p class="m">{message.text}</p>}
  </details>
);

const Answer = ({ answer, now }: { answer: Decided; now: number }) => {
  const [verb, glyph] = VERB[answer.type] ?? ["answers", "kept"];
  return (
    <p class="answer">
      <Glyph name={glyph} /> <b>{answer.actor.replace(/^\w+:/, "")}</b> {verb}{" "}
      {answer.workload && (
        <a class="b" href={workloadPath(answer.workload)}>
          {answer.workload.name}
        </a>
      )}
      {answer.type === "kept" && <span class="q"> {localised(answer.sentence, now)}</span>}
    </p>
  );
};

function turns(messages: Message[], answers: Decided[], shown: string): Turn[] {
  const said = messages.filter((m) => shown === "all" || m.by === shown).map((message) => ({ at: message.at, message }));
  const back = shown === "all" || shown === "answers" ? answers.map((answer) => ({ at: answer.at, answer })) : [];
  return [...said, ...back].sort((a, b) => (a.at < b.at ? 1 : a.at > b.at ? -1 : 0));
}

export default function Conversation() {
  useTitle("Conversation");
  const now = useNow(30);
  const { query } = useAddress();
  const shown = query.get("show") ?? "all";
  const answer = useAnswer<{ items: Message[] }>("/api/v1/conversation");
  const { data: answers } = useAnswer<Decisions>(ANSWERS);
  return (
    <Answered of={answer} rows={8}>
      {({ items }) => {
        const people = new Set(items.flatMap((m) => m.to)).size;
        const all = turns(items, answers?.items ?? [], shown);
        const newest = all.findIndex((turn) => "message" in turn);
        return (
          <>
            <section class="wh">
              <h1 class="say sm">
                <mark>{plural(items.length, "message")}</mark> went to {count(people)} rooms and mailboxes; owners answered{" "}
                {plural(answers?.items.length ?? 0, "time")}.
              </h1>
            </section>
            <section class="talk">
              <Head title="The conversation" sub="the newest first; nothing of it left this machine">
                <Choice label="Show" name="show" usual="all" of={SHOWN} />
              </Head>
              <ol>
                {all.slice(0, MOST).map((turn, i) => (
                  <li>
                    <time class="n" title={utc(at(turn.at))}>
                      {clock(at(turn.at))}
                      <span class="q xs">{dayName(at(turn.at))}</span>
                    </time>
                    {"message" in turn ? <Said message={turn.message} open={i === newest} /> : <Answer answer={turn.answer} now={now} />}
                  </li>
                ))}
              </ol>
              {all.length > MOST && <p class="q s after">{count(all.length - MOST)} older ones are not shown.</p>}
              {!all.length && <p class="q">Nobody was told anything yet.</p>}
            </section>
          </>
        );
      }}
    </Answered>
  );
}
