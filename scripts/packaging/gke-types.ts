/**
 * The fields of Google's three policies that the chart may write, after the GKE documentation of Gateway and Ingress
 * features. Compiled with `tsc --strict` against the renders: a field that is not listed here is an error.
 */
interface Meta<Group extends string, Kind extends string> {
  apiVersion: Group;
  kind: Kind;
  metadata: { name: string; namespace: string; labels: Record<string, string> };
}

interface ServiceTarget {
  group: '';
  kind: 'Service';
  name: string;
}

export interface IGCPBackendPolicy extends Meta<'networking.gke.io/v1', 'GCPBackendPolicy'> {
  spec: {
    default: { timeoutSec: number; connectionDraining: { drainingTimeoutSec: number } };
    targetRef: ServiceTarget;
  };
}

export interface IHealthCheckPolicy extends Meta<'networking.gke.io/v1', 'HealthCheckPolicy'> {
  spec: {
    default: {
      checkIntervalSec: number;
      timeoutSec: number;
      healthyThreshold: number;
      unhealthyThreshold: number;
      config: {
        type: 'HTTP';
        httpHealthCheck: { portSpecification: 'USE_FIXED_PORT'; port: number; requestPath: string };
      };
    };
    targetRef: ServiceTarget;
  };
}

export interface IBackendConfig extends Meta<'cloud.google.com/v1', 'BackendConfig'> {
  spec: {
    timeoutSec: number;
    connectionDraining: { drainingTimeoutSec: number };
    healthCheck: {
      type: 'HTTP';
      port: number;
      requestPath: string;
      checkIntervalSec: number;
      timeoutSec: number;
      healthyThreshold: number;
      unhealthyThreshold: number;
    };
  };
}
