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
  const found = [...body.querySelectorAll("svg, .legend")].filter((drawing) => !drawing.parentElement.closest(".legend"));
  const drawings = found.length ? found.map((each) => (each.matches(".legend") ? listed(each) : each)) : [written(body)];
  save(`${title.toLowerCase().replace(/[^a-z0-9]+/g, "-")}.svg`, "image/svg+xml", joined(drawings, title));
}

const text = (x, y, content, font) => svg("text", { x, y, fill: getComputedStyle(document.body).color, "xml:space": "preserve", style: `font: ${font}` }, content);

// A panel of words and numbers, line by line, without the names of its buttons.
function written(body) {
  const buttons = new Set([...body.querySelectorAll("button")].map((each) => each.innerText));
  const said = body.innerText.split("\n").filter((line) => !buttons.has(line));
  const lines = aligned(said.flatMap((line) => (line.includes("\t") ? [line.split("\t")] : wrapped(line, 100).map((part) => [part]))));
  const width = 24 + 7.3 * Math.max(...lines.map((line) => line.length));
  return svg("svg", { viewBox: `0 0 ${width} ${24 + 17 * lines.length}` }, lines.map((line, k) => text(12, 20 + 17 * k, line, "12px monospace")));
}

const wrapped = (line, most) => line.match(new RegExp(`.{1,${most}}(?: |$)|.{${most}}`, "g")) ?? [""];

// Rows of cells as lines with columns below each other; a row that lacks cells, below a taller one, has them at its end.
function aligned(rows) {
  const count = Math.max(...rows.map((cells) => cells.length));
  const filled = rows.map((cells) => (cells.length > 1 ? [...new Array(count - cells.length).fill(""), ...cells] : cells));
  const width = (k) => Math.max(...filled.filter((cells) => cells.length > 1).map((cells) => cells[k].length));
  return filled.map((cells) => cells.map((cell, k) => (cells.length > 1 ? cell.padEnd(width(k) + 2) : cell)).join("").trimEnd());
}

// The names of lines, each beside its sample, below each other.
function listed(legend) {
  const rows = [...legend.children].map((entry, k) => {
    const sample = entry.querySelector("svg").cloneNode(true);
    sample.setAttribute("x", 12);
    sample.setAttribute("y", 18 * k + 2);
    return [sample, text(54, 18 * k + 12, entry.textContent.trim(), "12px sans-serif")];
  });
  return svg("svg", { viewBox: `0 0 400 ${18 * rows.length}` }, rows);
}

// One drawing of several, below each other; colours and fonts are written out, since a file has no style sheet.
function joined(drawings, title) {
  const boxes = drawings.map((drawing) => drawing.viewBox.baseVal);
  const width = Math.max(...boxes.map((box) => box.width));
  const height = boxes.reduce((sum, box) => sum + box.height + 8, 0);
  const ground = svg("rect", { width, height, fill: getComputedStyle(document.body).backgroundColor });
  const whole = svg("svg", { xmlns: "http://www.w3.org/2000/svg", viewBox: `0 0 ${width} ${height}`, width, height }, svg("title", {}, title), ground);
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
