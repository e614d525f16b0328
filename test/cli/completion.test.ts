/** The scripts for shells, run by a real bash. */
import { execFileSync } from 'node:child_process';
import { expect, test } from '@jest/globals';
import { commandNames, readCommand } from '../../src/cli/commands.ts';
import { begun } from '../support/command.ts';

/** What `sluice completion SHELL` prints. */
async function scriptFor(shell: string): Promise<string> {
  const { out, ended } = begun(['completion', shell]);
  expect(await ended).toBe(0);
  return out.join('\n');
}

/** What bash offers for the last of these words. */
async function offered(...words: readonly string[]): Promise<readonly string[]> {
  const typed = ['sluice', ...words].map((word) => `'${word}'`).join(' ');
  const script = `${await scriptFor('bash')}\nCOMP_WORDS=(${typed}); COMP_CWORD=${words.length}; _sluice; printf '%s\\n' "\${COMPREPLY[@]}"`;
  return execFileSync('bash', ['-c', script], { encoding: 'utf8' }).trim().split('\n');
}

test('bash completes commands, their verbs and their options', async () => {
  const all = await offered('');
  for (const name of commandNames) expect(all).toContain(name.split(' ')[0]);
  expect(await offered('pa')).toEqual(['pause']);
  expect(await offered('keys', 'cr')).toEqual(['create']);
  expect(await offered('pause', '--se')).toEqual(['--seconds']);
});

test('zsh and fish get the same words', async () => {
  const [zsh, fish] = [await scriptFor('zsh'), await scriptFor('fish')];
  expect(zsh).toContain('bashcompinit');
  for (const name of commandNames) {
    const [first = '', verb = first] = name.split(' ');
    expect(zsh).toContain(first);
    expect(fish).toContain(`-a ${verb} `);
  }
  expect(fish).toContain('-l seconds');
});

test('a shell that is not known is refused with those that are', () => {
  expect(readCommand(['completion', 'ksh'])).toMatchObject({
    kind: 'usage-error',
    text: expect.stringContaining('Give one of bash, zsh, fish.'),
  });
});
