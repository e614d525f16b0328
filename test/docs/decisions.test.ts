/** The pages of `docs/adr/` and their index. */
import { readdirSync, readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';

const folder = new URL('../../docs/adr/', import.meta.url);
const read = (name: string): string => readFileSync(new URL(name, folder), 'utf8');
const pages = readdirSync(folder).filter((name) => /^\d{4}-.*\.md$/.test(name));

test('every decision has a number, a status and a date, and the index has a row that says the same', () => {
  const rows = pages.toSorted().map((name) => {
    const [title = '', , state = ''] = read(name).split('\n');
    const [, number, words] = /^# (\d+)\. (.+)$/.exec(title) ?? [];
    const [, status, date] = /^Status: (\w+), (\d{4}-\d{2}-\d{2})/.exec(state) ?? [];
    expect([name, Number(name.slice(0, 4))]).toEqual([name, Number(number)]);
    return `| ${number} | [${words}](${name}) | ${status} | ${date} |`;
  });
  const indexed = read('README.md')
    .split('\n')
    .filter((line) => /^\| \d/.test(line));
  expect(indexed).toEqual(rows);
});
