/**
 * Who may ask the admin port. It is private, but the browsers of those who can reach it are not: a web page can make them send
 * requests there, and by a name of its own that it lets resolve to the port's address (DNS rebinding) also read the responses.
 *
 * Keeps: a request names the port by an address, `localhost` or a configured name, and comes from no page of another site. What
 * changes something also carries a field that no such page can send, and the token where one is configured.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import { isIP } from 'node:net';
import type { Request, RequestHandler, Response } from 'express';
import type { ServerSettings } from '../config/settings.ts';
import { valuesOf } from '../field-lines.policy.ts';

/** `host` or `host:port`; an IPv6 address in brackets. */
const hostForm = /^(\[[0-9a-f:.]+\]|[^\s:/?#@[\]]+)(?::\d{1,5})?$/i;

/** The host in lower case, without brackets and port; empty = not a host. */
const hostnameOf = (host: string): string =>
  (hostForm.exec(host)?.[1] ?? '').toLowerCase().replace(/^\[(.*)\]$/, '$1');

/** Probes of load balancers, which show nothing but health. */
const probes = ['/livez', '/readyz'];

/** A problem of the admin port. */
export interface AdminProblem {
  readonly status: number;
  readonly code: string;
  readonly detail: string;
}

const problems = {
  host: {
    status: 403,
    code: 'admin_host_forbidden',
    detail:
      'Name the admin port by its IP address, as localhost, or by a name of `server.adminNames` in the configuration.',
  },
  origin: {
    status: 403,
    code: 'admin_origin_forbidden',
    detail: 'Pages of other sites may not ask the admin port: open it by its own address.',
  },
  field: {
    status: 403,
    code: 'admin_field_missing',
    detail:
      'This is the admin port, and callers use the data port. A command needs the field `Sluice-Admin: yes`.',
  },
  token: {
    status: 401,
    code: 'admin_token_missing',
    detail:
      'Send the token of `server.adminToken` as `Authorization: Bearer …`; the commands of sluice take it from SLUICE_ADMIN_TOKEN.',
  },
} as const;

/** Refuses requests that a web page may have caused. */
export function guardAdmin({
  adminNames,
  adminToken,
}: Pick<ServerSettings, 'adminNames' | 'adminToken'>): RequestHandler {
  const names = new Set(['localhost', ...adminNames]);
  const faultOf = (request: Request): AdminProblem | null => {
    const hosts = valuesOf(request.rawHeaders, 'host');
    const host = hosts.length === 1 ? (hosts[0] ?? '').trim() : '';
    const hostname = hostnameOf(host);
    const isOwn = isIP(hostname) !== 0 || names.has(hostname.replace(/\.$/, ''));
    // HAProxy's probes are HTTP/1.0 without a Host. Every browser sends one.
    const isBareProbe = hosts.length === 0 && probes.includes(request.path);
    // An absolute target names a host of its own, which would count instead (RFC 9112 §3.2.2). No browser sends one here.
    if (!request.url.startsWith('/') || !(isBareProbe || isOwn)) return problems.host;
    if (isFromElsewhere(request, host, names)) return problems.origin;
    if (request.method !== 'POST') return null;
    if (request.get('sluice-admin') !== 'yes') return problems.field;
    return adminToken !== null && !carries(request, adminToken) ? problems.token : null;
  };
  return (request, response, next) => {
    const fault = faultOf(request);
    if (fault === null) return next();
    if (fault.status === 401) response.set('WWW-Authenticate', 'Bearer');
    adminProblem(response, fault);
  };
}

/** True for what a browser marks as caused by a page that the admin port has not served. */
function isFromElsewhere({ rawHeaders }: Request, host: string, names: ReadonlySet<string>): boolean {
  const sites = valuesOf(rawHeaders, 'sec-fetch-site');
  if (sites.some((site) => site.trim().toLowerCase() === 'cross-site')) return true;
  return valuesOf(rawHeaders, 'origin').some((origin) => {
    const from = /^https?:\/\/([^/]+)$/i.exec(origin.trim())?.[1] ?? '';
    const hostname = hostnameOf(from);
    // A page of `localhost` on another port is another site; one behind a proxy of a configured name is the admin port's own.
    const isConfigured = hostname !== 'localhost' && names.has(hostname);
    return from === '' || (from.toLowerCase() !== host.toLowerCase() && !isConfigured);
  });
}

/** Compares digests, so that the time taken shows neither the token nor its length. */
function carries(request: Request, token: string): boolean {
  const given = /^Bearer +(\S+) *$/i.exec(request.get('authorization') ?? '')?.[1] ?? '';
  return timingSafeEqual(digestOf(given), digestOf(token));
}

const digestOf = (text: string): Buffer => createHash('sha256').update(text).digest();

/** Writes a problem of the admin port. */
export function adminProblem(response: Response, { status, code, detail }: AdminProblem): void {
  response
    .status(status)
    .type('application/problem+json')
    .send(JSON.stringify({ type: `urn:sluice:error:${code}`, title: detail, status, detail, code }));
}
