import { describe, expect, test } from '@jest/globals';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { CliIo } from '../../src/cli/io.ts';
import { createKey } from '../../src/cli/keys.ts';
import { runKeysList, runLabels } from '../../src/cli/keys.ts';
import { workspaceLabel } from '../../src/identity.ts';

const labelKey = 'a label key for tests only';
const [first, second] = [createKey(), createKey()];

async function printed(run: (config: string, io: CliIo) => Promise<number>, privacy = labelKey) {
  const folder = mkdtempSync(join(tmpdir(), 'sluice-labels-'));
  const config = join(folder, 'sluice.yaml');
  writeFileSync(
    config,
    `${privacy === '' ? '' : `privacy: { labelKey: "${privacy}" }`}
upstreams: { up: { origins: ["https://up.example"], credential: "Bearer canary" } }
workspaces:
  acme: { keys: [{ id: "${first.id}", hash: "${first.hash}" }], requestsPerMinute: none }
  "two words": { keys: ["${second.hash}"], requestsPerDay: { up: none } }
  nobody: { keys: [] }
`,
  );
  const written = { out: '', err: '' };
  const io: CliIo = {
    out: (text) => (written.out += `${text}\n`),
    err: (text) => (written.err += `${text}\n`),
    env: {},
    terminals: { out: null, err: false },
    readerGone: new AbortController().signal,
    clock: { now: () => Date.UTC(2026, 5, 1) },
  };
  const code = await run(config, io);
  rmSync(folder, { recursive: true });
  return { code, ...written };
}

describe('sluice labels', () => {
  test('shows each workspace with its label and key ids, and no secret', async () => {
    const { code, out } = await printed((config, io) => runLabels({ config }, io));
    expect(code).toBe(0);
    const lines = out.trimEnd().split('\n');
    expect(lines[1]).toMatch(new RegExp(`^${workspaceLabel(labelKey, 'acme')} +"acme" +${first.id}$`));
    expect(lines[2]).toContain(`"two words"  ${second.hash.slice(0, 19)}…`);
    expect(lines[3]).toMatch(/"nobody" +no key$/);
    expect(out).not.toMatch(/canary|label key/);
  });

  test('says that labels of no key do not last', async () => {
    const { code, err } = await printed((config, io) => runLabels({ config }, io), '');
    expect([code, err.includes('privacy.labelKey is not set')]).toEqual([1, true]);
  });
});

describe('sluice keys list', () => {
  test.each([
    ['a hash', second.hash, 'two words'],
    ['the beginning of a hash', second.hash.slice(7, 17), 'two words'],
    ['an id', first.id, 'acme'],
  ])('finds the workspace of %s', async (_what, find, workspace) => {
    const { code, out } = await printed((config, io) => runKeysList({ config, find }, io));
    expect([code, out.trimEnd().split('\n').length]).toEqual([0, 2]);
    expect(out).toContain(`"${workspace}"`);
  });

  test('ends with 1 where no key or label begins like the given one', async () => {
    const { code } = await printed((config, io) => runKeysList({ config, find: 'sha256:00ff00' }, io));
    expect(code).toBe(1);
  });
});
