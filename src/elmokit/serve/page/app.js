// The page: three views of one server. The address after # contains the state, so that a link shows the same view.

import { ApiError, allLayers, ask, dot, floats, setKey } from "./api.js";
import { exportHtml, exportTsv, save } from "./export.js";
import { SHAPES, WordMap, shapeMarkup } from "./map.js";
import { currentLanguage, setLanguage, words } from "./words.js";

const $ = (id) => document.getElementById(id);
const state = { view: "senses", word: "", index: "", clusters: "", layer: null, own: "", first: "", second: "", sentence: "", position: null };
const VIEWS = ["senses", "compare", "substitutes"];
const NEAREST = 10, LISTED = 300, APART = 6, LONGEST = 24;
const SPACED = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}]/u;
const UPRIGHT = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}\p{Extended_Pictographic}\u3000-\u303F\uFF00-\uFFEF]/u;
const EXAMPLES = {
  en: { first: "The band will play a slow song.", second: "The play was written for a small theatre.", sentence: "She deposited the money at the bank." },
  zh: { first: "我吃了一个苹果。", second: "苹果公司发布了新手机。", sentence: "春天来了，花都开了。" },
};
let info = null, found = null, running = null, timer = null;

const map = new WordMap($("map"), $("labels"), { hover, select, lasso });
window.elmo = { state, points: () => map.screenPoints(), senses: () => found };

// Shared by several views

const readsChinese = () => info?.segment === "chars" || info?.segment === "jieba";
const short = (word) => ([...word].length > LONGEST ? `${[...word].slice(0, LONGEST - 1).join("")}…` : word);
const OPENING = /[(\[“‘]$/;
const CLOSING = /^(?:[.,;:!?)\]’”%]|n['’]t$|['’](?:s|re|ve|ll|d|m)$)/i;
const gap = (left, right) => (left && right && !SPACED.test(left.at(-1)) && !SPACED.test(right[0]) && !OPENING.test(left) && !CLOSING.test(right) ? " " : "");
const joined = (tokens) => tokens.reduce((text, token) => text + gap(text, token) + token, "");
/** The text before a token and the text after it, with the spaces next to the token. */
function around(tokens, position) {
  const before = joined(tokens.slice(0, position)), word = tokens[position], next = tokens[position + 1] ?? "";
  return [before + gap(before, word), gap(word, next) + joined(tokens.slice(position + 1))];
}

function message(text) {
  $("message").textContent = text ?? "";
  $("message").hidden = !text;
}

/** Run one request at a time; a new request aborts the previous one. */
async function work(action) {
  running?.abort();
  const own = (running = new AbortController());
  document.body.setAttribute("aria-busy", "true");
  message();
  try {
    await action(own.signal);
  } catch (error) {
    if (error.name === "AbortError") return;
    if (error instanceof ApiError && error.status === 401) {
      error.message = words("key");
      const given = prompt(error.message);
      if (given) { setKey(given); location.reload(); }
    }
    message(error.message);
  } finally {
    if (running === own) {
      document.body.removeAttribute("aria-busy");
      $("empty").textContent = words("empty");
      $("empty").hidden = found !== null;
    }
  }
}

function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// The address

const IN_ADDRESS = { senses: ["word", "index", "clusters", "layer", "own"], compare: ["first", "second", "layer"], substitutes: ["sentence", "position"] };

function writeAddress() {
  const values = IN_ADDRESS[state.view].filter((name) => state[name] !== "" && state[name] !== null).map((name) => [name, state[name]]);
  const address = `#/${state.view}${values.length ? `?${new URLSearchParams(values)}` : ""}`;
  if (address !== location.hash) history.replaceState(null, "", address);
}

async function readAddress() {
  const [path, query] = location.hash.slice(2).split("?"), given = new URLSearchParams(query ?? "");
  state.view = VIEWS.includes(path) ? path : "senses";
  if (query) for (const name of IN_ADDRESS[state.view]) state[name] = given.get(name) ?? ""; // a bare view shows what it showed before
  const layer = Number.parseInt(given.get("layer"), 10);
  state.layer = Number.isInteger(layer) && layer >= 0 && layer < info.layers ? layer : null;
  const position = Number.parseInt(given.get("position"), 10);
  state.position = position >= 0 ? position : null;
  for (const name of VIEWS) {
    $(name).hidden = name !== state.view;
    document.querySelector(`[data-view="${name}"]`).toggleAttribute("aria-current", name === state.view);
  }
  document.querySelector(`[data-view="${state.view}"]`).setAttribute("aria-current", "page");
  document.title = `${words(state.view)} · elmokit`;
  delete document.body.dataset.ready;
  await { senses: openSenses, compare: openCompare, substitutes: openSubstitutes }[state.view]();
  document.body.dataset.ready = state.view;
}

