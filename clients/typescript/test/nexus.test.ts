/** Against a real `nexus serve` with a worker: `tests/integration/test_typescript.py` starts both. */
import assert from "node:assert/strict";
import { createServer } from "node:http";
import type { AddressInfo } from "node:net";
import { test } from "node:test";

import { Nexus, NexusProblem } from "../src/index.js";

const url = process.env.NEXUS_TEST_URL!;
const token = process.env.NEXUS_HTTP_TOKEN!;
const nexus = new Nexus({ url, token });
const namespace = "typescript/a:1"; // what a path could not have

test("what is remembered is found, put into a context and into an answer", async () => {
  const receipt = await nexus.remember({ namespace, author: "ann", text: "My sister Clara got married in Porto." });
  assert.equal(receipt.stored, 1);
  const context = await nexus.context({ namespace, query: "Where did Clara get married?", max_tokens: 500 });
  assert.match(context.text, /Porto/);
  assert.ok(context.tokens <= 500);
  const [found] = await nexus.search({ namespace, query: "Where did Clara get married?", limit: 1 });
  assert.match(found!.content, /Porto/);

  const sentences: string[] = [];
  for await (const one of nexus.askStream({ namespace, question: "Where did Clara get married?" })) {
    if (one.event === "sentence") sentences.push(one.data.text);
    else assert.ok(one.data.text.includes(sentences[0]!));
  }
  assert.match(sentences.join(" "), /Porto/);
  assert.ok((await nexus.ask({ namespace, question: "Where did Clara get married?" })).remembered);
});

test("a job is followed until its end", async () => {
  const messages = Array.from({ length: 9 }, (_, n) => ({ author: "ann", content: `I keep thing ${n} on shelf ${n}.` }));
  await nexus.ingest({ namespace, session_key: "chat/ä & 1", messages });
  const { job } = await nexus.endSession({ namespace, session_key: "chat/ä & 1" });
  const states: string[] = [];
  for await (const one of nexus.job(job!.job_id)) states.push(one.status);
  assert.equal(states.at(-1), "completed");
});

test("a list is read page by page", async () => {
  const all: number[] = [];
  for await (const one of nexus.memories({ namespace, levels: ["raw", "explicit"], limit: 4 })) all.push(one.id);
  assert.ok(all.length >= 19, `${all.length} memories`); // 10 messages, and a fact of each but the first at least
  assert.equal(new Set(all).size, all.length);
  const first: number[] = [];
  for await (const one of nexus.memories({ namespace, levels: ["raw", "explicit"], limit: 4 })) {
    if (first.push(one.id) === 5) break;
  }
  assert.deepEqual(first, all.slice(0, 5));
});

test("a memory is corrected and erased", async () => {
  const [fact] = await nexus.search({ namespace, query: "thing 3 on shelf", levels: ["explicit"], limit: 1 });
  const revised = await nexus.revise(fact!.id, { namespace, content: "Ann keeps thing 3 in the cellar." });
  assert.match((await nexus.memory(revised.id, { namespace })).content, /cellar/);
  assert.ok((await nexus.forget(revised.id, { namespace })).ids.includes(revised.id));
  await assert.rejects(nexus.memory(revised.id, { namespace }), { name: "NexusProblem", status: 404, type: "NotFound" });
});

test("an export is read to its last line", async () => {
  let last = "";
  for await (const line of nexus.export({ namespace })) last = line;
  assert.equal(typeof JSON.parse(last), "object");
});

test("an error has a type, a message and a remedy, and all routes throw it", async () => {
  for (const call of [
    () => nexus.status({ namespace: "nobody" }),
    () => nexus.askStream({ namespace: "nobody", question: "Where?" }).next(),
    () => nexus.api.GET("/v1/namespace", { params: { query: { namespace: "nobody" } } }),
  ]) {
    await assert.rejects(call, (error: unknown) => {
      assert.ok(error instanceof NexusProblem);
      assert.deepEqual([error.status, error.type], [404, "NotFound"]);
      assert.match(error.message, /nobody/);
      assert.ok(error.remedy);
      return true;
    });
  }
  await assert.rejects(nexus.remember({ namespace, text: "" }), { name: "NexusProblem", status: 422 });
});

