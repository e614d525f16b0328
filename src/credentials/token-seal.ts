/**
 * Tokens as they lie in Redis: encrypted and authenticated, under a key that only replicas with the same label key can make
 * (AES-256-GCM, HKDF-SHA-256). Owns the form. Keeps: what cannot be opened is no token, whatever the reason.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const ivBytes = 12;
const tagBytes = 16;
/** The tag length is stated, because Node would otherwise accept a shorter tag when it decrypts. */
const tagged = { authTagLength: tagBytes };

export interface SealedToken {
  readonly token: string;
  /** The token's whole life, milliseconds; `null` = not known. */
  readonly lifeMs: number | null;
}

/** Seals and opens tokens. `name` is authenticated with the text: a text that was copied to another name cannot be opened. */
export class TokenSeal {
  readonly #labelKey: string;

  constructor(labelKey: string) {
    this.#labelKey = labelKey;
  }

  close(name: string, { token, lifeMs }: SealedToken): string {
    const iv = randomBytes(ivBytes);
    const cipher = createCipheriv('aes-256-gcm', this.#keyOf(name), iv, tagged);
    const text = Buffer.concat([cipher.update(JSON.stringify({ token, lifeMs }), 'utf8'), cipher.final()]);
    return Buffer.concat([iv, cipher.getAuthTag(), text]).toString('base64');
  }

  /** `null` = the text was not sealed by Sluice, or with another label key, or it is damaged. */
  open(name: string, sealed: string): SealedToken | null {
    try {
      const bytes = Buffer.from(sealed, 'base64');
      const iv = bytes.subarray(0, ivBytes);
      const decipher = createDecipheriv('aes-256-gcm', this.#keyOf(name), iv, tagged);
      decipher.setAuthTag(bytes.subarray(ivBytes, ivBytes + tagBytes));
      const text =
        decipher.update(bytes.subarray(ivBytes + tagBytes), undefined, 'utf8') + decipher.final('utf8');
      return tokenOf(JSON.parse(text));
    } catch {
      return null;
    }
  }

  #keyOf(name: string): Buffer {
    return Buffer.from(hkdfSync('sha256', this.#labelKey, name, 'sluice upstream token', 32));
  }
}

function tokenOf(value: unknown): SealedToken | null {
  if (typeof value !== 'object' || value === null || !('token' in value) || !('lifeMs' in value)) return null;
  const { token, lifeMs } = value;
  if (typeof token !== 'string' || (lifeMs !== null && typeof lifeMs !== 'number')) return null;
  return { token, lifeMs };
}
