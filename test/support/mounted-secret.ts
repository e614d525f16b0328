/** A mounted Secret as the kubelet writes it: a folder per version, and a link that is renamed over. */
import { mkdir, mkdtemp, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export interface MountedSecret {
  readonly folder: string;
  /** Of the file that a configuration names. */
  readonly path: string;
  /** Replaces the content, all at once. */
  write(text: string): Promise<void>;
  remove(): Promise<void>;
}

export async function mountSecret(first: string): Promise<MountedSecret> {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-secret-'));
  const path = join(folder, 'token');
  let version = 0;
  const write = async (text: string): Promise<void> => {
    version += 1;
    await mkdir(join(folder, `..v${version}`));
    await writeFile(join(folder, `..v${version}`, 'token'), `${text}\n`);
    await symlink(`..v${version}`, join(folder, '..data_tmp'));
    await rename(join(folder, '..data_tmp'), join(folder, '..data'));
  };
  await write(first);
  await symlink('..data/token', path);
  return { folder, path, write, remove: () => rm(folder, { recursive: true }) };
}
