// The routes of `elmo serve` without a server: from the files next to the page, and from the model in the browser.

import { OnnxElmo, cosine, dot } from "./elmo.js";

export { dot };

export class ApiError extends Error {
  /** `found` is the body of the response. */
  constructor(message, status, found = {}) { super(message); Object.assign(this, { status, found }); }
}

const folder = new URL("../", import.meta.url), files = new Map();
let model = null;

/** A JSON file of the folder, read once. */
function read(name) {
  if (!files.has(name)) files.set(name, fetch(new URL(name, folder)).then((answer) => { if (!answer.ok) throw new ApiError(`${name}: ${answer.status}`, answer.status); return answer.json(); }));
  return files.get(name);
}

/** The model, loaded when the first sentence needs it. */
function elmo() {
  model ??= (async () => {
    const { runtime } = await read("data/info.json"), base = new URL(runtime, folder);
    const ort = await import(new URL("ort.wasm.min.mjs", base));
    ort.env.wasm.wasmPaths = base.href;
    ort.env.wasm.numThreads = 1; // more threads need headers that a plain file server does not send
    return OnnxElmo.load(ort, new URL("elmo.onnx", folder).href);
  })();
  model.catch(() => { model = null; });
  return model;
}

export function setKey() {}

/** A base64 text → its float32 values. */
export function floats(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Float32Array(bytes.buffer);
}

/** The vectors of every layer: [{tokens, layers, at(layer, token) → Float32Array of length 1}]. */
export async function allLayers(inputs) {
  const found = await (await elmo()).layers(inputs);
  return found.map(({ tokens, layers, at }) => ({ tokens, layers, at: (layer, token) => { const vector = at(layer, token), length = Math.sqrt(dot(vector, vector)) || 1; return vector.map((x) => x / length); } }));
}

const ROUTES = {
  info: () => read("data/info.json"),

  async words({ prefix, k }) {
    const { words } = await read("data/info.json");
    return { words: words.filter(({ word }) => word.toLowerCase().startsWith(prefix.toLowerCase())).slice(0, k) };
  },

  async senses({ word }) {
    const { words } = await read("data/info.json"), index = words.findIndex((each) => each.word === word);
    if (index < 0) throw new ApiError("the word is not in this page", 404, { words: words.map((each) => each.word) });
    return read(`data/word-${index}.json`);
  },

  async neighbours({ inputs, word, position, k }) {
    const own = await elmo(), tokens = typeof inputs === "string" ? joined(own, own.tokenize(inputs), word) : inputs;
    const chosen = position ?? tokens.findIndex((token) => token.toLowerCase() === word.toLowerCase());
    if (chosen < 0) throw new ApiError("the word must be one of the tokens of the sentence", 422);
    const uses = await ROUTES.senses({ word: word ?? tokens[chosen] });
    const [sentence] = await own.layers([tokens]), vector = sentence.at(uses.vectors.layer, chosen), numbers = floats(uses.vectors.values);
    const near = uses.sentences.map((use, i) => ({ ...use, similarity: cosine(vector, numbers.subarray(i * vector.length, (i + 1) * vector.length)) }));
    return { tokens, position: chosen, neighbours: near.sort((a, b) => b.similarity - a.similarity).slice(0, k) };
  },
};

/** The tokens, with the characters of `word` joined to one token if the model reads it as several. */
function joined(own, tokens, word) {
  const pieces = own.tokenize(word ?? "").map((token) => token.toLowerCase()), found = [];
  for (let i = 0; i < tokens.length; ) {
    const here = tokens.slice(i, i + pieces.length), same = pieces.length > 1 && here.map((token) => token.toLowerCase()).join(" ") === pieces.join(" ");
    found.push(same ? here.join("") : tokens[i]);
    i += same ? pieces.length : 1;
  }
  return found;
}

/** The response of `elmo serve` on this route. */
export async function ask(route, body) {
  if (!(route in ROUTES)) throw new ApiError(`a page without a server has no ${route}`, 404);
  return ROUTES[route](body ?? {});
}
