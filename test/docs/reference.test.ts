/** Holds the reference page to what the code has: keys of the file, refusals, metrics. Sentences are for people to keep. */
import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';
import { configJsonSchema } from '../../src/config/json-schema.ts';
import { failureReasons, heldByReasons, refusals } from '../../src/errors.ts';
import { createInstruments } from '../../src/telemetry/instruments.ts';
import { createRegistry } from '../../src/telemetry/metrics.ts';

const page = readFileSync(new URL('../../docs/reference.md', import.meta.url), 'utf8');

/** Text from a heading to the next one of its level or above. */
function sectionOf(heading: string): string {
  const level = heading.indexOf(' ');
  const text = page.split(`\n${heading}\n`)[1];
  if (text === undefined) throw new Error(`no heading ${heading}`);
  return text.split(new RegExp(`\n#{1,${level}} `), 1)[0] ?? '';
}
/** Cells of the rows below a table's head. */
const rowsOf = (text: string): string[][] =>
  text
    .split('\n')
    .filter((line) => line.startsWith('| ') && !/^\| (key|code|metric) /.test(line))
    .map((line) =>
      line
        .split('|')
        .slice(1, -1)
        .map((cell) => cell.trim()),
    );
const codesIn = (cell = ''): string[] => [...cell.matchAll(/`([^`]+)`/g)].map(([, code]) => code ?? '');

interface Node {
  readonly properties?: Readonly<Record<string, Node>>;
  readonly additionalProperties?: Node | false;
}

/** Dotted paths of every key that takes a value; `*` stands for a name. */
function keysOf({ properties = {}, additionalProperties }: Node, path: readonly string[] = []): string[] {
  const below = Object.entries(properties);
  if (typeof additionalProperties === 'object') below.push(['*', additionalProperties]);
  if (below.length === 0) return [path.join('.')];
  return below.flatMap(([key, node]) => keysOf(node, [...path, key]));
}
const keys = keysOf(configJsonSchema() as Node);

/** Paths that one cell names: `.x` and, where it is no key itself, `x` stand beside the name before. */
function pathsIn(cell: string | undefined, prefix: string): string[] {
  const paths: string[] = [];
  for (const code of codesIn(cell)) {
    const own = prefix + code.replace(/<\w+>/, '*');
    const beside = `${paths.at(-1)?.replace(/\.\w+$/, '') ?? ''}.${code.replace(/^\./, '')}`;
    paths.push(keys.includes(own) ? own : keys.includes(beside) ? beside : own);
  }
  return paths;
}

describe('docs/reference.md', () => {
  test('names every key of the configuration file, and none that it does not have', () => {
    const sections = [
      ['### `server`', 'server.'],
      ['### `redis`, `privacy`, `log`, `idempotency`', ''],
      ['### `upstreams.<name>`', 'upstreams.*.'],
      ['### `workspaces.<id>`', 'workspaces.*.'],
    ] as const;
    const named = sections.flatMap(([heading, prefix]) =>
      rowsOf(sectionOf(heading)).flatMap(([cell, , what = '']) => {
        const paths = pathsIn(cell, prefix);
        const shorter = paths.map((path) => path.replace(/\.bucket\./, '.'));
        return what.includes('also directly in `limits`') ? [...paths, ...shorter] : paths;
      }),
    );
    const upstreams = sectionOf('### `upstreams.<name>`');
    expect(upstreams).toContain('The last six may also stand directly on the upstream');
    const lastSix = rowsOf(upstreams)
      .slice(-6)
      .flatMap(([cell]) => pathsIn(cell, 'upstreams.*.'));
    const onTheUpstream = lastSix.map((path) => path.replace('.limits.', '.'));
    expect([...named, ...onTheUpstream].sort()).toEqual([...keys].sort());
  });

  test('names every code of a refusal with its status', () => {
    const documented = rowsOf(sectionOf('## Errors')).map(
      ([cell, status]) => `${codesIn(cell)[0]} ${Number.parseInt(status ?? '', 10)}`,
    );
    const made = Object.entries(refusals).map(([code, { status }]) => `${code} ${status}`);
    expect(documented.sort()).toEqual([...made, 'internal 500'].sort());
  });

  test('names every reason that can hold a call', () => {
    const documented = rowsOf(sectionOf('## What holds a call back')).flatMap(([cell]) => codesIn(cell));
    expect(documented.filter((name) => name !== 'heldBy').sort()).toEqual([...heldByReasons].sort());
  });

  test('names every reason why an attempt fails', () => {
    const documented = rowsOf(sectionOf('## Why an attempt failed')).map(([cell]) => codesIn(cell)[0] ?? '');
    expect(documented.filter((name) => name !== 'reason').sort()).toEqual([...failureReasons].sort());
  });

  test('names every metric with its labels', () => {
    const documented = rowsOf(sectionOf('## Metrics')).flatMap(([cell, labels]) =>
      codesIn(cell).map((name) => `${name} ${labels ?? ''}`),
    );
    const made = Object.values(createInstruments(createRegistry())).map((metric) => {
      const { name, labelNames } = metric as unknown as { name: string; labelNames: readonly string[] };
      return `${name} ${labelNames.join(', ')}`;
    });
    expect(documented.sort()).toEqual(made.sort());
  });
});
