import { once } from 'node:events';
import { createServer, type Server } from 'node:http';
import { connect, type AddressInfo, type Socket } from 'node:net';
import { afterEach, describe, expect, test } from '@jest/globals';
import { AcceptQueues } from '../../src/ingress/accept-queues.ts';

const open: { readonly queues: AcceptQueues; readonly server: Server }[] = [];
const clients: Socket[] = [];

async function listening(platform?: NodeJS.Platform, port = 0) {
  const server = createServer((_request, response) => void response.end('here'));
  const socketOptions = { keepAlive: true, noDelay: true };
  const queues = new AcceptQueues({ server, socketOptions, ...(platform === undefined ? {} : { platform }) });
  open.push({ queues, server });
  return { server, queues, address: await queues.listen(port, '127.0.0.1') };
}

/** Connects so often in one turn of the event loop; the system answers for the server, which takes them later. */
function burst(count: number, { port }: AddressInfo): Socket[] {
  const made = Array.from({ length: count }, () => connect(port, '127.0.0.1').on('error', () => {}));
  clients.push(...made);
  return made;
}

/** Turns of the event loop in which the server took connections, until it has `count`. */
async function turnsToTake(count: number, server: Server): Promise<number> {
  let taken = 0;
  let takenInTurn = 0;
  let turns = 0;
  server.on('connection', () => {
    taken += 1;
    takenInTurn += 1;
  });
  while (taken < count) {
    await new Promise((resolve) => setImmediate(resolve));
    if (takenInTurn > 0) turns += 1;
    takenInTurn = 0;
  }
  return turns;
}

afterEach(() => {
  for (const client of clients.splice(0)) client.destroy();
  for (const { queues, server } of open.splice(0)) {
    queues.close();
    server.close();
    server.closeAllConnections();
  }
});

const onLinux = process.platform === 'linux' ? test : test.skip;

describe('connections that come at once', () => {
  onLinux('are taken in far fewer turns of the event loop than there are (shared ports: Linux)', async () => {
    const { server, address } = await listening();
    burst(48, address);
    expect(await turnsToTake(48, server)).toBeLessThanOrEqual(24);
  });

  test('are taken one by one where the system does not spread them', async () => {
    const { server, address } = await listening('darwin');
    burst(12, address);
    expect(await turnsToTake(12, server)).toBe(12);
  });

  test('are all answered, whichever socket they came to', async () => {
    const { address } = await listening();
    const answers = burst(24, address).map(async (client) => {
      client.end('GET / HTTP/1.1\r\nhost: here\r\nconnection: close\r\n\r\n');
      const [first] = (await once(client, 'data')) as [Buffer];
      return first.toString().split('\r\n')[0];
    });
    expect(new Set(await Promise.all(answers))).toEqual(new Set(['HTTP/1.1 200 OK']));
  });
});

describe('the address', () => {
  test('is refused when another server listens on it, although both could share it', async () => {
    const { address } = await listening();
    await expect(listening(undefined, address.port)).rejects.toMatchObject({ code: 'EADDRINUSE' });
  });

  test('is listened on when it was named and is free', async () => {
    const { address, queues, server } = await listening();
    queues.close();
    server.close();
    await once(server, 'close');
    expect((await listening(undefined, address.port)).address.port).toBe(address.port);
  });

  test('takes no connection after it was closed', async () => {
    const { address, queues, server } = await listening();
    queues.close();
    server.close();
    const refusals = burst(24, address).map(async (client) => {
      const [failure] = (await once(client, 'error').catch((error: unknown) => [error])) as [
        { code: string },
      ];
      return failure.code;
    });
    expect(new Set(await Promise.all(refusals))).toEqual(new Set(['ECONNREFUSED']));
  });
});
