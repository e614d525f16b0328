/** Generated packaging files that need no helm to be compared: the rest is checked by `npm run verify:packaging`. */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { drifted } from '../../scripts/packaging/generated.mjs';
import { chartFiles } from '../../scripts/packaging/chart-files.mjs';
import { schemaText } from '../../scripts/packaging/chart-schema.mjs';
import { readmeText } from '../../scripts/packaging/values-table.mjs';

describe('generated files of the chart', () => {
  test('values.schema.json is what the configuration schema and the chart say', async () => {
    expect(drifted(new Map([['helm/sluice/values.schema.json', await schemaText()]]))).toEqual([]);
  });

  test('the table of values in the README is what values.yaml says', () => {
    expect(readFileSync('helm/sluice/README.md', 'utf8')).toBe(readmeText());
  });

  test('rules and dashboards in the chart are those of grafana/', () => {
    expect(drifted(chartFiles())).toEqual([]);
  });
});
