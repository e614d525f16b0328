/** What somebody probably meant who wrote a name that is not known. */

/** `did you mean NAME? ` before other words, or nothing where no known name is close. */
export function didYouMean(text: string, known: readonly string[]): string {
  const name = nearest(text, known);
  return name === null ? '' : `did you mean ${name}? `;
}

/** The known name that differs least from the text, in at most a third of its characters; of equals the first. */
export function nearest(text: string, known: readonly string[]): string | null {
  let found: string | null = null;
  let least = Math.ceil(text.length / 3);
  for (const name of known) {
    if (Math.abs(name.length - text.length) > least) continue;
    const distance = editDistance(text.toLowerCase(), name.toLowerCase());
    if (distance > least || (found !== null && distance === least)) continue;
    found = name;
    least = distance;
  }
  return found;
}

/** Characters to add, remove or replace, to make one text of the other (Levenshtein). */
function editDistance(a: string, b: string): number {
  let last: readonly number[] = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 1; i <= a.length; i += 1) {
    const row = [i];
    for (let j = 1; j <= b.length; j += 1)
      row.push(
        Math.min(at(last, j) + 1, at(row, j - 1) + 1, at(last, j - 1) + (a[i - 1] === b[j - 1] ? 0 : 1)),
      );
    last = row;
  }
  return at(last, b.length);
}

const at = (row: readonly number[], index: number): number => row[index] ?? 0;
