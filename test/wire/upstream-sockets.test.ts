/** Sockets are few, and shared: between workspaces, not between calls. */
import { setImmediate } from 'node:timers/promises';
import { afterEach, describe, expect, test } from '@jest/globals';
import { SocketPermits, type SocketPermit } from '../../src/dispatch/socket-permits.ts';
import { startWorld, type World } from '../journey/world.ts';
import { rawUpstream, type RawUpstream } from '../support/raw-upstream.ts';
import { failure, patient, sendingWorlds } from '../support/sending.ts';

const origin = 'http://upstream.test';

/** Permits, and who began in which order. */
function pool(maxSockets: number) {
  const permits = new SocketPermits(maxSockets);
  const began: string[] = [];
  const open = new Map<string, SocketPermit>();
  return {
    began,
    enter(workspace: string, count = 1, weight = 1): void {
      for (let n = 0; n < count; n += 1) {
        const name = `${workspace}${[...open.keys()].filter((key) => key.startsWith(workspace)).length}`;
        open.set(
          name,
          permits.enter(origin, { id: workspace, weight }, () => began.push(name)),
        );
      }
    },
    end: (name: string): void => open.get(name)?.end(),
    /** Calls that began since last asked. */
    next: (): string[] => began.splice(0),
  };
}

describe('the sockets of an upstream', () => {
  test('are given in the order of requests while some are free', () => {
    const { enter, next } = pool(3);
    enter('a', 2);
    enter('b');
    expect(next()).toEqual(['a0', 'a1', 'b0']);
  });

  test('are given first to the workspace that has the fewest', () => {
    const { enter, end, next } = pool(4);
    enter('busy', 100);
    enter('small', 3);
    expect(next()).toEqual(['busy0', 'busy1', 'busy2', 'busy3']);
    for (const name of ['busy0', 'busy1', 'busy2', 'small0']) end(name);
    expect(next()).toEqual(['small0', 'small1', 'busy4', 'small2']);
  });

  test('are given in rotation when there is only one', () => {
    const { enter, end, next } = pool(1);
    enter('a', 3);
    enter('b', 3);
    for (const name of ['a0', 'b0', 'a1', 'b1', 'a2']) end(name);
    expect(next()).toEqual(['a0', 'b0', 'a1', 'b1', 'a2', 'b2']);
  });

  test('are given by weight', () => {
    const { enter, end, next } = pool(8);
    enter('first', 8);
    enter('light', 20, 1);
    enter('heavy', 20, 3);
    next();
    for (let n = 0; n < 8; n += 1) end(`first${n}`);
    expect(next().filter((name) => name.startsWith('heavy'))).toHaveLength(6);
  });

  test('leave a few for workspaces that have none', () => {
    const { enter, next } = pool(32);
    enter('busy', 100);
    expect(next()).toHaveLength(30);
    enter('small', 2);
    expect(next()).toEqual(['small0']);
  });

  test('are not given to a call that waits no longer, and are freed once by a call that ends twice', () => {
    const { enter, end, next } = pool(1);
    enter('a', 4);
    end('a1');
    end('a1');
    end('a0');
    end('a0');
    expect(next()).toEqual(['a0', 'a2']);
    end('a2');
    expect(next()).toEqual(['a3']);
  });

  test('are never more than allowed, and no waiting call is forgotten, whatever the order of ends', () => {
    const permits = new SocketPermits(20);
    const entered: { readonly permit: SocketPermit; began: boolean; over: boolean }[] = [];
    const going = (): number => entered.filter(({ began, over }) => began && !over).length;
    let seed = 7;
    const below = (n: number): number => (seed = (seed * 1_103_515_245 + 12_345) % 2_147_483_648) % n;
    for (let n = 0; n < 3_000; n += 1) {
      const one = entered[below(Math.max(1, entered.length))];
      if (one !== undefined && below(2) === 0) {
        one.over = true;
        one.permit.end();
      } else {
        const call = { permit: { end: () => {} }, began: false, over: false };
        const share = { id: `w${below(5)}`, weight: 1 + below(3) };
        call.permit = permits.enter(origin, share, () => (call.began = true));
        entered.push(call);
      }
      expect(going()).toBeLessThanOrEqual(20);
    }
    for (let left = entered.find(({ began, over }) => began && !over); left !== undefined;) {
      left.over = true;
      left.permit.end();
      left = entered.find(({ began, over }) => began && !over);
    }
    expect(entered.filter(({ began, over }) => !began && !over)).toEqual([]);
  });
});