test("a wrong token is refused", async () => {
  await assert.rejects(new Nexus({ url, token: "wrong" }).status(), { name: "NexusProblem", status: 401 });
});

test("a token of a namespace reaches that namespace alone, and needs no name", async () => {
  const body = { namespace, name: "reader", scopes: ["read" as const] };
  const { data } = await nexus.api.POST("/v1/tokens", { body });
  const reader = new Nexus({ url, token: data!.token });
  assert.match((await reader.context({ query: "Where did Clara get married?" })).text, /Porto/);
  await assert.rejects(reader.search({ namespace: "other", query: "x" }), { name: "NexusProblem", status: 403 });
  await assert.rejects(reader.remember({ text: "I like tea." }), { name: "NexusProblem", status: 403 });
});

test("a write whose answer is lost is sent again, and stored once", async () => {
  let lost = 0;
  const lossy = async (request: Request): Promise<Response> => {
    const response = await fetch(request);
    if (request.method === "POST" && lost++ < 2) throw new TypeError("fetch failed"); // the server has done the work
    return response;
  };
  const text = "I drink green tea every morning.";
  const receipt = await new Nexus({ url, token, fetch: lossy }).remember({ namespace, text, session_key: "lossy" });
  assert.deepEqual([lost, receipt.stored, receipt.duplicates], [3, 1, 0]);
  lost = 0;
  const impatient = new Nexus({ url, token, fetch: lossy, retries: 1 });
  await assert.rejects(impatient.remember({ namespace, text: "Never.", session_key: "lossy" }), TypeError);
});

test("a question is not asked again, because each answer costs", async () => {
  let asked = 0;
  const cut = async (): Promise<Response> => {
    asked++;
    throw new TypeError("fetch failed");
  };
  await assert.rejects(new Nexus({ url, token, fetch: cut }).ask({ namespace, question: "Where?" }), TypeError);
  assert.equal(asked, 1);
});

test("an aborted request does not wait to be sent again", async () => {
  const busy = async (): Promise<Response> => new Response("", { status: 503, headers: { "Retry-After": "60" } });
  const aborting = new AbortController();
  setTimeout(() => aborting.abort(), 100);
  const began = Date.now();
  const asked = new Nexus({ url, token, fetch: busy }).api.GET("/v1/status", { signal: aborting.signal });
  await assert.rejects(asked, { name: "AbortError" });
  assert.ok(Date.now() - began < 10_000);
});

test("a proxy's own error is told apart", async () => {
  const proxy = async () => new Response("<h1>Bad Gateway</h1>", { status: 502, statusText: "Bad Gateway" });
  await assert.rejects(new Nexus({ url, token, retries: 0, fetch: proxy }).status(), { name: "NexusProblem", status: 502, type: "" });
});

test("a sender that sends too much waits and goes on", async () => {
  let answers = 0;
  const busy = async (request: Request): Promise<Response> =>
    ++answers === 1 ? new Response("", { status: 429, headers: { "Retry-After": "0" } }) : fetch(request);
  assert.ok(await new Nexus({ url, token, fetch: busy }).status({ namespace }));
  assert.equal(answers, 2);
});

test("an answer that is cut off is no answer", async () => {
  const said = 'event: sentence\ndata: {"text": "Ann lives", "citations": []}\n\n';
  const cut = async () => new Response(said, { headers: { "Content-Type": "text/event-stream" } });
  const told: string[] = [];
  const read = async () => {
    const stream = new Nexus({ url, token, fetch: cut }).askStream({ namespace, question: "Where?" });
    for await (const one of stream) told.push(one.event);
  };
  await assert.rejects(read, TypeError);
  assert.deepEqual(told, ["sentence"]);
});

test("a stream without events is not asked for again and again", async () => {
  let asked = 0;
  const empty = async () => {
    if (++asked > 3) throw new Error("It was asked for again.");
    return new Response("", { headers: { "Content-Type": "text/event-stream" } });
  };
  await assert.rejects(new Nexus({ url, token, fetch: empty }).job("j").next(), TypeError);
  assert.equal(asked, 1);
});

