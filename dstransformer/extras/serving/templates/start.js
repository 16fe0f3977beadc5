
"use strict";
const [text, go, alternatives, prefix, to, state, pairs] =
  ["text", "go", "alternatives", "prefix", "to", "status", "pairs"].map((name) => document.getElementById(name));

function make(name, kind, content) {
  const element = document.createElement(name);
  element.className = kind;
  element.textContent = content;
  return element;
}

function report(message, failed) {
  state.textContent = message;
  state.classList.toggle("error", Boolean(failed));
}

async function ask(path, body) {
  let answer;
  try {
    answer = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
  } catch {
    throw new Error("The server does not answer. Is it still running?");
  }
  const content = await answer.json().catch(() => ({}));
  if (!answer.ok) {
    const wait = answer.headers.get("Retry-After");
    const again = wait ? ` (try again in ${wait} s)` : "";
    throw new Error(`${content.detail || "The server answered without a reason"}${again} [${answer.status}]`);
  }
  return content;
}

async function translate() {
  const lines = text.value.split(/\r?\n/).filter((line) => line.trim());
  if (!lines.length) {
    report("Type a sentence first.", true);
    return;
  }
  const body = { text: lines, n_best: Number(alternatives.value) };
  if (prefix.value.trim()) body.prefix = prefix.value.trim();
  if (to) body.to = to.value;
  go.disabled = true;
  report("Translating …");
  const began = performance.now();
  try {
    const { translations } = await ask("translate", body);
    pairs.replaceChildren(...translations.map((translation, place) => show(lines[place], translation, body.to)));
    const seconds = ((performance.now() - began) / 1000).toFixed(2);
    report(`${lines.length} ${lines.length === 1 ? "sentence" : "sentences"} in ${seconds} s`);
  } catch (error) {
    report(error.message, true);
  } finally {
    go.disabled = false;
  }
}

function show(line, translation, into) {
  const pair = make("section", "pair", "");
  const source = make("p", "source", line);
  const target = make("p", "target", translation.text);
  pair.append(source, target);
  if (translation.n_best.length > 1) {
    const list = document.createElement("ol");
    for (const { text: other, score } of translation.n_best) {
      const item = make("li", "", `${other} `);
      item.append(make("span", "score", score.toFixed(3)));
      list.append(item);
    }
    pair.append(list);
  }
  const look = () => attend(source, target, { source: line, target: translation.text, to: into });
  pair.addEventListener("pointerenter", look, { once: true });
  target.tabIndex = 0;
  target.addEventListener("focus", look, { once: true });
  return pair;
}

async function attend(source, target, body) {
  if (source.dataset.asked) return;
  source.dataset.asked = "1";
  let found;
  try {
    found = await ask("attention", body);
  } catch {
    return; // the translation itself is there
  }
  target.removeAttribute("tabindex");
  const sources = spell(source, found.source);
  spell(target, found.target).forEach((word, place) => {
    word.tabIndex = 0;
    const paint = (weights) => sources.forEach((each, key) => {
      each.style.backgroundColor = weights ? `rgb(var(--heat) / ${Math.min(1, weights[key]).toFixed(3)})` : "";
      each.title = weights ? `${Math.round(100 * weights[key])}%` : "";
    });
    for (const kind of ["pointerenter", "focus"]) word.addEventListener(kind, () => paint(found.weights[place]));
    for (const kind of ["pointerleave", "blur"]) word.addEventListener(kind, () => paint(null));
  });
}

function spell(paragraph, words) {
  const spans = words.map((word) => make("span", "word", word));
  paragraph.replaceChildren(...spans.flatMap((span, place) => (place ? [" ", span] : [span])));
  return spans;
}

go.addEventListener("click", translate);
text.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !go.disabled) translate();
});
