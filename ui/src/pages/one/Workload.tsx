// The owner's page, where a notice leads: one sentence, what to do, and all the evidence. Complete on a phone.
// `?keep=8h` chooses a time; only a press keeps.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Explanation, Row, Timeline } from "../../api";
import { keep, resume } from "../../acts";
import { amend, refresh, useAnswer } from "../../ask";
import { at, useNow } from "../../clock";
import { dialog } from "../../dialogs";
import { useKeys, useTitle } from "../../hooks";
import { useRowNews } from "../../live";
import { ActionBar } from "./ActionBar";
import { Evidence } from "./Evidence";
import { Answered, Chip, Choice, FailedPart, Head, Loading, WINDOWS } from "../../parts/small";
import { ShareStory } from "./ShareStory";
import { CostPart, EpisodeStory, holdsWords, KeptBefore, OwnerChain, PausedBefore, ReasonTree, SignalTable, Writes } from "./workloadparts";
import { useAddress, workloadApi } from "../../route";
import { hoursOf, localised, plural, span, time, until } from "../../words";

/** The sentence of the page. Where a time runs it is said anew at every tick, in the viewer's zone; otherwise it is the server's. */
function Sentence({ explanation, now }: { explanation: Explanation; now: number }) {
  const { row, gpus } = explanation;
  const n = gpus.length || row.instances;
  const idle = row.idleSince ? span((now - at(row.idleSince)) / 1000) : null;
  if (row.state !== "told" || !idle || !row.next?.at) return <Marked text={localised(explanation.sentence, now)} />;
  const when = at(row.next.at);
  return (
    <>
      <mark>{row.neverUsed ? `Never used in ${idle}` : `No work for ${row.atLeast ? "at least " : ""}${idle}`}</mark> on{" "}
      {n === 1 ? "its GPU" : `any of its ${n} GPUs`}.{" "}
      {when > now ? (
        <>
          It will be paused at {time(when, now)} at the earliest, {until(when, now)}, unless you keep it.
        </>
      ) : (
        "Its time is over; fallow looks once more before it pauses it."
      )}
    </>
  );
}

/** The first clause of a sentence about idleness is underlined. */
function Marked({ text }: { text: string }) {
  const match = /^((?:No work for|Never used in) .*?)(?= on |[.,;])/.exec(text);
  return match ? (
    <>
      <mark>{match[1]}</mark>
      {text.slice(match[1]!.length)}
    </>
  ) : (
    <>{text}</>
  );
}

/** Said once at five minutes and once at one, for those who cannot see the ring. */
function Announce({ row, now }: { row: Row; now: number }) {
  const [said, say] = useState("");
  const done = useRef(new Set<number>());
  const left = row.next?.type === "pause" && row.next.at ? (at(row.next.at) - now) / 60_000 : null;
  useEffect(() => {
    const mark = left === null ? null : left <= 1 && left > 0 ? 1 : left <= 5 && left > 4 ? 5 : null;
    if (mark === null || done.current.has(mark)) return;
    done.current.add(mark);
    say(`${row.name} will be paused in ${plural(mark, "minute")}.`);
  });
  return (
    <span class="sr" role="status">
      {said}
    </span>
  );
}

const SPANS: [string, string][] = [["3h", "3\u00a0h"], ...WINDOWS.slice(0, 2)];

function EvidencePart({ path, row, now }: { path: string; row: Row; now: number }) {
  const { query } = useAddress();
  const window = query.get("window") ?? "3h";
  const answer = useAnswer<Timeline>(`${path}/timeline?window=${window}`);
  return (
    <section class="o2">
      <Head title="Evidence, GPU by GPU" wide sub="engine activity, highest value each minute">
        <Choice label="Window" name="window" usual="3h" of={SPANS} />
      </Head>
      <Answered of={answer} rows={6}>
        {(timeline) => <Evidence timeline={timeline} row={row} now={now} />}
      </Answered>
    </section>
  );
}

const Crumb = ({ namespace, kind }: { namespace: string; kind: string }) => (
  <p class="crumb q s">
    <a class="l" href="/workloads">
      Workloads
    </a>{" "}
    / {namespace} / {kind}
  </p>
);

function Missing({ namespace, kind, name }: { namespace: string; kind: string; name: string }) {
  return (
    <section class="whead">
      <Crumb namespace={namespace} kind={kind} />
      <h1 class="say">{name} holds no GPU and does not rest.</h1>
      <p class="m after">
        There is no {kind} {name} in {namespace} that fallow knows of: it may be gone, or it never held a GPU.
      </p>
      <p class="after">
        <a class="l" href={`/workloads?view=all&q=${encodeURIComponent(name)}`}>
          Find something like it
        </a>
      </p>
    </section>
  );
}

export default function Workload({ parts }: { parts: string[] }) {
  const [, namespace, kind, name] = parts as [string, string, string, string];
  useTitle(name);
  const path = workloadApi({ namespace, kind, name });
  const explainPath = `${path}/explain`;
  const answer = useAnswer<Explanation>(explainPath);
  const { query } = useAddress();
  const explanation = answer.data;
  const row = explanation?.row ?? null;
  const lastMinute = row?.next?.type === "pause" && row.next.at ? at(row.next.at) - Date.now() < 120_000 : false;
  const now = useNow(lastMinute ? 1 : 5);
  useRowNews(row?.uid, (news) => {
    amend<Explanation>(explainPath, (old) => (news.revision >= old.row.revision ? { ...old, row: news } : old));
    void refresh(explainPath);
  });
  const mayKeep = row && (row.state === "told" || row.state === "idle") && explanation?.may.keep.allowed;
  const keepKey = (hours: number) => () => mayKeep && void keep([row], { hours }, "");
  useKeys({
    4: keepKey(4),
    8: keepKey(8),
    2: keepKey(24),
    p: () => row && explanation?.may.pause.allowed && !row.rest && dialog.put({ type: "pause", rows: [row], size: null }),
    r: () => row?.state === "paused" && explanation?.may.resume.allowed && void resume([row]),
  });
  if (!explanation || !row) {
    if (answer.error?.status === 404) return <Missing namespace={namespace} kind={kind} name={name} />;
    return (
      <section class="whead">
        <h1 class="sr">{name}</h1>
        {answer.error ? <FailedPart answer={answer} retry={answer.retry} /> : <Loading rows={6} />}
      </section>
    );
  }
  return (
    <div class={mayKeep || row.state === "told" ? "workload hassticky" : "workload"}>
      <section class="whead">
        <Crumb namespace={namespace} kind={kind} />
        <div class="wt">
          <b class="wn">{name}</b>
          <Chip row={row} />
          <span class="m">
            {kind} in {namespace}
          </span>
          <span class="q">{holdsWords(explanation)}</span>
        </div>
        <h1 class="say">
          <Sentence explanation={explanation} now={now} />
        </h1>
      </section>
      <ActionBar explanation={explanation} chosen={hoursOf(query.get("keep"))} now={now} />
      <Announce row={row} now={now} />
      <div class="cols">
        <div class="col">
          <EvidencePart path={path} row={row} now={now} />
          <EpisodeStory explanation={explanation} now={now} />
          <SignalTable explanation={explanation} />
          <Writes explanation={explanation} />
        </div>
        <div class="col">
          <ReasonTree explanation={explanation} now={now} />
          <CostPart explanation={explanation} now={now} />
          <ShareStory explanation={explanation} now={now} />
          <OwnerChain explanation={explanation} />
          <KeptBefore explanation={explanation} />
          <PausedBefore explanation={explanation} now={now} />
        </div>
      </div>
    </div>
  );
}
