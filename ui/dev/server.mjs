// A development server: the built dashboard and its API from a pretend cluster, live by SSE, under the same CSP as the real one.
//   node dev/server.mjs [--port 5180] [--still]      --still: the clock stands at 14:47 and nothing happens by itself (for pictures)
// Troubles are switched by the page's address and kept in a cookie: /?dev=stale  frozen  offline  403  503  empty  email  dry  big  none  (by commas)
import { createServer } from "node:http";
import { readFile } from "node:fs/promises";
import { extname, join, normalize } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import * as answers from "./answers.mjs";
import { NOW } from "./cluster.mjs";
import { explain, timeline } from "./explain.mjs";
import { big, countsOf, drawn, inView, iso, MINUTE } from "./world.mjs";

const { values: options } = parseArgs({
  options: { port: { type: "string", default: "5180" }, still: { type: "boolean", default: false } },
});
const STATIC = fileURLToPath(new URL("../../src/fallow/doors/api/static/", import.meta.url));
const CSP =
  "default-src 'none'; script-src 'self'; style-src 'self'; font-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'";
const TYPES = {
  ".html": "text/html; charset=utf-8",
  ".js": "text/javascript",
  ".css": "text/css",
  ".woff2": "font/woff2",
  ".svg": "image/svg+xml",
};
const started = Date.now();
const now = () => NOW + (options.still ? 0 : Date.now() - started);

const worlds = { drawn: drawn(), big: null };
const clients = new Set();
const isBig = (dev) => dev.has("big");
function worldOf(dev) {
  const world = isBig(dev) ? (worlds.big ??= big(5000)) : worlds.drawn;
  world.now = now;
  return world;
}
const emptyWorld = (() => {
  const w = drawn();
  for (const r of w.list()) if (inView(r, "idle") || r.group === "unknown") w.rows.delete(r.uid);
  for (const p of w.field)
    for (const n of p.nodes)
      for (const g of n.gpus)
        for (const s of g.slots)
          if (s.state !== "busy" && s.state !== "free" && s.state !== "freed") Object.assign(s, { state: "busy", activity: 0.6 });
  w.now = now;
  return w;
})();

class Refusal extends Error {
  constructor(status, code, message, missing) {
    super(message);
    Object.assign(this, { status, code, missing });
  }
}
const tell = (world, name, data) => {
  for (const c of clients) if (c.world === world) c.res.write(`id: ${world.revision}\nevent: ${name}\ndata: ${JSON.stringify(data)}\n\n`);
};
const changed = (world, uid, fields) => {
  const row = world.change(uid, fields);
  tell(world, "workload", row);
  return row;
};
const cycle = (world) => {
  const o = answers.overview(world, new Set());
  tell(world, "cycle", { revision: o.revision, asOf: iso(now()), counts: o.counts, gpus: o.gpus, frozen: o.frozen, failure: null });
};

function page(rows, query, world) {
  const view = query.get("view") ?? "all";
  const q = (query.get("q") ?? "").replace(/\*/g, "").toLowerCase();
  const hits = rows.filter((r) => inView(r, view) && (!q || `${r.name} ${r.namespace} ${r.kind}`.toLowerCase().includes(q)));
  const limit = Number(query.get("limit") ?? 100);
  const from = Number(query.get("cursor") ?? 0);
  const sum = hits.reduce((s, r) => ({ gpus: s.gpus + r.gpus, perHour: s.perHour + (r.perHour ?? 0) }), { gpus: 0, perHour: 0 });
  return {
    revision: world.revision,
    items: hits.slice(from, from + limit),
    next: from + limit < hits.length ? String(from + limit) : null,
    total: hits.length,
    counts: countsOf(rows),
    sums: { ...sum, unpricedGpus: 0 },
  };
}

function find(world, path) {
  const [namespace, kind, name] = path.slice(0, 3).map(decodeURIComponent);
  const row = world.find(namespace, kind, name);
  if (!row) throw new Refusal(404, "NotFound", `there is no ${kind} ${name} in ${namespace} that holds a GPU or rests`);
  return row;
}

