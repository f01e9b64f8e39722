/** Streams that come in the most awkward parts. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { events, lines } from "../src/events.js";
import { NexusProblem } from "../src/problem.js";

function stream(text: string, size: number): ReadableStream<Uint8Array> {
  const bytes = new TextEncoder().encode(text);
  let at = 0;
  return new ReadableStream({
    pull(controller) {
      if (at >= bytes.length) return controller.close();
      controller.enqueue(bytes.slice(at, (at += size)));
    },
  });
}

async function all<T>(found: AsyncGenerator<T>): Promise<T[]> {
  const list: T[] = [];
  for await (const one of found) list.push(one);
  return list;
}

const TEXT = ': still here\n\nevent: sentence\ndata: {"text": "Grüße\\nan 🌍"}\n\nevent: answer\r\ndata: {"text":\r\ndata: "ß"}\r\n\r\n';

for (const size of [1, 2, 3, 7, 1000]) {
  test(`events in parts of ${size} bytes`, async () => {
    assert.deepEqual(await all(events(stream(TEXT, size))), [
      { event: "sentence", data: { text: "Grüße\nan 🌍" } },
      { event: "answer", data: { text: "ß" } },
    ]);
  });
}

test("the event problem is thrown", async () => {
  const problem = { type: "urn:nexus-tasks:NexusError", title: "t", status: 500, detail: "It broke.", remedy: "Mend it." };
  const found = events(stream(`event: problem\ndata: ${JSON.stringify(problem)}\n\n`, 5));
  await assert.rejects(found.next(), (error: unknown) => error instanceof NexusProblem && error.remedy === "Mend it.");
});

test("an event without its end is none", async () => {
  assert.deepEqual(await all(events(stream('event: answer\ndata: {"text": "cut', 4))), []);
});

test("a reader that stops closes the stream", async () => {
  let closed = false;
  const endless = new ReadableStream<Uint8Array>({
    pull: (controller) => controller.enqueue(new TextEncoder().encode("line\n")),
    cancel: () => void (closed = true),
  });
  for await (const _ of lines(endless)) break;
  assert.ok(closed);
});

test("a line of 40 MB is read in time that grows with its length", async () => {
  const long = new TextEncoder().encode("x".repeat(65_536));
  let parts = 640;
  const body = new ReadableStream<Uint8Array>({
    pull: (controller) => (parts-- > 0 ? controller.enqueue(long) : controller.close()),
  });
  const began = performance.now();
  assert.equal((await all(lines(body)))[0]!.length, 640 * 65_536);
  assert.ok(performance.now() - began < 5_000);
});
