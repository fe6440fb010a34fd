// The map of the documents, and the graph of correlated topics. Both are drawn from the JSON of
// the page, in the page's colours, so that they fit any width, either theme and paper.

const atlas = JSON.parse(document.getElementById("atlas").textContent);

function unpack(text, type) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new type(bytes.buffer);
}

const docs = {
  x: unpack(atlas.x, Uint16Array),
  y: unpack(atlas.y, Uint16Array),
  topics: unpack(atlas.topics, Uint16Array),
  shares: unpack(atlas.shares, Uint8Array),
  periods: atlas.periods === null ? null : unpack(atlas.periods, Uint8Array),
  size: atlas.texts.length,
};
const numTopics = atlas.names.length;
const mainTopic = (d) => docs.topics[d * atlas.told];
// Documents are drawn in a mixed order, so that no group hides another one.
const mixed = [...Array(docs.size).keys()].sort((a, b) => (a * 7919) % 10007 - (b * 7919) % 10007);

const state = {
  scale: 1, left: 0, top: 0, // the part of the map that is visible
  hover: null, topic: null, group: null, period: null, chosen: null,
  query: "", found: null, foundTopics: new Set(),
};

let palette = readPalette();
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  return {
    groups: atlas.groupNames.map((_, g) => colour(`--g${g}`)),
    sea: colour("--sea"), ink: colour("--ink"), quiet: colour("--quiet"), faint: colour("--faint"),
    line: colour("--line"),
  };
}
const colourOf = (topic) => palette.groups[atlas.groups[topic]];

function percent(share) { return `${Math.round(100 * share)} %`; }

function surface(id, height) {
  const canvas = document.getElementById(id);
  const context = canvas.getContext("2d");
  const fit = () => {
    const width = canvas.clientWidth;
    const ratio = Math.min(window.devicePixelRatio || 1, 2);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height(width) * ratio);
    canvas.style.height = `${height(width)}px`;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    return [width, height(width)];
  };
  return { canvas, context, fit, width: 0, height: 0 };
}

// Labels ----------------------------------------------------------------------------------------

// Texts that overlap neither one another nor what is in `taken`: [left, top, right, bottom].
function placeLabels(context, labels, width, height, taken) {
  const placed = [];
  for (const label of labels) {
    // A label stays close to its place. One that finds no room there is broken or shortened, because
    // a word says more than nothing, and only then moved further.
    const near = label.near ?? 3;
    search: for (const part of [[0, near], [near, 99]]) {
      for (const text of label.texts) {
        context.font = label.font;
        const lines = text.split("\n");
        const w = Math.max(...lines.map((line) => context.measureText(line).width)) + 8;
        const h = 15 * lines.length + 2;
        const inside = (x) => Math.min(Math.max(x, w / 2 + 2), width - w / 2 - 2);
        for (const [dx, dy] of label.offsets(w, h).slice(...part)) {
          const [x, y] = [inside(label.x + dx), label.y + dy];
          const box = [x - w / 2, y - h / 2, x + w / 2, y + h / 2];
          if (box[0] < 0 || box[1] < 0 || box[2] > width || box[3] > height) continue;
          if (taken.some((o) => box[0] < o[2] && o[0] < box[2] && box[1] < o[3] && o[1] < box[3])) continue;
          taken.push(box);
          placed.push({ ...label, lines, x, y, w, h });
          break search;
        }
      }
    }
  }
  return placed;
}

function writeLabel(context, label) {
  context.font = label.font;
  context.textAlign = "center";
  context.textBaseline = "middle";
  context.lineJoin = "round";
  context.lineWidth = 4;
  context.strokeStyle = palette.sea;
  context.fillStyle = label.faded ? palette.quiet : palette.ink;
  label.lines.forEach((line, i) => {
    const y = label.y + 15 * (i - (label.lines.length - 1) / 2);
    context.globalAlpha = 0.9;
    context.strokeText(line, label.x, y);
    context.globalAlpha = 1;
    context.fillText(line, label.x, y);
  });
}

// A name on one line, on two, its first word, and the beginning of a long word.
function shapes(name) {
  const words = name.replace(/^\d+ /, "").split(" ");
  const half = Math.ceil(words.length / 2);
  const two = `${words.slice(0, half).join(" ")}\n${words.slice(half).join(" ")}`;
  const begun = words[0].length > 14 ? [`${words[0].slice(0, 11)}…`] : [];
  return [words.join(" "), ...(words.length > 1 ? [two, words[0]] : []), ...begun];
}