// Senses

async function openSenses() {
  if (!info.indexes.length) return message(words("noIndex"));
  if (!info.indexes.some(({ name }) => name === state.index)) state.index = info.indexes[0].name;
  $("index").value = state.index;
  $("word").value = state.word;
  $("clusters").value = state.clusters;
  $("own").value = state.own;
  map.resize();
  if (!$("suggestions").children.length) await work(suggest);
  if (!state.word) return;
  if (found?.word !== state.word || found.index !== state.index || found.clusters !== state.clusters) return showWord();
  state.layer ??= map.layer;
  map.setLayer(state.layer);
  describe();
  writeAddress();
  await work(ownSentence);
}

async function suggest(signal) {
  const { words: frequent } = await ask("words", { index: state.index, prefix: "", k: 1000 }, signal);
  const known = ["bank", "spring", "play", "match", "light", "ring", "letter", "watch", "note", "bat", "apple", "mouse", "苹果", "杜鹃", "火", "花", "打", "包"];
  const there = new Map(frequent.map(({ word, occurrences }) => [word, occurrences]));
  const chosen = known.filter((word) => there.has(word));
  const fill = chosen.length > 3 ? [] : frequent.filter(({ word }) => word.length > 4 || SPACED.test(word)).map(({ word }) => word);
  $("suggestions").replaceChildren(...[...new Set([...chosen, ...fill])].slice(0, 10).map((word) =>
    element("button", { type: "button", textContent: short(word), onclick: () => chooseWord(word) })));
}

function chooseWord(word) {
  Object.assign(state, { word, own: "", clusters: $("clusters").value, index: $("index").value });
  $("word").value = word;
  $("own").value = "";
  writeAddress();
  return showWord();
}

const showWord = () => work(async (signal) => {
  $("empty").hidden = false;
  $("empty").textContent = words("busy");
  const { word, index, clusters } = state;
  const request = { word, index, layers: "all" };
  if (clusters) request.clusters = Number(clusters);
  try {
    found = { ...(await ask("senses", request, signal)), index, clusters };
  } catch (error) {
    if (error.status === 404) throw new Error(words("unknown", word, error.found?.words ?? []));
    throw error;
  }
  $("empty").hidden = true;
  const layers = Object.keys(found.points).length;
  found.layers = layers;
  found.planes = Array.from({ length: layers }, (_, n) => found.points[n]);
  found.names = found.senses.map(({ typical }) => typical.slice(0, 3).map(short).join(" · "));
  found.text = found.sentences.map(({ tokens }) => joined(tokens));
  state.layer = state.layer ?? (typeof found.layer === "number" ? found.layer : layers - 1);
  $("layer").max = layers - 1;
  map.setData({ points: found.planes, labels: found.labels, names: found.names }, state.layer);
  $("map").setAttribute("aria-label", words("mapOf", found.word));
  $("filter").value = "";
  describe();
  legend();
  list();
  writeAddress();
  await ownSentence(signal);
});

function describe() {
  const { layers, variance, sentences, senses } = found;
  $("layer").value = state.layer;
  $("layer-name").textContent = words("layerName", state.layer, layers - 1);
  $("layer").setAttribute("aria-valuetext", words("layerName", state.layer, layers - 1));
  const [x, y] = variance[state.layer];
  $("axes").textContent = sentences.length === 1 ? "" : state.layer === 0 && x + y < 1e-6 ? words("same") : words("axes", x, y);
  $("summary").textContent = words("summary", found.word, sentences.length, senses.length);
}

function legend() {
  $("legend").replaceChildren(...found.senses.map(({ size, typical }, k) => {
    const button = element("button", { type: "button" });
    button.setAttribute("aria-pressed", map.shown.group === k);
    button.innerHTML = `<svg viewBox="0 0 18 18" aria-hidden="true">${shapeMarkup(SHAPES[k % 8], 9, 9, 6.5, `var(--c${k % 8})`)}</svg>`;
    button.append(element("span", { textContent: typical.slice(0, 6).map(short).join(", ") || `${words("group")} ${k + 1}` }),
      element("span", { className: "count", textContent: size }));
    button.onclick = () => { map.show({ group: map.shown.group === k ? null : k }); legend(); list(); };
    return element("li", {}, button);
  }));
}

