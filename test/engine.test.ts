import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';

const source = readFileSync('src/engine.ts', 'utf8');
const flags = [...source.matchAll(/setFlagsFromString\('([^']+)'\)/g)].map(([, flag]) => flag ?? '');

describe('what the process asks of V8', () => {
  test('is known to this V8', () => {
    expect(flags.length).toBeGreaterThan(0);
    const { status, stderr } = spawnSync(process.execPath, [...flags, '--eval', '0'], { encoding: 'utf8' });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  });

  test('is asked for before any other part is loaded', () => {
    const loaded = [...readFileSync('src/main.ts', 'utf8').matchAll(/import\('([^']+)'\)/g)];
    expect(loaded.map(([, path]) => path)).toEqual(['./engine.ts', './cli/run.ts']);
  });
});
