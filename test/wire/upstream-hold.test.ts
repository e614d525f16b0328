import { describe, expect, test } from '@jest/globals';
import { answering } from '../support/raw-upstream.ts';
import { failure, sendingWorlds, text, type SendingWorld } from '../support/sending.ts';

const ok = 'HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok';
const world = sendingWorlds();

/** A hold and its release. */
function gate(): { readonly hold: Promise<void>; readonly release: () => void } {
  let release = (): void => {};
  const hold = new Promise<void>((resolve) => (release = resolve));
  return { hold, release };
}
const pulse = (): Promise<void> => new Promise((resolve) => setTimeout(resolve, 20));
const received = ({ upstream }: SendingWorld): string =>
  upstream.connections.map((connection) => connection.received()).join('');

describe('a request that waits for its place in the writing order', () => {
  test.each(['a new', 'a kept'])('is connected but not yet written on %s connection', async (kind) => {
    const opened = await world(answering(ok));
    if (kind === 'a kept') await text((await opened.send()).body);
    const { hold, release } = gate();
    let sent = 0;
    const sending = opened.send({ hold, pathAndQuery: '/held', onSent: () => sent++ });
    while (opened.upstream.connections.length === 0) await pulse();
    expect(opened.upstream.connections).toHaveLength(1);
    expect([sent, received(opened).includes('/held')]).toEqual([0, false]);
    release();
    expect(await text((await sending).body)).toBe('ok');
    expect(sent).toBe(1);
  });

  test('is never written when it is aborted', async () => {
    const opened = await world(answering(ok));
    const { hold, release } = gate();
    const aborter = new AbortController();
    const sending = opened.send({ hold, signal: aborter.signal });
    await pulse();
    aborter.abort();
    expect(await failure(sending)).toMatchObject({ kind: 'aborted', neverSent: true });
    release();
    await opened.upstream.allClosed();
    expect(received(opened)).toBe('');
  });

  test('is never sent when its kept connection closes meanwhile', async () => {
    const opened = await world(answering(ok));
    await text((await opened.send()).body);
    const { hold, release } = gate();
    const sending = opened.send({ hold });
    await pulse();
    opened.upstream.connections[0]?.socket.end();
    expect(await failure(sending)).toMatchObject({
      kind: 'unreachable',
      neverSent: true,
      reusedSocket: true,
    });
    release();
    expect(received(opened).match(/GET/g)).toHaveLength(1);
  });

  test('takes no response that was sent on its connection before it was written', async () => {
    const opened = await world(answering(ok));
    await text((await opened.send()).body);
    const { hold, release } = gate();
    const sending = opened.send({ hold });
    await pulse();
    opened.upstream.connections[0]?.send('HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\npoison');
    expect(await failure(sending)).toMatchObject({ kind: 'unreachable', neverSent: true });
    release();
    await opened.upstream.allClosed();
  });
});

describe('requests that become ready in one turn of the event loop', () => {
  test('are written one right after the other at its end, in order', async () => {
    const opened = await world(answering(ok));
    await Promise.all([1, 2, 3].map(async () => text((await opened.send()).body)));
    const events: string[] = [];
    const responses = ['a', 'b', 'c'].map((name) =>
      opened.send({ onReady: () => events.push(`${name} ready`), onSent: () => events.push(`${name} sent`) }),
    );
    for (const response of responses) expect(await text((await response).body)).toBe('ok');
    expect(events).toEqual(['a ready', 'b ready', 'c ready', 'a sent', 'b sent', 'c sent']);
  });

  test('are never written when their client leaves before its end', async () => {
    const opened = await world(answering(ok));
    await text((await opened.send()).body);
    const aborter = new AbortController();
    const sending = opened.send({ signal: aborter.signal, onReady: () => aborter.abort() });
    expect(await failure(sending)).toMatchObject({ kind: 'aborted', neverSent: true, reusedSocket: true });
    await opened.upstream.allClosed();
    expect(received(opened).match(/GET/g)).toHaveLength(1);
  });
});
