// The texts of the page in English and Chinese.

const WORDS = {
  en: {
    skip: "Skip to the content", title: "sense explorer", views: "Views", senses: "Senses", compare: "Two sentences",
    substitutes: "Substitutes", dark: "Dark", other: "中文", "senses-title": "What does a word mean in each context?",
    word: "Word", index: "Text", groups: "Groups", automatic: "automatic", show: "Show", try: "Words to try",
    empty: "Type a word to see its uses as a map.", layer: "Layer", play: "Play", lasso: "Lasso", reset: "Whole map",
    "map-help": "Arrow keys move from use to use. Enter selects. Escape ends a selection. Plus and minus zoom.",
    export: "Export", own: "Your own sentence with this word", uses: "Uses", filter: "Search in the sentences",
    "compare-title": "How close are the words of two sentences?", first: "First sentence", second: "Second sentence",
    "compare-button": "Compare", "substitutes-title": "Which words would fit here?", sentence: "Sentence", read: "Read",
    choose: "Choose a word. The model reads the rest of the sentence and shows the words it expects at this position.",
    layerName: (n, last) => (n === 0 ? "0: no context" : n === last ? `${n}: top` : `${n} of ${last}`),
    summary: (word, uses, groups) => `${word}: ${uses === 1 ? "1 use" : `${uses.toLocaleString("en")} uses`}, ${groups === 1 ? "1 group" : `${groups} groups`}`,
    sampled: (shown, all) => ` (${shown.toLocaleString("en")} of ${all.toLocaleString("en")} shown)`,
    axes: (x, y) => `The map shows ${Math.round(100 * (x + y))} % of the variance of these uses in this layer.`,
    same: "Layer 0 has no context: every use of a word has the same vector.",
    nearest: "Nearest uses", selection: (n) => `Selection: ${n} ${n === 1 ? "use" : "uses"}`, apart: "More often in the selection: ",
    mapOf: (word) => `Map of the uses of ${word}`, group: "Group", busy: "Reading the sentences …",
    ownGroup: (name, value) => `Nearest group: ${name}. Cosine to the nearest use: ${value}.`,
    ownMissing: (word) => `Write a sentence with “${word}” in it.`,
    key: "This server needs an API key.",
    noIndex: "This server has no text to explore. Start it with elmo serve --demo, or with --index DIR.",
    noSoftmax: "This model has no softmax, so it cannot predict words.",
    unknown: (word, near) => `“${word}” is not in this text.${near.length ? ` Similar words: ${near.join(", ")}.` : ""}`,
    cosine: (a, b, value) => `${a} and ${b}: ${value}`, cosines: "Cosines",
  },
  zh: {
    skip: "跳到正文", title: "词义浏览器", views: "视图", senses: "词义", compare: "两个句子", substitutes: "替换词", dark: "深色",
    other: "English", "senses-title": "这个词在哪里，是什么意思？", word: "词", index: "文本", groups: "组", automatic: "自动",
    show: "显示", try: "可以试试的词", empty: "输入一个词，它的用法会显示成一张图。", layer: "层", play: "播放", lasso: "套索",
    reset: "整张图", "map-help": "方向键在用法之间移动，回车选择，Esc 取消，加号和减号缩放。", export: "导出",
    own: "用这个词写一个句子", uses: "用法", filter: "在句子中查找", "compare-title": "两个句子里的词有多接近？", first: "第一句",
    second: "第二句", "compare-button": "比较", "substitutes-title": "这里还可以用什么词？", sentence: "句子", read: "读入",
    choose: "选一个词。模型读句子的其余部分，说出它认为会出现的词。",
    layerName: (n, last) => (n === 0 ? "0：没有上下文" : n === last ? `${n}：最高层` : `${n} / ${last}`),
    summary: (word, uses, groups) => `${word}：${uses} 处用法，${groups} 组`, sampled: (shown, all) => `（显示 ${all} 处中的 ${shown} 处）`,
    axes: (x, y) => `这个平面显示该层用法差异的 ${Math.round(100 * (x + y))} %。`, same: "第 0 层不看上下文：一个词的所有用法向量相同。",
    nearest: "最接近的用法", selection: (n) => `选中 ${n} 处`, apart: "选中部分里更常见：", mapOf: (word) => `“${word}”的用法图`,
    group: "组", busy: "正在读句子……", ownGroup: (name, value) => `最近的组：${name}。与最近用法的余弦：${value}。`,
    key: "这个服务器需要 API 密钥。", ownMissing: (word) => `请写一个含有“${word}”的句子。`, noIndex: "这个服务器没有可浏览的文本。请用 elmo serve --demo 或 --index DIR 启动。",
    unknown: (word, near) => `这个文本里没有“${word}”。${near.length ? `相近的词：${near.join("、")}。` : ""}`,
    noSoftmax: "这个模型没有 softmax，无法给出替换词。", cosine: (a, b, value) => `${a} 与 ${b}：${value}`, cosines: "余弦",
  },
};

let language = "en";

/** A text of the page in the current language; some texts are functions of values. */
export function words(name, ...values) {
  const text = WORDS[language][name] ?? WORDS.en[name];
  return typeof text === "function" ? text(...values) : text;
}

export function currentLanguage() { return language; }

/** Set the language, and write every text of the document in it. */
export function setLanguage(wanted) {
  language = wanted === "zh" ? "zh" : "en";
  document.documentElement.lang = language;
  for (const element of document.querySelectorAll("[data-text]")) element.textContent = words(element.dataset.text);
  for (const element of document.querySelectorAll("[data-label]")) element.setAttribute("aria-label", words(element.dataset.label));
  for (const element of document.querySelectorAll("[data-placeholder]")) element.placeholder = words(element.dataset.placeholder);
  const button = document.getElementById("language");
  button.textContent = words("other");
  button.lang = language === "en" ? "zh" : "en";
}
