import { readFileSync } from 'node:fs';
import { expect, test } from '@jest/globals';
import { referencePages } from '../../scripts/write-reference.ts';

test.each(Object.entries(referencePages()))('%s is what scripts/write-reference.ts writes', (path, text) => {
  expect(readFileSync(new URL(`../../${path}`, import.meta.url), 'utf8')).toBe(text);
});
