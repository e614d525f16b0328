/** Writes the table of presets into docs/upstreams/apis.md; `test/docs/presets.test.ts` holds the page to it. */
import { readFileSync, writeFileSync } from 'node:fs';
import { partsOf } from '../src/config/speaks.ts';
import { presetNames, presets } from '../src/config/presets.ts';

const page = new URL('../docs/upstreams/apis.md', import.meta.url);
const begin = '<!-- presets: written by scripts/presets-table.ts -->';
const end = '<!-- end of presets -->';

/** The table, a row for each preset. */
export function presetsTable(): string {
  const rows = presetNames.map((name) => {
    const { title, source, counts, missing } = presets[name];
    return `| \`${name}\` | [${title}](${source}) | ${counts} | ${windowsText(name)} | ${missing ?? ''} |`;
  });
  return ['| preset | API | counts | stated windows | not covered |', '|---|---|---|---|---|', ...rows].join(
    '\n',
  );
}

function windowsText(name: (typeof presetNames)[number]): string {
  const { windows = [], maxInFlight, penaltySeconds } = partsOf(name);
  return [
    ...windows.map(({ requests, seconds }) => `${requests} in ${seconds} s`),
    ...(maxInFlight === undefined ? [] : [`${maxInFlight} at once`]),
    ...(penaltySeconds === undefined ? [] : [`penalty ${penaltySeconds} s`]),
  ].join(', ');
}

/** The page with the table as it should be. */
export function pageWithTable(text: string): string {
  const [before, rest = ''] = text.split(begin);
  return `${before}${begin}\n\n${presetsTable()}\n\n${end}${rest.split(end)[1] ?? ''}`;
}

if (import.meta.main) writeFileSync(page, pageWithTable(readFileSync(page, 'utf8')));
