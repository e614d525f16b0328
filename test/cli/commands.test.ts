/** What the command line accepts, what it says of the rest, and what shells complete. */
import { execFileSync } from 'node:child_process';
import { describe, expect, test } from '@jest/globals';
import { commandNames, readCommand } from '../../src/cli/commands.ts';
import { ran } from '../support/command.ts';

const argvOf = (line: string): string[] => line.split(' ').filter((word) => word !== '');
/** What is said of a line that is no command to run. */
function saidOf(argv: readonly string[], kind: 'help' | 'usage-error'): string {
  const command = readCommand(argv);
  expect(command.kind).toBe(kind);
  return 'text' in command ? command.text : '';
}

describe('the command line', () => {
  const check = { config: 'sluice.yaml', connect: false, against: null };
  const demo = { serve: false, calls: 460, port: null, adminPort: null };
  const control = { upstream: 'a', seconds: null, admin: 'http://127.0.0.1:9090' };
  const pause = { ...control, verb: 'pause' };
  test.each([
    ['serve', 'serve', { config: 'sluice.yaml' }],
    ['serve --config a.yaml', 'serve', { config: 'a.yaml' }],
    ['check -c a.yaml', 'check', { ...check, config: 'a.yaml' }],
    ['check --config=a.yaml', 'check', { ...check, config: 'a.yaml' }],
    ['check --connect', 'check', { ...check, connect: true }],
    ['check --against a.har', 'check', { ...check, against: 'a.har' }],
    ['keys create --workspace acme', 'keys create', { workspace: 'acme', expires: null }],
    ['keys create --expires 2027-01-01 -w a', 'keys create', { workspace: 'a', expires: '2027-01-01' }],
    ['keys list --find ab', 'keys list', { config: 'sluice.yaml', find: 'ab' }],
    ['labels --config a.yaml', 'labels', { config: 'a.yaml' }],
    ['demo', 'demo', demo],
    ['demo --calls 9', 'demo', { ...demo, calls: 9 }],
    ['demo --serve --port 0 --admin-port 9191', 'demo', { ...demo, serve: true, port: 0, adminPort: 9191 }],
    ['learn a.har', 'learn', { file: 'a.har' }],
    ['open -u a', 'open', { ...control, verb: 'open' }],
    ['resume -u a --admin http://b', 'resume', { ...control, verb: 'resume', admin: 'http://b' }],
    ['pause -u a --seconds 90', 'pause', { ...pause, seconds: 90 }],
    ['pause -u a --seconds 90s', 'pause', { ...pause, seconds: 90 }],
    ['pause -u a --seconds 5m', 'pause', { ...pause, seconds: 300 }],
    ['pause -u a --seconds 1.5h', 'pause', { ...pause, seconds: 5400 }],
    ['pause -u a', 'pause', { ...pause, seconds: 86_400 }],
  ])('accepts %j as %s', (line, name, read) => {
    const expected = { kind: 'command', name, read, run: expect.any(Function) };
    expect(readCommand(argvOf(line))).toEqual(expected);
  });

  test.each([
    ['', 'Usage: sluice <command>'],
    ['start', 'Unknown command "start"'],
    ['chekc', 'Unknown command "chekc". Did you mean check?'],
    ['toString', 'Unknown command "toString"'],
    ['serve --conf x', "Unknown option '--conf'"],
    ['serve x.yaml', 'Unexpected "x.yaml"'],
    ['serve --config=', '--config needs a file name'],
    ['serve --config', '--config'],
    ['pause -u a --second 9', "Unknown option '--second'. Did you mean --seconds?"],
    ['pause -u a --seconds 25h', '--seconds is a time above 0'],
    ['resume -u a --seconds 9', "Unknown option '--seconds'"],
    ['open', '--upstream is missing.\n\nUsage: sluice open --upstream NAME'],
    ['open -u a --admin b:1', '--admin is a URL'],
    ['init openai', 'Unexpected "openai". Say --upstream openai.'],
    ['init https://api.example.com', 'Unexpected "https://api.example.com". Say --upstream https://api.'],
    ['init --upstream http://api.example.com', 'For http:// say https://, then write http://'],
    ['init --upstream https://api.example.com/v1', '--upstream is one of openai'],
    ['init --upstream opanai', 'Did you mean openai?'],
    ['keys', 'The two things to do with keys are: create and list.\n'],
    ['keys creat', 'The two things to do with keys are: create and list. Did you mean create?'],
    ['keys delete --workspace x', 'create'],
    ['keys create', '--workspace is missing'],
    ['completion zhs', 'Give one of bash, zsh, fish. Did you mean zsh?'],
    ['completion ksh', 'Give one of bash, zsh, fish.'],
    ['demo --port 99999', 'A port is a whole number'],
    ['demo --port -1', 'sluice demo [--calls N | --serve]'],
    ['demo --calls 9 --serve', '--calls and --serve exclude each other: --serve sends no burst.'],
    ['demo --calls 0', '--calls is a whole number'],
    ['demo --calls many', '--calls is a whole number'],
  ])('explains the usage error in %j', (line, words) => {
    const text = saidOf(argvOf(line), 'usage-error');
    expect(text).toContain(words);
    expect(text).toContain('Usage: sluice');
  });

  test.each(['--help', 'serve --help', 'check -h', 'keys -h', 'demo --help'])('shows usage for %j', (line) =>
    expect(saidOf(argvOf(line), 'help')).toMatch(/^Usage: sluice/),
  );

  test('knows its version and lists every command with its purpose', () => {
    expect(readCommand(['--version'])).toEqual({ kind: 'version' });
    const overview = saidOf(['--help'], 'help');
    for (const name of commandNames) expect(overview).toMatch(new RegExp(`^  ${name} +[a-z]`, 'm'));
  });
});

describe('completion', () => {
  const scriptFor = async (shell: string): Promise<string> => (await ran(['completion', shell])).out;

  /** What a real bash offers for the last of these words. */
  async function offered(...words: readonly string[]): Promise<readonly string[]> {
    const typed = ['sluice', ...words].map((word) => `'${word}'`).join(' ');
    const script = `${await scriptFor('bash')}\nCOMP_WORDS=(${typed}); COMP_CWORD=${words.length}; _sluice; printf '%s\\n' "\${COMPREPLY[@]}"`;
    return execFileSync('bash', ['-c', script], { encoding: 'utf8' }).trim().split('\n');
  }

  test('by bash offers commands, their verbs and their options', async () => {
    const all = await offered('');
    for (const name of commandNames) expect(all).toContain(name.split(' ')[0]);
    expect(await offered('pa')).toEqual(['pause']);
    expect(await offered('keys', 'cr')).toEqual(['create']);
    expect(await offered('pause', '--se')).toEqual(['--seconds']);
  });

  test('by zsh and fish has the same words', async () => {
    const [zsh, fish] = [await scriptFor('zsh'), await scriptFor('fish')];
    expect(zsh).toContain('bashcompinit');
    for (const name of commandNames) {
      const [first = '', verb = first] = name.split(' ');
      expect(zsh).toContain(first);
      expect(fish).toContain(`-a ${verb} `);
    }
    expect(fish).toContain('-l seconds');
  });
});