test("a date in Retry-After takes no pause away", async () => {
  let answers = 0;
  const busy = async (request: Request): Promise<Response> =>
    ++answers === 1
      ? new Response("", { status: 503, headers: { "Retry-After": "Fri, 31 Dec 1999 23:59:59 GMT" } })
      : fetch(request);
  const began = performance.now();
  assert.ok(await new Nexus({ url, token, fetch: busy }).status({ namespace }));
  assert.ok(performance.now() - began >= 200);
});

for (const status of [502, 504]) {
  test(`a write that a proxy answers with ${status} is sent again, and stored once`, async () => {
    let sent = 0;
    const proxy = async (request: Request): Promise<Response> => {
      const response = await fetch(request);
      return sent++ ? response : new Response("<h1>No answer</h1>", { status });
    };
    const one = { namespace, text: "I drink oolong at noon.", session_key: `proxy ${status}` };
    const receipt = await new Nexus({ url, token, fetch: proxy }).remember(one);
    assert.deepEqual([sent, receipt.stored, receipt.duplicates], [2, 1, 0]);
  });
}

test("a write whose answer is cut in its middle is sent again, and stored once", async () => {
  let sent = 0;
  const cutting = async (request: Request): Promise<Response> => {
    const response = await fetch(request);
    if (sent++) return response;
    const half = new Uint8Array(await response.arrayBuffer()).slice(0, 20);
    let pulled = 0;
    const pull = (made: ReadableStreamDefaultController) =>
      pulled++ ? made.error(new TypeError("terminated")) : made.enqueue(half); // as `fetch` says it
    return new Response(new ReadableStream({ pull }), response);
  };
  const one = { namespace, text: "I drink oolong at night.", session_key: "cut" };
  const receipt = await new Nexus({ url, token, fetch: cutting }).remember(one);
  assert.deepEqual([sent, receipt.stored, receipt.duplicates], [2, 1, 0]);
});

test("a job whose streams end at once is asked for at most four times a second", async () => {
  const event = 'event: job\ndata: {"status": "running"}\n\n';
  const short = async () => new Response(event, { headers: { "Content-Type": "text/event-stream" } });
  const began = performance.now();
  let heard = 0;
  for await (const _ of new Nexus({ url, token, fetch: short }).job("j")) if (++heard === 3) break;
  assert.ok(performance.now() - began >= 400);
});

test("a redirected request goes nowhere else", async () => {
  const elsewhere: string[] = [];
  const other = createServer((request, response) => {
    elsewhere.push(request.url!);
    response.end("{}");
  });
  const here = createServer((_, response) => {
    const { port } = other.address() as AddressInfo;
    response.writeHead(status, { Location: `http://127.0.0.1:${port}/taken` }).end();
  });
  let status = 302;
  await Promise.all([other, here].map((one) => new Promise<void>((done) => one.listen(0, "127.0.0.1", done))));
  try {
    const redirected = new Nexus({ url: `http://127.0.0.1:${(here.address() as AddressInfo).port}`, token });
    for (status of [301, 302, 303, 307, 308]) {
      await assert.rejects(redirected.remember({ namespace, text: "Mine." }), { name: "NexusProblem", status });
    }
    assert.deepEqual(elsewhere, []);
  } finally {
    for (const one of [other, here]) one.close().closeAllConnections();
  }
});

test("a list that goes on where it has been ends with an error", async () => {
  const same = async () => Response.json({ memories: [{ id: 1 }], next_offset: 0 });
  const read = async () => {
    for await (const _ of new Nexus({ url, token, fetch: same }).memories({ namespace }));
  };
  await assert.rejects(read, TypeError);
});

test("an error whose document is none is an error of its status", async () => {
  for (const document of ["null", "[]", "{}", "{", ""]) {
    const odd = async () =>
      new Response(document, { status: 500, headers: { "Content-Type": "application/problem+json" } });
    await assert.rejects(new Nexus({ url, token, fetch: odd }).status(), { name: "NexusProblem", status: 500 });
  }
});