describe('a call that waits for a socket', () => {
  const world = sendingWorlds();

  test('fails at the connect limit or with its client, and the one behind it is sent', async () => {
    const { send, upstream } = await world(async (connection) => {
      await connection.requests(1);
    });
    const permits = new SocketPermits(1);
    const line = (start: () => void): SocketPermit =>
      permits.enter(upstream.origin, { id: 'w', weight: 1 }, start);
    const [first, second] = [new AbortController(), new AbortController()];
    const paths = (): string[] =>
      upstream.connections.flatMap((connection) => /(?<=GET )\S+/.exec(connection.received()) ?? []);
    const sent = (count: number): Promise<void> =>
      new Promise((resolve) => {
        const check = (): void => (paths().length >= count ? resolve() : void setImmediate().then(check));
        check();
      });
    const one = failure(send({ line, pathAndQuery: '/1', signal: first.signal }));
    const two = failure(send({ line, pathAndQuery: '/2', signal: second.signal }));
    const late = failure(send({ line, pathAndQuery: '/3', timeouts: { ...patient, connectMs: 1 } }));
    const last = failure(send({ line, pathAndQuery: '/4' }));
    expect(await late).toMatchObject({ kind: 'timeout', phase: 'connect', neverSent: true });
    await sent(1);
    second.abort();
    expect(await two).toMatchObject({ kind: 'aborted', neverSent: true });
    first.abort();
    await one;
    await sent(2);
    expect(paths()).toEqual(['/1', '/4']);
    for (const connection of upstream.connections) connection.socket.destroy();
    await last;
  });
});

describe('the sockets of a whole gateway', () => {
  let world: World;
  let upstream: RawUpstream;
  afterEach(async () => {
    await world.close();
    await upstream.close();
  });

  test('let one call pass a hundred of another workspace', async () => {
    const paths: string[] = [];
    upstream = await rawUpstream(async (connection) => {
      for (let count = 1; !connection.socket.destroyed; count += 1) {
        await connection.requests(count);
        paths.push(
          connection
            .received()
            .match(/(?<=GET )\S+/g)
            ?.at(-1) ?? '',
        );
        // Nobody is answered before all have come.
        while (waiting() < 101) await setImmediate();
        connection.send('HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok');
      }
    });
    let entered = 0;
    const waiting = (): number => entered;
    world = await startWorld({
      workspaces: { busy: '', small: '' },
      upstreams: `  plain:\n    kind: generic\n    origins: ["${upstream.origin}"]\n    allowPrivateAddresses: true\n    credential: Bearer x\n    maxSockets: 1\n`,
    });
    const calls = Array.from({ length: 100 }, (_, n) =>
      world.call(`/via/plain/busy${n}`, { workspace: 'busy' }),
    );
    while ((await inFlight()) < 100) await setImmediate();
    calls.push(world.call('/via/plain/small', { workspace: 'small' }));
    while ((await inFlight()) < 101) await setImmediate();
    entered = 101;
    const replies = await Promise.all(calls);
    expect(replies.every(({ status }) => status === 200)).toBe(true);
    expect(paths.indexOf('/small')).toBeLessThanOrEqual(1);
  });

  const inFlight = async (): Promise<number> => {
    const page = await (await fetch(`${world.gateway.adminUrl}/metrics`)).text();
    return Number(/^sluice_in_flight\{upstream="plain"\} (\d+)/m.exec(page)?.[1] ?? 0);
  };
});