// The map ---------------------------------------------------------------------------------------

const map = surface("documents-map", (width) => Math.round(Math.min(Math.max(width * 0.54, 460), 640)));
const margin = { x: 26, y: 30 };

function toScreen(x, y) {
  return [
    (x * (map.width - 2 * margin.x) + margin.x) * state.scale + state.left,
    (y * (map.height - 2 * margin.y) + margin.y) * state.scale + state.top,
  ];
}
const placeOf = (d) => toScreen(docs.x[d] / 65535, docs.y[d] / 65535);

function isLit(d) {
  if (state.topic !== null && mainTopic(d) !== state.topic) return false;
  if (state.group !== null && atlas.groups[mainTopic(d)] !== state.group) return false;
  if (state.period !== null && docs.periods[d] !== state.period) return false;
  return state.found === null || state.found[d] === 1;
}

function stamp(colour, radius) {
  const ratio = Math.min(window.devicePixelRatio || 1, 2);
  const size = Math.ceil(2 * radius + 2);
  const canvas = document.createElement("canvas");
  canvas.width = canvas.height = size * ratio;
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  context.fillStyle = colour;
  context.beginPath();
  context.arc(size / 2, size / 2, radius, 0, 7);
  context.fill();
  return { canvas, size };
}

// The documents are drawn again only if something about them has changed, so that the page follows
// the mouse also where there are 20,000 of them.
const layer = document.createElement("canvas");
let drawn = null;
let radius = 1;
function drawDocuments() {
  const wanted = JSON.stringify([map.width, map.height, map.canvas.width, state.scale, state.left,
    state.top, state.topic, state.group, state.period, state.query, palette]);
  if (wanted === drawn) return;
  drawn = wanted;
  layer.width = map.canvas.width;
  layer.height = map.canvas.height;
  const context = layer.getContext("2d");
  context.scale(layer.width / map.width, layer.width / map.width);
  const crowd = Math.sqrt(map.width * map.height / Math.max(docs.size, 1));
  radius = Math.min(Math.max(crowd / 4.2, 1.3), 5) * Math.sqrt(state.scale);
  const all = state.topic === null && state.group === null && state.period === null && state.found === null;
  const faint = stamp(palette.faint, radius * 0.8);
  const bright = palette.groups.map((colour) => stamp(colour, all ? radius : radius * 1.25));
  const lit = all ? null : mixed.map(isLit);
  for (const pass of all ? [1] : [0, 1]) {
    context.globalAlpha = pass === 0 ? 0.55 : Math.min(0.45 + 0.05 * crowd, 0.85);
    mixed.forEach((d, i) => {
      if (lit !== null && lit[i] !== (pass === 1)) return;
      const [x, y] = placeOf(d);
      if (x < -9 || y < -9 || x > map.width + 9 || y > map.height + 9) return;
      const { canvas, size } = pass === 0 ? faint : bright[atlas.groups[mainTopic(d)]];
      context.drawImage(canvas, x - size / 2, y - size / 2, size, size);
    });
  }
}

let mapLabels = [];
function drawMap() {
  const { context } = map;
  context.fillStyle = palette.sea;
  context.fillRect(0, 0, map.width, map.height);
  drawDocuments();
  context.drawImage(layer, 0, 0, map.width, map.height);
  for (const d of [state.chosen, state.hover]) {
    if (d === null) continue;
    const [x, y] = placeOf(d);
    context.beginPath();
    context.arc(x, y, radius + 4, 0, 7);
    context.lineWidth = 2.5;
    context.strokeStyle = palette.ink;
    context.stroke();
  }
  const order = [...Array(numTopics).keys()].sort((a, b) => atlas.sizes[b] - atlas.sizes[a]);
  const special = (k) => k === state.topic || state.foundTopics.has(k);
  order.sort((a, b) => special(b) - special(a));
  const labels = order.map((k) => {
    const [x, y] = toScreen(...atlas.places[k]);
    const quiet = (state.topic !== null || state.foundTopics.size > 0) && !special(k);
    const faded = quiet || (state.group !== null && atlas.groups[k] !== state.group);
    return {
      topic: k, x, y, faded, texts: shapes(atlas.names[k]),
      font: `${special(k) ? 700 : 600} 13px ${fontFamily}`,
      // Few documents do not disappear below a name.
      offsets: (w, h) => [...(docs.size < 300 ? [[0, -2.5 * h], [0, 2.5 * h]] : []), [0, 0], [0, -h],
        [0, h], [w / 2, -h / 2], [-w / 2, h / 2], [w / 2, h / 2], [-w / 2, -h / 2], [0, -2 * h], [0, 2 * h]],
    };
  }).filter(({ x, y }) => x > -20 && y > 0 && x < map.width + 20 && y < map.height);
  mapLabels = placeLabels(context, labels, map.width, map.height, []);
  mapLabels.forEach((label) => writeLabel(context, label));
}
const fontFamily = "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif";

