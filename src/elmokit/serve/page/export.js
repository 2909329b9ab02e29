// Files made in the browser: TSV, and one HTML file that shows the map without a server.

export function save(name, content, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(content instanceof Blob ? content : new Blob([content], { type: `${type};charset=utf-8` }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** One line per use. A cell that a spreadsheet would take for a formula begins with an apostrophe. */
export function exportTsv(found, layer, joined) {
  const cell = (text) => String(text).replace(/[\t\r\n]+/g, " ").replace(/^(?=[=+@-])/, "'");
  const lines = found.sentences.map(({ tokens, position }, i) => {
    const [x, y] = found.planes[layer][i];
    return [found.labels[i] + 1, x, y].join("\t") + "\t" + [joined(tokens.slice(0, position)), tokens[position], joined(tokens.slice(position + 1))].map(cell).join("\t");
  });
  return ["group\tx\ty\tbefore\tword\tafter", ...lines, ""].join("\n");
}

/** One HTML file with the map, its layers and its sentences. */
export async function exportHtml(found, layer, title) {
  const source = await (await fetch(new URL("map.js", import.meta.url))).text();
  const style = await (await fetch(new URL("style.css", import.meta.url))).text();
  const { planes, labels, names, text } = found, word = found.word;
  const data = JSON.stringify({ planes, labels, names, text, layer, word }).replace(/</g, "\\u003c");
  const safe = title.replace(/[&<>]/g, (c) => `&#${c.charCodeAt(0)};`);
  return `<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>${safe}</title>
<style>${style}</style><main><h1>${safe}</h1><div class="card"><div class="map" id="map-box"><canvas id="map" tabindex="0" role="application" aria-label="${safe.replace(/"/g, "&quot;")}"></canvas>
<div id="labels" aria-hidden="true"></div><div id="tip" hidden></div></div><label class="layer tools"><span>Layer</span><input id="layer" type="range" min="0" max="${planes.length - 1}" value="${layer}"></label>
<p id="now" aria-live="polite"></p><p class="muted small">Made with the sense explorer of elmokit.</p></div></main>
<script type="module">${source.replace(/^export /gm, "")}
if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.dataset.theme = "dark";
const data = ${data}, $ = (id) => document.getElementById(id);
const say = (i) => { $("now").textContent = i === null ? "" : data.text[i]; };
const map = new WordMap($("map"), $("labels"), { hover: say, select: say, lasso: () => {} });
map.setData({ points: data.planes, labels: data.labels, names: data.names }, data.layer);
$("layer").oninput = () => map.setLayer(Number($("layer").value));
document.body.dataset.ready = "export";
</script></html>`;
}
