// Exact powers of two: what nlaformer/prompt.py and express/construction.py do to the inputs of a prompt.

// The integer e for which m / 2^e lies in [2^-1/2, 2^1/2); 0 for m = 0.
export function exponent(m) {
  if (!(m > 0) || !Number.isFinite(m)) return 0;
  let e = Math.floor(Math.log2(m)) + 1;
  let mantissa = times2(m, -e);
  while (mantissa >= 1) mantissa = times2(m, -++e);
  while (mantissa < 0.5) mantissa = times2(m, -(--e));
  return mantissa < Math.SQRT1_2 ? e - 1 : e;
}

// x 2^e, exactly where the result is in range.
export function times2(x, e) {
  for (let k = 0; k < 4; k++) x *= 2 ** Math.floor((e + k) / 4);
  return x;
}

export function scaled(values, e) {
  return e === 0 ? Float64Array.from(values) : Float64Array.from(values, (x) => times2(x, e));
}

// The Euclidean norm; squares neither overflow nor vanish, only the norm itself may be beyond the largest number.
export function norm(values) {
  let largest = 0;
  for (const x of values) largest = Math.max(largest, Math.abs(x));
  if (largest === 0 || !Number.isFinite(largest)) return largest;
  let sum = 0;
  for (const x of values) sum += (x / largest) ** 2;
  return largest * Math.sqrt(sum);
}

// The exponent of the largest norm of some vectors, also where that norm is beyond the largest number.
export function normExponent(...vectors) {
  const most = (e) => Math.max(...vectors.map((values) => norm(scaled(values, e))));
  return Number.isFinite(most(0)) ? exponent(most(0)) : 64 + exponent(most(-64));
}

// log2 of the norm of a vector, in the same sense; -Infinity for zero.
export function logNorm(values) {
  const e = normExponent(values);
  return e + Math.log2(norm(scaled(values, -e)));
}
