/**
 * Who may ask the admin port. It is private, but the browsers of those who can reach it are not: a web page can make them send
 * requests there, and by a name of its own that it lets resolve to the port's address (DNS rebinding) also read the responses.
 *
 * Keeps: a request names the port by an address, `localhost` or a configured name, and comes from no page of another site. What
 * changes something also carries a field that no such page can send, and the token where one is configured.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import { isIP } from 'node:net';
import type { NextFunction, Request, RequestHandler, Response } from 'express';
import { valuesOf } from '../field-lines.policy.ts';

export interface AdminAccess {
  /** Names beside addresses and `localhost` by which the port may be asked, lower case, without a port. */
  readonly adminNames: readonly string[];
  /** What a `POST` must carry behind `Authorization: Bearer`; `null` = none is demanded. */
  readonly adminToken: string | null;
}

/** `host` or `host:port`; an IPv6 address in brackets. */
const hostForm = /^(\[[0-9a-f:.]+\]|[^\s:/?#@[\]]+)(?::\d{1,5})?$/i;

/** The host in lower case, without brackets and port; `null` = not a host. */
function hostnameOf(host: string): string | null {
  const [, name] = hostForm.exec(host) ?? [];
  if (name === undefined) return null;
  return name.startsWith('[') ? name.slice(1, -1) : name.toLowerCase();
}

/** Probes of load balancers, which show nothing but health. */
const probes = new Set(['/livez', '/readyz']);

/** Refuses requests that a web page may have caused. */
export function guardAdmin({ adminNames, adminToken }: AdminAccess): RequestHandler {
  const names = new Set(['localhost', ...adminNames]);
  const isOwn = (hostname: string): boolean => isIP(hostname) !== 0 || names.has(hostname.replace(/\.$/, ''));
  return (request: Request, response: Response, next: NextFunction): void => {
    const hosts = valuesOf(request.rawHeaders, 'host');
    // HAProxy's probes are HTTP/1.0 without a Host. Every browser sends one.
    const isBareProbe = hosts.length === 0 && probes.has(request.path);
    const host = hosts.length === 1 ? (hosts[0] ?? '').trim() : '';
    const hostname = hostnameOf(host);
    // An absolute target names a host of its own, which would count instead (RFC 9112 §3.2.2). No browser sends one here.
    const isAbsolute = !request.url.startsWith('/');
    if (isAbsolute || (!isBareProbe && (hostname === null || !isOwn(hostname)))) {
      const detail =
        'Name the admin port by its IP address, as localhost, or by a name of `server.adminNames` in the configuration.';
      return adminProblem(response, { status: 403, code: 'admin_host_forbidden', detail });
    }
    if (isFromElsewhere(request, host, names)) {
      const detail = 'Pages of other sites may not ask the admin port: open it by its own address.';
      return adminProblem(response, { status: 403, code: 'admin_origin_forbidden', detail });
    }
    if (request.method !== 'POST') return next();
    if (request.get('sluice-admin') !== 'yes') {
      const detail =
        'This is the admin port, and callers use the data port. A command needs the field `Sluice-Admin: yes`.';
      return adminProblem(response, { status: 403, code: 'admin_field_missing', detail });
    }
    if (adminToken !== null && !carries(request, adminToken)) {
      response.set('WWW-Authenticate', 'Bearer');
      const detail =
        'Send the token of `server.adminToken` as `Authorization: Bearer …`; the commands of sluice take it from SLUICE_ADMIN_TOKEN.';
      return adminProblem(response, { status: 401, code: 'admin_token_missing', detail });
    }
    return next();
  };
}

/** True for what a browser marks as caused by a page that the admin port has not served. */
function isFromElsewhere(request: Request, host: string, names: ReadonlySet<string>): boolean {
  if (
    valuesOf(request.rawHeaders, 'sec-fetch-site').some((site) => site.trim().toLowerCase() === 'cross-site')
  )
    return true;
  return valuesOf(request.rawHeaders, 'origin').some((origin) => {
    const from = /^https?:\/\/([^/]+)$/i.exec(origin.trim())?.[1];
    if (from === undefined) return true;
    const hostname = hostnameOf(from) ?? '';
    // A page of `localhost` on another port is another site; one behind a proxy of a configured name is the admin port's own.
    const isConfigured = hostname !== 'localhost' && names.has(hostname);
    return from.toLowerCase() !== host.toLowerCase() && !isConfigured;
  });
}

/** Compares digests, so that the time taken shows neither the token nor its length. */
function carries(request: Request, token: string): boolean {
  const given = /^Bearer +(\S+) *$/i.exec(request.get('authorization') ?? '')?.[1] ?? '';
  return timingSafeEqual(digestOf(given), digestOf(token));
}

const digestOf = (text: string): Buffer => createHash('sha256').update(text).digest();

/** Writes a problem of the admin port. */
export function adminProblem(
  response: Response,
  { status, code, detail }: { readonly status: number; readonly code: string; readonly detail: string },
): void {
  response
    .status(status)
    .type('application/problem+json')
    .send(JSON.stringify({ type: `urn:sluice:error:${code}`, title: detail, status, detail, code }));
}
