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
  const bounds: (string | null)[] = [];
  const calls: OpenCall[] = [];
  for (let at = 0; at < count; at += 1) {
    const request = { socket: socket as unknown as Socket } as IncomingMessage;
    const made = Object.assign(new EventEmitter(), { writableEnded: false, req: request });
    const response = made as unknown as ServerResponse;
    const connection = connections.enter(response);
    if (connection === null) continue;
    bounds.push(connections.crowded(connection));
    const call = new OpenCall(connection, response, `call ${at}`);
    connections.open(call);
    calls.push(call);
  }
  const aborted = (): boolean[] => calls.map(({ gone }) => gone.aborted);
  return { connections, socket, bounds, calls, aborted };
}

describe('the calls of one connection', () => {
  test('leave it in any order', () => {
    const { connections, calls } = opened(3);
    const [a, b, c] = calls as [OpenCall, OpenCall, OpenCall];
    connections.leave(b);
    expect(a.connection.calls).toEqual([a, c]);
    connections.leave(c);
    connections.leave(a);
    expect(a.connection.calls).toHaveLength(0);
  });

  test('over the bound are refused, and there is room again when one has ended', () => {
    const { connections, bounds, calls } = opened(4);
    expect(bounds).toEqual([null, null, null, 'connection_calls']);
    const [call] = calls as [OpenCall];
    for (const ended of calls.slice(2)) connections.leave(ended);
    expect(connections.crowded(call.connection)).toBeNull();
  });

  test.each(['end', 'close'])('are all aborted at its %s, also when each ends at once', (event) => {
    const { connections, socket, calls, aborted } = opened(3);
    for (const call of calls) call.gone.addEventListener('abort', () => connections.leave(call));
    socket.emit(event);
    expect(aborted()).toEqual([true, true, true]);
    expect(calls[0]?.connection.calls).toHaveLength(0);
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