/** The sentences of the panel: a selection, a group, or all; `order` is a list of [index, cosine]. */
function list(order = null, title = words("uses")) {
  const chosen = order ?? found.sentences.map((_, i) => [i]).filter(([i]) => !map.isFaded(i));
  $("list-title").textContent = title + (chosen.length > LISTED ? words("sampled", LISTED, chosen.length) : "");
  $("sentences").replaceChildren(...chosen.slice(0, LISTED).map(([i, near]) => {
    const { tokens, position } = found.sentences[i], button = element("button", { type: "button", dir: "auto" });
    const [before, after] = around(tokens, position);
    button.append(before.length > 70 ? `…${before.slice(-68)}` : before, element("b", { textContent: tokens[position] }), after);
    if (near !== undefined) button.append(" ", element("span", { className: "near", textContent: near.toFixed(2) }));
    button.style.borderInlineStartColor = `var(--c${found.labels[i] % 8})`;
    button.setAttribute("aria-current", map.shown.selected === i);
    button.onclick = () => select(i);
    button.onmouseenter = () => map.show({ hover: i });
    return element("li", {}, button);
  }));
}

function hover(i) {
  $("tip").hidden = i === null;
  if (i === null) return;
  const { tokens, position } = found.sentences[i], [x, y] = map.screenPoints()[i], box = $("map-box");
  const [before, after] = around(tokens, position);
  $("tip").replaceChildren(before, element("b", { textContent: tokens[position] }), after);
  const { offsetWidth: w, offsetHeight: h } = $("tip");
  $("tip").style.left = `${Math.min(Math.max(x - w / 2, 6), box.clientWidth - w - 6)}px`;
  $("tip").style.top = `${y - h - 14 < 4 ? y + 16 : y - h - 14}px`;
  $("map-now").textContent = found.text[i];
}

/** The uses nearest to a use on the map of this layer, as a list of [index]. */
function nearestInPlane(i) {
  const [x, y] = found.planes[state.layer][i];
  return found.planes[state.layer].map(([px, py], j) => [j, Math.hypot(px - x, py - y)]).sort((a, b) => a[1] - b[1]).slice(0, NEAREST + 1).map(([j]) => [j]);
}

/** The [index, cosine] of neighbours on the map. A sentence may contain the word twice, and may occur twice. */
function onMap(neighbours) {
  const key = ({ tokens, position }) => [position, ...tokens].join(" "), indices = new Map(found.sentences.map((use) => [key(use), []]));
  found.sentences.forEach((use, i) => indices.get(key(use)).push(i));
  return neighbours.flatMap((use) => { const i = indices.get(key(use))?.shift(); return i === undefined ? [] : [[i, use.similarity]]; });
}

function select(i) {
  map.show({ selected: i, hover: i });
  if (i === null) { $("tip").hidden = true; return list(); }
  list(nearestInPlane(i), words("nearest"));
  hover(i);
  work(async (signal) => {
    const { tokens, position } = found.sentences[i];
    const { neighbours } = await ask("neighbours", { inputs: tokens, position, index: found.index, k: NEAREST + 1 }, signal);
    const order = onMap(neighbours);
    if (map.shown.selected === i && order.length) list(order, words("nearest"));
  });
}

/** Show a selection, and the words that are more frequent in it than in the rest. */
function lasso(chosen) {
  map.show({ matches: chosen?.length ? new Set(chosen) : null });
  $("filter").value = "";
  if (!chosen?.length) return found && list();
  const count = (indices) => indices.reduce((all, i) => { for (const t of new Set(found.sentences[i].tokens.map((w) => w.toLowerCase()))) all.set(t, (all.get(t) ?? 0) + 1); return all; }, new Map());
  const inside = count(chosen), rest = found.sentences.map((_, i) => i).filter((i) => !map.shown.matches.has(i)), outside = count(rest);
  const score = ([word, n]) => n * Math.log(((n + 0.5) / (chosen.length + 1)) / (((outside.get(word) ?? 0) + 0.5) / (rest.length + 1)));
  const apart = [...inside].filter(([word, n]) => n > 1 && /\p{L}/u.test(word) && word !== found.word.toLowerCase()).sort((a, b) => score(b) - score(a)).filter((w) => score(w) > 0).slice(0, APART).map(([word]) => word);
  list(chosen.map((i) => [i]), `${words("selection", chosen.length)}${apart.length ? `. ${words("apart")}${apart.join(", ")}` : ""}`);
}

