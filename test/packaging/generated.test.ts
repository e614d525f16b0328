/** Generated packaging files that need no helm to be compared: the rest is checked by `npm run verify:packaging`. */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { drifted } from '../../scripts/packaging/generated.mjs';
import { chartFiles } from '../../scripts/packaging/chart-files.mjs';
import { schemaText } from '../../scripts/packaging/chart-schema.mjs';
import { readmeText } from '../../scripts/packaging/values-table.mjs';

describe('the generated files of the chart', () => {
  test('have in values.schema.json what the configuration schema and the chart state', async () => {
    expect(drifted(new Map([['helm/sluice/values.schema.json', await schemaText()]]))).toEqual([]);
  });

  test('have in the table of the README what values.yaml states', () => {
    expect(readFileSync('helm/sluice/README.md', 'utf8')).toBe(readmeText());
  });

  test('have the rules and dashboards of grafana/', () => {
    expect(drifted(chartFiles())).toEqual([]);
  });
});
