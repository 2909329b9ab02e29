// Runs a model written by `elmo export onnx` in a browser or in node, with onnxruntime-web. It needs only the model file.
//
//   import * as ort from "./ort/ort.wasm.min.mjs";
//   import { OnnxElmo, cosine } from "./elmo.js";
//   const elmo = await OnnxElmo.load(ort, "elmo.onnx");
//   const [{ tokens, vectors }] = await elmo.encode(["The bank raised rates."]);   // a Float32Array per token

const METADATA = "elmokit", VERSION = 1;

export const dot = (a, b) => a.reduce((sum, x, i) => sum + x * b[i], 0);
export const cosine = (a, b) => dot(a, b) / (Math.sqrt(dot(a, a) * dot(b, b)) || 1);

export class OnnxElmo {
  /** `ort`: the module of onnxruntime-web; `file`: a URL, or the bytes as a Uint8Array. */
  static async load(ort, file, options = {}) {
    let bytes = file;
    if (!(bytes instanceof Uint8Array)) {
      const answer = await fetch(file);
      if (!answer.ok) throw new Error(`${file}: ${answer.status} ${answer.statusText}`);
      bytes = new Uint8Array(await answer.arrayBuffer());
    }
    const stored = metadata(bytes)[METADATA];
    if (!stored) throw new Error(`the file has no metadata named ${METADATA}: write it with elmo export onnx`);
    const about = JSON.parse(stored);
    if (about.version !== VERSION) throw new Error(`the file has version ${about.version}, and this elmo.js reads version ${VERSION}: export it again`);
    return new OnnxElmo(ort, await ort.InferenceSession.create(bytes, { executionProviders: ["wasm"], ...options }), about);
  }

  constructor(ort, session, about) {
    Object.assign(this, { ort, session, about });
    this.index = about.words && new Map(about.words.map((word, i) => [word, i]));
    const { window: width, n_blocks: blocks } = about.model.transformer ?? {};
    this.reach = width ? width * blocks : 0; // the number of tokens on each side that a token's vector depends on
    this.whole = new Set([about.begin, about.end, ...(about.specials ?? [])]);
  }

  /** The tokens of a text, as elmokit splits it. */
  tokenize(text) {
    const { segment } = this.about;
    if (segment === "english") return english(text, this.about.english);
    if (segment === "chars") return text.match(characters()) ?? [];
    if (segment === "whitespace") return text.match(NON_SPACE) ?? [];
    throw new Error(`a string cannot be tokenised by ${segment} here: give a list of tokens`);
  }

  /** Strings or lists of tokens → [{tokens, vectors}]; `layer` is "mix", "top" or a number. */
  async encode(sentences, layer = this.about.default_layer) {
    const found = [];
    for (const each of await this.layers(sentences)) found.push({ tokens: each.tokens, vectors: this.chosen(each, layer) });
    return found;
  }

  /** All layers: [{tokens, layers, size, at(layer, token) → Float32Array}]. */
  async layers(sentences) {
    const found = [];
    for (const sentence of typeof sentences === "string" ? [sentences] : sentences) {
      const tokens = typeof sentence === "string" ? this.tokenize(sentence) : [...sentence];
      found.push(await this.sentence(tokens));
    }
    return found;
  }

  async sentence(tokens) {
    const { layers, size, begin, end, text } = this.about;
    // A model of characters reads a word character by character; the word's vector is the mean of their vectors.
    const pieces = tokens.map((token) => (text.segment === "chars" && !this.whole.has(token) && token.match(characters())) || [token]);
    const read = [begin, ...pieces.flat(), end], starts = [];
    pieces.reduce((start, each) => { starts.push(start); return start + each.length; }, 1);
    const parts = [];
    for (const [start, stop, first, last] of cuts(read.length, this.reach)) parts.push({ start, first, last, count: stop - start, values: await this.run(read.slice(start, stop)) });
    const vector = (layer, position) => {
      const { start, count, values } = parts.find(({ first, last }) => first <= position && position < last);
      const from = (layer * count + position - start) * size;
      return values.subarray(from, from + size);
    };
    const at = (layer, token) => {
      const count = pieces[token].length, sum = Float32Array.from(vector(layer, starts[token]));
      for (let i = 1; i < count; i++) vector(layer, starts[token] + i).forEach((x, d) => { sum[d] += x; });
      return count > 1 ? sum.map((x) => x / count) : sum;
    };
    return { tokens, layers, size, at };
  }

