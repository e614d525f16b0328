/** Defects that only running pods show. */
import type { ControlPlane } from '../cluster/control-plane.ts';
import { defects, finds } from '../planted.ts';
import type { Report } from '../report.ts';
import { hangs } from './hanging.ts';
import { waysAreAsWanted } from './policy-checks.ts';
import { Shop } from './shop.ts';

export async function checkNodeDefects(plane: ControlPlane, report: Report, version: string): Promise<void> {
  const on =
    (what: (shop: Shop) => Promise<unknown>) =>
    async (chart: string, unseen: Report): Promise<void> => {
      const shop = new Shop(plane, unseen, { namespace: 'defect', chart });
      await shop.open();
      try {
        await shop.upgrade();
        await what(shop);
      } finally {
        await shop.close();
      }
    };
  const check = (name: string, run: () => Promise<string>): Promise<boolean> =>
    report.check(`${version}, real node, planted: ${name}`, run);
  await check(defects.egress.name, () =>
    finds(defects.egress, /redis.*:6379 is closed/, on(waysAreAsWanted)),
  );
  await check(defects.readiness.name, () =>
    finds(
      defects.readiness,
      /the pod leaves the Service/,
      on((shop) => hangs(shop, false)),
    ),
  );
}
