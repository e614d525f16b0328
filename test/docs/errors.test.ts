/** Holds the page of errors to the code: an anchor for each code, with its status, and a row for each reason. */
import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import {
  credentialFaults,
  failureReasons,
  heldByReasons,
  overloadBounds,
  refusals,
} from '../../src/errors.ts';

const pageOf = (path: string): string => readFileSync(new URL(`../../docs/${path}`, import.meta.url), 'utf8');
const errors = pageOf('callers/errors.md');

/** Codes in the first cells of the table below a heading. */
function codesBelow(page: string, heading: string): string[] {
  const [, text = ''] = page.split(`\n${heading}\n`);
  const [section = ''] = text.split(/\n#+ /);
  const rows = section.split('\n').filter((line) => line.startsWith('| `'));
  return rows
    .flatMap((row) => [...(row.split('|')[1] ?? '').matchAll(/`(\w+)`/g)].map(([, code = '']) => code))
    .filter((code) => !['heldBy', 'reason', 'bound', 'sluice_overload_total'].includes(code));
}

test('every code of a refusal has an anchor, and its status first', () => {
  const documented = [...errors.matchAll(/^### (\w+)\n\n(\d{3})/gm)].map(
    ([, code, status]) => `${code} ${status}`,
  );
  const made = Object.entries(refusals).map(([code, { status }]) => `${code} ${status}`);
  expect(documented.toSorted()).toEqual([...made, 'internal 500'].toSorted());
});

test.each([
  ['what holds a call', errors, '## What held the call', heldByReasons],
  ['why an attempt fails', errors, '### Why an attempt failed', failureReasons],
  ['why there is no credential', pageOf('operate/troubleshoot.md'), '## Token reasons', credentialFaults],
  ['the bounds of a replica', pageOf('operate/size.md'), '## Overload', overloadBounds],
])('%s: every reason has a row', (_what, page, heading, reasons) => {
  expect(codesBelow(page, heading).toSorted()).toEqual([...reasons].toSorted());
});
