/** What every group of checks gets. */
import type { Client } from '../cluster/client.ts';
import type { Report } from '../report.ts';

export interface Scene {
  readonly client: Client;
  readonly report: Report;
  /** Folder of the chart; another one for planted defects. */
  readonly chart: string;
  /** Of Kubernetes, as `1.36`: stands before every name in the report. */
  readonly version: string;
}