  /** Tokens with their boundaries → the values of all layers, [L+1, T, D]. */
  async run(tokens) {
    const types = new Map();
    const places = Int32Array.from(tokens, (token) => { if (!types.has(token)) types.set(token, types.size); return types.get(token); });
    const int32 = (values, shape) => new this.ort.Tensor("int32", values, shape);
    const inputs = { places: int32(places, [1, tokens.length]), lengths: int32(Int32Array.of(tokens.length), [1]) };
    const { words, characters: rows } = this.ids([...types.keys()]);
    if (words) inputs.words = int32(Int32Array.from(words), [words.length]);
    if (rows) inputs.characters = int32(Int32Array.from(rows.flat()), [rows.length, rows[0].length]);
    const { layers } = await this.session.run(inputs);
    return layers.data;
  }

  /** Distinct tokens → the ids that the network reads. */
  ids(tokens) {
    const { model, symbols, begin, end, specials } = this.about, { characters: shape, words } = model, found = {};
    const longest = shape?.max_characters ?? words?.max_characters, boundary = (token) => token === begin || token === end;
    const cut = longest && (words || symbols) ? tokens.map((token) => (boundary(token) ? token : [...token].slice(0, longest - 2).join(""))) : tokens;
    if (words) found.words = cut.map((token) => (this.index.get(token) ?? this.index.get(specials[2]) ?? -1) + 1);
    if (!shape) return found;
    const inner = (token) => {
      if (symbols) return (boundary(token) ? [token] : [...token]).map((symbol) => (symbols[symbol] ?? symbols["<oov>"]) + 1);
      if (boundary(token)) return [token === begin ? 257 : 258];
      return [...new TextEncoder().encode(token.replace(/\p{Cs}/gu, ""))].slice(0, longest - 2).map((byte) => byte + 1);
    };
    // The released models with symbols were trained with the two word markers swapped.
    const ends = symbols ? [symbols["<eow>"] + 1, symbols["<bow>"] + 1] : [259, 260];
    const rows = cut.map((token) => [ends[0], ...inner(token), ends[1]]), widest = Math.max(...shape.filters.map(([width]) => width));
    const length = Math.min(longest, Math.max(...rows.map((row) => row.length)) + widest);
    const padding = symbols ? symbols["<pad>"] + 1 : shape.padding_character;
    found.characters = rows.map((row) => [...row, ...Array(length - row.length).fill(padding)]);
    return found;
  }

  /** One vector per token, from the chosen layer or mix. */
  chosen({ tokens, layers, size, at }, layer) {
    if (layer !== "mix") return tokens.map((_, i) => at(layer === "top" ? layers - 1 : layer, i));
    const { weights, gamma, layer_norm: normed } = this.about.mix;
    const powers = weights.map((w) => Math.exp(w - Math.max(...weights))), total = powers.reduce((a, b) => a + b);
    const mixed = tokens.map(() => new Float32Array(size));
    for (let l = 0; l < layers; l++) {
      const rows = tokens.map((_, i) => at(l, i)), count = rows.length * size;
      const mean = normed ? rows.reduce((sum, row) => row.reduce((a, b) => a + b, sum), 0) / count : 0;
      const variance = normed ? rows.reduce((sum, row) => row.reduce((a, b) => a + (b - mean) ** 2, sum), 0) / count : 1;
      const factor = (gamma * powers[l]) / total / (normed ? Math.sqrt(variance + 1e-12) : 1);
      rows.forEach((row, i) => row.forEach((x, d) => { mixed[i][d] += factor * (x - mean); }));
    }
    return mixed;
  }
}

/** Parts of a long text, [start, stop, first, last]: tokens start to stop are read to compute the vectors first to last. */
function cuts(length, reach) {
  if (!reach || length <= 4 * reach) return [[0, length, 0, length]];
  const found = [];
  for (let first = 0; first < length; first += 2 * reach) found.push([Math.max(0, first - reach), Math.min(length, first + 3 * reach), first, Math.min(length, first + 2 * reach)]);
  return found;
}

/** The metadata of an ONNX file, names → texts (metadata_props, field 14 of a protobuf message). */
function metadata(bytes) {
  const found = {}, decode = (part) => new TextDecoder().decode(part);
  for (const [field, part] of fields(bytes)) {
    if (field !== 14) continue;
    const entry = Object.fromEntries(fields(part));
    found[decode(entry[1])] = decode(entry[2]);
  }
  return found;
}

