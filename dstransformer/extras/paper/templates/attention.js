"use strict";

// Weights are 16-bit integers in base64, in the order layer, head, query, key. Layers and heads count from 1.
const data = JSON.parse(document.getElementById("data").textContent);
for (const view of Object.values(data.kinds)) {
  const bytes = Uint8Array.from(atob(view.weights), (letter) => letter.charCodeAt(0));
  view.weights = new Uint16Array(bytes.buffer);
}

const ROW = 24, TOP = 26, SPACE = 8, SHARE = 38; // pixels: a row, above the rows, around words, beside words for percentages
const heads = data.colours.map((_, index) => index + 1);
const layers = Math.max(...Object.values(data.kinds).map((view) => view.layers));
const picture = document.getElementById("picture");
const state = { kind: "", layer: 0, heads: new Set(), kept: new Set(), pointed: null };

function currentView() {
  return data.kinds[state.kind];
}

function weight(head, query, key) {
  const view = currentView();
  const row = ((state.layer - 1) * heads.length + head - 1) * view.queries.length + query;
  return view.weights[row * view.keys.length + key] / data.scale;
}

function element(name, attributes, ...children) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// The words, each at its place; the lines and what belongs to them are drawn by drawLines.

function textWidths(words, size) {
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `${size}px ` + getComputedStyle(document.body).fontFamily;
  return words.map((word) => pen.measureText(word).width);
}

function drawWords() {
  const view = currentView();
  const sides = { query: textWidths(view.queries, 15), key: textWidths(view.keys, 15) };
  const headings = { query: textWidths([view.sides[0]], 12.5)[0], key: textWidths([view.sides[1]], 12.5)[0] };
  const cell = Math.min(7, Math.max(3, 72 / Math.max(1, state.heads.size)));
  const strip = cell * state.heads.size + SPACE;
  const outer = (side) => Math.max(SHARE + Math.max(...sides[side]), headings[side]) + SPACE;
  const room = document.getElementById("scroll").clientWidth - outer("query") - outer("key") - 2 * strip;
  const gap = Math.min(440, Math.max(110, room));
  const place = { cell, query: outer("query"), begin: outer("query") + strip };
  place.end = place.begin + gap;
  place.key = place.end + strip;
  const width = place.key + outer("key"), height = TOP + ROW * Math.max(view.queries.length, view.keys.length) + 4;
  picture.setAttribute("width", width);
  picture.setAttribute("height", height);
  picture.replaceChildren(
    element("text", { class: "side", x: place.query, y: 12, "text-anchor": "end" }, view.sides[0]),
    element("text", { class: "side", x: place.key, y: 12 }, view.sides[1]),
    ...view.queries.map((word, number) => drawWord("query", number, word, sides.query[number], place.query)),
    ...view.keys.map((word, number) => drawWord("key", number, word, sides.key[number], place.key)),
    element("g", { id: "lines" }),
    element("g", { id: "cells" }),
  );
  state.place = place;
}

function drawWord(side, number, word, width, x) {
  const away = side === "query" ? -1 : 1, anchor = side === "query" ? "end" : "start";
  const text = element("text", { x, y: ROW / 2, "text-anchor": anchor });
  const [space, rest] = word.startsWith("▁") && word.length > 1 ? ["▁", word.slice(1)] : ["", word];
  if (space) text.append(element("tspan", { class: "space" }, space));
  text.append(rest);
  const left = side === "query" ? x - width - SHARE : x - SPACE / 2;
  const label = `${side === "query" ? "from" : "to"} ${word}`;
  return element(
    "g",
    { class: "word", id: `${side}-${number}`, tabindex: 0, role: "button", "aria-label": label, transform: `translate(0 ${TOP + ROW * number})` },
    element("rect", { x: left, y: 1, width: width + SHARE + SPACE / 2, height: ROW - 2, rx: 4 }),
    text,
    element("text", { class: "share", x: x + away * (width + 7), y: ROW / 2, "text-anchor": anchor }),
  );
}

// The lines: those of the word that is pointed at, else those of the words that are kept, else all.

function chosenWords() {
  const chosen = state.pointed ? [state.pointed] : [...state.kept];
  const numbers = (side) => chosen.filter((id) => id.startsWith(side)).map((id) => Number(id.split("-")[1]));
  return { query: numbers("query"), key: numbers("key"), any: chosen.length > 0, ids: new Set(chosen) };
}

function drawLines() {
  const view = currentView(), chosen = chosenWords(), { begin, end } = state.place;
  const queries = new Set(chosen.query), keys = new Set(chosen.key), lines = [];
  for (const head of state.heads) {
    view.queries.forEach((_, query) => view.keys.forEach((_, key) => {
      if (chosen.any && !queries.has(query) && !keys.has(key)) return;
      const share = weight(head, query, key);
      if (share >= data.minWeight) lines.push({ head, query, key, share });
    }));
  }
  lines.sort((one, other) => one.share - other.share);
  const middle = (number) => TOP + ROW * (number + 0.5);
  document.getElementById("lines").replaceChildren(...lines.map((line) => element("line", {
    x1: begin, y1: middle(line.query), x2: end, y2: middle(line.key), stroke: data.colours[line.head - 1],
    "stroke-opacity": line.share.toFixed(4), "data-head": line.head, "data-query": line.query, "data-key": line.key,
  })));
  markWords(chosen);
}