// The graph -------------------------------------------------------------------------------------

const graphTopics = [...new Set(atlas.lines.flatMap(([a, b]) => [a, b]))];
const graph = document.getElementById("graph") === null ? null : surface("graph", (width) => {
  const room = 7200 * graphTopics.length / width;
  return Math.round(Math.min(Math.max(room * 1.5, 300, Math.min(width / 3, 400)), 760));
});
let circles = [];

// Circles start at their topics' places, and move apart until names have room between them.
function arrange() {
  const { width, height } = graph;
  const most = Math.max(...atlas.sizes);
  const few = graphTopics.map((k) => atlas.places[k]);
  const [low, high] = [0, 1].map((i) => few.map((p) => p[i]))
    .reduce(([l, h], v) => [[...l, Math.min(...v)], [...h, Math.max(...v)]], [[], []]);
  circles = graphTopics.map((k) => ({
    topic: k,
    radius: 7 + 15 * Math.sqrt(atlas.sizes[k] / most),
    x: 60 + (width - 120) * (atlas.places[k][0] - low[0]) / (high[0] - low[0] || 1),
    y: 30 + (height - 80) * (atlas.places[k][1] - low[1]) / (high[1] - low[1] || 1),
  }));
  const [wide, tall] = [Math.min(120, width / 3.2), 66];
  for (let step = 0; step < 300; step += 1) {
    for (const a of circles) {
      for (const b of circles) {
        if (a === b) continue;
        const [dx, dy] = [(b.x - a.x) / wide, (b.y - a.y) / tall];
        const distance = Math.hypot(dx, dy) || 0.01;
        if (distance >= 1) continue;
        const push = 0.25 * (1 - distance) / distance;
        b.x += push * (dx || 0.01) * wide;
        b.y += push * (dy || 0.01) * tall;
      }
      a.x = Math.min(Math.max(a.x, 56), width - 56);
      a.y = Math.min(Math.max(a.y, 26), height - 52);
    }
  }
}

function drawGraph() {
  if (graph === null) return;
  const { context, width, height } = graph;
  context.fillStyle = palette.sea;
  context.fillRect(0, 0, width, height);
  const at = new Map(circles.map((circle) => [circle.topic, circle]));
  const largest = Math.max(...atlas.lines.map(([, , r]) => r));
  for (const [a, b, r] of atlas.lines) {
    const [from, to] = [at.get(a), at.get(b)];
    const touched = state.topic === null || a === state.topic || b === state.topic;
    context.globalAlpha = touched ? 0.9 : 0.15;
    context.strokeStyle = palette.line;
    context.lineCap = "round";
    context.lineWidth = 1 + 8 * r / largest;
    context.beginPath();
    context.moveTo(from.x, from.y);
    context.lineTo(to.x, to.y);
    context.stroke();
  }
  context.globalAlpha = 1;
  for (const { topic, x, y, radius } of circles) {
    context.fillStyle = colourOf(topic);
    context.strokeStyle = topic === state.topic ? palette.ink : palette.sea;
    context.lineWidth = 2.5;
    context.beginPath();
    context.arc(x, y, radius, 0, 7);
    context.fill();
    context.stroke();
  }
  const labels = circles.map(({ topic, x, y, radius }) => ({
    topic, x, y, texts: shapes(atlas.names[topic]), font: `600 12px ${fontFamily}`, near: 4,
    offsets: (w, h) => [[0, radius + h / 2], [0, -radius - h / 2], [radius + w / 2, 0], [-radius - w / 2, 0]],
  }));
  const discs = circles.map(({ x, y, radius: r }) => [x - r, y - r, x + r, y + r]);
  const onLines = atlas.lines.flatMap(([a, b]) => {
    const [from, to] = [at.get(a), at.get(b)];
    return [...Array(80).keys()].map((i) => {
      const [x, y] = [from.x + (to.x - from.x) * i / 80, from.y + (to.y - from.y) * i / 80];
      return [x - 2, y - 2, x + 2, y + 2];
    });
  });
  // Whole names first where no line crosses them, and then what room there is.
  const whole = labels.map((label) => ({ ...label, texts: label.texts.slice(0, 2) }));
  const clear = placeLabels(context, whole, width, height, [...discs, ...onLines]);
  const done = new Set(clear.map(({ topic }) => topic));
  const boxes = clear.map(({ x, y, w, h }) => [x - w / 2, y - h / 2, x + w / 2, y + h / 2]);
  const others = labels.filter(({ topic }) => !done.has(topic));
  [...clear, ...placeLabels(context, others, width, height, [...discs, ...boxes])]
    .forEach((label) => writeLabel(context, label));
}