function* fields(bytes) {
  let at = 0;
  const number = () => { for (let value = 0, factor = 1; ; factor *= 128) { const byte = bytes[at++]; value += (byte & 127) * factor; if (!(byte & 128)) return value; } };
  while (at < bytes.length) {
    const tag = number(), kind = tag % 8, field = Math.floor(tag / 8);
    if (kind === 2) { const size = number(); yield [field, bytes.subarray(at, at + size)]; at += size; }
    else if (kind === 0) number();
    else if (kind === 5 || kind === 1) at += kind === 5 ? 4 : 8;
    else throw new Error("this is not an ONNX file");
  }
}

// Text: the same rules as elmokit.text.english and elmokit.text.graphemes, which explain them

const raw = String.raw;
const SPACE = raw`\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000`; // the white space of Python
const NON_SPACE = new RegExp(`[^${SPACE}]+`, "gv");
const HAN = raw`々〆〇\u3021-\u3029\u3038-\u303b\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\u{20000}-\u{3ffff}`;
const KANA = raw`\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d\u{1aff0}-\u{1b16f}`;
const HANGUL = raw`\u3131-\u318e\uac00-\ud7a3`, BOPOMOFO = raw`\u02ea\u02eb\u3105-\u312f\u31a0-\u31bf`;
const JAMO = raw`[\u1100-\u115f\ua960-\ua97c]+[\u1160-\u11a7\ud7b0-\ud7c6]*[\u11a8-\u11ff\ud7cb-\ud7fb]*|[\u1160-\u11ff\ud7b0-\ud7c6\ud7cb-\ud7fb]`;
const PICTURE = raw`©®‼⁉™ℹ〰〽㊗㊙\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u25a0-\u27bf\u2900-\u297f\u2b00-\u2bff\u{1f000}-\u{1fbff}`;
const DRESS = raw`[\ufe0e\ufe0f\u20e3\u{1f3fb}-\u{1f3ff}\u{e0020}-\u{e007f}]*`;
const EMOJI = raw`[\u{1f1e6}-\u{1f1ff}]{2}|[0-9\#\*]\ufe0f?\u20e3|[${PICTURE}]${DRESS}(?:\u200d[${PICTURE}]${DRESS})*`;
const JOINERS = raw`\u00ad\u200c\u200d\u2060\uff9e\uff9f`, BASIC = raw`[\u0000-\uffff]`;
const ENCLOSED = raw`\u2460-\u24ff\u2776-\u2793\u3200-\u33ff`; // numbers in circles: Unicode calls them digits, readers see symbols
const ASTRAL_MARKS = raw`\u{1d165}-\u{1d1ad}\u{e0100}-\u{e01ef}`;
const ASTRAL_WORDS = raw`\u{10000}-\u{1afef}\u{1b170}-\u{1cfff}\u{1d400}-\u{1d7ff}\u{1df00}-\u{1efff}`;
const MARKS = raw`[[[\p{M}${JOINERS}]&&${BASIC}]${ASTRAL_MARKS}]`;
/** The class of letters, digits and marks of every script, without some. */
const letters = (without) => raw`[[[[[\p{L}\p{N}]--[${ENCLOSED}]]&&${BASIC}]${MARKS}${ASTRAL_WORDS}]--[${without}]]`;

let compiled = {};

function characters() {
  const single = HAN + KANA + HANGUL + BOPOMOFO;
  return (compiled.characters ??= new RegExp(raw`(?:[${single}]|${EMOJI}|${letters(raw`${single}\u1100-\u11ff\ua960-\ua97c\ud7b0-\ud7ff`)}+|${JAMO}|[^${SPACE}])${MARKS}*`, "gv"));
}

