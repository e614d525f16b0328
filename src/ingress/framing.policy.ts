/**
 * How an upstream's response is framed on the client's connection.
 *
 * Owns: the length of what is sent, and which responses have no body. Does not own: every other field.
 * Invariant: the length announced is the length sent, or the transfer is chunked, or there is no body (RFC 9110 §8.6,
 * RFC 9112 §6).
 */

export interface Framed {
  readonly method: string;
  readonly status: number;
  /** Cleaned upstream fields, name and value alternating. */
  readonly fields: readonly string[];
  /** Bytes of a body that is all there, or `stream`. */
  readonly body: number | 'stream';
  /** Lower-case names of fields that Sluice sets itself and must not be there twice. */
  readonly replaced: readonly string[];
}

export interface Framing {
  readonly fields: string[];
  /** True: no body is sent, whatever the upstream's is. */
  readonly bodiless: boolean;
  /** Length promised by the head, bytes; `null` = not promised. */
  readonly declaredBytes: number | null;
}

/** Set here or by the server, never copied. */
const framingFields: ReadonlySet<string> = new Set(['connection', 'content-length', 'transfer-encoding']);

const digits = /^[0-9]{1,15}$/;

/** @returns `null` when the status cannot be answered with. */
export function outcomeFraming({ method, status, fields, body, replaced }: Framed): Framing | null {
  if (!Number.isInteger(status) || status < 200 || status > 599) return null;
  const kept: string[] = [];
  let declared: string | null = null;
  for (let at = 0; at < fields.length; at += 2) {
    const name = fields[at] ?? '';
    const value = fields[at + 1] ?? '';
    const lower = name.toLowerCase();
    if (lower === 'content-length') declared = digits.test(value) ? value : null;
    if (!framingFields.has(lower) && !replaced.includes(lower)) kept.push(name, value);
  }
  const asHead = method === 'HEAD' || status === 304;
  if (status === 204) return { fields: kept, bodiless: true, declaredBytes: null };
  if (status === 205) return { fields: [...kept, 'Content-Length', '0'], bodiless: true, declaredBytes: 0 };
  // The length of a response to HEAD, or of 304, is that of the body which is not sent.
  if (!asHead && body !== 'stream') declared = String(body);
  if (declared !== null) kept.push('Content-Length', declared);
  return { fields: kept, bodiless: asHead, declaredBytes: declared === null ? null : Number(declared) };
}
