// Ask the API. The token stays in the tab: it is sent as a bearer token, and no cookie holds it.

const KEY = "nexus-token";
export const access = { token: sessionStorage.getItem(KEY), scopes: [], namespace: null, operator: false };

/** An error that the server has told of, with its remedy. */
export class Problem extends Error {
  constructor(problem) {
    super(problem.detail || problem.title);
    this.remedy = problem.remedy;
    this.status = problem.status;
  }
}

async function send(method, path, { query = {}, body, token = access.token } = {}) {
  const url = new URL(path, document.baseURI);
  for (const [name, value] of Object.entries(query)) {
    if (value === undefined || value === null || value === "") continue;
    for (const one of Array.isArray(value) ? value : [value]) url.searchParams.append(name, one);
  }
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer;
  try {
    answer = await fetch(url, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Problem({ detail: "The server does not answer.", remedy: "Start it again with `nexus browse`.", status: 0 });
  }
  if (answer.ok) return answer.json();
  throw new Problem(await answer.json().catch(() => ({ title: answer.statusText, status: answer.status })));
}

export const get = (path, query) => send("GET", path, { query });
export const post = (path, body) => send("POST", path, { body });
export const patch = (path, body) => send("PATCH", path, { body });
export const erase = (path, query) => send("DELETE", path, { query });
export const can = (...scopes) => scopes.every((scope) => access.scopes.includes(scope));

/** Use a token from now on, if the server takes it. */
export async function enter(token) {
  const found = await send("GET", "v1/access", { token });
  sessionStorage.setItem(KEY, token);
  Object.assign(access, found, { token });
}

/** Exchange the code of a link, which is valid once, for a token. */
export async function redeem(code) {
  const found = await send("POST", "browser/key", { body: { code }, token: null });
  await enter(found.token);
}

export function leave() {
  sessionStorage.removeItem(KEY);
  Object.assign(access, { token: null, scopes: [], namespace: null, operator: false });
}