// Time ------------------------------------------------------------------------------------------

const slider = document.getElementById("map-time");
const timeline = slider === null ? null : surface("map-timeline", () => 44);
let counts = [];
if (timeline !== null) {
  counts = atlas.periodNames.map(() => atlas.groupNames.map(() => 0));
  docs.periods.forEach((period, d) => {
    if (period < counts.length) counts[period][atlas.groups[mainTopic(d)]] += 1;
  });
}

function drawTimeline() {
  if (timeline === null) return;
  const { context, width, height } = timeline;
  context.clearRect(0, 0, width, height);
  const most = Math.max(...counts.map((groups) => groups.reduce((a, b) => a + b)));
  const step = width / counts.length;
  counts.forEach((groups, i) => {
    let y = height;
    context.globalAlpha = state.period === null || state.period === i ? 1 : 0.3;
    groups.forEach((count, g) => {
      const h = (height - 2) * count / most;
      context.fillStyle = palette.groups[g];
      context.fillRect(i * step + 0.5, y - h, Math.max(step - 1, 1), h);
      y -= h;
    });
  });
}

// What the page tells ---------------------------------------------------------------------------

const card = document.getElementById("map-card");
const told = document.getElementById("map-told");

function element(tag, text, name) {
  const made = document.createElement(tag);
  made.textContent = text;
  if (name) made.className = name;
  return made;
}

function describe(d, full) {
  const parts = [];
  const title = atlas.titles[d];
  if (title) parts.push(element("strong", title));
  const about = [`Document ${atlas.ids[d]}`, atlas.dates[d]].filter(Boolean).join(" · ");
  parts.push(element("span", about, "about"));
  if (atlas.texts[d]) {
    const text = element(full ? "blockquote" : "span", atlas.texts[d], "text");
    text.dir = "auto";
    parts.push(text);
  }
  for (let i = 0; i < atlas.told; i += 1) {
    const topic = docs.topics[d * atlas.told + i];
    const share = docs.shares[d * atlas.told + i] / 255;
    if (share < 0.02 && i > 0) continue;
    const row = element("span", "", `share g${atlas.groups[topic]}`);
    const meter = element("span", "", "meter");
    const filled = element("span", "");
    filled.style.width = `${100 * share}%`;
    meter.append(filled);
    const name = element(full ? "a" : "span", atlas.names[topic], "name");
    if (full) name.href = `#topic-${topic}`;
    row.append(meter, element("span", percent(share), "numeric"), name);
    parts.push(row);
  }
  return parts;
}

function choose(d) {
  state.chosen = d;
  card.hidden = d === null;
  if (d !== null) {
    const close = element("button", "Close");
    close.type = "button";
    close.addEventListener("click", () => choose(null));
    card.replaceChildren(...describe(d, true), close);
  }
  redraw();
}

const tip = document.getElementById("map-tip");
function showTip(event) {
  tip.hidden = state.hover === null;
  if (state.hover === null) return;
  tip.replaceChildren(...describe(state.hover, false));
  const box = map.canvas.getBoundingClientRect();
  const [x, y] = [event.clientX - box.left, event.clientY - box.top];
  const width = Math.min(320, box.width - 16);
  tip.style.width = `${width}px`;
  tip.style.left = `${Math.min(Math.max(x + 14, 8), box.width - width - 8)}px`;
  const below = y + 18 + tip.offsetHeight < box.height;
  tip.style.top = `${below ? y + 18 : Math.max(y - tip.offsetHeight - 14, 4)}px`;
}

function tellState() {
  const parts = [];
  if (state.period !== null) parts.push(atlas.periodNames[state.period]);
  if (state.group !== null) parts.push(atlas.groupNames[state.group]);
  const number = state.found === null && parts.length === 0 ? docs.size : mixed.filter(isLit).length;
  const topics = state.foundTopics.size;
  parts.push(`${number.toLocaleString("en")} documents`);
  if (state.found !== null) parts.push(`${topics} topic${topics === 1 ? "" : "s"}`);
  told.textContent = parts.join(" · ");
}

