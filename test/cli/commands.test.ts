/** What the command line says of mistakes and of itself. */
import { describe, expect, test } from '@jest/globals';
import { commandNames, commands } from '../../src/cli/commands.ts';
import { ran } from '../support/command.ts';

const said = (line: string) => ran(line.split(' ').filter((word) => word !== ''));

describe('the command line', () => {
  test.each([
    ['', 'Usage: sluice <command>'],
    ['start', 'Unknown command "start"'],
    ['chekc', 'Unknown command "chekc". Did you mean check?'],
    ['toString', 'Unknown command "toString"'],
    ['serve --conf x', "Unknown option '--conf'"],
    ['serve x.yaml', 'Unexpected "x.yaml"'],
    ['serve --config=', '--config is missing'],
    ['serve --config', '--config'],
    ['pause -u a --second 9', "Unknown option '--second'. Did you mean --seconds?"],
    ['pause -u a --seconds 25h', '--seconds is a time of whole seconds from 1 to 86400'],
    ['resume -u a --seconds 9', "Unknown option '--seconds'"],
    ['open', '--upstream is missing.\n\nUsage: sluice open --upstream NAME'],
    ['open -u a --admin b:1', '--admin is a URL'],
    ['init openai', 'Unexpected "openai".'],
    ['init --upstream http://api.example.com', 'For http:// say https://, then write http://'],
    ['init --upstream https://api.example.com/v1', '--upstream: write one of openai'],
    ['init --upstream opanai', 'did you mean openai?'],
    ['keys', '--workspace is missing'],
    ['keys creat --workspace x', 'Did you mean keys create?'],
    ['keys create', '--workspace is missing'],
    ['learn', 'Give one HAR file.'],
    ['demo --port 99999', '--port is a whole number from 0 to 65535'],
    ['demo --port -1', 'sluice demo [--calls N | --serve]'],
    ['demo --calls 9 --serve', '--calls and --serve exclude each other: --serve sends no burst.'],
    ['demo --calls 0', '--calls is a whole number'],
    ['demo --calls many', '--calls is a whole number'],
  ])('explains the usage error in %j', async (line, words) => {
    const { code, out, err } = await said(line);
    expect([code, out, err]).toEqual([2, '', expect.stringContaining(words)]);
    expect(err).toContain('Usage: sluice');
  });

  test.each(['--help', 'serve --help', 'check -h', 'keys create -h', 'keys --help', 'demo --help'])(
    'shows usage for %j',
    async (line) =>
      expect(await said(line)).toMatchObject({ code: 0, out: expect.stringMatching(/^Usage: sluice/) }),
  );

  test('knows its version and lists every command with its purpose', async () => {
    expect((await said('--version')).out).toMatch(/^\d+\.\d+\.\d+$/);
    const { out } = await said('--help');
    for (const name of commandNames) expect(out).toContain(`  ${name} `);
    for (const { purpose } of Object.values(commands)) expect(out).toContain(purpose);
  });
});
