import { describe, expect, test } from '@jest/globals';
import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { parse } from 'yaml';
import { configJsonSchema } from '../../scripts/json-schema.ts';

const published: unknown = JSON.parse(
  readFileSync(new URL('../../schema/sluice.schema.json', import.meta.url), 'utf8'),
);

describe('the published JSON Schema', () => {
  test('is what the configuration schema generates (node scripts/write-schema.ts writes it)', () => {
    expect(published).toEqual(configJsonSchema());
  });

  test('refuses unknown keys and wrong limits, and accepts references for numbers', () => {
    const schema = z.fromJSONSchema(configJsonSchema());
    const takes = (server: string): boolean =>
      schema.safeParse(
        parse(`{ server: ${server}, upstreams: { a: { origins: [x] } }, workspaces: { w: { keys: [x] } } }`),
      ).success;
    expect(takes('{ port: 80 }')).toBe(true);
    expect(takes('{ port: "${PORT}" }')).toBe(true);
    expect(takes('{ port: "80" }')).toBe(false);
    expect(takes('{ port: -1 }')).toBe(false);
    expect(takes('{ prot: 80 }')).toBe(false);
  });

  test('describes every key that has no section of its own', () => {
    const undescribed: string[] = [];
    const walk = (node: unknown, path: string): void => {
      if (typeof node !== 'object' || node === null) return;
      for (const [key, value] of Object.entries(node)) {
        if (key === 'properties') {
          for (const [name, property] of Object.entries(value)) {
            const isDescribed =
              typeof property === 'object' && property !== null && 'description' in property;
            const isSection = typeof property === 'object' && property !== null && 'properties' in property;
            if (!isDescribed && !isSection) undescribed.push(`${path}.${name}`);
          }
        }
        walk(value, `${path}.${key}`);
      }
    };
    walk(published, '');
    expect(undescribed).toEqual([]);
  });
});
