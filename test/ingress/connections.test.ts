import { EventEmitter } from 'node:events';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { describe, expect, test } from '@jest/globals';
import { Connections, OpenCall } from '../../src/ingress/connections.ts';

class FakeSocket extends EventEmitter {
  destroyed = false;
  writable = true;
  ended = 0;
  destroySoon(): void {
    this.ended += 1;
  }
}

/** A connection with `count` calls open side by side. */
function opened(count: number) {
  const connections = new Connections({ maxConnections: 100, maxCallsPerConnection: 3, maxOpenCalls: 100 });
  const socket = new FakeSocket();
  const kinds: string[] = [];
  const calls: OpenCall[] = [];
  for (let at = 0; at < count; at += 1) {
    const request = { socket: socket as unknown as Socket } as IncomingMessage;
    const made = Object.assign(new EventEmitter(), { writableEnded: false, req: request });
    const response = made as unknown as ServerResponse;
    const entry = connections.enter(request, response);
    kinds.push(entry.kind);
    if (entry.kind === 'ignored') continue;
    const call = new OpenCall(entry.connection, response, `call ${at}`);
    connections.open(call);
    calls.push(call);
  }
  const aborted = (): boolean[] => calls.map(({ gone }) => gone.aborted);
  return { connections, socket, kinds, calls, aborted };
}

describe('the calls of one connection', () => {
  test('are counted once, in any order of leaving, and not below zero', () => {
    const { connections, calls } = opened(3);
    const [a, b, c] = calls as [OpenCall, OpenCall, OpenCall];
    const counts: number[] = [];
    for (const call of [b, b, a, c, c, a]) {
      connections.leave(call);
      counts.push(connections.openCalls);
    }
    expect(counts).toEqual([2, 2, 1, 0, 0, 0]);
    expect(a.connection.calls).toHaveLength(0);
  });

  test('over the bound are refused, and there is room again when one has ended', () => {
    const { connections, kinds, calls, socket } = opened(4);
    expect(kinds).toEqual(['open', 'open', 'open', 'crowded']);
    for (const call of calls.slice(2)) connections.leave(call);
    const request = { socket: socket as unknown as Socket } as IncomingMessage;
    const response = new EventEmitter() as unknown as ServerResponse;
    expect(connections.enter(request, response).kind).toBe('open');
  });

  test.each(['end', 'close'])('are all aborted at its %s, also when each ends at once', (event) => {
    const { connections, socket, calls, aborted } = opened(3);
    for (const call of calls) call.gone.addEventListener('abort', () => connections.leave(call));
    socket.emit(event);
    expect(aborted()).toEqual([true, true, true]);
    expect(connections.openCalls).toBe(0);
  });

  test('with a whole response are not aborted when the client half-closes', () => {
    const { socket, calls, aborted } = opened(2);
    Object.assign(calls[0]?.response ?? {}, { writableEnded: true });
    socket.emit('end');
    expect(aborted()).toEqual([false, true]);
  });

  test('end the connection with the last of them, once that was announced', () => {
    const { connections, socket, calls } = opened(2);
    const [a, b] = calls as [OpenCall, OpenCall];
    expect(a.connection.endsWith(a, true)).toBe(false);
    expect(b.connection.endsWith(b, true)).toBe(true);
    connections.leave(b);
    expect(socket.ended).toBe(0);
    connections.leave(a);
    expect(socket.ended).toBe(1);
  });
});
