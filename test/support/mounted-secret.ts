/** A mounted Secret as the kubelet writes it: a folder per version, and a link that is renamed over. */
import { mkdir, mkdtemp, rename, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

export type MountedSecret = Awaited<ReturnType<typeof mountSecret>>;

export async function mountSecret(first: string) {
  const folder = await mkdtemp(join(tmpdir(), 'sluice-secret-'));
  const path = join(folder, 'token');
  let version = 0;
  /** Replaces the content, all at once. */
  const write = async (text: string): Promise<void> => {
    version += 1;
    await mkdir(join(folder, `..v${version}`));
    await writeFile(join(folder, `..v${version}`, 'token'), `${text}\n`);
    await symlink(`..v${version}`, join(folder, '..data_tmp'));
    await rename(join(folder, '..data_tmp'), join(folder, '..data'));
  };
  await write(first);
  await symlink('..data/token', path);
  // `path` is that of the file that a configuration names.
  return { folder, path, write, remove: () => rm(folder, { recursive: true }) };
}
