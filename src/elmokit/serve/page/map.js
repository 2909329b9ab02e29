// The map of a word's uses: one point per use, on a canvas, with group labels on top. This file imports nothing, so that
// the exported HTML file can contain its text.

export const SHAPES = ["circle", "triangle", "square", "diamond", "down", "cross", "plus", "hexagon"];
const RADIUS = 5.5;
const MOVE_MS = 250;
const GLOW = 34;
const glowing = new Map();

/** A disc in a colour that fades towards its edge. */
function glow(color) {
  if (!glowing.has(color)) {
    const disc = Object.assign(document.createElement("canvas"), { width: 2 * GLOW, height: 2 * GLOW }), context = disc.getContext("2d");
    const shade = context.createRadialGradient(GLOW, GLOW, 0, GLOW, GLOW, GLOW);
    shade.addColorStop(0, color);
    shade.addColorStop(1, `${color}00`);
    context.fillStyle = shade;
    context.fillRect(0, 0, 2 * GLOW, 2 * GLOW);
    glowing.set(color, disc);
  }
  return glowing.get(color);
}

/** The outline of a shape around (0, 0) with radius r, as a list of corners; a circle has none. */
function corners(shape, r) {
  const polygon = (n, turn) => Array.from({ length: n }, (_, i) => {
    const angle = turn + (2 * Math.PI * i) / n;
    return [r * 1.15 * Math.cos(angle), r * 1.15 * Math.sin(angle)];
  });
  const w = r * 0.42;
  const plus = [[-w, -r], [w, -r], [w, -w], [r, -w], [r, w], [w, w], [w, r], [-w, r], [-w, w], [-r, w], [-r, -w], [-w, -w]];
  switch (shape) {
    case "triangle": return polygon(3, -Math.PI / 2);
    case "down": return polygon(3, Math.PI / 2);
    case "square": return polygon(4, Math.PI / 4);
    case "diamond": return polygon(4, 0);
    case "hexagon": return polygon(6, 0);
    case "plus": return plus;
    case "cross": return plus.map(([x, y]) => [(x - y) * 0.75, (x + y) * 0.75]);
    case "star": return Array.from({ length: 10 }, (_, i) => {
      const angle = -Math.PI / 2 + (Math.PI * i) / 5, length = i % 2 ? r * 0.75 : r * 1.8;
      return [length * Math.cos(angle), length * Math.sin(angle)];
    });
    default: return null;
  }
}

/** The SVG element of a shape as text, for legends and the SVG export. */
export function shapeMarkup(shape, x, y, r, fill, extra = "") {
  const outline = corners(shape, r);
  if (!outline) return `<circle cx="${x.toFixed(1)}" cy="${y.toFixed(1)}" r="${r}" fill="${fill}"${extra}/>`;
  const points = outline.map(([dx, dy]) => `${(x + dx).toFixed(1)},${(y + dy).toFixed(1)}`).join(" ");
  return `<polygon points="${points}" fill="${fill}"${extra}/>`;
}

function trace(context, shape, x, y, r) {
  const outline = corners(shape, r);
  context.beginPath();
  if (!outline) context.arc(x, y, r, 0, 2 * Math.PI);
  else outline.forEach(([dx, dy], i) => (i ? context.lineTo(x + dx, y + dy) : context.moveTo(x + dx, y + dy)));
  context.closePath();
}

