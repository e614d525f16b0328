/** Bytes of HTTP that are short to read, and what most raw upstreams do with them. */
import type { Script } from './raw-upstream.ts';

/** Bytes in one line: `|` stands for CRLF. */
export const bytes = (text: string): string => text.replaceAll('|', '\r\n');

export const ok = bytes('HTTP/1.1 200 OK|Content-Length: 2||ok');

/** Responds to the first request of each connection, and says nothing more. */
export const saying =
  (response: string): Script =>
  async (connection) => {
    await connection.requests(1);
    connection.send(response);
  };

/** Responds to the first request of each connection, whose path may choose the response, and ends or resets the connection. */
export const ending =
  (response: string | ((path: string) => string), how: 'end' | 'reset' = 'end'): Script =>
  async (connection) => {
    const path = /^\w+ \/(\S*)/.exec(await connection.requests(1))?.[1] ?? '';
    const { socket } = connection;
    socket.write(typeof response === 'string' ? response : response(path), 'latin1', () => {
      if (how === 'end') socket.end();
      // At once it would overtake bytes that the other side has not read yet.
      else setTimeout(() => socket.resetAndDestroy(), 5);
    });
  };