/** Show the user's sentence on the map of every layer. */
async function ownSentence(signal) {
  $("own-result").textContent = "";
  if (!state.own.trim()) return map.setStar(null);
  const { tokens, position, neighbours } = await ask("neighbours", { inputs: state.own, word: found.word, index: found.index, ignore_case: true, k: LISTED }, signal)
    .catch((error) => { if (error.status === 422 || error.status === 400) { map.setStar(null); throw new Error(words("ownMissing", found.word)); } throw error; });
  const [text] = await allLayers([tokens], signal);
  const star = found.planes.map((_, layer) => {
    const matrix = floats(found.matrices[layer]), vector = text.at(layer, position), point = [0, 0];
    for (let d = 0; d <= vector.length; d++) for (const a of [0, 1]) point[a] += (d < vector.length ? vector[d] : 1) * matrix[2 * d + a];
    return point;
  });
  map.setStar(star);
  const [[nearest, near] = []] = onMap(neighbours); // empty if "Play" has neighbours but only "play" is on the map
  if (near !== undefined) $("own-result").textContent = words("ownGroup", found.names[found.labels[nearest]] || `${words("group")} ${found.labels[nearest] + 1}`, near.toFixed(2));
}

$("word-form").onsubmit = (event) => { event.preventDefault(); if ($("word").value.trim()) chooseWord($("word").value.trim()); };
$("clusters").onchange = $("index").onchange = async () => { state.index = $("index").value; await work(suggest); if (state.word) chooseWord(state.word); };
$("word").oninput = async () => {
  const { words: starting } = await ask("words", { index: $("index").value, prefix: $("word").value.trim(), k: 12 }).catch(() => ({ words: [] }));
  $("words").replaceChildren(...starting.map(({ word }) => element("option", { value: word })));
};
$("layer").oninput = () => { if (found) { state.layer = Number($("layer").value); map.setLayer(state.layer); describe(); writeAddress(); } };
$("play").onclick = () => {
  clearInterval(timer);
  if (!found) return;
  let layer = 0;
  const show = () => { $("layer").value = layer; $("layer").oninput(); if (++layer >= found.layers) clearInterval(timer); };
  show();
  timer = setInterval(show, 900);
};
$("lasso").onclick = () => { map.lassoing = !map.lassoing; $("lasso").setAttribute("aria-pressed", map.lassoing); if (!map.lassoing) lasso(null); };
$("reset").onclick = () => { map.reset(); map.show({ group: null, selected: null }); lasso(null); if (found) legend(); };
$("filter").oninput = () => {
  if (!found) return;
  const wanted = $("filter").value.trim().toLowerCase();
  map.show({ matches: wanted ? new Set(found.text.flatMap((text, i) => (text.toLowerCase().includes(wanted) ? [i] : []))) : null });
  list();
};
$("own").oninput = () => {
  clearTimeout($("own").wait);
  $("own").wait = setTimeout(() => { state.own = $("own").value; writeAddress(); if (found) work(ownSentence); }, 250);
};
for (const button of document.querySelectorAll("[data-export]")) {
  button.onclick = async () => {
    if (!found) return;
    const title = `${words("mapOf", found.word)} · ${words("layer")} ${words("layerName", state.layer, found.layers - 1)}`, name = `senses-${found.word}`;
    if (button.dataset.export === "svg") save(`${name}.svg`, map.svg(title), "image/svg+xml");
    if (button.dataset.export === "png") map.picture(title).toBlob((blob) => save(`${name}.png`, blob));
    if (button.dataset.export === "tsv") save(`${name}.tsv`, exportTsv(found, state.layer, joined), "text/tab-separated-values");
    if (button.dataset.export === "html") await work(async () => save(`${name}.html`, await exportHtml(found, state.layer, title), "text/html"));
    button.closest("details").open = false;
  };
}

// Two sentences

let pair = null;

async function openCompare() {
  const example = EXAMPLES[readsChinese() ? "zh" : "en"];
  $("first").value = state.first ||= example.first;
  $("second").value = state.second ||= example.second;
  await comparePair();
}

const comparePair = () => work(async (signal) => {
  pair = await allLayers([state.first, state.second], signal);
  const last = pair[0].layers - 1;
  state.layer = state.layer ?? last;
  $("heat-layer").max = last;
  $("heat-card").hidden = !pair[0].tokens.length || !pair[1].tokens.length;
  heat();
  writeAddress();
});