export class WordMap {
  /** `on` contains the callbacks hover(i or null), select(i or null) and lasso(list of i). */
  constructor(canvas, labels, on) {
    Object.assign(this, { canvas, labelBox: labels, on });
    this.data = null;
    this.view = { zoom: 1, x: 0, y: 0 };
    this.layer = 0;
    this.star = null;
    this.shown = { group: null, matches: null, selected: null, hover: null };
    this.lassoing = false;
    this.listen();
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  /** data: points [L][N] of [x, y], labels [N], names: text of each group. */
  setData(data, layer) {
    this.data = data;
    this.layer = layer;
    this.star = null;
    this.view = { zoom: 1, x: 0, y: 0 };
    this.shown = { group: null, matches: null, selected: null, hover: null };
    this.box = [0, 1].map((axis) => { // over all layers, so that all maps have the same scale
      const values = data.points.flat().map((p) => p[axis]), least = values.reduce((a, b) => Math.min(a, b)), most = values.reduce((a, b) => Math.max(a, b));
      return { middle: (least + most) / 2, half: Math.max((most - least) / 2, 1e-6) };
    });
    this.now = data.points[layer].map((p) => [...p]);
    this.draw();
  }

  get still() { return matchMedia("(prefers-reduced-motion: reduce)").matches; }

  setLayer(layer) {
    this.layer = layer;
    if (!this.data) return;
    const from = this.now.map((p) => [...p]), to = this.data.points[layer], begin = performance.now();
    cancelAnimationFrame(this.frame);
    const step = (time) => {
      const share = this.still ? 1 : Math.min(1, (time - begin) / MOVE_MS), eased = share * share * (3 - 2 * share);
      this.now = from.map(([x, y], i) => [x + (to[i][0] - x) * eased, y + (to[i][1] - y) * eased]);
      this.draw();
      if (share < 1) this.frame = requestAnimationFrame(step);
    };
    this.still ? step(begin) : (this.frame = requestAnimationFrame(step));
  }

  /** Show the user's own sentence: `points` is its point in every layer, or null. */
  setStar(points) { this.star = points; this.draw(); }

  show(change) { Object.assign(this.shown, change); this.draw(); }

  reset() { this.view = { zoom: 1, x: 0, y: 0 }; this.draw(); }

  resize() {
    const { clientWidth: w, clientHeight: h } = this.canvas, ratio = devicePixelRatio || 1;
    if (!w || !h) return;
    this.canvas.width = Math.round(w * ratio);
    this.canvas.height = Math.round(h * ratio);
    this.draw();
  }

  /** A point of the map in pixels of an area of this size. */
  toPixels([x, y], width = this.canvas.clientWidth, height = this.canvas.clientHeight) {
    const [bx, by] = this.box, scale = Math.min((width / 2 - 48) / bx.half, (height / 2 - 40) / by.half) * this.view.zoom;
    return [width / 2 + this.view.x + (x - bx.middle) * scale, height / 2 + this.view.y - (y - by.middle) * scale];
  }

  screenPoints() { return this.data ? this.now.map((p) => this.toPixels(p)) : []; }

  isFaded(i) {
    const { group, matches } = this.shown;
    return (group !== null && this.data.labels[i] !== group) || (matches !== null && !matches.has(i));
  }

  colors(element = this.canvas) {
    const style = getComputedStyle(element), get = (name) => style.getPropertyValue(name).trim();
    return { groups: SHAPES.map((_, k) => get(`--c${k}`)), card: get("--card"), ink: get("--ink"), line: get("--line"), star: get("--star") };
  }

  draw() {
    const ratio = devicePixelRatio || 1, context = this.canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.paint(context, this.canvas.clientWidth, this.canvas.clientHeight, this.colors());
    this.placeLabels();
  }

  paint(context, width, height, colors) {
    context.fillStyle = colors.card;
    context.fillRect(0, 0, width, height);
    if (!this.data) return;
    context.strokeStyle = colors.line;
    context.lineWidth = 1;
    context.setLineDash([2, 5]);
    const [x0, y0] = this.toPixels([0, 0], width, height);
    context.beginPath();
    context.moveTo(0, y0); context.lineTo(width, y0); context.moveTo(x0, 0); context.lineTo(x0, height);
    context.stroke();
    context.setLineDash([]);
    const pixels = this.now.map((p) => this.toPixels(p, width, height));
    const order = pixels.map((_, i) => i).sort((a, b) => this.isFaded(b) - this.isFaded(a));
    const glows = colors.groups.map((color) => glow(color));
    context.globalAlpha = Math.min(0.13, 12 / pixels.length); // a soft glow shows where uses are dense
    for (const i of order) {
      if (!this.isFaded(i)) context.drawImage(glows[this.data.labels[i] % 8], pixels[i][0] - GLOW, pixels[i][1] - GLOW);
    }
    for (const i of order) {
      const k = this.data.labels[i] % 8;
      context.globalAlpha = this.isFaded(i) ? 0.13 : 0.85;
      trace(context, SHAPES[k], ...pixels[i], RADIUS);
      context.fillStyle = colors.groups[k];
      context.fill();
      context.strokeStyle = colors.card;
      context.lineWidth = 1;
      context.stroke();
    }
    context.globalAlpha = 1;
    for (const i of [this.shown.hover, this.shown.selected]) {
      if (i === null || !pixels[i]) continue;
      context.strokeStyle = colors.ink;
      context.lineWidth = 2;
      context.beginPath();
      context.arc(...pixels[i], RADIUS + 5, 0, 2 * Math.PI);
      context.stroke();
    }
    if (this.star) {
      trace(context, "star", ...this.toPixels(this.star[this.layer], width, height), 8);
      context.fillStyle = colors.star;
      context.fill();
      context.strokeStyle = colors.ink;
      context.lineWidth = 1.5;
      context.stroke();
    }
    if (this.path?.length > 1) {
      context.strokeStyle = colors.ink;
      context.setLineDash([5, 4]);
      context.beginPath();
      this.path.forEach(([x, y], i) => (i ? context.lineTo(x, y) : context.moveTo(x, y)));
      context.stroke();
      context.setLineDash([]);
    }
  }

  /** The position of each group's label in pixels, moved apart so that labels do not cover each other. */
  labelPositions(width, height, lineHeight = 24) {
    if (!this.data) return [];
    const found = this.data.names.map((name, k) => {
      const own = this.now.filter((_, i) => this.data.labels[i] === k).map((p) => this.toPixels(p, width, height));
      if (!own.length || !name) return null;
      const middle = (axis) => own.map((p) => p[axis]).sort((a, b) => a - b)[own.length >> 1];
      const half = Math.min(name.length * 4 + 8, width / 2 - 4);
      const x = Math.min(Math.max(middle(0), half), width - half);
      const top = Math.min(...own.map((p) => p[1])) - 20;
      return { k, name, half, x, y: Math.min(Math.max(top, 14), height - 14) };
    }).filter(Boolean).sort((a, b) => a.y - b.y);
    found.forEach((label, i) => {
      for (const other of found.slice(0, i)) {
        if (Math.abs(other.x - label.x) < other.half + label.half && label.y - other.y < lineHeight) label.y = other.y + lineHeight;
      }
    });
    return found;
  }

  placeLabels() {
    const { clientWidth: w, clientHeight: h } = this.canvas;
    this.labelBox.replaceChildren(...this.labelPositions(w, h).filter(({ k }) => this.shown.group === null || this.shown.group === k).map(({ k, name, x, y }) => {
      const span = document.createElement("span");
      span.textContent = name;
      span.style.left = `${x}px`;
      span.style.top = `${y}px`;
      span.style.color = `var(--c${k % 8})`;
      return span;
    }));
  }

  nearest(x, y, reach = 16) {
    let best = null, least = reach * reach;
    this.screenPoints().forEach(([px, py], i) => {
      const distance = (px - x) ** 2 + (py - y) ** 2;
      if (distance < least && !this.isFaded(i)) { best = i; least = distance; }
    });
    return best;
  }

  /** The next use in a direction on the screen, starting from the current one. */
  step(dx, dy) {
    const pixels = this.screenPoints(), from = this.shown.hover ?? this.shown.selected;
    if (from === null) return pixels.length ? 0 : null;
    let best = from, least = Infinity;
    pixels.forEach(([x, y], i) => {
      const ahead = (x - pixels[from][0]) * dx + (y - pixels[from][1]) * dy;
      const aside = Math.abs((x - pixels[from][0]) * dy) + Math.abs((y - pixels[from][1]) * dx);
      if (i !== from && !this.isFaded(i) && ahead > 0.5 && ahead + 2 * aside < least) { best = i; least = ahead + 2 * aside; }
    });
    return best;
  }

  listen() {
    const { canvas } = this, at = (event) => [event.offsetX, event.offsetY];
    let press = null;
    const hover = (i) => { if (i !== this.shown.hover) { this.show({ hover: i }); this.on.hover(i); } };
    canvas.addEventListener("pointerdown", (event) => {
      if (!this.data) return;
      canvas.setPointerCapture(event.pointerId);
      press = { from: at(event), view: { ...this.view }, moved: false };
      if (this.lassoing || event.shiftKey) this.path = [at(event)];
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!this.data) return;
      const [x, y] = at(event);
      if (!press) return hover(this.nearest(x, y));
      press.moved ||= Math.hypot(x - press.from[0], y - press.from[1]) > 4;
      if (this.path) this.path.push([x, y]);
      else if (press.moved) Object.assign(this.view, { x: press.view.x + x - press.from[0], y: press.view.y + y - press.from[1] });
      this.draw();
    });
    canvas.addEventListener("pointerup", (event) => {
      if (!press) return;
      const path = this.path, moved = press.moved;
      press = this.path = null;
      if (path && moved) this.on.lasso(this.screenPoints().flatMap((p, i) => (inside(p, path) ? [i] : [])));
      else if (!moved) this.on.select(this.nearest(...at(event)));
      this.draw();
    });
    canvas.addEventListener("pointerleave", () => { if (!press && this.data) hover(null); });
    canvas.addEventListener("wheel", (event) => {
      if (!this.data) return;
      event.preventDefault();
      this.zoomAt(event.offsetX, event.offsetY, Math.exp(-event.deltaY / 400));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
      const middle = [canvas.clientWidth / 2, canvas.clientHeight / 2];
      if (!this.data) return;
      if (moves[event.key]) hover(this.step(...moves[event.key]));
      else if (event.key === "Enter" || event.key === " ") this.on.select(this.shown.hover);
      else if (event.key === "Escape") { hover(null); this.on.select(null); this.on.lasso(null); }
      else if (event.key === "+") this.zoomAt(...middle, 1.3);
      else if (event.key === "-") this.zoomAt(...middle, 1 / 1.3);
      else return;
      event.preventDefault();
    });
  }

