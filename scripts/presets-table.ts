/** Writes the table of presets into docs/upstreams/apis.md; `test/docs/presets.test.ts` holds the page to it. */
import { readFileSync, writeFileSync } from 'node:fs';
import { presetNames } from '../src/config/presets.ts';
import { presetOf, type Preset } from '../src/config/speaks.ts';

const page = new URL('../docs/upstreams/apis.md', import.meta.url);
const begin = '<!-- presets: written by scripts/presets-table.ts -->';
const end = '<!-- end of presets -->';

/** The table, a row for each preset. */
export function presetsTable(): string {
  const rows = presetNames.map((name) => {
    const { title, source, counts, missing, speaks } = presetOf(name);
    return `| \`${name}\` | [${title}](${source}) | ${counts} | ${windowsText(speaks)} | ${missing ?? ''} |`;
  });
  return ['| preset | API | counts | stated windows | not covered |', '|---|---|---|---|---|', ...rows].join(
    '\n',
  );
}

function windowsText({ windows = [], maxInFlight, penaltySeconds }: Preset['speaks']): string {
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
