/** Writes the generated pages of docs/reference: `node scripts/write-reference.ts`. `test/docs/generated.test.ts` holds them to it. */
import { writeFileSync } from 'node:fs';
import { cliPage } from './reference/cli.ts';
import { configurationPage } from './reference/configuration.ts';
import { metricsPage } from './reference/metrics.ts';
import { presetsPage } from './reference/presets.ts';

/** Text of each page, by its path in the repository. */
export const referencePages = (): Readonly<Record<string, string>> => ({
  'docs/reference/cli.md': cliPage(),
  'docs/reference/configuration.md': configurationPage(),
  'docs/reference/metrics.md': metricsPage(),
  'docs/reference/presets.md': presetsPage(),
});

if (import.meta.main)
  for (const [path, text] of Object.entries(referencePages()))
    writeFileSync(new URL(`../${path}`, import.meta.url), text);