function read(path, query, world, dev) {
  const [, , , what, ...rest] = path.split("/");
  if (dev.has("503") && ["savings", "regrets"].includes(what)) throw new Refusal(503, "Locked", "the ledger is locked by another writer");
  switch (what) {
    case "overview":
      return answers.overview(world, dev);
    case "gpus":
      return { revision: world.revision, pools: world.field };
    case "nodes":
      return answers.nodes(world);
    case "sharing":
      return answers.sharing();
    case "states":
      return answers.states(world, query.get("window") ?? "24h");
    case "pace":
      return answers.pace(query.get("window") ?? "7d");
    case "savings":
      return answers.savings();
    case "regrets":
      return answers.regrets(world);
    case "gaming":
      return answers.gaming(world);
    case "policies":
      return answers.policies(world);
    case "decisions": {
      const types = query.get("type")?.split(",");
      const items = answers.decisions(world).filter((d) => !types || types.includes(d.type));
      const from = Number(query.get("cursor") ?? 0);
      return { items: items.slice(from, from + 20), next: from + 20 < items.length ? String(from + 20) : null, revision: world.revision };
    }
    case "me":
      return {
        user: dev.has("email") ? null : "ana@example.com",
        mode: dev.has("email") ? "email" : "kube",
        csrf: "token",
        mayFreeze: {
          allowed: !dev.has("403") && !dev.has("email"),
          missing: "update on leases in fallow",
          command: "fallow freeze --for 2h",
        },
        maySeeAlerts: {
          allowed: !dev.has("403") && !dev.has("email"),
          missing: "patch on costbudgets",
          command: "fallow cost budget ack NAME ALERT",
        },
      };
    case "acks":
      return {
        items: world
          .list()
          .filter((r) => r.keep)
          .map((r) => ({ ...r.keep, workload: r, active: true })),
      };
    case "freeze":
      return { frozen: !!world.frozen, until: world.frozen?.until ?? null, reason: world.frozen?.because ?? null, answer: "" };
    case "workloads": {
      if (!rest.length) return page(world.list(), query, world);
      const row = find(world, rest);
      if (rest[3] === "explain") return explain(world, row, dev);
      if (rest[3] === "timeline") return timeline(world, row, query.get("window") ?? "3h");
      if (rest[3] === "history") return { items: answers.decisions(world).filter((d) => d.workload?.uid === row.uid) };
      return row;
    }
  }
  throw new Refusal(404, "NotFound", "no such path");
}

function keep(world, body, dev) {
  const row = world.find(body.namespace, body.kind, body.name);
  if (!row) throw new Refusal(404, "NotFound", "no such workload");
  if (dev.has("email") && !/^\S+@\S+\.\S+$/.test(body.email ?? "")) throw new Refusal(400, "BadEmail", "an e-mail address is needed");
  const until = body.until ? Date.parse(body.until) : now() + body.hours * 3600_000;
  const hours = (until - now()) / 3600_000;
  if (!(hours > 0)) throw new Refusal(400, "BadDuration", "hours must be a number above 0");
  if (hours > 168) throw new Refusal(400, "AckTooLong", `The policy allows 168 h, you asked for ${Math.round(hours)} h.`);
  const one = {
    until: iso(until),
    by: body.email ?? "ana@example.com",
    reason: body.reason || null,
    at: iso(now()),
    idleSeconds: row.idleSeconds,
    cost: null,
  };
  changed(world, row.uid, {
    keep: one,
    state: "kept",
    group: "kept",
    reason: "Acknowledged",
    next: { type: "keepEnds", at: one.until, because: "the keep ends" },
  });
  tell(world, "ack", { workload: row, keep: one });
  return [201, one];
}

function write(method, path, body, world, dev, request) {
  if (request.headers["x-fallow-csrf"] !== "token") throw new Refusal(403, "CSRF", "the token of this session is missing or old");
  const [, , , what, ...rest] = path.split("/");
  if (dev.has("403"))
    throw new Refusal(
      403,
      "Forbidden",
      "You may look, not change: you lack patch on deployments in team-chat.",
      "patch on deployments in team-chat",
    );
  if (what === "acks" && method === "POST") return keep(world, body, dev);
  if (what === "acks" && method === "DELETE") {
    const row = find(world, rest);
    const toldAt = row.toldAt ? Date.parse(row.toldAt) : null;
    changed(world, row.uid, {
      keep: null,
      state: toldAt ? "told" : "idle",
      group: toldAt ? "willPause" : "onTheWay",
      reason: toldAt ? "InNotice" : "Confirming",
      next: toldAt
        ? { type: "pause", at: iso(toldAt + 30 * MINUTE), because: "grace after the notice" }
        : { type: "notice", at: iso(now() + 2 * MINUTE), because: "second look first" },
    });
    return [204, null];
  }
  if (what === "freeze") {
    world.frozen = world.byHand = body.off
      ? null
      : { until: body.until ?? iso(now() + body.forSeconds * 1000), because: body.reason || "Frozen by hand.", by: "ana@example.com" };
    tell(world, "freeze", { frozen: world.frozen });
    return [
      200,
      {
        frozen: !!world.frozen,
        until: world.frozen?.until ?? null,
        reason: body.reason ?? null,
        answer: world.frozen ? "Frozen." : "Unfrozen.",
      },
    ];
  }
  const row = find(world, rest);
  if (rest[3] === "pause") {
    if (row.group === "paused") throw new Refusal(409, "AlreadyPaused", "it already rests");
    changed(world, row.uid, {
      state: "paused",
      group: "paused",
      reason: "Paused",
      verdict: "unknown",
      next: null,
      idleSince: null,
      idleSeconds: null,
      keep: null,
      rest: {
        at: iso(now()),
        by: "ana@example.com",
        reason: body.reason || "by hand",
        gpus: row.gpus,
        policy: row.policy,
        size: "2 replicas",
        resumeCommand: `fallow resume ${row.kind}/${row.name} -n ${row.namespace}`,
      },
    });
    return [202, { status: "done", sentence: "2 pods to 0", code: null }];
  }
  if (rest[3] === "resume") {
    if (row.group !== "paused") throw new Refusal(409, "AlreadyRunning", "it is running already");
    changed(world, row.uid, { state: "resuming", reason: "Resuming", rest: row.rest });
    if (!options.still)
      setTimeout(
        () =>
          changed(world, row.uid, {
            state: "busy",
            group: "busy",
            verdict: "active",
            reason: "Active",
            rest: null,
            gpus: row.rest?.gpus ?? 1,
            perHour: 5.12,
          }),
        6000,
      );
    return [202, { status: "done", sentence: "2 pods are coming back", code: null }];
  }
  throw new Refusal(404, "NotFound", "no such path");
}