  zoomAt(x, y, factor) {
    const zoom = Math.min(40, Math.max(0.5, this.view.zoom * factor)), real = zoom / this.view.zoom;
    const cx = x - this.canvas.clientWidth / 2, cy = y - this.canvas.clientHeight / 2;
    this.view = { zoom, x: cx - (cx - this.view.x) * real, y: cy - (cy - this.view.y) * real };
    this.draw();
  }

  /** The map as an SVG file. */
  svg(title, width = 900, height = 640) {
    const colors = this.colors(), safe = (text) => text.replace(/[&<>"]/g, (c) => `&#${c.charCodeAt(0)};`);
    const marks = this.now.map((p, i) => {
      const k = this.data.labels[i] % 8, [x, y] = this.toPixels(p, width, height);
      return shapeMarkup(SHAPES[k], x, y, RADIUS, colors.groups[k], ' fill-opacity=".85"');
    });
    const labels = this.labelPositions(width, height).map(({ k, name, x, y }) =>
      `<text x="${x.toFixed(1)}" y="${y.toFixed(1)}" text-anchor="middle" font-weight="600" fill="${colors.groups[k % 8]}" stroke="${colors.card}" stroke-width="4" paint-order="stroke">${safe(name)}</text>`);
    if (this.star) marks.push(shapeMarkup("star", ...this.toPixels(this.star[this.layer], width, height), 8, colors.star));
    return `<svg xmlns="http://www.w3.org/2000/svg" width="${width}" height="${height}" font-family="sans-serif" font-size="14"><title>${safe(title)}</title>` +
      `<rect width="100%" height="100%" fill="${colors.card}"/><text x="20" y="30" font-size="18" fill="${colors.ink}">${safe(title)}</text>${marks.join("")}${labels.join("")}</svg>`;
  }

  /** The map as a canvas of twice the size, with its title and labels. */
  picture(title, width = 900, height = 640) {
    const canvas = Object.assign(document.createElement("canvas"), { width: width * 2, height: height * 2 });
    const context = canvas.getContext("2d"), colors = this.colors();
    context.scale(2, 2);
    this.paint(context, width, height, colors);
    context.font = "18px sans-serif";
    context.fillStyle = colors.ink;
    context.fillText(title, 20, 30);
    context.font = "600 14px sans-serif";
    context.textAlign = "center";
    for (const { k, name, x, y } of this.labelPositions(width, height)) {
      context.lineWidth = 4;
      context.strokeStyle = colors.card;
      context.strokeText(name, x, y);
      context.fillStyle = colors.groups[k % 8];
      context.fillText(name, x, y);
    }
    return canvas;
  }
}

function inside([x, y], path) {
  let result = false;
  path.forEach(([x1, y1], i) => {
    const [x2, y2] = path[(i + path.length - 1) % path.length];
    if ((y1 > y) !== (y2 > y) && x < ((x2 - x1) * (y - y1)) / (y2 - y1) + x1) result = !result;
  });
  return result;
}
