/** How requests are sent: with the token, a write with an idempotency key, and again when that is safe. */

export type Fetch = (request: Request) => Promise<Response>;

export interface Sending {
  token: string;
  /** How often a request is sent again. */
  retries: number;
  fetch: Fetch;
}

const KEY = "Idempotency-Key";
// These take no key, and a second request would be a second answer of the model, or a second import.
const SENT_ONCE = ["/v1/ask", "/v1/import"];
export const FIRST_PAUSE = 250; // ms; each further pause is twice as long
const LONGEST_PAUSE = 2_147_483_647; // ms; a longer timer would end at once

/**
 * A `fetch` for the API. A request is sent again after 429 and 503, when nothing was done, after a connection that broke,
 * and after 502 and 504, by which a proxy says the same. A write is then sent with the same key, so it has its effect
 * once. The server answers 409 while the request of the broken connection still runs.
 */
export function sender({ token, retries, fetch }: Sending): Fetch {
  return async (request) => {
    request.headers.set("Authorization", `Bearer ${token}`);
    const once = SENT_ONCE.some((path) => new URL(request.url).pathname.endsWith(path));
    if (request.method !== "GET" && !once && !request.headers.has(KEY)) {
      request.headers.set(KEY, crypto.randomUUID());
    }
    for (let left = once ? 0 : retries, pause = FIRST_PAUSE; ; left--, pause *= 2) {
      if (left <= 0) return fetch(request);
      try {
        const response = await fetch(request.clone());
        if (!(await isPassing(response))) return await whole(response);
        await response.body?.cancel();
        // A proxy may write a date there, which is no number.
        const asked = 1000 * Number(response.headers.get("Retry-After")) || 0;
        await sleep(Math.min(Math.max(pause, asked), LONGEST_PAUSE), request.signal);
      } catch (error) {
        if (request.signal.aborted || !(error instanceof TypeError)) throw error;
        await sleep(pause, request.signal);
      }
    }
  };
}

/** The response with its document, which a connection may break off too. A stream comes part by part. */
async function whole(response: Response): Promise<Response> {
  if (!/^application\/(problem\+)?json\b/.test(response.headers.get("Content-Type") ?? "")) return response;
  return new Response(await response.arrayBuffer(), response);
}

async function isPassing(response: Response): Promise<boolean> {
  if (response.status !== 409) return [429, 502, 503, 504].includes(response.status);
  return (await response.clone().text()).includes('"urn:nexus-tasks:RequestRunning"');
}

/** A pause. It ends with an error when the caller aborts the request. */
export function sleep(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal!.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}
