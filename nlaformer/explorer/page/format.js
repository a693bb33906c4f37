// Numbers as people read them.

export function number(x, digits = 4) {
  if (x === null || x === undefined || Number.isNaN(x)) return "NaN";
  if (!Number.isFinite(x)) return x > 0 ? "∞" : "−∞";
  if (x === 0) return "0";
  const size = Math.abs(x);
  const text = size >= 1e-3 && size < 1e5 ? String(Number(x.toPrecision(digits))) : small(x, digits - 2);
  return text.replaceAll("-", "−");
}

function small(x, digits) {
  const [mantissa, exponent] = x.toExponential(Math.max(digits, 0)).split("e");
  return `${mantissa}e${exponent.replace("+", "")}`;
}

// A difference: one digit and its power of ten.
export function tiny(x) {
  if (!Number.isFinite(x)) return number(x);
  return x === 0 ? "0" : x.toExponential(0).replace("e+", "e").replaceAll("-", "−");
}

export function counted(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}