function heat() {
  const [a, b] = pair, last = a.layers - 1;
  $("heat-layer").value = state.layer;
  $("heat-layer-name").textContent = words("layerName", state.layer, last);
  $("heat-layer").setAttribute("aria-valuetext", words("layerName", state.layer, last));
  const rows = a.tokens.map((_, i) => a.at(state.layer, i)), columns = b.tokens.map((_, j) => b.at(state.layer, j));
  const head = element("tr", {}, element("td"), ...b.tokens.map((word) => element("th", { scope: "col", className: UPRIGHT.test(word) ? "upright" : "", textContent: short(word), title: word })));
  const body = rows.map((row, i) => element("tr", {}, element("th", { scope: "row", textContent: short(a.tokens[i]), title: a.tokens[i] }), ...columns.map((column, j) => {
    const value = dot(row, column), cell = element("td", { textContent: value.toFixed(2) }), strength = Math.max(0, value) ** 2;
    cell.style.background = `rgb(from var(--c0) r g b / calc(var(--heat) * ${strength.toFixed(3)}))`;
    cell.onmouseenter = () => {
      for (const th of $("heat").querySelectorAll("th")) th.classList.remove("on");
      cell.parentElement.firstChild.classList.add("on");
      head.children[j + 1].classList.add("on");
      $("heat-now").textContent = words("cosine", a.tokens[i], b.tokens[j], value.toFixed(3));
    };
    return cell;
  })));
  $("heat").replaceChildren(element("thead", {}, head), element("tbody", {}, ...body));
}

$("compare-form").onsubmit = (event) => {
  event.preventDefault();
  Object.assign(state, { first: $("first").value, second: $("second").value });
  comparePair();
};
$("heat-layer").oninput = () => { state.layer = Number($("heat-layer").value); heat(); writeAddress(); };

// Substitutes

async function openSubstitutes() {
  if (!info.predicts_words) return message(words("noSoftmax"));
  $("sentence").value = state.sentence ||= EXAMPLES[readsChinese() ? "zh" : "en"].sentence;
  await readSentence();
}

const readSentence = () => work(async (signal) => {
  const [{ tokens }] = await allLayers([state.sentence], signal);
  $("substitutes-card").hidden = !tokens.length;
  $("expected").replaceChildren();
  $("tokens").replaceChildren(...tokens.map((token, i) => {
    const button = element("button", { type: "button", textContent: token, onclick: () => work((s) => expect(i, s)) });
    button.setAttribute("aria-pressed", "false");
    return button;
  }));
  if (state.position !== null && state.position >= tokens.length) state.position = null;
  const longest = tokens.reduce((best, t, i) => (t.length > tokens[best].length ? i : best), 0);
  if (tokens.length) await expect(state.position ?? longest, signal);
});

async function expect(position, signal) {
  state.position = position;
  [...$("tokens").children].forEach((button, i) => button.setAttribute("aria-pressed", i === position));
  const { substitutes, tokens } = await ask("substitutes", { inputs: state.sentence, position, k: 15 }, signal);
  const most = substitutes[0]?.probability || 1;
  $("expected").replaceChildren(...substitutes.map(({ word, probability }) => {
    const line = element("span", { className: "bar-line" });
    line.style.width = `${(100 * probability) / most}%`;
    return element("li", {}, element("span", { textContent: word, className: word === tokens[position].text ? "own-word" : "" }),
      element("span", { ariaHidden: "true" }, line), element("span", { textContent: `${(100 * probability).toFixed(1)} %` }));
  }));
  writeAddress();
}

$("substitutes-form").onsubmit = (event) => {
  event.preventDefault();
  Object.assign(state, { sentence: $("sentence").value, position: null });
  readSentence();
};

// Theme, language, start

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").setAttribute("aria-pressed", dark);
  map.draw();
  if (pair && state.view === "compare") heat();
}
$("theme").onclick = () => {
  const dark = document.documentElement.dataset.theme !== "dark";
  localStorage.setItem("elmokit-theme", dark ? "dark" : "light");
  setTheme(dark);
};
$("language").onclick = () => {
  const language = currentLanguage() === "en" ? "zh" : "en";
  localStorage.setItem("elmokit-language", language);
  setLanguage(language);
  if (found) { describe(); legend(); list(); }
  if (pair) heat();
};

async function start() {
  setTheme((localStorage.getItem("elmokit-theme") ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark");
  setLanguage(localStorage.getItem("elmokit-language") ?? (navigator.language.startsWith("zh") ? "zh" : "en"));
  await work(async (signal) => { info = await ask("info", undefined, signal); });
  if (!info) return;
  $("model").textContent = info.served_model_name;
  $("index").replaceChildren(...info.indexes.map(({ name }) => element("option", { value: name, textContent: name })));
  $("index-field").hidden = info.indexes.length < 2;
  $("groups-field").hidden = document.querySelector('[data-view="substitutes"]').hidden = info.without_server ?? false;
  $("clusters").append(...Array.from({ length: 8 }, (_, i) => element("option", { value: i + 1, textContent: i + 1 })));
  addEventListener("hashchange", readAddress);
  await readAddress();
}
start();
