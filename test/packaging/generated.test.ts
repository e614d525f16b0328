/** Generated packaging files that need no helm to be compared: the rest is checked by `npm run verify:packaging`. */
import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { isMap, parseDocument, type YAMLMap } from 'yaml';
import { drifted } from '../../scripts/packaging/generated.mjs';
import { chartFiles } from '../../scripts/packaging/chart-files.mjs';
import { schemaText } from '../../scripts/packaging/chart-schema.mjs';

describe('the generated files of the chart', () => {
  test('have in values.schema.json what the configuration schema and the chart state', async () => {
    expect(drifted(new Map([['helm/sluice/values.schema.json', await schemaText()]]))).toEqual([]);
  });

  test('have the rules and dashboards of grafana/', () => {
    expect(drifted(chartFiles())).toEqual([]);
  });
});

/** Paths of the values that have no description: neither they nor, where they are maps, their keys. */
function undescribed(map: YAMLMap, path = ''): string[] {
  return map.items.flatMap(({ key, value }, index) => {
    const { value: name, commentBefore } = key as { value: string; commentBefore?: string | null };
    // The parser hands the comment above a map's first key to the map itself.
    const comment = commentBefore ?? (index === 0 ? map.commentBefore : null) ?? '';
    if (/^ -- /m.test(comment)) return [];
    return isMap(value) ? undescribed(value, `${path}${name}.`) : [`${path}${name}`];
  });
}

test('every value of the chart is described in values.yaml', () => {
  const { contents } = parseDocument(readFileSync('helm/sluice/values.yaml', 'utf8'));
  expect(undescribed(contents as YAMLMap)).toEqual([]);
});
