// Elements. Text reaches the page through text nodes alone, so that nothing a user types is ever markup.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "value" || name === "checked" || name === "disabled") node[name] = value;
    else if (value !== undefined && value !== false) node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

export function put(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// The same for a part with controls: the one that has the focus gives it to its successor of the same id.
export function putControls(node, ...children) {
  const focused = node.contains(document.activeElement) ? document.activeElement.id : "";
  put(node, ...children);
  if (focused) document.getElementById(focused)?.focus();
}

// A labelled control. `hint` is read with it.
export function field(label, control, hint) {
  const id = (control.id ||= `control-${field.count = (field.count ?? 0) + 1}`);
  const note = hint ? el("small", { id: `${id}-hint` }, hint) : null;
  if (note) control.setAttribute("aria-describedby", note.id);
  return el("div", { class: "field" }, el("label", { for: id }, label), control, note);
}

export function select(id, options, value, onchange) {
  const option = ([name, text]) => el("option", { value: name }, text);
  const groups = options.map(([name, text]) => (Array.isArray(text) ? el("optgroup", { label: name }, text.map(option)) : option([name, text])));
  const control = el("select", { id, onchange: () => onchange(control.value) }, groups);
  control.value = value;
  return control;
}

export function slider({ label, min, max, step, value, shown = String, oninput, id }) {
  const output = el("output", {}, shown(value));
  const control = el("input", { type: "range", id, min, max, step, value, oninput: () => {
    const number = Number(control.value);
    output.textContent = shown(number);
    control.setAttribute("aria-valuetext", shown(number));
    oninput(number);
  } });
  control.setAttribute("aria-valuetext", shown(value));
  const row = field(label, control);
  row.querySelector("label").append(" ", output);
  return row;
}

export function button(label, onclick, attributes = {}) {
  return el("button", { type: "button", onclick, ...attributes }, label);
}

// The round of a view that was left. It equals nothing, itself included, so what is still computed there is not shown.
export const LEFT = NaN;

// A function that runs when calls have paused.
export function paused(action, milliseconds = 150) {
  let timer;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...given), milliseconds);
  };
}

// Lets the browser draw and answer between pieces of a long computation.
export function breathe() {
  return new Promise((resolve) => setTimeout(resolve));
}