function pattern() {
  const L = letters(HAN + KANA), letter = raw`[[\p{L}\p{Nl}\p{No}]--[${HAN}${KANA}]]`, end = `(?!${L}|-${L})`, blank = `[${SPACE}]`;
  const clitic = raw`['’](?:[sSdDmM]|[lL][lL]|[rRvV][eE])`, part = raw`${L}+(?!(?<=[nN])['’][tT]${end})`;
  const address = raw`[^${SPACE}\.,\;\:\!\?'’\*\(\)\[\]\{\}\<\>"“”‘«»\|\\\^\`…\u3000-\u303f\uff00-\uff65]`;
  const choices = [
    raw`[A-Za-z]+(?=[ ,\n])`,
    raw`[,\;\:\?\!"“”\(\)]`,
    EMOJI,
    raw`(?:(?:[Hh]ttps?|HTTPS?|[Ff]tp):\/\/(?=[^${SPACE}])|[Ww]ww\.(?=${letter}))(?:${address}+|[\.,\;\:\!\?'’\*\[\]\{\}\|]+(?=${address})|\([^${SPACE}\(\)\<\>]*\))*`,
    raw`(?:[A-Za-z0-9][A-Za-z0-9\-]{0,62}\.){1,8}[a-z]{2,12}\/(?:[A-Za-z0-9_\/\.\~\%\?\=\&\+\-]*[A-Za-z0-9_\/])?`,
    raw`[A-Za-z0-9][A-Za-z0-9\._\%\+\-]{0,63}@[A-Za-z0-9\-]{1,63}(?:\.[A-Za-z0-9\-]{1,63}){1,8}(?<!-)`,
    raw`(?<!${L})(?:@[A-Za-z0-9_]+|#[0-9]*${letter}(?:${L}|_)*)`,
    raw`['’‘](?:[tT](?:is|was|were|will|would|wixt|il)|[eE]m|[cC](?:ause|os|uz)|[bB]out|[nN]eath|[mM]ong|[gG]ainst|[0-9][0-9]s?)${end}(?!['’])|['’‘][nN]['’](?!${L})`,
    raw`(?:${clitic}|[nN]['’][tT])${end}`,
    raw`(?:ol?|th|wi|an)['’](?=${blank})`,
    raw`(?:${letter}(?:\.${letter}(?!${L}))+|(?:Ph|Ed|Th|Sc|Litt)\.D(?!${L})|[BMD]\.(?:Sc|Ed|Phil|Eng|Tech|Com|Litt)(?!${L}))(?:\.(?!\.))?(?:-${L}+)*`,
    raw`(?:(?<!${L}|[\.\)\]])(?:[\+−\-]?\.?(?=[0-9])|-(?=${L})))?${part}(?:-(?:${letter}\.){2,}|(?:[‐‑\&\-]|_+|(?!${clitic}${end})['’‘]|['’]-|\.(?=[a-z0-9])|(?<=[0-9])[,\:\/⁄](?=[0-9]))${part})*(?:-(?=${blank}))?(?<stop>\.(?!\.))?`,
    raw`[${HAN}]`,
    raw`[${KANA}](?:[${KANA}]|${MARKS})*`,
    raw`\.{2,}|…+|-{2,}|[–—―]+|\*+|=+|_+|~+|#+|@+|\++|\|+|''|` + "``",
    raw`[^${SPACE}]`,
  ];
  return (compiled.english ??= new RegExp(`(?!${blank})(?:${choices.join("|")})${MARKS}*`, "dgv"));
}

/** The tokens of English text; `lists` are the abbreviations of elmokit.text.english. */
function english(text, lists) {
  const sets = (compiled.sets ??= Object.fromEntries(Object.entries(lists).map(([name, words]) => [name, new Set(words)])));
  const found = [];
  for (const match of text.matchAll(pattern())) {
    const stop = match.indices.groups.stop?.[0], end = match.index + match[0].length;
    if (stop === undefined || keepsPeriod(text, match.index, stop, sets)) found.push(match[0]);
    else found.push(text.slice(match.index, stop), text.slice(stop, end));
  }
  return found;
}

const NEXT_WORD = new RegExp(raw`[${SPACE}]{0,4}([\p{L}\p{N}_]{1,12}|[^${SPACE}])`, "vy");
const AFTER_INITIAL = new RegExp(raw`(?:^|[^\p{L}\p{N}_\.])[A-Z]\.[${SPACE}]?$`, "v");

const DIGIT = /^[\p{Nd}²³¹⁰-⁹₀-₉①-⑨⑴-⑼]/u;

/** Whether the word before a period is an abbreviation, so that the period is part of it. */
function keepsPeriod(text, start, period, sets) {
  const word = text.slice(start, period).split("-").at(-1);
  if (sets.always.has(word)) return true;
  NEXT_WORD.lastIndex = period + 1;
  const following = NEXT_WORD.exec(text), after = following?.[1] ?? "", [first = ""] = after;
  if (sets.continued.has(word)) return DIGIT.test(first) || /^(?:\p{Lowercase}|[,;:)])/u.test(first);
  if (DIGIT.test(first)) return sets.numbered.has(word.toLowerCase());
  if ([...word].length > 1 || !/^\p{Uppercase}/u.test(word) || !/^(?:\p{L}|,)/u.test(first)) return false;
  const among = AFTER_INITIAL.test(text.slice(Math.max(0, start - 5), start));
  if (among || ([...after].length === 1 && text[period + 1 + following[0].length] === ".")) return true;
  return word !== "I" && !sets.openers.has(after);
}
