// A panel: a heading, what it shows, and a button that saves its drawing as an SVG file.
import { button, el, svg } from "./dom.js";

export function panel(title, { note, id } = {}) {
  const body = el("div", { class: "panel-body" });
  const save = button("SVG", () => saveDrawings(title, body), { class: "quiet", "aria-label": `Save ${title} as SVG`, title: "Save as SVG" });
  const heading = el("h2", {}, title);
  const section = el("section", { class: "panel", id, "aria-label": title }, el("header", {}, heading, save), note ? el("p", { class: "note" }, note) : null, body);
  return { section, body, heading };
}

function saveDrawings(title, body) {
  const found = [...body.querySelectorAll("svg")].filter((drawing) => !drawing.closest(".legend"));
  const drawings = found.length ? found : [written(body.innerText)];
  save(`${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.svg`, "image/svg+xml", joined(drawings, title));
}

// A panel of words and numbers, line by line.
function written(text) {
  const lines = text.split("\n");
  const width = 24 + 7.3 * Math.max(...lines.map((line) => line.length));
  const row = (line, k) => svg("text", { x: 12, y: 20 + 17 * k, "xml:space": "preserve", style: "font: 12px monospace" }, line);
  return svg("svg", { viewBox: `0 0 ${width} ${24 + 17 * lines.length}` }, lines.map(row));
}

// One drawing of several, below each other; colours and fonts are written out, since a file has no style sheet.
function joined(drawings, title) {
  const boxes = drawings.map((drawing) => drawing.viewBox.baseVal);
  const width = Math.max(...boxes.map((box) => box.width));
  const height = boxes.reduce((sum, box) => sum + box.height + 8, 0);
  const whole = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  whole.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  whole.setAttribute("viewBox", `0 0 ${width} ${height}`);
  whole.setAttribute("width", width);
  whole.setAttribute("height", height);
  const name = document.createElementNS("http://www.w3.org/2000/svg", "title");
  name.textContent = title;
  const ground = document.createElementNS("http://www.w3.org/2000/svg", "rect");
  ground.setAttribute("width", width);
  ground.setAttribute("height", height);
  ground.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  whole.append(name, ground);
  let top = 0;
  drawings.forEach((drawing, k) => {
    const copy = drawing.cloneNode(true);
    inlineStyles(drawing, copy);
    copy.setAttribute("y", top);
    copy.setAttribute("width", boxes[k].width);
    copy.setAttribute("height", boxes[k].height);
    whole.append(copy);
    top += boxes[k].height + 8;
  });
  return new XMLSerializer().serializeToString(whole);
}

const KEPT = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "fill-opacity", "font-family", "font-size", "font-weight", "text-anchor"];

function inlineStyles(from, to) {
  const style = getComputedStyle(from);
  if (from.isConnected && from.tagName !== "image") for (const name of KEPT) to.style.setProperty(name, style.getPropertyValue(name));
  [...from.children].forEach((child, k) => inlineStyles(child, to.children[k]));
}

export function save(name, type, content) {
  const url = URL.createObjectURL(new Blob([content], { type }));
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
