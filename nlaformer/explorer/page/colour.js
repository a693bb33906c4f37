// Colours that people with any colour vision tell apart: blue to orange around zero, one hue for weights, and nine lines
// after Okabe and Ito that differ in dash and marker too.

const LIGHT = {
  negative: [[249, 248, 245], [146, 197, 222], [33, 102, 172], [5, 48, 97]],
  positive: [[249, 248, 245], [253, 190, 120], [217, 112, 20], [110, 48, 4]],
  weight: [[249, 248, 245], [171, 196, 205], [74, 125, 145], [12, 52, 70]],
};
const DARK = {
  negative: [[33, 35, 38], [38, 82, 124], [88, 160, 214], [190, 226, 248]],
  positive: [[33, 35, 38], [122, 70, 20], [228, 138, 52], [255, 222, 170]],
  weight: [[33, 35, 38], [40, 82, 96], [98, 160, 180], [208, 236, 244]],
};

const preferred = matchMedia("(prefers-color-scheme: dark)"); // asked for once: every pixel is coloured by it

const themed = CSS.supports("color", "light-dark(red, red)"); // else the style sheet is light

export function isDark() {
  if (!themed) return false;
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : preferred.matches;
}

function along(stops, x) {
  const at = Math.min(Math.max(x, 0), 1) * (stops.length - 1);
  const k = Math.min(Math.floor(at), stops.length - 2);
  return stops[k].map((value, channel) => Math.round(value + (at - k) * (stops[k + 1][channel] - value)));
}

// x in [-1, 1].
export function diverging(x) {
  const maps = isDark() ? DARK : LIGHT;
  if (Number.isNaN(x)) return [128, 128, 128];
  return along(x < 0 ? maps.negative : maps.positive, Math.sqrt(Math.abs(x)));
}

// x in [0, 1].
export function weight(x) {
  return along((isDark() ? DARK : LIGHT).weight, x);
}

export const LINES = [
  { light: "#1b1b1b", dark: "#ededed", dash: "", marker: "circle" },
  { light: "#0072b2", dark: "#56b4e9", dash: "6 3", marker: "square" },
  { light: "#c04c00", dark: "#f0a050", dash: "", marker: "diamond" },
  { light: "#007a5a", dark: "#35c99a", dash: "2 3", marker: "triangle" },
  { light: "#a0478a", dark: "#e096c6", dash: "8 3 2 3", marker: "square" },
  { light: "#7a5c00", dark: "#e8c840", dash: "4 2", marker: "circle" },
  { light: "#3558a8", dark: "#8fb0f5", dash: "1 3", marker: "diamond" },
  { light: "#6b6b6b", dark: "#a8a8a8", dash: "10 4", marker: "triangle" },
  { light: "#8a3324", dark: "#e39a86", dash: "5 2 1 2", marker: "circle" },
];

export function lineColour(style) {
  return isDark() ? style.dark : style.light;
}