// Search: every word must be in a document's title, text or name. The first hits are also a list,
// which opens documents without a mouse.
const search = document.getElementById("map-search");
const hits = document.getElementById("map-hits");
let haystack = null;
function seek() {
  state.query = search.value.trim().toLowerCase();
  const words = state.query.split(/\s+/).filter(Boolean);
  state.found = null;
  state.foundTopics = new Set();
  if (words.length > 0) {
    haystack ??= atlas.texts.map((text, d) =>
      `${atlas.titles[d] ?? ""} ${text} ${atlas.ids[d]}`.toLowerCase());
    state.found = Uint8Array.from(haystack, (text) => Number(words.every((w) => text.includes(w))));
    atlas.names.forEach((name, k) => {
      const text = `${name} ${atlas.words[k]}`.toLowerCase();
      if (words.every((word) => text.includes(word))) state.foundTopics.add(k);
    });
  }
  const first = state.found === null ? [] : mixed.filter((d) => state.found[d]).slice(0, 8);
  hits.replaceChildren(...[...state.foundTopics].map((k) => {
    const link = element("a", atlas.names[k], `dot g${atlas.groups[k]}`);
    link.href = `#topic-${k}`;
    return link;
  }), ...first.map((d) => {
    const button = element("button", atlas.titles[d] || atlas.texts[d] || atlas.ids[d]);
    button.type = "button";
    button.className = `dot g${atlas.groups[mainTopic(d)]}`;
    button.addEventListener("click", () => choose(d));
    return button;
  }));
  document.querySelectorAll("#topic-table tbody tr").forEach((row) => {
    row.classList.toggle("found", state.foundTopics.has(Number(row.dataset.topic)));
  });
  redraw();
}
search.addEventListener("input", seek);

// Mouse and touch -------------------------------------------------------------------------------

function nearest(event) {
  const box = map.canvas.getBoundingClientRect();
  const [mx, my] = [event.clientX - box.left, event.clientY - box.top];
  const topic = mapLabels.find(({ x, y, w, h }) => Math.abs(mx - x) < w / 2 && Math.abs(my - y) < h / 2);
  let [found, best] = [null, event.pointerType === "touch" ? 24 : 11];
  if (topic === undefined) {
    for (let d = 0; d < docs.size; d += 1) {
      const [x, y] = placeOf(d);
      const distance = Math.hypot(x - mx, y - my);
      if (distance < best && isLit(d)) [found, best] = [d, distance];
    }
  }
  return { document: found, topic: topic?.topic ?? null };
}

let dragged = null;
map.canvas.addEventListener("pointermove", (event) => {
  if (dragged !== null) {
    const [dx, dy] = [event.clientX - dragged.x, event.clientY - dragged.y];
    if (Math.hypot(dx, dy) > 4) dragged.moved = true;
    if (dragged.moved) look(state.scale, dragged.left + dx, dragged.top + dy);
    return;
  }
  const at = nearest(event);
  map.canvas.style.cursor = at.document !== null || at.topic !== null ? "pointer" : "grab";
  if (at.document !== state.hover) {
    state.hover = at.document;
    redraw();
  }
  showTip(event);
  const topic = at.topic === null ? null : String(at.topic);
  if (topic !== lightedTopic) light(topic);
});
map.canvas.addEventListener("pointerleave", () => {
  state.hover = null;
  tip.hidden = true;
  light(null);
});
map.canvas.addEventListener("pointerdown", (event) => {
  if (event.pointerType === "touch" && state.scale === 1) return;
  dragged = { x: event.clientX, y: event.clientY, left: state.left, top: state.top, moved: false };
});
window.addEventListener("pointerup", () => setTimeout(() => { dragged = null; }));
map.canvas.addEventListener("click", (event) => {
  if (dragged?.moved) return;
  const at = nearest(event);
  if (at.topic !== null) location.hash = `#topic-${at.topic}`;
  else choose(at.document);
});
map.canvas.addEventListener("dblclick", (event) => zoom(2, event));
map.canvas.addEventListener("wheel", (event) => {
  if (!event.ctrlKey && !event.metaKey) return; // the page scrolls
  event.preventDefault();
  zoom(event.deltaY < 0 ? 1.25 : 0.8, event);
}, { passive: false });

