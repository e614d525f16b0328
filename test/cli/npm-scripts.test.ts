import { afterEach, describe, expect, test } from '@jest/globals';
import { EventEmitter } from 'node:events';
import { setImmediate } from 'node:timers/promises';
import { endSignals } from '../../src/cli/end-signal.ts';
import { endAll, found, start } from './started.ts';

afterEach(endAll);

test('npm start ends everything and frees the ports on a signal to the npm process, or to its group as Ctrl-C sends it', async () => {
  const ended = async (name: NodeJS.Signals, to: 'process' | 'group'): Promise<void> => {
    const { saying, signal, ended: end } = start('npm', ['start', '--', '--port', '0', '--admin-port', '0']);
    const text = await saying('Ctrl-C ends this');
    const pages = [found(/data port +(\S+)/, text), found(/live page +(\S+)/, text)];
    for (const page of pages) expect((await fetch(page)).status).toBeLessThan(500);
    signal(name, to);
    await end;
    for (const page of pages) await expect(fetch(page)).rejects.toThrow();
  };
  await Promise.all([ended('SIGTERM', 'process'), ended('SIGTERM', 'group'), ended('SIGINT', 'group')]);
});

describe('signals to end', () => {
  test('are distinguished by time: an echo of the first signal is not a second one', async () => {
    let now = 1_000;
    const process = new EventEmitter();
    const { first, second } = endSignals({ monotonic: () => now }, process);
    const ended: string[] = [];
    void first.then(() => ended.push('first'));
    void second.then(() => ended.push('second'));
    process.emit('SIGINT');
    now += 499;
    process.emit('SIGINT');
    process.emit('SIGTERM');
    await setImmediate();
    expect(ended).toEqual(['first']);
    now += 1;
    process.emit('SIGTERM');
    await setImmediate();
    expect(ended).toEqual(['first', 'second']);
  });
});
