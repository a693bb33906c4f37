// What the words of the page mean: those of instructions, and the names of registers; and where weights come from.

export const ORIGINS = {
  operation: "No weight of this transformer was trained; all were written down, with a proven bound on the error.",
  compiled: "No weight of this transformer was trained; a compiler wrote them all from the program below.",
  guided: "A compiler wrote the weights of this transformer from the program below, around the layers of a trained network.",
};

const INSTRUCTIONS = [
  [/^(parts|log \||signs) ?/, "Attention multiplies by A through its kernel, an exponential: so A is kept as the logarithms and the signs of its entries."],
  [/interpolated/, "A logarithm is first interpolated by the FFN, piece by piece; the next layer refines it."],
  [/refined/, "g = s e^−l is near 1; adding log g to l corrects the interpolated logarithm to the last digits."],
  [/ \. /, "An inner product: the softmax is linearized, with three pairs of heads."],
  [/trip|large where/, "This row is 0 until a square falls to the level of its own rounding, or below zero. It then grows without bound and takes the states that shrink, such as r and d, to zero; x stays as it is."],
  [/exp\(/, "A factor e^F, with F a sum of rows that hold logarithms: quotients and products of scalars cost nothing more."],
  [/network/, "The trained network works on rows of its own, beside the compiled arithmetic."],
];

// The notes on the instructions of a layer.
export function notesOn(texts) {
  return INSTRUCTIONS.filter(([word]) => texts.some((text) => word.test(text))).map(([, note]) => note);
}

const REGISTERS = [
  [/^one$/, () => "1 in every token but the sink; constants are multiples of it."],
  [/^position$/, () => "The unit vector of each token, by which heads find a token."],
  [/^exponent$/, () => "The power of two that the result is multiplied by at the end; no weight reads it."],
  [/^scale of (.+)$/, ([, name]) => `${name} is kept at size 1; this is the logarithm of what it is multiplied by.`],
  [/^scale/, () => "Vectors that shrink, such as r and d, are kept at size 1 so that no digit is lost; this is the logarithm of what they are multiplied by."],
  [/^parts of (.+)$/, ([, name]) => `Work space: the positive and the negative parts of ${name}.`],
  [/^ratios of (.+)$/, ([, name]) => `Work space, for the refinement of log |${name}|.`],
  [/^signs of (.+)$/, ([, name]) => `Masks, for the positive entries of ${name} and for the negative ones: 0 for these, −200 for the rest, which the exponential takes to nothing.`],
  [/^log \|(.+)\|$/, ([, name]) => `The logarithms of |${name}|, entry by entry; −200 stands for the logarithm of 0.`],
  [/^log (.+)$/, ([, name]) => `The logarithm of ${name}, which is positive: products and quotients become sums.`],
  [/^(pre|loop|post) t(\d+)$/, ([, block, k]) => `Work space of the ${block} block: t${k} in its instructions, cleared after use.`],
  [/^result$/, () => "The result, divided by a power of two."],
  [/^work$/, () => "Work space."],
  [/\.(memory|hidden)$/, () => "Rows of the trained network."],
];

// A sentence about a register; inputs are the names of what was given, states where a program has its states.
export function aboutRegister(name, states, inputs) {
  if (inputs.includes(name)) {
    const matrix = states ? "token j holds row j" : "token j holds column j";
    return `What was given, divided by a power of two${/^[A-Z]$/.test(name) ? `; ${matrix}` : ""}.`;
  }
  const [word, told] = REGISTERS.find(([pattern]) => pattern.test(name)) ?? [];
  if (word) return told(name.match(word));
  const [state, place] = Object.entries(states ?? {}).find(([, { rows }]) => rows.includes(name)) ?? [];
  if (!state) return "";
  return `A state of the program${place.scale ? `, kept at size 1: times e to the power of ${place.scale} it is ${state} for A and b as they stand in P` : ""}.`;
}