function look(scale, left, top) {
  state.scale = Math.min(Math.max(scale, 1), 24);
  state.left = Math.min(Math.max(left, map.width * (1 - state.scale)), 0);
  state.top = Math.min(Math.max(top, map.height * (1 - state.scale)), 0);
  map.canvas.style.touchAction = state.scale > 1 ? "none" : "pan-y pinch-zoom";
  redraw();
}

function zoom(factor, event) {
  const box = map.canvas.getBoundingClientRect();
  const [x, y] = event ? [event.clientX - box.left, event.clientY - box.top] : [map.width / 2, map.height / 2];
  const scale = Math.min(Math.max(state.scale * factor, 1), 24);
  const ratio = scale / state.scale;
  look(scale, x - ratio * (x - state.left), y - ratio * (y - state.top));
}
for (const [id, factor] of [["map-in", 1.6], ["map-out", 1 / 1.6], ["map-whole", 0]]) {
  document.getElementById(id).addEventListener("click", () => zoom(factor));
}

for (const button of document.querySelectorAll("#map-groups button")) {
  button.addEventListener("click", () => {
    const group = Number(button.dataset.group);
    state.group = state.group === group ? null : group;
    for (const each of document.querySelectorAll("#map-groups button")) {
      each.setAttribute("aria-pressed", String(Number(each.dataset.group) === state.group));
    }
    redraw();
  });
}

if (slider !== null) {
  const name = document.getElementById("map-period");
  const play = document.getElementById("map-play");
  let timer = null;
  const move = () => {
    const value = Number(slider.value);
    state.period = value === 0 ? null : value - 1;
    name.textContent = value === 0 ? "all" : atlas.periodNames[value - 1];
    slider.setAttribute("aria-valuetext", name.textContent);
    redraw();
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    play.textContent = "Play";
  };
  slider.addEventListener("input", () => { stop(); move(); });
  play.addEventListener("click", () => {
    if (timer !== null) { stop(); return; }
    play.textContent = "Stop";
    timer = setInterval(() => {
      slider.value = String((Number(slider.value) + 1) % (counts.length + 1));
      move();
      if (slider.value === "0") stop();
    }, 700);
  });
  timeline.canvas.addEventListener("click", (event) => {
    const period = Math.floor(event.offsetX / timeline.width * counts.length);
    stop();
    slider.value = String(state.period === period ? 0 : period + 1);
    move();
  });
}

if (graph !== null) {
  const topicAtCircle = (event) => {
    const box = graph.canvas.getBoundingClientRect();
    const [mx, my] = [event.clientX - box.left, event.clientY - box.top];
    return circles.find(({ x, y, radius }) => Math.hypot(x - mx, y - my) < radius + 6)?.topic ?? null;
  };
  graph.canvas.addEventListener("pointermove", (event) => {
    const topic = topicAtCircle(event);
    graph.canvas.style.cursor = topic === null ? "default" : "pointer";
    if ((topic === null ? null : String(topic)) !== lightedTopic) light(topic === null ? null : String(topic));
  });
  graph.canvas.addEventListener("pointerleave", () => light(null));
  graph.canvas.addEventListener("click", (event) => {
    const topic = topicAtCircle(event);
    if (topic !== null) location.hash = `#topic-${topic}`;
  });
}

// Drawing, once for each frame at most ----------------------------------------------------------

let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    drawMap();
    drawGraph();
    drawTimeline();
    tellState();
  });
}

function resize() {
  if (map.canvas.clientWidth === 0) return; // not shown
  palette = readPalette();
  for (const each of [map, graph, timeline]) {
    if (each !== null) [each.width, each.height] = each.fit();
  }
  if (graph !== null) arrange();
  drawMap();
  drawGraph();
  drawTimeline();
  tellState();
}

document.addEventListener("topic", (event) => {
  state.topic = event.detail === null ? null : Number(event.detail);
  redraw();
});
let lastWidth = 0;
new ResizeObserver(() => {
  if (map.canvas.clientWidth !== lastWidth) {
    lastWidth = map.canvas.clientWidth;
    resize();
  }
}).observe(map.canvas);
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", resize);
// Paper is white.
window.addEventListener("beforeprint", () => {
  document.documentElement.classList.add("paper");
  resize();
});
window.addEventListener("afterprint", () => {
  document.documentElement.classList.remove("paper");
  resize();
});
document.getElementById("map-tools").hidden = false;
resize();