// For the chosen words: cells in the colours of the heads, and the mean over heads as a percentage.
function markWords(chosen) {
  const view = currentView(), cells = [];
  for (const word of picture.querySelectorAll(".word")) word.classList.remove("picked", "reached");
  for (const share of picture.querySelectorAll(".share")) share.textContent = "";
  const mark = (side, count, others, read) => {
    if (!others.length) return;
    for (let number = 0; number < count; number++) {
      let total = 0;
      [...state.heads].sort((one, other) => one - other).forEach((head, place) => {
        const weights = others.map((other) => read(head, number, other));
        total += weights.reduce((sum, one) => sum + one, 0);
        cells.push(drawCell(side, number, place, head, Math.max(...weights)));
      });
      const mean = total / (others.length * state.heads.size);
      if (mean < 0.01) continue;
      const word = document.getElementById(`${side}-${number}`);
      word.classList.add("reached");
      word.querySelector(".share").textContent = `${Math.round(mean * 100)}%`;
    }
  };
  mark("key", view.keys.length, chosen.query, (head, key, query) => weight(head, query, key));
  mark("query", view.queries.length, chosen.key, (head, query, key) => weight(head, query, key));
  for (const id of chosen.ids) document.getElementById(id)?.classList.add("picked");
  document.getElementById("cells").replaceChildren(...cells.filter(Boolean));
  picture.classList.toggle("picking", chosen.any);
}

function drawCell(side, number, place, head, share) {
  if (share < data.minWeight) return null;
  const { cell, query, end } = state.place;
  const x = (side === "query" ? query + SPACE / 2 : end + SPACE / 2) + cell * place;
  const y = TOP + ROW * number + 4;
  return element("rect", { x, y, width: cell, height: ROW - 8, fill: data.colours[head - 1], "fill-opacity": share.toFixed(4) });
}

// The choices, which the address keeps: #kind/layer/heads.

function choose(change) {
  const keepWords = change.kind === undefined || change.kind === state.kind;
  Object.assign(state, change, { pointed: null });
  state.layer = Math.min(state.layer, currentView().layers);
  if (!keepWords) state.kept = new Set(currentView().chosen.map((number) => `query-${number}`));
  for (const input of document.querySelectorAll("nav input")) {
    const value = { kind: state.kind, layer: String(state.layer) }[input.name];
    input.disabled = input.name === "layer" && Number(input.value) > currentView().layers;
    input.checked = input.name === "head" ? state.heads.has(Number(input.value)) : input.value === value;
  }
  const chosen = [...state.heads].sort((one, other) => one - other).join(",");
  history.replaceState(null, "", `#${state.kind}/${state.layer}/${chosen}`);
  drawWords();
  drawLines();
}

function addChoice(place, type, name, value, text, colour) {
  const label = document.createElement("label"), input = document.createElement("input");
  Object.assign(input, { type, name, value });
  label.append(input);
  if (colour) {
    const swatch = document.createElement("span");
    swatch.className = "swatch";
    swatch.style.setProperty("--head", colour);
    label.append(swatch);
  }
  label.append(text);
  document.getElementById(place).append(label);
  return { label, input };
}

function addChoices() {
  for (const [kind, view] of Object.entries(data.kinds)) {
    addChoice("kinds", "radio", "kind", kind, view.title.replace(" attention", "")).input.onchange = () => choose({ kind });
  }
  for (let layer = 1; layer <= layers; layer++) {
    addChoice("layers", "radio", "layer", layer, layer).input.onchange = () => choose({ layer });
  }
  for (const head of heads) {
    const { label, input } = addChoice("heads", "checkbox", "head", head, head, data.colours[head - 1]);
    input.onchange = () => {
      const others = [...state.heads].filter((other) => other !== head);
      choose({ heads: new Set(input.checked ? [...others, head] : others) });
    };
    label.ondblclick = () => choose({ heads: new Set([head]) });
  }
  const all = document.createElement("button");
  Object.assign(all, { type: "button", id: "all", textContent: "all" });
  all.onclick = () => choose({ heads: new Set(heads) });
  document.getElementById("heads").append(all);
}

function readAddress() {
  const [kind, layer, chosen] = decodeURIComponent(location.hash.slice(1)).split("/");
  const opening = { ...data.opening };
  if (kind in data.kinds) opening.kind = kind;
  if (Number(layer) >= 1 && Number(layer) <= layers) opening.layer = Math.floor(Number(layer));
  if (chosen !== undefined) opening.heads = chosen.split(",").map(Number).filter((head) => heads.includes(head));
  choose({ ...opening, heads: new Set(opening.heads) });
}

function point(event) {
  const word = event.target.closest?.(".word");
  const pointed = word ? word.id : null;
  if (pointed === state.pointed) return;
  state.pointed = pointed;
  drawLines();
}

function keep(id) {
  if (!state.kept.delete(id)) state.kept.add(id);
  drawLines();
}

picture.addEventListener("pointerover", point);
picture.addEventListener("focusin", point);
for (const type of ["pointerleave", "focusout"]) {
  picture.addEventListener(type, () => {
    state.pointed = null;
    drawLines();
  });
}
picture.addEventListener("click", (event) => {
  const word = event.target.closest(".word");
  if (word) keep(word.id);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    state.kept.clear();
    state.pointed = null;
    drawLines();
  } else if ((event.key === "Enter" || event.key === " ") && event.target.classList.contains("word")) {
    event.preventDefault();
    keep(event.target.id);
  }
});
addEventListener("hashchange", readAddress);
addEventListener("resize", () => {
  drawWords();
  drawLines();
});
addChoices();
readAddress();
