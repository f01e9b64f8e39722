import type { components } from "./schema.js";

/** The document of an error (RFC 9457). */
export type Problem = components["schemas"]["Problem"];

/** An answer of the server that is an error. `message` says what happened, and `remedy` what to do about it. */
export class NexusProblem extends Error {
  override readonly name = "NexusProblem";

  constructor(readonly problem: Problem) {
    super(problem.detail || problem.title);
  }

  /** The name of the Python error, such as `NotFound`; empty when the status says all. */
  get type(): string {
    return this.problem.type.startsWith("urn:nexus-tasks:") ? this.problem.type.slice("urn:nexus-tasks:".length) : "";
  }

  /** The HTTP status; of an error behind the first event of a stream, the status that it would have had. */
  get status(): number {
    return this.problem.status;
  }

  get remedy(): string {
    return this.problem.remedy;
  }
}

/** The error that a response is. A proxy in between may answer without a problem document. */
export async function problemOf(response: Response): Promise<NexusProblem> {
  const text = await response.text();
  if (response.headers.get("Content-Type")?.startsWith("application/problem+json")) {
    const problem = document(text);
    if (typeof problem?.type === "string") return new NexusProblem(problem);
  }
  return new NexusProblem({
    type: "about:blank",
    title: response.statusText || `HTTP ${response.status}`,
    status: response.status,
    detail: text.slice(0, 500),
    remedy: "The answer is not from nexus serve: check the address, and what stands between.",
  });
}

function document(text: string): Problem | null {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}
