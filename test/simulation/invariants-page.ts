/**
 * `docs/invariants.md`: one row for each mutation, with the declaration that it changes and what was found when it was last
 * asked for. The declarations are read from the sources; only who found a change comes from a run.
 */
import { readFileSync } from 'node:fs';
import { declarationOf } from './declaration-of.ts';
import { guardMutations } from './guard-mutations.ts';
import { mutations, type Mutation } from './mutations.ts';
import { replicaMutations } from './replicas/mutations.ts';

export const pageFile = new URL('../../docs/invariants.md', import.meta.url);

const head = `# Which line keeps which invariant

Written by \`npm run verify:mutations\`. Each row is a one-line change of the product (\`test/simulation/mutations.ts\`,
\`test/simulation/replicas/mutations.ts\`, \`guard-mutations.ts\`), the declaration in \`src/\` that holds the line, and the first check
that noticed the change: histories of one process, histories of several replicas with faults, or a test in \`test/\`. The numbers are
those of the invariants in [ARCHITECTURE.md](../ARCHITECTURE.md#invariants). The Lua has its own planted faults
(\`test/limiter/parity-faults.test.ts\`).

| | what is changed | where | found by |
|---|---|---|---|
`;

/** Every row as the page shows it, without who found it. In the order of the page. */
export function rowsOf(): readonly { readonly mutation: Mutation; readonly start: string }[] {
  return [...mutations, ...replicaMutations, ...guardMutations]
    .toSorted((a, b) => Number(a.keeps) - Number(b.keeps))
    .map((mutation) => {
      const { keeps, what, file, find } = mutation;
      const source = readFileSync(new URL(`../../${file}`, import.meta.url), 'utf8');
      const where = `\`${file.replace('src/', '')}\`: \`${declarationOf(source, find)}\``;
      return { mutation, start: `| ${keeps} | ${cell(what)} | ${where} |` };
    });
}

/** What the page says now of each change: by its number and its words. */
export function foundNow(page: string): ReadonlyMap<string, string> {
  return new Map(
    page
      .split('\n')
      .filter((line) => /^\| \d/.test(line))
      .map((line) => {
        const [, keeps = '', what = '', , by = ''] = line.split(/(?<!\\)\|/).map((one) => one.trim());
        return [`${keeps} ${what}`, by];
      }),
  );
}

/**
 * The page. `found`: who found the changes that were asked for now, `null` = nobody; what the page said before stays for the
 * others.
 */
export function pageWith(found: ReadonlyMap<Mutation, string | null>, before: string): string {
  const kept = foundNow(before);
  const lines = rowsOf().map(({ mutation, start }) => {
    const { keeps, what, survives } = mutation;
    const nobody = `nobody: ${survives ?? '**it is not kept**'}`;
    const known = kept.get(`${keeps} ${cell(what)}`) ?? 'not asked yet';
    return `${start} ${found.has(mutation) ? cell(found.get(mutation) ?? nobody) : known} |`;
  });
  return `${head}${lines.join('\n')}\n`;
}

function cell(text: string): string {
  return text.replaceAll('|', '\\|').replaceAll('\n', ' ').trim();
}
