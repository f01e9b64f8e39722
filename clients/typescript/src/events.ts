import { NexusProblem } from "./problem.js";

/** A server-sent event whose data is a JSON document. */
export interface StreamEvent {
  event: string;
  data: unknown;
}

/** The events of a stream. The event `problem` is thrown. */
export async function* events(body: ReadableStream<Uint8Array>): AsyncGenerator<StreamEvent> {
  let event = "";
  let data: string[] = [];
  for await (const line of lines(body)) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5));
    else if (line === "" && data.length) {
      const document = JSON.parse(data.join("\n"));
      if (event === "problem") throw new NexusProblem(document);
      yield { event, data: document };
      [event, data] = ["", []];
    }
  }
}

/** The lines of a stream. A reader that stops early closes the stream. */
export async function* lines(body: ReadableStream<Uint8Array>): AsyncGenerator<string> {
  const reader = body.pipeThrough(new TextDecoderStream() as ReadableWritablePair<string, Uint8Array>).getReader();
  let parts: string[] = []; // of the line that has no end yet; a line may have many megabytes
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) break;
      const found = value.split("\n");
      for (const end of found.splice(0, found.length - 1)) {
        const line = parts.join("") + end;
        parts = [];
        yield line.replace(/\r$/, "");
      }
      parts.push(found[0]!);
    }
    const rest = parts.join("");
    if (rest) yield rest;
  } finally {
    await reader.cancel();
  }
}
