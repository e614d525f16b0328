/** What is charged, paced by the embedded limiter. */
import { chargeScenarios } from './charge-scenarios.ts';

chargeScenarios(1);
