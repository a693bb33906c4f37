// Controls that several views share: what a system is drawn with, and a part that scrolls by itself.
import { el, field, slider } from "./dom.js";
import { number } from "./format.js";
import { NUMBERS, bounded } from "./state.js";

export function sigmaSlider(id, value, oninput, label = "sigma") {
  return slider({ label, id, min: 0, max: 2, step: 0.1, value, shown: (x) => x.toFixed(1), oninput });
}

// The slider moves the logarithm; `oninput` is given the condition number.
export function conditionSlider(id, value, oninput, label = "Condition number") {
  return slider({
    label, id, min: 0, max: 6, step: 0.25, value: Math.log10(value),
    shown: (x) => number(10 ** x, 2), oninput: (x) => oninput(10 ** x),
  });
}

export function seedField(id, value, onchange) {
  const [min, max] = NUMBERS.seed;
  const control = el("input", { type: "number", id, min, max, value, onchange: () => {
    control.value = bounded("seed", Math.floor(Number(control.value)) || 0);
    onchange(Number(control.value));
  } });
  return field("Seed", control);
}

// What may be wider or taller than its panel; it takes the keyboard, so that arrows scroll it.
export function scrollable(label, content, kind = "scroll") {
  return el("div", { class: kind, tabindex: 0, role: "region", "aria-label": `${label}, scrollable` }, content);
}
