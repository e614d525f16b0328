/**
 * What Node alone costs under slow connections: a server with the gateway's limits that reads bodies and does nothing else, as a process of
 * its own. Prints its port.
 */
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

const server = createServer(
  { headersTimeout: 20_000, requestTimeout: 60_000, connectionsCheckingInterval: 5_000, keepAlive: true },
  (request, response) => {
    const chunks: Buffer[] = [];
    request.on('error', () => {});
    request.on('data', (chunk: Buffer) => chunks.push(chunk));
    request.on('end', () => response.end(Buffer.concat(chunks)));
  },
);
server.listen(0, '127.0.0.1', () => console.log((server.address() as AddressInfo).port));
