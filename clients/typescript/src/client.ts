import createClient, { type Client } from "openapi-fetch";

import { events, lines } from "./events.js";
import { problemOf } from "./problem.js";
import type { components, operations, paths } from "./schema.js";
import { FIRST_PAUSE, sender, sleep, type Fetch } from "./sending.js";

export type Schemas = components["schemas"];
type Query<Name extends keyof operations> = NonNullable<operations[Name]["parameters"]["query"]>;
/** Parameters of a list. `limit` is the size of the pages in which it is read. */
type Listing<Name extends keyof operations> = Omit<Query<Name>, "offset">;

export interface Options {
  /** Where `nexus serve` listens. */
  url?: string;
  /** The operator's token, or a namespace's. */
  token: string;
  /** How often a request is sent again after 429, 502, 503, 504 or a broken connection. */
  retries?: number;
  fetch?: Fetch;
}

/** Sentences of an answer as they are checked, then the whole answer. */
export type AnswerEvent =
  | { event: "sentence"; data: Schemas["AnswerSentence"] }
  | { event: "answer"; data: Schemas["Answer"] };

/**
 * Memory over HTTP. The methods are the calls of every day; `api` has all routes, by their paths, with the same token,
 * keys and repeats. Each of them throws a `NexusProblem` when the answer is an error, and a `TypeError` when there is
 * no answer. A token of a namespace gives access to that namespace, which may then be left out.
 */
export class Nexus {
  readonly api: Client<paths>;

  constructor({ url = "http://127.0.0.1:8700", token, retries = 3, fetch = globalThis.fetch }: Options) {
    this.api = createClient<paths>({
      baseUrl: url,
      fetch: sender({ token, retries, fetch: (one) => fetch(one) }),
      redirect: "manual", // nexus serve never redirects, and a redirected write would send its content elsewhere
    });
    this.api.use({
      async onResponse({ response }) {
        if (!response.ok) throw await problemOf(response);
      },
    });
  }

  /** Store messages of a session. Facts are derived in the background. */
  ingest(body: Schemas["IngestBody"]): Promise<Schemas["Receipt"]> {
    return answer(this.api.POST("/v1/messages", { body }));
  }

  /** Store one text to remember. */
  remember(body: Schemas["RememberBody"]): Promise<Schemas["Receipt"]> {
    return answer(this.api.POST("/v1/memories", { body }));
  }

  /** End a session: derive what is left of it, and digest it. */
  endSession(body: Schemas["SessionBody"]): Promise<Schemas["EndedSession"]> {
    return answer(this.api.POST("/v1/session/end", { body }));
  }

  /** The memories that fit a query, best first. */
  async search(body: Schemas["SearchBody"]): Promise<Schemas["Recall"][]> {
    return (await answer(this.api.POST("/v1/search", { body }))).results;
  }

  /** What to put into a prompt, within a number of tokens, with citations. */
  context(body: Schemas["ContextBody"]): Promise<Schemas["ContextBlock"]> {
    return answer(this.api.POST("/v1/context", { body }));
  }

  /** Answer a question from memory, with citations, or say that it is not remembered. */
  ask(body: Schemas["AskBody"]): Promise<Schemas["Answer"]> {
    return answer(this.api.POST("/v1/ask", { body })) as Promise<Schemas["Answer"]>;
  }

  /** The same, sentence by sentence. A stream that ends before the answer throws a `TypeError`. */
  async *askStream(body: Schemas["AskBody"]): AsyncGenerator<AnswerEvent> {
    const stream = this.api.POST("/v1/ask", { body, headers: { Accept: "text/event-stream" }, parseAs: "stream" });
    let last = "";
    for await (const one of events((await answer(stream))!)) {
      last = one.event;
      yield one as AnswerEvent;
    }
    if (last !== "answer") throw new TypeError("The stream ended before the answer.");
  }

  /** Correct a memory. The old one is superseded, and stays to be seen. */
  revise(memoryId: number, body: Schemas["ReviseBody"]): Promise<Schemas["MemoryInfo"]> {
    return answer(this.api.PATCH("/v1/memories/{memory_id}", { params: { path: { memory_id: memoryId } }, body }));
  }

  /** Erase a memory, and what rests on it alone. */
  forget(memoryId: number, query: Query<"forget_memory"> = {}): Promise<Schemas["ForgetReceipt"]> {
    const params = { path: { memory_id: memoryId }, query };
    return answer(this.api.DELETE("/v1/memories/{memory_id}", { params }));
  }

  /** One memory, with its sources. */
  memory(memoryId: number, query: Query<"show_memory"> = {}): Promise<Schemas["MemoryDetails"]> {
    return answer(this.api.GET("/v1/memories/{memory_id}", { params: { path: { memory_id: memoryId }, query } }));
  }

  /** Memories, newest first. Read the list to its end before you erase what it has: else others are left out. */
  memories(query: Listing<"list_memories"> = {}): AsyncGenerator<Schemas["MemoryInfo"]> {
    return each(async (offset) => {
      const page = await answer(this.api.GET("/v1/memories", { params: { query: { ...query, offset } } }));
      return [page.memories, page.next_offset];
    });
  }

  /** Sessions of a namespace, newest first. Read the list to its end before you erase what it has: else others are left out. */
  sessions(query: Listing<"list_sessions"> = {}): AsyncGenerator<Schemas["SessionInfo"]> {
    return each(async (offset) => {
      const page = await answer(this.api.GET("/v1/sessions", { params: { query: { ...query, offset } } }));
      return [page.sessions, page.next_offset];
    });
  }

  /** What waits, runs and died, and why it waits. */
  status(query: Query<"status"> = {}): Promise<Schemas["StatusReport"]> {
    return answer(this.api.GET("/v1/status", { params: { query } }));
  }

  /** A job whenever it changes; the last one is the job as it ended. The server ends a stream after 10 minutes; the next one follows it. */
  async *job(jobId: string): AsyncGenerator<Schemas["JobDetails"]> {
    for (;;) {
      const params = { path: { job_id: jobId } };
      const stream = this.api.GET("/v1/jobs/{job_id}/events", { params, parseAs: "stream" });
      let heard = false;
      for await (const { event, data } of events((await answer(stream))!)) {
        heard = true;
        yield data as Schemas["JobDetails"];
        if (event === "end") return;
      }
      if (!heard) throw new TypeError("The stream of the job had no event.");
      await sleep(FIRST_PAUSE); // a proxy may end each stream at once
    }
  }

  /** All messages and memories of a namespace, as lines of JSON. A file without the last line was cut off. */
  async *export(query: Query<"export"> = {}): AsyncGenerator<string> {
    yield* lines((await answer(this.api.GET("/v1/export", { params: { query }, parseAs: "stream" })))!);
  }
}

/** The document of an answer. The middleware has thrown what is none. */
async function answer<T>(call: Promise<{ data?: T }>): Promise<T> {
  return (await call).data as T;
}

/** The entries of a list, page by page. */
async function* each<T>(page: (offset: number) => Promise<[T[], number | null]>): AsyncGenerator<T> {
  for (let offset: number | null = 0; offset !== null; ) {
    const [entries, next]: [T[], number | null] = await page(offset);
    yield* entries;
    if (next !== null && next <= offset) throw new TypeError(`The list goes on at ${next}, where it has been.`);
    offset = next;
  }
}
