/** Takes single files out of a zip archive (stored or deflated), without unzip or python. */
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { inflateRawSync } from 'node:zlib';

const END = 0x06054b50;

/**
 * @param {string} archive
 * @param {string} outDir
 * @param {Record<string, string>} wanted entry name → file name in outDir (written executable)
 * @throws when an entry is missing
 */
export function unzip(archive, outDir, wanted) {
  const zip = readFileSync(archive);
  const left = new Map(Object.entries(wanted));
  mkdirSync(outDir, { recursive: true });
  let end = zip.length - 22;
  while (zip.readUInt32LE(end) !== END) end -= 1;
  let at = zip.readUInt32LE(end + 16);
  for (let count = zip.readUInt16LE(end + 10); count > 0; count -= 1) {
    const entry = {
      method: zip.readUInt16LE(at + 10),
      size: zip.readUInt32LE(at + 20),
      nameLength: zip.readUInt16LE(at + 28),
      extra: zip.readUInt16LE(at + 30) + zip.readUInt16LE(at + 32),
      local: zip.readUInt32LE(at + 42),
    };
    const name = zip.toString('utf8', at + 46, at + 46 + entry.nameLength);
    at += 46 + entry.nameLength + entry.extra;
    const target = left.get(name);
    if (target === undefined) continue;
    left.delete(name);
    const start = entry.local + 30 + zip.readUInt16LE(entry.local + 26) + zip.readUInt16LE(entry.local + 28);
    const data = zip.subarray(start, start + entry.size);
    writeFileSync(join(outDir, target), entry.method === 0 ? data : inflateRawSync(data), { mode: 0o755 });
  }
  if (left.size > 0) throw new Error(`not in ${archive}: ${[...left.keys()].join(', ')}`);
}
