import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { describe, expect, test } from '@jest/globals';

const source = readFileSync('src/engine.ts', 'utf8');
const flags = [...source.matchAll(/setFlagsFromString\('([^']+)'\)/g)].map(([, flag]) => flag ?? '');

/** Flags that V8 takes at its start only. */
const atStart = ['--max-semi-space-size=16'];

describe('what the process asks of V8', () => {
  test('is known to this V8', () => {
    expect(flags.length).toBeGreaterThan(0);
    const all = [...flags, ...atStart, '--eval', '0'];
    const { status, stderr } = spawnSync(process.execPath, all, { encoding: 'utf8' });
    expect({ status, stderr }).toEqual({ status: 0, stderr: '' });
  });

  test('is asked for before any other part is loaded', () => {
    const loaded = [...readFileSync('src/main.ts', 'utf8').matchAll(/import\('([^']+)'\)/g)];
    expect(loaded.map(([, path]) => path)).toEqual(['./engine.ts', './cli/run.ts']);
  });

  test('is the same for every way to start it', () => {
    const { scripts } = JSON.parse(readFileSync('package.json', 'utf8')) as {
      scripts: Record<string, string>;
    };
    const starts = Object.values(scripts).filter((script) => script.includes('bin/sluice.mjs'));
    expect(starts).toHaveLength(3);
    for (const script of starts) expect(script).toContain(`node ${atStart.join(' ')} bin/sluice.mjs`);
    const entry = /^ENTRYPOINT (.*)$/m.exec(readFileSync('Dockerfile', 'utf8'))?.[1] ?? '[]';
    expect(JSON.parse(entry)).toEqual(['node', ...atStart]);
  });
});
