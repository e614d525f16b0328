/**
 * The form in which Redis holds what would reveal something: encrypted and authenticated (AES-256-GCM) under a key that is derived
 * (HKDF-SHA-256) from the label key and a secret that only those know who may read it.
 */
import { createCipheriv, createDecipheriv, hkdfSync, randomBytes } from 'node:crypto';

const ivBytes = 12;
const tagBytes = 16;
/** The tag length is stated, because Node would otherwise accept a shorter tag when it decrypts. */
const tagged = { authTagLength: tagBytes };

export interface SealKey {
  readonly labelKey: string;
  /** What is sealed, such as `token`: what was sealed for one purpose cannot be opened for another. */
  readonly purpose: string;
  readonly secret: string;
  /** Authenticated with the bytes: they cannot be opened under another name. */
  readonly name: string;
}

export function seal(key: SealKey, plain: Buffer): Buffer {
  const iv = randomBytes(ivBytes);
  const cipher = createCipheriv('aes-256-gcm', cipherKey(key), iv, tagged);
  cipher.setAAD(Buffer.from(key.name, 'utf8'));
  return Buffer.concat([iv, cipher.update(plain), cipher.final(), cipher.getAuthTag()]);
}

/** `null` = not sealed by Sluice, sealed under another key or name, or damaged. */
export function open(key: SealKey, sealed: Buffer): Buffer | null {
  try {
    const end = sealed.length - tagBytes;
    const decipher = createDecipheriv('aes-256-gcm', cipherKey(key), sealed.subarray(0, ivBytes), tagged);
    decipher.setAAD(Buffer.from(key.name, 'utf8'));
    decipher.setAuthTag(sealed.subarray(end));
    return Buffer.concat([decipher.update(sealed.subarray(ivBytes, end)), decipher.final()]);
  } catch {
    return null;
  }
}

const cipherKey = ({ labelKey, purpose, secret }: SealKey): Buffer =>
  Buffer.from(hkdfSync('sha256', labelKey, secret, `sluice ${purpose}`, 32));
