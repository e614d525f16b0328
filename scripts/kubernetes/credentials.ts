/** Certificates and kubeconfigs of one cluster, by openssl; valid for two days and gone with the cluster's folder. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { command } from './command.ts';

const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes'];

export class Credentials {
  readonly folder: string;

  /** @param folder of the cluster */
  constructor(folder: string) {
    this.folder = join(folder, 'pki');
    mkdirSync(this.folder, { recursive: true, mode: 0o700 });
  }

  file(name: string): string {
    return join(this.folder, name);
  }

  /** The authority, and the key that signs tokens of service accounts. */
  async createAuthority(): Promise<void> {
    const [key, certificate] = [this.file('ca.key'), this.file('ca.crt')];
    const self = ['req', '-x509', ...curve, '-days', '2', '-subj', '/CN=verify'];
    await command('openssl', [...self, '-keyout', key, '-out', certificate]);
    const accounts = ['ecparam', '-name', 'prime256v1', '-genkey', '-noout', '-out'];
    await command('openssl', [...accounts, this.file('accounts.key')]);
  }

  /** `NAME.crt` and `NAME.key`. @param names subject alternative names, for servers */
  async issue(name: string, subject: string, names = ''): Promise<void> {
    const request = this.file(`${name}.csr`);
    await command('openssl', [
      'req',
      ...curve,
      '-subj',
      subject,
      '-keyout',
      this.file(`${name}.key`),
      '-out',
      request,
    ]);
    const extensions = this.file(`${name}.ext`);
    const alternative = names === '' ? '' : `subjectAltName=${names}\n`;
    writeFileSync(extensions, `extendedKeyUsage=serverAuth,clientAuth\n${alternative}`);
    const authority = ['-CA', this.file('ca.crt'), '-CAkey', this.file('ca.key'), '-CAcreateserial'];
    const signed = ['-days', '2', '-out', this.file(`${name}.crt`), '-extfile', extensions];
    await command('openssl', ['x509', '-req', '-in', request, ...authority, ...signed]);
  }

  /** @returns the path of a kubeconfig for an issued certificate */
  kubeconfig(name: string, server: string): string {
    const path = this.file(`${name}.kubeconfig`);
    const user = { 'client-certificate': this.file(`${name}.crt`), 'client-key': this.file(`${name}.key`) };
    const content = {
      apiVersion: 'v1',
      kind: 'Config',
      clusters: [{ name: 'real', cluster: { server, 'certificate-authority': this.file('ca.crt') } }],
      users: [{ name, user }],
      contexts: [{ name: 'real', context: { cluster: 'real', user: name } }],
      'current-context': 'real',
    };
    writeFileSync(path, JSON.stringify(content), { mode: 0o600 });
    return path;
  }
}
