// Requests to the server that serves this page.

let key = sessionStorage.getItem("elmokit-key") ?? "";

export class ApiError extends Error {
  /** `found` is the body of the response. */
  constructor(message, status, found) { super(message); Object.assign(this, { status, found }); }
}

/** The JSON response of a route; without a body the request is a GET. */
export async function ask(route, body, signal) {
  const headers = key ? { Authorization: `Bearer ${key}` } : {};
  if (body) headers["Content-Type"] = "application/json";
  for (let tries = 0; ; tries++) {
    const answer = await fetch(route, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal }).catch((error) => {
      throw error instanceof TypeError ? new ApiError("The server does not answer. Is it still running?", 0, {}) : error;
    });
    const wait = Number(answer.headers.get("Retry-After") ?? 0);
    if ((answer.status === 503 || answer.status === 429) && tries < 30) { // loading, or busy
      await new Promise((resolve) => setTimeout(resolve, 1000 * Math.min(Math.max(wait, 1), 5)));
      continue;
    }
    const found = await answer.json().catch((error) => { if (error instanceof SyntaxError) return {}; throw error; });
    if (answer.ok && Object.keys(found).length) return found;
    throw new ApiError(found.error?.message ?? found.error ?? `The response is not from elmo serve: ${answer.status} ${answer.statusText}`, answer.status, found);
  }
}

export function setKey(value) {
  key = value.replace(/[^ -~]/g, "?"); // fetch refuses a header with other letters, and no server has such a key
  sessionStorage.setItem("elmokit-key", key);
}

/** A base64 text → its float32 values. */
export function floats(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** The vectors of every layer: [{tokens, at(layer, token) → Float32Array of length 1}]. */
export async function allLayers(inputs, signal) {
  const answer = await ask("tokens", { inputs, layer: "all", encoding_format: "base64" }, signal);
  return answer.data.map(({ tokens, vectors, shape: [layers, count, size] }) => {
    const numbers = floats(vectors);
    const at = (layer, token) => {
      const start = (layer * count + token) * size, vector = numbers.slice(start, start + size);
      const length = Math.hypot(...vector) || 1;
      return vector.map((x) => x / length);
    };
    return { tokens: tokens.map((token) => token.text), layers, at };
  });
}

export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