function json(res, status, data, request) {
  if (status === 204) return res.writeHead(204).end();
  const text = JSON.stringify(data);
  const etag = data?.revision && request.method === "GET" ? `"${data.revision}-${text.length}"` : null;
  if (etag && request.headers["if-none-match"] === etag) return res.writeHead(304, { etag }).end();
  res.writeHead(status, { "content-type": "application/json", ...(etag && { etag }), "cache-control": "no-cache" }).end(text);
}

const devOf = (request) => new Set((/(?:^|; )dev=([^;]*)/.exec(request.headers.cookie ?? "")?.[1] ?? "").split(".").filter(Boolean));

function events(request, res, world) {
  res.writeHead(200, { "content-type": "text/event-stream", "cache-control": "no-cache" });
  res.write("retry: 2000\n\n");
  const client = { res, world };
  clients.add(client);
  request.on("close", () => clients.delete(client));
}

async function body(request) {
  let text = "";
  for await (const part of request) text += part;
  return text ? JSON.parse(text) : {};
}

async function api(request, res, url) {
  const dev = devOf(request);
  if (dev.has("offline")) return request.socket.destroy();
  const world = dev.has("empty") ? emptyWorld : worldOf(dev);
  world.frozen =
    world.byHand ??
    (!dev.has("frozen")
      ? null
      : {
          until: iso(NOW + 65 * MINUTE),
          because: "Idle share rose from 24 % to 61 % in one cycle; more likely the measurements than the cluster.",
          by: null,
        });
  try {
    if (url.pathname === "/api/v1/events") return events(request, res, world);
    if (request.method === "GET") return json(res, 200, read(url.pathname, url.searchParams, world, dev), request);
    const [status, data] = write(request.method, url.pathname, await body(request), world, dev, request);
    json(res, status, data, request);
  } catch (error) {
    if (!(error instanceof Refusal)) throw error;
    json(
      res,
      error.status,
      { error: { code: error.code, message: error.message }, ...(error.missing && { missing: error.missing }) },
      request,
    );
  }
}

async function file(request, res, url) {
  const path = normalize(url.pathname).replace(/^(\.\.\/)+/, "");
  const name = extname(path) ? path : "index.html";
  const data = await readFile(join(STATIC, name)).catch(() => null);
  if (!data) return res.writeHead(404).end();
  const headers = {
    "content-type": TYPES[extname(name)] ?? "application/octet-stream",
    "content-security-policy": CSP,
    "cache-control": name === "index.html" ? "no-store" : "max-age=3600",
  };
  if (url.searchParams.has("dev"))
    headers["set-cookie"] = `dev=${url.searchParams.get("dev").replace("none", "").replaceAll(",", ".")}; Path=/`;
  res.writeHead(200, headers).end(data);
}

createServer((request, res) => {
  const url = new URL(request.url, "http://localhost");
  res.setHeader("date", new Date(now()).toUTCString());
  (url.pathname.startsWith("/api/") ? api : file)(request, res, url).catch?.((error) => {
    console.error(error);
    res.writeHead(500).end();
  });
}).listen(Number(options.port), "127.0.0.1", () => console.log(`http://127.0.0.1:${options.port}/`));

if (!options.still) {
  setInterval(() => {
    for (const w of [worlds.drawn, worlds.big])
      if (w) {
        w.revision += 1;
        cycle(w);
      }
  }, 10_000);
  setInterval(() => {
    for (const w of [worlds.drawn, worlds.big])
      if (w) {
        const rows = w.list().filter((r) => r.group === "willPause" || r.group === "onTheWay" || r.group === "busy");
        for (let i = 0; i < (w === worlds.big ? 200 : 1); i++) {
          const told = rows.filter((r) => r.state === "told");
          const row = Math.random() < 0.4 && w !== worlds.big && told.length > 2 ? told[0] : rows[Math.floor(Math.random() * rows.length)];
          if (row)
            changed(
              w,
              row.uid,
              row.group === "busy"
                ? {}
                : row.state === "told"
                  ? { state: "busy", group: "busy", verdict: "active", reason: "Active", idleSince: null, idleSeconds: null, next: null }
                  : { idleSeconds: row.idleSeconds + 60 },
            );
        }
      }
  }, 4000);
}
